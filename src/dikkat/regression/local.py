r"""Local moments about a query, and the local constant or line that is fitted from them.

**Moments.** Around a query x the keys x_j have the weights of attention with a distance score,

$$ w_j = \frac{W_j K(\delta_j)}{\sum_l W_l K(\delta_l)}, \qquad \delta_j = (x_j - x)/\sigma , $$

and the moments are the means of 1, y, δ, δδᵀ and δy under them. They are a state: a mean and a log-sum-exp, which
merges with the state over other keys. δ is taken from the points as they were given, so that no digits are lost where
their range is many bandwidths. They come from the compiled kernels of `dikkat.regression.moments.launch`; where Numba
cannot be imported from plain PyTorch, some queries at a time.

**Fits.** With $z = (1)$ for the constant order and $z = (1, \delta)$ for the linear one, of the δ of numbers, a fit
minimises $\sum_j w_j (y_j - z_j^\top\theta)^2 + (\beta - b)^\top \Lambda (\beta - b)$, with β the slopes in θ and b
those of a plane through all rows. The first of θ is the estimate: the line's height at the
query, where δ = 0.

The linear order is solved about the mean offset $o$, where $S = \operatorname{E}\delta\delta^\top - oo^\top$ and
$c = \operatorname{E}\delta y^\top - oy^\top$:

$$ \beta = b + (S + \Lambda)^{-1} (c - S b), \qquad \hat y = \bar y - \beta^\top o . $$

The ridge draws the line toward the plane's slope where few points have a say, or lie too near each other to tell a
slope:

$$ \Lambda_c = \frac{\rho}{S_0} \frac{s_c^2}{s_c^2 + \sigma_c^2}, \qquad S_0 = \sum_j W_j K(\delta_j) , $$

with $s_c$ the standard deviation of the feature over all rows. It is as if ρ more points, one bandwidth off, or one
standard deviation where that is shorter, had said that the slope is b. Beyond the data and in gaps $S_0$ goes to 0, and
the slope to b. As Seifert and Gasser do, who draw it to 0, the line is shrunk about the mean offset, and ρ is their
ridge parameter over the bandwidth; theirs grows with |o|, which changes little where points are many and nothing far
away.

A second ridge, $\varepsilon \operatorname{diag}(\operatorname{E}\delta\delta^\top)$, has no unit and is far below
what data say, where they say anything. So far from all data that every weight is 0 in the dtype, which is 37 bandwidths
in float64 and 13 in float32, there is no line to see: there β = b, from the mean under what the weights are to each
other. That goes to the nearest point's value.

**The plane** through all rows, to whose slopes lines are drawn. With z the coordinates less their means, in standard
deviations (those of a category over the root of the sum of their variances), $v_g$ the shares of unique rows in the
weight and $C = \sum_g v_g z_g z_g^\top$, the slopes are those of ridge regression,

$$ b = (C + \lambda)^{-1} \sum_g v_g z_g (\bar y_g - \bar y), \qquad
b_{-g} = b - (C + \lambda)^{-1} z_g\, v_g\, e_g, \qquad
e_g = \frac{\bar y_g - \bar y - z_g^\top b}{1 - v_g (1 + z_g^\top (C + \lambda)^{-1} z_g)} , $$

the latter without the rows at g, whose error is then $e_g$; λ is the power of ten from −6 to 3, or ∞, of which the mean
square of these is least. The plane is that of the numbers, or where the least is smaller that of all coordinates, in
which a category has a step for each of its levels.

Source: Seifert and Gasser 1996, Finite-sample variance of local polynomials; 2000, Data adaptive ridging in local
polynomial regression.
The plane: Hastie, Tibshirani and Friedman 2009, sections 3.4.1 and 7.10.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.arithmetic import log_profile
from dikkat._core.softmax import softmax
from dikkat.regression.joined import Array, Joined
from dikkat.regression.moments import launch
from dikkat.regression.moments.launch import Window
from dikkat.regression.moments.record import LARGEST

RIDGE = 0.25
"""ρ where nothing is searched for: about Seifert and Gasser's rule, half a bandwidth from the mean offset."""
_ELEMENTS = 2**23  # of the moments, or differences from keys, of the queries that are worked on at once


