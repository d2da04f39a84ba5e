"""Recurrent cells in plain PyTorch, as `torch.nn.GRU` and `torch.nn.LSTM`: one step of one, and a stack of them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.recurrent.fused.stack import Layer

FUSED = {"cuda"}  # devices on which a cell's pointwise part is one kernel of PyTorch's
# The gradients of both sides of the gates, of the state (apart from its share in the gates) and of the cell before.
Undone = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
# A cell's step: the new state and an LSTM's new cell, (B, h) each, and the step's backward of their gradients.
Move = tuple[Tensor, Tensor | None, Callable[[Tensor, Tensor | None], Undone]]


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


def move(input_gates: Tensor, recurrent_gates: Tensor, state: Tensor, cell: Tensor | None) -> Move:
    """Take a step of `gru`, or with a cell of `lstm`; one kernel if the device has it and no gradient is recorded."""
    fuses = state.device.type in FUSED and not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    aten = torch.ops.aten
    if cell is None:
        if fuses:
            new, kept = aten._thnn_fused_gru_cell(input_gates, recurrent_gates, state)
            return new, None, lambda grad, _: (*aten._thnn_fused_gru_cell_backward(grad, kept, False)[:3], None)
        sides = input_gates, recurrent_gates, state, None, None
        new = gru(*sides[:3])
        return new, None, lambda grad, _: (*aten._thnn_differentiable_gru_cell_backward(grad, *sides)[:3], None)
    if fuses:
        new, after, kept = aten._thnn_fused_lstm_cell(input_gates, recurrent_gates, cell)

        def undo(grad: Tensor | None, by_cell: Tensor | None) -> Undone:
            gates, before, _ = aten._thnn_fused_lstm_cell_backward_impl(grad, by_cell, cell, after, kept, False)
            return gates, gates, None, before
    else:
        new, after = lstm(input_gates, recurrent_gates, cell)

        def undo(grad: Tensor | None, by_cell: Tensor | None) -> Undone:
            sides = input_gates, recurrent_gates, None, None, cell, after
            gates, _, before, *_ = aten._thnn_differentiable_lstm_cell_backward(grad, by_cell, *sides)
            return gates, gates, None, before

    return new, after, undo


class StackedCells(nn.Module):
    """Cells on top of each other, of which the first takes an input and a context: their weights, and one step."""

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
