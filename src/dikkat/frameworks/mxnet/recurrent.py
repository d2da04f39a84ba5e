"""Recurrent networks with attention as Gluon blocks: encoders that never read padding, and decoders that attend.

As `dikkat.recurrent`: names, meanings, shapes, returns and parameters are those of PyTorch's.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from mxnet import autograd, init, np, npx

from dikkat.frameworks.mxnet import sequence
from dikkat.frameworks.mxnet.attention import compare, drop, pool, product
from dikkat.frameworks.mxnet.blocks import Block
from dikkat.frameworks.mxnet.masking import (
    Array,
    Booleans,
    Shape,
    cast,
    check_array,
    check_features,
    visible,
    where,
    whole_numbers,
    wide,
)
from dikkat.frameworks.mxnet.scores import Additive, Average, Bilinear, Dot, ScaledDot, Score, VectorSum, check_score
from dikkat.recurrent.stack import check_probability, check_stack

_GATES = {"gru": 3, "lstm": 4}
_AFFINE = (
    Additive,
    Average,
    Bilinear,
    Dot,
    ScaledDot,
    VectorSum,
)  # of a state, by no distance: one function does all steps
_SHUT = 1e6  # a gate's sigmoid of this is 1, and of its negative 0, whatever else is added to it


@dataclass(frozen=True)
class Memory:
    """Encoded sequences that are looked at many times, projected once. Made by `prepare`.

    Attributes:
        score: the scoring function, which also projects the queries to come.
        key: (B, m, h), projected; those past the length are of zeros.
        value: (B, m, c); 0 past the length.
        shown: NumPy booleans (B, m): the positions before the length; None where all are.
    """

    score: Score
    key: Array
    value: Array
    shown: Booleans | None

    def select(self, rows: Array) -> "Memory":
        """The memory of some sequences, in any order and number: how a beam search reorders.

        Args:
            rows: (B',) whole numbers, indices into B.

        Raises:
            TypeError: no array.
            ValueError: rows of another shape or out of range.
        """
        chosen = _rows(rows, len(self.key))
        shown = None if self.shown is None else self.shown[chosen.asnumpy()]
        return Memory(self.score, np.take(self.key, chosen, axis=0), np.take(self.value, chosen, axis=0), shown)


@dataclass(frozen=True)
class Covered:
    """A decoder's state with what the steps so far looked at: `begin` makes the first one.

    Attributes:
        state: of the cells, (layers, B, h), of an LSTM two of them.
        coverage: (B, m), the sum of the weights that each position has had.
    """

    state: Any
    coverage: Array


class _Parameters(Block):
    """The parameters of `torch.nn.GRU` or `torch.nn.LSTM`."""

    def __init__(self, mode: str, inputs: int, hidden_size: int, num_layers: int, directions: int = 1) -> None:
        super().__init__()
        self.mode, self.hidden_size, self.num_layers = mode, hidden_size, num_layers
        self.directions, self.inputs = directions, inputs
        gates, bound = _GATES[mode] * hidden_size, 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = inputs if layer == 0 else directions * hidden_size
            for end in ("", "_reverse")[:directions]:
                shapes = {"ih": (gates, columns), "hh": (gates, hidden_size)}
                for name, shape in shapes.items():
                    self.make(f"weight_{name}_l{layer}{end}", shape, init.Uniform(bound))
                for name in shapes:
                    self.make(f"bias_{name}_l{layer}{end}", (gates,), init.Uniform(bound))

    def weight(self, name: str, layer: int, end: str = "") -> Array:
        """One of them: of "weight_ih" and the like."""
        return getattr(self, f"{name}_l{layer}{end}").data()


class _Network(_Parameters):
    """Layers over whole sequences, by MXNet's fused operator, which stands still at positions that are not real.

    The operator itself knows lengths on one kind of device only. But a gate that is shut keeps the state as it is,
    exactly: so each layer reads one more feature, 1 behind a sequence's end, that shuts its gates.
    """

    def run(self, inputs: Array, real: Any, dropout: float) -> tuple[Array, list[Array]]:
        """(B, S, e), real positions (B, S) -> (B, S, c), 0 where not real; final states (layers, B, c), and cells."""
        lengths = real.sum(1)
        kind = inputs.dtype
        beyond = np.array(~real[..., None], dtype=kind, ctx=inputs.ctx)
        last = np.array(numpy.arange(real.shape[1]) == lengths[:, None] - 1, dtype=kind, ctx=inputs.ctx)
        below, states, cells = inputs, [], []
        for layer in range(self.num_layers):
            if layer and autograd.is_training():
                below = drop(below, dropout)
            outputs, final_cells = self._layer(layer, np.concatenate([below, beyond], axis=-1))
            below = where(real[..., None], outputs, 0.0)
            ends = product(np.expand_dims(last, 1), below).reshape(len(real), -1)
            if self.directions == 2:  # backwards, the first position is the last
                size = self.hidden_size
                ends = np.concatenate([ends[:, :size], below[:, 0, size:]], axis=-1)
            states.append(ends)
            cells.append(final_cells)
        return below, [np.stack(each) for each in ((states,) if self.mode == "gru" else (states, cells))]

    def _layer(self, layer: int, inputs: Array) -> tuple[Array, Array]:
        """(B, S, e + 1) -> outputs (B, S, c) and, of an LSTM, final cells (B, c)."""
        weights, biases = [], []
        shut = self._shut(inputs)
        for end in ("", "_reverse")[: self.directions]:
            weights += [np.concatenate([self.weight("weight_ih", layer, end), shut], axis=1)]
            weights += [self.weight("weight_hh", layer, end)]
            biases += [self.weight("bias_ih", layer, end), self.weight("bias_hh", layer, end)]
        zeros = np.zeros((self.directions, len(inputs), self.hidden_size), dtype=inputs.dtype, ctx=inputs.ctx)
        outputs, _, *cell = npx.rnn(
            inputs.swapaxes(0, 1),
            np.concatenate(weights + biases, axis=None),
            *(zeros,) * (1 if self.mode == "gru" else 2),
            state_size=self.hidden_size,
            num_layers=1,
            bidirectional=self.directions == 2,
            mode=self.mode,
            state_outputs=True,
        )
        return outputs.swapaxes(0, 1), cell[0].swapaxes(0, 1).reshape(len(inputs), -1) if cell else None

    def _shut(self, like: Array) -> Array:
        """The column of the gates for a position that is not real: a GRU's z is 1; an LSTM's i is 0 and its f is 1."""
        column = numpy.zeros((_GATES[self.mode], self.hidden_size, 1))
        if self.mode == "gru":
            column[1] = _SHUT
        else:
            column[0], column[1] = -_SHUT, _SHUT
        return np.array(column.reshape(-1, 1), dtype=like.dtype, ctx=like.ctx)


class _Encoder(Block):
    """A recurrent network over sequences of different lengths: what a GRU and an LSTM share."""

    mode: str  # also its network's name

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_stack(num_layers, dropout, input_size=input_size, hidden_size=hidden_size)
        directions = 2 if bidirectional else 1
        self.output_size, self.dropout = directions * hidden_size, dropout
        setattr(self, self.mode, _Network(self.mode, input_size, hidden_size, num_layers, directions))

    def forward(self, inputs: Array, lengths: Array) -> tuple[Array, Any]:
        """Encode a batch.

        Args:
            inputs: (B, S, e), padded to S positions, float32 or float64.
            lengths: (B,) whole numbers from 1 to S, of any dtype of numbers.

        Returns:
            The outputs (B, S, c), 0 behind each length; and each layer's final state (layers, B, c), that of the
            backward direction after that of the forward one, from which a decoder can start; of an LSTM the pair of
            its states and its cells.

        Raises:
            TypeError: inputs of another dtype than the parameters, or lengths that are no array of numbers.
            ValueError: inputs that are not (B, S, e), or a length outside 1 … S.
        """
        network = getattr(self, self.mode)
        _check_inputs(inputs, network.inputs, network.weight("weight_hh", 0), "positions")
        real = _real(lengths, inputs, "positions")
        outputs, final = network.run(where(real[..., None], inputs, 0.0), real, self.dropout)
        return outputs, final[0] if len(final) == 1 else tuple(final)


class GRUEncoder(_Encoder):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final states depend on its own `length` positions alone: the backward direction starts at
    the last real position, and whatever stands behind it, even NaN, has no effect.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: whether a second GRU reads backwards; its features follow those of the first.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> encoder = GRUEncoder(3, 5, num_layers=2)
        >>> encoder.initialize()
        >>> outputs, state = encoder(np.random.normal(size=(2, 7, 3)), np.array([7, 4]))
        >>> outputs.shape, state.shape
        ((2, 7, 10), (2, 2, 10))
    """

    mode = "gru"


class LSTMEncoder(_Encoder):
    """An LSTM over batches of sequences of different lengths, in one or both directions, that never reads padding.

    As `GRUEncoder`; its final state is the pair of states and cells, each (layers, B, c). The parameters are those of
    `torch.nn.LSTM`, under `lstm.`. Hochreiter, Schmidhuber, "Long short-term memory" (1997), with forget gates.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a direction's state.
        num_layers: LSTM layers on top of each other.
        bidirectional: whether a second LSTM reads backwards; its features follow those of the first.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> encoder = LSTMEncoder(3, 5)
        >>> encoder.initialize()
        >>> outputs, (state, cell) = encoder(np.random.normal(size=(2, 7, 3)), np.array([7, 4]))
        >>> outputs.shape, cell.shape
        ((2, 7, 10), (1, 2, 10))
    """

    mode = "lstm"


class _State(NamedTuple):
    """A state's parts: hidden and cell (layers, B, h), the cell of an LSTM alone, and the coverage (B, m), if any."""

    hidden: Array
    cell: Array | None
    coverage: Array | None


class _Attentional(_Parameters):
    """A stack of cells that looks at a memory before every step: what a GRU and an LSTM share."""

    kind: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        context_size: int,
        score: Score,
        num_layers: int = 1,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        coverage: bool = False,
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "context_size": context_size}
        check_stack(num_layers, dropout, **sizes)
        check_probability("weight_dropout", weight_dropout)
        check_score(score)
        super().__init__(self.kind, input_size + context_size, hidden_size, num_layers)
        self.input_size, self.context_size = input_size, context_size
        self.dropout, self.weight_dropout, self.coverage = dropout, weight_dropout, coverage
        if coverage:
            self.make("coverage_weight", (score.key_features(context_size),), init.Zero())
        self.score = score

    def prepare(self, encoded: Array, valid_lens: Array | None = None) -> Memory:
        """Project a batch of encoded sequences to keys, once for all steps; they are the values too.

        Args:
            encoded: (B, m, c) floating point.
            valid_lens: (B,) whole numbers, the true lengths; positions past them are never looked at. None: all are
                real.

        Returns:
            The memory that `forward` and `step` look at; `memory.select(rows)` reorders its batch.

        Raises:
            TypeError: arrays of the wrong kind.
            ValueError: shapes or lengths that do not fit.
        """
        check_features("encoded", encoded)
        if encoded.ndim != 3 or encoded.shape[-1] != self.context_size:
            raise ValueError(
                f"encoded: came with shape {encoded.shape}; allowed: (batch, positions, {self.context_size}), with "
                "the context_size that this was made with"
            )
        if valid_lens is not None and getattr(valid_lens, "ndim", 1) != 1:
            raise ValueError(f"valid_lens: came with shape {valid_lens.shape}; allowed: ({len(encoded)},)")
        shown = visible(encoded.shape[:1], 1, encoded.shape[1], valid_lens=valid_lens)
        if shown is not None:
            shown = shown[:, 0]
            encoded = where(shown[..., None], encoded, 0.0)
        return Memory(self.score, self.score.project_key(encoded), encoded, shown)

    def begin(self, state: Any, memory: Memory) -> Any:
        """The state before the first step: with coverage, nothing has been looked at.

        Args:
            state: of the cells, (layers, B, h), of an LSTM two of them.
            memory: what `prepare` returned, of m positions.

        Returns:
            What `forward` and `step` take: the state itself, or, with coverage, `Covered`.
        """
        if not self.coverage:
            return state
        hidden = state[0] if isinstance(state, tuple) else state
        return Covered(state, np.zeros((hidden.shape[1], memory.key.shape[1]), dtype=hidden.dtype, ctx=hidden.ctx))

    def forward(
        self,
        inputs: Array,
        memory: Memory,
        state: Any,
        *,
        lengths: Array | None = None,
        return_weights: bool = False,
    ) -> tuple[Array, Array, Array | None, Any]:
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: what `prepare` returned, of m positions.
            state: before the first step: (layers, B, h), of an LSTM two of them, its states and its cells; with
                coverage what `begin` makes of that.
            lengths: (B,) whole numbers from 1 to T, the steps that each sequence has; what stands behind them has no
                effect. None: all have T.
            return_weights: whether to return what each step looked at.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless they were asked for; all 0 where a sequence is over. The state after each sequence's last step.

        Raises:
            TypeError: arrays of the wrong kind.
            ValueError: inputs, lengths or a state of the wrong shape, inputs without a step, or a length outside 1 … T.
        """
        before = self._check(inputs, memory, state)
        real = None if lengths is None else _real(lengths, inputs, "steps")
        outputs, contexts, weights, last = self._run(inputs, memory, before, real)
        return outputs, contexts, weights if return_weights else None, self._joined(last)

    def step(
        self, inputs: Array, memory: Memory, state: Any, *, return_weights: bool = False
    ) -> tuple[Array, Array, Array | None, Any]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: what `prepare` returned, of m positions.
            state: before this step, as in `forward`.
            return_weights: whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step.

        Raises:
            TypeError: as in `forward`.
            ValueError: as in `forward`.
        """
        check_array("inputs", inputs)
        inputs = np.expand_dims(inputs, 1)
        found = self._run(inputs, memory, self._check(inputs, memory, state), None)
        outputs, contexts, weights = (each[:, 0] for each in found[:3])
        return outputs, contexts, weights if return_weights else None, self._joined(found[3])

    def select(self, state: Any, rows: Array) -> Any:
        """The state of some of the sequences, in any order and number: how a beam search reorders.

        Args:
            state: (layers, B, h), of an LSTM two of them; with coverage, both.
            rows: (B',) whole numbers, indices into B.

        Returns:
            The same of (layers, B', h).
        """
        if isinstance(state, Covered):
            chosen = _rows(rows, len(state.coverage))
            return Covered(self.select(state.state, rows), np.take(state.coverage, chosen, axis=0))
        if isinstance(state, tuple):
            return tuple(self.select(each, rows) for each in state)
        return np.take(state, _rows(rows, state.shape[1]), axis=1)

    def _run(self, inputs: Array, memory: Memory, before: _State, real: Any) -> tuple[Array, Array, Array, _State]:
        """All steps: as one function where that can be, in a loop where not; as `forward` returns them."""
        tensors = [inputs, memory.key, memory.value, before.hidden]
        if (
            type(memory.score) in _AFFINE
            and not self.coverage
            and {numpy.dtype(each.dtype) for each in tensors} == {numpy.dtype(inputs.dtype)}
            and all(each.ctx.device_type == "cpu" for each in tensors)
        ):
            return self._as_one(inputs, memory, before, real)
        return self._loop(inputs, memory, before, real)

    def _as_one(self, inputs: Array, memory: Memory, before: _State, real: Any) -> tuple[Array, Array, Array, _State]:
        """All steps as one function."""
        score = memory.score
        query_weight, query_bias = _query_map(score, self.hidden_size, inputs)
        if query_weight.shape[0] != memory.key.shape[-1]:
            raise ValueError(
                f"the memory's keys have {memory.key.shape[-1]} features and the queries of {type(score).__name__} "
                f"{query_weight.shape[0]}; both must have as many"
            )
        tensors = {"inputs": inputs, "key": memory.key, "value": memory.value, "hidden": before.hidden}
        tensors |= {"cell": before.cell, "query_weight": query_weight, "query_bias": query_bias}
        tensors["pair_weight"] = score.pair_weight()
        for layer in range(self.num_layers):
            for side, name in (("below", "ih"), ("hidden", "hh")):
                tensors[f"{side}_weight_{layer}"] = self.weight(f"weight_{name}", layer)
                tensors[f"{side}_bias_{layer}"] = self.weight(f"bias_{name}", layer)
        batch, steps = inputs.shape[:2]
        plan = sequence.Plan(
            self.mode,
            score.pair,
            self.num_layers,
            memory.shown,
            _kept(self.dropout, (self.num_layers - 1, batch, steps, self.hidden_size), inputs),
            _kept(self.weight_dropout, (batch, steps, memory.key.shape[1]), inputs),
            real,
        )
        found = sequence.run(plan, {name: each for name, each in tensors.items() if each is not None})
        outputs, contexts, looked_at, *last = found
        return outputs, contexts, looked_at, _State(last[0], last[1] if len(last) == 2 else None, None)

    def _loop(self, inputs: Array, memory: Memory, before: _State, real: Any) -> tuple[Array, Array, Array, _State]:
        """All steps, one by one, for every score and with coverage."""
        if real is not None:
            inputs = where(real[..., None], inputs, 0.0)
        weights = _Weights(self)
        # The inputs' share of the first layer's gates does not depend on the state: one product for all steps.
        gates = _linear(inputs, weights.of_inputs, weights.first_bias)
        hidden, coverage = list(before.hidden), before.coverage
        cells = None if before.cell is None else list(before.cell)
        shown = None if memory.shown is None else np.array(memory.shown[:, None], dtype="bool", ctx=gates.ctx)
        made: list[tuple[Array, ...]] = []
        for step in range(gates.shape[1]):
            context, looked_at = self._look(hidden[-1], memory, shown, coverage)
            first = gates[:, step] + _linear(context, weights.of_context, None)
            hidden, cells = self._advance(first, weights, hidden, cells)
            made.append((np.stack(hidden), context, looked_at))
            if cells is not None:
                made[-1] += (np.stack(cells),)
            if coverage is not None:
                coverage = coverage + looked_at
                made[-1] += (coverage,)
        stacked = [np.stack(each, axis=-2) for each in zip(*made, strict=True)]
        shown_steps = [stacked[0][-1], *stacked[1:3]]
        if real is not None:
            shown_steps = [where(real[..., None], each, 0.0) for each in shown_steps]
        last = _State(
            _last(stacked[0], real),
            None if cells is None else _last(stacked[3], real),
            None if coverage is None else _last(stacked[-1], real),
        )
        outputs, contexts, looked = shown_steps
        return outputs, contexts, looked, last

    def _look(self, query: Array, memory: Memory, shown: Array | None, coverage: Array | None) -> tuple[Array, Array]:
        """One query a sequence: (B, h) -> contexts (B, c) and weights (B, m) before dropout."""
        score, key = memory.score, memory.key
        if coverage is not None:  # behind a length it is 0, as the weights are
            key = key + np.expand_dims(coverage, -1) * cast(self.coverage_weight.data(), key.dtype)
        projected = np.expand_dims(score.project_query(query), 1)
        scores = compare(projected, key, pair=score.pair, weight=score.pair_weight(), profile=score.profile)
        if score.pair == "distance" and score.profile != "gaussian":  # beyond a kernel's support a key is hidden too
            reached = scores != -numpy.inf
            shown = reached if shown is None else reached * shown
        dropout = self.weight_dropout if autograd.is_training() else 0.0
        context, weights = pool(scores, memory.value, shown, dropout=dropout)
        return context.reshape(len(query), -1), weights.reshape(len(query), -1)

    def _advance(
        self, first: Array, weights: "_Weights", hidden: list[Array], cells: list[Array] | None
    ) -> tuple[list[Array], list[Array] | None]:
        """All layers one step on; `first` is the complete input side of the first layer's gates (B, G·h)."""
        new: list[Array] = []
        new_cells: list[Array] = []
        dropout = self.dropout if autograd.is_training() else 0.0
        for layer in range(self.num_layers):
            gates = first if layer == 0 else _linear(drop(new[-1], dropout), *weights.of_below[layer])
            recurrent = _linear(hidden[layer], *weights.of_hidden[layer])
            if cells is None:
                new.append(_gru(gates, recurrent, hidden[layer]))
            else:
                state, cell = _lstm(gates + recurrent, cells[layer])
                new.append(state)
                new_cells.append(cell)
        return new, None if cells is None else new_cells

    def _check(self, inputs: Array, memory: Memory, state: Any) -> _State:
        _check_inputs(inputs, self.input_size, self.weight("weight_hh", 0), "steps")
        if not isinstance(memory, Memory):
            raise TypeError(f"memory: came {type(memory).__name__}; allowed: a Memory, as prepare makes")
        if len(memory.value) != len(inputs):
            raise ValueError(
                f"the memory is of {len(memory.value)} sequences and the inputs are of {len(inputs)}; both must be as "
                "many"
            )
        coverage = None
        if self.coverage:
            if not isinstance(state, Covered):
                raise ValueError(
                    f"the state is of type {type(state).__name__}; with coverage it is what begin makes of it"
                )
            state, coverage = state.state, state.coverage
            if coverage.shape != memory.value.shape[:2]:
                raise ValueError(
                    f"the coverage has shape {coverage.shape}; allowed is (batch, positions) = {memory.value.shape[:2]}"
                )
        parts = self._parted(state)
        expected = (self.num_layers, len(inputs), self.hidden_size)
        for each in parts:
            check_array("state", each)
            if each.shape != expected:
                raise ValueError(f"the state has shape {each.shape}; allowed is (layers, batch, hidden) = {expected}")
        return _State(parts[0], parts[1] if len(parts) == 2 else None, coverage)

    def _parted(self, state: Any) -> tuple[Array, ...]:
        if self.kind == "gru":
            if not isinstance(state, np.ndarray):
                raise ValueError(
                    f"the state is of type {type(state).__name__}; allowed is one array (layers, batch, hidden)"
                )
            return (state,)
        if not isinstance(state, tuple) or len(state) != 2:
            raise ValueError(
                f"the state is of type {type(state).__name__}; allowed is a pair of arrays (layers, batch, hidden): "
                "states and cells"
            )
        return state

    def _joined(self, state: _State) -> Any:
        own = state.hidden if state.cell is None else (state.hidden, state.cell)
        return own if state.coverage is None else Covered(own, state.coverage)


