"""Weights on request: what they cost beside the forward, and in memory.

    python -m benchmarks.attention.looking [--only long by_products known recorded unrecorded] [--quick] [--seconds 60]

- `long`: the eight largest weights of every row and the sums by key of a long call, beside the forward alone; the sums,
  entropies and largest keys as by-products of that forward; and peak memory;
- `by_products`: each summary as a by-product of the compiled forward, beside that forward alone;
- `known`: each summary where the log-sum-exp is known, as a share of that forward;
- `recorded`: peak memory of a causal GPT-2 of two layers that is recorded, beyond that of the run alone;
- `unrecorded`: a model of PyTorch's in processes that never import dikkat, and in those where another model was
  recorded; and a layer of dikkat's before, after and while somebody records another one.

Answers are compared with the whole map, where that fits, before speeds. Memory is the growth of a fresh process.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import dikkat
from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.turns import LEAST, measured, milliseconds, once
from dikkat import scores

SCORES = {
    "scaled dot": scores.ScaledDot,
    "additive": partial(scores.Additive, 64, 64, 32),
    "gaussian": partial(scores.Gaussian, 8.0),
}
ASKED: dict[str, dict[str, Any]] = {
    "sums": {"sums": True},
    "entropy": {"entropy": True},
    "argmax": {"argmax": True},
    "sums, entropy, argmax": {"sums": True, "entropy": True, "argmax": True},
    "top 8": {"top_k": 8},
    "overview 64 x 64": {"overview": 64},
}
START = """
import resource, torch, dikkat
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
LONG = """
def look(n):
    q, k = torch.randn(1, n, 64), torch.randn(1, n, 64)
    before = peak()
    dikkat.inspect(q, k, score=dikkat.scores.ScaledDot(), top_k=8, sums=True, impl="numba")
    return peak() - before
look(256)
print(look({length}))
"""
GPT2 = """
from transformers import GPT2Config, GPT2LMHeadModel
dikkat.register_transformers()
config = GPT2Config(
    n_layer=2, n_head=4, n_embd=256, vocab_size=101, n_positions={length}, attn_implementation="dikkat")
model = GPT2LMHeadModel(config).eval()
with torch.no_grad(), dikkat.record(model, top_k=8, sums=True, overview=64):
    model(torch.zeros(1, 64, dtype=torch.int64), logits_to_keep=1)  # what is compiled and imported at first
ids = torch.randint(101, (1, {length}))
with torch.no_grad():
    model(ids, logits_to_keep=1)
    before = peak()
    with dikkat.record(model, top_k=8, sums=True, entropy=True, overview=64) as trace:
        model(ids, logits_to_keep=1)
print(peak() - before)
"""


PLAIN = """
import statistics, sys, time, torch
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False)
x = torch.randn(4, {length}, 128)
if sys.argv[1] == "with":
    import dikkat
    other = dikkat.MultiHeadAttention(128, 4)
    with dikkat.record(other, sums=True):
        other(x, x, x)
times = []
for _ in range({runs}):
    start = time.perf_counter()
    model(x).sum().backward()
    times.append(time.perf_counter() - start)
print(1e3 * statistics.median(times[{runs} // 4:]))
"""


def printed(code: str, *words: str) -> float:
    """The last number that a fresh process prints."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return float(done.stdout.split()[-1])


def mebibytes(code: str, **sizes: int) -> float:
    """The growth of memory that a fresh process reports."""
    return printed(START + code.format(**sizes)) / 1024


def check(score: scores.Score) -> None:
    """The summaries agree with the whole map."""
    query, key = torch.randn(2, 301, 64), torch.randn(2, 407, 64)
    asked: dict[str, Any] = {"top_k": 8, "sums": True, "entropy": True, "impl": "numba"}
    seen, value = dikkat.inspect(query, key, score=score, **asked), torch.randn(2, 407, 64)
    pooled = dikkat.inspect(query, key, score=score, value=value, **asked)
    weights = dikkat.attention_weights(query.double(), key.double(), score=score.double(), impl="reference")
    score.float()
    right = {
        "sums": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
        "top_weights": weights.topk(8).values,
    }
    for name, tensor in right.items():
        for found in (seen, pooled):
            torch.testing.assert_close(getattr(found, name).double(), tensor, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled.output.double(), weights @ value.double(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def beside_the_forward(length: int) -> dict[str, Any]:
    """Milliseconds of a long call's forwards, and of its summaries without the log-sum-exp."""
    score = scores.ScaledDot()
    check(score)

    def tasks(n: int) -> dict[str, Callable[[], object]]:
        query, key, value = (torch.randn(1, n, 64) for _ in range(3))
        look = partial(dikkat.inspect, query, key, score=score, impl="numba")
        return {
            "forward": partial(dikkat.attend, query, key, value, score=score),
            "forward, numba": partial(dikkat.attend, query, key, value, score=score, impl="numba"),
            "top 8 and sums": partial(look, top_k=8, sums=True),
            "forward, numba, with sums, entropy, argmax": partial(
                look, value=value, sums=True, entropy=True, argmax=True
            ),
        }

    for warm in tasks(512).values():
        warm()
    timed: dict[str, list[float]] = {}
    runs = tasks(length)
    for _ in range(LEAST):  # a run takes many seconds
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            timed.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
    return {name: spread(times) for name, times in timed.items()}


