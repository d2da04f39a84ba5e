"""Measure the time and memory of weights on request, compared with the forward.

    python -m benchmarks.attention.looking [--only long by_products] [--quick] [--seconds 60]

- `long`: top-8 weights of every row and sums by key of a long call, compared with its forward; peak memory;
- `by_products`: each summary as a by-product of the compiled forward, compared with only the forward.

Answers are compared with the full weights before speeds. Memory is the growth of a new process.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
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
REQUESTED: dict[str, dict[str, Any]] = {
    "sums": {"sums": True},
    "entropy": {"entropy": True},
    "argmax": {"argmax": True},
    "sums, entropy, argmax": {"sums": True, "entropy": True, "argmax": True},
    "top 8": {"top_k": 8},
    "overview 64 x 64": {"overview": 64},
}
LONG = """
import torch, dikkat
from benchmarks.kit.memory import peak_growth
def look(n):
    q, k = torch.randn(1, n, 64), torch.randn(1, n, 64)
    dikkat.inspect(q, k, score=dikkat.scores.ScaledDot(), top_k=8, sums=True, impl="numba")
look(256)
print(peak_growth(lambda: look({length})))
"""


def mebibytes(length: int) -> float:
    """Return the memory growth that a new process reports, in MiB."""
    command_line = [sys.executable, "-c", LONG.format(length=length)]
    process = subprocess.run(command_line, check=True, capture_output=True, text=True, env=environment())
    return float(process.stdout.split()[-1]) / 2**20


def check(score: scores.Score) -> None:
    """Check the summaries against the full weights."""
    query, key, value = torch.randn(2, 301, 64), torch.randn(2, 407, 64), torch.randn(2, 407, 64)
    requested: dict[str, Any] = {"top_k": 8, "sums": True, "entropy": True, "impl": "numba"}
    inspection = dikkat.inspect(query, key, score=score, **requested)
    pooled_inspection = dikkat.inspect(query, key, score=score, value=value, **requested)
    weights = dikkat.attention_weights(query.double(), key.double(), score=score.double(), impl="reference")
    score.float()
    expected = {
        "sums": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
        "top_weights": weights.topk(8).values,
    }
    for name, tensor in expected.items():
        for summary in (inspection, pooled_inspection):
            torch.testing.assert_close(getattr(summary, name).double(), tensor, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled_inspection.output.double(), weights @ value.double(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def long(length: int) -> dict[str, Any]:
    """Return the milliseconds of the forward of a long call, and of its summaries."""
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

    for warm_up in tasks(512).values():
        warm_up()
    samples_by_task = measured({name: once(run) for name, run in tasks(length).items()}, 0)  # a run takes many seconds
    return {name: milliseconds(samples) for name, samples in samples_by_task.items()}


@torch.no_grad()
def by_products(name: str, length: int, seconds: float) -> dict[str, Any]:
    """Return the milliseconds of the forward, and of the forward with each summary."""
    torch.manual_seed(0)
    score = SCORES[name]()
    check(score)
    query, key, value = (torch.randn(2, length, 64) for _ in range(3))
    tasks = {"forward": once(partial(dikkat.attend, query, key, value, score=score, impl="numba"))}
    for summary_name, requested in REQUESTED.items():
        tasks[summary_name] = once(
            partial(dikkat.inspect, query, key, score=score, impl="numba", value=value, **requested)
        )
    return {summary_name: milliseconds(samples) for summary_name, samples in measured(tasks, seconds).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("long", "by_products")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each score")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args()
    torch.manual_seed(0)
    longest, length = (512, 256) if options.quick else (65_536, 4_096)
    seconds = 1.0 if options.quick else options.seconds
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "long": lambda: {
            f"top 8 and sums, n=m={longest}, extra MiB": mebibytes(longest),
            f"top 8 and sums, n=m={longest}, ms": long(longest),
        },
        "by_products": lambda: {
            f"{name}, by-products, n=m={length}, ms": by_products(name, length, seconds) for name in SCORES
        },
    }
    for section in options.only:
        name = f"looking-{section.replace('_', '-')}"
        print(write(name, measures[section](), "numba", folder=options.out).read_text())


if __name__ == "__main__":
    main()