class AttentionalGRU(_Attentional):
    r"""A stack of GRU cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ the state of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1 = \mathrm{GRU}_1([e_t; c_t], s_{t-1}^1), \qquad s_t^l = \mathrm{GRU}_l(s_t^{l-1}, s_{t-1}^l) $$

    With `coverage` a position's projected key $k'_j$ becomes $k'_j + c_{tj} u$, with $c_{tj}$ the sum of the weights
    that the position had before step t, before dropout, and u learnt, 0 at first. Tu, Lu, Liu, Liu, Li, "Modeling
    coverage for neural machine translation" (2016), section 3.1.

    Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate" (2015), section 3.1
    and appendix A.1.2, with the GRU of `torch.nn.GRU`. The parameters are those of
    `torch.nn.GRU(input_size + context_size, hidden_size, num_layers)`, the context's columns after the input's; the
    score's follow under `score.`.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a state, h; the score's queries have as many.
        context_size: features of the memory's values, c.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: GRU cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.

    Raises:
        TypeError: a score that is none.
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import AttentionalGRU, scores
        >>> decoder = AttentionalGRU(3, 5, 7, scores.Additive(7, 5, 11))
        >>> decoder.initialize()
        >>> memory = decoder.prepare(np.random.normal(size=(2, 13, 7)), np.array([13, 4]))
        >>> inputs = np.random.normal(size=(2, 6, 3))
        >>> outputs, contexts, weights, state = decoder(inputs, memory, np.zeros((1, 2, 5)))
        >>> outputs.shape, contexts.shape, weights, state.shape
        ((2, 6, 5), (2, 6, 7), None, (1, 2, 5))
    """

    kind = "gru"


