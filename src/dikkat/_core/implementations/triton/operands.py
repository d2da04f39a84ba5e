"""The tensors of a call with their strides, as arguments of Triton's kernels."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Operand(NamedTuple):
    data: Any = None  # the tensor, or None
    lead: tuple[int, ...] = ()  # strides of the leading dimensions, the last one first; 0 if broadcast
    row: int = 0  # stride of the first trailing dimension
    col: int = 0  # stride of the second trailing dimension


class Restricted(NamedTuple):
    """Restrictions, and the seeds of each row's dropout."""

    lens: Operand
    mask: Operand
    key_bias: Operand
    exclude: Operand
    seeds: Operand


class Scored(NamedTuple):
    """Operands of the scores."""

    query: Operand  # (..., n, h)
    key: Operand  # (..., m, h)
    weight: Operand  # v, (..., h)
    x: Operand  # s e^{2q}, feature-major and padded; q itself for `distance`
    y: Operand  # e^{2k}, feature-major and padded; k itself for `distance`
    v: Operand  # v over its largest element, padded with 0
    gain: Operand  # (..., 2): Σ v, and the factor of a sum of v r / s
    query_peaks: Operand  # (..., blocks)
    key_peaks: Operand  # (..., blocks)


def operand(tensor: Tensor | None, trailing_dims: int = 2) -> Operand:
    """Describe a tensor with 1 or 2 trailing dimensions; broadcast dimensions get stride 0."""
    if tensor is None:
        return Operand()
    strides = [0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    lead = tuple(reversed(strides[: tensor.ndim - trailing_dims])) or (0,)
    return Operand(tensor, lead, *strides[tensor.ndim - trailing_dims :])


def sizes_of(lead: torch.Size) -> tuple[int, ...]:
    """Return the leading dimensions, the last one first; (1,) if there are none."""
    return tuple(reversed(lead)) or (1,)
