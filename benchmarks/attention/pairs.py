"""A bias of pairs and a window, beside what one had to write without them.

    python -m benchmarks.attention.pairs [--seconds 20]

Forward and backward with a bias (1, H, n, m) beside `F.scaled_dot_product_attention` with the same mask of numbers,
which has a gradient or none; a window of 256 keys beside the same call with a mask, and at several lengths, to see how
time and memory grow. Answers are compared before speeds.
"""

import argparse
import resource
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import dikkat
from benchmarks.kit.report import spread, write
from benchmarks.kit.turns import measured, once

WINDOW, KEYS, FEATURES = 256, 16_384, 64
SCORE = dikkat.scores.ScaledDot()


def ratio(ways: dict[str, Callable[[], list[Tensor]]], seconds: float) -> dict[str, Any]:
    """Seconds of two ways in turn, the peer first, and how many times ours is as quick."""
    (_, peer), (_, ours) = ways.items()
    for came, expected in zip(ours(), peer(), strict=True):
        torch.testing.assert_close(came, expected, rtol=1e-3, atol=1e-4)
    samples = measured({name: once(run) for name, run in ways.items()}, seconds)
    found = {name: [s / n for s, n in rounds] for name, rounds in samples.items()}
    its, mine = found.values()
    ratios = [a / b for a, b in zip(its, mine, strict=True)]
    return {"times as quick": spread(ratios), "seconds": {name: statistics.median(of) for name, of in found.items()}}


def biased(learns: bool, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    sides = [torch.randn(8, 8, 512, FEATURES, requires_grad=True) for _ in range(3)]
    bias = torch.randn(1, 8, 512, 512, requires_grad=learns)
    above, leaves = torch.randn(8, 8, 512, FEATURES), [*sides, *[bias] * learns]

    def whole(run: Callable[[], Tensor]) -> Callable[[], list[Tensor]]:
        def both() -> list[Tensor]:
            out = run()
            return [out.detach(), *torch.autograd.grad(out, leaves, above)]

        return both

    return ratio(
        {
            "PyTorch": whole(lambda: scaled_dot_product_attention(*sides, attn_mask=bias)),
            "dikkat": whole(lambda: dikkat.attend(*sides, score=SCORE, bias=bias)),
        },
        seconds,
    )


@torch.no_grad()
def grown_by(keys: int, near: tuple[int, int]) -> float:
    """MiB by which a windowed call raises the peak of a process, kernels loaded."""
    for length in (KEYS // 64, keys):
        sides = [torch.randn(1, 1, length, FEATURES) for _ in range(3)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        dikkat.attend(*sides, score=SCORE, window=near, impl="numba")
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


@torch.no_grad()
def windowed(seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    found: dict[str, Any] = {"by length": {}}
    near = (WINDOW // 2, WINDOW // 2)
    for keys in (KEYS // 4, KEYS // 2, KEYS):
        sides = [torch.randn(1, 1, keys, FEATURES) for _ in range(3)]

        def ours(sides: list[Tensor] = sides) -> list[Tensor]:
            return [dikkat.attend(*sides, score=SCORE, window=near)]

        ours()
        samples = measured({"window": once(ours)}, seconds / 8)["window"]
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # a peak only rises in a process
            grown = fresh.submit(grown_by, keys, near).result()
        found["by length"][keys] = {"seconds": spread([s / n for s, n in samples]), "MiB more at the peak": grown}
    place = torch.arange(KEYS)
    mask = (place[:, None] - place).abs() <= WINDOW // 2
    masked = {"masked": lambda: [dikkat.attend(*sides, score=SCORE, mask=mask)], "window": ours}
    return found | {"beside a mask": ratio(masked, seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each comparison")
    seconds = parser.parse_args().seconds
    found = {
        "bias": biased(False, seconds),
        "bias with a gradient": biased(True, seconds),
        "window": windowed(seconds),
    }
    print(write("pairs", found).read_text())


if __name__ == "__main__":
    main()
