"""Recurrent layers over whole sequences on a CPU, as one operation with its own backward.

What does not depend on the recurrence is computed here: the gradients of weights, each one product over all steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.operators import once
from dikkat._engine.addresses import many_at_once
from dikkat._engine.pytorch_state import saves_by_hook
from dikkat.recurrent.fused.calls import Spec, StackRecord, first, in_type, wide_type
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, fit_run, parted
from dikkat.scores import Pair, Profile


def run_stack(
    operands: Operands, layers: list[Layer], rows: Rows, pair: Pair | None = None, profile: Profile | None = None, *,
    reverse: bool = False,
) -> Results:  # fmt: skip
    """Run a stack over whole sequences, which attends if it has a `pair`; in `reverse` each is read from its end.

    Results have the dtype of `state`, and are computed in at least float32. Under `torch.autocast` the products that
    give the weights' gradients have its dtype.
    """
    tensors = (*operands, *chain.from_iterable(layers))
    grads = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    kind = wide_type(operands.gates)
    fit_run(rows, layers, operands)
    spec = Spec(rows, reverse, pair, profile, grads, low)
    results: Any = _Run.apply(spec, *(in_type(each, kind) for each in tensors))  # type: ignore[no-untyped-call]
    return Results(*(in_type(result, operands.state.dtype) for result in results))


class _Run(torch.autograd.Function):
    """`run_stack`, its operands in the order of the fields of `Operands` and, of each layer, of `Layer`."""

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


def _forward(spec: Spec, tensors: tuple[Tensor | None, ...]) -> tuple[StackRecord, Results]:
    """The record of a forward, as its backward reads it, and the results."""
    operands, layers = parted(tensors)
    record = StackRecord(spec, operands)
    record.point_weights(operands, layers, transposed=False)
    record.point_attention(operands)
    if operands.dropped is not None:
        record.point("dropped", record.fill(operands.dropped))
    record.forward(operands)
    if spec.grads:
        record.forget()
    return record, record.results(operands)


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


def _backward(
    spec: Spec, record: StackRecord | None, tensors: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:  # fmt: skip
    if record is None:
        record, _ = _forward(spec, tensors)
    operands, layers = parted(tensors)
    made = record.for_kernel()
    made.point_weights(operands, layers, transposed=True)
    _point_gradients(made, record, grads)
    made.backward()
    return _gradients(made, record, operands, layers, needed)


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
        return [self.product(gates, inputs, hidden, hidden, self._groups), self.cut(gates.sum(0), hidden)]


def _gradients(
    made: StackRecord, record: StackRecord, x: Operands, layers: list[Layer], needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """All gradients, in the order of the operands."""
    kept, now, steps, hidden = record.kept, made.kept, _Steps(made), x.state.shape[-1]
    gates, recurrent, states, began = now["gates_grad"], now["recurrent_grad"], kept["states"], kept["began"]
    found: dict[str, Tensor | None] = dict.fromkeys(Operands._fields)
    if needed[0]:
        found["gates"] = steps.cut(gates[0], hidden)
    if needed[1]:
        found["state"] = first(now["state_grad"], hidden)
    if needed[2] and x.cell is not None:
        found["cell"] = first(now["cell_grad"], hidden)
    if x.key is not None and x.value is not None:
        size, values = x.key.shape[-1], x.value.shape[-1]
        found["key"], found["value"] = first(now["key_grad"], size), first(now["value_grad"], values)
        found["context_weight"] = steps.product(gates[0], kept["contexts"], hidden, values, made.groups)
        if made.fields["weight"]:
            found["weight"] = now["weight_grad"].sum(0)[:size]
        if x.query_weight is not None:
            by_query = now["query_grad"]
            found["query_weight"] = steps.product(by_query, began[-1], size, hidden, 1)
            if x.query_bias is not None:
                found["query_bias"] = by_query.sum(0)[:size]
    weights: list[Tensor | None] = []
    for number, layer in enumerate(layers):
        weights += steps.layer(recurrent[number], began[number], hidden)
        if layer.below_weight is None:
            weights += [None, None]
            continue
        below = states[number - 1]
        if x.dropped is not None:
            below = below * kept["dropped"][number - 1]
        weights += steps.layer(gates[number], below, hidden)
    return [*found.values(), *weights]
