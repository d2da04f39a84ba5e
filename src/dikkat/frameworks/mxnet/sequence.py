"""All steps of an attentional recurrence as one function, in NumPy, with a gradient by hand; for a CPU.

A step is some forty operations on small arrays, and each takes MXNet longer to dispatch and to differentiate than NumPy
to compute. Notation: T steps, B sequences, m positions, L layers of h features, G = 3h or 4h gates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from mxnet import autograd, np, util

from dikkat.frameworks.mxnet.masking import Array, Shape

Numbers = numpy.ndarray[Any, Any]
_LARGEST = 43.0  # as in `pairs`
_ALMOST_INFINITE = 1e38


@dataclass(frozen=True)
class Plan:
    """What a run does, beside the tensors.

    Attributes:
        mode: which cells, "gru" or "lstm".
        pair: which pair function, "inner" or "additive".
        layers: L.
        shown: (B, m) booleans, the positions that may be looked at; None: all.
        features: (L − 1, B, T, h), what features between layers are multiplied with; None: nothing.
        weights: (B, T, m), what attention weights are multiplied with; None: nothing.
        real: (B, T) booleans, the steps that each sequence has, its first ones; None: all.
    """

    mode: str
    pair: str
    layers: int
    shown: Numbers | None
    features: Numbers | None
    weights: Numbers | None
    real: Numbers | None


def run(plan: Plan, tensors: Mapping[str, Array]) -> list[Array]:
    """The steps.

    Args:
        plan: what to do.
        tensors: of one dtype: `inputs` (B, T, e); `key` (B, m, a); `value` (B, m, c); `hidden` (L, B, h), and `cell` of
            an LSTM; `query_weight` (a, h), and perhaps `query_bias` (a,); `pair_weight` (a,), if additive;
            `below_weight_l` (G, e + c or h), `below_bias_l` (G,), `hidden_weight_l` (G, h) and `hidden_bias_l` (G,) for
            layer l.

    Returns:
        The top layer's states (B, T, h), contexts (B, T, c) and weights (B, T, m), before dropout, all 0 where a
        sequence is over; the last states (L, B, h), and of an LSTM the last cells.
    """
    like = tensors["inputs"]
    if not autograd.is_recording():
        found = _Steps(plan, {name: each.asnumpy() for name, each in tensors.items()}).forward()
        return [np.array(each, dtype=like.dtype, ctx=like.ctx) for each in found]
    # As one array: where one of several needs no gradient, MXNet 1.9.1 leaves those that follow it without theirs.
    together = np.concatenate(list(tensors.values()), axis=None)
    return list(_Recorded(plan, {name: each.shape for name, each in tensors.items()})(together))


class _Recorded(autograd.Function):
    """The steps, for MXNet's own differentiation."""

    def __init__(self, plan: Plan, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self._plan, self._shapes = plan, shapes
        self._steps: _Steps | None = None

    def forward(self, together: Array) -> tuple[Array, ...]:
        sizes = [int(numpy.prod(shape)) for shape in self._shapes.values()]
        parts = numpy.split(together.asnumpy(), numpy.cumsum(sizes)[:-1])
        named = zip(self._shapes.items(), parts, strict=True)
        self._steps = _Steps(self._plan, {name: part.reshape(shape) for (name, shape), part in named})
        return tuple(np.array(each, dtype=together.dtype, ctx=together.ctx) for each in self._steps.forward())

    def backward(self, *gradients: Any) -> Any:
        if self._steps is None:
            raise RuntimeError("there was no forward pass")
        with util.np_shape(True), util.np_array(True):  # another thread, where the user's choice does not hold
            found = self._steps.backward([each.asnumpy() for each in gradients])
            together = numpy.concatenate([found[name].reshape(-1) for name in self._shapes])
            return np.array(together, dtype=together.dtype, ctx=gradients[0].ctx).as_nd_ndarray()


class _Steps:
    """A run, which keeps what its gradient needs. Arrays of steps have T first."""

    def __init__(self, plan: Plan, tensors: dict[str, Numbers]) -> None:
        self._plan, self._tensors = plan, tensors
        self._look = (_Additive if plan.pair == "additive" else _Inner)(tensors)
        self._cell = _gru if plan.mode == "gru" else _lstm
        self._cell_gradient = _gru_gradient if plan.mode == "gru" else _lstm_gradient

    def forward(self) -> list[Numbers]:
        with numpy.errstate(all="ignore"):  # exponentials overflow where that is right
            return self._forward()

    def backward(self, gradients: Sequence[Numbers]) -> dict[str, Numbers]:
        with numpy.errstate(all="ignore"):
            return self._backward(gradients)

    def _forward(self) -> list[Numbers]:
        tensors, plan = self._tensors, self._plan
        inputs, value, hidden = tensors["inputs"].swapaxes(0, 1), tensors["value"], tensors["hidden"]
        if plan.real is not None:
            inputs = numpy.where(plan.real.T[..., None], inputs, 0)
        steps, batch, size = inputs.shape
        into, onto = tensors["below_weight_0"][:, :size], tensors["below_weight_0"][:, size:]
        gates = inputs @ into.T + tensors["below_bias_0"]
        self._inputs, self._of_context = inputs, onto
        self._states = numpy.empty((steps + 1, *hidden.shape), inputs.dtype)
        self._states[0] = hidden
        self._cells = numpy.empty_like(self._states) if plan.mode == "lstm" else None
        if self._cells is not None:
            self._cells[0] = tensors["cell"]
        self._queries = numpy.empty((steps, batch, tensors["key"].shape[-1]), inputs.dtype)
        self._weights = numpy.empty((steps, *value.shape[:2]), inputs.dtype)
        self._contexts = numpy.empty((steps, batch, value.shape[-1]), inputs.dtype)
        self._saved: list[list[Any]] = []
        for step in range(steps):
            query = self._states[step, -1] @ tensors["query_weight"].T + tensors.get("query_bias", 0)
            self._queries[step] = query
            self._weights[step] = self._softmax(self._look.scores(query))
            self._contexts[step] = numpy.matmul(self._kept(step)[:, None], value)[:, 0]
            first = gates[step] + self._contexts[step] @ onto.T
            self._saved.append([self._layer(step, layer, first) for layer in range(plan.layers)])
        found = [self._shown(each) for each in (self._states[1:, -1], self._contexts, self._weights)]
        ends = [each[self._lasts() + 1, :, range(batch)] for each in (self._states, self._cells) if each is not None]
        return [each.swapaxes(0, 1) for each in [*found, *ends]]

    def _shown(self, steps: Numbers) -> Numbers:
        """With 0 where a sequence is over, (T, B, ...)."""
        return steps if self._plan.real is None else numpy.where(self._plan.real.T[..., None], steps, 0)

    def _lasts(self) -> Numbers:
        """(B,): each sequence's last step."""
        steps, batch = self._inputs.shape[:2]
        lasts: Numbers = numpy.full(batch, steps) if self._plan.real is None else self._plan.real.sum(1)
        return lasts - 1

    def _layer(self, step: int, layer: int, first: Numbers) -> Any:
        """One layer's step; what its gradient needs."""
        tensors, before = self._tensors, self._states[step, layer]
        if layer:
            first = self._below(step, layer) @ tensors[f"below_weight_{layer}"].T + tensors[f"below_bias_{layer}"]
        recurrent = before @ tensors[f"hidden_weight_{layer}"].T + tensors[f"hidden_bias_{layer}"]
        cell = None if self._cells is None else self._cells[step, layer]
        self._states[step + 1, layer], cell, saved = self._cell(first, recurrent, before, cell)
        if self._cells is not None:
            self._cells[step + 1, layer] = cell
        return saved

    def _below(self, step: int, layer: int) -> Numbers:
        """What a layer reads of the one below."""
        below: Numbers = self._states[step + 1, layer - 1]
        return below if self._plan.features is None else below * self._plan.features[layer - 1, :, step]

    def _kept(self, step: int) -> Numbers:
        """The weights of a step after dropout."""
        weights: Numbers = self._weights[step]
        return weights if self._plan.weights is None else weights * self._plan.weights[:, step]

    def _softmax(self, scores: Numbers) -> Numbers:
        if self._plan.shown is not None:
            scores = numpy.where(self._plan.shown, scores, -numpy.inf)
        peak = scores.max(-1, keepdims=True, initial=-numpy.inf)
        share = numpy.exp(scores - numpy.where(peak == -numpy.inf, 0, peak))
        total = share.sum(-1, keepdims=True)
        weights: Numbers = share / numpy.where(total == 0, 1, total)
        return weights

    def _backward(self, gradients: Sequence[Numbers]) -> dict[str, Numbers]:
        plan, tensors = self._plan, self._tensors
        of_outputs, of_contexts, of_weights = (self._shown(each.swapaxes(0, 1)) for each in gradients[:3])
        of_ends = [each.swapaxes(0, 1) for each in gradients[3:]]
        steps, batch, size = of_outputs.shape
        lasts = self._lasts()
        # By the input's and the state's side of every layer's gates, the queries and the contexts of every step.
        gates = len(tensors["below_bias_0"])
        self._by_input = numpy.empty((plan.layers, steps, batch, gates), of_outputs.dtype)
        self._by_recurrent = numpy.empty_like(self._by_input)
        by_query, by_context = numpy.empty_like(self._queries), numpy.empty_like(self._contexts)
        state = numpy.zeros((plan.layers, batch, size), of_outputs.dtype)
        cell = None if self._cells is None else numpy.zeros_like(state)
        sums = self._look.zeros()
        for step in reversed(range(steps)):
            state[-1] += of_outputs[step]
            ended = lasts == step
            for total, of_end in zip((state, cell), of_ends, strict=False):
                if total is not None and ended.any():
                    total[:, ended] += of_end[ended].swapaxes(0, 1)
            for layer in reversed(range(plan.layers)):
                self._layer_gradient(step, layer, state, cell)
            by_context[step] = self._by_input[0, step] @ self._of_context + of_contexts[step]
            by_kept = numpy.matmul(tensors["value"], by_context[step][:, :, None])[..., 0]
            by_weight = by_kept if plan.weights is None else by_kept * plan.weights[:, step]
            by_weight = by_weight + of_weights[step]
            weights = self._weights[step]
            by_score = weights * (by_weight - (weights * by_weight).sum(-1, keepdims=True))
            by_query[step] = self._look.gradient(self._queries[step], by_score, sums)
            state[-1] += by_query[step] @ tensors["query_weight"]
        kept = self._weights if plan.weights is None else self._weights * plan.weights.swapaxes(0, 1)
        found = {
            "inputs": (self._by_input[0] @ tensors["below_weight_0"][:, : self._inputs.shape[-1]]).swapaxes(0, 1),
            "value": numpy.matmul(kept.transpose(1, 2, 0), by_context.swapaxes(0, 1)),
            "hidden": state,
            "query_weight": _outer(by_query, self._states[:-1, -1]),
            "query_bias": by_query.sum((0, 1)),
            **self._look.gradients(sums),
        }
        for layer in range(plan.layers):
            if layer:
                below = numpy.stack([self._below(step, layer) for step in range(steps)])
            else:
                below = numpy.concatenate([self._inputs, self._contexts], -1)
            found[f"below_weight_{layer}"] = _outer(self._by_input[layer], below)
            found[f"below_bias_{layer}"] = self._by_input[layer].sum((0, 1))
            found[f"hidden_weight_{layer}"] = _outer(self._by_recurrent[layer], self._states[:-1, layer])
            found[f"hidden_bias_{layer}"] = self._by_recurrent[layer].sum((0, 1))
        return found if cell is None else found | {"cell": cell}

    def _layer_gradient(self, step: int, layer: int, state: Numbers, cell: Numbers | None) -> None:
        """Through one layer's step: `state` and `cell`, (L, B, h), become those of the state and cell before it."""
        tensors = self._tensors
        by_input, by_recurrent, before, cell_before = self._cell_gradient(
            state[layer], None if cell is None else cell[layer], self._saved[step][layer]
        )
        self._by_input[layer, step], self._by_recurrent[layer, step] = by_input, by_recurrent
        state[layer] = before + by_recurrent @ tensors[f"hidden_weight_{layer}"]
        if cell is not None:
            cell[layer] = cell_before
        if layer:
            by_below = by_input @ tensors[f"below_weight_{layer}"]
            features = self._plan.features
            state[layer - 1] += by_below if features is None else by_below * features[layer - 1, :, step]


class _Inner:
    """⟨q, k_j⟩."""

    def __init__(self, tensors: Mapping[str, Numbers]) -> None:
        self._key = tensors["key"]

    def zeros(self) -> dict[str, Numbers]:
        """Sums over the steps, which every backward pass begins anew: one may follow another."""
        return {"key": numpy.zeros_like(self._key)}

    def scores(self, query: Numbers) -> Numbers:
        """(B, a) -> (B, m)."""
        scores: Numbers = numpy.matmul(self._key, query[:, :, None])[..., 0]
        return scores

    def gradient(self, query: Numbers, by_score: Numbers, sums: dict[str, Numbers]) -> Numbers:
        """(B, a), (B, m) -> by the query (B, a); those by all else add up."""
        sums["key"] += by_score[..., None] * query[:, None]
        by_query: Numbers = numpy.matmul(by_score[:, None], self._key)[:, 0]
        return by_query

    def gradients(self, sums: dict[str, Numbers]) -> dict[str, Numbers]:
        """By the tensors."""
        return sums


class _Additive:
    """Σ_h v_h tanh(q_h + k_jh), with tanh x = 1 − 2r, r = 1/(1 + p), p = e^(2q) · e^(2k), whose slope is 4·p·r².

    The keys' exponentials are those of all steps. Of features too large for them the slope is 4s/(1 + s)² with
    s = e^(−2|x|).
    """

    def __init__(self, tensors: Mapping[str, Numbers]) -> None:
        self._key, self._weight = tensors["key"], tensors["pair_weight"]
        self._small = bool(numpy.abs(self._key).max(initial=0) <= _LARGEST)
        self._powers = numpy.exp(2 * self._key) if self._small else self._key

    def zeros(self) -> dict[str, Numbers]:
        """As in `_Inner`."""
        return {"key": numpy.zeros_like(self._key), "pair_weight": numpy.zeros_like(self._weight)}

    def scores(self, query: Numbers) -> Numbers:
        """(B, a) -> (B, m)."""
        if not self._splits(query):
            scores: Numbers = numpy.tanh(query[:, None] + self._key) @ self._weight
            return scores
        return self._weight.sum() - 2 * (self._reciprocals(self._pairs(query)) @ self._weight)

    def gradient(self, query: Numbers, by_score: Numbers, sums: dict[str, Numbers]) -> Numbers:
        """(B, a), (B, m) -> by the query (B, a); those by all else add up."""
        features = len(self._weight)
        if self._splits(query):
            slopes = numpy.minimum(self._pairs(query), _ALMOST_INFINITE)
            reciprocals = self._reciprocals(slopes.copy())
            slopes *= reciprocals
            slopes *= reciprocals
            slopes *= 4
            sums["pair_weight"] += by_score.sum() - 2 * (by_score.reshape(-1) @ reciprocals.reshape(-1, features))
        else:
            pairs = query[:, None] + self._key
            sums["pair_weight"] += by_score.reshape(-1) @ numpy.tanh(pairs).reshape(-1, features)
            shares = numpy.exp(-2 * numpy.abs(pairs))
            slopes = 4 * shares / numpy.square(1 + shares)
        slopes *= by_score[..., None]
        sums["key"] += slopes
        by_query: Numbers = slopes.sum(1) * self._weight
        return by_query

    def gradients(self, sums: dict[str, Numbers]) -> dict[str, Numbers]:
        """By the tensors."""
        return sums | {"key": sums["key"] * self._weight}

    def _splits(self, query: Numbers) -> bool:
        return self._small and bool(numpy.abs(query).max(initial=0) <= _LARGEST)

    def _pairs(self, query: Numbers) -> Numbers:
        return numpy.exp(2 * query)[:, None] * self._powers

    @staticmethod
    def _reciprocals(pairs: Numbers) -> Numbers:
        pairs += 1
        return numpy.reciprocal(pairs, out=pairs)


def _outer(gradients: Numbers, operands: Numbers) -> Numbers:
    """Of a product's weight (G, h), from (T, B, G) and (T, B, h)."""
    product: Numbers = gradients.reshape(-1, gradients.shape[-1]).T @ operands.reshape(-1, operands.shape[-1])
    return product


def _sigmoid(x: Numbers) -> Numbers:
    result: Numbers = numpy.tanh(0.5 * x)
    result *= 0.5
    result += 0.5
    return result


def _gru(gates: Numbers, recurrent: Numbers, state: Numbers, _: None) -> tuple[Numbers, None, Any]:
    """The new state, from both sides of its gates r, z, n."""
    size = state.shape[-1]
    reset_update = _sigmoid(gates[:, : 2 * size] + recurrent[:, : 2 * size])
    reset, update, by_state = reset_update[:, :size], reset_update[:, size:], recurrent[:, 2 * size :]
    new = numpy.tanh(gates[:, 2 * size :] + reset * by_state)
    return new + update * (state - new), None, (reset, update, new, by_state, state)


def _gru_gradient(by_state: Numbers, _: None, saved: Any) -> tuple[Numbers, Numbers, Numbers, None]:
    """By both sides of the gates, and by the state before but for its products."""
    reset, update, new, new_by_state, state = saved
    by_new = by_state * (1 - update) * (1 - new * new)
    by_reset = by_new * new_by_state * reset * (1 - reset)
    by_update = by_state * (state - new) * update * (1 - update)
    by_input = numpy.concatenate([by_reset, by_update, by_new], -1)
    by_recurrent = numpy.concatenate([by_reset, by_update, by_new * reset], -1)
    return by_input, by_recurrent, by_state * update, None


def _lstm(gates: Numbers, recurrent: Numbers, state: Numbers, cell: Any) -> tuple[Numbers, Numbers, Any]:
    """The new state and cell, from both sides of the gates i, f, g, o."""
    into, forget, candidate, out = numpy.split(gates + recurrent, 4, -1)
    into, forget, candidate, out = _sigmoid(into), _sigmoid(forget), numpy.tanh(candidate), _sigmoid(out)
    new = forget * cell + into * candidate
    bounded = numpy.tanh(new)
    return out * bounded, new, (into, forget, candidate, out, bounded, cell)


def _lstm_gradient(by_state: Numbers, by_cell: Any, saved: Any) -> tuple[Numbers, Numbers, Any, Numbers]:
    """By both sides of the gates, which are added, and by the cell before."""
    into, forget, candidate, out, bounded, cell = saved
    by_new = by_cell + by_state * out * (1 - bounded * bounded)
    by_gates = numpy.concatenate(
        [
            by_new * candidate * into * (1 - into),
            by_new * cell * forget * (1 - forget),
            by_new * into * (1 - candidate * candidate),
            by_state * bounded * out * (1 - out),
        ],
        -1,
    )
    return by_gates, by_gates, 0, by_new * forget
