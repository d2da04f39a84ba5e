"""All steps of a recurrence in PyTorch's operations, with a separate backward pass.

Computations that do not depend on the step before are one product over all steps, outside the loops. A context only
contributes to the gates, so the values are multiplied by its weight once, before the loop. Nothing waits for a device.
"""

from collections.abc import Callable
from functools import partial, reduce
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core.arithmetic import farthest, log_profile, profile_slope
from dikkat._core.softmax import softmax_weights
from dikkat._engine.addresses import exact
from dikkat._engine.pytorch_state import autocasts, has_save_hooks, have_tangents, is_transformed
from dikkat.recurrent import cells
from dikkat.recurrent.cells import CellStep
from dikkat.recurrent.fused.launch import compute_grads
from dikkat.recurrent.fused.stack import Layer, Operands, split_tensors
from dikkat.scores import Pair, Profile

FindWeights = Callable[[Tensor], Tensor]  # queries (B·K, a) -> weights (B, K, m)
# All layers' states and an LSTM's cells (layers, R, T, h), and the weights (R, T, m) before dropout.
Steps = tuple[Tensor, Tensor | None, Tensor]


def run_steps(
    operands: Operands, layers: list[Layer], pair: Pair, profile: Profile, find_weights: FindWeights | None = None
) -> Steps:
    """Take all steps. `find_weights` replaces the score: it gets the top layer's states and returns the weights."""
    device = operands.gates.device.type
    product_dtype = torch.get_autocast_dtype(device) if autocasts(device) else None
    tensors = [*operands, *chain.from_iterable(layers)]
    present = [tensor for tensor in tensors if tensor is not None]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)
    one_query = len(operands.gates) == len(cast(Tensor, operands.key))
    simple = find_weights is None and operands.context_weight is None and one_query
    with exact(device):
        if learns and simple and not (torch.compiler.is_compiling() or is_transformed() or have_tangents(*present)):
            steps: Steps = _Run.apply(pair, profile, product_dtype, *tensors)  # type: ignore[no-untyped-call]
            return steps
        return _forward(operands, layers, find_weights or Keys(operands, pair, profile).find_weights)[0]


def mask_keys(key_counts: Tensor, positions: int) -> Tensor:
    """Return the (B, 1, m) bool mask of existing keys from their counts (B,)."""
    return torch.arange(positions, device=key_counts.device) < key_counts[:, None, None]


class Keys:
    """The keys (B, m, a) of a memory, which steps compare with queries, and the sums of their gradients."""

    def __init__(self, operands: Operands, pair: Pair, profile: Profile) -> None:
        self._key, self._weight, self._pair, self._profile = cast(Tensor, operands.key), operands.weight, pair, profile
        if pair == "distance" and profile == "gaussian":  # so that squares are finite, and no row is empty
            limit = farthest(self._key.shape[-1], self._key.dtype)
            self._key = self._key.clamp(-limit, limit)
        batch, positions, _ = self._key.shape
        self._group_size, self._mask, key_counts = len(operands.gates) // max(1, batch), None, operands.key_counts
        if key_counts is not None:
            hidden = ~mask_keys(key_counts, positions) & (key_counts > 0)[:, None, None]
            # If all keys are hidden, values are 0, and the softmax of only −∞ would be NaN.
            self._mask = torch.zeros_like(hidden, dtype=self._key.dtype).masked_fill_(hidden, -torch.inf)
        if pair == "additive" and self._mask is not None:
            self._mask = self._mask.expand(batch, self._group_size, positions).reshape(-1)

    def find_weights(self, query: Tensor) -> Tensor:
        """Return the weights (B, K, m) of queries (B·K, a)."""
        query, mask = query.unflatten(0, (len(self._key), self._group_size)), self._mask
        if self._pair == "inner":
            scores = torch.bmm(query, self._key.mT) if mask is None else torch.baddbmm(mask, query, self._key.mT)
        elif self._weight is not None:
            tanh = self._tanh(query)
            rows = tanh.flatten(0, 2)
            scores = torch.mv(rows, self._weight) if mask is None else torch.addmv(mask, rows, self._weight)
            scores = scores.view(tanh.shape[:-1])
        else:
            scores = log_profile(self._profile, self._differences(query).square().sum(-1))
            scores = scores if mask is None else scores + mask
            if self._profile != "gaussian":  # keys may be beyond a kernel's support, even all
                return softmax_weights(scores, scores != -torch.inf)
        return torch.softmax(scores, -1)

    def _tanh(self, query: Tensor) -> Tensor:
        return (self._key.unsqueeze(1) + query.unsqueeze(2)).tanh_()

    def _differences(self, query: Tensor) -> Tensor:
        return self._key.unsqueeze(1) - query.unsqueeze(2)

    def start_gradients(self) -> None:
        """Set the gradients of keys and pair weight to 0. An additive score's key gradient lacks the factor v."""
        self.by_key = torch.zeros_like(self._key)
        self.by_weight = None if self._weight is None else torch.zeros_like(self._weight)

    def backward(self, query: Tensor, by_score: Tensor) -> Tensor:
        """Add a step's gradients, from the scores' (B, 1, m). Return the queries' (B, a), without the factor v."""
        query = query.unsqueeze(1)
        if self._pair == "inner":
            self.by_key.baddbmm_(by_score.mT, query)
            return torch.bmm(by_score, self._key).squeeze(1)
        if self.by_weight is not None:
            tanh = self._tanh(query)
            self.by_weight.addmv_(tanh.flatten(0, 2).t(), by_score.flatten())
            by_pair: Tensor = torch.ops.aten.tanh_backward(by_score.unsqueeze(-1), tanh).squeeze(1)
            self.by_key.add_(by_pair)
            return by_pair.sum(1)
        differences = self._differences(query)
        by_square = 2 * by_score * profile_slope(self._profile, differences.square().sum(-1))
        self.by_key.addcmul_(by_square.mT, differences.squeeze(1))
        return -torch.bmm(by_square, differences.squeeze(1)).squeeze(1)


