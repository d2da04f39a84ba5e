"""Arithmetic shared by implementations: profiles, products, sums without hidden pairs, and random bits of dropout."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dikkat._core.problem import Problem
from dikkat._engine.pytorch_state import can_read_values
from dikkat.scores import Profile

_WIDE_PRODUCTS = "dtype" in torch.ops.aten.bmm.overloads()  # from PyTorch 2.8 on


def weighted_sum(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return Σ_h v_h t_h: hidden (..., n, m, h), weight (..., h), with equal numbers of leading dimensions."""
    if weight.numel() == weight.shape[-1]:  # a shared weight needs one matrix-vector product
        return hidden @ (weight if weight.ndim == 1 else weight.reshape(-1))
    return (hidden @ weight[..., None, :, None]).squeeze(-1)


def cap(problem: Problem, product: Tensor) -> Tensor:
    """Return c·tanh(a / c) of inner products a; a itself if the score has no cap."""
    return (product / problem.softcap).tanh() * problem.softcap if problem.softcap else product


def farthest(features: int, dtype: torch.dtype) -> float:
    """Return the largest coordinate for which (2x)², summed over the features, does not overflow."""
    return 0.49 * math.sqrt(torch.finfo(dtype).max / max(1, features))


def clip(problem: Problem, side: Tensor) -> Tensor:
    """Clip a Gaussian's coordinates so that all squares are finite, and a distant query keeps weights above 0."""
    if problem.pair != "distance" or problem.profile != "gaussian" or problem.finite:
        return side
    limit = farthest(side.shape[-1], side.dtype)
    return side.clamp(-limit, limit)


def log_profile(profile: Profile, square: Tensor) -> Tensor:
    """Return g(s): the logarithm of a kernel of the squared scaled distance s; −∞ outside its support.

    The comparisons propagate NaN, and the inner `where`s keep the outer branch's gradient finite.
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
    """Return dg/ds; 0 outside the support, and at s = 0 for the triangular kernel, which has no slope there."""
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
    """Return Σ_j w_ij v_j; a NaN or ∞ in a value makes that feature NaN, but only in rows that see the value.

    `visible` broadcasts to the weights (..., n, m), which are 0 for hidden pairs; None for a plain product.
    """
    if visible is None:
        return multiply(weights, value)
    broken = ~torch.isfinite(value)
    pairs = visible.to(weights.dtype).expand(*visible.shape[:-2], *weights.shape[-2:])
    broken_seen = multiply(pairs, broken.to(weights.dtype))
    return multiply(weights, value.masked_fill(broken, 0.0)).masked_fill(broken_seen > 0, math.nan)


def must_exclude(problem: Problem, *grads: Tensor) -> bool:
    """Return whether sums must leave out hidden pairs one by one: rows see different keys, and a number is not finite.

    True on devices, where values are not read.
    """
    restrictions = problem.restrictions
    by_support = problem.pair == "distance" and problem.profile != "gaussian"
    if not (restrictions.vary_by_row() or by_support):
        return False
    operands = grads if problem.finite else (problem.query, problem.key, problem.value, *grads)
    if not can_read_values(*operands):
        return True
    # A sum is finite only if all numbers are, and takes a twentieth of the time; sums of finite numbers may overflow.
    return not all(bool(t.sum().isfinite()) or bool(t.isfinite().all()) for t in operands)


def random_bits(seeds: Tensor, index: Tensor) -> Tensor:
    """Return Wellons' hash `lowbias32` of (seed, index), keyed by both halves of the seed: a backward pass repeats it.

    Only the low 32 bits of a product count, so int64 may wrap.
    """
    low = 0xFFFFFFFF
    bits = (index * 0x9E3779B1 + seeds) & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B + (seeds >> 32)) & low
    return bits ^ (bits >> 16)


def derive_seeds(seeds: Tensor, index: Tensor) -> Tensor:
    """Return a 63-bit seed for each (seed, index)."""
    return (random_bits(seeds, 2 * index) << 31) ^ random_bits(seeds, 2 * index + 1)


def dropout_scale(problem: Problem, rows: slice | Tensor = slice(None), cols: slice = slice(None)) -> Tensor | None:
    """Return the dropout factors of a tile's weights, 0 or 1/(1 − p), (..., rows, cols). None without dropout.

    The factors depend only on seed, batch element, row and key, not on tiles or implementations.
    """
    if problem.seeds is None:
        return None
    (threshold, scale), seeds_by_row = dropout_numbers(problem.dropout), row_seeds(problem.seeds, problem)[..., rows]
    key = torch.arange(problem.restrictions.keys, device=problem.query.device)[cols]
    return (random_bits(seeds_by_row[..., None], key) >= threshold).to(problem.dtype) * scale


def row_seeds(seeds: Tensor, problem: Problem) -> Tensor:
    """Return a seed for each row, (..., n), derived from the seeds of batch elements."""
    return derive_seeds(seeds[..., None], torch.arange(problem.restrictions.queries, device=seeds.device))


def dropout_numbers(dropout: float) -> tuple[int, float]:
    """Return the smallest random number for which a weight is kept, and the factor of kept weights."""
    return int(dropout * 2**32), 1.0 / (1.0 - dropout) if dropout < 1 else 0.0


def product(a: Tensor, b: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
    """Return a @ b in the dtype `kind`, summed in float32."""
    if a.dtype == kind and (a.is_cuda or kind == torch.float32):
        return torch.bmm(a, b)
    if a.is_cuda and kind == torch.float32 and _WIDE_PRODUCTS:
        return torch.bmm(a, b, out_dtype=kind)
    return torch.bmm(a.float(), b.float()).to(kind)


def flat(tensor: Tensor, lead: torch.Size, trailing: int = 2) -> Tensor:
    """Flatten all leading dimensions to one, expanding them to `lead` first."""
    if tensor.shape[: tensor.ndim - trailing] != lead:
        tensor = tensor.expand(*lead, *tensor.shape[tensor.ndim - trailing :])
    if len(lead) != 1:
        tensor = tensor.reshape(lead.numel(), *tensor.shape[tensor.ndim - trailing :])
    return tensor.contiguous()
