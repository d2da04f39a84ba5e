"""Recurrent networks with attention: encoders that never read padding, and decoders that attend."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from dikkat.frameworks.keras.additive import at_once
from dikkat.frameworks.keras.attention import compare, pool
from dikkat.frameworks.keras.backend import kind, product, readable, wide
from dikkat.frameworks.keras.blocks import Block, registered
from dikkat.frameworks.keras.masking import same
from dikkat.frameworks.keras.scores import Score
from dikkat.frameworks.keras.sequences import scan
from dikkat.recurrent.stack import check_probability, check_stack

State = Any  # (layers, B, h), of an LSTM two of them; with coverage, both in a Covered


def gru(input_gates: Any, recurrent_gates: Any, state: Any) -> Any:
    """A GRU's new state from both sides of its gates, each (..., 3h) in the order r, z, n."""
    input_r, input_z, input_n = ops.split(input_gates, 3, axis=-1)
    recurrent_r, recurrent_z, recurrent_n = ops.split(recurrent_gates, 3, axis=-1)
    reset, update = ops.sigmoid(input_r + recurrent_r), ops.sigmoid(input_z + recurrent_z)
    candidate = ops.tanh(input_n + reset * recurrent_n)
    return candidate + update * (state - candidate)


def lstm(input_gates: Any, recurrent_gates: Any, cell: Any) -> tuple[Any, Any]:
    """An LSTM's new state and cell from both sides of its gates, each (..., 4h) in the order i, f, g, o."""
    into, forget, candidate, out = ops.split(input_gates + recurrent_gates, 4, axis=-1)
    cell = ops.sigmoid(forget) * cell + ops.sigmoid(into) * ops.tanh(candidate)
    return ops.sigmoid(out) * ops.tanh(cell), cell


