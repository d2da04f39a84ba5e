r"""Local moments about a query, and the local constant or line that is fitted from them.

**Moments.** At a query x the keys x_j have the weights of attention with a distance score,

$$ w_j = \frac{W_j K(\delta_j)}{\sum_l W_l K(\delta_l)}, \qquad \delta_j = (x_j - x)/\sigma , $$

and the moments are the means of 1, y, δ, δδᵀ and δy under these weights. With log Σ W K they are a state that merges
with the state over other keys. δ is computed from the original coordinates, so that no digits are lost if their range
is many bandwidths. The compiled kernels of `dikkat.regression.moments.launch` compute the moments. Without Numba
PyTorch computes them for some queries at a time.

**Fits.** With $z = (1)$ for the constant order and $z = (1, \delta)$ for the linear one, of the δ of numbers, a fit
minimises $\sum_j w_j (y_j - z_j^\top\theta)^2 + (\beta - b)^\top \Lambda (\beta - b)$, with β the slopes in θ and b
the slopes of a plane through all rows. The first entry of θ is the estimate: the line's height at δ = 0.

The linear order is solved about the mean offset $o$, where $S = \operatorname{E}\delta\delta^\top - oo^\top$ and
$c = \operatorname{E}\delta y^\top - oy^\top$:

$$ \beta = b + (S + \Lambda)^{-1} (c - S b), \qquad \hat y = \bar y - \beta^\top o . $$

The ridge shrinks the slopes toward b if few points have influence, or are too close together to determine a slope:

$$ \Lambda_c = \frac{\rho}{S_0} \frac{s_c^2}{s_c^2 + \sigma_c^2}, \qquad S_0 = \sum_j W_j K(\delta_j) , $$

with $s_c$ the standard deviation of the feature over all rows. The effect is that of ρ more points with the slope b at
a distance of one bandwidth, or of one standard deviation if that is shorter. Beyond the data and in gaps $S_0$ goes to
0, and the slope to b. As in Seifert and Gasser, who shrink to 0, the line is shrunk about the mean offset, and ρ is
their ridge parameter over the bandwidth. Theirs grows with |o|, which changes little among many points and nothing far
away.

A second ridge, $\varepsilon \operatorname{diag}(\operatorname{E}\delta\delta^\top)$, has no unit and is negligible
wherever data determine a slope. At 37 bandwidths from all data in float64, and 13 in float32, every weight is 0 in the
dtype and no slope can be estimated. There β = b, and the mean uses the ratios of the weights, so that it goes to the
nearest point's value.

**The plane** through all rows has the slopes b. Let z be the coordinates minus their means, in standard deviations
(for a category, over the root of the sum of its coordinates' variances), $v_g$ the shares of unique rows in the weight
and $C = \sum_g v_g z_g z_g^\top$. The slopes come from ridge regression,

$$ b = (C + \lambda)^{-1} \sum_g v_g z_g (\bar y_g - \bar y), \qquad
b_{-g} = b - (C + \lambda)^{-1} z_g\, v_g\, e_g, \qquad
e_g = \frac{\bar y_g - \bar y - z_g^\top b}{1 - v_g (1 + z_g^\top (C + \lambda)^{-1} z_g)} , $$

where $b_{-g}$ is without the rows at g, and $e_g$ is their error. λ is the power of ten from −6 to 3, or ∞, with the
least mean square of these errors. The plane is over the numbers, or over all coordinates if their least error is
smaller: a category then has a step for each of its levels. In a design (`dikkat.regression.surfaces`) it is over all
coordinates, which then include squares and products of the numbers.

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
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.arithmetic import log_profile
from dikkat._core.softmax import softmax
from dikkat.regression.joined import Array, Joined
from dikkat.regression.moments import launch
from dikkat.regression.moments.launch import Window
from dikkat.regression.moments.record import LARGEST

RIDGE = 0.25
"""ρ without a search: about Seifert and Gasser's rule, half a bandwidth from the mean offset."""
_ELEMENTS = 2**23  # numbers of the moments, or of the differences from keys, at a time


