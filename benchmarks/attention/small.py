"""Time small and medium calls of `attend`, compared with plain PyTorch, over a grid of shapes.

    python -m benchmarks.attention.small [--quick] [--threads 1,2] [--out FOLDER]

Scores: scaled dot, additive and Gaussian, with and without lengths, backward pass and weights. Then layers and a
prepared memory. Queries and keys are already projected. Answers and gradients are compared before speeds. A time is the
median of rounds in turn. A ratio is the time of plain PyTorch over the time of dikkat, so below 1 is slower. Ratios
below 1 are measured again for longer, since a pause of the machine can be as long as a small call. `extra` is the
additional time of the smallest call.
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
# Maximum elements of plain PyTorch's largest tensor; larger shapes take seconds and gigabytes.
LARGEST = 2**23
# Seconds per case.
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
        elements = b * n * m * (1 if score == "scaled dot" else h)
        if elements <= LARGEST and b * m * h <= 2 * LARGEST:
            yield Case(score, b, n, m, h, lengths, weights, backward)


def projected(score: scores.Additive) -> scores.Additive:
    """Replace the projections by identities, for projected queries and keys."""

    class Unchanged(torch.nn.Linear):
        def forward(self, features: Tensor) -> Tensor:
            return features

    score.W_q, score.W_k = (Unchanged(score.num_hiddens, score.num_hiddens) for _ in range(2))
    return score


def plain(case: Case, query: Tensor, key: Tensor, value: Tensor, v: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Compute the case with PyTorch's operations."""
    if case.score == "scaled dot":
        logits = query @ key.mT / math.sqrt(case.features)
    elif case.score == "additive":
        logits = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) @ v
    else:
        logits = -0.5 * (query.unsqueeze(2) - key.unsqueeze(1)).square().sum(-1)
    if lens is not None:
        logits = logits.masked_fill(torch.arange(case.keys) >= lens[:, None, None], -math.inf)
    weights = torch.softmax(logits, -1)
    return [weights @ value, weights] if case.weights else [weights @ value]


