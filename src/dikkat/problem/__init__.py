"""One call, checked, hidden and projected: what every implementation receives, and what they share."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.masking import Restrictions, can_read_values
from dikkat.scores import Pair, Profile

_INF = float("inf")


class Result(NamedTuple):
    """What an implementation returns; `lse`, `tail` and `weights` (before dropout) where they were asked for."""

    mean: Tensor
    lse: Tensor | None
    weights: Tensor | None
    tail: Tensor | None = None


@dataclass(frozen=True)
class Problem:
    """One call as every implementation receives it: checked, projected, what nobody sees set to 0.

    All tensors have the same number of leading dimensions, which broadcast.

    Attributes:
        pair: The pair function.
        profile: The log-kernel g, where the pair function is `distance`.
        query: (..., n, h), projected.
        key: (..., m, h), projected.
        weight: (..., h): v, for `additive`.
        value: (..., m, d_v).
        limits: Who may see whom.
        lead: The leading dimensions of the result.
        dropout: The probability that a normalised weight is set to 0.
        seeds: (...) integers, one a batch element, where dropout is above 0.
        packed: The keys as `kernels.pack` keeps them for many calls, with the leading dimensions of `key`; or None.
        wants_state: Whether the log-sum-exp is asked for.
        wants_weights: Whether the weights are asked for.
    """

    pair: Pair
    profile: Profile
    query: Tensor
    key: Tensor
    weight: Tensor | None
    value: Tensor
    limits: Restrictions
    lead: torch.Size
    dropout: float = 0.0
    seeds: Tensor | None = None
    packed: Tensor | None = None
    wants_state: bool = False
    wants_weights: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: at least float32."""
        kinds = [t.dtype for t in (self.query, self.key, self.value)]
        return torch.promote_types(
            torch.promote_types(kinds[0], torch.promote_types(kinds[1], kinds[2])), torch.float32
        )

    def wide(self) -> "Problem":
        """The same call in the dtype that is computed in."""
        kind = self.dtype
        bias = self.limits.key_bias
        return replace(
            self,
            query=self.query.to(kind),
            key=self.key.to(kind),
            value=self.value.to(kind),
            weight=None if self.weight is None else self.weight.to(kind),
            limits=self.limits if bias is None else replace(self.limits, key_bias=bias.to(kind)),
        )

    def part(self, dim: int, rows: slice) -> "Problem":
        """Some of the elements of one leading dimension."""

        def some(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else narrow(tensor, dim, rows)

        limits = self.limits
        return replace(
            self,
            query=narrow(self.query, dim, rows),
            key=narrow(self.key, dim, rows),
            value=narrow(self.value, dim, rows),
            weight=some(self.weight),
            seeds=some(self.seeds),
            packed=some(self.packed),
            lead=torch.Size((*self.lead[:dim], rows.stop - rows.start, *self.lead[dim + 1 :])),
            limits=replace(
                limits,
                lens=some(limits.lens),
                mask=some(limits.mask),
                key_bias=some(limits.key_bias),
                exclude=some(limits.exclude),
            ),
        )


def narrow(tensor: Tensor, dim: int, rows: slice) -> Tensor:
    """Some rows of a leading dimension; the tensor itself where it is broadcast there."""
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, rows.start, rows.stop - rows.start)


def weigh(hidden: Tensor, weight: Tensor) -> Tensor:
    """Σ_h v_h t_h: hidden (..., n, m, h), weight (..., h), of as many leading dimensions."""
    if weight.numel() == weight.shape[-1]:  # one weight for all is one matrix-vector product
        return hidden @ weight.reshape(-1)
    return (hidden @ weight[..., None, :, None]).squeeze(-1)


def farthest(features: int, dtype: torch.dtype) -> float:
    """Up to where coordinates have squared distances: no square of twice as much overflows, nor does their sum."""
    return 0.49 * math.sqrt(torch.finfo(dtype).max / max(1, features))


def clip(problem: Problem, side: Tensor) -> Tensor:
    """Coordinates of a Gaussian brought to where all squares are finite: no row is empty because it is far away."""
    if problem.pair != "distance" or problem.profile != "gaussian":
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
        return torch.where(square > 1, -_INF, 0.0 * square)
    if profile == "triangular":
        at_zero = square == 0
        square = torch.where(at_zero, 0.0, torch.where(at_zero, 1.0, square).sqrt())
    outside = square >= 1
    return torch.where(outside, -_INF, torch.log1p(-torch.where(outside, 0.0, square)))


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


def pool(weights: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """Σ_j w_ij v_j, so that a NaN or ∞ in a value reaches those rows only that see it: 0 · NaN is NaN.

    Args:
        weights: (..., n, m), 0 where hidden.
        value: (..., m, d). A non-finite feature makes that feature NaN in every row that sees it.
        visible: Broadcastable to (..., n, m); None for a plain product.
    """
    if visible is None:
        return weights @ value
    broken = ~torch.isfinite(value)
    met = visible.to(weights.dtype).expand(*visible.shape[:-2], *weights.shape[-2:]) @ broken.to(weights.dtype)
    return (weights @ value.masked_fill(broken, 0.0)).masked_fill(met > 0, float("nan"))


def must_exclude(problem: Problem, *grads: Tensor) -> bool:
    """Whether sums must leave out hidden pairs one by one: some are hidden from some rows, and something is not finite.

    Where looking would wait for a device, it is assumed.
    """
    limits = problem.limits
    by_support = problem.pair == "distance" and problem.profile != "gaussian"
    if not (limits.vary_by_row() or by_support):
        return False
    operands = (problem.query, problem.key, problem.value, *grads)
    if not can_read_values(*operands):
        return True
    return not all(bool(torch.isfinite(t).all()) for t in operands)


def random_bits(seeds: Tensor, index: Tensor) -> Tensor:
    """A 32-bit number for each (seed, index): a counter-based generator, so that a backward pass can ask again.

    Wellons' `lowbias32`, keyed by both halves of the seed. Only the low 32 bits of a product count, so int64 may wrap.
    """
    low = 0xFFFFFFFF
    bits = (index * 0x9E3779B1 + seeds) & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B + (seeds >> 32)) & low
    return bits ^ (bits >> 16)


def spread(seeds: Tensor, index: Tensor) -> Tensor:
    """A 63-bit seed for each (seed, index)."""
    return (random_bits(seeds, 2 * index) << 31) ^ random_bits(seeds, 2 * index + 1)


def dropout_scale(problem: Problem, rows: slice = slice(None), cols: slice = slice(None)) -> Tensor | None:
    """What dropout multiplies the weights of a tile by: 0 or 1/(1 − p), (..., rows, cols). None without dropout.

    A pair's fate depends on the seed, the batch element, the row and the key alone: not on tiles or implementations.
    """
    if problem.seeds is None:
        return None
    limits, device = problem.limits, problem.query.device
    row = torch.arange(limits.queries, device=device)[rows]
    key = torch.arange(limits.keys, device=device)[cols]
    by_row = spread(problem.seeds[..., None], row)
    kept = random_bits(by_row[..., None], key) >= int(problem.dropout * 2**32)
    return kept.to(problem.dtype) * (1.0 / (1.0 - problem.dropout) if problem.dropout < 1 else 0.0)