class AttentionalLSTM(_Attentional):
    r"""A stack of LSTM cells that, before every step, looks at a memory with what it knew after the step before.

    As `AttentionalGRU`, with the LSTM of `torch.nn.LSTM`: gates i, f, g, o, two bias vectors. A state is a pair of
    arrays (layers, B, h): states and cells.

    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation" (2015), section 3, with
    the order of attending of Bahdanau et al. (2015).

    Args:
        input_size: features of an input, e.
        hidden_size: features of a state, h; the score's queries have as many.
        context_size: features of the memory's values, c.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: LSTM cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.

    Raises:
        TypeError: a score that is none.
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import AttentionalLSTM, scores
        >>> decoder = AttentionalLSTM(3, 5, 7, scores.Bilinear(7, 5))
        >>> decoder.initialize()
        >>> memory, zeros = decoder.prepare(np.random.normal(size=(2, 13, 7))), np.zeros((1, 2, 5))
        >>> inputs = np.random.normal(size=(2, 6, 3))
        >>> outputs, contexts, weights, (state, cell) = decoder(inputs, memory, (zeros, zeros))
        >>> outputs.shape, cell.shape
        ((2, 6, 5), (1, 2, 5))
    """

    kind = "lstm"


class _Weights:
    """A decoder's weights as a step needs them, fetched once for all steps."""

    def __init__(self, network: _Attentional) -> None:
        first, size = network.weight("weight_ih", 0), network.input_size
        self.of_inputs, self.of_context = first[:, :size], first[:, size:]
        self.first_bias = network.weight("bias_ih", 0)
        layers = range(network.num_layers)
        self.of_hidden = [(network.weight("weight_hh", each), network.weight("bias_hh", each)) for each in layers]
        self.of_below = [(network.weight("weight_ih", each), network.weight("bias_ih", each)) for each in layers]


