"""All steps of a recurrence in PyTorch's operations: few a step, and a backward of its own.

What does not depend on the step before is a product over all steps, outside of the loops. A context is needed only as
its share of the gates: values go through that matrix once, and a step's weights give the share. Nothing waits for a
device.
"""

from collections.abc import Callable
from functools import partial, reduce
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core.arithmetic import farthest, log_profile, profile_slope
from dikkat._core.softmax import softmax_weights
from dikkat._engine.addresses import exact
from dikkat._engine.pytorch_state import autocasts, have_tangents, is_transformed, saves_by_hook
from dikkat.recurrent import cells
from dikkat.recurrent.fused.launch import Layer, differentiated
from dikkat.scores import Pair, Profile

Look = Callable[[Tensor], Tensor]  # queries (B·K, a) -> weights (B, K, m)


class Operands(NamedTuple):
    """The operands of all steps, but for the layers' weights: R = B·K rows, K beside each other that share a memory.

    Attributes:
        gates: (R, T, G·h), the inputs' side of the first layer's gates, its bias in it.
        state: (layers, R, h) before the first step.
        cell: The same, of an LSTM.
        dropped: (layers − 1, R, T, h), factors of a layer's states for the next one.
        kept: (R, T, m), factors of the weights.
        key: (B, m, a), projected.
        value: (B, m, G·h), values' share of the first layer's gates, or (B, m, c) with `context_weight`.
        mask: (B, 1, m), −∞ for hidden keys, else 0; a row that sees none has values of 0, and no −∞.
        weight: (a,) v, of an additive score.
        query_weight: (a, h), or None: the states are the queries.
        query_bias: (a,), or None.
        context_weight: (G·h, c), which pays for a single step; else None.
    """

    gates: Tensor
    state: Tensor
    cell: Tensor | None
    dropped: Tensor | None
    kept: Tensor | None
    key: Tensor
    value: Tensor
    mask: Tensor | None
    weight: Tensor | None
    query_weight: Tensor | None
    query_bias: Tensor | None
    context_weight: Tensor | None = None


class Steps(NamedTuple):
    """All layers' states and an LSTM's cells (layers, R, T, h), and the weights (R, T, m) before dropout."""

    states: Tensor
    cells: Tensor | None
    weights: Tensor


class _Spec(NamedTuple):
    pair: Pair
    profile: Profile
    low: torch.dtype | None  # of the products over all steps that give the weights' gradients; None: as the rest


class _Taken(NamedTuple):
    """A step: its weights (B, K, m), and the moves of its layers."""

    weights: Tensor
    moves: list[cells.Move]


def run(operands: Operands, layers: list[Layer], pair: Pair, profile: Profile, look: Look | None = None) -> Steps:
    """Take all steps. With `look` that compares, and queries are the states."""
    device = operands.gates.device.type
    spec = _Spec(pair, profile, torch.get_autocast_dtype(device) if autocasts(device) else None)
    tensors = [*operands, *chain.from_iterable(layers)]
    present = [tensor for tensor in tensors if tensor is not None]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)
    alone = look is None and operands.context_weight is None and len(operands.gates) == len(operands.key)
    with exact(device):
        if learns and alone and not (torch.compiler.is_compiling() or is_transformed() or have_tangents(*present)):
            return Steps(*_Run.apply(spec, *tensors))  # type: ignore[no-untyped-call]  # PyTorch's own has no types
        return _forward(operands, layers, look or Keys(operands, pair, profile).look)[0]


