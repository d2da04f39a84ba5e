"""Decoders that attend, as Gluon blocks: names, shapes, returns and parameters as in PyTorch."""

from dataclasses import dataclass
from typing import Any

import numpy
from mxnet import autograd, init, np

from dikkat.frameworks.contract import recurrent as contract
from dikkat.frameworks.contract.recurrent import Covered
from dikkat.frameworks.mxnet.attention import compare, drop, pool, reached
from dikkat.frameworks.mxnet.backend import (
    Array,
    Booleans,
    cast,
    check_array,
    check_features,
    kind,
    on_device,
    product,
    where,
    whole_numbers,
)
from dikkat.frameworks.mxnet.cells import Cells, lengths_of
from dikkat.frameworks.mxnet.masking import visible
from dikkat.frameworks.mxnet.scores import Score, check_score
from dikkat.recurrent.stack import check_probability, check_stack


@dataclass(frozen=True)
class Memory:
    """Encoded sequences that are looked at many times, projected once. Made by `prepare`.

    Attributes:
        score: The scoring function, which also projects the queries to come.
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
            TypeError: No array.
            ValueError: Rows of another shape or out of range.
        """
        chosen = _rows(rows, len(self.key))
        shown = None if self.shown is None else self.shown[chosen.asnumpy()]
        return Memory(self.score, np.take(self.key, chosen, axis=0), np.take(self.value, chosen, axis=0), shown)


class _Attentional(Cells):
    """A stack of cells that looks at a memory before every step: what a GRU and an LSTM share."""

    mode: str

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
        super().__init__(self.mode, input_size + context_size, hidden_size, num_layers)
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
            TypeError: Arrays of the wrong kind.
            ValueError: Shapes or lengths that do not fit.
        """
        check_features("encoded", encoded)
        if encoded.ndim != 3 or encoded.shape[-1] != self.context_size:
            raise ValueError(
                f"encoded: got shape {encoded.shape}; expected (batch, positions, {self.context_size}), with "
                "the context_size that this was made with"
            )
        if valid_lens is not None and getattr(valid_lens, "ndim", 1) != 1:
            raise ValueError(f"valid_lens: got shape {valid_lens.shape}; expected ({len(encoded)},)")
        shown = visible(encoded.shape[:1], 1, encoded.shape[1], valid_lens=valid_lens)
        if shown is not None:
            shown = shown[:, 0]
            encoded = where(shown[..., None], encoded, 0.0)
        return Memory(self.score, self.score.project_key(encoded), encoded, shown)

    def begin(self, state: Any, memory: Memory) -> Any:
        """The state before the first step: with coverage, nothing has been looked at.

        Args:
            state: Of the cells, (layers, B, h), of an LSTM two of them.
            memory: What `prepare` returned, of m positions.

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
            memory: What `prepare` returned, of m positions.
            state: Before the first step: (layers, B, h), of an LSTM two of them, its states and its cells; with
                coverage what `begin` makes of that.
            lengths: (B,) whole numbers from 1 to T, the steps that each sequence has; what stands behind them has no
                effect. None: all have T.
            return_weights: Whether to return what each step looked at.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless they were asked for; all 0 where a sequence is over. The state after each sequence's last step.

        Raises:
            TypeError: Arrays of the wrong kind.
            ValueError: Inputs, lengths or a state of the wrong shape, inputs without a step, or a length outside 1 … T.
        """
        if lengths is not None:
            self.check_inputs(inputs, self.input_size, "steps")
            lengths = lengths_of(lengths, inputs, "steps")
        outputs, contexts, weights, last = self._run(inputs, memory, state, lengths)
        return outputs, contexts, weights if return_weights else None, last

    def step(
        self, inputs: Array, memory: Memory, state: Any, *, return_weights: bool = False
    ) -> tuple[Array, Array, Array | None, Any]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: What `prepare` returned, of m positions.
            state: Before this step, as in `forward`.
            return_weights: Whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step.

        Raises:
            TypeError: Arrays of the wrong kind.
            ValueError: Inputs or a state of the wrong shape.
        """
        check_array("inputs", inputs)
        *found, last = self._run(np.expand_dims(inputs, 1), memory, state, None)
        outputs, contexts, weights = (each[:, 0] for each in found)
        return outputs, contexts, weights if return_weights else None, last

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

    def _run(self, inputs: Array, memory: Memory, state: Any, lengths: Any) -> tuple[Array, Array, Array, Any]:
        """All steps, one by one, as `forward` returns them; the cells of all layers are the fused operator's."""
        parts, coverage = self._check(inputs, memory, state)
        real = None if lengths is None else numpy.arange(inputs.shape[1]) < lengths[:, None]
        if real is not None:
            inputs = where(real[..., None], inputs, 0.0)
        dropout = self.dropout if autograd.is_training() else 0.0
        # The operator does all layers at once; but it drops nothing between them on a CPU.
        layers = [range(each, each + 1) for each in range(self.num_layers)] if dropout else [range(self.num_layers)]
        packed = [self.packed(each) for each in layers]
        states = [[part[each.start : each.stop] for part in parts] for each in layers]
        shown = None if memory.shown is None else on_device(memory.shown[:, None], inputs)
        query, made, carried = parts[0][-1:].swapaxes(0, 1), [], []
        for step in range(inputs.shape[1]):
            context, weights = self._look(query, memory, shown, coverage)
            read = np.concatenate([inputs[:, step : step + 1], context], axis=-1).swapaxes(0, 1)
            for group, parameters in enumerate(packed):
                below = drop(read, dropout) if group else read
                read, *states[group] = self.advance(below, parameters, states[group])
            query = read.swapaxes(0, 1)
            coverage = None if coverage is None else coverage + weights[:, 0]
            made.append((query, context, weights))
            carried.append([*(part for each in states for part in each), coverage])
        found = [np.concatenate(each, axis=1) for each in zip(*made, strict=True)]
        if real is not None:
            found = [where(real[..., None], each, 0.0) for each in found]
        *ends, coverage = (
            each[-1] if lengths is None or each[-1] is None else _last(np.stack(each, axis=-2), lengths)
            for each in zip(*carried, strict=True)
        )
        own = [np.concatenate(ends[part :: len(parts)], axis=0) for part in range(len(parts))]
        last = own[0] if self.mode == "gru" else tuple(own)
        return found[0], found[1], found[2], Covered(last, coverage) if self.coverage else last

    def _look(self, query: Array, memory: Memory, shown: Array | None, coverage: Array | None) -> tuple[Array, Array]:
        """One query a sequence: (B, 1, h) -> contexts (B, 1, c) and weights (B, 1, m) before dropout."""
        score, key = memory.score, memory.key
        if coverage is not None:  # behind a length it is 0, as the weights are
            key = key + np.expand_dims(coverage, -1) * cast(self.coverage_weight.data(), kind(key))
        query = score.project_query(query)
        compared = compare(query, key, pair=score.pair, weight=score.pair_weight(), profile=score.profile)
        dropout = self.weight_dropout if autograd.is_training() else 0.0
        return pool(compared, memory.value, reached(score, compared, shown), dropout=dropout)

    def _check(self, inputs: Array, memory: Memory, state: Any) -> tuple[list[Array], Array | None]:
        """The state's parts: states and, of an LSTM, cells; the coverage, if any."""
        self.check_inputs(inputs, self.input_size, "steps")
        if not isinstance(memory, Memory):
            raise TypeError(f"memory: got {type(memory).__name__}; expected a Memory, as prepare makes")
        contract.check_sequences(memory.value.shape, inputs.shape)
        parts, coverage = contract.parted(state, self.mode, self.coverage)
        for each in parts:
            check_array("state", each)
        contract.check_state([each.shape for each in parts], self.num_layers, len(inputs), self.hidden_size)
        if coverage is not None and coverage.shape != memory.value.shape[:2]:
            raise ValueError(
                f"state: got a coverage of shape {coverage.shape}; expected (batch, positions) = "
                f"{memory.value.shape[:2]}"
            )
        return list(parts), coverage


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
        input_size: Features of an input, e.
        hidden_size: Features of a state, h; the score's queries have as many.
        context_size: Features of the memory's values, c.
        score: The scoring function that compares a state with the memory's keys.
        num_layers: GRU cells on top of each other.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: Probability with which an attention weight is dropped, in training only.
        coverage: Whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.

    Raises:
        TypeError: A score that is none.
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

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

    mode = "gru"


