"""The weights, memory and results of a stack of layers, and the checks of their shapes."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dikkat import addresses
from dikkat.cpu.recurrence.rows import Rows
from dikkat.scores import Pair, Profile


@dataclass(frozen=True)
class Attention:
    """The memory that a stack attends to.

    Attributes:
        pair: The pair function.
        profile: The log-kernel, where that is `distance`.
        key: (B, m, a), projected.
        value: (B, m, c).
        seen: (B,) int64, or None: keys from there on do not exist.
        weight: (a,) v, for `additive`.
        query_weight: (a, h), or None: the states are the queries.
        query_bias: (a,), or None.
        context_weight: (G·h, c), the contexts' share of the first layer's gates.
        kept: (N, m), factors of the weights; or None.
    """

    pair: Pair
    profile: Profile
    key: Tensor
    value: Tensor
    seen: Tensor | None
    weight: Tensor | None
    query_weight: Tensor | None
    query_bias: Tensor | None
    context_weight: Tensor
    kept: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """The weights of a layer: (G·h, h) and (G·h,), with the gates r, z, n or i, f, g, o.

    The side of what it reads is None for the first layer, whose gates come with that in them.
    """

    hidden_weight: Tensor
    hidden_bias: Tensor
    below_weight: Tensor | None = None
    below_bias: Tensor | None = None


class Sequences(NamedTuple):
    """The results of a run.

    Attributes:
        states: (N, h), of the top layer.
        contexts: (N, c), or None.
        weights: (N, m), before dropout; or None.
        state: (layers, B, h), the last ones.
        cell: (layers, B, h), or None.
    """

    states: Tensor
    contexts: Tensor | None
    weights: Tensor | None
    state: Tensor
    cell: Tensor | None


def _fit(name: str, tensor: Tensor | None, *expected: int) -> None:
    """Check shape and storage: a kernel reads as many numbers as the sizes say, whatever memory there is."""
    fit_shape(name, tensor, *expected)
    if tensor is not None:
        addresses.check(name, tensor, "cpu")


def fit_shape(name: str, tensor: Tensor | None, *expected: int) -> None:
    """Raise ValueError for another shape."""
    if tensor is not None and tensor.shape != expected:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected {expected}")


def fit_weights(layers: list[Layer], attention: Attention | None) -> None:
    """Check that the weights of a stack fit each other and what it attends to."""
    wide, hidden = layers[0].hidden_weight.shape
    for number, layer in enumerate(layers):
        _fit(f"the recurrent weight of layer {number}", layer.hidden_weight, wide, hidden)
        _fit(f"the recurrent bias of layer {number}", layer.hidden_bias, wide)
        _fit(f"the input weight of layer {number}", layer.below_weight, wide, hidden)
        _fit(f"the input bias of layer {number}", layer.below_bias, wide)
    if attention is None:
        return
    batch, keys, size = attention.key.shape
    values = attention.value.shape[-1]
    _fit("the memory's values", attention.value, batch, keys, values)
    _fit("the memory's lengths", attention.seen, batch)
    _fit("the score's pair weight", attention.weight, size)
    _fit("the context's share of the input weight", attention.context_weight, wide, values)
    query = attention.query_weight
    addresses.check("the memory's keys", attention.key, "cpu")
    if query is not None and tuple(query.shape) != (size, hidden):
        raise ValueError(
            f"score: got queries of {query.shape[1]} features, of which it makes {query.shape[0]}; expected {hidden}, "
            f"as the states have (hidden_size), of which it makes {size}, as the memory's keys have"
        )
    if query is None and size != hidden:
        raise ValueError(f"memory: got keys of {size} features; expected {hidden}, as the states have")
    _fit("the queries' weight", query, size, hidden)
    _fit("the queries' bias", attention.query_bias, size)


def fit_run(
    rows: Rows,
    layers: list[Layer],
    attention: Attention | None,
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    dropped: Tensor | None,
) -> None:
    """Check that what a run reads fits its sequences and its weights."""
    fit_weights(layers, attention)
    (wide, hidden), tokens = layers[0].hidden_weight.shape, len(rows.places)
    _fit("gates", gates, tokens, wide)
    _fit("state", state, len(layers), rows.batch, hidden)
    _fit("cell", cell, len(layers), rows.batch, hidden)
    _fit("dropped", dropped, len(layers) - 1, tokens, hidden)
    if attention is not None:
        _fit("the memory's keys", attention.key, rows.batch, *attention.key.shape[1:])
        _fit("kept", attention.kept, tokens, attention.key.shape[1])
