"""Encoders as Gluon blocks, which never read padding: names, shapes, returns and parameters as in PyTorch."""

from typing import Any

import numpy
from mxnet import autograd, np

from dikkat.frameworks.contract.recurrent import GATES
from dikkat.frameworks.mxnet.attention import drop
from dikkat.frameworks.mxnet.backend import Array, product, where
from dikkat.frameworks.mxnet.blocks import Block
from dikkat.frameworks.mxnet.cells import Cells, lengths_of
from dikkat.recurrent.stack import check_stack

_SHUT = 1e6  # a gate's sigmoid of this is 1, and of its negative 0, whatever else is added to it


class _Network(Cells):
    """Layers over whole sequences, by MXNet's fused operator, which stands still at positions that are not real.

    The operator itself knows lengths on one kind of device only. But a gate that is shut keeps the state as it is,
    exactly: so each layer reads one more feature, 1 behind a sequence's end, that shuts its gates.
    """

    def run(self, inputs: Array, real: Any, dropout: float) -> tuple[Array, list[Array]]:
        """(B, S, e), real positions (B, S) -> (B, S, c), 0 where not real; final states (layers, B, c), and cells."""
        like = {"dtype": inputs.dtype, "ctx": inputs.ctx}
        beyond = np.array(~real[..., None], **like)
        last = np.array(numpy.arange(real.shape[1]) == real.sum(1)[:, None] - 1, **like)
        zeros = np.zeros((self.directions, len(inputs), self.hidden_size), **like)
        shut, below, ends = self._shut(inputs), inputs, []
        for layer in range(self.num_layers):
            if layer and autograd.is_training():
                below = drop(below, dropout)
            outputs, _, *cells = self.advance(
                np.concatenate([below, beyond], axis=-1).swapaxes(0, 1),
                self.packed(range(layer, layer + 1), shut),
                [zeros] * (GATES[self.mode] - 2),
            )
            below = where(real[..., None], outputs.swapaxes(0, 1), 0.0)
            states = product(np.expand_dims(last, 1), below).reshape(len(real), -1)
            if self.directions == 2:  # backwards, the first position is the last
                states = np.concatenate([states[:, : self.hidden_size], below[:, 0, self.hidden_size :]], axis=-1)
            ends.append([states, *(each.swapaxes(0, 1).reshape(len(inputs), -1) for each in cells)])
        return below, [np.stack(each) for each in zip(*ends, strict=True)]

    def _shut(self, like: Array) -> Array:
        """The column of the gates for a position that is not real: a GRU's z is 1; an LSTM's i is 0 and its f is 1."""
        column = numpy.zeros((GATES[self.mode], self.hidden_size, 1))
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
            TypeError: Inputs of another dtype than the parameters, or lengths that are no array of numbers.
            ValueError: Inputs that are not (B, S, e), or a length outside 1 … S.
        """
        network = getattr(self, self.mode)
        network.check_inputs(inputs, network.inputs, "positions")
        real = numpy.arange(inputs.shape[1]) < lengths_of(lengths, inputs, "positions")[:, None]
        outputs, final = network.run(where(real[..., None], inputs, 0.0), real, self.dropout)
        return outputs, final[0] if len(final) == 1 else tuple(final)


class GRUEncoder(_Encoder):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final states depend on its own `length` positions alone: the backward direction starts at
    the last real position, and whatever stands behind it, even NaN, has no effect.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        input_size: Features of an input, e.
        hidden_size: Features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: Whether a second GRU reads backwards; its features follow those of the first.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

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
        input_size: Features of an input, e.
        hidden_size: Features of a direction's state.
        num_layers: LSTM layers on top of each other.
        bidirectional: Whether a second LSTM reads backwards; its features follow those of the first.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

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
