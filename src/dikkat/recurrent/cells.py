"""GRU and LSTM cells in plain PyTorch, equal to those of `torch.nn.GRU` and `torch.nn.LSTM`: a step, and a stack."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.recurrent.fused.stack import Layer

FUSED_DEVICES = {"cuda"}  # devices on which PyTorch has one kernel for a cell's pointwise operations
# The gradients of the input and the recurrent gates, of the old state (without its share in the gates) and old cell.
StepGradients = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
# The new state and an LSTM's new cell, (B, h) each; and the backward, a function of their gradients.
CellStep = tuple[Tensor, Tensor | None, Callable[[Tensor, Tensor | None], StepGradients]]


def gru(input_gates: Tensor, recurrent_gates: Tensor, state: Tensor) -> Tensor:
    """Return a GRU's new state (B, h) from the input and the recurrent gates, each (B, 3h) in the order r, z, n."""
    size = state.shape[-1]
    input_rz, input_n = input_gates.split([2 * size, size], dim=-1)
    recurrent_rz, recurrent_n = recurrent_gates.split([2 * size, size], dim=-1)
    reset, update = torch.sigmoid(input_rz + recurrent_rz).chunk(2, dim=-1)
    candidate = torch.tanh(torch.addcmul(input_n, reset, recurrent_n))
    return torch.lerp(candidate, state, update)


def lstm(input_gates: Tensor, recurrent_gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return an LSTM's new state and cell from input and recurrent gates, each (B, 4h) in the order i, f, g, o."""
    into, forget, candidate, out = (input_gates + recurrent_gates).chunk(4, dim=-1)
    cell = torch.addcmul(torch.sigmoid(forget) * cell, torch.sigmoid(into), torch.tanh(candidate))
    return torch.sigmoid(out) * torch.tanh(cell), cell


def step_cell(input_gates: Tensor, recurrent_gates: Tensor, state: Tensor, cell: Tensor | None) -> CellStep:
    """Take a step of `gru`, or with a `cell` of `lstm`; in one kernel if the device has it and nothing is recorded."""
    fuses = state.device.type in FUSED_DEVICES and not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    aten = torch.ops.aten
    if cell is None:
        if fuses:
            new, saved = aten._thnn_fused_gru_cell(input_gates, recurrent_gates, state)
            return new, None, lambda grad, _: (*aten._thnn_fused_gru_cell_backward(grad, saved, False)[:3], None)
        sides = input_gates, recurrent_gates, state, None, None
        new = gru(*sides[:3])
        return new, None, lambda grad, _: (*aten._thnn_differentiable_gru_cell_backward(grad, *sides)[:3], None)
    if fuses:
        new, new_cell, saved = aten._thnn_fused_lstm_cell(input_gates, recurrent_gates, cell)

        def step_backward(grad: Tensor | None, by_cell: Tensor | None) -> StepGradients:
            by_gates, by_old, _ = aten._thnn_fused_lstm_cell_backward_impl(grad, by_cell, cell, new_cell, saved, False)
            return by_gates, by_gates, None, by_old
    else:
        new, new_cell = lstm(input_gates, recurrent_gates, cell)

        def step_backward(grad: Tensor | None, by_cell: Tensor | None) -> StepGradients:
            sides = input_gates, recurrent_gates, None, None, cell, new_cell
            by_gates, _, by_old, *_ = aten._thnn_differentiable_lstm_cell_backward(grad, by_cell, *sides)
            return by_gates, by_gates, None, by_old

    return new, new_cell, step_backward


class StackedCells(nn.Module):
    """The weights of stacked cells; the first cell reads an input and a context."""

    def __init__(self, gates: int, input_size: int, hidden_size: int, context_size: int, num_layers: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.context_size = input_size, hidden_size, context_size
        self.num_layers = num_layers
        bound = 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = input_size + context_size if layer == 0 else hidden_size
            shapes = {"weight_ih": (columns,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for name, column_shape in shapes.items():
                values = torch.empty(gates * hidden_size, *column_shape).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))

    def part(self, name: str, layer: int) -> Tensor:
        """Return a parameter of a layer: an attribute, since pruning replaces parameters by computed tensors."""
        weight: Tensor = getattr(self, f"{name}_l{layer}")
        return weight

    def first_gates(self, inputs: Tensor) -> Tensor:
        """Return the inputs' part (..., G·h) of the first layer's gates: one product for all steps."""
        return F.linear(inputs, self.part("weight_ih", 0)[:, : self.input_size], self.part("bias_ih", 0))

    def context_weight(self) -> Tensor:
        """Return the matrix (G·h, c) that maps a context to its part of the first layer's gates."""
        return self.part("weight_ih", 0)[:, self.input_size :]

    def layer_weights(self) -> list[Layer]:
        """Return each layer's weights, without the first layer's input weight and bias."""
        names = ("weight_hh", "bias_hh", "weight_ih", "bias_ih")
        layers = ([self.part(name, layer) for name in names] for layer in range(self.num_layers))
        return [Layer(*(weights[:2] if layer == 0 else weights)) for layer, weights in enumerate(layers)]