class AttentionalLSTM(_Attentional):
    r"""A stack of LSTM cells that, before every step, looks at a memory with what it knew after the step before.

    As `AttentionalGRU`, with the LSTM of `torch.nn.LSTM`: gates i, f, g, o, two bias vectors. A state is a pair of
    arrays (layers, B, h): states and cells.

    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation" (2015), section 3, with
    the order of attending of Bahdanau et al. (2015).

    Args:
        input_size: Features of an input, e.
        hidden_size: Features of a state, h; the score's queries have as many.
        context_size: Features of the memory's values, c.
        score: The scoring function that compares a state with the memory's keys.
        num_layers: LSTM cells on top of each other.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: Probability with which an attention weight is dropped, in training only.
        coverage: Whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.

    Raises:
        TypeError: A score that is none.
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

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

    mode = "lstm"


def _last(steps: Array, lengths: Any) -> Array:
    """Each sequence's last step: (..., B, T, h) -> (..., B, h)."""
    chosen = numpy.arange(steps.shape[-2]) == lengths[:, None] - 1
    return product(np.array(chosen[:, None], dtype=steps.dtype, ctx=steps.ctx), steps)[..., 0, :]


def _rows(rows: Array, length: int) -> Array:
    """Indices of sequences, checked, as MXNet takes them."""
    numbers = whole_numbers("rows", rows)
    if numbers.ndim != 1 or (numbers.size and not 0 <= numbers.min() <= numbers.max() < length):
        raise ValueError(f"rows: got {numbers.tolist()}; expected indices (rows,) from 0 to {length - 1}")
    return np.array(numbers, ctx=rows.ctx, dtype="int64")
