"""The process that compiles the kernels and those that find them compiled come to the same bits."""

import platform
from pathlib import Path

from processes import python

# Hashes of what additive attention gives, and of its gradients.
PROGRAM = """
import hashlib

import torch

import dikkat

torch.set_num_threads(1)
torch.manual_seed(3)
score = dikkat.scores.Additive(13, 17, 31)
query, key, value = (torch.randn(3, *size, requires_grad=True) for size in ((37, 17), (41, 13), (41, 19)))
output = dikkat.attend(query, key, value, score=score, impl="numba")
gradients = torch.autograd.grad(output, [query, key, value, *score.parameters()], torch.randn(output.shape))
for each in (output, *gradients):
    print(hashlib.sha256(each.detach().contiguous().numpy().tobytes()).hexdigest())
"""


def hashes(cache: Path) -> list[str]:
    """What the program prints in a fresh process, which keeps its compiled kernels there."""
    env = {"NUMBA_CACHE_DIR": str(cache)}
    if platform.machine() == "x86_64":
        # With the instructions of this processor, arranged for one for which functions that are compiled alone, and
        # for which those that are compiled as part of a kernel, add up in different orders.
        env["NUMBA_CPU_NAME"] = "znver3"
    return python(PROGRAM, **env).stdout.split()


def test_compiling_and_finding_compiled(tmp_path: Path) -> None:
    compiling = hashes(tmp_path)
    assert any(tmp_path.rglob("*.nbc"))  # which the next process reads
    assert hashes(tmp_path) == compiling