@dataclass(frozen=True)
class Points:
    """Keys with values; kernels are faster if neighbours in space are mostly neighbours in memory.

    Attributes:
        key: (m, d).
        value: (m, v), of the dtype of the keys.
        weight: (m,), positive: the count of each key.
        tiles: The points for the compiled kernel of pairs; None if that kernel does not run.
        line: Many sorted keys of one feature in float64, for sorted sums; None for other keys.
    """

    key: Tensor
    value: Tensor
    weight: Tensor
    tiles: launch.Tiles | None = field(init=False, repr=False)
    line: launch.Line | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        compiled, arrays = launch.runs(self.key), (self.key, self.value, self.weight)
        object.__setattr__(self, "tiles", launch.tiles(*arrays) if compiled else None)
        object.__setattr__(self, "line", launch.line(*arrays) if compiled else None)

    def columns(self, degree: int) -> int:
        """Return the count of a query's moments, without the log-sum-exp."""
        size, values = degree * self.key.shape[1], self.value.shape[1]
        return values + size + size * size + size * values


def pick_points(points: Points, chosen: NDArray[np.intp]) -> Points:
    """Return the points at ascending indices."""
    index = torch.from_numpy(chosen)
    return Points(points.key[index], points.value[index], points.weight[index])


def points_of(joined: Joined, dtype: torch.dtype) -> Points:
    """Return the unique rows as points."""
    return Points(*(torch.tensor(array, dtype=dtype) for array in (joined.x, joined.y, joined.weight)))


class Moments(NamedTuple):
    """Moments at n queries. For degree 0 the moments of δ are empty. Without a key in reach lse is −∞ and the rest 0.

    Attributes:
        lse: (n,), log Σ_j W_j K(δ_j).
        value: (n, v), the mean of y.
        offset: (n, d), the mean of δ.
        spread: (n, p, d), the mean of δδᵀ for the first p coordinates.
        cross: (n, p, v), the mean of δy for the first p coordinates.
    """

    lse: Tensor
    value: Tensor
    offset: Tensor
    spread: Tensor
    cross: Tensor


def parts(count: int, columns: int) -> list[slice]:
    """Return slices of `count` queries, so short that `columns` numbers for each query need little memory."""
    size = max(1, _ELEMENTS // columns)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def moments(
    query: Tensor, points: Points, window: Window, *, degree: int = 0, slopes: int | None = None,
    exclude: Tensor | None = None, ordered: bool = False,
) -> Moments:  # fmt: skip
    """Return the moments at each query (n, d); `exclude` (n,) is the index of a key that a query must not see, or −1.

    `slopes` is p, the number of coordinates with products; None for all. `ordered` means that the queries are in
    `spatial_order`, as the rows of `Joined` are.
    """
    size, values = degree * query.shape[1], points.value.shape[1]
    rows = size if slopes is None else min(slopes, size)
    if points.tiles is not None:
        inputs = {"points": points, "tiles": points.tiles, "degree": degree, "slopes": rows}
        mean, lse = _in_order(_averages, query, {"exclude": exclude}, ordered, window=window, **inputs)
    else:
        mean, lse = _plain_averages(query, points, window, degree, rows, exclude)
    value, offset, spread, cross = mean.split([values, size, rows * size, rows * values], 1)
    return Moments(lse, value, offset, spread.unflatten(1, (rows, size)), cross.unflatten(1, (rows, values)))