class _Cells(Block):
    """The parameters of a stack of cells, under the names and in the layouts of `torch.nn.GRU` and `torch.nn.LSTM`."""

    def add_cells(self, gates: int, hidden_size: int, columns: Sequence[int], ends: Sequence[str] = ("",)) -> None:
        """Add each layer's weights.

        Args:
            gates: of a cell.
            hidden_size: features of a state, h.
            columns: features of each layer's inputs.
            ends: of the names, one for each direction.
        """
        bound = 1 / math.sqrt(hidden_size)
        for layer, width in enumerate(columns):
            shapes = {"weight_ih": (width,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for end in ends:
                for name, rest in shapes.items():
                    full = f"{name}_l{layer}{end}"
                    weight = self.add_weight(
                        shape=(gates * hidden_size, *rest),
                        initializer=keras.initializers.RandomUniform(-bound, bound),
                        name=full,
                    )
                    setattr(self, full, weight)

    def weight(self, name: str, layer: int, end: str = "") -> Any:
        """A weight's value, in the dtype in which it is computed with."""
        return getattr(self, f"{name}_l{layer}{end}").value


class _Network(_Cells):
    """The recurrent network of an encoder."""

    def __init__(self, gates: int, hidden_size: int, num_layers: int, ends: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.gates, self.hidden_size, self.num_layers, self.ends = gates, hidden_size, num_layers, tuple(ends)

    def build(self, input_shape: Sequence[Any]) -> None:
        """Make the weights."""
        columns = [input_shape[-1]] + [len(self.ends) * self.hidden_size] * (self.num_layers - 1)
        self.add_cells(self.gates, self.hidden_size, columns, self.ends)
        self.built = True

    def run(self, below: Any, layer: int, goes_on: Any) -> tuple[Any, list[Any]]:
        """One layer, both directions at once.

        Args:
            below: (B, S, c'), the layer's inputs.
            layer: which one.
            goes_on: (S, D, B, 1), where each of D directions reads, in the order in which it does; None: everywhere.

        Returns:
            The outputs (B, S, D·h), the last states behind a length; the final states (B, D·h), and cells.
        """
        narrow, directions = kind(below), len(self.ends)
        kernel, bias = (
            ops.concatenate([self.weight(name, layer, end) for end in self.ends]) for name in ("weight_ih", "bias_ih")
        )
        recurrent_kernel, recurrent_bias = (
            ops.stack([self.weight(name, layer, end) for end in self.ends]) for name in ("weight_hh", "bias_hh")
        )
        recurrent_kernel = ops.transpose(recurrent_kernel, (0, 2, 1))
        recurrent_bias = ops.cast(ops.expand_dims(recurrent_bias, 1), wide(below))
        # Of all steps at once: (B, S, D·G·h) -> (S, D, B, G·h).
        gates = ops.cast(product(below, ops.transpose(kernel)) + bias, wide(below))
        gates = ops.transpose(_parted(gates, directions), (1, 2, 0, 3))
        gates = _turned(gates)
        zeros = ops.zeros_like(gates[0, :, :, : self.hidden_size])
        carry = (zeros,) if self.gates == 3 else (zeros, zeros)

        def step(carry: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
            recurrent = ops.cast(product(ops.cast(carry[0], narrow), recurrent_kernel), wide(below)) + recurrent_bias
            after = (gru(row[0], recurrent, *carry),) if self.gates == 3 else lstm(row[0], recurrent, carry[1])
            return after if goes_on is None else _where(row[1], after, carry)

        last, (states,) = scan(step, carry, (gates,) if goes_on is None else (gates, goes_on), emitted=1)
        outputs = _joined(ops.transpose(_turned(states), (2, 0, 1, 3)))
        return ops.cast(outputs, narrow), [_joined(ops.transpose(each, (1, 0, 2))) for each in last]


def _parted(gates: Any, directions: int) -> Any:
    """(B, S, D·n) -> (B, S, D, n)."""
    batch, positions = ops.shape(gates)[:2]
    return ops.reshape(gates, (batch, positions, directions, gates.shape[-1] // directions))


def _joined(features: Any) -> Any:
    """(..., D, n) -> (..., D·n)."""
    *lead, directions, size = ops.shape(features)
    return ops.reshape(features, (*lead, directions * size))


def _turned(steps: Any) -> Any:
    """(S, D, ...): the second direction's steps in the opposite order."""
    if steps.shape[1] == 1:
        return steps
    return ops.stack([steps[:, 0], ops.flip(steps[:, 1], axis=0)], axis=1)


def _where(condition: Any, new: Sequence[Any], old: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(ops.where(condition, after, before) for after, before in zip(new, old, strict=True))


class _Encoder(Block):
    """A recurrent network over sequences of different lengths: what a GRU and an LSTM share."""

    arguments = ("hidden_size", "num_layers", "bidirectional", "dropout", "seed")
    gates: ClassVar[int]
    part: ClassVar[str]  # the network's name among the parameters

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_stack(num_layers, dropout, hidden_size=hidden_size)
        self.hidden_size, self.num_layers, self.bidirectional = hidden_size, num_layers, bidirectional
        self.dropout, self.seed = dropout, seed
        self.output_size = (2 if bidirectional else 1) * hidden_size
        self.supports_masking = True
        self.seed_generator = keras.random.SeedGenerator(seed, name="seed_generator") if dropout else None
        ends = ("", "_reverse") if bidirectional else ("",)
        network = _Network(self.gates, hidden_size, num_layers, ends, dtype=self.dtype_policy, name=self.part)
        setattr(self, self.part, network)

    def build(self, input_shape: Sequence[Any]) -> None:
        """Make the weights, for inputs (B, S, e)."""
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(f"inputs have shape {tuple(input_shape)}; they must be (batch, positions, features)")
        self._network.build(input_shape)
        self.input_size = input_shape[-1]
        self.built = True

    @property
    def _network(self) -> _Network:
        return getattr(self, self.part)

    def call(self, inputs: Any, lengths: Any = None, mask: Any = None, training: bool | None = None) -> tuple[Any, Any]:
        """Encode a batch.

        Args:
            inputs: (B, S, e) floating point, padded to S positions.
            lengths: (B,) integers from 1 to S. None: `mask` says it, or all sequences have S positions.
            mask: (B, S) booleans, True at the real positions, which come before all others: Keras passes on the mask
                that an embedding made, for instance.
            training: whether features are dropped between layers.

        Returns:
            The outputs (B, S, c), 0 behind each length; and each layer's final state (layers, B, c), that of the
            backward direction after that of the forward one, from which a decoder can start; of an LSTM the pair of
            its states and its cells.

        Raises:
            TypeError: lengths that are not integers, or a mask that is not of booleans.
            ValueError: inputs that are not (B, S, e), a length outside 1 … S, or a mask with padding before a real
                position, where values can be read.
        """
        if len(inputs.shape) != 3 or inputs.shape[-1] != self.input_size:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; they must be (batch, positions, {self.input_size})"
            )
        seen = real_positions(inputs, lengths, mask, "inputs")
        goes_on = None
        below = inputs
        if seen is not None:
            directions = [ops.transpose(seen)] * (2 if self.bidirectional else 1)
            goes_on = _turned(ops.expand_dims(ops.stack(directions, axis=1), -1))
            seen = ops.expand_dims(seen, -1)
            below = ops.where(seen, below, ops.zeros_like(below))
        ends = []
        for layer in range(self.num_layers):
            if layer and self.dropout and training:
                below = keras.random.dropout(below, self.dropout, seed=self.seed_generator)
            below, end = self._network.run(below, layer, goes_on)
            if seen is not None:
                below = ops.where(seen, below, ops.zeros_like(below))
            ends.append(end)
        final = tuple(ops.cast(ops.stack(each), inputs.dtype) for each in zip(*ends, strict=True))
        return below, final[0] if len(final) == 1 else final

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The outputs have the inputs' mask, the states none."""
        return (previous_mask, *[None] * (self.gates - 2))

    def compute_output_spec(self, inputs: Any, lengths: Any = None, mask: Any = None, training: Any = None) -> Any:
        """Shapes and dtypes of what a call returns."""
        batch, positions = inputs.shape[:2]
        state = keras.KerasTensor((self.num_layers, batch, self.output_size), self.compute_dtype)
        outputs = keras.KerasTensor((batch, positions, self.output_size), self.compute_dtype)
        return outputs, state if self.gates == 3 else (state, keras.KerasTensor(state.shape, state.dtype))

    def compute_output_shape(self, input_shape: Sequence[Any]) -> tuple[Any, Any]:
        """Shapes of the outputs and of the final states, of an LSTM two of them."""
        batch, positions = input_shape[:2]
        state = (self.num_layers, batch, self.output_size)
        return (batch, positions, self.output_size), state if self.gates == 3 else (state, state)


def real_positions(tensor: Any, lengths: Any, mask: Any, name: str) -> Any:
    """Where a batch of sequences has its real positions, which come before all others.

    Args:
        tensor: (B, S, ...).
        lengths: (B,) integers from 1 to S, or None.
        mask: (B, S) booleans, or None.
        name: of the tensor, for messages.

    Returns:
        (B, S) booleans, True where both say so; None where neither says anything.

    Raises:
        TypeError: lengths that are not integers, or a mask that is not of booleans.
        ValueError: a wrong shape; where values can be read, a length out of range, or padding before a real position.
    """
    seen = None
    if lengths is not None:
        lengths = checked_lengths(lengths, tensor, "lengths", f"positions of {name}", least=1)
        seen = ops.expand_dims(ops.arange(ops.shape(tensor)[1]), 0) < ops.expand_dims(lengths, 1)
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        if kind(mask) != "bool":
            raise TypeError(f"the mask of {name} has dtype {kind(mask)}; it must be of booleans")
        if not same(mask.shape, tensor.shape[:2]):
            raise ValueError(
                f"the mask of {name} has shape {tuple(mask.shape)}; it must be (batch, positions) = "
                f"{tuple(tensor.shape[:2])}"
            )
        if readable(mask) and bool(ops.any(ops.logical_and(mask[:, 1:], ops.logical_not(mask[:, :-1])))):
            raise ValueError(
                f"the mask of {name} has padding before a real position; real positions must come first: pad behind "
                "the sequences"
            )
        seen = mask if seen is None else ops.logical_and(seen, mask)
    return seen


def checked_lengths(lengths: Any, tensor: Any, name: str, of: str, least: int) -> Any:
    """Lengths of a batch of sequences, (B,) int32.

    Args:
        lengths: what came.
        tensor: (B, S, ...).
        name: of the lengths, for messages.
        of: what they count, for messages.
        least: the smallest that is allowed.

    Raises:
        TypeError: they are not integers.
        ValueError: their shape does not fit, or, where values can be read, a length.
    """
    lengths = ops.convert_to_tensor(lengths)
    if "int" not in kind(lengths):
        raise TypeError(f"{name} have dtype {kind(lengths)}; they must be integers")
    if not same(lengths.shape, tensor.shape[:1]):
        raise ValueError(f"{name} have shape {tuple(lengths.shape)}; they must be (batch,) = {tuple(tensor.shape[:1])}")
    if readable(lengths) and tensor.shape[1] is not None:
        values = ops.convert_to_numpy(lengths)
        if ((values < least) | (values > tensor.shape[1])).any():
            raise ValueError(f"{name} are {values.tolist()}; each must be from {least} to the {tensor.shape[1]} {of}")
    return ops.cast(lengths, "int32")


class Memory(NamedTuple):
    """What a decoder looks at: keys projected once for all steps. `AttentionalGRU.prepare` makes it.

    Attributes:
        key: (B, m, h), projected.
        value: (B, m, c), 0 past the length.
        valid_lens: (B,) int32, the true lengths.
    """

    key: Any
    value: Any
    valid_lens: Any

    def select(self, rows: Any) -> "Memory":
        """The memory of some sequences, in any order and number: how a beam search reorders.

        Args:
            rows: (B',) integers, indices into B.
        """
        return Memory(*(ops.take(each, rows, axis=0) for each in self))


class Covered(NamedTuple):
    """A decoder's state with what the steps so far looked at: `begin` makes the first one.

    Attributes:
        state: of the cells, (layers, B, h), of an LSTM two of them.
        coverage: (B, m), the sum of the weights that each position has had.
    """

    state: Any
    coverage: Any


def _value(memory: Any) -> Any:
    """What a memory's contexts are means of, (B, m, c); also of encoded sequences, and of them with their lengths."""
    if not isinstance(memory, tuple | list):
        return memory
    return memory[0] if len(memory) == 2 else memory[1]  # as in a Memory, of which files make a list


class _State(NamedTuple):
    """A state's parts, in the dtype in which they are computed: (B, h) of each layer; cells and coverage, if any."""

    hidden: list[Any]
    cell: list[Any]
    coverage: list[Any]


class _Attentional(_Cells):
    """A stack of cells that looks at a memory before every step: what a GRU and an LSTM share."""

    arguments = ("hidden_size", "score", "num_layers", "dropout", "weight_dropout", "coverage", "seed")
    gates: ClassVar[int]

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
            input_size: features of an input, e.
            context_size: features of the memory's values, c.
        """
        check_stack(self.num_layers, self.dropout, input_size=input_size, context_size=context_size)
        self.input_size, self.context_size = input_size, context_size
        columns = [input_size + context_size] + [self.hidden_size] * (self.num_layers - 1)
        self.add_cells(self.gates, self.hidden_size, columns)
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
            self._check_context("encoded", encoded)
        self._build_attention(encoded.shape[-1])
        if valid_lens is None:
            valid_lens = ops.full((ops.shape(encoded)[0],), ops.shape(encoded)[1], dtype="int32")
        else:
            valid_lens = checked_lengths(valid_lens, encoded, "valid_lens", "positions of encoded", least=0)
            seen = ops.expand_dims(ops.arange(ops.shape(encoded)[1]) < ops.expand_dims(valid_lens, 1), -1)
            encoded = ops.where(seen, encoded, ops.zeros_like(encoded))
        return Memory(self.score.project_key(encoded), encoded, valid_lens)

    def begin(self, state: Any, memory: Any) -> State:
        """The state before the first step: with coverage, nothing has been looked at.

        Args:
            state: of the cells, (layers, B, h), of an LSTM two of them.
            memory: what `prepare` returned, of m positions.

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
        state: State,
        lengths: Any = None,
        inputs_mask: Any = None,
        memory_mask: Any = None,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, Any, Any, State]:
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: what `prepare` returned, of m positions; or encoded sequences (B, m, c), or the pair of these and
                their lengths (B,), which are then prepared.
            state: before the first step: (layers, B, h), of an LSTM two of them, its states and its cells; with
                coverage what `begin` makes of that.
            lengths: (B,) integers from 1 to T, the steps that each sequence has; what stands behind them has no effect.
                None: `inputs_mask` says it, or all have T.
            inputs_mask: (B, T) booleans, True at the steps that there are, the first ones; Keras passes it on.
            memory_mask: (B, m) booleans, True at the real positions of encoded sequences, the first ones; Keras passes
                it on. A memory has its own lengths.
            return_weights: whether to return what each step looked at. Keras's functional API, in which a layer's
                outputs are tensors and never None, always gets it.
            training: whether anything is dropped.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless they were asked for; all 0 where a sequence is over. The state after each sequence's last step.

        Raises:
            TypeError: lengths that are not integers, or a mask that is not of booleans.
            ValueError: inputs, lengths or a state of the wrong shape, or, where values can be read, a length outside
                1 … T, or a mask with padding before a real position.
        """
        memory = self._memory(memory, memory_mask)
        self._check(inputs, memory)
        before = self._state(state, inputs)
        seen = real_positions(inputs, lengths, inputs_mask, "inputs")
        if seen is not None:
            seen = ops.expand_dims(ops.transpose(seen), -1)  # (T, B, 1)
        inputs = ops.transpose(inputs, (1, 0, 2))
        if seen is not None:
            inputs = ops.where(seen, inputs, ops.zeros_like(inputs))
        steps = _Steps(self, memory, seen is not None, *self._masks(inputs, memory, training))
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

    def step(
        self, inputs: Any, memory: Memory, state: State, return_weights: bool = False
    ) -> tuple[Any, Any, Any, State]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: what `prepare` returned, of m positions.
            state: before this step, as in `call`.
            return_weights: whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step.

        Raises:
            ValueError: inputs or a state of the wrong shape.
        """
        inputs = ops.convert_to_tensor(inputs)
        self._check(ops.expand_dims(inputs, 1), memory)
        before = self._state(state, inputs)
        steps = _Steps(self, memory, False, None, None)
        after = steps(steps.carried(before), (self._first_gates(inputs),))
        outputs, contexts, weights = (ops.cast(each, inputs.dtype) for each in after[:3])
        state = self._joined(steps.state(after), inputs.dtype)
        return outputs, contexts, weights if return_weights else None, state

    def select(self, state: State, rows: Any) -> State:
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
        state: State,
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

        cells = [tensor(self.num_layers, batch, self.hidden_size) for _ in range(self.gates - 2)]
        own = cells[0] if self.gates == 3 else tuple(cells)
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
        own = cells if self.gates == 3 else (cells, cells)
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
        if len(inputs.shape) != 3 or inputs.shape[1] == 0 or inputs.shape[2] != self.input_size:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; they must be (batch, steps, {self.input_size}), "
                "with at least one step"
            )
        self._check_context("memory", memory.value)
        if not same((inputs.shape[0],), (memory.value.shape[0],)):
            raise ValueError(
                f"the memory is of {memory.value.shape[0]} sequences and the inputs are of {inputs.shape[0]}; both "
                "must be as many"
            )

    def _check_context(self, name: str, values: Any) -> None:
        if values.shape[-1] != self.context_size:
            raise ValueError(
                f"{name} came with {values.shape[-1]} features; it must have {self.context_size}, as this was built"
            )

    def _state(self, state: State, inputs: Any) -> _State:
        """The parts of a state, checked."""
        coverage: list[Any] = []
        if self.coverage:
            nested = isinstance(state, tuple | list)
            if nested and len(state) == 2 and isinstance(state[0], tuple | list) == (self.gates == 4):
                state = Covered(*state)  # which a file makes a list of
            if not isinstance(state, Covered):
                raise ValueError(
                    f"the state is of type {type(state).__name__}; with coverage it is what begin makes of it"
                )
            coverage = [ops.cast(state.coverage, wide(inputs))]
            state = state.state
        nested = isinstance(state, (tuple, list))
        parts = [ops.convert_to_tensor(each) for each in (state if nested else [state])]
        if nested != (self.gates == 4) or len(parts) != self.gates - 2:
            allowed = "a pair of tensors (layers, batch, hidden): states and cells"
            raise ValueError(
                f"the state is of type {type(state).__name__}; allowed is "
                f"{'one tensor (layers, batch, hidden)' if self.gates == 3 else allowed}"
            )
        expected = (self.num_layers, inputs.shape[0], self.hidden_size)
        for each in parts:
            if not same(each.shape, expected):
                raise ValueError(
                    f"the state has shape {tuple(each.shape)}; allowed is (layers, batch, hidden) = {expected}"
                )
        hidden, *cell = ([ops.cast(each[layer], wide(inputs)) for layer in range(self.num_layers)] for each in parts)
        return _State(hidden, cell[0] if cell else [], coverage)

    def _joined(self, state: _State, dtype: Any) -> State:
        own = tuple(ops.cast(ops.stack(each), dtype) for each in (state.hidden, state.cell) if each)
        cells = own if self.gates == 4 else own[0]
        return Covered(cells, ops.cast(state.coverage[0], dtype)) if self.coverage else cells


class _Steps:
    """What the steps of a call share; called with what is carried and a row of the inputs, it takes one.

    Carried are the top layer's state, the context and the weights of the step before, then all other parts of the
    state: in this order, since a scan emits the first ones.
    """

    def __init__(self, decoder: _Attentional, memory: Memory, ends: bool, kept: Any, dropped: Any) -> None:
        self.decoder, self.memory, self.ends, self.kept, self.dropped = decoder, memory, ends, kept, dropped
        self.narrow, self.wide = kind(memory.value), wide(memory.value)
        positions = ops.arange(ops.shape(memory.key)[1])
        self.visible = ops.expand_dims(positions < ops.expand_dims(memory.valid_lens, 1), 1)  # (B, 1, m)
        self.context_kernel = ops.transpose(decoder.weight("weight_ih", 0)[:, decoder.input_size :])
        layers = range(decoder.num_layers)
        self.input_kernels = [ops.transpose(decoder.weight("weight_ih", layer)) for layer in layers[1:]]
        self.input_biases = [decoder.weight("bias_ih", layer) for layer in layers[1:]]
        self.kernels = [ops.transpose(decoder.weight("weight_hh", layer)) for layer in layers]
        self.biases = [decoder.weight("bias_hh", layer) for layer in layers]

    def carried(self, state: _State) -> tuple[Any, ...]:
        """What the first step takes: it reads neither context nor weights."""
        context, weights = self.memory.value[:, 0], self.memory.key[:, :, 0]
        before = (ops.cast(ops.zeros_like(each), self.wide) for each in (context, weights))
        return (state.hidden[-1], *before, *state.hidden[:-1], *state.cell, *state.coverage)

    def state(self, carried: tuple[Any, ...]) -> _State:
        """The parts of the state in what is carried."""
        top, _, _, *rest = carried
        layers = self.decoder.num_layers
        lower, rest = rest[: layers - 1], rest[layers - 1 :]
        cells = layers if self.decoder.gates == 4 else 0
        return _State([*lower, top], rest[:cells], rest[cells:])

    def __call__(self, carried: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
        before, rest = self.state(carried), iter(row)
        gates = next(rest)
        goes_on, kept, dropped = (
            next(rest) if given else None for given in (self.ends, self.kept is not None, self.dropped is not None)
        )
        context, looked_at = self._attend(before, kept)
        gates = gates + self._product(context, self.context_kernel)
        hidden, cell = self._advance(gates, before, dropped)
        coverage = [each + looked_at for each in before.coverage]
        after = (hidden[-1], context, looked_at, *hidden[:-1], *cell, *coverage)
        return after if goes_on is None else _where(goes_on, after, carried)

    def _attend(self, before: _State, kept: Any) -> tuple[Any, Any]:
        """One query a sequence: contexts (B, c), and weights (B, m) before dropout."""
        score, key = self.decoder.score, self.memory.key
        for coverage in before.coverage:
            # Behind a length the coverage is 0, as the weights are.
            weight = ops.cast(self.decoder.coverage_weight.value, key.dtype)
            key = key + ops.cast(ops.expand_dims(coverage, -1), key.dtype) * weight
        # As one row a sequence: XLA cannot compile the gradient of TensorFlow's product of three and two dimensions in
        # a loop.
        query = ops.expand_dims(score.project_query(ops.cast(before.hidden[-1], self.narrow)), 1)
        if score.pair == "additive":
            operands = (ops.cast(each, self.wide) for each in (query, key, score.pair_weight()))
            scores = at_once(*operands)
        else:
            scores = compare(query, key, pair=score.pair, profile=score.profile)
        context, weights = pool(scores, self.memory.value, self.visible)
        if kept is not None:
            context = product(weights * ops.cast(ops.expand_dims(kept, 1), kind(weights)), self.memory.value)
        return ops.cast(context[:, 0], self.wide), ops.cast(weights[:, 0], self.wide)

    def _advance(self, gates: Any, before: _State, dropped: Any) -> tuple[list[Any], list[Any]]:
        """All layers one step on; `gates` is the complete input side of the first layer's (B, G·h)."""
        hidden: list[Any] = []
        cells: list[Any] = []
        for layer, state in enumerate(before.hidden):
            if layer:
                below = hidden[-1] if dropped is None else hidden[-1] * dropped[layer - 1]
                gates = self._product(below, self.input_kernels[layer - 1], self.input_biases[layer - 1])
            recurrent = self._product(state, self.kernels[layer], self.biases[layer])
            if before.cell:
                new, cell = lstm(gates, recurrent, before.cell[layer])
                cells.append(cell)
            else:
                new = gru(gates, recurrent, state)
            hidden.append(new)
        return hidden, cells

    def _product(self, features: Any, kernel: Any, bias: Any = None) -> Any:
        """A product in the dtype of the weights; states, on which all later ones build, stay wide."""
        result = product(ops.cast(features, kernel.dtype), kernel)
        return ops.cast(result if bias is None else result + bias, self.wide)


@registered
class GRUEncoder(_Encoder):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final states depend on its own positions alone: the backward direction starts at the last
    real position, and whatever stands behind it, even NaN, has no effect. In half precision the products are narrow,
    and the states, on which all later ones build, float32.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        hidden_size: features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: whether a second GRU reads backwards; its features follow those of the first.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        seed: where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Attributes:
        output_size: features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import GRUEncoder
        >>> outputs, state = GRUEncoder(5, num_layers=2)(np.ones((2, 7, 3)), lengths=np.array([7, 4]))
        >>> tuple(outputs.shape), tuple(state.shape)
        ((2, 7, 10), (2, 2, 10))
    """

    gates, part = 3, "gru"


@registered
class LSTMEncoder(_Encoder):
    """An LSTM over batches of sequences of different lengths, in one or both directions, that never reads padding.

    As `GRUEncoder`; its final state is the pair of states and cells, each (layers, B, c). The parameters are those of
    `torch.nn.LSTM`, under `lstm.`. Hochreiter, Schmidhuber, "Long short-term memory" (1997), with forget gates.

    Args:
        hidden_size: features of a direction's state.
        num_layers: LSTM layers on top of each other.
        bidirectional: whether a second LSTM reads backwards; its features follow those of the first.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        seed: where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Attributes:
        output_size: features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import LSTMEncoder
        >>> outputs, (state, cell) = LSTMEncoder(5)(np.ones((2, 7, 3)), lengths=np.array([7, 4]))
        >>> tuple(outputs.shape), tuple(cell.shape)
        ((2, 7, 10), (1, 2, 10))
    """

    gates, part = 4, "lstm"


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
        hidden_size: features of a state, h; the score's queries have as many.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: GRU cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.
        seed: where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import AttentionalGRU, scores
        >>> decoder = AttentionalGRU(5, scores.Additive(11))
        >>> memory = decoder.prepare(np.ones((2, 13, 7), np.float32), np.array([13, 4]))
        >>> outputs, contexts, weights, state = decoder(np.ones((2, 6, 3)), memory, np.zeros((1, 2, 5)))
        >>> tuple(outputs.shape), tuple(contexts.shape), weights, tuple(state.shape)
        ((2, 6, 5), (2, 6, 7), None, (1, 2, 5))
    """

    gates = 3


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
        hidden_size: features of a state, h; the score's queries have as many.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: LSTM cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before. The state before the
            first step is then what `begin` makes.
        seed: where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import AttentionalLSTM, scores
        >>> decoder, zeros = AttentionalLSTM(5, scores.Bilinear()), np.zeros((1, 2, 5))
        >>> outputs, contexts, weights, (state, cell) = decoder(np.ones((2, 6, 3)), np.ones((2, 13, 7)), (zeros, zeros))
        >>> tuple(outputs.shape), tuple(cell.shape)
        ((2, 6, 5), (1, 2, 5))
    """

    gates = 4