def ways(case: Case) -> dict[str, Callable[[], list[Tensor]]]:
    """Return the functions of PyTorch and dikkat, with gradients if the case has a backward pass."""
    torch.manual_seed(0)
    score_types: dict[str, Callable[[], scores.Score]] = {
        "scaled dot": scores.ScaledDot,
        "additive": lambda: projected(scores.Additive(case.features, case.features, case.features)),
        "gaussian": scores.Gaussian,
    }
    score = score_types[case.score]()
    size = case.features**-0.25 if case.score == "gaussian" else 1.0  # so that no single key dominates
    query, key, value = (
        (size * torch.randn(case.batch, n, case.features)).requires_grad_(case.backward)
        for n in (case.queries, case.keys, case.keys)
    )
    v = score.w_v.weight[0] if isinstance(score, scores.Additive) else query
    lens = torch.randint(1, case.keys + 1, (case.batch,)) if case.lengths else None
    upstream = torch.randn(case.batch, case.queries, case.features)

    def ours() -> list[Tensor]:
        result = dikkat.attend(query, key, value, score=score, valid_lens=lens, return_weights=case.weights)
        return [result] if isinstance(result, Tensor) else list(result)

    def whole(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
        def forward() -> list[Tensor]:
            with torch.no_grad():
                return run()

        def both() -> list[Tensor]:
            outputs = run()
            return [*outputs, *torch.autograd.grad(outputs[0], (query, key, value), upstream)]

        return both if case.backward else forward

    return {"plain": whole(lambda: plain(case, query, key, value, v, lens)), "dikkat": whole(ours)}


def ratio(case: Case, seconds: float) -> dict[str, Any]:
    """Check that both answers are equal, and time the case."""
    runs = ways(case)
    for actual, expected in zip(runs["dikkat"](), runs["plain"](), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    return case._asdict() | timed(runs, seconds)


def timed(runs: dict[str, Callable[[], list[Tensor]]], seconds: float) -> dict[str, float]:
    """Return the microseconds of both functions, and the ratio of plain PyTorch to dikkat."""
    times: dict[str, float] = {}
    for factor in (1, 4):
        tasks = {name: once(run) for name, run in runs.items()}
        samples = measured(tasks, factor * seconds, factor * seconds / 16)
        times = {name: 1e6 * statistics.median(s / n for s, n in rounds) for name, rounds in samples.items()}
        times["ratio"] = times["plain"] / times["dikkat"]
        if times["ratio"] >= 1:
            break
    return times


def layers(seconds: float) -> dict[str, dict[str, float]]:
    """Time layers and a prepared memory, compared with PyTorch."""
    torch.manual_seed(0)
    heads, peer = dikkat.MultiHeadAttention(64, 4), torch.nn.MultiheadAttention(64, 4, batch_first=True)
    peer.load_state_dict(heads.state_dict())
    x = torch.randn(8, 32, 64, requires_grad=True)
    dots, lens = dikkat.DotProductAttention(), torch.randint(1, 11, (2,))
    query, key, value = torch.randn(2, 1, 20), torch.randn(2, 10, 20), torch.randn(2, 10, 4)
    adds = dikkat.AdditiveAttention(key_size=20, query_size=20, num_hiddens=8)
    step, keys = torch.randn(64, 1, 512), torch.randn(64, 50, 512)
    score = scores.Additive(512, 512, 512)
    with torch.no_grad():
        memory, projected_keys = dikkat.prepare(keys, keys, score=score), score.project_key(keys)

    def trained(layer: torch.nn.Module, out: Tensor) -> list[Tensor]:
        return [out, *torch.autograd.grad(out.sum(), (x, *layer.parameters()))]

    def masked(results: Tensor, values: Tensor) -> list[Tensor]:
        results = results.masked_fill(torch.arange(10) >= lens[:, None, None], -math.inf)
        return [torch.softmax(results, -1) @ values]

    def additive(query: Tensor, key: Tensor, score: scores.Additive) -> Tensor:
        return score.w_v(torch.tanh(query.unsqueeze(2) + key.unsqueeze(1))).squeeze(-1)

    def quiet(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
        return torch.no_grad()(run)

    pairs: dict[str, tuple[Callable[[], list[Tensor]], Callable[[], list[Tensor]]]] = {
        "MultiHeadAttention (8, 32, 4 x 16), forward and backward": (
            lambda: trained(peer, peer(x, x, x, need_weights=False)[0]),
            lambda: trained(heads, heads(x, x, x)),
        ),
        "DotProductAttention (2, 1, 10, 20), lengths": (
            quiet(lambda: masked(query @ key.mT / math.sqrt(20), value)),
            quiet(lambda: [dots(query, key, value, lens)]),
        ),
        "AdditiveAttention (2, 1, 10, 20), lengths": (
            quiet(lambda: masked(additive(adds.score.W_q(query), adds.score.W_k(key), adds.score), value)),
            quiet(lambda: [adds(query, key, value, lens)]),
        ),
        "attend_memory (64, 1, 50, 512), additive": (
            quiet(lambda: [torch.softmax(additive(score.W_q(step), projected_keys, score), -1) @ keys]),
            quiet(lambda: [dikkat.attend_memory(step, memory)]),
        ),
        "attend (64, 1, 50, 512), additive": (
            quiet(lambda: [torch.softmax(additive(score.W_q(step), score.W_k(keys), score), -1) @ keys]),
            quiet(lambda: [dikkat.attend(step, keys, keys, score=score)]),
        ),
    }
    results = {}
    for name, (reference, ours) in pairs.items():
        for actual, expected in zip(ours(), reference(), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        results[name] = timed({"plain": reference, "dikkat": ours}, 4 * seconds)
    return results


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise ratios by score and kind of call; `extra` is the additional time of the smallest call, in µs."""
    summaries: dict[str, Any] = {}
    for score, lengths, weights, backward in product(("scaled dot", "additive", "gaussian"), *[(False, True)] * 3):
        selected = [
            row for row in rows
            if (row["score"], row["lengths"], row["weights"], row["backward"]) == (score, lengths, weights, backward)
        ]  # fmt: skip
        if selected:
            labels = [score, "forward and backward" if backward else "forward"]
            labels += ["lengths"] * lengths + ["weights"] * weights
            ratios = [row["ratio"] for row in selected]
            summaries[", ".join(labels)] = {
                "shapes": len(selected),
                "geometric mean": statistics.geometric_mean(ratios),
                "worst": min(ratios),
                "below 0.9": sum(value < 0.9 for value in ratios),
                "worst shape": [min(selected, key=_ratio)[size] for size in ("batch", "queries", "keys", "features")],
                "extra": selected[0]["dikkat"] - selected[0]["plain"],
            }
    return summaries


def _ratio(row: dict[str, Any]) -> float:
    return float(row["ratio"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="six shapes")
    parser.add_argument("--threads", default="1,2", help="one run for each of these numbers")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each cell")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    arguments = parser.parse_args()
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        layer_times = layers(arguments.seconds)
        rows = [ratio(case, arguments.seconds) for case in cases(arguments.quick)]
        results = {"summary": summary(rows), "layers": layer_times}
        name = f"small-{threads}" + ("-quick" if arguments.quick else "")
        print(write(name, results, folder=arguments.out), flush=True)
        for kind, row in results["summary"].items():
            print(
                f"{kind:50} {row['geometric mean']:6.2f} worst {row['worst']:5.2f} {row['worst shape']}, "
                f"{row['below 0.9']} of {row['shapes']} below 0.9; smallest call "
                f"{row['extra']:+.0f} us"
            )
        for kind, row in layer_times.items():
            print(f"{kind:60} {row['ratio']:6.2f}", flush=True)


if __name__ == "__main__":
    main()