def fit_queries(
    query: Tensor, points: Points, window: Window, ridge: Tensor | None, target: Tensor | None = None, *,
    exclude: Tensor | None = None, ordered: bool = False,
) -> tuple[Tensor, "LocalFit"]:  # fmt: skip
    """Return the lse (n,) and the local fits at each query (n, d); one kernel computes both if it can run."""
    if ridge is not None and points.tiles is not None and points.line is None:
        row_slopes = None if target is None else target.expand(len(query), -1, -1)
        by_query = {"exclude": exclude, "ridge": ridge.expand(len(query), -1), "target": row_slopes}
        lse, *fit = _in_order(_lines, query, by_query, ordered, tiles=points.tiles, window=window)
        return lse, LocalFit(*fit)
    degree, slopes = (0, 0) if ridge is None else (1, ridge.shape[-1])
    state = moments(query, points, window, degree=degree, slopes=slopes, exclude=exclude, ordered=ordered)
    return state.lse, local_fit(state, ridge, target)


def sensitivity(
    query: Tensor, points: Points, window: Window, lse: Tensor, row: Tensor, fit: Tensor, feature_of: NDArray[np.intp],
    exclude: Tensor | None = None, ordered: bool = False,
) -> Tensor:  # fmt: skip
    r"""Return the derivatives of the local estimates by the log σ of each feature, (n, features, v).

    They are Σ_j w_j δ_j² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), because ∂ log K/∂ log σ = δ² for the Gaussian kernel.
    `feature_of` (d,) is the feature of each coordinate.
    """
    feature = torch.from_numpy(feature_of)
    if points.tiles is not None:
        by_query = {"lse": lse, "row": row, "fit": fit, "exclude": exclude}
        inputs = {"points": points, "tiles": points.tiles, "feature": feature}
        (result,) = _in_order(_sensitivity, query, by_query, ordered, window=window, **inputs)
        return result
    pieces = []
    for rows in parts(len(query), points.key.numel() + points.value.numel()):
        delta, score = scores(query, points, window, rows, exclude)
        share = (score - lse[rows, None].nan_to_num(neginf=0.0)).exp()
        u, theta = row[rows], fit[rows]
        lever = u[:, :1] + torch.einsum("nc,nmc->nm", u[:, 1:], delta[..., : u.shape[1] - 1])
        residual = points.value - theta[:, :1]
        residual = residual - torch.einsum("ncv,nmc->nmv", theta[:, 1:], delta[..., : theta.shape[1] - 1])
        square = delta.new_zeros(*share.shape, int(feature[-1]) + 1).index_add_(2, feature, delta.square())
        pieces.append(torch.einsum("nm,nmc,nmv->ncv", share * lever, square, residual))
    return torch.cat(pieces)


def weights(query: Tensor, points: Points, window: Window) -> Tensor:
    """Return the (n, m) attention weights of the points; all 0 for a query that no key reaches."""
    return softmax(scores(query, points, window, slice(None), None)[1], None)[0]


# --- compiled


def _in_order(
    kernel: Callable[..., Any], query: Tensor, by_query: Mapping[str, Tensor | None], ordered: bool, *, window: Window,
    **arguments: Any,
) -> list[Tensor]:  # fmt: skip
    """Run a compiled kernel on queries, and tensors by query, in `spatial_order`; return results in the given order."""
    if ordered:
        return list(kernel(query, **by_query, window=window, **arguments))
    order = torch.from_numpy(launch.spatial_order(query.numpy()))
    ordered_inputs = {name: tensor if tensor is None else tensor[order] for name, tensor in by_query.items()}
    results = kernel(query[order], **ordered_inputs, window=window.of(order), **arguments)
    return [torch.empty_like(tensor).index_copy_(0, order, tensor) for tensor in results]


