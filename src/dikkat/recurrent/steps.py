"""All steps of a recurrence in PyTorch's operations: few a step, and a backward of its own.

What does not depend on the step before is a product over all steps, outside of the loops. A context is needed only as
its share of the gates: values go through that matrix once, and a step's weights give the share. Nothing waits for a
device.
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
from dikkat._engine.pytorch_state import autocasts, have_tangents, is_transformed, saves_by_hook
from dikkat.recurrent import cells
from dikkat.recurrent.cells import Move
from dikkat.recurrent.fused.launch import differentiated
from dikkat.recurrent.fused.stack import Layer, Operands, parted
from dikkat.scores import Pair, Profile

Look = Callable[[Tensor], Tensor]  # queries (B·K, a) -> weights (B, K, m)
# All layers' states and an LSTM's cells (layers, R, T, h), and the weights (R, T, m) before dropout.
Steps = tuple[Tensor, Tensor | None, Tensor]


def run(operands: Operands, layers: list[Layer], pair: Pair, profile: Profile, look: Look | None = None) -> Steps:
    """Take all steps. With `look` that compares, and queries are the states."""
    device = operands.gates.device.type
    low = torch.get_autocast_dtype(device) if autocasts(device) else None
    tensors = [*operands, *chain.from_iterable(layers)]
    present = [tensor for tensor in tensors if tensor is not None]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)
    alone = look is None and operands.context_weight is None and len(operands.gates) == len(cast(Tensor, operands.key))
    with exact(device):
        if learns and alone and not (torch.compiler.is_compiling() or is_transformed() or have_tangents(*present)):
            steps: Steps = _Run.apply(pair, profile, low, *tensors)  # type: ignore[no-untyped-call]
            return steps
        return _forward(operands, layers, look or Keys(operands, pair, profile).look)[0]


def shown_keys(seen: Tensor, positions: int) -> Tensor:
    """(B, 1, m) bool: the keys that exist, of those (B,) numbers of them."""
    return torch.arange(positions, device=seen.device) < seen[:, None, None]


class Keys:
    """The keys of a memory, as steps compare them with queries, and the gradients that they gather."""

    def __init__(self, operands: Operands, pair: Pair, profile: Profile) -> None:
        self._key, self._weight, self._pair, self._profile = cast(Tensor, operands.key), operands.weight, pair, profile
        if pair == "distance" and profile == "gaussian":  # so that squares are finite, and no row is empty
            limit = farthest(self._key.shape[-1], self._key.dtype)
            self._key = self._key.clamp(-limit, limit)
        batch, positions, _ = self._key.shape
        self._each, self._mask, seen = len(operands.gates) // max(1, batch), None, operands.seen
        if seen is not None:
            hidden = ~shown_keys(seen, positions) & (seen > 0)[:, None, None]
            # If all keys are hidden, values are 0, and the softmax of only −∞ would be NaN.
            self._mask = torch.zeros_like(hidden, dtype=self._key.dtype).masked_fill_(hidden, -torch.inf)
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


def joined(operands: Operands, layer: Layer) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the function that makes the query and the recurrent gates of the top layer's states (R, h), at once."""
    weight, bias, size = layer.hidden_weight, layer.hidden_bias, 0
    if operands.query_weight is not None:
        size = len(operands.query_weight)
        of_query = bias.new_zeros(size) if operands.query_bias is None else operands.query_bias
        weight, bias = torch.cat([operands.query_weight, weight]), torch.cat([of_query, bias])

    def apply(state: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.addmm(bias, state, weight.t())
        return (both[:, :size], both[:, size:]) if size else (state, both)

    return apply


def moved(
    layers: list[Layer], gates: Tensor, recurrent: Tensor, hidden: Any, cell: Any, dropped: Tensor | None = None
) -> list[Move]:
    """The layers' moves, with the input side of the first one's gates and the recurrent side of the top one's."""
    moves: list[Move] = []
    for n, layer in enumerate(layers):
        if layer.below_weight is not None and layer.below_bias is not None:
            below = moves[-1][0] if dropped is None else moves[-1][0] * dropped[n - 1]
            gates = torch.addmm(layer.below_bias, below, layer.below_weight.t())
        own = recurrent
        if n < len(layers) - 1:
            own = torch.addmm(layer.hidden_bias, hidden[n], layer.hidden_weight.t())
        moves.append(cells.move(gates, own, hidden[n], cell[n]))
    return moves


def _forward(operands: Operands, layers: list[Layer], look: Look) -> tuple[Steps, list[Tensor], list[list[Move]]]:
    """Return the results; each step's weights (B, K, m); and its moves, one for each layer."""
    x, each_layer = operands, range(len(layers))
    query_and_gates = joined(x, layers[-1])
    hidden: Any = x.state.unbind(0)
    cell: Any = _parts(x.cell, len(layers), 0)
    steps = x.gates.shape[1]
    kept, dropped = _parts(x.kept, steps), _parts(x.dropped, steps, 2)
    looks: list[Tensor] = []  # torch.compile cannot trace list[Tensor]()
    moves: list[list[Move]] = []
    value: Any = x.value
    for step, first in enumerate(x.gates.unbind(1)):
        query, recurrent = query_and_gates(hidden[-1])
        weights = looked = look(query)
        if kept[step] is not None:
            looked = weights * kept[step].view_as(weights)
        if x.context_weight is None:
            gates = torch.baddbmm(first.unflatten(0, weights.shape[:2]), looked, value).flatten(0, 1)
        else:
            gates = torch.addmm(first, torch.bmm(looked, value).flatten(0, 1), x.context_weight.t())
        moves.append(moved(layers, gates, recurrent, hidden, cell, dropped[step]))
        looks.append(weights)
        hidden, cell, _ = zip(*moves[-1], strict=True)
    states = torch.stack([torch.stack([each[n][0] for each in moves], 1) for n in each_layer])
    after: Any = [[each[n][1] for each in moves] for n in each_layer]
    after = None if x.cell is None else torch.stack([torch.stack(each, 1) for each in after])
    return (states, after, torch.stack([each.flatten(0, 1) for each in looks], 1)), looks, moves


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Pair, profile: Profile, low: torch.dtype | None, *tensors: Tensor | None) -> Any:
        operands, layers = parted(tensors)
        steps, *taken = _forward(operands, layers, Keys(operands, pair, profile).look)
        ctx.spec, ctx.taken = (pair, profile, low), None if saves_by_hook() else taken
        ctx.save_for_backward(*tensors, steps[0])
        ctx.set_materialize_grads(False)
        return steps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        *tensors, states = ctx.saved_tensors
        (operands, layers), (pair, profile, low) = parted(tensors), ctx.spec
        taken, ctx.taken = ctx.taken, None  # they go with this backward; another one takes the steps again
        with exact(states.device.type):
            keys = Keys(operands, pair, profile)
            if taken is None:
                with torch.no_grad():
                    _, *taken = _forward(operands, layers, keys.look)
            compute = partial(_backward, keys, low, operands, layers, states, *taken, *grads)
            return None, None, None, *differentiated(compute, tensors, grads)


