"""Sequences of different lengths, packed without their padding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Packed sequences: the existing steps one after the other, each with the rows that have not ended.

    Attributes:
        order: (B,) int64: which sequence a row is, the longest first.
        lengths: (B,) int64, of the rows.
        offsets: (T,) int64: where a step begins.
        places: (N,) int64: where in (B · T) each step of each row is.
        batch: B.
        steps: T.
    """

    order: Tensor
    lengths: Tensor
    offsets: Tensor
    places: Tensor
    batch: int
    steps: int

    @classmethod
    def of(cls, lengths: Tensor | None, batch: int, steps: int) -> "Rows":
        """Pack sequences of lengths (B,) from 1 to T; None means T steps for all."""
        if lengths is None:
            lens, order = np.full(batch, steps), np.arange(batch)
        else:
            lens = lengths.numpy(force=True).astype(np.int64)
            order = np.argsort(-lens, kind="stable")
            lens = lens[order]
        step, row = np.nonzero(np.arange(steps)[:, None] < lens)
        offsets = np.searchsorted(step, np.arange(steps))
        kept = [torch.from_numpy(found) for found in (order, lens, offsets, order[row] * steps + step)]
        return cls(kept[0], kept[1], kept[2], kept[3], batch, steps)


class _Gather(torch.autograd.Function):
    """Select rows of a tensor, none of them twice; the others get a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.count = index, tensor.shape[0]
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _scattered(grad, ctx.index, ctx.count), None


class _Scatter(torch.autograd.Function):
    """The reverse: put rows in their places, zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.index = index
        return _scattered(tensor, index, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.index_select(0, ctx.index), None, None


def _scattered(tensor: Tensor, index: Tensor, count: int) -> Tensor:
    """Put rows in their places among `count`, zeros elsewhere."""
    if len(index) == count:
        return torch.empty_like(tensor).index_copy_(0, index, tensor)
    return tensor.new_zeros(count, *tensor.shape[1:]).index_copy_(0, index, tensor)


def take(tensor: Tensor, rows: Rows) -> Tensor:
    """(B, T, ...) -> (N, ...)."""
    gathered: Tensor = _Gather.apply(tensor.flatten(0, 1), rows.places)  # type: ignore[no-untyped-call]
    return gathered


def put(tensor: Tensor, rows: Rows) -> Tensor:
    """(N, ...) -> (B, T, ...), zeros where a sequence is over."""
    scattered: Tensor = _Scatter.apply(tensor, rows.places, rows.batch * rows.steps)  # type: ignore[no-untyped-call]
    return scattered.reshape(rows.batch, rows.steps, *tensor.shape[1:])