@dataclass(frozen=True)
class Points:
    """Keys with their values; the faster if neighbours in space are mostly neighbours in memory.

    Attributes:
        key: (m, d).
        value: (m, v), of the same dtype.
        weight: (m,), positive: how often each counts.
        tiles: The points as the compiled kernel of pairs reads them; None where that does not run.
        line: Many sorted keys of one feature in float64, for sorted sums; None of others.
    """

    key: Tensor
    value: Tensor
    weight: Tensor
    tiles: launch.Tiles | None = field(init=False, repr=False)
    line: launch.Line | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        run, own = launch.runs(self.key), (self.key, self.value, self.weight)
        object.__setattr__(self, "tiles", launch.tiles(*own) if run else None)
        object.__setattr__(self, "line", launch.line(*own) if run else None)

    def columns(self, degree: int) -> int:
        """The size of the moments of a query, without the log-sum-exp."""
        size, values = degree * self.key.shape[1], self.value.shape[1]
        return values + size + size * size + size * values


def points_of(joined: Joined, dtype: torch.dtype) -> Points:
    """The unique rows as points."""
    return Points(*(torch.tensor(each, dtype=dtype) for each in (joined.x, joined.y, joined.weight)))


class Moments(NamedTuple):
    """Moments of n queries; of degree 0 those of δ are empty. A query that no key reaches has lse −∞, and 0 otherwise.

    Attributes:
        lse: (n,), log Σ_j W_j K(δ_j).
        value: (n, v), the mean of y.
        offset: (n, d), the mean of δ.
        spread: (n, d, d), of δδᵀ.
        cross: (n, d, v), of δy.
    """

    lse: Tensor
    value: Tensor
    offset: Tensor
    spread: Tensor
    cross: Tensor


def parts(count: int, columns: int) -> list[slice]:
    """So many queries in parts whose moments, of so many numbers each, take little memory at once."""
    size = max(1, _ELEMENTS // columns)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def moments(
    query: Tensor,
    points: Points,
    window: Window,
    *,
    degree: int = 0,
    exclude: Tensor | None = None,
    ordered: bool = False,
) -> Moments:
    """The moments about each query (n, d); `exclude` (n,) is the index of a key that a query must not see, or −1.

    With `ordered` the queries are in `spatial_order` already, as the rows of `Joined` are.
    """
    if points.tiles is not None:
        own: dict[str, Tensor | None] = {"exclude": exclude}
        mean, lse = _in_order(_averages, query, own, ordered, points=points, window=window, degree=degree)
    else:
        mean, lse = _plain_averages(query, points, window, degree, exclude)
    size, values = degree * query.shape[1], points.value.shape[1]
    value, offset, spread, cross = mean.split([values, size, size * size, size * values], 1)
    return Moments(lse, value, offset, spread.unflatten(1, (size, size)), cross.unflatten(1, (size, values)))


def fits(
    query: Tensor,
    points: Points,
    window: Window,
    ridge: Tensor | None,
    toward: Tensor | None = None,
    *,
    exclude: Tensor | None = None,
    ordered: bool = False,
) -> tuple[Tensor, "LocalFit"]:
    """The lse (n,) and the fits of `local_fit`; lines from pairs come from the kernel of their moments."""
    if ridge is not None and points.tiles is not None and points.line is None:
        ridge = as_wide(ridge, toward)
        drawn = None if toward is None else toward.expand(len(query), -1, -1)
        own = {"exclude": exclude, "ridge": ridge.expand(len(query), -1), "toward": drawn}
        lse, *fit = _in_order(_lines, query, own, ordered, points=points, window=window)
        return lse, LocalFit(*fit)
    around = moments(query, points, window, degree=0 if ridge is None else 1, exclude=exclude, ordered=ordered)
    return around.lse, local_fit(around, ridge, toward)


