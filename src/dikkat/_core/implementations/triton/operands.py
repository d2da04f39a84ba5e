"""A call as Triton's kernels take it: tensors with their strides."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Operand(NamedTuple):
    """A tensor as a kernel sees it."""

    data: Any = None  # the tensor, or None where the call has none
    lead: tuple[int, ...] = ()  # strides of the leading dimensions, the last one first; 0 where it is broadcast
    row: int = 0  # stride of the last dimension but one, or of the only one beside the leading
    col: int = 0  # stride of the last dimension


class Restricted(NamedTuple):
    """The restrictions, and the seeds of each row's dropout."""

    lens: Operand
    mask: Operand
    key_bias: Operand
    exclude: Operand
    seeds: Operand


class Scored(NamedTuple):
    """The operands that the scores of pairs are made of."""

    query: Operand  # (..., n, h)
    key: Operand  # (..., m, h)
    weight: Operand  # v, (..., h)
    x: Operand  # s e^{2q}, feature-major and padded; q itself for `distance`
    y: Operand  # e^{2k}, feature-major and padded; k itself for `distance`
    v: Operand  # v over its largest element, padded with 0
    gain: Operand  # (..., 2): Σ v, and what a sum of v r / s is multiplied by
    query_peaks: Operand  # (..., blocks)
    key_peaks: Operand  # (..., blocks)


def operand(tensor: Tensor | None, own: int = 2) -> Operand:
    """A tensor whose last `own` dimensions are its own, with its strides: 0 where it is broadcast."""
    if tensor is None:
        return Operand()
    strides = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    lead = tuple(reversed(strides[: tensor.ndim - own])) or (0,)
    return Operand(tensor, lead, *strides[tensor.ndim - own :])


def sizes_of(lead: torch.Size) -> tuple[int, ...]:
    """The leading dimensions, the last one first; there is always one."""
    return tuple(reversed(lead)) or (1,)
