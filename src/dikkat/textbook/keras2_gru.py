"""Gated recurrent units of Keras 2's cells, whose steps run without a call of a layer each."""

from collections.abc import Sequence
from typing import Any

from dikkat.textbook.keras2 import tf
from dikkat.textbook.skeleton import Layer, Tensor

__all__ = ["GRU", "advance", "cells", "gates"]


def cells(num_hiddens: int, inputs: Sequence[int]) -> list[Layer]:
    """A cell for each layer, with its weights: for inputs of so many features each."""
    made = [tf.keras.layers.GRUCell(num_hiddens) for _ in inputs]
    for cell, features in zip(made, inputs, strict=True):
        cell.build((None, features))
    return made


def gates(cell: Layer, inputs: Tensor) -> Tensor:
    """The inputs' share of a cell's gates, for all steps at once: it does not depend on the state."""
    return inputs @ cell.kernel + cell.bias[0]


def advance(cell: Layer, gates: Tensor, state: Tensor) -> Tensor:
    """One step of a cell, from the inputs' share of its gates: Keras's order is update, reset, candidate."""
    update, reset, candidate = tf.split(gates, 3, -1)
    inner_update, inner_reset, inner = tf.split(state @ cell.recurrent_kernel + cell.bias[1], 3, -1)
    kept = tf.sigmoid(update + inner_update)
    return kept * state + (1 - kept) * tf.tanh(candidate + tf.sigmoid(reset + inner_reset) * inner)


class GRU(tf.keras.layers.Layer):
    """A GRU of several layers over (steps, batch, features), the second generation's layout.

    Args:
        num_hiddens: Features of a state.
        num_layers: Layers.
        dropout: The probability with which a feature is dropped between layers, in training.
        **kwargs: Those of every Keras layer.

    Source: Cho et al. 2014, section 2.3, with the reset gate after the recurrent product.
    """

    def __init__(self, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_hiddens, self.num_layers = num_hiddens, num_layers
        self.dropout = tf.keras.layers.Dropout(dropout)

    def build(self, shape: Any) -> None:
        """Make the weights, which depend on the inputs' features."""
        self.cells = cells(self.num_hiddens, [shape[-1], *[self.num_hiddens] * (self.num_layers - 1)])
        super().build(shape)

    def call(
        self, X: Tensor, state: Sequence[Tensor] | None = None, valid_len: Tensor | None = None, training: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run over all steps.

        Args:
            X: (steps, batch, features).
            state: Before the first step, (batch, num_hiddens) a layer; None: zeros.
            valid_len: (batch,) integers: from there on the state stays and the outputs are 0. None: all count.
            training: Whether features are dropped.

        Returns:
            The top layer's states (steps, batch, num_hiddens), and each layer's last.
        """
        counts = None if valid_len is None else tf.sequence_mask(valid_len, X.shape[0])[..., None]
        before = [tf.zeros((tf.shape(X)[1], self.num_hiddens), X.dtype)] * self.num_layers if state is None else state
        last = []
        for layer, (cell, now) in enumerate(zip(self.cells, before, strict=True)):
            X = self.dropout(X, training=training) if layer else X
            after = []
            for step, own in enumerate(tf.unstack(gates(cell, X))):
                moved = advance(cell, own, now)
                now = moved if counts is None else tf.where(counts[:, step], moved, now)
                after.append(now)
            X = tf.stack(after)
            last.append(now)
        return X if counts is None else tf.where(tf.transpose(counts, (1, 0, 2)), X, 0.0), last
