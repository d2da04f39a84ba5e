"""Decoders that attend."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from dikkat.frameworks.contract import recurrent as contract
from dikkat.frameworks.contract.checks import check_features
from dikkat.frameworks.contract.recurrent import Covered
from dikkat.frameworks.keras.backend import product, shape_of, wide
from dikkat.frameworks.keras.blocks import registered
from dikkat.frameworks.keras.cells import Cells
from dikkat.frameworks.keras.scores import Score
from dikkat.frameworks.keras.sequences import checked_lengths, real_positions, scan
from dikkat.frameworks.keras.steps import Memory, State, Steps
from dikkat.recurrent.stack import check_probability, check_stack


def _value(memory: Any) -> Any:
    """What a memory's contexts are means of, (B, m, c); also of encoded sequences, and of them with their lengths."""
    if not isinstance(memory, tuple | list):
        return memory
    return memory[0] if len(memory) == 2 else memory[1]  # as in a Memory, of which files make a list


class _Attentional(Cells):
    """A stack of cells that looks at a memory before every step: what a GRU and an LSTM share."""

    arguments = ("hidden_size", "score", "num_layers", "dropout", "weight_dropout", "coverage", "seed")
    mode: ClassVar[str]

    def __init__(
        self,
        hidden_size: int,
        score: Score,
        num_layers: int = 1,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        coverage: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_stack(num_layers, dropout, hidden_size=hidden_size)
        check_probability("weight_dropout", weight_dropout)
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.dropout, self.weight_dropout, self.coverage, self.seed = dropout, weight_dropout, coverage, seed
        self.score = score
        self.supports_masking = True
        drops = dropout or weight_dropout
        self.seed_generator = keras.random.SeedGenerator(seed, name="seed_generator") if drops else None

    def build(self, inputs_shape: Sequence[int], memory_shape: Any) -> None:
        """Make the weights, for inputs (B, T, e) and a memory or encoded sequences (B, m, c)."""
        nested = isinstance(memory_shape[0], tuple | list)
        self.build_sizes(inputs_shape[-1], (_value(memory_shape) if nested else memory_shape)[-1])

    def build_sizes(self, input_size: int, context_size: int) -> None:
        """Make the weights.

        Args:
            input_size: Features of an input, e.
            context_size: Features of the memory's values, c.
        """
        check_stack(self.num_layers, self.dropout, input_size=input_size, context_size=context_size)
        self.input_size, self.context_size = input_size, context_size
        columns = [input_size + context_size] + [self.hidden_size] * (self.num_layers - 1)
        self.add_cells(self.mode, self.hidden_size, columns)
        self._build_attention(context_size)
        self.built = True

    def get_build_config(self) -> dict[str, Any]:
        """The sizes, as `.keras` files keep them."""
        return {"input_size": self.input_size, "context_size": self.context_size}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Make the weights of the sizes in a `.keras` file."""
        self.build_sizes(**config)

    def prepare(self, encoded: Any, valid_lens: Any = None) -> Any:
        """Project a batch of encoded sequences to keys, once for all steps; they are the values too.

        Args:
            encoded: (B, m, c) floating point.
            valid_lens: (B,) integers, the true lengths; positions past them are never looked at. None: all are real.

        Returns:
            The memory that `call` and `step` look at; `memory.select(rows)` reorders its batch. Of the symbolic tensors
            of Keras's functional API, `encoded` itself, with its lengths if there are any: the call projects it then.
        """
        if keras.utils.is_keras_tensor(encoded):
            return encoded if valid_lens is None else (encoded, valid_lens)
        encoded = ops.convert_to_tensor(encoded)
        if self.built:
            check_features("encoded", shape_of(encoded), self.context_size)
        self._build_attention(encoded.shape[-1])
        if valid_lens is None:
            valid_lens = ops.full((ops.shape(encoded)[0],), ops.shape(encoded)[1], dtype="int32")
        else:
            valid_lens = checked_lengths(valid_lens, encoded, "valid_lens", "positions of encoded", least=0)
            seen = ops.expand_dims(ops.arange(ops.shape(encoded)[1]) < ops.expand_dims(valid_lens, 1), -1)
            encoded = ops.where(seen, encoded, ops.zeros_like(encoded))
        return Memory(self.score.project_key(encoded), encoded, valid_lens)

    def begin(self, state: Any, memory: Any) -> Any:
        """The state before the first step: with coverage, nothing has been looked at.

        Args:
            state: Of the cells, (layers, B, h), of an LSTM two of them.
            memory: What `prepare` returned, of m positions.

        Returns:
            What `call` and `step` take: the state itself, or, with coverage, `Covered`.
        """
        return Covered(state, ops.zeros_like(_value(memory)[:, :, 0])) if self.coverage else state

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        if keras.utils.is_keras_tensor(inputs):  # of whose model every output has to be a tensor
            options["return_weights"] = True
        return super().__call__(inputs, *args, **options)

    def call(
        self,
        inputs: Any,
        memory: Any,
        state: Any,
        lengths: Any = None,
        inputs_mask: Any = None,
        memory_mask: Any = None,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, Any, Any, Any]:
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: What `prepare` returned, of m positions; or encoded sequences (B, m, c), or the pair of these and
                their lengths (B,), which are then prepared.
            state: Before the first step: (layers, B, h), of an LSTM two of them, its states and its cells; with
                coverage what `begin` makes of that.
            lengths: (B,) integers from 1 to T, the steps that each sequence has; what stands behind them has no effect.
                None: `inputs_mask` says it, or all have T.
            inputs_mask: (B, T) booleans, True at the steps that there are, the first ones; Keras passes it on.
            memory_mask: (B, m) booleans, True at the real positions of encoded sequences, the first ones; Keras passes
                it on. A memory has its own lengths.
            return_weights: Whether to return what each step looked at. Keras's functional API, in which a layer's
                outputs are tensors and never None, always gets it.
            training: Whether anything is dropped.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless they were asked for; all 0 where a sequence is over. The state after each sequence's last step.

        Raises:
            TypeError: Lengths that are not integers, or a mask that is not of booleans.
            ValueError: Inputs, lengths or a state of the wrong shape, or, where values can be read, a length outside
                1 … T, or a mask with padding before a real position.
        """
        memory = self._memory(memory, memory_mask)
        self._check(inputs, memory)
        before = self._parted(state, inputs)
        seen = real_positions(inputs, lengths, inputs_mask, "inputs")
        if seen is not None:
            seen = ops.expand_dims(ops.transpose(seen), -1)  # (T, B, 1)
        inputs = ops.transpose(inputs, (1, 0, 2))
        if seen is not None:
            inputs = ops.where(seen, inputs, ops.zeros_like(inputs))
        steps = Steps(self, memory, seen is not None, *self._masks(inputs, memory, training))
        rows = [self._first_gates(inputs), seen, steps.kept, steps.dropped]
        last, found = scan(
            steps,
            steps.carried(before),
            tuple(each for each in rows if each is not None),
            emitted=3 if return_weights else 2,
        )
        if seen is not None:
            found = tuple(ops.where(seen, each, ops.zeros_like(each)) for each in found)
        outputs, contexts, *weights = (ops.cast(ops.transpose(each, (1, 0, 2)), inputs.dtype) for each in found)
        return outputs, contexts, weights[0] if weights else None, self._joined(steps.state(last), inputs.dtype)

    def step(self, inputs: Any, memory: Memory, state: Any, return_weights: bool = False) -> tuple[Any, Any, Any, Any]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: What `prepare` returned, of m positions.
            state: Before this step, as in `call`.
            return_weights: Whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step.

        Raises:
            ValueError: Inputs or a state of the wrong shape.
        """
        inputs = ops.convert_to_tensor(inputs)
        self._check(ops.expand_dims(inputs, 1), memory)
        before = self._parted(state, inputs)
        steps = Steps(self, memory, False, None, None)
        after = steps(steps.carried(before), (self._first_gates(inputs),))
        outputs, contexts, weights = (ops.cast(each, inputs.dtype) for each in after[:3])
        state = self._joined(steps.state(after), inputs.dtype)
        return outputs, contexts, weights if return_weights else None, state

    def select(self, state: Any, rows: Any) -> Any:
        """The state of some of the sequences, in any order and number: how a beam search reorders.

        Args:
            state: (layers, B, h), of an LSTM two of them; with coverage, both.
            rows: (B',) integers, indices into B.

        Returns:
            The same of (layers, B', h).
        """
        if isinstance(state, Covered):
            return Covered(self.select(state.state, rows), ops.take(state.coverage, rows, axis=0))
        if isinstance(state, (tuple, list)):
            return tuple(ops.take(each, rows, axis=1) for each in state)
        return ops.take(state, rows, axis=1)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The outputs and the contexts have the inputs' mask."""
        return previous_mask, previous_mask

    def compute_output_spec(
        self,
        inputs: Any,
        memory: Any,
        state: Any,
        lengths: Any = None,
        inputs_mask: Any = None,
        memory_mask: Any = None,
        return_weights: bool = False,
        training: Any = None,
    ) -> Any:
        """Shapes and dtypes of what a call returns."""
        batch, steps = inputs.shape[:2]
        positions = _value(memory).shape[1]

        def tensor(*shape: int | None) -> Any:
            return keras.KerasTensor(shape, self.compute_dtype)

        cells = [tensor(self.num_layers, batch, self.hidden_size) for _ in range(1 if self.mode == "gru" else 2)]
        own = cells[0] if self.mode == "gru" else tuple(cells)
        return (
            tensor(batch, steps, self.hidden_size),
            tensor(batch, steps, self.context_size),
            tensor(batch, steps, positions) if return_weights else None,
            Covered(own, tensor(batch, positions)) if self.coverage else own,
        )

    def compute_output_shape(self, inputs_shape: Sequence[Any], memory_shape: Any, state_shape: Any) -> Any:
        """Shapes of the outputs, of the contexts, of the weights and of the state."""
        batch, steps = inputs_shape[:2]
        _, positions, context_size = _value(memory_shape) if isinstance(memory_shape[0], tuple | list) else memory_shape
        cells = (self.num_layers, batch, self.hidden_size)
        own = cells if self.mode == "gru" else (cells, cells)
        return (
            (batch, steps, self.hidden_size),
            (batch, steps, context_size),
            (batch, steps, positions),
            Covered(own, (batch, positions)) if self.coverage else own,
        )

    def _build_attention(self, context_size: int) -> None:
        """The score's weights, which depend on nothing else: a memory may be prepared before the first call."""
        if not self.score.built:
            self.score.build((None, None, self.hidden_size), (None, None, context_size))
        if self.coverage and not hasattr(self, "coverage_weight"):
            features = self.score.project_key(ops.zeros((1, context_size), dtype=self.compute_dtype)).shape[-1]
            self.coverage_weight = self.add_weight(shape=(features,), initializer="zeros", name="coverage_weight")

    def _memory(self, memory: Any, mask: Any) -> Memory:
        if isinstance(memory, tuple | list) and len(memory) == 3:
            return Memory(*memory)
        encoded, lens = memory if isinstance(memory, tuple | list) else (memory, None)
        mask = mask[0] if isinstance(mask, tuple | list) else mask  # Keras's, of the pair
        seen = real_positions(encoded, None, mask, "memory")
        if seen is not None:
            real = ops.sum(ops.cast(seen, "int32"), axis=1)
            lens = real if lens is None else ops.minimum(ops.cast(lens, "int32"), real)
        prepared: Memory = self.prepare(encoded, lens)
        return prepared

    def _first_gates(self, inputs: Any) -> Any:
        """The inputs' share of the first layer's gates, which does not depend on the state: one product for all."""
        kernel = self.weight("weight_ih", 0)[:, : self.input_size]
        gates = product(inputs, ops.transpose(kernel)) + self.weight("bias_ih", 0)
        return ops.cast(gates, wide(gates))

    def _masks(self, inputs: Any, memory: Memory, training: bool | None) -> tuple[Any, Any]:
        """What is kept of the weights, (T, B, m), and of the features between layers, (T, layers − 1, B, h), scaled."""
        if not training:
            return None, None
        steps, batch = ops.shape(inputs)[:2]
        wanted = (
            ((steps, batch, ops.shape(memory.key)[1]), self.weight_dropout),
            ((steps, self.num_layers - 1, batch, self.hidden_size), self.dropout),
        )
        weights, features = (
            keras.random.dropout(ops.ones(shape, dtype=wide(inputs)), rate, seed=self.seed_generator) if rate else None
            for shape, rate in wanted
        )
        return weights, features

    def _check(self, inputs: Any, memory: Memory) -> None:
        contract.check_inputs(shape_of(inputs), self.input_size, "steps")
        check_features("memory", shape_of(memory.value), self.context_size)
        contract.check_sequences(shape_of(memory.value), shape_of(inputs))

    def _parted(self, state: Any, inputs: Any) -> State:
        """The parts of a state, checked."""
        if self.coverage and isinstance(state, tuple | list) and len(state) == 2:
            nested = isinstance(state[0], tuple | list)
            state = Covered(*state) if nested == (self.mode == "lstm") else state  # a file makes a list of it
        parts, coverage = contract.parted(state, self.mode, self.coverage)
        parts = tuple(ops.convert_to_tensor(each) for each in parts)
        contract.check_state([shape_of(each) for each in parts], self.num_layers, inputs.shape[0], self.hidden_size)
        hidden, *cell = ([ops.cast(each[layer], wide(inputs)) for layer in range(self.num_layers)] for each in parts)
        return State(hidden, cell[0] if cell else [], [] if coverage is None else [ops.cast(coverage, wide(inputs))])

    def _joined(self, state: State, dtype: Any) -> Any:
        own = tuple(ops.cast(ops.stack(each), dtype) for each in (state.hidden, state.cell) if each)
        cells = own[0] if self.mode == "gru" else own
        return Covered(cells, ops.cast(state.coverage[0], dtype)) if self.coverage else cells


@registered
class AttentionalGRU(_Attentional):
    r"""A stack of GRU cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ the state of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1 = \mathrm{GRU}_1([e_t; c_t], s_{t-1}^1), \qquad s_t^l = \mathrm{GRU}_l(s_t^{l-1}, s_{t-1}^l) $$

    With `coverage` a position's projected key $k'_j$ becomes $k'_j + c_{tj} u$, with $c_{tj}$ the sum of the weights
    that the position had before step t, before dropout, and u learnt, 0 at first. Tu, Lu, Liu, Liu, Li, "Modeling
    coverage for neural machine translation" (2016), section 3.1; See, Liu, Manning (2017), section 2.3, equation 11.

    Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate" (2015), section 3.1
    and appendix A.1.2, with the GRU of `torch.nn.GRU`: gates r, z, n, the reset after the recurrent product, two
    bias vectors. The parameters are those of `dikkat.recurrent.AttentionalGRU`, in name, shape and order.

    Args:
        hidden_size: Features of a state, h; the score's queries have as many.
        score: The scoring function that compares a state with the memory's keys.
        num_layers: GRU cells on top of each other.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: Probability with which an attention weight is dropped, in training only.
        coverage: Whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import AttentionalGRU, scores
        >>> decoder = AttentionalGRU(5, scores.Additive(11))
        >>> memory = decoder.prepare(np.ones((2, 13, 7), np.float32), np.array([13, 4]))
        >>> outputs, contexts, weights, state = decoder(np.ones((2, 6, 3)), memory, np.zeros((1, 2, 5)))
        >>> tuple(outputs.shape), tuple(contexts.shape), weights, tuple(state.shape)
        ((2, 6, 5), (2, 6, 7), None, (1, 2, 5))
    """

    mode = "gru"


@registered
class AttentionalLSTM(_Attentional):
    r"""A stack of LSTM cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ and $m_t^l$ the state and the cell of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1, m_t^1 = \mathrm{LSTM}_1([e_t; c_t], s_{t-1}^1, m_{t-1}^1), \qquad
    s_t^l, m_t^l = \mathrm{LSTM}_l(s_t^{l-1}, s_{t-1}^l, m_{t-1}^l) $$

    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation" (2015), section 3, with
    the order of attending of Bahdanau et al. (2015) and the LSTM of `torch.nn.LSTM`: gates i, f, g, o, two bias
    vectors; `coverage` as in `AttentionalGRU`. The parameters are those of `dikkat.recurrent.AttentionalLSTM`, in name,
    shape and order. A state is a pair of tensors (layers, B, h): states and cells.

    Args:
        hidden_size: Features of a state, h; the score's queries have as many.
        score: The scoring function that compares a state with the memory's keys.
        num_layers: LSTM cells on top of each other.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: Probability with which an attention weight is dropped, in training only.
        coverage: Whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import AttentionalLSTM, scores
        >>> decoder, zeros = AttentionalLSTM(5, scores.Bilinear()), np.zeros((1, 2, 5))
        >>> outputs, contexts, weights, (state, cell) = decoder(np.ones((2, 6, 3)), np.ones((2, 13, 7)), (zeros, zeros))
        >>> tuple(outputs.shape), tuple(cell.shape)
        ((2, 6, 5), (1, 2, 5))
    """

    mode = "lstm"