def sensitivity(
    query: Tensor,
    points: Points,
    window: Window,
    lse: Tensor,
    row: Tensor,
    fit: Tensor,
    exclude: Tensor | None = None,
    ordered: bool = False,
) -> Tensor:
    r"""Σ_j w_j δ_jc² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), (n, d, v).

    For the Gaussian kernel, whose ∂ log K/∂ log σ_c is δ_c², that is how the local estimate uᵀ(…) changes with log σ_c.
    """
    if points.tiles is not None:
        by_query = {"lse": lse, "row": row, "fit": fit, "exclude": exclude}
        (result,) = _in_order(_sensitivity, query, by_query, ordered, points=points, window=window)
        return result
    pieces = []
    for rows in parts(len(query), points.key.numel() + points.value.numel()):
        delta, score = _scores(query, points, window, rows, exclude)
        share = (score - lse[rows, None].nan_to_num(neginf=0.0)).exp()
        own, slopes = row[rows], delta[..., : row.shape[1] - 1]
        lever = own[:, :1] + torch.einsum("nc,nmc->nm", own[:, 1:], slopes)
        left = points.value - fit[rows, :1] - torch.einsum("ncv,nmc->nmv", fit[rows, 1:], slopes)
        pieces.append(torch.einsum("nm,nmc,nmv->ncv", share * lever, delta.square(), left))
    return torch.cat(pieces)


def weights(query: Tensor, points: Points, window: Window) -> Tensor:
    """The weights themselves, (n, m), of the points in their order; 0 in the row of a query that no key reaches."""
    return softmax(_scores(query, points, window, slice(None), None)[1], None)[0]


# --- compiled


def _in_order(
    kernel: Callable[..., Any],
    query: Tensor,
    by_query: Mapping[str, Tensor | None],
    ordered: bool,
    *,
    window: Window,
    **more: Any,
) -> list[Tensor]:
    """A compiled kernel's results, for queries and what is given for each, computed in `spatial_order`."""
    if ordered:
        return list(kernel(query, **by_query, window=window, **more))
    order = torch.from_numpy(launch.spatial_order(query.numpy()))
    turned = {name: each if each is None else each[order] for name, each in by_query.items()}
    result = kernel(query[order], **turned, window=window.of(order), **more)
    return [torch.empty_like(each).index_copy_(0, order, each) for each in result]


def _averages(
    query: Tensor, *, exclude: Tensor | None, points: Points, window: Window, degree: int
) -> tuple[Tensor, Tensor]:
    """Means and lse of ordered queries: from sorted sums where they serve, else pair by pair."""

    def by_pairs(chosen: Any) -> tuple[Tensor, Tensor]:
        assert points.tiles is not None
        excluded = None if exclude is None else exclude[chosen]
        return launch.moments(query[chosen], points.tiles, window.of(chosen), degree, excluded)

    result = _by_sorted_sums(query, points, window, 2 * degree, degree, exclude)
    if result is None:
        return by_pairs(slice(None))
    lse, mass, value = result
    means = torch.cat([value[:, 0], mass, value[:, 1:].flatten(1)], 1)
    unsure = lse.isnan()
    if unsure.any():
        means[unsure], lse[unsure] = by_pairs(unsure)
    return means, lse


def _lines(
    query: Tensor, *, exclude: Tensor | None, ridge: Tensor, toward: Tensor | None, points: Points, window: Window
) -> tuple[Tensor, Tensor, Tensor]:
    """The lse, u and θ of ordered queries."""
    assert points.tiles is not None
    return launch.fits(query, points.tiles, window, exclude, ridge, toward, least_of(query.dtype))


def _sensitivity(
    query: Tensor, *, lse: Tensor, row: Tensor, fit: Tensor, exclude: Tensor | None, points: Points, window: Window
) -> tuple[Tensor]:
    """The sensitivities of ordered queries: from sorted sums where they serve, else pair by pair."""

    def by_pairs(chosen: Any) -> Tensor:
        assert points.tiles is not None
        own, excluded = (lse[chosen], row[chosen], fit[chosen]), None if exclude is None else exclude[chosen]
        return launch.sensitivity(query[chosen], points.tiles, window.of(chosen), *own, excluded)

    degree = row.shape[1] - 1
    sums = _by_sorted_sums(query, points, window, 2 + 2 * degree, 2 + degree, exclude)
    if sums is None:
        return (by_pairs(slice(None)),)
    weight, mass, value = sums
    # Σ_k (u·z)_k Σ w δ^(2+k) (y − zᵀθ): of powers of δ, and of those with y.
    result = query.new_zeros(len(query), points.value.shape[1])
    for k in range(1 + degree):
        left = value[:, 2 + k] - sum(fit[:, e] * mass[:, 1 + k + e, None] for e in range(1 + degree))
        result += row[:, k, None] * left
    result *= (weight - lse).exp()[:, None]
    unsure = weight.isnan()
    if unsure.any():
        result[unsure] = by_pairs(unsure)[:, 0]
    return (result[:, None],)