def _backward(
    keys: Keys, low: torch.dtype | None, x: Operands, layers: list[Layer], states: Tensor, looks: list[Tensor],
    moves: list[list[Move]], by_states: Tensor | None, by_cells: Tensor | None, by_weights: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    steps, each_layer = len(moves), range(len(layers))
    value: Any = x.value
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
            gates[n][step], recurrent[n][step], state[n], cell[n] = moves[step][n][2](grad, by_cell)
            sides = recurrent[n][step], layers[n].hidden_weight
            state[n] = torch.mm(*sides) if state[n] is None else state[n].addmm_(*sides)
            if n:
                upper = gates[n][step] @ layers[n].below_weight
                upper = upper if dropped[step] is None else upper * dropped[step][n - 1]
        share: Any = None
        first, above = gates[0][step].unsqueeze(1), None if given[step] is None else given[step].unsqueeze(1)
        if kept[step] is not None:
            share = _sum(torch.bmm(first, value.mT) * kept[step].unsqueeze(1), above)
        elif above is None:
            share = torch.bmm(first, value.mT)
        else:
            share = torch.baddbmm(above, first, value.mT)
        weights = looks[step]
        looked[0][step] = keys.learn(query[step], torch._softmax_backward_data(share, weights, -1, weights.dtype))
        state[-1] = (
            _sum(state[-1], looked[0][step]) if to_state is None else state[-1].addmm_(looked[0][step], to_state)
        )
    into, out, (asked,) = ([torch.stack(each, 1) for each in lists] for lists in (gates, recurrent, looked))
    whole = torch.cat(looks, 1)
    by_key = keys.by_key
    if x.weight is not None:
        asked, by_key = asked * x.weight, by_key * x.weight

    def product(by: Tensor, of: Tensor) -> Tensor:
        return (by.mT.to(low or by.dtype) @ of.to(low or of.dtype)).to(by.dtype)

    def weight(by: Tensor, of: Tensor) -> list[Tensor | None]:
        return [product(by.flatten(0, 1), of.flatten(0, 1)), by.sum((0, 1))]

    found: dict[str, Tensor | None] = dict.fromkeys(Operands._fields)
    found |= {"gates": into[0], "state": torch.stack(state), "key": by_key, "weight": keys.by_weight}
    found["value"] = product(whole if x.kept is None else whole * x.kept, into[0])
    if x.cell is not None:
        found["cell"] = torch.stack(cell)
    if x.query_weight is not None:
        by_query = weight(asked, before[-1])
        found |= {"query_weight": by_query[0], "query_bias": None if x.query_bias is None else by_query[1]}
    of_layers: list[Tensor | None] = []
    for n in each_layer:
        of_layers += weight(out[n], before[n])
        below = states[n - 1] if x.dropped is None or not n else states[n - 1] * x.dropped[n - 1]
        of_layers += weight(into[n], below) if n else [None, None]
    return [*found.values(), *of_layers]


def _parts(tensor: Tensor | None, count: int, dim: int = 1) -> Any:
    """A tensor's parts, one of each step or layer; of none as many times None."""
    return (None,) * count if tensor is None else tensor.unbind(dim)


def _sum(*parts: Tensor | None) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return reduce(torch.add, there) if there else None
