"""Small and middling calls of `attend` beside plain PyTorch written out, over a grid of shapes.

    python -m benchmarks.attention.small [--quick] [--threads 1] [--out FOLDER]

Scaled dot, additive and Gaussian; with lengths or without, forward or with the backward, with weights or without.
Queries and keys come projected, so that the scoring alone is compared. Answers and gradients are compared before
speeds. A time is the median of rounds in turn; a ratio is plain PyTorch's time over ours, so that below 1 is slower.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dikkat
from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import measured, once
from dikkat import scores

BATCHES, QUERIES, KEYS, FEATURES = (1, 8, 64), (1, 4, 16, 64, 512), (8, 64, 512, 4096), (16, 64, 512)
# Numbers in the largest tensor that plain PyTorch makes, beyond which a shape takes seconds and gigabytes.
LARGEST = 2**23
# Seconds a pair of ways.
SECONDS = 0.06


class Case(NamedTuple):
    """One cell of the grid."""

    score: str
    batch: int
    queries: int
    keys: int
    features: int
    lengths: bool
    weights: bool
    backward: bool


def cases(quick: bool) -> Iterator[Case]:
    shapes = list(product(BATCHES, QUERIES, KEYS, FEATURES))
    if quick:
        shapes = [(1, 1, 8, 16), (8, 1, 64, 64), (8, 16, 64, 64), (8, 64, 64, 64), (64, 1, 64, 64), (64, 1, 512, 512)]
    for (b, n, m, h), score, lengths, weights, backward in product(
        shapes, ("scaled dot", "additive", "gaussian"), *[(False, True)] * 3
    ):
        made = b * n * m * (1 if score == "scaled dot" else h)
        if made <= LARGEST and b * m * h <= 2 * LARGEST:
            yield Case(score, b, n, m, h, lengths, weights, backward)


def projected(score: scores.Additive) -> scores.Additive:
    """For queries and keys that are projected already."""
    score.W_q, score.W_k = torch.nn.Identity(), torch.nn.Identity()  # type: ignore[assignment]
    return score


def plain(case: Case, query: Tensor, key: Tensor, value: Tensor, v: Tensor, lens: Tensor | None) -> list[Tensor]:
    """As one writes it with PyTorch's operations."""
    if case.score == "scaled dot":
        found = query @ key.mT / math.sqrt(case.features)
    elif case.score == "additive":
        found = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) @ v
    else:
        found = -0.5 * (query.unsqueeze(2) - key.unsqueeze(1)).square().sum(-1)
    if lens is not None:
        found = found.masked_fill(torch.arange(case.keys) >= lens[:, None, None], -math.inf)
    weights = torch.softmax(found, -1)
    return [weights @ value, weights] if case.weights else [weights @ value]


def ways(case: Case) -> dict[str, Callable[[], list[Tensor]]]:
    """Both ways, each with its gradients where the case has them."""
    torch.manual_seed(0)
    made: dict[str, Callable[[], scores.Score]] = {
        "scaled dot": scores.ScaledDot,
        "additive": lambda: projected(scores.Additive(case.features, case.features, case.features)),
        "gaussian": scores.Gaussian,
    }
    score = made[case.score]()
    size = case.features**-0.25 if case.score == "gaussian" else 1.0  # so that not one key takes all
    query, key, value = (
        (size * torch.randn(case.batch, n, case.features)).requires_grad_(case.backward)
        for n in (case.queries, case.keys, case.keys)
    )
    v = score.w_v.weight[0] if isinstance(score, scores.Additive) else query
    lens = torch.randint(1, case.keys + 1, (case.batch,)) if case.lengths else None
    upstream = torch.randn(case.batch, case.queries, case.features)

    def ours() -> list[Tensor]:
        found = dikkat.attend(query, key, value, score=score, valid_lens=lens, return_weights=case.weights)
        return [found] if isinstance(found, Tensor) else list(found)

    def whole(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
        def forward() -> list[Tensor]:
            with torch.no_grad():
                return run()

        def both() -> list[Tensor]:
            found = run()
            return [*found, *torch.autograd.grad(found[0], (query, key, value), upstream)]

        return both if case.backward else forward

    return {"plain": whole(lambda: plain(case, query, key, value, v, lens)), "dikkat": whole(ours)}


def ratio(case: Case, seconds: float) -> dict[str, Any]:
    """Microseconds of both ways, and plain PyTorch's over ours."""
    both = ways(case)
    for came, expected in zip(both["dikkat"](), both["plain"](), strict=True):
        torch.testing.assert_close(came, expected, rtol=1e-3, atol=1e-4)
    samples = measured({name: once(run) for name, run in both.items()}, seconds, seconds / 16)
    times = {name: 1e6 * statistics.median(s / n for s, n in rounds) for name, rounds in samples.items()}
    return case._asdict() | times | {"ratio": times["plain"] / times["dikkat"]}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By score and kind of call: the geometric mean, the worst, and how many are below 0.9."""
    found: dict[str, Any] = {}
    for score, lengths, weights, backward in product(("scaled dot", "additive", "gaussian"), *[(False, True)] * 3):
        of = [
            row for row in rows
            if (row["score"], row["lengths"], row["weights"], row["backward"]) == (score, lengths, weights, backward)
        ]  # fmt: skip
        if of:
            words = [score, "forward and backward" if backward else "forward"]
            words += ["lengths"] * lengths + ["weights"] * weights
            ratios = [row["ratio"] for row in of]
            found[", ".join(words)] = {
                "shapes": len(of),
                "geometric mean": statistics.geometric_mean(ratios),
                "worst": min(ratios),
                "below 0.9": sum(each < 0.9 for each in ratios),
                "least extra microseconds": min(row["dikkat"] - row["plain"] for row in of),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="six shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each cell")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [ratio(case, arguments.seconds) for case in cases(arguments.quick)]
    found = {"summary": summary(rows), "rows": rows}
    name = f"small-{arguments.threads}" + ("-quick" if arguments.quick else "")
    print(write(name, found, folder=arguments.out))
    for kind, row in found["summary"].items():
        print(
            f"{kind:50} {row['geometric mean']:6.2f} worst {row['worst']:5.2f}, {row['below 0.9']} of {row['shapes']}"
        )


if __name__ == "__main__":
    main()
