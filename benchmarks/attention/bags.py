"""Time the pooling of concatenated bags, compared with a padded batch and the eager module, and a large bag in chunks.

    python -m benchmarks.attention.bags [--bags 8] [--longest 100000] [--seconds 60]

The lengths of the bags are spaced evenly on a logarithmic scale. torchmil's module is measured if it is installed.
Answers are compared before speeds. Peak memory is measured in a new process, without the memory before the pass and the
gradient of the rows.
"""

import argparse
import importlib
import math
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.kit.memory import peak_growth
from benchmarks.kit.report import spread, write
from benchmarks.kit.turns import measured, once
from dikkat import AttentionPooling

FEATURES, HIDDEN, CHUNKS = 512, 256, 10
LARGE = (100_000, 1024)
MIB = 2**20


def eager(pool: AttentionPooling, rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """(..., n, d) -> (..., d), all hidden features at once."""
    scores = pool.w(torch.tanh(pool.V(rows)) * torch.sigmoid(pool.U(rows)))
    if mask is not None:
        scores = scores.masked_fill(~mask[..., None], -torch.inf)
    return (scores.mT.softmax(-1) @ rows).squeeze(-2)


def both(run: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Return a function that runs a pass and computes its gradients."""

    def run_both() -> list[Tensor]:
        out = run()
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]

    return run_both


def torchmil(pool: AttentionPooling) -> nn.Module | None:
    """Return the layer of torchmil with the same parameters, or None if torchmil is not installed."""
    try:
        peer = importlib.import_module("torchmil.nn").AttentionPool(pool.V.in_features, HIDDEN, gated=True)
    except ModuleNotFoundError:
        return None
    with torch.no_grad():
        for peer_layer, our_layer in ((peer.fc1, pool.V), (peer.fc_gated, pool.U), (peer.fc2, pool.w)):
            layer = getattr(peer_layer, "module", peer_layer)
            layer.weight.copy_(our_layer.weight)
            if layer.bias is not None:
                layer.bias.copy_(our_layer.bias)
    return peer


def batch(bags: int, longest: int, seconds: float) -> dict[str, Any]:
    """Time a batch of bags with a frozen encoder: gradients of the parameters only."""
    torch.manual_seed(0)
    pool = AttentionPooling(FEATURES, HIDDEN)
    lens = torch.logspace(math.log10(longest / 100), math.log10(longest), bags).round().long()
    rows, mask = torch.randn(int(lens.sum()), FEATURES), torch.arange(int(lens.max())) < lens[:, None]
    padded = torch.zeros(*mask.shape, FEATURES)
    padded[mask] = rows
    leaves, peer = list(pool.parameters()), torchmil(pool)
    runs: dict[str, Callable[[], list[Tensor]]] = {
        "dikkat": both(lambda: pool(rows, lens), leaves),
        "padded, eager": both(lambda: eager(pool, padded, mask), leaves),
    }
    if peer is not None:
        runs["padded, torchmil"] = both(lambda: peer(padded, mask), list(peer.parameters()))
    expected = runs["dikkat"]()
    for name, run in runs.items():
        answer = run()
        torch.testing.assert_close(answer[0], expected[0], rtol=1e-3, atol=1e-5, msg=name)
        torch.testing.assert_close(answer[1], expected[1], rtol=1e-2, atol=1e-4, msg=name)
    samples = measured({name: once(run) for name, run in runs.items()}, seconds)
    seconds_by = {name: [s / n for s, n in rounds] for name, rounds in samples.items()}
    ratios = {
        name: spread([a / b for a, b in zip(times, seconds_by["dikkat"], strict=True)])
        for name, times in seconds_by.items()
    }
    record = {
        "rows": len(rows),
        "padded rows": mask.numel(),
        "seconds": {n: statistics.median(t) for n, t in seconds_by.items()},
    }
    return record | {"times as long": ratios}


def large(learns: bool) -> tuple[Tensor, dict[str, Callable[[], list[Tensor]]]]:
    """Return a large bag, and functions that pool it whole or in chunks."""
    torch.manual_seed(0)
    pool = AttentionPooling(LARGE[1], HIDDEN)
    bag = torch.randn(LARGE, requires_grad=learns)
    chunks = [chunk.detach().requires_grad_(learns) for chunk in bag.split(LARGE[0] // CHUNKS)]
    # The gradient of w's bias is 0, as it shifts all scores equally; computed values are only rounding.
    leaves = [parameter for parameter in pool.parameters() if parameter is not pool.w.bias]
    bag_leaves, chunk_leaves = ([bag], chunks) if learns else ([], [])
    runs = {
        "eager": both(lambda: eager(pool, bag)[None], [*leaves, *bag_leaves]),
        "dikkat": both(lambda: pool(bag), [*leaves, *bag_leaves]),
        "dikkat, ten chunks": both(lambda: pool.in_chunks(chunks), [*leaves, *chunk_leaves]),
    }
    return bag, runs


def peak(learns: bool, name: str) -> float:
    """Return the peak memory of a pass in MiB, beyond the memory before it and the gradient of the rows."""
    bag, runs = large(learns)
    pool = AttentionPooling(64, 64)
    for warm_up in (pool, lambda rows: pool.in_chunks([rows])):  # import and compile
        both(lambda warm=warm_up: warm(torch.randn(999, 64)), list(pool.parameters()))()
    return (peak_growth(runs[name]) - learns * bag.nbytes) / MIB


def whole(learns: bool, seconds: float) -> dict[str, Any]:
    runs = large(learns)[1]
    expected = runs["eager"]()
    scales = [t.abs().max().item() for t in expected]
    errors = {}
    for name in list(runs)[1:]:
        answer = runs[name]()
        count = len(expected) - learns
        pairs = [*zip(answer[:count], expected[:count], strict=True)]
        pairs += [(torch.cat(answer[count:]), expected[-1])] if learns else []
        errors[name] = max((a - b).abs().max().item() / s for (a, b), s in zip(pairs, scales, strict=True))
    samples = measured({name: once(run) for name, run in runs.items()}, seconds)
    seconds_by = {name: [s / n for s, n in rounds] for name, rounds in samples.items()}
    ratios = {
        name: spread([a / b for a, b in zip(seconds_by["eager"], values, strict=True)])
        for name, values in seconds_by.items()
    }
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        peaks = {name: fresh.submit(peak, learns, name).result() for name in runs}
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds_by.items()},
        "times as quick as eager": ratios,
        "largest difference, of the largest": errors,
        "MiB at the peak": peaks,
        "share of eager's peak": {name: values / peaks["eager"] for name, values in peaks.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bags", type=int, default=8)
    parser.add_argument("--longest", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each comparison")
    options = parser.parse_args()
    results = {
        "a large bag": whole(False, options.seconds),
        "a large bag whose rows have a gradient": whole(True, options.seconds),
        "bags": {"number": options.bags, "longest": options.longest}
        | batch(options.bags, options.longest, options.seconds),
    }
    print(write("bags", results, "torchmil").read_text())


if __name__ == "__main__":
    main()
