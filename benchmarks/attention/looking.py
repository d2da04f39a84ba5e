"""Weights on request: what they cost beside the forward, and in memory.

    python -m benchmarks.attention.looking [--quick] [--seconds 60] [--out FOLDER]

- a long call: the eight largest weights of every row and the sums by key, beside the forward alone, and peak memory;
- each summary alone where the log-sum-exp is known, as a share of the forward of the same kernel;
- a causal GPT-2 of two layers that is recorded: peak memory beyond that of the run alone;
- a layer before, while and after somebody recorded another one, in turn: what is not recorded is not slower.

Answers are compared with the whole map, where that fits, before speeds. Memory is the growth of a fresh process.
"""

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

import dikkat
from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import measured, milliseconds, once
from dikkat import scores

SCORES = {
    "scaled dot": scores.ScaledDot,
    "additive": partial(scores.Additive, 64, 64, 32),
    "gaussian": partial(scores.Gaussian, 8.0),
}
ALONE: dict[str, dict[str, Any]] = {
    "sums": {"sums": True},
    "entropy": {"entropy": True},
    "argmax": {"argmax": True},
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


def mebibytes(code: str, **sizes: int) -> float:
    """The growth of memory that a fresh process reports."""
    words = [sys.executable, "-c", START + code.format(**sizes)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment())
    return float(done.stdout.split()[-1]) / 1024


def check(score: scores.Score) -> None:
    """The summaries agree with the whole map."""
    query, key = torch.randn(2, 301, 64), torch.randn(2, 407, 64)
    seen = dikkat.inspect(query, key, score=score, top_k=8, sums=True, entropy=True, impl="numba")
    weights = dikkat.attention_weights(query.double(), key.double(), score=score.double(), impl="reference")
    score.float()
    right = {
        "sums": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
        "top_weights": weights.topk(8).values,
    }
    for name, tensor in right.items():
        torch.testing.assert_close(getattr(seen, name).double(), tensor, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def beside_the_forward(length: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a long call's forwards, and of its summaries without the log-sum-exp."""
    query, key, value = (torch.randn(1, length, 64) for _ in range(3))
    score = scores.ScaledDot()
    look = partial(dikkat.inspect, query, key, score=score, top_k=8, sums=True, impl="numba")
    tasks = {
        "forward": once(partial(dikkat.attend, query, key, value, score=score)),
        "forward, numba": once(partial(dikkat.attend, query, key, value, score=score, impl="numba")),
        "top 8 and sums": once(look),
    }
    return {name: milliseconds(samples) for name, samples in measured(tasks, seconds).items()}


@torch.no_grad()
def each_alone(name: str, length: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of the forward, and of each summary where the log-sum-exp is known."""
    torch.manual_seed(0)
    score = SCORES[name]()
    check(score)
    query, key, value = (torch.randn(2, length, 64) for _ in range(3))
    lse = dikkat.attention_state(query, key, value, score=score).lse
    tasks = {"forward": once(partial(dikkat.attend, query, key, value, score=score, impl="numba"))}
    for what, asked in ALONE.items():
        tasks[what] = once(partial(dikkat.inspect, query, key, score=score, lse=lse, impl="numba", **asked))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each contest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    long, middle, tokens = (512, 256, 256) if options.quick else (65_536, 4_096, 16_384)
    seconds = 1.0 if options.quick else options.seconds
    results: dict[str, Any] = {
        f"top 8 and sums, n=m={long}, extra MiB": mebibytes(LONG, length=long),
        f"top 8 and sums, n=m={long}, ms": beside_the_forward(long, seconds),
        f"GPT-2, 2 layers, {tokens} tokens, recorded, extra MiB": mebibytes(GPT2, length=tokens),
        "not recorded, ms": not_recorded(middle // 8, seconds),
    }
    for name in SCORES:
        results[f"{name}, log-sum-exp known, n=m={middle}, ms"] = each_alone(name, middle, seconds)
    print(write("looking", results, "numba", "transformers", folder=options.out).read_text())


if __name__ == "__main__":
    main()