def _last(steps: Array, real: Any) -> Array:
    """Each sequence's last step: (..., B, T, h) -> (..., B, h)."""
    if real is None:
        return steps[..., -1, :]
    chosen = numpy.arange(real.shape[1]) == real.sum(1)[:, None] - 1
    return product(np.array(chosen[:, None], dtype=steps.dtype, ctx=steps.ctx), steps)[..., 0, :]


def _query_map(score: Score, size: int, like: Array) -> tuple[Array, Array | None]:
    """The matrix (a, h) and the bias (a,), if any, that make a query of a state, of a score that is affine in it."""
    if isinstance(score, Additive | Bilinear):
        return score.W_q.weight.data(), None
    bias = score.project_query(np.zeros((1, size), dtype=like.dtype, ctx=like.ctx))
    basis = score.project_query(np.eye(size, dtype=like.dtype, ctx=like.ctx)) - bias
    return basis.T, bias.reshape(-1)


def _kept(dropout: float, shape: Shape, like: Array) -> Any:
    """What a dropout multiplies with, in NumPy; None where nothing is dropped."""
    if not dropout or not autograd.is_training():
        return None
    return drop(np.ones(shape, dtype=like.dtype, ctx=like.ctx), dropout).asnumpy()


def _gru(gates: Array, recurrent: Array, state: Array) -> Array:
    """A GRU's new state from both sides of its gates, each (B, 3h) in the order r, z, n."""
    reset, update, new = np.split(gates, 3, axis=-1)
    reset_by_state, update_by_state, new_by_state = np.split(recurrent, 3, axis=-1)
    candidate = np.tanh(new + npx.sigmoid(reset + reset_by_state) * new_by_state)
    return candidate + npx.sigmoid(update + update_by_state) * (state - candidate)


