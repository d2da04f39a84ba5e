"""Encoders, which never read padding."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from dikkat.frameworks.contract.recurrent import check_inputs
from dikkat.frameworks.keras.backend import kind, product, shape_of, wide
from dikkat.frameworks.keras.blocks import Block, registered
from dikkat.frameworks.keras.cells import Cells, gru, lstm
from dikkat.frameworks.keras.sequences import carried_on, real_positions, scan
from dikkat.recurrent.stack import check_stack


class _Network(Cells):
    """The recurrent network of an encoder."""

    def __init__(self, mode: str, hidden_size: int, num_layers: int, ends: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.mode, self.hidden_size, self.num_layers, self.ends = mode, hidden_size, num_layers, tuple(ends)

    def build(self, input_shape: Sequence[Any]) -> None:
        """Make the weights."""
        columns = [input_shape[-1]] + [len(self.ends) * self.hidden_size] * (self.num_layers - 1)
        self.add_cells(self.mode, self.hidden_size, columns, self.ends)
        self.built = True

    def run(self, below: Any, layer: int, goes_on: Any) -> tuple[Any, list[Any]]:
        """One layer, both directions at once.

        Args:
            below: (B, S, c'), the layer's inputs.
            layer: Which one.
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
        carry = (zeros,) if self.mode == "gru" else (zeros, zeros)

        def step(carry: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
            recurrent = ops.cast(product(ops.cast(carry[0], narrow), recurrent_kernel), wide(below)) + recurrent_bias
            after = (gru(row[0], recurrent, *carry),) if self.mode == "gru" else lstm(row[0], recurrent, carry[1])
            return after if goes_on is None else carried_on(row[1], after, carry)

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


class _Encoder(Block):
    """A recurrent network over sequences of different lengths: what a GRU and an LSTM share."""

    arguments = ("hidden_size", "num_layers", "bidirectional", "dropout", "seed")
    mode: ClassVar[str]  # also the network's name among the parameters

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
        network = _Network(self.mode, hidden_size, num_layers, ends, dtype=self.dtype_policy, name=self.mode)
        setattr(self, self.mode, network)

    def build(self, input_shape: Sequence[Any]) -> None:
        """Make the weights, for inputs (B, S, e)."""
        check_inputs(tuple(input_shape), None, "positions", least=0)
        self._network.build(input_shape)
        self.input_size = input_shape[-1]
        self.built = True

    @property
    def _network(self) -> _Network:
        return getattr(self, self.mode)

    def call(self, inputs: Any, lengths: Any = None, mask: Any = None, training: bool | None = None) -> tuple[Any, Any]:
        """Encode a batch.

        Args:
            inputs: (B, S, e) floating point, padded to S positions.
            lengths: (B,) integers from 1 to S. None: `mask` says it, or all sequences have S positions.
            mask: (B, S) booleans, True at the real positions, which come before all others: Keras passes on the mask
                that an embedding made, for instance.
            training: Whether features are dropped between layers.

        Returns:
            The outputs (B, S, c), 0 behind each length; and each layer's final state (layers, B, c), that of the
            backward direction after that of the forward one, from which a decoder can start; of an LSTM the pair of
            its states and its cells.

        Raises:
            TypeError: Lengths that are not integers, or a mask that is not of booleans.
            ValueError: Inputs that are not (B, S, e), a length outside 1 … S, or a mask with padding before a real
                position, where values can be read.
        """
        check_inputs(shape_of(inputs), self.input_size, "positions", least=0)
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
        return (previous_mask, *[None] * (1 if self.mode == "gru" else 2))

    def compute_output_spec(self, inputs: Any, lengths: Any = None, mask: Any = None, training: Any = None) -> Any:
        """Shapes and dtypes of what a call returns."""
        batch, positions = inputs.shape[:2]
        state = keras.KerasTensor((self.num_layers, batch, self.output_size), self.compute_dtype)
        outputs = keras.KerasTensor((batch, positions, self.output_size), self.compute_dtype)
        return outputs, state if self.mode == "gru" else (state, keras.KerasTensor(state.shape, state.dtype))

    def compute_output_shape(self, input_shape: Sequence[Any]) -> tuple[Any, Any]:
        """Shapes of the outputs and of the final states, of an LSTM two of them."""
        batch, positions = input_shape[:2]
        state = (self.num_layers, batch, self.output_size)
        return (batch, positions, self.output_size), state if self.mode == "gru" else (state, state)


@registered
class GRUEncoder(_Encoder):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final states depend on its own positions alone: the backward direction starts at the last
    real position, and whatever stands behind it, even NaN, has no effect. In half precision the products are narrow,
    and the states, on which all later ones build, float32.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        hidden_size: Features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: Whether a second GRU reads backwards; its features follow those of the first.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import GRUEncoder
        >>> outputs, state = GRUEncoder(5, num_layers=2)(np.ones((2, 7, 3)), lengths=np.array([7, 4]))
        >>> tuple(outputs.shape), tuple(state.shape)
        ((2, 7, 10), (2, 2, 10))
    """

    mode = "gru"


@registered
class LSTMEncoder(_Encoder):
    """An LSTM over batches of sequences of different lengths, in one or both directions, that never reads padding.

    As `GRUEncoder`; its final state is the pair of states and cells, each (layers, B, c). The parameters are those of
    `torch.nn.LSTM`, under `lstm.`. Hochreiter, Schmidhuber, "Long short-term memory" (1997), with forget gates.

    Args:
        hidden_size: Features of a direction's state.
        num_layers: LSTM layers on top of each other.
        bidirectional: Whether a second LSTM reads backwards; its features follow those of the first.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import numpy as np
        >>> from dikkat.frameworks.keras import LSTMEncoder
        >>> outputs, (state, cell) = LSTMEncoder(5)(np.ones((2, 7, 3)), lengths=np.array([7, 4]))
        >>> tuple(outputs.shape), tuple(cell.shape)
        ((2, 7, 10), (1, 2, 10))
    """

    mode = "lstm"
