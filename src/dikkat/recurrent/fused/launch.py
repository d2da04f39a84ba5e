"""Recurrent layers over whole sequences on a CPU, as one operation with its own backward pass.

The gradients of weights are computed here, each as one product over all steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.operators import first_derivatives_only
from dikkat._engine.addresses import are_batched
from dikkat._engine.pytorch_state import has_save_hooks
from dikkat.recurrent.fused.calls import Spec, StackRecord, find_dtype, to_dtype, unpad
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, check_shapes, split_tensors
from dikkat.scores import Pair, Profile


def run_stack(
    operands: Operands, layers: list[Layer], rows: Rows, pair: Pair | None = None, profile: Profile | None = None, *,
    reverse: bool = False,
) -> Results:  # fmt: skip
    """Run a stack over whole sequences, with attention if it has a `pair`, and from their last steps in `reverse`.

    Results have the dtype of `state`; they are computed in at least float32. Under `torch.autocast` the weights'
    gradients are products in its dtype.
    """
    tensors = (*operands, *chain.from_iterable(layers))
    grads = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    product_dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    dtype = find_dtype(operands.gates)
    check_shapes(rows, layers, operands)
    spec = Spec(rows, reverse, pair, profile, grads, product_dtype)
    results: Any = _Run.apply(spec, *(to_dtype(tensor, dtype) for tensor in tensors))  # type: ignore[no-untyped-call]
    return Results(*(to_dtype(result, operands.state.dtype) for result in results))


class _Run(torch.autograd.Function):
    """`run_stack` as an autograd function of the fields of `Operands`, then of each layer's `Layer`."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, *tensors: Tensor | None) -> Any:
        record, results = _forward(spec, tensors)
        ctx.set_materialize_grads(False)
        hooked = has_save_hooks()  # such hooks cannot see the record's memory, so the backward repeats the forward
        ctx.spec, ctx.record = spec, None if hooked else record
        if spec.grads:
            ctx.save_for_backward(tensors[0] if hooked else None, *tensors[1:])
        # Detached, since the graph keeps the record alive: results with a grad_fn would make a reference cycle.
        return tuple(None if result is None else result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        return None, *compute_grads(partial(_backward, ctx.spec, ctx.record, tensors, grads, needed), tensors, grads)


def _forward(spec: Spec, tensors: tuple[Tensor | None, ...]) -> tuple[StackRecord, Results]:
    """Run a forward pass. Return its record, which the backward pass needs, and the results."""
    operands, layers = split_tensors(tensors)
    record = StackRecord(spec, operands)
    record.point_weights(operands, layers, transposed=False)
    record.point_attention(operands)
    if operands.state_factors is not None:
        record.point("state_factors", record.pad_groups(operands.state_factors))
    record.forward(operands)
    if spec.grads:
        record.forget()
    return record, record.results(operands)


def compute_grads(
    compute: Callable[[], list[Tensor | None]], tensors: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """Return a recurrence's gradients. They are not differentiable.

    Raises:
        RuntimeError: `grads` are batched, as with `is_grads_batched`.
    """
    if are_batched(*grads):
        raise RuntimeError("a recurrence takes one gradient at a time; call without is_grads_batched and vectorize")
    if not torch.is_grad_enabled():
        return compute()
    gradients: Sequence[Tensor | None]
    gradients = first_derivatives_only(
        "a recurrence has no second derivatives", lambda: tuple(compute()), *tensors, *grads
    )
    return gradients


def _backward(
    spec: Spec, record: StackRecord | None, tensors: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:  # fmt: skip
    if record is None:
        record, _ = _forward(spec, tensors)
    operands, layers = split_tensors(tensors)
    call = record.for_kernel()
    call.point_weights(operands, layers, transposed=True)
    _point_gradients(call, record, grads)
    call.backward()
    return _collect_gradients(call, record, operands, layers, needed)


def _point_gradients(call: StackRecord, record: StackRecord, grads: tuple[Tensor | None, ...]) -> None:
    """Store the addresses of the incoming gradients in the backward pass's record, and allocate its results."""
    fields = call.fields
    layers, hidden, batch = fields["layers"], fields["hidden"], fields["batch"]
    step_rows, gate_row = fields["step_rows"], fields["gate_row"]

    def point_gradient(name: str, grad: Tensor | None, *shape: int) -> None:
        call.point(name, torch.zeros(shape, dtype=call.dtype, device="cpu") if grad is None else call.pad_groups(grad))

    states, contexts, weights, last_state, last_cell = grads
    point_gradient("states_grad", states, step_rows, hidden)
    point_gradient("last_state_grad", last_state, layers, batch, hidden)
    call.new("state_grad", layers, batch, hidden)
    gates = call.new("gates_grad", layers, step_rows, gate_row)
    if fields["cell"]:
        point_gradient("last_cell_grad", last_cell, layers, batch, hidden)
        call.new("cell_grad", layers, batch, hidden)
        call.point("recurrent_grad", gates)
    else:
        call.new("recurrent_grad", layers, step_rows, gate_row)
    if fields["pair"]:
        point_gradient("contexts_grad", contexts, step_rows, fields["values"])
        if weights is not None:
            call.point("weights_grad", pad(weights, (0, fields["key_row"] - weights.shape[-1])).contiguous())
        if fields["query_weight"]:
            call.new("query_grad", step_rows, fields["features"])
        call.new("score_grad", step_rows, fields["key_row"])
        call.new("context_sums", step_rows, fields["values"])
        call.zeros("key_grad", *record.kept["key"].shape)
        call.zeros("value_grad", *record.kept["value"].shape)
        call.zeros("weight_grad", fields["tasks"], fields["features"])


class _StepSums:
    """The gradients of weights: sums over all steps, without padding."""

    def __init__(self, record: StackRecord) -> None:
        self._groups, self._product_dtype, self._dtype = record.groups, record.spec.product_dtype, record.dtype

    def unpad(self, tensor: Tensor, size: int) -> Tensor:
        if tensor.shape[-1] == self._groups * size:
            return tensor
        result: Tensor = tensor.unflatten(-1, (self._groups, -1))[..., :size].flatten(-2)
        return result

    def multiply(self, grad: Tensor, inputs: Tensor, rows: int, columns: int, groups: int) -> Tensor:
        """Return the gradient (groups · rows, columns) of a weight, from its outputs' gradients and its inputs."""
        if self._product_dtype is not None:
            grad, inputs = grad.to(self._product_dtype), inputs.to(self._product_dtype)
        result = (grad.t() @ inputs)[:, :columns].to(self._dtype)
        return result if result.shape[0] == groups * rows else result.unflatten(0, (groups, -1))[:, :rows].flatten(0, 1)

    def layer_grads(self, gates: Tensor, inputs: Tensor, hidden: int) -> list[Tensor | None]:
        return [self.multiply(gates, inputs, hidden, hidden, self._groups), self.unpad(gates.sum(0), hidden)]


def _collect_gradients(
    call: StackRecord, record: StackRecord, x: Operands, layers: list[Layer], needed: tuple[bool, ...]
) -> list[Tensor | None]:
    saved, grads, sums, hidden = record.kept, call.kept, _StepSums(call), x.state.shape[-1]
    gates, recurrent = grads["gates_grad"], grads["recurrent_grad"]
    states, before = saved["states"], saved["states_before"]
    results: dict[str, Tensor | None] = dict.fromkeys(Operands._fields)
    if needed[0]:
        results["gates"] = sums.unpad(gates[0], hidden)
    if needed[1]:
        results["state"] = unpad(grads["state_grad"], hidden)
    if needed[2] and x.cell is not None:
        results["cell"] = unpad(grads["cell_grad"], hidden)
    if x.key is not None and x.value is not None:
        key_size, value_size = x.key.shape[-1], x.value.shape[-1]
        results["key"], results["value"] = unpad(grads["key_grad"], key_size), unpad(grads["value_grad"], value_size)
        results["context_weight"] = sums.multiply(gates[0], saved["contexts"], hidden, value_size, call.groups)
        if call.fields["weight"]:
            results["weight"] = grads["weight_grad"].sum(0)[:key_size]
        if x.query_weight is not None:
            query_grad = grads["query_grad"]
            results["query_weight"] = sums.multiply(query_grad, before[-1], key_size, hidden, 1)
            if x.query_bias is not None:
                results["query_bias"] = query_grad.sum(0)[:key_size]
    layer_grads: list[Tensor | None] = []
    for n, layer in enumerate(layers):
        layer_grads += sums.layer_grads(recurrent[n], before[n], hidden)
        if layer.below_weight is None:
            layer_grads += [None, None]
            continue
        inputs = states[n - 1]
        if x.state_factors is not None:
            inputs = inputs * saved["state_factors"][n - 1]
        layer_grads += sums.layer_grads(gates[n], inputs, hidden)
    return [*results.values(), *layer_grads]
