"""Recurrent cells in plain PyTorch, as `torch.nn.GRU` and `torch.nn.LSTM`: one step of one, and a stack of them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.cpu.recurrence.launch import Layer


def gru(input_gates: Tensor, recurrent_gates: Tensor, state: Tensor) -> Tensor:
    """A GRU's new state from both sides of its gates, each (B, 3h) in the order r, z, n."""
    size = state.shape[-1]
    input_rz, input_n = input_gates.split([2 * size, size], dim=-1)
    recurrent_rz, recurrent_n = recurrent_gates.split([2 * size, size], dim=-1)
    reset, update = torch.sigmoid(input_rz + recurrent_rz).chunk(2, dim=-1)
    candidate = torch.tanh(torch.addcmul(input_n, reset, recurrent_n))
    return torch.lerp(candidate, state, update)


def lstm(input_gates: Tensor, recurrent_gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """An LSTM's new state and cell from both sides of its gates, each (B, 4h) in the order i, f, g, o."""
    into, forget, candidate, out = (input_gates + recurrent_gates).chunk(4, dim=-1)
    cell = torch.addcmul(torch.sigmoid(forget) * cell, torch.sigmoid(into), torch.tanh(candidate))
    return torch.sigmoid(out) * torch.tanh(cell), cell


class StackedCells(nn.Module):
    """Cells on top of each other, of which the first takes an input and a context: their weights, and one step.

    Args:
        gates: Gates of a cell, G: 3 for a GRU, 4 for an LSTM.
        input_size: Features of an input, e.
        hidden_size: Features of a state, h.
        context_size: Features of a context, c.
        num_layers: Cells on top of each other.
    """

    def __init__(self, gates: int, input_size: int, hidden_size: int, context_size: int, num_layers: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.context_size = input_size, hidden_size, context_size
        self.num_layers = num_layers
        bound = 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = input_size + context_size if layer == 0 else hidden_size
            shapes = {"weight_ih": (columns,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for name, rest in shapes.items():
                values = torch.empty(gates * hidden_size, *rest).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))

    def part(self, name: str, layer: int) -> Tensor:
        """One parameter of a layer, which pruning and the like may compute."""
        weight: Tensor = getattr(self, f"{name}_l{layer}")
        return weight

    def first_gates(self, inputs: Tensor) -> Tensor:
        """The inputs' share of the first layer's gates, which does not depend on the state: one product for all."""
        return F.linear(inputs, self.part("weight_ih", 0)[:, : self.input_size], self.part("bias_ih", 0))

    def context_weight(self) -> Tensor:
        """The matrix (G·h, c) that makes the context's share of the first layer's gates."""
        return self.part("weight_ih", 0)[:, self.input_size :]

    def layer_weights(self) -> list[Layer]:
        """The weights as the compiled recurrence takes them; the first layer's input side is not among them."""
        names = ("weight_hh", "bias_hh", "weight_ih", "bias_ih")
        layers = ([self.part(name, layer) for name in names] for layer in range(self.num_layers))
        return [Layer(*(weights[:2] if layer == 0 else weights)) for layer, weights in enumerate(layers)]

    def advance(
        self, first_gates: Tensor, hidden: Sequence[Tensor], cell: Sequence[Tensor] | None, dropped: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """All layers one step on.

        Args:
            first_gates: The complete input side of the first layer's gates, (B, G·h).
            hidden: Each layer's state (B, h).
            cell: Each layer's cell (B, h), of an LSTM.
            dropped: What the features between layers are multiplied by, (layers − 1, B, h).
        """
        new: list[Tensor] = []
        new_cells: list[Tensor] = []
        input_gates = first_gates
        for layer in range(self.num_layers):
            if layer:
                below = new[-1] if dropped is None else new[-1] * dropped[layer - 1]
                input_gates = F.linear(below, self.part("weight_ih", layer), self.part("bias_ih", layer))
            recurrent = F.linear(hidden[layer], self.part("weight_hh", layer), self.part("bias_hh", layer))
            # Under autocast the products are narrow; the states, on which all later ones build, stay as they are.
            input_gates, recurrent = (each.to(hidden[layer].dtype) for each in (input_gates, recurrent))
            if cell is None:
                new.append(gru(input_gates, recurrent, hidden[layer]))
            else:
                state, after = lstm(input_gates, recurrent, cell[layer])
                new.append(state)
                new_cells.append(after)
        return new, new_cells if cell is not None else None
