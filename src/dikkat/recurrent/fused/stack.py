"""The operands and results of a recurrence, its packed sequences, and checks of shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import addresses


@dataclass(frozen=True)
class Rows:
    """Sequences packed without padding: each step's rows, longest sequence first, without the ended sequences."""

    order: Tensor  # (B,) int64: the sequence of each row, longest first
    lengths: Tensor  # (B,) int64, of the rows
    offsets: Tensor  # (T,) int64: the index in N of each step's first row
    positions: Tensor  # (N,) int64: the index in (B · T) of each step of each row
    batch: int  # B
    steps: int  # T

    @classmethod
    def of(cls, lengths: Tensor | None, batch: int, steps: int) -> "Rows":
        """Pack sequences of lengths (B,) from 1 to T; None means T steps for all."""
        if lengths is None:
            sorted_lengths, order = np.full(batch, steps), np.arange(batch)
        else:
            sorted_lengths = lengths.numpy(force=True).astype(np.int64)
            order = np.argsort(-sorted_lengths, kind="stable")
            sorted_lengths = sorted_lengths[order]
        step, row = np.nonzero(np.arange(steps)[:, None] < sorted_lengths)
        offsets = np.searchsorted(step, np.arange(steps))
        parts = [torch.from_numpy(array) for array in (order, sorted_lengths, offsets, order[row] * steps + step)]
        return cls(parts[0], parts[1], parts[2], parts[3], batch, steps)

    def counts(self) -> Tensor:
        """Return the number of rows of each step, (T',) int64, up to the longest sequence."""
        return (self.lengths.unsqueeze(1) > torch.arange(int(self.lengths[0]), device="cpu")).sum(0)


class _Gather(torch.autograd.Function):
    """Select rows of a tensor, each at most once."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.count = index, tensor.shape[0]
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _scatter_rows(grad, ctx.index, ctx.count), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.index = index
        return _scatter_rows(tensor, index, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.index_select(0, ctx.index), None, None


def _scatter_rows(tensor: Tensor, index: Tensor, count: int) -> Tensor:
    """Return `count` rows with the tensor's rows at the indices and zeros elsewhere."""
    if len(index) == count:
        return torch.empty_like(tensor).index_copy_(0, index, tensor)
    return tensor.new_zeros(count, *tensor.shape[1:]).index_copy_(0, index, tensor)


def pack_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """Pack (B, T, ...) to (N, ...)."""
    gathered: Tensor = _Gather.apply(tensor.flatten(0, 1), rows.positions)  # type: ignore[no-untyped-call]
    return gathered


def unpack_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """Unpack (N, ...) to (B, T, ...), zeros after a sequence's end."""
    scattered: Tensor = _Scatter.apply(tensor, rows.positions, rows.batch * rows.steps)  # type: ignore[no-untyped-call]
    return scattered.reshape(rows.batch, rows.steps, *tensor.shape[1:])


class Operands(NamedTuple):
    """All operands except the layers' weights. B rows have N steps in total.

    Compiled code packs steps, with the shapes below. PyTorch's operations have (R, T) in place of N, with R = B·K rows:
    K consecutive rows attend to one memory.
    """

    gates: Tensor  # (N, G·h), the inputs' share of the first layer's gates, with its bias
    state: Tensor  # (layers, B, h) before the first step
    cell: Tensor | None = None  # (layers, B, h) before the first step, for an LSTM
    state_factors: Tensor | None = None  # (layers − 1, N, h), dropout's factors between layers: 0 or 1/(1 − p)
    weight_factors: Tensor | None = None  # (N, m), dropout's factors of the attention weights
    key: Tensor | None = None  # (B, m, a), projected; None for a stack that does not attend
    # (B, m, c), or without `context_weight` (B, m, G·h), the values' share of the first layer's gates.
    value: Tensor | None = None
    key_counts: Tensor | None = None  # (B,) int64, the number of keys that exist
    weight: Tensor | None = None  # (a,) v, of an additive score
    query_weight: Tensor | None = None  # (a, h), or None: the states are the queries
    query_bias: Tensor | None = None  # (a,)
    context_weight: Tensor | None = None  # (G·h, c), the contexts' share of the first layer's gates


class Layer(NamedTuple):
    """The weights of a layer, (G·h, h) and (G·h,), with the gates r, z, n or i, f, g, o.

    `below_weight` and `below_bias` map the states of the layer below. They are None for the first layer.
    """

    hidden_weight: Tensor
    hidden_bias: Tensor
    below_weight: Tensor | None = None
    below_bias: Tensor | None = None


def split_tensors(tensors: Sequence[Any]) -> tuple[Operands, list[Layer]]:
    """Return the operands and the layers from one flat sequence of tensors."""
    count, size = len(Operands._fields), len(Layer._fields)
    return Operands(*tensors[:count]), [Layer(*tensors[n : n + size]) for n in range(count, len(tensors), size)]


class Results(NamedTuple):
    """The results of a recurrence."""

    states: Tensor  # (N, h), of the top layer
    contexts: Tensor | None  # (N, c), or None
    weights: Tensor | None  # (N, m), before dropout; or None
    state: Tensor  # (layers, B, h) after the last step
    cell: Tensor | None  # (layers, B, h) after the last step, or None


def _check_tensor(name: str, tensor: Tensor | None, *shape: int) -> None:
    """Check shape and storage, since kernels do not check bounds."""
    if tensor is None:
        return
    if tensor.shape != shape:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected {shape}")
    addresses.check_numbers(name, tensor, "cpu")


def check_shapes(rows: Rows, layers: list[Layer], x: Operands) -> None:
    """Raise `ValueError` unless all shapes fit together."""
    (gate_size, hidden), step_rows = layers[0].hidden_weight.shape, len(rows.positions)
    for number, layer in enumerate(layers):
        _check_tensor(f"the recurrent weight of layer {number}", layer.hidden_weight, gate_size, hidden)
        _check_tensor(f"the recurrent bias of layer {number}", layer.hidden_bias, gate_size)
        _check_tensor(f"the input weight of layer {number}", layer.below_weight, gate_size, hidden)
        _check_tensor(f"the input bias of layer {number}", layer.below_bias, gate_size)
    _check_tensor("gates", x.gates, step_rows, gate_size)
    _check_tensor("state", x.state, len(layers), rows.batch, hidden)
    _check_tensor("cell", x.cell, len(layers), rows.batch, hidden)
    _check_tensor("state_factors", x.state_factors, len(layers) - 1, step_rows, hidden)
    if x.key is None or x.value is None:
        return
    (_, keys, size), values, query = x.key.shape, x.value.shape[-1], x.query_weight
    _check_tensor("the memory's keys", x.key, rows.batch, keys, size)
    _check_tensor("the memory's values", x.value, rows.batch, keys, values)
    _check_tensor("the memory's lengths", x.key_counts, rows.batch)
    _check_tensor("the score's pair weight", x.weight, size)
    _check_tensor("the context's share of the input weight", x.context_weight, gate_size, values)
    _check_tensor("weight_factors", x.weight_factors, step_rows, keys)
    if query is not None and tuple(query.shape) != (size, hidden):
        raise ValueError(
            f"score: got queries of {query.shape[1]} features, projected to {query.shape[0]}; expected {hidden} "
            f"(hidden_size), projected to {size} (features of the memory's keys)"
        )
    if query is None and size != hidden:
        raise ValueError(f"memory: got keys of {size} features; expected {hidden} (hidden_size)")
    _check_tensor("the queries' weight", query, size, hidden)
    _check_tensor("the queries' bias", x.query_bias, size)
