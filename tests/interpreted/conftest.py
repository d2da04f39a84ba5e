"""Tests of the Triton kernels: on a GPU, or in Triton's interpreter, which must be on before Triton is imported.

TRITON_INTERPRET=1 python -m pytest tests/interpreted
"""

import pytest
import torch

from dikkat._core.implementations.products import launch as products_launch
from dikkat._core.implementations.triton import launch as gpu_launch

if not (torch.cuda.is_available() or gpu_launch._INTERPRETED):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every loop over them turns several times."""
    blocks = gpu_launch._Blocks(rows=16, keys=16, warps=4, side=16, features=16, values=16)
    monkeypatch.setattr(gpu_launch, "_blocks", lambda problem: blocks)
    for name, size in {"_ROWS": 8, "_COLS": 8, "_NORMED": 8, "_LONGEST": 16, "_PROGRAMS": 5}.items():
        monkeypatch.setattr(products_launch, name, size)
