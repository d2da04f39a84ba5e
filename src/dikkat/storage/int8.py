r"""Weights in int8 with one scale for each row, as model files store them and the compiled search uses them.

A row's weights are $w_j \approx s\,q_j$ with whole $|q_j| \le 127$. The scale s is max|w| / 127, rounded up to 16
significant bits: so s·q, of at most 24 bits, is exact in float32, and quantising again gives the same numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MOST = 127
_BITS = 16


class Rows(NamedTuple):
    """A matrix of int8 numbers (R, C) and the scales of its rows (R,) float32."""

    numbers: Tensor
    scales: Tensor


def quantized(weight: Tensor) -> Rows:
    """Return a finite matrix (R, C) in int8; a row of zeros, or of numbers too small for a scale, becomes zeros.

    Example:
        >>> rows = quantized(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))
        >>> rows.numbers.tolist()
        [[127, -63], [0, 0]]
        >>> torch.equal(quantized(dequantized(rows)).numbers, rows.numbers)
        True
    """
    weight64 = weight.detach().double()
    peak = weight64.abs().amax(1) if weight64.shape[1] else weight64.new_zeros(len(weight64))
    mantissa, exponent = torch.frexp(peak / MOST)
    scales = torch.ldexp(torch.ceil(torch.ldexp(mantissa, torch.tensor(_BITS))), exponent - _BITS)
    # A smaller scale would make s·q subnormal in float32, with fewer digits.
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, 0.0, scales)
    inverse_scales = torch.where(scales == 0, 0.0, 1 / scales).unsqueeze(1)
    return Rows((weight64 * inverse_scales).round().to(torch.int8), scales.float())


def dequantized(rows: Rows) -> Tensor:
    """Return the float32 matrix (R, C) of scale × number, exactly."""
    return rows.numbers.float() * rows.scales.unsqueeze(1)