def project_states(operands: Operands, layer: Layer) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function that maps the top layer's states (R, h) to queries and recurrent gates, in one product."""
    weight, bias, query_size = layer.hidden_weight, layer.hidden_bias, 0
    if operands.query_weight is not None:
        query_size = len(operands.query_weight)
        query_bias = bias.new_zeros(query_size) if operands.query_bias is None else operands.query_bias
        weight, bias = torch.cat([operands.query_weight, weight]), torch.cat([query_bias, bias])

    def project(state: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.addmm(bias, state, weight.t())
        return (both[:, :query_size], both[:, query_size:]) if query_size else (state, both)

    return project


def step_layers(
    layers: list[Layer], gates: Tensor, top_gates: Tensor, hidden: Any, cell: Any, state_factors: Tensor | None = None
) -> list[CellStep]:
    """Take a step of all layers, from the input gates of the first layer and the recurrent gates of the top layer."""
    cell_steps: list[CellStep] = []
    for n, layer in enumerate(layers):
        if layer.below_weight is not None and layer.below_bias is not None:
            inputs = cell_steps[-1][0] if state_factors is None else cell_steps[-1][0] * state_factors[n - 1]
            gates = torch.addmm(layer.below_bias, inputs, layer.below_weight.t())
        own_gates = top_gates
        if n < len(layers) - 1:
            own_gates = torch.addmm(layer.hidden_bias, hidden[n], layer.hidden_weight.t())
        cell_steps.append(cells.step_cell(gates, own_gates, hidden[n], cell[n]))
    return cell_steps


def _forward(
    operands: Operands, layers: list[Layer], find_weights: FindWeights
) -> tuple[Steps, list[Tensor], list[list[CellStep]]]:
    """Return the results, each step's weights (B, K, m), and each step's cell steps by layer."""
    x, layer_range = operands, range(len(layers))
    query_and_gates = project_states(x, layers[-1])
    hidden: Any = x.state.unbind(0)
    cell: Any = _split(x.cell, len(layers), 0)
    steps = x.gates.shape[1]
    weight_factors, state_factors = _split(x.weight_factors, steps), _split(x.state_factors, steps, 2)
    all_weights: list[Tensor] = []  # torch.compile cannot trace list[Tensor]()
    cell_steps: list[list[CellStep]] = []
    value: Any = x.value
    for step, input_gates in enumerate(x.gates.unbind(1)):
        query, recurrent = query_and_gates(hidden[-1])
        weights = used_weights = find_weights(query)
        if weight_factors[step] is not None:
            used_weights = weights * weight_factors[step].view_as(weights)
        if x.context_weight is None:
            gates = torch.baddbmm(input_gates.unflatten(0, weights.shape[:2]), used_weights, value).flatten(0, 1)
        else:
            gates = torch.addmm(input_gates, torch.bmm(used_weights, value).flatten(0, 1), x.context_weight.t())
        cell_steps.append(step_layers(layers, gates, recurrent, hidden, cell, state_factors[step]))
        all_weights.append(weights)
        hidden, cell, _ = zip(*cell_steps[-1], strict=True)
    states = torch.stack([torch.stack([by_layer[n][0] for by_layer in cell_steps], 1) for n in layer_range])
    new_cells: Any = [[by_layer[n][1] for by_layer in cell_steps] for n in layer_range]
    new_cells = None if x.cell is None else torch.stack([torch.stack(by_step, 1) for by_step in new_cells])
    return (states, new_cells, torch.stack([row.flatten(0, 1) for row in all_weights], 1)), all_weights, cell_steps


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Pair, profile: Profile, dtype: torch.dtype | None, *tensors: Tensor | None) -> Any:
        operands, layers = split_tensors(tensors)
        steps, *cache = _forward(operands, layers, Keys(operands, pair, profile).find_weights)
        ctx.spec, ctx.cache = (pair, profile, dtype), None if has_save_hooks() else cache
        ctx.save_for_backward(*tensors, steps[0])
        ctx.set_materialize_grads(False)
        return steps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        *tensors, states = ctx.saved_tensors
        (operands, layers), (pair, profile, dtype) = split_tensors(tensors), ctx.spec
        cache, ctx.cache = ctx.cache, None  # freed after this backward; a second one repeats the steps
        with exact(states.device.type):
            keys = Keys(operands, pair, profile)
            if cache is None:
                with torch.no_grad():
                    _, *cache = _forward(operands, layers, keys.find_weights)
            compute = partial(_backward, keys, dtype, operands, layers, states, *cache, *grads)
            return None, None, None, *compute_grads(compute, tensors, grads)


