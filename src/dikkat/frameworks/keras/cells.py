"""Recurrent cells: their arithmetic, and their parameters."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from dikkat.frameworks.contract.recurrent import GATES
from dikkat.frameworks.keras.blocks import Block


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


class Cells(Block):
    """The parameters of a stack of cells, under the names and in the layouts of `torch.nn.GRU` and `torch.nn.LSTM`."""

    def add_cells(self, mode: str, hidden_size: int, columns: Sequence[int], ends: Sequence[str] = ("",)) -> None:
        """Add each layer's weights.

        Args:
            mode: "gru" or "lstm".
            hidden_size: Features of a state, h.
            columns: Features of each layer's inputs.
            ends: Of the names, one for each direction.
        """
        bound = 1 / math.sqrt(hidden_size)
        for layer, width in enumerate(columns):
            shapes = {"weight_ih": (width,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for end in ends:
                for name, rest in shapes.items():
                    full = f"{name}_l{layer}{end}"
                    weight = self.add_weight(
                        shape=(GATES[mode] * hidden_size, *rest),
                        initializer=keras.initializers.RandomUniform(-bound, bound),
                        name=full,
                    )
                    setattr(self, full, weight)

    def weight(self, name: str, layer: int, end: str = "") -> Any:
        """A weight's value, in the dtype in which it is computed with."""
        return getattr(self, f"{name}_l{layer}{end}").value