def _by_sorted_sums(
    query: Tensor, points: Points, window: Window, mass_powers: int, value_powers: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The weights and the means of powers, where sorted sums serve."""
    line = points.line
    if line is None or window.bandwidth.ndim > 1 or not launch.is_sorted_quicker(query, line, window, exclude):
        return None
    return launch.powers(query, line, window, mass_powers, value_powers, exclude)


# --- without Numba


def _plain_averages(
    query: Tensor, points: Points, window: Window, degree: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The means of y and, for degree 1, of δ, δδᵀ and δy, in one row a query; and the lse."""
    means, totals = [query.new_zeros(0, points.columns(degree))], [query.new_zeros(0)]
    for rows in parts(len(query), points.key.numel() + points.value.numel()):
        delta, score = _scores(query, points, window, rows, exclude)
        share, *_ = softmax(score, None)
        result = [share @ points.value]
        if degree:
            weighted = share[..., None] * delta
            result += [
                weighted.sum(1),
                torch.einsum("nmc,nme->nce", weighted, delta).flatten(1),
                torch.einsum("nmc,mv->ncv", weighted, points.value).flatten(1),
            ]
        means.append(torch.cat(result, 1))
        totals.append(score.logsumexp(1))
    return torch.cat(means), torch.cat(totals)


def _scores(
    query: Tensor, points: Points, window: Window, rows: slice, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """δ and the logarithm of the weights of some queries with all keys."""
    by = 1 / window.of(rows).bandwidth  # as the compiled kernels do
    delta = (points.key - query[rows, None]) * (by if by.ndim == 1 else by[:, None])
    score = log_profile(window.profile, delta.square().sum(-1)) * (2 if window.squared else 1) + points.weight.log()
    if exclude is not None:
        keys = torch.arange(len(points.key))
        score = score.masked_fill(keys == exclude[rows, None], -math.inf)
    return delta, score


# --- fits


class LocalFit(NamedTuple):
    """The local fits at n queries, with k = 1 for the constant order and 1 + d for the linear one.

    Attributes:
        row: (n, k), u: the estimate is Σ_j w_j (u·z_j) y_j.
        theta: (n, k, v), θ; the first is the estimate.
    """

    row: Tensor
    theta: Tensor

    @property
    def estimate(self) -> Tensor:
        """(n, v)."""
        return self.theta[:, 0]


class _Centred(NamedTuple):
    """Moments about the mean offset instead of the query.

    Attributes:
        offset: (n, d), o.
        second: (n, d), the diagonal of E δδᵀ, about the query.
        spread: (n, d, d), S.
        cross: (n, d, v), c.
        lse: (n,), log S_0.
    """

    offset: Tensor
    second: Tensor
    spread: Tensor
    cross: Tensor
    lse: Tensor


def local_fit(around: Moments, ridge: Tensor | None, toward: Tensor | None = None) -> LocalFit:
    """The local constant; with the ridge Λ S_0, (p,) or (n, p), the local line; the first p coordinates have slopes.

    `toward` are slopes, (p, v) or (n, p, v), to which the ridge draws; None for 0. Where they are more, those of the
    further coordinates are the line's.
    """
    if ridge is None:
        return LocalFit(torch.ones_like(around.lse)[:, None], around.value[:, None])
    ridge = as_wide(ridge, toward)
    slopes = ridge.shape[-1]
    centred = _centred(around, slopes)
    offset = centred.offset[..., None]
    cross = centred.cross if toward is None else centred.cross - centred.spread @ toward
    solved = _solve(centred, torch.cat([cross, offset], -1), ridge)
    slope, lean = solved[..., :-1], solved[..., -1]
    slope = slope if toward is None else slope + toward
    height = around.value - (slope * offset).sum(1)
    first = 1 + (centred.offset * lean).sum(1, keepdim=True)
    flat = around.spread.shape[1] - slopes
    row, theta = torch.cat([first, -lean], 1), torch.cat([height[:, None], slope], 1)
    return LocalFit(pad(row, (0, flat)), pad(theta, (0, 0, 0, flat)))


def without_unseen(around: Moments, joined: Joined, query: Tensor, bandwidth: Tensor, squared: bool = False) -> Moments:
    r"""Moments with S_0 as it is without those columns of which a query has a category that was not there.

    Such a category is at the same distance r from every row. That leaves the weights' shares as they are, but takes
    $r^2/2\sigma^2$ from log S_0, which is added to it again: otherwise the ridge would take the slopes for it.
    """
    return around._replace(lse=around.lse + (1 + squared) * lost_to_unseen(joined, query, bandwidth))


def lost_to_unseen(joined: Joined, query: Tensor, bandwidth: Tensor) -> Tensor:
    """The part of log S_0 that categories that were not there take, (n,)."""
    lost = query.new_zeros(len(query))
    for own, center, there in unseen_categories(joined, query):
        far = (center / bandwidth[..., own]).square().sum(-1) / 2  # from 0, which is the first category
        lost += torch.where(there, far, 0.0)
    return lost


def has_unseen(joined: Joined, query: Tensor) -> Tensor:
    """True for queries with a category that was not there, (n,)."""
    result = query.new_zeros(len(query), dtype=torch.bool)
    for _, _, there in unseen_categories(joined, query):
        result |= there
    return result


def unseen_categories(joined: Joined, query: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each category's coordinates, their values where it was not there, and the queries that have those, (n,)."""
    for feature in np.unique(joined.feature[np.isfinite(joined.center)]):
        own = torch.tensor(joined.feature == feature)
        center = torch.tensor(joined.center).to(query)[own]
        yield own, center, (query[:, own] == center).all(1)


def noise_share(around: Moments, squared: Moments, ridge: Tensor) -> Tensor:
    """‖l‖², (n,), with l the local line's row of the smoother matrix, from moments under K and under K²."""
    share = (squared.lse - 2 * around.lse).exp()  # Σ_j w_j²
    centred, about = (_centred(each, ridge.shape[-1]) for each in (around, squared))
    lean = _solve(centred, centred.offset[..., None], ridge)
    shift = (about.offset - centred.offset)[..., None]  # the mean of δ − o under w², and next that of its square
    spread = about.spread + shift @ shift.mT
    return share * (1 + (lean * (spread @ lean - 2 * shift)).sum((1, 2)))


def _centred(around: Moments, slopes: int) -> _Centred:
    """Return the moments of the coordinates that have slopes, about their mean; 0 along those without spread."""
    second, offset = around.spread[:, :slopes, :slopes], around.offset[:, :slopes, None]
    spread, own = second - offset @ offset.mT, second.diagonal(dim1=1, dim2=2)
    cross = around.cross[:, :slopes] - offset * around.value[:, None]
    rounding = 32 * torch.finfo(own.dtype).eps * own  # of a difference of squares, which the spread is
    flat = (spread.diagonal(dim1=1, dim2=2) <= rounding)[..., None]
    spread, cross = spread.masked_fill(flat | flat.mT, 0.0), cross.masked_fill(flat, 0.0)
    return _Centred(offset[..., 0], own, spread, cross, around.lse)


def is_far(lse: Tensor) -> Tensor:
    """True where all weights are 0 in the dtype, and no slope is seen."""
    return lse < math.log(torch.finfo(lse.dtype).tiny)


def least_of(dtype: torch.dtype) -> float:
    """ε, the second ridge."""
    return 1e-10 if dtype == torch.float64 else 1e-5


def ridge_at(ridge: Tensor, lse: Tensor) -> Tensor:
    """Λ (n, p) from Λ S_0, (p,) or (n, p), and log S_0 (n,)."""
    return ridge * (-lse[:, None]).clamp(max=math.log(LARGEST)).exp()


def as_wide(ridge: Tensor, toward: Tensor | None) -> Tensor:
    """A ridge for as many coordinates as there are slopes to draw to, which leaves nothing of further ones."""
    more = 0 if toward is None else toward.shape[-2] - ridge.shape[-1]
    return pad(ridge, (0, more), value=LARGEST) if more else ridge


def ridge_of(amount: Tensor, spread: Tensor, bandwidth: Tensor) -> Tensor:
    """Λ S_0 from ρ, the numbers' standard deviations (p,) and bandwidths (p,) or (n, p), of whose shape it is."""
    return amount / (1 + (bandwidth / spread).square())  # 0 of a constant feature, which has no slope


def _solve(centred: _Centred, right: Tensor, ridge: Tensor) -> Tensor:
    """(S + Λ)⁻¹ times (n, d, k), by features of second moment 1. There is no slope without spread, nor far away."""
    flat = (centred.spread.diagonal(dim1=1, dim2=2) == 0) & (ridge == 0)
    size = centred.second.masked_fill(flat | (centred.second == 0), math.inf).sqrt()[..., None]
    added = ridge_at(ridge, centred.lse) / size[..., 0].square()
    system = centred.spread / size / size.mT + torch.diag_embed(least_of(right.dtype) + added.clamp(max=LARGEST))
    if system.shape[1] == 1:  # a call of LAPACK's for each query takes longer than all else
        solved = right / size / system / size
    else:
        solved = torch.cholesky_solve(right / size, torch.linalg.cholesky_ex(system).L) / size
    return solved.masked_fill(is_far(centred.lse)[:, None, None], 0.0)


# --- the plane

AMOUNTS = (np.inf, *10.0 ** np.arange(3, -7, -1))  # the first of equals, where there is nothing to tell


class Trend(NamedTuple):
    """The slopes of a plane, by p coordinates: the numbers, or all.

    Attributes:
        slope: (p, v), over a standard deviation.
        row: (m, p), how each unique row's y goes into them, λ held.
        without: (m, p, v), those without each unique row.
        spread: (p,), the standard deviations; 1 of a constant.
        center: (p,), the means.
        gain: (p, p), (C + λ)⁻¹ over the sum of the weights.
    """

    slope: Tensor
    row: Tensor
    without: Tensor
    spread: Tensor
    center: Tensor
    gain: Tensor

    def over(self, bandwidth: Tensor, slope: Tensor | None = None) -> Tensor:
        """The slopes over bandwidths (d,) or (n, d): (p, v) or (n, p, v)."""
        slope = self.slope if slope is None else slope
        return slope.to(bandwidth) * (bandwidth[..., : len(self.spread)] / self.spread.to(bandwidth))[..., None]


def trend(joined: Joined) -> Trend:
    """The plane through joined rows."""
    # A category has one unit: the plane hangs on how far its levels are apart, and not on their order.
    spread, largest = joined.spread(), np.zeros(joined.feature.max() + 1)
    np.maximum.at(largest, joined.feature, spread)
    largest = np.where(largest > 0, largest, 1.0)[joined.feature]  # whose square may be no number
    unit = largest * np.sqrt(np.bincount(joined.feature, (spread / largest) ** 2))[joined.feature]
    unit, share = np.where(unit > 0, unit, 1.0), joined.weight / joined.weight.sum()
    scaled = (joined.x.astype(np.float64) - joined.x[0]) / unit
    scaled, about = scaled - share @ scaled, joined.y - share @ joined.y
    planes = [_plane(scaled[:, :size], about, share) for size in dict.fromkeys([joined.numbers, len(unit)])]
    _, slope, row, without, inverse = min(planes, key=itemgetter(0))
    size, center = len(slope), share @ joined.x.astype(np.float64)
    gain = inverse / joined.weight.sum()
    return Trend(*map(torch.from_numpy, (slope, row, without, unit[:size], center[:size], gain)))


def _plane(scaled: Array, about: Array, share: Array) -> tuple[float, Array, Array, Array, Array]:
    """The least mean square; its plane's slopes, what each row has in them, those without each row, and (C + λ)⁻¹."""
    values, basis = np.linalg.eigh((share[:, None] * scaled).T @ scaled)
    turned, cross = scaled @ basis, basis.T @ (scaled.T @ (share[:, None] * about))
    best, by, left = np.inf, np.zeros_like(values), about
    for amount in AMOUNTS if len(about) > 1 else ():
        held = 1 / (values.clip(0) + amount)
        own = 1 - share * (1 + turned**2 @ held)
        errors = (about - turned @ (held[:, None] * cross)) / own.clip(1e-9)[:, None]
        if (error := float(share @ (errors**2).mean(1))) < best:
            best, by, left = error, held, errors
    slope, row = (basis * by) @ cross, share[:, None] * ((turned * by) @ basis.T)
    return best, slope, row, slope - row[..., None] * left[:, None], (basis * by) @ basis.T
