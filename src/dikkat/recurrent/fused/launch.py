"""Recurrent layers over whole sequences on a CPU, as one operation with its own backward.

What does not depend on the recurrence is computed here: the gradients of weights, each one product over all steps.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.operators import once
from dikkat._engine import addresses
from dikkat._engine.addresses import many_at_once
from dikkat._engine.pytorch_state import saves_by_hook
from dikkat.recurrent.fused.calls import OPERANDS, Spec, StackRecord, first, in_type, wide_type
from dikkat.recurrent.fused.stack import Attention, Layer, Rows, Sequences, fit_run, put, take

__all__ = ["Attention", "Layer", "Rows", "Sequences", "differentiated", "kernel_obstacles", "put", "run_stack", "take"]


def kernel_obstacles(tensors: Iterable[Tensor | None]) -> list[str]:
    """The reasons why the kernels cannot run on these tensors."""
    return addresses.tensor_obstacles(tensors)


def run_stack(
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    layers: list[Layer],
    rows: Rows,
    *,
    attention: Attention | None = None,
    dropped: Tensor | None = None,
    reverse: bool = False,
) -> Sequences:
    """Run a stack over whole sequences.

    Args:
        gates: (N, G·h), the inputs' side of the first layer's gates, its bias in it.
        state: (layers, B, h) before the first step.
        cell: (layers, B, h) of an LSTM, G = 4; None for a GRU, G = 3.
        layers: The weights.
        rows: The sequences.
        attention: What the stack attends to, or None.
        dropped: (layers − 1, N, h), factors of a layer's states for the next one; or None.
        reverse: Whether a sequence is read from its end.

    Returns:
        All in the dtype of `state`; computed in at least float32. Under `torch.autocast` the products that give the
        weights' gradients have its dtype.
    """
    pair, profile = (None, None) if attention is None else (attention.pair, attention.profile)
    attended = [getattr(attention, name, None) for name in OPERANDS]
    tensors = (gates, state, cell, dropped, *attended, *chain.from_iterable(layers))
    grads = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    spec = Spec(rows, reverse, len(layers), pair, profile, grads, low)
    kind = wide_type(gates)
    operands = [in_type(operand, kind) for operand in tensors]
    fit_run(rows, layers, attention, gates, state, cell, dropped)
    results: Any = _Run.apply(spec, *operands)  # type: ignore[no-untyped-call]
    return Sequences(*(in_type(result, state.dtype) for result in results))


class _Run(torch.autograd.Function):
    """`run`, its operands in the order of `OPERANDS` and of the fields of `Layer`."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, *tensors: Tensor | None) -> Any:
        record, results = _forward(spec, tensors)
        ctx.set_materialize_grads(False)
        hooked = saves_by_hook()  # which could not take the record's memory away
        ctx.spec, ctx.record = spec, None if hooked else record
        if spec.grads:
            ctx.save_for_backward(tensors[0] if hooked else None, *tensors[1:])
        # Detached: the graph keeps the record alive, and a result with a grad_fn in it would make a reference cycle.
        return tuple(None if result is None else result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        return None, *differentiated(partial(_backward, ctx.spec, ctx.record, tensors, grads, needed), tensors, grads)


def _forward(spec: Spec, tensors: tuple[Tensor | None, ...]) -> tuple[StackRecord, Sequences]:
    """The record of a forward, as its backward reads it, and the results."""
    gates, state, cell, dropped, *rest = tensors
    if gates is None or state is None:
        raise TypeError("gates, state: got None; expected tensors")
    operands = dict(zip(OPERANDS, rest[: len(OPERANDS)], strict=True))
    record = StackRecord(spec, gates.dtype, state.shape[-1], cell is not None)
    record.point_weights(operands, _layers(rest[len(OPERANDS) :]), transposed=False)
    record.point_attention(operands)
    if dropped is not None:
        record.point("dropped", record.fill(dropped))
    record.forward(gates, state, cell)
    if spec.grads:
        record.forget()
    return record, record.results(state.shape[-1], operands)


def differentiated(
    compute: Callable[[], list[Tensor | None]], tensors: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """A recurrence's gradients: one at a time, and not differentiable themselves.

    Raises:
        RuntimeError: The gradients that come stand for many, as `is_grads_batched` makes them.
    """
    if many_at_once(*grads):
        raise RuntimeError("a recurrence takes one gradient at a time; call without is_grads_batched and vectorize")
    if not torch.is_grad_enabled():
        return compute()
    found: Sequence[Tensor | None]
    found = once("a recurrence has no second derivatives", lambda: tuple(compute()), *tensors, *grads)
    return found


def _layers(weights: list[Tensor | None]) -> list[Layer]:
    count = len(Layer._fields)
    return [Layer(*weights[start : start + count]) for start in range(0, len(weights), count)]  # type: ignore[arg-type]


def _backward(
    spec: Spec, record: StackRecord | None, tensors: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:  # fmt: skip
    if record is None:
        record, _ = _forward(spec, tensors)
    _, state, _cell, dropped, *rest = tensors
    operands = dict(zip(OPERANDS, rest[: len(OPERANDS)], strict=True))
    layers = _layers(rest[len(OPERANDS) :])
    if state is None:
        raise TypeError("state: got None; expected a tensor")
    made = record.for_kernel()
    made.point_weights(operands, layers, transposed=True)
    _point_gradients(made, record, grads)
    made.backward()
    return _gradients(made, record, operands, layers, needed, state.shape[-1], dropped)


def _point_gradients(made: StackRecord, record: StackRecord, grads: tuple[Tensor | None, ...]) -> None:
    """Point the record to the incoming gradients, and make room for the results."""
    at = made.fields
    layers, tokens, hidden, batch, wide = at["layers"], at["tokens"], at["hidden"], at["batch"], at["wide"]

    def given(name: str, grad: Tensor | None, *shape: int) -> None:
        made.point(name, torch.zeros(shape, dtype=made.dtype, device="cpu") if grad is None else made.fill(grad))

    states, contexts, weights, last_state, last_cell = grads
    given("states_grad", states, tokens, hidden)
    given("last_state_grad", last_state, layers, batch, hidden)
    made.new("state_grad", layers, batch, hidden)
    gates = made.new("gates_grad", layers, tokens, wide)
    if at["cell"]:
        given("last_cell_grad", last_cell, layers, batch, hidden)
        made.new("cell_grad", layers, batch, hidden)
        made.point("recurrent_grad", gates)
    else:
        made.new("recurrent_grad", layers, tokens, wide)
    if at["pair"]:
        given("contexts_grad", contexts, tokens, at["values"])
        if weights is not None:
            made.point("weights_grad", pad(weights, (0, at["key_row"] - weights.shape[-1])).contiguous())
        if at["query_weight"]:
            made.new("query_grad", tokens, at["features"])
        made.new("score_grad", tokens, at["key_row"])
        made.new("context_sums", tokens, at["values"])
        made.zeros("key_grad", *record.kept["key"].shape)
        made.zeros("value_grad", *record.kept["value"].shape)
        made.zeros("weight_grad", at["tasks"], at["features"])


class _Steps:
    """Sums over all steps of a run, from which the gradients of weights come; without padding."""

    def __init__(self, made: StackRecord) -> None:
        self._groups, self._low, self._dtype = made.groups, made.spec.low, made.dtype

    def cut(self, tensor: Tensor, size: int) -> Tensor:
        """Remove the padding from the gates' features."""
        if tensor.shape[-1] == self._groups * size:
            return tensor
        result: Tensor = tensor.unflatten(-1, (self._groups, -1))[..., :size].flatten(-2)
        return result

    def product(self, by: Tensor, of: Tensor, rows: int, columns: int, groups: int) -> Tensor:
        """The gradient of a weight (groups · rows, columns), of its results' gradients and its inputs."""
        if self._low is not None:
            by, of = by.to(self._low), of.to(self._low)
        whole = (by.t() @ of)[:, :columns].to(self._dtype)
        return whole if whole.shape[0] == groups * rows else whole.unflatten(0, (groups, -1))[:, :rows].flatten(0, 1)

    def layer(self, gates: Tensor, inputs: Tensor, hidden: int) -> list[Tensor | None]:
        """The gradients of a side of a layer's gates: weight and bias."""
        return [self.product(gates, inputs, hidden, hidden, self._groups), self.cut(gates.sum(0), hidden)]


def _gradients(
    made: StackRecord, record: StackRecord, operands: dict[str, Tensor | None], layers: list[Layer],
    needed: tuple[bool, ...],
    hidden: int, dropped: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """All gradients, in the order of the operands."""
    at, kept, now, steps = made.fields, record.kept, made.kept, _Steps(made)
    gates, recurrent, states, began = now["gates_grad"], now["recurrent_grad"], kept["states"], kept["began"]
    begun = [
        steps.cut(gates[0], hidden) if needed[0] else None,
        first(now["state_grad"], hidden) if needed[1] else None,
        first(now["cell_grad"], hidden) if needed[2] and "cell_grad" in now else None,
        None,
    ]
    attended: dict[str, Tensor | None] = dict.fromkeys(OPERANDS)
    if at["pair"]:
        key, value, query_weight = operands["key"], operands["value"], operands["query_weight"]
        if key is None or value is None:
            raise TypeError("key, value: got None; expected tensors")
        attended["key"] = first(now["key_grad"], key.shape[-1])
        attended["value"] = first(now["value_grad"], value.shape[-1])
        attended["context_weight"] = steps.product(gates[0], kept["contexts"], hidden, value.shape[-1], made.groups)
        if at["weight"]:
            attended["weight"] = now["weight_grad"].sum(0)[: key.shape[-1]]
        if query_weight is not None:
            by_query = now["query_grad"]
            attended["query_weight"] = steps.product(by_query, began[-1], key.shape[-1], hidden, 1)
            if operands["query_bias"] is not None:
                attended["query_bias"] = by_query.sum(0)[: key.shape[-1]]
    weights: list[Tensor | None] = []
    for number, layer in enumerate(layers):
        weights += steps.layer(recurrent[number], began[number], hidden)
        if layer.below_weight is None:
            weights += [None, None]
            continue
        below = states[number - 1]
        if dropped is not None:
            below = below * kept["dropped"][number - 1]
        weights += steps.layer(gates[number], below, hidden)
    return [*begun, *attended.values(), *weights]
