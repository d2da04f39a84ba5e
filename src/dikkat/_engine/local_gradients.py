"""Gradients of a recomputed forward, taken by autograd within a backward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def local_gradients(
    forward: Callable[..., Sequence[Tensor | None]], operands: Sequence[Tensor | None], needed: Sequence[bool],
    upstream: Sequence[Tensor | None],
) -> list[Tensor | None]:  # fmt: skip
    """Return the gradients of `forward(*operands)` by the needed operands, as if the operands were independent.

    `forward` gets an alias of each operand, and gradients stop there: a value computed from the key gets no part of
    the key's gradient, and a tensor that is two operands gets two gradients. If autograd records, the gradients can be
    differentiated again. `upstream` has the gradient of each output, or None for 0.
    """
    records = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases: list[Any] = [None if operand is None else operand.view_as(operand) for operand in operands]
        sources = [alias for alias, is_needed in zip(aliases, needed, strict=True) if is_needed]
        for source in sources:
            if not source.requires_grad:  # the caller froze it after the forward
                source.requires_grad_()
        pairs = zip(forward(*aliases), upstream, strict=True)
        outputs: list[Any] = [(t, g) for t, g in pairs if g is not None and t is not None and t.requires_grad]
    if not outputs or not sources:
        return [None] * len(aliases)
    tensors, tensor_grads = zip(*outputs, strict=True)
    grads = iter(torch.autograd.grad(tensors, sources, tensor_grads, create_graph=records, allow_unused=True))
    return [next(grads) if is_needed else None for is_needed in needed]
