"""The sequences, operands, weights and results of a recurrence, and the checks of their shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import addresses


@dataclass(frozen=True)
class Rows:
    """Sequences packed without padding: the steps one after the other, each with the rows that have not ended."""

    order: Tensor  # (B,) int64: the sequence of each row, the longest first
    lengths: Tensor  # (B,) int64, of the rows
    offsets: Tensor  # (T,) int64: the first place of each step
    places: Tensor  # (N,) int64: the position in (B · T) of each step of each row
    batch: int  # B
    steps: int  # T

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
        kept = [torch.from_numpy(array) for array in (order, lens, offsets, order[row] * steps + step)]
        return cls(kept[0], kept[1], kept[2], kept[3], batch, steps)

    def counts(self) -> Tensor:
        """(T',) int64: the rows of each step, up to the last that has any."""
        return (self.lengths.unsqueeze(1) > torch.arange(int(self.lengths[0]), device="cpu")).sum(0)


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


class Operands(NamedTuple):
    """The tensors of a recurrence, except the weights of its layers, over B rows with N steps in all.

    Compiled code has packed steps, with the shapes below. PyTorch's operations have (R, T) in place of N, and R = B·K
    rows, of which K in a row share a memory.
    """

    gates: Tensor  # (N, G·h), the inputs' side of the first layer's gates, its bias in it
    state: Tensor  # (layers, B, h) before the first step
    cell: Tensor | None = None  # the same, for an LSTM
    dropped: Tensor | None = None  # (layers − 1, N, h), factors of a layer's states for the next one
    kept: Tensor | None = None  # (N, m), factors of the attention weights
    key: Tensor | None = None  # (B, m, a), projected; None for a stack that does not attend
    # (B, m, c), or without `context_weight` (B, m, G·h), the values' share of the first layer's gates.
    value: Tensor | None = None
    seen: Tensor | None = None  # (B,) int64, the number of keys that exist
    weight: Tensor | None = None  # (a,) v, of an additive score
    query_weight: Tensor | None = None  # (a, h), or None: the states are the queries
    query_bias: Tensor | None = None  # (a,)
    context_weight: Tensor | None = None  # (G·h, c), the contexts' share of the first layer's gates


class Layer(NamedTuple):
    """The weights of a layer: (G·h, h) and (G·h,), with the gates r, z, n or i, f, g, o.

    The side of what it reads is None for the first layer, whose gates come with that in them.
    """

    hidden_weight: Tensor
    hidden_bias: Tensor
    below_weight: Tensor | None = None
    below_bias: Tensor | None = None


def parted(tensors: Sequence[Any]) -> tuple[Operands, list[Layer]]:
    """Return the operands and the layers from one flat sequence of tensors."""
    count, size = len(Operands._fields), len(Layer._fields)
    return Operands(*tensors[:count]), [Layer(*tensors[n : n + size]) for n in range(count, len(tensors), size)]


class Results(NamedTuple):
    """The results of a recurrence."""

    states: Tensor  # (N, h), of the top layer
    contexts: Tensor | None  # (N, c), or None
    weights: Tensor | None  # (N, m), before dropout; or None
    state: Tensor  # (layers, B, h), the last ones
    cell: Tensor | None  # (layers, B, h), or None


def _fit(name: str, tensor: Tensor | None, *expected: int) -> None:
    """Check shape and storage: a kernel reads as many numbers as the sizes say, whatever memory there is."""
    if tensor is None:
        return
    if tensor.shape != expected:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected {expected}")
    addresses.check_numbers(name, tensor, "cpu")


def fit_run(rows: Rows, layers: list[Layer], x: Operands) -> None:
    """Check that the tensors of a run fit its sequences, its weights and each other."""
    (wide, hidden), tokens = layers[0].hidden_weight.shape, len(rows.places)
    for number, layer in enumerate(layers):
        _fit(f"the recurrent weight of layer {number}", layer.hidden_weight, wide, hidden)
        _fit(f"the recurrent bias of layer {number}", layer.hidden_bias, wide)
        _fit(f"the input weight of layer {number}", layer.below_weight, wide, hidden)
        _fit(f"the input bias of layer {number}", layer.below_bias, wide)
    _fit("gates", x.gates, tokens, wide)
    _fit("state", x.state, len(layers), rows.batch, hidden)
    _fit("cell", x.cell, len(layers), rows.batch, hidden)
    _fit("dropped", x.dropped, len(layers) - 1, tokens, hidden)
    if x.key is None or x.value is None:
        return
    (_, keys, size), values, query = x.key.shape, x.value.shape[-1], x.query_weight
    _fit("the memory's keys", x.key, rows.batch, keys, size)
    _fit("the memory's values", x.value, rows.batch, keys, values)
    _fit("the memory's lengths", x.seen, rows.batch)
    _fit("the score's pair weight", x.weight, size)
    _fit("the context's share of the input weight", x.context_weight, wide, values)
    _fit("kept", x.kept, tokens, keys)
    if query is not None and tuple(query.shape) != (size, hidden):
        raise ValueError(
            f"score: got queries of {query.shape[1]} features, of which it makes {query.shape[0]}; expected {hidden}, "
            f"as the states have (hidden_size), of which it makes {size}, as the memory's keys have"
        )
    if query is None and size != hidden:
        raise ValueError(f"memory: got keys of {size} features; expected {hidden}, as the states have")
    _fit("the queries' weight", query, size, hidden)
    _fit("the queries' bias", x.query_bias, size)