def _lstm(gates: Array, cell: Array) -> tuple[Array, Array]:
    """An LSTM's new state and cell from its gates (B, 4h) in the order i, f, g, o."""
    into, forget, candidate, out = np.split(gates, 4, axis=-1)
    cell = npx.sigmoid(forget) * cell + npx.sigmoid(into) * np.tanh(candidate)
    return npx.sigmoid(out) * np.tanh(cell), cell


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    operands = [x, weight] if bias is None else [x, weight, bias]
    return npx.fully_connected(*operands, num_hidden=weight.shape[0], no_bias=bias is None, flatten=False)


def _check_inputs(inputs: Array, size: int, weight: Array, steps: str) -> None:
    check_features("inputs", inputs)
    if inputs.ndim != 3 or inputs.shape[1] < 1 or inputs.shape[2] != size or not len(inputs):
        raise ValueError(
            f"inputs have shape {inputs.shape}; they must be (batch, {steps}, {size}), with at least one of each"
        )
    if numpy.dtype(inputs.dtype) != numpy.dtype(weight.dtype) or wide(inputs) != numpy.dtype(inputs.dtype).name:
        raise TypeError(
            f"inputs have dtype {numpy.dtype(inputs.dtype)}; they must be float32 or float64, as the parameters are "
            f"({numpy.dtype(weight.dtype)})"
        )


def _real(lengths: Array, inputs: Array, of: str) -> Any:
    """The real positions, (B, S) NumPy booleans."""
    numbers = whole_numbers("lengths", lengths)
    batch, positions = inputs.shape[:2]
    if numbers.shape != (batch,):
        raise ValueError(f"lengths have shape {numbers.shape}; they must be (batch,) = ({batch},)")
    if numbers.min() < 1 or numbers.max() > positions:
        raise ValueError(f"lengths are {numbers.tolist()}; each must be from 1 to the {positions} {of} of inputs")
    return numpy.arange(positions) < numbers[:, None]


def _rows(rows: Array, length: int) -> Array:
    """Indices of sequences, checked, as MXNet takes them."""
    numbers = whole_numbers("rows", rows)
    if numbers.ndim != 1 or (numbers.size and not 0 <= numbers.min() <= numbers.max() < length):
        raise ValueError(f"rows: came {numbers.tolist()}; allowed: indices (rows,) from 0 to {length - 1}")
    return np.array(numbers, ctx=rows.ctx, dtype="int64")
