r"""A kernel with a fixed bandwidth over training rows: estimates, intervals, densities and weights, as arrays.

**Deviations and intervals** come from the error $e_i$ of each training row when the other rows predict it. Let $a_i$ be
the variance of that prediction over the noise variance, and $g_i = 1/(1 + a_i)$. The row's share in its own estimate
is $1 - g_i$, its residual is $g_i e_i$, and the residuals near x have $\sum g_i$ degrees of freedom:

$$ \tau^2(x) = \sum_i \tilde w_i e_i^2, \qquad
s^2(x) = \frac{\sum_i \tilde w_i\, (g_i e_i)^2}{\sum_i \tilde w_i\, g_i}, \qquad
\nu(x) = \frac{(\sum_i \tilde w_i)^2}{\sum_i \tilde w_i^2} \sum_i \tilde w_i\, g_i , $$

with $\tilde w$ the kernel's weights at twice the bandwidth around the mean of the rows that x attends to, which is
among the data even if x is not. Each sum includes the variance of rows with equal coordinates around their mean.

A single value deviates by $(\tau^2 + s^2 b)^{1/2}$. If the fit interpolates near x, no residual measures s. A line that
is shrunk to the plane then has $\tau^2$ instead of $s^2$, which is at least as large.

The confidence interval is centred on a local line with half the bandwidth (in d dimensions half the volume), whose bias
is small compared with its error:

$$ \tilde y \pm t_\nu \big(s^2 (\lVert l \rVert^2 + b) + (\lambda^\top \Lambda (\beta - \bar\beta))^2\big)^{1/2},
\qquad b = \sum_c \lambda_c^2\, \Lambda_c / S_0 , \qquad \lambda = (S + \Lambda)^{-1} o , $$

with l the line's row of the smoother matrix, including the row of the plane's slopes, $t_\nu$ Student's quantile, and
b the variance of slopes that a ridge of ρ = 0.25 allows: $s^2/\rho$ over a bandwidth. Beyond the data b grows with the
square of the distance, for every order and ridge of the estimate. The line's ridge is the estimate's, at most 0.25, and
shrinks to the slopes $\bar\beta$ of the plane through all rows. For the order "constant", and without a ridge, it is
0.25 and shrinks to 0. The last term is the bias of this shrinking, if the line's slope β is different.

Source: Loader 1999, chapter 2 and section 9.1 (degrees of freedom); Calonico, Cattaneo and Farrell 2018, On the effect
of bias estimation on coverage accuracy (undersmoothing compared with robust bias correction).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.spatial import cKDTree
from scipy.special import stdtrit
from torch import Tensor

from dikkat.regression.criterion import Criterion, Fold, FoldErrors, HeldOut, Trial
from dikkat.regression.joined import Array, Joined
from dikkat.regression.local import (
    RIDGE,
    LocalFit,
    Moments,
    Points,
    Trend,
    has_unseen,
    local_fit,
    moments,
    noise_share,
    parts,
    pick_points,
    points_of,
    ridge_at,
    ridge_of,
    trend,
    unseen_categories,
    weights,
    without_unseen,
)  # fmt: skip
from dikkat.regression.moments.launch import Profile, Window

_MAX_LSE = 1e9  # largest |lse| whose rounding does not affect a difference of two
_ERROR_WIDTH = 2.0  # the bandwidth for errors over that for values
_ENOUGH_ROWS, _MAX_WIDENINGS = 50.0, 20  # rows for a distribution of errors; steps to widen their window
_MIN_DEGREES_OF_FREEDOM = 1e-5  # minimum residual degrees of freedom a row; with fewer the fit interpolates
_MIN_FREEDOM = 0.5  # degrees of freedom below which a 95 % quantile exceeds 600 standard errors and has no use
_NO_SLOPE = -60.0  # log S_0 below which the ridge removes every slope


class Confidence(NamedTuple):
    """The confidence intervals at n queries.

    Attributes:
        center: (n, v).
        error: (n, v), the standard error; infinite if no residual measures the noise.
        freedom: (n, 1), degrees of freedom.
    """

    center: Array
    error: Array
    freedom: Array

    def half(self, level: float) -> Array:
        """Return half the width, (n, v), at a level of confidence; infinite without degrees of freedom."""
        quantile = stdtrit(np.maximum(self.freedom, _MIN_FREEDOM), (1 + level) / 2)
        return np.where(self.freedom < _MIN_FREEDOM, np.inf, quantile * self.error)


@dataclass(frozen=True)
class Smoother:
    """The estimates, weights and densities of a fit, and their errors.

    Attributes:
        joined: The training rows.
        profile: The kernel.
        degree: 0 for the constant order, 1 for the linear one.
        bandwidth: (d,), one for each coordinate.
        ridge: ρ of the linear order.
        folds: Held-out rows for the errors, instead of leaving out one row at a time.
    """

    joined: Joined
    profile: Profile
    degree: int
    bandwidth: Array
    ridge: float
    folds: list[Fold] | None = None

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Return estimates (n, v), in the dtype of the rows, and flags (n,), True if a query has an estimate."""

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            state = moments(chunk, self._points, window, degree=self.degree, slopes=self.joined.num_numeric)
            state = without_unseen(state, self.joined, chunk, window.bandwidth)
            return local_fit(state, *self._ridge_and_slopes(window)).estimate, state.lse

        mean, lse = self._in_chunks(query, self._points, work)
        return mean + self.joined.origin, np.isfinite(lse) & np.isfinite(mean).all(1)

    def without(self, query: Array, unique: NDArray[np.intp], fallback: Array) -> Array:
        """Return estimates of the first output (n,), each without one of the rows: that in `unique` (n,).

        If no other row has weight at a query, the result is its `fallback` (n,).
        """

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            queries, excluded = chunk[:, :-1], chunk[:, -1].long()
            window = self._window(queries)
            ridge = self._ridge_and_slopes(window)[0]
            target = self.trend.over(window.bandwidth, self.trend.without[excluded]) if self.shrinks else None
            numbers = self.joined.num_numeric
            state = moments(queries, self._double, window, degree=self.degree, slopes=numbers, exclude=excluded)
            state = without_unseen(state, self.joined, queries, window.bandwidth)
            return local_fit(state, ridge, target).estimate[:, 0], state.lse

        estimate, lse = self._in_chunks(np.column_stack([query, unique]), self._double, work)
        return np.where(np.isfinite(lse) & np.isfinite(estimate), estimate, fallback)

    def shares(self, query: Array, prior_weight: float, prior: Array) -> Array:
        """Return the means (n, v), as if there were `prior_weight` more rows with the values `prior` (n, v)."""

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            state = moments(chunk, self._double, window)
            state = without_unseen(state, self.joined, chunk, window.bandwidth)
            mass = state.lse.exp()[:, None]
            return mass, torch.where(mass > 0, state.value, 0.0)

        mass, mean = self._in_chunks(query, self._double, work)
        return np.asarray((mass * (mean + self.joined.origin) + prior_weight * prior) / (mass + prior_weight))

    def deviation(self, query: Array) -> list[Array]:
        """Return the deviation of single values and its growth, (n, v), at queries with rows in reach.

        The growth, at least 1, is the deviation over the deviation at the rows that the query attends to.
        """

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            state = self._line_moments(chunk, window)
            open_variance = _open_variance(state, self._ridge(window))
            return self._deviation(chunk + state.offset * window.bandwidth, open_variance)

        return self._in_chunks(query, self._double, work)

    def unseen(self, query: Array) -> Array:
        """Return the variance that categories unseen in fit add at queries, (n, v).

        Let d be the change of a row's estimate if its category is replaced by an unseen category. With c categories the
        mean of d² is (c − 1)/c of the variance among all categories, and an unseen category varies around their mean.
        """
        result = np.zeros((len(query), self.joined.y.shape[1]))
        for coordinates, center, unseen in unseen_categories(self.joined, torch.tensor(query)):
            if unseen.any():
                if (key := int(coordinates.nonzero()[0, 0])) not in self.added:
                    changed_x = self.joined.x.copy()
                    changed_x[:, coordinates.numpy()] = center.numpy()
                    change = self.estimate(self.joined.x)[0] - self.estimate(changed_x)[0]
                    count = int(coordinates.sum()) + 1
                    square = np.average(change**2, axis=0, weights=self.joined.weight)
                    self.added[key] = square * (count + 1) / (count - 1)
                result[unseen.numpy()] += self.added[key]
        return result

    @cached_property
    def added(self) -> dict[Any, Array]:
        """A cache of the variances that unknown cells add, by a category's first coordinate or by missing columns.

        With the key "influence" it has the result of `diagnostics.influence`.
        """
        return {}

    def nearest_deviation(self, query: Array) -> list[Array]:
        """Return the deviation and its growth, (n, v), at queries without a row in reach, from the nearest rows."""

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            queries, nearest = chunk.chunk(2, 1)
            window = self._window(queries)
            offset = ((nearest - queries) / window.bandwidth)[:, : self.joined.num_numeric]
            return self._deviation(nearest, _unknown_slope(offset, self._ridge(window)).square().sum(1, keepdim=True))

        return self._in_chunks(np.hstack([query, self.nearest(query) @ self.joined.x]), self._double, work)

    def errors_near(self, query: Array, unique: NDArray[np.intp], count: Array) -> Iterator[tuple[slice, Array]]:
        """Yield slices of queries, and the probability (n, m) of the errors of m unique rows for a new value.

        `unique` (m,) are the indices of these rows, and `count` (m,) their weights.

        The probabilities add up to less than 1: an unknown error has the rest.
        """

        def find_mean_point(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            state = moments(chunk, self._double, window, degree=1, slopes=0)
            return chunk + state.offset * window.bandwidth, state.lse

        mean_points, lse = self._in_chunks(query, self._double, find_mean_point)
        if (isolated := ~np.isfinite(lse)).any():
            mean_points[isolated] = self.nearest(query[isolated]) @ self.joined.x
        error_points = pick_points(self._double, unique)
        error_points = Points(error_points.key, error_points.value, torch.tensor(count))
        for rows in parts(len(mean_points), error_points.key.numel()):
            chunk = torch.tensor(mean_points[rows])
            window = self._window(chunk, _ERROR_WIDTH)
            window = replace(window, bandwidth=window.bandwidth.expand(len(chunk), -1).contiguous())
            for _ in range(_MAX_WIDENINGS):
                mass = moments(chunk, error_points, window).lse.exp()[:, None]
                few = mass < min(_ENOUGH_ROWS, 0.8 * float(error_points.weight.sum()))
                if not few.any():
                    break
                window = replace(window, bandwidth=window.bandwidth * torch.where(few, 1.5, 1.0))
            share = weights(chunk, error_points, window) * mass / (1 + mass)
            yield rows, share.numpy()

    @property
    def design_effect(self) -> float:
        """κ of the first output, the design effect of folds, at least 1."""
        return 1.0 if self.tested is None else float(self.tested.design_effect[0])

    @property
    def log_bandwidth(self) -> Array:
        """log σ of each feature."""
        return np.asarray(np.log(self.bandwidth)[np.searchsorted(self.joined.feature_of, range(self.joined.features))])

    @cached_property
    def left_out(self) -> tuple[Criterion, Trial]:
        """The leave-one-out criterion and its trial at these bandwidths."""
        criterion = Criterion(self.joined, self.profile, self.degree, self.ridge)
        return criterion, criterion(self.log_bandwidth)

    @cached_property
    def tested(self) -> FoldErrors | None:
        """The errors of rows that other folds predict; None without folds."""
        if self.folds is None:
            return None
        held = HeldOut(self.joined, self.folds, self.profile, self.degree, self.ridge)
        return FoldErrors(held, held(self.log_bandwidth))

    def confidence(self, query: Array) -> tuple[Confidence, NDArray[np.bool_]]:
        """Return the confidence intervals at queries, and flags (n,), True if a query has an interval."""
        narrow = 2.0 ** (-1 / self.joined.compared_features)

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk, narrow)
            state, squared = (self._line_moments(chunk, replace(window, squared=square)) for square in (False, True))
            ridge = self._ridge(window, min(self.ridge, RIDGE) if self.shrinks else RIDGE)
            _, noise, freedom = self._errors(chunk + state.offset * window.bandwidth)
            share = noise_share(state, squared, ridge)[:, None] + _open_variance(state, self._ridge(window))
            target = self.trend.over(window.bandwidth) * self.shrinks
            fit = local_fit(state, ridge, target)
            if self.shrinks:
                share = share + self._plane_share(chunk, state, fit, window)
            bias = _ridge_bias(state, ridge, fit, target)
            return fit.estimate, (noise * share + bias.square()).sqrt(), freedom

        center, error, freedom = self._in_chunks(query, self._double, work)
        in_reach = self.profile == "gaussian" or self.neighbors(query) > 0
        return Confidence(center + self.joined.origin, error, freedom), np.asarray(
            np.isfinite(center).all(1) & in_reach
        )

    def _plane_share(self, chunk: Tensor, state: Moments, fit: LocalFit, window: Window) -> Tensor:
        """Return the plane's share of ‖l‖², (n, 1): the plane's slopes depend on y too."""
        plane, slope_share = self.trend, self._slope_shares(state, fit, window)
        mean_z = (chunk[:, : len(plane.spread)] - plane.center) / plane.spread - slope_share  # Σ_j l_j z_j
        square = plane.row.mT @ (plane.row / self._double.weight[:, None])
        return (slope_share * (2 * mean_z @ plane.gain + slope_share @ square)).sum(1, keepdim=True)

    def _slope_shares(self, state: Moments, fit: LocalFit, window: Window) -> Tensor:
        """Return z − Σ_j l_j z_j, (n, p): the derivative of an estimate by each slope of the plane."""
        numbers, size = slice(self.joined.num_numeric), len(self.trend.spread)
        offset = state.offset[:, :size, None]
        spread = state.spread[:, numbers, :size].mT - offset @ state.offset[:, None, numbers]
        rest = offset + spread @ fit.row[:, 1 : 1 + self.joined.num_numeric, None]  # Σ_j l_j δ_j
        return -rest[..., 0] * window.bandwidth[..., :size] / self.trend.spread

    def noise(self, query: Array) -> list[Array]:
        """Return s², (n, v), around the rows that queries attend to, and ν, (n, 1).

        s² is infinite if no residual measures it.
        """

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            state = moments(chunk, self._double, window, degree=1, slopes=0)
            return self._errors(chunk + state.offset * window.bandwidth)[1:]

        return self._in_chunks(query, self._double, work)

    def neighbors(self, query: Array) -> Array:
        """Return (Σ_j W_j K_j)² / Σ_j W_j K_j², (n,); 0 if no row is in reach."""

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            lse, squared = (moments(chunk, self._double, replace(window, squared=on)).lse for on in (False, True))
            return (torch.where(lse.abs() < _MAX_LSE, (2 * lse - squared).exp(), 0.0),)

        return self._in_chunks(query, self._double, work)[0]

    def log_density(self, query: Array) -> Array:
        """Return log Σ_j W_j K_j − log Σ_j W_j, (n,), with K normalised to the integral 1 over the numbers."""
        size = self.joined.num_numeric

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            log_mass = moments(chunk, self._points, window).lse - window.bandwidth[..., :size].log().sum(-1)
            return (log_mass.masked_fill(has_unseen(self.joined, chunk), -math.inf),)

        if self.profile == "gaussian":
            scale = -size / 2 * math.log(2 * math.pi)
        else:
            scale = math.log((size + 2) / 2) - (size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1))
        mass = self._in_chunks(query, self._points, work)[0]
        return np.asarray(mass - math.log(self.joined.weight.sum()) + scale)

    def trace(self) -> float:
        """Return the trace of the smoother matrix over the training rows, in float64."""

        def work(chunk: Tensor) -> tuple[Tensor, ...]:
            window = self._window(chunk)
            degree = 1 if self.shrinks else self.degree
            state = moments(chunk, self._double, window, degree=degree, slopes=self.joined.num_numeric)
            fit = local_fit(state, *self._ridge_and_slopes(window))
            slope_share = self._slope_shares(state, fit, window) if self.shrinks else fit.row[:, :0]
            return state.lse, fit.row[:, 0], slope_share

        lse, first, slope_share = self._in_chunks(self.joined.x, self._double, work)
        plane = float((slope_share * self.trend.row.numpy()).sum()) if self.shrinks else 0.0
        return float((np.exp(np.log(self.joined.weight) - lse) * first).sum()) + plane

    def attention(self, query: Array, row_weight: Array, top_k: int | None = None) -> Array | csr_array:
        """Return the weights of all training rows at each query, (n, m); with `top_k` only the largest, sparse."""
        counted = np.flatnonzero(self.joined.unique_index >= 0)
        unique, weight = self.joined.unique_index[counted], row_weight[counted]
        dtype, pieces = self.joined.x.dtype, list[Any]()
        for chunk, block in self._weights(query, self.joined.x[unique], weight):
            isolated = block.sum(1) == 0
            if isolated.any():
                shares = self.nearest(query[chunk][isolated]).toarray()
                block[isolated] = shares[:, unique] * (weight / self.joined.weight[unique])
            if top_k is None:
                pieces.append(np.zeros((len(block), len(row_weight)), dtype))
                pieces[-1][:, counted] = block
                continue
            count = min(int(top_k), len(counted))
            columns = np.sort(np.argpartition(-block, count - 1, axis=1)[:, :count], axis=1)
            largest = np.take_along_axis(block, columns, 1).astype(dtype)
            ends = np.arange(len(block) + 1) * count
            shape = len(block), len(row_weight)
            pieces.append(csr_array((largest.ravel(), counted[columns].ravel(), ends), shape=shape))
            pieces[-1].eliminate_zeros()
        return np.concatenate(pieces) if top_k is None else csr_array(vstack(pieces, format="csr"))

    def _weights(self, query: Array, key: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """Yield slices of queries, and their attention to rows (m, d) with weights (m,)."""
        keys, counts = (torch.tensor(array) for array in (key, weight))
        points = Points(keys, keys[:, :0], counts.to(keys))
        for rows in parts(len(query), key.size):
            queries = torch.tensor(query[rows])
            yield rows, weights(queries, points, self._window(queries)).numpy()

    def nearest(self, query: Array) -> csr_array:
        """Return the (n, m) shares, by weight, of the nearest row of each query, or of several at that distance."""
        tree, scale = self._tree
        with np.errstate(over="ignore"):
            scaled = np.clip((query - self.joined.x[0].astype(np.float64)) * scale, -1e150, 1e150)
        distance, _ = tree.query(scaled)
        found_rows = tree.query_ball_point(scaled, distance * (1 + 1e-12))
        unique = np.concatenate(found_rows).astype(np.intp)
        rows = np.repeat(np.arange(len(query)), [len(neighbors) for neighbors in found_rows])
        weight = self.joined.weight[unique]
        share = weight / np.bincount(rows, weight)[rows]
        return csr_array((share, (rows, unique)), shape=(len(query), len(self.joined.x)))

    @cached_property
    def _tree(self) -> tuple[cKDTree, Array]:
        """A tree of the unique rows in units of the bandwidth, scaled so that nothing overflows; and the scale."""
        x = self.joined.x.astype(np.float64) - self.joined.x[0]
        scale = self.bandwidth.min() / self.bandwidth
        scale = scale / max(float(np.abs(x * scale).max()), np.finfo(np.float64).tiny)
        return cKDTree(x * scale), scale

    def _line_moments(self, chunk: Tensor, window: Window) -> Moments:
        """Return the moments of degree 1 in float64, with log S_0 as without unseen categories."""
        state = moments(chunk, self._double, window, degree=1, slopes=self.joined.num_numeric)
        return without_unseen(state, self.joined, chunk, window.bandwidth, window.squared)

    def _deviation(self, points: Tensor, open_variance: Tensor) -> tuple[Tensor, Tensor]:
        error, noise, _ = self._errors(points)
        if self.shrinks and len(self.joined.x) > 1:  # a fit that interpolates has no residuals; its error is larger
            noise = torch.where(noise.isinf(), error, noise)
        extra = torch.where(open_variance > 0, noise * open_variance, 0.0)
        return (error + extra).sqrt(), torch.where((error > 0) & (extra > 0), 1 + extra / error, 1.0).sqrt()

    def _errors(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return τ² (n, v), s² (n, v) and ν (n, 1) at points among the data."""
        window = self._window(points, _ERROR_WIDTH)
        state, squared = (moments(points, self._residuals, replace(window, squared=square)) for square in (False, True))
        values = self.joined.y.shape[1]
        error, noise, share = state.value.split([values, values, 1], 1)
        interpolates = share <= _MIN_DEGREES_OF_FREEDOM
        freedom = (2 * state.lse - squared.lse).exp()[:, None] * share
        if self.tested is not None:
            kappa = torch.tensor(self.tested.design_effect)
            noise, share = noise * kappa, torch.maximum(1 - kappa * (1 - share), share / 4)
            freedom = freedom.clamp(max=float(len(self.tested.folds)))
        return error, torch.where(interpolates, math.inf, noise / share), freedom

    @cached_property
    def _points(self) -> Points:
        return points_of(self.joined, torch.from_numpy(self.joined.x).dtype)

    @cached_property
    def _double(self) -> Points:
        """The points in float64."""
        is_double = self._points.key.dtype == torch.float64
        return self._points if is_double else points_of(self.joined, torch.float64)

    @cached_property
    def _residuals(self) -> Points:
        """The points with e², (g e)² and the share of noise in the residuals as values."""
        arrays = self.joined.variance_within, self.joined.weight
        within, weight = (torch.tensor(array, dtype=torch.float64) for array in arrays)
        criterion, trial = self.left_out
        share = trial.residual_share[:, None]
        count = torch.tensor(self.joined.left_out_counts()).double() if self.joined.precise else weight
        free_share = 1 - (1 - share) / count.clamp(min=1)[:, None]  # of W equal rows W − 1 vary freely
        loss = criterion.loss(trial) if self.tested is None else torch.tensor(self.tested.loss)
        squares = torch.cat([loss, (share * trial.errors).square() + within], 1) * (weight / count)[:, None]
        return Points(self._double.key, torch.cat([squares, free_share], 1), count)

    @cached_property
    def _spread(self) -> Tensor:
        return torch.tensor(self.joined.spread()[: self.joined.num_numeric])

    @cached_property
    def trend(self) -> Trend:
        """The plane to whose slopes the ridge shrinks lines."""
        return trend(self.joined)

    @property
    def shrinks(self) -> bool:
        """True if a ridge shrinks lines to the plane."""
        return bool(self.degree and self.ridge > 0)

    def _ridge_and_slopes(self, window: Window) -> tuple[Tensor | None, Tensor | None]:
        """Return Λ S_0 of the estimate, None for the constant order; and the plane's slopes, None without a ridge."""
        ridge = self._ridge(window, self.ridge) if self.degree else None
        return ridge, self.trend.over(window.bandwidth) if self.shrinks else None

    def _ridge(self, window: Window, amount: float = RIDGE) -> Tensor:
        """Return Λ S_0 for ρ = `amount`."""
        bandwidth = window.bandwidth[..., : self.joined.num_numeric]
        return ridge_of(torch.tensor(amount).to(bandwidth), self._spread.to(bandwidth), bandwidth)

    def _window(self, query: Tensor, times: float = 1.0) -> Window:
        return Window(self.profile, torch.tensor(self.bandwidth).to(query) * times)

    def _in_chunks(self, query: Array, points: Points, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """Apply `work` to chunks of the queries, to save memory; return its results in float64."""
        result = [
            [piece.double() for piece in work(torch.tensor(query[rows]).to(points.key))]
            for rows in parts(len(query), points.columns(1))
        ]
        return [torch.cat(pieces).numpy() for pieces in zip(*result, strict=True)]


def _open_variance(state: Moments, ridge: Tensor) -> Tensor:
    """Return b (n, 1), the variance of slopes that a ridge allows, as in the module's docstring."""
    slopes, fit = ridge.shape[-1], local_fit(state, ridge)
    lean = fit.row[:, 1 : 1 + slopes] * (-state.lse[:, None]).clamp(max=-_NO_SLOPE).exp() * ridge.sqrt()
    flat = (state.lse < _NO_SLOPE)[:, None]
    return torch.where(flat, _unknown_slope(state.offset[:, :slopes], ridge), lean).square().sum(1, keepdim=True)


def _ridge_bias(state: Moments, ridge: Tensor, fit: LocalFit, target: Tensor) -> Tensor:
    """Return uᵀΛ(β − b), (n, v): the bias of shrinking the slopes to `target`."""
    slopes = slice(1, 1 + ridge.shape[-1])
    difference = fit.theta[:, slopes] - target[..., : ridge.shape[-1], :]
    bias = (fit.row[:, slopes] * ridge_at(ridge, state.lse))[..., None] * difference
    return bias.sum(1)


def _unknown_slope(offset: Tensor, ridge: Tensor) -> Tensor:
    """Return an estimate's deviation from each of p slopes, (n, p), if only the ridge limits the slopes."""
    return torch.where(ridge > 0, offset / ridge.sqrt(), 0.0)
