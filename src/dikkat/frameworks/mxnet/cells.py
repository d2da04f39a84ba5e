"""The parameters of recurrent cells, and MXNet's fused operator, which computes with them."""

import math
from typing import Any

from mxnet import init, np, npx

from dikkat.frameworks.contract.checks import check_rank
from dikkat.frameworks.contract.recurrent import GATES, check_inputs, check_lengths
from dikkat.frameworks.mxnet.backend import Array, check_floats, kind, whole_numbers
from dikkat.frameworks.mxnet.blocks import Block

ENDS = ("", "_reverse")  # of the names of parameters, by direction


class Cells(Block):
    """A stack of cells with the parameters of `torch.nn.GRU` or `torch.nn.LSTM`.

    Args:
        mode: "gru" or "lstm".
        inputs: Features of an input.
        hidden_size: Features of a direction's state.
        num_layers: Layers.
        directions: One or two.
    """

    def __init__(self, mode: str, inputs: int, hidden_size: int, num_layers: int, directions: int = 1) -> None:
        super().__init__()
        self.mode, self.hidden_size, self.num_layers = mode, hidden_size, num_layers
        self.directions, self.inputs = directions, inputs
        gates, bound = GATES[mode] * hidden_size, 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = inputs if layer == 0 else directions * hidden_size
            for end in ENDS[:directions]:
                self.make(f"weight_ih_l{layer}{end}", (gates, columns), init.Uniform(bound))
                self.make(f"weight_hh_l{layer}{end}", (gates, hidden_size), init.Uniform(bound))
                for name in ("bias_ih", "bias_hh"):
                    self.make(f"{name}_l{layer}{end}", (gates,), init.Uniform(bound))

    def packed(self, layers: range, column: Array | None = None) -> Array:
        """The parameters of some layers as one array, as the fused operator takes them.

        Args:
            layers: Which.
            column: (G·h, 1), the weights of one more feature of the inputs; None: there is none.
        """
        weights, biases = [], []
        for layer in layers:
            for end in ENDS[: self.directions]:
                ih, hh, *both = (
                    getattr(self, f"{name}_l{layer}{end}").data()
                    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                )
                weights += [ih if column is None else np.concatenate([ih, column], axis=1), hh]
                biases += both
        return np.concatenate(weights + biases, axis=None)

    def advance(self, inputs: Array, packed: Array, before: list[Array]) -> list[Array]:
        """Steps of the layers whose parameters were packed.

        Args:
            inputs: (T, B, features).
            packed: From `packed`.
            before: The states (layers · directions, B, h), and of an LSTM the cells.

        Returns:
            The top layer's states (T, B, directions · h), the last states, and of an LSTM the last cells.
        """
        found: list[Array] = npx.rnn(
            inputs,
            packed,
            *before,
            state_size=self.hidden_size,
            num_layers=len(before[0]) // self.directions,
            bidirectional=self.directions == 2,
            mode=self.mode,
            state_outputs=True,
        )
        return found

    def check_inputs(self, inputs: Array, features: int, steps: str) -> None:
        """Whether inputs are (B, steps, features), of the parameters' dtype.

        Raises:
            TypeError: Another dtype.
            ValueError: Another shape.
        """
        check_floats("inputs", inputs)
        check_rank("inputs", inputs.shape)
        check_inputs(inputs.shape, features, steps)
        own = kind(self.weight_hh_l0.data())
        if kind(inputs) != own or own == "float16":
            raise TypeError(
                f"inputs: got dtype {kind(inputs)}; expected float32 or float64, as the parameters are ({own})"
            )


def lengths_of(lengths: Array, inputs: Array, of: str) -> Any:
    """Lengths of sequences as NumPy's int64, (B,), each from 1 to the positions.

    Raises:
        TypeError: No array of numbers.
        ValueError: They do not fit.
    """
    numbers = whole_numbers("lengths", lengths)
    check_lengths("lengths", numbers.shape, numbers, inputs.shape, f"{of} of inputs", least=1)
    return numbers
