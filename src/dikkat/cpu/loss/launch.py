"""Cross-entropy of rows of scores on a CPU, with its gradient written over them: one pass over memory, not five."""

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.attention.launch import BYTES
from dikkat.cpu.engine import threads

_HAS_NUMBA = find_spec("numba") is not None
_TYPES = {torch.float32: np.float32, torch.bfloat16: np.float32, torch.float64: np.float64}


def runs(scores: Tensor) -> bool:
    """Whether it runs for such scores."""
    return _HAS_NUMBA and scores.dtype in _TYPES and not addresses.obstacles([scores])


class CrossEntropy:
    """Of chunks of rows, one after the other.

    Args:
        size: V, scores of a row.
        dtype: of the scores: float32, float64 or bfloat16.
        bias: (V,), added to the scores; None for none.
        smoothing: part of the target's probability that is spread over all V.
        scale: what a gradient is multiplied by; None where scores are not to become gradients.
    """

    def __init__(
        self, size: int, dtype: torch.dtype, bias: Tensor | None, smoothing: float, scale: float | None
    ) -> None:
        self._wide = torch.promote_types(dtype, torch.float32)
        self._threads, lanes = torch.get_num_threads(), BYTES // self._wide.itemsize
        filled = -(-size // lanes) * lanes
        self._size, self._smoothing = size, smoothing
        self._bias = None if bias is None else bias.detach().to(self._wide).contiguous()
        self._work = torch.empty(self._threads, filled + lanes, dtype=self._wide, device="cpu")
        self._bias_sums = torch.zeros(self._threads, filled, dtype=self._wide, device="cpu")
        self._losses = torch.zeros(self._threads, dtype=torch.float64, device="cpu")
        self._scale, self._dtype = scale, dtype

    def add(self, scores: Tensor, target: Tensor) -> None:
        """Add the loss of some rows, and replace their scores by their gradients.

        Args:
            scores: (N, V), contiguous.
            target: (N,) int64.
        """
        from dikkat.cpu.loss import kernel as loss_kernel  # Numba is not imported before it runs

        target = target.contiguous()
        tasks, wide = min(self._threads, len(scores)), self._wide
        fields = {
            "tasks": tasks,
            "rows": len(scores),
            "size": self._size,
            "scores": addresses.address("scores", scores, self._dtype),
            "half": int(self._dtype == torch.bfloat16),
            "bias": 0 if self._bias is None else addresses.address("bias", self._bias, wide),
            "target": addresses.address("target", target, torch.int64),
            "work": addresses.address("work", self._work, wide),
            "gradients": int(self._scale is not None),
            "bias_sums": addresses.address("bias_sums", self._bias_sums, wide),
            "losses": addresses.address("losses", self._losses, torch.float64),
            "smoothing": self._smoothing,
            "scale": self._scale or 0.0,
        }
        values = [fields[name] for name in (*loss_kernel.WHOLE[1:], *loss_kernel.REAL)]
        kernel = loss_kernel.cross_entropy(np.dtype(_TYPES[self._wide]))
        threads.launch(kernel, loss_kernel.FORM, values, tasks)

    @property
    def total(self) -> Tensor:
        """The summed loss, float32 or float64."""
        return self._losses.sum().to(self._wide)

    @property
    def bias_gradient(self) -> Tensor:
        """(V,): the scores' gradients, scaled, summed over all rows."""
        return self._bias_sums.sum(0)[: self._size]