def _backward(
    keys: Keys, dtype: torch.dtype | None, x: Operands, layers: list[Layer], states: Tensor, all_weights: list[Tensor],
    cell_steps: list[list[CellStep]], by_states: Tensor | None, by_cells: Tensor | None, by_weights: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    steps, layer_range = len(cell_steps), range(len(layers))
    value: Any = x.value
    keys.start_gradients()
    before = torch.cat([x.state.unsqueeze(2), states[:, :, :-1]], 2)
    query_rows = before[-1] if x.query_weight is None else F.linear(before[-1], x.query_weight, x.query_bias)
    to_state = x.query_weight
    if to_state is not None and x.weight is not None:
        to_state = x.weight.unsqueeze(1) * to_state
    query, weight_factors, above = query_rows.unbind(1), _split(x.weight_factors, steps), _split(by_weights, steps)
    state_factors, states_grad, cells_grad = (_split(t, steps, 2) for t in (x.state_factors, by_states, by_cells))
    state: list[Any] = [None for _ in layers]
    cell: list[Any] = [None for _ in layers]
    gates: Any = [[None] * steps for _ in layers]
    recurrent: Any = [[None] * steps for _ in layers]
    by_query: Any = [[None] * steps]
    for step in reversed(range(steps)):
        from_next: Any = None
        for n in reversed(layer_range):
            grad = _add(state[n], None if states_grad[step] is None else states_grad[step][n], from_next)
            by_cell = _add(cell[n], None if cells_grad[step] is None else cells_grad[step][n])
            grad = torch.zeros_like(x.state[n]) if grad is None else grad
            gates[n][step], recurrent[n][step], state[n], cell[n] = cell_steps[step][n][2](grad, by_cell)
            factors = recurrent[n][step], layers[n].hidden_weight
            state[n] = torch.mm(*factors) if state[n] is None else state[n].addmm_(*factors)
            if n:
                from_next = gates[n][step] @ layers[n].below_weight
                from_next = from_next if state_factors[step] is None else from_next * state_factors[step][n - 1]
        total: Any = None
        by_gates, direct = gates[0][step].unsqueeze(1), None if above[step] is None else above[step].unsqueeze(1)
        if weight_factors[step] is not None:
            total = _add(torch.bmm(by_gates, value.mT) * weight_factors[step].unsqueeze(1), direct)
        elif direct is None:
            total = torch.bmm(by_gates, value.mT)
        else:
            total = torch.baddbmm(direct, by_gates, value.mT)
        weights = all_weights[step]
        by_query[0][step] = keys.backward(query[step], torch._softmax_backward_data(total, weights, -1, weights.dtype))
        state[-1] = (
            _add(state[-1], by_query[0][step]) if to_state is None else state[-1].addmm_(by_query[0][step], to_state)
        )
    by_input, by_hidden, (by_queries,) = ([torch.stack(g, 1) for g in lists] for lists in (gates, recurrent, by_query))
    weight_rows = torch.cat(all_weights, 1)
    by_key = keys.by_key
    if x.weight is not None:
        by_queries, by_key = by_queries * x.weight, by_key * x.weight

    def multiply(grad: Tensor, inputs: Tensor) -> Tensor:
        return (grad.mT.to(dtype or grad.dtype) @ inputs.to(dtype or inputs.dtype)).to(grad.dtype)

    def affine_grads(grad: Tensor, inputs: Tensor) -> list[Tensor | None]:
        return [multiply(grad.flatten(0, 1), inputs.flatten(0, 1)), grad.sum((0, 1))]

    grads: dict[str, Tensor | None] = dict.fromkeys(Operands._fields)
    grads |= {"gates": by_input[0], "state": torch.stack(state), "key": by_key, "weight": keys.by_weight}
    grads["value"] = multiply(weight_rows if x.weight_factors is None else weight_rows * x.weight_factors, by_input[0])
    if x.cell is not None:
        grads["cell"] = torch.stack(cell)
    if x.query_weight is not None:
        query_grads = affine_grads(by_queries, before[-1])
        grads |= {"query_weight": query_grads[0], "query_bias": None if x.query_bias is None else query_grads[1]}
    layer_grads: list[Tensor | None] = []
    for n in layer_range:
        layer_grads += affine_grads(by_hidden[n], before[n])
        below = states[n - 1] if x.state_factors is None or not n else states[n - 1] * x.state_factors[n - 1]
        layer_grads += affine_grads(by_input[n], below) if n else [None, None]
    return [*grads.values(), *layer_grads]


def _split(tensor: Tensor | None, count: int, dim: int = 1) -> Any:
    return (None,) * count if tensor is None else tensor.unbind(dim)


def _add(*tensors: Tensor | None) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return reduce(torch.add, present) if present else None
