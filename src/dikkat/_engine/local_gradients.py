"""Gradients that a backward pass takes by autograd, of a forward that it computes again."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def local_gradients(
    forward: Callable[..., Sequence[Tensor | None]],
    operands: Sequence[Tensor | None],
    needed: Sequence[bool],
    upstream: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return the gradients of `forward(*operands)` by each needed operand, as if no operand depended on another.

    `forward` gets an alias of each operand, so the gradients stop there: a value that led to the key gets no share of
    the key's gradient, and a tensor that is two operands gets two gradients. Where autograd records, the results can
    be differentiated again, down to what the operands depend on.

    Args:
        forward: Returns the outputs of aliases of the operands.
        operands: Those of an autograd function, as it saved them.
        needed: Its `ctx.needs_input_grad` of these operands.
        upstream: The gradient of each output; None for 0.
    """
    records = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases: list[Any] = [None if operand is None else operand.view_as(operand) for operand in operands]
        for alias, is_needed in zip(aliases, needed, strict=True):
            if is_needed and not alias.requires_grad:  # the caller froze it after the forward
                alias.requires_grad_()
        outputs: list[Any] = [
            (output, grad)
            for output, grad in zip(forward(*aliases), upstream, strict=True)
            if grad is not None and output is not None and output.requires_grad
        ]
        sources = [alias for alias, is_needed in zip(aliases, needed, strict=True) if is_needed]
    if not outputs or not sources:
        return [None] * len(aliases)
    made, above = zip(*outputs, strict=True)
    found = iter(torch.autograd.grad(made, sources, above, create_graph=records, allow_unused=True))
    return [next(found) if is_needed else None for is_needed in needed]
