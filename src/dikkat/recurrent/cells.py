"""One step of a cell in plain PyTorch, from the two sides of its gates; as `torch.nn.GRU` and `torch.nn.LSTM`."""

import torch
from torch import Tensor


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
