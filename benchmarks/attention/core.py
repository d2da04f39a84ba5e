"""The core's figures: import time, memory of `chunked`, and speed of each implementation beside its peers.

Peers run on the same inputs, in turn, in one process; answers are compared before speeds.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import dikkat
from benchmarks.kit.report import spread, write
from dikkat import scores

Run = Callable[[], Tensor]

PEAK = """
import resource, torch, dikkat
def run(n):
    q, k, v = (torch.randn(1, 1, n, 64, requires_grad=True) for _ in range(3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dikkat.attend(q, k, v, score=dikkat.scores.{score}(), impl="{impl}").sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
run(128)
print(run({length}))
"""
IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def fresh(code: str) -> float:
    """The number that a fresh process prints."""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def import_times(runs: int = 9) -> dict[str, dict[str, float]]:
    samples: dict[str, list[float]] = {"torch": [], "dikkat": []}
    for name in samples:  # fill the caches
        fresh(IMPORT.format(name))
    for _ in range(runs):
        for name, kept in samples.items():
            kept.append(fresh(IMPORT.format(name)))
    extra = [ours - torchs for ours, torchs in zip(samples["dikkat"], samples["torch"], strict=True)]
    return {name: spread(kept) for name, kept in samples.items()} | {"beyond torch": spread(extra)}


def peaks() -> dict[str, float]:
    """Peak extra memory in MiB of a forward and backward pass, d = 64."""
    cases = [("ScaledDot", "chunked", 16_384), ("ScaledDot", "reference", 4_096), ("Gaussian", "chunked", 4_096)]
    return {
        f"{score} {impl} n=m={length}": fresh(PEAK.format(score=score, impl=impl, length=length)) / 1024
        for score, impl, length in cases
    }


def eager_additive(query: Tensor, key: Tensor, value: Tensor, v: Callable[[Tensor], Tensor]) -> Tensor:
    """As textbooks write it, from projected queries and keys."""
    features = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1))
    return torch.bmm(torch.softmax(v(features).squeeze(-1), -1), value)


class Given(scores.Additive):
    """Additive, on queries and keys that are projected already."""

    def project_query(self, query: Tensor) -> Tensor:
        return query

    def project_key(self, key: Tensor) -> Tensor:
        return key


def additive(batch: int, n: int, m: int, h: int, d_v: int = 64) -> tuple[list[Tensor], dict[str, Run]]:
    score = Given(h, h, h)
    tensors = [torch.randn(batch, length, size, requires_grad=True) for length, size in ((n, h), (m, h), (m, d_v))]
    runs: dict[str, Run] = {"eager PyTorch": lambda: eager_additive(*tensors, score.w_v)}
    for impl in ("reference", "chunked"):
        runs[impl] = lambda impl=impl: dikkat.attend(*tensors, score=score, impl=impl)  # type: ignore[misc]
    return tensors, runs


def inner(batch: int, heads: int, n: int, d: int) -> tuple[list[Tensor], dict[str, Run]]:
    tensors = [torch.randn(batch, heads, n, d, requires_grad=True) for _ in range(3)]
    runs: dict[str, Run] = {"PyTorch's fused function": lambda: nn.functional.scaled_dot_product_attention(*tensors)}
    for impl in ("reference", "chunked", "sdpa"):
        runs[impl] = lambda impl=impl: dikkat.attend(*tensors, score=scores.ScaledDot(), impl=impl)  # type: ignore[misc]
    return tensors, runs


def seconds(run: Run, tensors: list[Tensor], backward: bool) -> float:
    start = time.perf_counter()
    out = run()
    if backward:
        torch.autograd.grad(out.sum(), tensors)
    return time.perf_counter() - start


def compare(tensors: list[Tensor], runs: dict[str, Run], rounds: int = 7) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of each, in turn, after their answers have been found equal."""
    names = list(runs)
    expected = runs[names[0]]()
    expected_grads = torch.autograd.grad(expected.sum(), tensors)
    for name in names[1:]:
        came = runs[name]()
        torch.testing.assert_close(came, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(came.sum(), tensors), expected_grads, rtol=1e-3, atol=1e-4)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    for kind, backward in (("forward", False), ("forward and backward", True)):
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                samples[name].append(1e3 * seconds(runs[name], tensors, backward))
        for name in names:
            found[name][kind] = spread(samples[name])
    return found


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, object] = {"import seconds": import_times(), "peak extra MiB": peaks()}
    for shape in ((64, 10, 10, 32), (64, 1, 50, 512), (8, 256, 256, 128)):
        results[f"additive {shape}, d_v 64, ms"] = compare(*additive(*shape))
    for shape in ((8, 8, 64, 64), (2, 8, 1024, 64)):
        results[f"scaled dot {shape}, ms"] = compare(*inner(*shape))
    print(write("core", results).read_text())


if __name__ == "__main__":
    main()