def _averages(
    query: Tensor, *, exclude: Tensor | None, points: Points, tiles: launch.Tiles, window: Window, degree: int,
    slopes: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return means and lse of sorted queries, from sorted sums if they are faster, else from all pairs."""

    def by_pairs(chosen: Any) -> tuple[Tensor, Tensor]:
        excluded = None if exclude is None else exclude[chosen]
        return launch.moments(query[chosen], tiles, window.of(chosen), degree, slopes, excluded)

    result = _by_sorted_sums(query, points, window, degree + slopes, slopes, exclude)
    if result is None:
        return by_pairs(slice(None))
    lse, mass, value = result
    means = torch.cat([value[:, 0], mass, value[:, 1:].flatten(1)], 1)
    unsure = lse.isnan()
    if unsure.any():
        means[unsure], lse[unsure] = by_pairs(unsure)
    return means, lse


def _lines(
    query: Tensor, *, exclude: Tensor | None, ridge: Tensor, target: Tensor | None, tiles: launch.Tiles, window: Window
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lse, u and θ of ordered queries."""
    return launch.fit_lines(query, tiles, window, exclude, ridge, target, least_ridge(query.dtype))


def _sensitivity(
    query: Tensor, *, lse: Tensor, row: Tensor, fit: Tensor, exclude: Tensor | None, points: Points,
    tiles: launch.Tiles, window: Window, feature: Tensor,
) -> tuple[Tensor]:  # fmt: skip
    """Return the sensitivities of sorted queries, from sorted sums if they are faster, else from all pairs."""

    def by_pairs(chosen: Any) -> Tensor:
        terms, excluded = (lse[chosen], row[chosen], fit[chosen]), None if exclude is None else exclude[chosen]
        return launch.sensitivity(query[chosen], tiles, window.of(chosen), *terms, feature, excluded)

    degree = row.shape[1] - 1
    sums = _by_sorted_sums(query, points, window, 2 + 2 * degree, 2 + degree, exclude)
    if sums is None:
        return (by_pairs(slice(None)),)
    weight, mass, value = sums
    # Σ_k (u·z)_k Σ w δ^(2+k) (y − zᵀθ), from means of powers of δ and of their products with y.
    result = query.new_zeros(len(query), points.value.shape[1])
    for k in range(1 + degree):
        residual = value[:, 2 + k] - sum(fit[:, e] * mass[:, 1 + k + e, None] for e in range(1 + degree))
        result += row[:, k, None] * residual
    result *= (weight - lse).exp()[:, None]
    unsure = weight.isnan()
    if unsure.any():
        result[unsure] = by_pairs(unsure)[:, 0]
    return (result[:, None],)


def _by_sorted_sums(
    query: Tensor, points: Points, window: Window, mass_powers: int, value_powers: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the log-sum-exp and the means of powers; None if sorted sums are not faster or cannot run."""
    line = points.line
    if line is None or window.bandwidth.ndim > 1 or not launch.sorted_sums_are_faster(query, line, window, exclude):
        return None
    return launch.powers(query, line, window, mass_powers, value_powers, exclude)


# --- without Numba


def _plain_averages(
    query: Tensor, points: Points, window: Window, degree: int, slopes: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return for each query a row of the means of y and, for degree 1, of δ, δδᵀ and δy; and the lse."""
    size, values = degree * query.shape[1], points.value.shape[1]
    means, totals = [query.new_zeros(0, values + size + slopes * (size + values))], [query.new_zeros(0)]
    for rows in parts(len(query), points.key.numel() + points.value.numel()):
        delta, score = scores(query, points, window, rows, exclude)
        share, *_ = softmax(score, None)
        columns = [share @ points.value]
        if degree:
            weighted = share[..., None] * delta
            columns += [
                weighted.sum(1),
                torch.einsum("nmc,nme->nce", weighted[..., :slopes], delta).flatten(1),
                torch.einsum("nmc,mv->ncv", weighted[..., :slopes], points.value).flatten(1),
            ]
        means.append(torch.cat(columns, 1))
        totals.append(score.logsumexp(1))
    return torch.cat(means), torch.cat(totals)


def scores(query: Tensor, points: Points, window: Window, rows: slice, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return δ and the logarithm of the unnormalised weights, of some queries with all keys."""
    scale = 1 / window.of(rows).bandwidth  # multiplied, as in the compiled kernels
    delta = (points.key - query[rows, None]) * (scale if scale.ndim == 1 else scale[:, None])
    score = log_profile(window.profile, delta.square().sum(-1)) * (2 if window.squared else 1) + points.weight.log()
    if exclude is not None:
        keys = torch.arange(len(points.key))
        score = score.masked_fill(keys == exclude[rows, None], -math.inf)
    return delta, score


# --- fits


class LocalFit(NamedTuple):
    """The local fits at n queries, with p slopes and q − p more slopes that equal those of the plane.

    Attributes:
        row: (n, 1 + p), u: the estimate is Σ_j w_j (u·z_j) y_j.
        theta: (n, 1 + q, v), θ; the first is the estimate.
    """

    row: Tensor
    theta: Tensor

    @property
    def estimate(self) -> Tensor:
        """The estimates, (n, v)."""
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


def local_fit(state: Moments, ridge: Tensor | None, target: Tensor | None = None) -> LocalFit:
    """Return the local constants, or with a ridge Λ S_0, (p,) or (n, p), the local lines over the first p coordinates.

    The ridge shrinks the slopes to `target`, (q, v) or (n, q, v) with q ≥ p; None for 0. Coordinates of `target`
    beyond the ridge get exactly these slopes.
    """
    if ridge is None:
        return LocalFit(torch.ones_like(state.lse)[:, None], state.value[:, None])
    slopes = ridge.shape[-1]
    held = state.value.new_zeros(len(state.lse), 0, state.value.shape[1])
    if target is not None and target.shape[-2] > slopes:
        size = target.shape[-2]
        held = target[..., slopes:, :].expand(len(state.lse), -1, -1)
        value = state.value - (held * state.offset[:, slopes:size, None]).sum(1)
        cross = state.cross[:, :slopes] - state.spread[:, :slopes, slopes:size] @ held
        state, target = state._replace(value=value, cross=cross), target[..., :slopes, :]
    centred = _centred(state, slopes)
    offset = centred.offset[..., None]
    cross = centred.cross if target is None else centred.cross - centred.spread @ target
    solved = _solve(centred, torch.cat([cross, offset], -1), ridge)
    slope, lean = solved[..., :-1], solved[..., -1]
    slope = slope if target is None else slope + target
    height = state.value - (slope * offset).sum(1)
    first = 1 + (centred.offset * lean).sum(1, keepdim=True)
    return LocalFit(torch.cat([first, -lean], 1), torch.cat([height[:, None], slope, held], 1))


def without_unseen(state: Moments, joined: Joined, query: Tensor, bandwidth: Tensor, squared: bool = False) -> Moments:
    r"""Return the moments with the S_0 that a query would have without its columns with categories unseen in fit.

    Such a category has the same distance r from every row. It does not change the normalised weights, but lowers
    log S_0 by $r^2/2\sigma^2$. Without this correction the ridge would remove the slopes.
    """
    return state._replace(lse=state.lse + (1 + squared) * log_weight_lost_to_unseen(joined, query, bandwidth))


def log_weight_lost_to_unseen(joined: Joined, query: Tensor, bandwidth: Tensor) -> Tensor:
    """Return (n,), the amount by which categories unseen in fit lower log S_0 at each query (see `without_unseen`)."""
    reduction = query.new_zeros(len(query))
    for coordinates, center, unseen in unseen_categories(joined, query):
        half_square = (center / bandwidth[..., coordinates]).square().sum(-1) / 2  # the first category is at 0
        reduction += torch.where(unseen, half_square, 0.0)
    return reduction


def has_unseen(joined: Joined, query: Tensor) -> Tensor:
    """Return flags (n,), True for queries with an unseen category."""
    flags = query.new_zeros(len(query), dtype=torch.bool)
    for _, _, unseen in unseen_categories(joined, query):
        flags |= unseen
    return flags


def unseen_categories(joined: Joined, query: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each category a mask (d,) of its coordinates, their values for an unseen level, and flags (n,).

    A flag is True for a query with an unseen level.
    """
    for feature in np.unique(joined.feature_of[np.isfinite(joined.center)]):
        coordinates = torch.tensor(joined.feature_of == feature)
        center = torch.tensor(joined.center).to(query)[coordinates]
        yield coordinates, center, (query[:, coordinates] == center).all(1)


def noise_share(state: Moments, squared_state: Moments, ridge: Tensor) -> Tensor:
    """Return ‖l‖², (n,), with l the local line's row of the smoother matrix, from moments under K and under K²."""
    share = (squared_state.lse - 2 * state.lse).exp()  # Σ_j w_j²
    centred, squared_centred = (_centred(moments, ridge.shape[-1]) for moments in (state, squared_state))
    lean = _solve(centred, centred.offset[..., None], ridge)
    shift = (squared_centred.offset - centred.offset)[..., None]  # mean of δ − o under w²; then of its square
    spread = squared_centred.spread + shift @ shift.mT
    return share * (1 + (lean * (spread @ lean - 2 * shift)).sum((1, 2)))


def _centred(state: Moments, slopes: int) -> _Centred:
    """Return the moments of the first `slopes` coordinates about their mean; 0 along coordinates without spread."""
    products, offset = state.spread[:, :slopes, :slopes], state.offset[:, :slopes, None]
    spread, second = products - offset @ offset.mT, products.diagonal(dim1=1, dim2=2)
    cross = state.cross[:, :slopes] - offset * state.value[:, None]
    rounding = 32 * torch.finfo(second.dtype).eps * second  # the spread is a difference of squares
    flat = (spread.diagonal(dim1=1, dim2=2) <= rounding)[..., None]
    spread, cross = spread.masked_fill(flat | flat.mT, 0.0), cross.masked_fill(flat, 0.0)
    return _Centred(offset[..., 0], second, spread, cross, state.lse)


def is_far(lse: Tensor) -> Tensor:
    """Return flags, True if all weights at a query are 0 in the dtype, so that no slope can be estimated."""
    return lse < math.log(torch.finfo(lse.dtype).tiny)


def least_ridge(dtype: torch.dtype) -> float:
    """Return ε, the factor of the second ridge."""
    return 1e-10 if dtype == torch.float64 else 1e-5


def ridge_at(ridge: Tensor, lse: Tensor) -> Tensor:
    """Return Λ (n, p) from Λ S_0, (p,) or (n, p), and log S_0 (n,)."""
    return ridge * (-lse[:, None]).clamp(max=math.log(LARGEST)).exp()


def widen_ridge(ridge: Tensor, target: Tensor | None) -> Tensor:
    """Extend a ridge to all coordinates of `target`, with a value so large that the added slopes equal the target."""
    extra = 0 if target is None else target.shape[-2] - ridge.shape[-1]
    return pad(ridge, (0, extra), value=LARGEST) if extra else ridge


def ridge_of(amount: Tensor, spread: Tensor, bandwidth: Tensor) -> Tensor:
    """Return Λ S_0 from ρ, the numbers' standard deviations (p,) and bandwidths (p,) or (n, p)."""
    return amount / (1 + (bandwidth / spread).square())  # 0 for a constant feature, which has no slope


def _solve(centred: _Centred, right: Tensor, ridge: Tensor) -> Tensor:
    """Return (S + Λ)⁻¹ `right` (n, d, k), computed with second moments scaled to 1.

    It is 0 in a coordinate without spread, and at a query far from all keys.
    """
    flat = (centred.spread.diagonal(dim1=1, dim2=2) == 0) & (ridge == 0)
    scale = centred.second.masked_fill(flat | (centred.second == 0), math.inf).sqrt()[..., None]
    added = ridge_at(ridge, centred.lse) / scale[..., 0].square()
    system = centred.spread / scale / scale.mT + torch.diag_embed(least_ridge(right.dtype) + added.clamp(max=LARGEST))
    if system.shape[1] == 1:  # a LAPACK call for each query takes longer than everything else
        solved = right / scale / system / scale
    else:
        solved = torch.cholesky_solve(right / scale, torch.linalg.cholesky_ex(system).L) / scale
    return solved.masked_fill(is_far(centred.lse)[:, None, None], 0.0)


# --- the plane

AMOUNTS = (np.inf, *10.0 ** np.arange(3, -7, -1))  # the candidates for λ; on a tie the first wins
_TIE = 1 - 1e-9  # the ratio of two errors above which they differ only by rounding


class Trend(NamedTuple):
    """The slopes of a plane over p coordinates: the numbers, or all coordinates.

    Attributes:
        slope: (p, v), per standard deviation.
        row: (m, p), the derivative of the slopes by each unique row's y at fixed λ.
        without: (m, p, v), the slopes without each unique row.
        spread: (p,), the standard deviations; 1 for a constant.
        center: (p,), the means.
        gain: (p, p), (C + λ)⁻¹ over the sum of the weights.
        error: (), the mean square of the errors e_g.
    """

    slope: Tensor
    row: Tensor
    without: Tensor
    spread: Tensor
    center: Tensor
    gain: Tensor
    error: Tensor

    def over(self, bandwidth: Tensor, slope: Tensor | None = None) -> Tensor:
        """Return the slopes per bandwidth (d,) or (n, d): (p, v) or (n, p, v)."""
        slope = self.slope if slope is None else slope
        return slope.to(bandwidth) * (bandwidth[..., : len(self.spread)] / self.spread.to(bandwidth))[..., None]


def trend(joined: Joined) -> Trend:
    """Return the plane through joined rows."""
    # One unit for all coordinates of a category, so that the plane does not depend on the order of its levels.
    spread, largest = joined.spread(), np.zeros(joined.feature_of.max() + 1)
    np.maximum.at(largest, joined.feature_of, spread)
    largest = np.where(largest > 0, largest, 1.0)[joined.feature_of]  # the square may overflow
    unit = largest * np.sqrt(np.bincount(joined.feature_of, (spread / largest) ** 2))[joined.feature_of]
    unit, share = np.where(unit > 0, unit, 1.0), joined.weight / joined.weight.sum()
    scaled = (joined.x.astype(np.float64) - joined.x[0]) / unit
    scaled, centred_y = scaled - share @ scaled, joined.y - share @ joined.y
    sizes = dict.fromkeys([len(unit)] if joined.num_terms else [joined.num_numeric, len(unit)])
    planes = [_plane(scaled[:, :size], centred_y, share) for size in sizes]
    error, slope, row, without, inverse = min(planes, key=itemgetter(0))
    size, center = len(slope), share @ joined.x.astype(np.float64)
    gain = inverse / joined.weight.sum()
    arrays = slope, row, without, unit[:size], center[:size], gain, np.array(error)
    return Trend(*map(torch.from_numpy, arrays))


def _plane(scaled: Array, centred_y: Array, share: Array) -> tuple[float, Array, Array, Array, Array]:
    """Return the least mean squared error over λ, and its slopes, `Trend.row`, `Trend.without` and (C + λ)⁻¹."""
    values, basis = np.linalg.eigh((share[:, None] * scaled).T @ scaled)
    rotated, cross = scaled @ basis, basis.T @ (scaled.T @ (share[:, None] * centred_y))
    least_error, gain, left_out = np.inf, np.zeros_like(values), centred_y
    for amount in AMOUNTS if len(centred_y) > 1 else ():
        gains = 1 / (values.clip(0) + amount)
        other_share = 1 - share * (1 + rotated**2 @ gains)
        errors = (centred_y - rotated @ (gains[:, None] * cross)) / other_share.clip(1e-9)[:, None]
        if (error := float(share @ (errors**2).mean(1))) < least_error * _TIE:
            least_error, gain, left_out = error, gains, errors
    slope, row = (basis * gain) @ cross, share[:, None] * ((rotated * gain) @ basis.T)
    return least_error, slope, row, slope - row[..., None] * left_out[:, None], (basis * gain) @ basis.T
