r"""Weights in int8, one scale a row: the numbers that are stored, and that the compiled search multiplies with.

A row's weights are $w_j \approx s\,q_j$ with whole $|q_j| \le 127$. The scale s is max|w| / 127, rounded up to 16
significant bits: so s·q, of at most 24 bits, is a float32 without rounding, and what is quantised again is the same.
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
    """A matrix of finite numbers (R, C) in int8; a row of zeros, or of numbers too small for a scale, becomes zeros.

    Example:
        >>> rows = quantized(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))
        >>> rows.numbers.tolist()
        [[127, -63], [0, 0]]
        >>> torch.equal(quantized(dequantized(rows)).numbers, rows.numbers)
        True
    """
    wide = weight.detach().double()
    peak = wide.abs().amax(1) if wide.shape[1] else wide.new_zeros(len(wide))
    mantissa, exponent = torch.frexp(peak / MOST)
    scales = torch.ldexp(torch.ceil(torch.ldexp(mantissa, torch.tensor(_BITS))), exponent - _BITS)
    # Where s·q would leave the normal numbers of float32, whose digits are fewer.
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, 0.0, scales)
    by = torch.where(scales == 0, 0.0, 1 / scales).unsqueeze(1)
    return Rows((wide * by).round().to(torch.int8), scales.float())


def dequantized(rows: Rows) -> Tensor:
    """The matrix (R, C) float32 that int8 numbers stand for, exactly."""
    return rows.numbers.float() * rows.scales.unsqueeze(1)
