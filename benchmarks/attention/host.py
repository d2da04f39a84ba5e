"""What a call costs beside its arithmetic: the steps of the smallest calls one by one, and a process's first call.

    python -m benchmarks.attention.host [--out FOLDER]

One query, eight keys, 16 features, one thread, lengths, no gradient. A step's time is the median of rounds in which it
is done alone, with everything it touches still at hand; a whole call takes longer than their sum. First calls are made
in fresh processes, with an empty folder of compiled kernels and with the one that the process before left.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dikkat
from benchmarks.attention.small import Case, projected, ways
from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import measured, once
from dikkat import plan, scores

SCORES: dict[str, Callable[[], scores.Score]] = {
    "scaled dot": scores.ScaledDot,
    "additive": lambda: projected(scores.Additive(16, 16, 16)),
    "gaussian": scores.Gaussian,
}
SECONDS = 0.3
_FIRST = """
import json, time
import torch
torch.set_num_threads(2)
begin = time.perf_counter()
import dikkat
imported = time.perf_counter()
query = torch.randn(8, 256, 128, requires_grad=True)
score = dikkat.scores.Additive(128, 128, 128)
began = time.perf_counter()
out = dikkat.attend(query, query, query, score=score)
forward = time.perf_counter()
out.sum().backward()
end = time.perf_counter()
print(json.dumps({"import": imported - begin, "forward": forward - began, "backward": end - forward}))
"""


def microseconds(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Of each, in turn."""
    samples = measured({name: once(run) for name, run in tasks.items()}, SECONDS * len(tasks), SECONDS / 16)
    return {name: 1e6 * statistics.median(s / n for s, n in rounds) for name, rounds in samples.items()}


def steps(name: str) -> dict[str, float]:
    """The whole call, plain PyTorch's, and each step of the short road."""
    score = SCORES[name]()
    query, key, value, lens = torch.randn(1, 1, 16), torch.randn(1, 8, 16), torch.randn(1, 8, 16), torch.tensor([5])
    both = ways(Case(name, 1, 1, 8, 16, lengths=True, weights=False, backward=False))
    torch.testing.assert_close(both["dikkat"](), both["plain"](), rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        for _ in range(2):
            dikkat.attend(query, key, value, score=score, valid_lens=lens)
        signature = plan._signature(query, key, value, score, lens, False)
        (kept,) = plan._PLANS[signature].values()
        (q, k), weight = score.project(query, key), score.pair_weight()
        operands = plan._Operands(q, k, weight, value, False, 5, 5, lens)
        return microseconds(
            {
                "plain PyTorch": both["plain"],
                "whole call": both["dikkat"],
                "signature": lambda: plan._signature(query, key, value, score, lens, False),
                "projection": lambda: (score.project(query, key), score.pair_weight()),
                "signature of what is projected": lambda: plan._projected_signature(q, k, weight, False),
                "lengths": lambda: plan._extremes(lens),
                "arithmetic": lambda: kept.run(kept, operands),
            }
        )


def first_calls() -> dict[str, Any]:
    """Seconds of a process's first additive call, (8, 256, 256, 128), and of its backward."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            environment = os.environ | {"NUMBA_CACHE_DIR": folder}
            done = subprocess.run([sys.executable, "-c", _FIRST], env=environment, capture_output=True, check=True)
            found[name] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {"microseconds": {name: steps(name) for name in SCORES}, "seconds": first_calls()}
    print(json.dumps(found, indent=1))
    print(write("host", found, folder=arguments.out))


if __name__ == "__main__":
    main()