@torch.no_grad()
def each_alone(name: str, length: int, seconds: float, *, known: bool) -> dict[str, Any]:
    """Milliseconds of the forward, and of each summary: where the log-sum-exp is known, or with the forward."""
    torch.manual_seed(0)
    score = SCORES[name]()
    check(score)
    query, key, value = (torch.randn(2, length, 64) for _ in range(3))
    forward = partial(dikkat.attend, query, key, value, score=score, impl="numba")
    lse = dikkat.attention_state(query, key, value, score=score).lse
    given = {"lse": lse} if known else {"value": value}
    tasks = {"forward": once(forward)}
    for what, asked in ASKED.items():
        tasks[what] = once(partial(dikkat.inspect, query, key, score=score, impl="numba", **given, **asked))
    tasks["forward again"] = once(forward)
    return {what: milliseconds(samples) for what, samples in measured(tasks, seconds).items()}


@torch.no_grad()
def not_recorded(length: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a layer, and of the same layer after, and while, another one is recorded."""
    layer, other = (dikkat.MultiHeadAttention(64, 4) for _ in range(2))
    x = torch.randn(4, length, 64)

    def recorded() -> None:
        with dikkat.record(other, sums=True):
            other(x, x, x)

    def within() -> None:
        with dikkat.record(other, sums=True):
            other(x[:1, :1], x[:1, :1], x[:1, :1])
            layer(x, x, x)

    run = partial(layer, x, x, x)
    tasks = {"before": once(run), "after another": once(run, before=recorded), "within another's": once(within)}
    return {what: milliseconds(samples) for what, samples in measured(tasks, seconds).items()}


def never_imported(length: int, rounds: int, runs: int) -> dict[str, Any]:
    """Milliseconds of a training step of PyTorch's encoder, without and with dikkat in the process, in turn."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        for which, found in times.items():
            found.append(printed(PLAIN.format(length=length, runs=runs), which))
    return {which: spread(found) for which, found in times.items()} | {
        "with beside without, pair by pair": statistics.median(
            b / a for a, b in zip(times["without"], times["with"], strict=True)
        )
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("long", "by_products", "known", "recorded", "unrecorded")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each contest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    long, middle, tokens = (512, 256, 256) if options.quick else (65_536, 4_096, 16_384)
    seconds = 1.0 if options.quick else options.seconds
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "long": lambda: {
            f"top 8 and sums, n=m={long}, extra MiB": mebibytes(LONG, length=long),
            f"top 8 and sums, n=m={long}, ms": beside_the_forward(long),
        },
        "by_products": lambda: {
            f"{name}, by-products, n=m={middle}, ms": each_alone(name, middle, seconds, known=False) for name in SCORES
        },
        "known": lambda: {
            f"{name}, log-sum-exp known, n=m={middle}, ms": each_alone(name, middle, seconds, known=True)
            for name in SCORES
        },
        "recorded": lambda: {f"GPT-2, 2 layers, {tokens} tokens, recorded, extra MiB": mebibytes(GPT2, length=tokens)},
        "unrecorded": lambda: {
            "PyTorch's encoder, training step, ms": never_imported(
                middle // 16, *((1, 4) if options.quick else (7, 40))
            ),
            "a layer of dikkat, ms": not_recorded(middle // 8, seconds),
        },
    }
    for section in options.only:
        name = f"looking-{section.replace('_', '-')}"
        print(write(name, made[section](), "numba", "transformers", folder=options.out).read_text())


if __name__ == "__main__":
    main()