class Keys:
    """The keys of a memory, as steps compare them with queries, and the gradients that they gather."""

    def __init__(self, operands: Operands, pair: Pair, profile: Profile) -> None:
        self._key, self._weight, self._pair, self._profile = operands.key, operands.weight, pair, profile
        if pair == "distance" and profile == "gaussian":  # so that squares are finite, and no row is empty
            limit = farthest(operands.key.shape[-1], operands.key.dtype)
            self._key = operands.key.clamp(-limit, limit)
        batch, positions, _ = self._key.shape
        self._each, self._mask = len(operands.gates) // max(1, batch), operands.mask
        if pair == "additive" and self._mask is not None:
            self._mask = self._mask.expand(batch, self._each, positions).reshape(-1)

    def look(self, query: Tensor) -> Tensor:
        """The weights (B, K, m) of queries (B·K, a)."""
        query, mask = query.unflatten(0, (len(self._key), self._each)), self._mask
        if self._pair == "inner":
            scores = torch.bmm(query, self._key.mT) if mask is None else torch.baddbmm(mask, query, self._key.mT)
        elif self._weight is not None:
            pairs = self._tanh(query)
            rows = pairs.flatten(0, 2)
            scores = torch.mv(rows, self._weight) if mask is None else torch.addmv(mask, rows, self._weight)
            scores = scores.view(pairs.shape[:-1])
        else:
            scores = log_profile(self._profile, self._apart(query).square().sum(-1))
            scores = scores if mask is None else scores + mask
            if self._profile != "gaussian":  # keys may be beyond a kernel's support, even all
                return softmax_weights(scores, scores != -torch.inf)
        return torch.softmax(scores, -1)

    def _tanh(self, query: Tensor) -> Tensor:
        return (self._key.unsqueeze(1) + query.unsqueeze(2)).tanh_()

    def _apart(self, query: Tensor) -> Tensor:
        return self._key.unsqueeze(1) - query.unsqueeze(2)

    def gather(self) -> None:
        """Begin to gather gradients; of additive scores that of the keys lacks the factor v."""
        self.by_key = torch.zeros_like(self._key)
        self.by_weight = None if self._weight is None else torch.zeros_like(self._weight)

    def learn(self, query: Tensor, grad: Tensor) -> Tensor:
        """Gather the gradients of scores (B, 1, m) of queries (B, a); return the queries', without the factor v."""
        query = query.unsqueeze(1)
        if self._pair == "inner":
            self.by_key.baddbmm_(grad.mT, query)
            return torch.bmm(grad, self._key).squeeze(1)
        if self.by_weight is not None:
            pairs = self._tanh(query)
            self.by_weight.addmv_(pairs.flatten(0, 2).t(), grad.flatten())
            by_pair: Tensor = torch.ops.aten.tanh_backward(grad.unsqueeze(-1), pairs).squeeze(1)
            self.by_key.add_(by_pair)
            return by_pair.sum(1)
        apart = self._apart(query)
        slope = 2 * grad * profile_slope(self._profile, apart.square().sum(-1))
        self.by_key.addcmul_(slope.mT, apart.squeeze(1))
        return -torch.bmm(slope, apart.squeeze(1)).squeeze(1)


