"""Cross-entropy of rows of scores on a CPU, overwritten by its gradient, in one pass over memory instead of five."""

import torch
from torch import Tensor

from dikkat._engine import addresses
from dikkat._engine.record import CallRecord, round_up
from dikkat.translation.network.fused_loss.record import CALL

_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def runs(scores: Tensor) -> bool:
    """Return whether the kernel can run on the scores."""
    return scores.dtype in _DTYPES and not addresses.tensor_obstacles([scores])


class CrossEntropy:
    """Adds up the loss of chunks of rows of `size` scores. Unless `scale` is None, gradients overwrite the scores.

    With a `divergence`, rows are pairs with probabilities p and q, and divergence · (p − q) · (log p − log q) is added.
    """

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        bias: Tensor | None,
        smoothing: float,
        scale: float | None,
        divergence: float = 0.0,
    ) -> None:
        self._dtype, self._call = dtype, CallRecord(CALL, torch.promote_types(dtype, torch.float32))
        self._threads, call = torch.get_num_threads(), self._call
        if bias is not None:
            call.point("bias", bias.detach().to(call.dtype).contiguous())
        self._bias_sums = call.zeros("bias_sums", self._threads, round_up(size, call.lanes))
        self._losses = call.zeros("losses", self._threads)
        call.fields |= {
            "size": size,
            "half": dtype == torch.bfloat16,
            "gradients": scale is not None,
            "smoothing": smoothing,
            "scale": scale or 0.0,
            "divergence": divergence,
        }

    def add(self, scores: Tensor, target: Tensor) -> None:
        """Add the loss of contiguous scores (N, V), and replace them by their gradients."""
        from dikkat.translation.network.fused_loss import kernel

        call = self._call
        call.fields["rows"] = len(scores)
        call.point("scores", scores, self._dtype)
        call.point("target", target.contiguous())
        size = round_up(call.fields["size"], call.lanes)
        passes = 2 if call.fields["divergence"] else 1
        tasks = min(self._threads, len(scores) // passes)
        regions = {"shares": passes * size, "ratios": (passes - 1) * size, "sums": 2 * passes}
        call.run(kernel.cross_entropy, tasks, tail=call.lanes, **regions)

    @property
    def total(self) -> Tensor:
        """The summed loss, float32 or float64."""
        return self._losses.sum().to(self._call.dtype)

    @property
    def bias_gradient(self) -> Tensor:
        """The scores' scaled gradients, summed over all rows, (V,)."""
        return self._bias_sums.sum(0)[: self._call.fields["size"]]
