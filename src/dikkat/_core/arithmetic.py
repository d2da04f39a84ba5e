"""The arithmetic that implementations share: profiles, products, sums that leave hidden pairs out, dropout's bits."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dikkat._core.problem import Problem
from dikkat._engine.pytorch_state import can_read_values
from dikkat.scores import Profile

_WIDE_PRODUCTS = "dtype" in torch.ops.aten.bmm.overloads()  # from PyTorch 2.8 on


def weighted_sum(hidden: Tensor, weight: Tensor) -> Tensor:
    """Σ_h v_h t_h: hidden (..., n, m, h), weight (..., h), of as many leading dimensions."""
    if weight.numel() == weight.shape[-1]:  # one weight for all is one matrix-vector product
        return hidden @ (weight if weight.ndim == 1 else weight.reshape(-1))
    return (hidden @ weight[..., None, :, None]).squeeze(-1)


def cap(problem: Problem, product: Tensor) -> Tensor:
    """c·tanh(a / c) of inner products a, where the score has such a cap."""
    return (product / problem.softcap).tanh() * problem.softcap if problem.softcap else product


def farthest(features: int, dtype: torch.dtype) -> float:
    """The largest coordinate whose squared distances are finite: neither (2x)² nor its sum over features overflows."""
    return 0.49 * math.sqrt(torch.finfo(dtype).max / max(1, features))


def clip(problem: Problem, side: Tensor) -> Tensor:
    """Clip a Gaussian's coordinates to where all squares are finite, so that no row is empty for being far away."""
    if problem.pair != "distance" or problem.profile != "gaussian" or problem.finite:
        return side
    limit = farthest(side.shape[-1], side.dtype)
    return side.clamp(-limit, limit)


def log_profile(profile: Profile, square: Tensor) -> Tensor:
    """g(s): the logarithm of a kernel as a function of the squared scaled distance; −∞ outside its support.

    The comparisons are so that NaN stays NaN, and the inner `where`s keep the outer branch's gradient finite.
    """
    if profile == "gaussian":
        return -0.5 * square
    if profile == "boxcar":
        return torch.where(square > 1, -math.inf, 0.0 * square)
    if profile == "triangular":
        at_zero = square == 0
        square = torch.where(at_zero, 0.0, torch.where(at_zero, 1.0, square).sqrt())
    outside = square >= 1
    return torch.where(outside, -math.inf, torch.log1p(-torch.where(outside, 0.0, square)))


def profile_slope(profile: Profile, square: Tensor) -> Tensor:
    """dg/ds; 0 outside the support, and at s = 0 for the triangular kernel, whose tip has no slope."""
    if profile == "gaussian":
        return torch.full_like(square, -0.5)
    if profile == "boxcar":
        return torch.zeros_like(square)
    if profile == "epanechnikov":
        return torch.where(square >= 1, 0.0, -1 / torch.where(square >= 1, 0.5, 1 - square))
    flat = (square == 0) | (square >= 1)
    radius = torch.where(flat, 0.25, square).sqrt()
    return torch.where(flat, 0.0, -0.5 / (radius * (1 - radius)))


def pool(
    weights: Tensor, value: Tensor, visible: Tensor | None, multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Tensor:
    """Σ_j w_ij v_j; a NaN or ∞ in a value makes that feature NaN, but only in the rows that see it.

    `visible` broadcasts to the weights (..., n, m), which are 0 where hidden; None for a plain product.
    """
    if visible is None:
        return multiply(weights, value)
    broken = ~torch.isfinite(value)
    pairs = visible.to(weights.dtype).expand(*visible.shape[:-2], *weights.shape[-2:])
    met = multiply(pairs, broken.to(weights.dtype))
    return multiply(weights, value.masked_fill(broken, 0.0)).masked_fill(met > 0, math.nan)


def must_exclude(problem: Problem, *grads: Tensor) -> bool:
    """Whether sums must leave out hidden pairs one by one: some rows see less, and a number is not finite.

    True on devices, whose values are not looked at.
    """
    restrictions = problem.restrictions
    by_support = problem.pair == "distance" and problem.profile != "gaussian"
    if not (restrictions.vary_by_row() or by_support):
        return False
    operands = grads if problem.finite else (problem.query, problem.key, problem.value, *grads)
    if not can_read_values(*operands):
        return True
    return not all(bool(torch.isfinite(t).all()) for t in operands)


def random_bits(seeds: Tensor, index: Tensor) -> Tensor:
    """Wellons' `lowbias32` of (seed, index), keyed by both halves of the seed: a backward pass can ask again.

    Only the low 32 bits of a product count, so int64 may wrap.
    """
    low = 0xFFFFFFFF
    bits = (index * 0x9E3779B1 + seeds) & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B + (seeds >> 32)) & low
    return bits ^ (bits >> 16)


def derive_seeds(seeds: Tensor, index: Tensor) -> Tensor:
    """A 63-bit seed for each (seed, index)."""
    return (random_bits(seeds, 2 * index) << 31) ^ random_bits(seeds, 2 * index + 1)


def dropout_scale(problem: Problem, rows: slice = slice(None), cols: slice = slice(None)) -> Tensor | None:
    """Factors of the weights of a tile under dropout: 0 or 1/(1 − p), (..., rows, cols). None without dropout.

    They depend only on the seed, the batch element, the row and the key: not on tiles or implementations.
    """
    if problem.seeds is None:
        return None
    (threshold, scale), by_row = dropout_numbers(problem.dropout), row_seeds(problem.seeds, problem)[..., rows]
    key = torch.arange(problem.restrictions.keys, device=problem.query.device)[cols]
    return (random_bits(by_row[..., None], key) >= threshold).to(problem.dtype) * scale


def row_seeds(seeds: Tensor, problem: Problem) -> Tensor:
    """A seed for each row, (..., n), from those of batch elements."""
    return derive_seeds(seeds[..., None], torch.arange(problem.restrictions.queries, device=seeds.device))


def dropout_numbers(dropout: float) -> tuple[int, float]:
    """The random number from which on a weight is kept, and the factor of kept weights."""
    return int(dropout * 2**32), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0


def product(a: Tensor, b: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
    """a @ b, summed in float32, in `kind`."""
    if a.dtype == kind and (a.is_cuda or kind == torch.float32):
        return torch.bmm(a, b)
    if a.is_cuda and kind == torch.float32 and _WIDE_PRODUCTS:
        return torch.bmm(a, b, out_dtype=kind)
    return torch.bmm(a.float(), b.float()).to(kind)


def flat(tensor: Tensor, lead: torch.Size, own: int = 2) -> Tensor:
    """One leading dimension in place of all of them."""
    if tensor.shape[: tensor.ndim - own] != lead:
        tensor = tensor.expand(*lead, *tensor.shape[tensor.ndim - own :])
    if len(lead) != 1:
        tensor = tensor.reshape(lead.numel(), *tensor.shape[tensor.ndim - own :])
    return tensor.contiguous()