class Joined(NamedTuple):
    """The matrix and bias that make the query, of `size` features, and the recurrent gates of the top layer's state.

    `size` is 0 where the state itself is the query.
    """

    weight: Tensor
    bias: Tensor
    size: int

    @classmethod
    def of(cls, operands: Operands, layer: Layer) -> "Joined":
        """Those of the top layer."""
        weight, bias = operands.query_weight, operands.query_bias
        if weight is None:
            return cls(layer.hidden_weight, layer.hidden_bias, 0)
        bias = layer.hidden_bias.new_zeros(len(weight)) if bias is None else bias
        return cls(torch.cat([weight, layer.hidden_weight]), torch.cat([bias, layer.hidden_bias]), len(weight))

    def __call__(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Query and gates of states (R, h)."""
        both = torch.addmm(self.bias, state, self.weight.t())
        return (both[:, : self.size], both[:, self.size :]) if self.size else (state, both)


def moved(
    layers: list[Layer], gates: Tensor, recurrent: Tensor, hidden: Any, cell: Any, dropped: Tensor | None = None
) -> list[cells.Move]:
    """The layers' moves, with the input side of the first one's gates and the recurrent side of the top one's."""
    moves: list[cells.Move] = []
    for n, layer in enumerate(layers):
        if layer.below_weight is not None and layer.below_bias is not None:
            below = moves[-1].state if dropped is None else moves[-1].state * dropped[n - 1]
            gates = torch.addmm(layer.below_bias, below, layer.below_weight.t())
        own = recurrent
        if n < len(layers) - 1:
            own = torch.addmm(layer.hidden_bias, hidden[n], layer.hidden_weight.t())
        moves.append(cells.move(gates, own, hidden[n], cell[n]))
    return moves


def _forward(operands: Operands, layers: list[Layer], look: Look) -> tuple[Steps, list[_Taken]]:
    x, each_layer = operands, range(len(layers))
    joined = Joined.of(x, layers[-1])
    hidden: Any = x.state.unbind(0)
    cell: Any = _parts(x.cell, len(layers), 0)
    steps = x.gates.shape[1]
    kept, dropped, taken = _parts(x.kept, steps), _parts(x.dropped, steps, 2), []
    for step, first in enumerate(x.gates.unbind(1)):
        query, recurrent = joined(hidden[-1])
        weights = looked = look(query)
        if kept[step] is not None:
            looked = weights * kept[step].view_as(weights)
        if x.context_weight is None:
            gates = torch.baddbmm(first.unflatten(0, weights.shape[:2]), looked, x.value).flatten(0, 1)
        else:
            gates = torch.addmm(first, torch.bmm(looked, x.value).flatten(0, 1), x.context_weight.t())
        moves = moved(layers, gates, recurrent, hidden, cell, dropped[step])
        hidden, cell = [move.state for move in moves], [move.cell for move in moves]
        taken.append(_Taken(weights, moves))
    states = torch.stack([torch.stack([each.moves[n].state for each in taken], 1) for n in each_layer])
    after: Any = [[each.moves[n].cell for each in taken] for n in each_layer]
    after = None if x.cell is None else torch.stack([torch.stack(each, 1) for each in after])
    return Steps(states, after, torch.stack([each.weights.flatten(0, 1) for each in taken], 1)), taken


class _Run(torch.autograd.Function):
    """`run` where each row has a memory of its own."""

    @staticmethod
    def forward(ctx: Any, spec: _Spec, *tensors: Tensor | None) -> Any:
        operands, layers = _operands(tensors)
        steps, taken = _forward(operands, layers, Keys(operands, spec.pair, spec.profile).look)
        ctx.spec, ctx.taken = spec, None if saves_by_hook() else taken
        ctx.save_for_backward(*tensors, steps.states)
        ctx.set_materialize_grads(False)
        return tuple(steps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        *tensors, states = ctx.saved_tensors
        (operands, layers), spec = _operands(tensors), ctx.spec
        taken, ctx.taken = ctx.taken, None  # they go with this backward; another one takes the steps again
        with exact(states.device.type):
            if taken is None:
                with torch.no_grad():
                    taken = _forward(operands, layers, Keys(operands, spec.pair, spec.profile).look)[1]
            compute = partial(_backward, spec, operands, layers, states, taken, *grads)
            return None, *differentiated(compute, tensors, grads)


def _operands(tensors: Any) -> tuple[Operands, list[Layer]]:
    count, size = len(Operands._fields), len(Layer._fields)
    return Operands(*tensors[:count]), [Layer(*tensors[n : n + size]) for n in range(count, len(tensors), size)]


def _backward(
    spec: _Spec, x: Operands, layers: list[Layer], states: Tensor, taken: list[_Taken],
    by_states: Tensor | None, by_cells: Tensor | None, by_weights: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of all operands and layers, in their order."""
    keys, steps, each_layer = Keys(x, spec.pair, spec.profile), len(taken), range(len(layers))
    keys.gather()
    before = torch.cat([x.state.unsqueeze(2), states[:, :, :-1]], 2)
    queries = before[-1] if x.query_weight is None else F.linear(before[-1], x.query_weight, x.query_bias)
    to_state = x.query_weight
    if to_state is not None and x.weight is not None:
        to_state = x.weight.unsqueeze(1) * to_state
    query, kept, given = queries.unbind(1), _parts(x.kept, steps), _parts(by_weights, steps)
    dropped, of_states, of_cells = (_parts(each, steps, 2) for each in (x.dropped, by_states, by_cells))
    state: list[Any] = [None for _ in layers]
    cell: list[Any] = [None for _ in layers]
    gates: Any = [[None] * steps for _ in layers]
    recurrent: Any = [[None] * steps for _ in layers]
    looked: Any = [[None] * steps]
    for step in reversed(range(steps)):
        upper: Any = None
        for n in reversed(each_layer):
            grad = _sum(state[n], None if of_states[step] is None else of_states[step][n], upper)
            by_cell = _sum(cell[n], None if of_cells[step] is None else of_cells[step][n])
            grad = torch.zeros_like(x.state[n]) if grad is None else grad
            gates[n][step], recurrent[n][step], state[n], cell[n] = taken[step].moves[n].undo(grad, by_cell)
            sides = recurrent[n][step], layers[n].hidden_weight
            state[n] = torch.mm(*sides) if state[n] is None else state[n].addmm_(*sides)
            if n:
                upper = gates[n][step] @ layers[n].below_weight
                upper = upper if dropped[step] is None else upper * dropped[step][n - 1]
        share: Any = None
        first, above = gates[0][step].unsqueeze(1), None if given[step] is None else given[step].unsqueeze(1)
        if kept[step] is not None:
            share = _sum(torch.bmm(first, x.value.mT) * kept[step].unsqueeze(1), above)
        elif above is None:
            share = torch.bmm(first, x.value.mT)
        else:
            share = torch.baddbmm(above, first, x.value.mT)
        weights = taken[step].weights
        looked[0][step] = keys.learn(query[step], torch._softmax_backward_data(share, weights, -1, weights.dtype))
        state[-1] = (
            _sum(state[-1], looked[0][step]) if to_state is None else state[-1].addmm_(looked[0][step], to_state)
        )
    into, out, (asked,) = ([torch.stack(each, 1) for each in lists] for lists in (gates, recurrent, looked))
    whole = torch.cat([each.weights for each in taken], 1)
    by_key = keys.by_key
    if x.weight is not None:
        asked, by_key = asked * x.weight, by_key * x.weight

    def product(by: Tensor, of: Tensor) -> Tensor:
        """Sum over all rows' steps of by ⊗ of."""
        return (by.mT.to(spec.low or by.dtype) @ of.to(spec.low or of.dtype)).to(by.dtype)

    def weight(by: Tensor, of: Tensor) -> list[Tensor | None]:
        return [product(by.flatten(0, 1), of.flatten(0, 1)), by.sum((0, 1))]

    found = Operands(
        gates=into[0],
        state=torch.stack(state),
        cell=None if x.cell is None else torch.stack(cell),
        dropped=None,
        kept=None,
        key=by_key,
        value=product(whole if x.kept is None else whole * x.kept, into[0]),
        mask=None,
        weight=keys.by_weight,
        query_weight=None,
        query_bias=None,
    )
    if x.query_weight is not None:
        by_query = weight(asked, before[-1])
        found = found._replace(query_weight=by_query[0], query_bias=None if x.query_bias is None else by_query[1])
    of_layers: list[Tensor | None] = []
    for n in each_layer:
        of_layers += weight(out[n], before[n])
        below = states[n - 1] if x.dropped is None or not n else states[n - 1] * x.dropped[n - 1]
        of_layers += weight(into[n], below) if n else [None, None]
    return [*found, *of_layers]


def _parts(tensor: Tensor | None, count: int, dim: int = 1) -> Any:
    """A tensor's parts, one of each step or layer; of none as many times None."""
    return (None,) * count if tensor is None else tensor.unbind(dim)


def _sum(*parts: Tensor | None) -> Tensor | None:
    """The sum of those that are there."""
    there = [part for part in parts if part is not None]
    return reduce(torch.add, there) if there else None
