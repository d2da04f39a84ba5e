r"""A kernel of a given bandwidth over given rows: arrays in, arrays out, and nothing of scikit-learn.

**Deviations and intervals** are made of the training rows' own errors when each is predicted from the others, $e_i$.
With $a_i$ its variance in units of the noise's, the row's share in its own estimate is $1 - g_i$ with
$g_i = 1/(1 + a_i)$; its residual is $g_i e_i$, and the residuals of the rows near x have as many degrees of freedom as
their $g_i$ sum up to:

$$ \tau^2(x) = \sum_i \tilde w_i e_i^2, \qquad
s^2(x) = \frac{\sum_i \tilde w_i\, (g_i e_i)^2}{\sum_i \tilde w_i\, g_i}, \qquad
\nu(x) = \frac{(\sum_i \tilde w_i)^2}{\sum_i \tilde w_i^2} \sum_i \tilde w_i\, g_i , $$

with $\tilde w$ the kernel's weights at twice the bandwidth about the mean point that x looks at, which lies among the
data even where x does not. Rows with equal coordinates vary about their mean as well, which counts in each sum.

A single value deviates by $(\tau^2 + s^2 b)^{1/2}$. The confidence interval is about a local line with
half the bandwidth (in d dimensions half the volume), whose bias is small beside its error:

$$ \tilde y \pm t_\nu \big(s^2 (\lVert l \rVert^2 + b) + (\lambda^\top \Lambda (\beta - \bar\beta))^2\big)^{1/2},
\qquad b = \sum_c \lambda_c^2\, \Lambda_c / S_0 , \qquad \lambda = (S + \Lambda)^{-1} o , $$

with l the line's row of the smoother matrix, to which that of the plane's slopes is added,
$t_\nu$ Student's quantile, and b what a ridge of ρ = 0.25 leaves open:
that slopes vary with $s^2/\rho$ over a bandwidth. Beyond the data it goes up with the square of the distance, whatever
the order and the ridge of the estimate. The line's own ridge is the estimate's, at most 0.25, and draws to the slopes
$\bar\beta$ of the plane through all rows; of the order "constant", and without a ridge, it is 0.25, and draws to 0. The
last term is the bias that it has where the line's slope β is another.

Source: Loader 1999, chapter 2 and section 9.1 (degrees of freedom); Calonico, Cattaneo and Farrell 2018, On the effect
of bias estimation on coverage accuracy (undersmoothing beside robust correction of the bias).
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
    points_of,
    ridge_at,
    ridge_of,
    trend,
    unseen_categories,
    weights,
    without_unseen,
)  # fmt: skip
from dikkat.regression.moments.launch import Profile, Window

_DIGITS = 1e9  # largest |lse| whose rounding does not show in a difference of two
_WIDER = 2.0  # the bandwidth of errors over that of values
_ENOUGH, _WIDENINGS = 50.0, 20  # rows whose errors make a distribution; most steps by which their window is widened
_MIN_DEGREES_OF_FREEDOM = 1e-5  # minimum residual degrees of freedom a row; with fewer the fit interpolates
_FREE = 0.5  # degrees of freedom below which a quantile says nothing: from 600 standard errors on at 95 %
_UNTESTED = 1e-300  # the weight of a row that no fold tests, where errors are asked for
_GONE = -60.0  # log S_0 below which the ridge has left nothing of a slope


class Confidence(NamedTuple):
    """The confidence intervals at n queries.

    Attributes:
        center: (n, v).
        error: (n, v), the standard error; infinite where no noise is left to measure it by.
        freedom: (n, 1), degrees of freedom.
    """

    center: Array
    error: Array
    freedom: Array

    def half(self, level: float) -> Array:
        """Half the width, (n, v), at a level of confidence; infinite without degrees of freedom."""
        quantile = stdtrit(np.maximum(self.freedom, _FREE), (1 + level) / 2)
        return np.where(self.freedom < _FREE, np.inf, quantile * self.error)


@dataclass(frozen=True)
class Smoother:
    """The estimates, weights and densities of a fit, and how sure they are.

    Attributes:
        joined: The training rows.
        profile: The kernel.
        degree: 0 for the constant order, 1 for the linear one.
        bandwidth: (d,), one for each coordinate.
        ridge: ρ of the linear order.
        folds: In place of leaving out one row.
    """

    joined: Joined
    profile: Profile
    degree: int
    bandwidth: Array
    ridge: float
    folds: list[Fold] | None = None

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates (n, v) and who has one, (n,); computed in the dtype of the rows."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._points, window, degree=self.degree)
            around = without_unseen(around, self.joined, part, window.bandwidth)
            return local_fit(around, *self._drawn(window)).estimate, around.lse

        mean, lse = self._by_parts(query, self._points, work)
        return mean + self.joined.origin, np.isfinite(lse) & np.isfinite(mean).all(1)

    def without(self, query: Array, unique: NDArray[np.intp], others: Array) -> Array:
        """The estimates of the first output (n,) at queries, each without a unique row; else the mean of the others."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            at, left = part[:, :-1], part[:, -1].long()
            window = self._window(at)
            ridge = self._drawn(window)[0]
            toward = self.trend.over(window.bandwidth, self.trend.without[left]) if self.drawn else None
            around = moments(at, self._wide, window, degree=self.degree, exclude=left)
            around = without_unseen(around, self.joined, at, window.bandwidth)
            return local_fit(around, ridge, toward).estimate[:, 0], around.lse

        estimate, lse = self._by_parts(np.column_stack([query, unique]), self._wide, work)
        return np.where(np.isfinite(lse) & np.isfinite(estimate), estimate, others)

    def shares(self, query: Array, doubt: float, prior: Array) -> Array:
        """The means (n, v), as if so many more rows of the values `prior`, (n, v), were there."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._wide, window)
            around = without_unseen(around, self.joined, part, window.bandwidth)
            mass = around.lse.exp()[:, None]
            return mass, torch.where(mass > 0, around.value, 0.0)

        mass, mean = self._by_parts(query, self._wide, work)
        return np.asarray((mass * (mean + self.joined.origin) + doubt * prior) / (mass + doubt))

    def deviation(self, query: Array) -> list[Array]:
        """The deviation of single values from the estimates and its growth, (n, v), at queries with rows in reach.

        The growth is the deviation over that of the rows which the query looks at, at least 1.
        """

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = self._about(part, window)
            doubt = _open(around, self._doubt(window))
            return self._deviation(part + around.offset * window.bandwidth, doubt)

        return self._by_parts(query, self._wide, work)

    def unseen(self, query: Array) -> Array:
        """The variance that categories that were not there in fit add at queries, (n, v).

        At a row the estimates with the row's category and with one that was not there are d apart. With c categories
        the mean of d² is (c − 1)/c of the variance among categories in general, and a new one lies about their mean.
        """
        result = np.zeros((len(query), self.joined.y.shape[1]))
        for own, center, there in unseen_categories(self.joined, torch.tensor(query)):
            if there.any():
                if (key := int(own.nonzero()[0, 0])) not in self.added:
                    other = self.joined.x.copy()
                    other[:, own.numpy()] = center.numpy()
                    apart = self.estimate(self.joined.x)[0] - self.estimate(other)[0]
                    count = int(own.sum()) + 1
                    square = np.average(apart**2, axis=0, weights=self.joined.weight)
                    self.added[key] = square * (count + 1) / (count - 1)
                result[there.numpy()] += self.added[key]
        return result

    @cached_property
    def added(self) -> dict[Any, Array]:
        """The variances that unknown cells add, by a category's first coordinate or by what is missing."""
        return {}

    def nearest_deviation(self, query: Array) -> list[Array]:
        """The deviation and its growth at queries with no row in reach, (n, v), which the nearest rows answer."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            own, seen = part.chunk(2, 1)
            window = self._window(own)
            far = _unknown(((seen - own) / window.bandwidth)[:, : self.joined.numbers], self._doubt(window))
            return self._deviation(seen, far.square().sum(1, keepdim=True))

        return self._by_parts(np.hstack([query, self.nearest(query) @ self.joined.x]), self._wide, work)

    def errors_near(self, query: Array, count: Array) -> Iterator[tuple[slice, Array]]:
        """Some queries at a time: the probabilities of the errors of so many rows, (n, m), less than 1 in all."""

        def looked_at(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._wide, window, degree=1)
            return part + around.offset * window.bandwidth, around.lse

        at, lse = self._by_parts(query, self._wide, looked_at)
        if (lost := ~np.isfinite(lse)).any():
            at[lost] = self.nearest(query[lost]) @ self.joined.x
        erring = Points(self._wide.key, self._wide.value, torch.tensor(count).clamp(min=_UNTESTED))
        for rows in parts(len(at), self.joined.x.size):
            part = torch.tensor(at[rows])
            window = self._window(part, _WIDER)
            window = replace(window, bandwidth=window.bandwidth.expand(len(part), -1).contiguous())
            for _ in range(_WIDENINGS):
                mass = moments(part, erring, window).lse.exp()[:, None]
                few = mass < min(_ENOUGH, 0.8 * float(erring.weight.sum()))
                if not few.any():
                    break
                window = replace(window, bandwidth=window.bandwidth * torch.where(few, 1.5, 1.0))
            share = weights(part, erring, window) * mass / (1 + mass)
            yield rows, share.numpy()

    @property
    def alike(self) -> float:
        """κ of the first output: as how many rows the errors of one fold count, at least 1."""
        return 1.0 if self.tested is None else float(self.tested.design_effect[0])

    @cached_property
    def left_out(self) -> tuple[Criterion, Trial]:
        """The leave-one-out criterion of these bandwidths."""
        criterion = Criterion(self.joined, self.profile, self.degree, self.ridge)
        first = np.searchsorted(self.joined.feature, range(self.joined.features))
        return criterion, criterion(np.log(self.bandwidth)[first])

    @cached_property
    def tested(self) -> FoldErrors | None:
        """The errors of rows that other folds predict, where there are folds."""
        if self.folds is None:
            return None
        first = np.searchsorted(self.joined.feature, range(self.joined.features))
        held = HeldOut(self.joined, self.folds, self.profile, self.degree, self.ridge)
        return FoldErrors(held, held(np.log(self.bandwidth)[first]))

    def confidence(self, query: Array) -> tuple[Confidence, NDArray[np.bool_]]:
        """The confidence intervals at queries, and True for those that have one, (n,)."""
        narrow = 2.0 ** (-1 / self.joined.features)

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part, narrow)
            around, squared = (self._about(part, replace(window, squared=square)) for square in (False, True))
            ridge, open_ = self._doubt(window, min(self.ridge, RIDGE) if self.drawn else RIDGE), self._doubt(window)
            _, noise, freedom = self._errors(part + around.offset * window.bandwidth)
            share = noise_share(around, squared, ridge)[:, None] + _open(around, open_)
            toward = self.trend.over(window.bandwidth) * self.drawn
            fit = local_fit(around, ridge, toward)
            if self.drawn:
                share = share + self._of_plane(part, around, fit, window)
            bias = _lost_to_ridge(around, ridge, fit, toward)
            return fit.estimate, (noise * share + bias.square()).sqrt(), freedom

        center, error, freedom = self._by_parts(query, self._wide, work)
        in_reach = self.profile == "gaussian" or self.neighbors(query) > 0
        return Confidence(center + self.joined.origin, error, freedom), np.asarray(
            np.isfinite(center).all(1) & in_reach
        )

    def _of_plane(self, part: Tensor, around: Moments, fit: LocalFit, window: Window) -> Tensor:
        """The plane's part of ‖l‖², (n, 1): the slopes to which a line is drawn are of y too."""
        plane, rest = self.trend, self._of_slopes(around, fit, window)
        at = (part[:, : len(plane.spread)] - plane.center) / plane.spread - rest  # Σ_j l_j z_j
        square = plane.row.mT @ (plane.row / self._wide.weight[:, None])
        return (rest * (2 * at @ plane.gain + rest @ square)).sum(1, keepdim=True)

    def _of_slopes(self, around: Moments, fit: LocalFit, window: Window) -> Tensor:
        """z − Σ_j l_j z_j, (n, p): how much of each of the plane's slopes an estimate has."""
        own, size = slice(self.joined.numbers), len(self.trend.spread)
        offset = around.offset[:, :size, None]
        spread = around.spread[:, :size, own] - offset @ around.offset[:, None, own]
        rest = offset + spread @ fit.row[:, 1 : 1 + self.joined.numbers, None]  # Σ_j l_j δ_j
        return -rest[..., 0] * window.bandwidth[..., :size] / self.trend.spread

    def noise(self, query: Array) -> Array:
        """s², (n, v), about the rows that queries look at; infinite where none is left to measure it by."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._wide, window, degree=1)
            return (self._errors(part + around.offset * window.bandwidth)[1],)

        return self._by_parts(query, self._wide, work)[0]

    def neighbors(self, query: Array) -> Array:
        """(Σ_j W_j K_j)² / Σ_j W_j K_j², (n,); 0 where no row is in reach."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            lse, squared = (moments(part, self._wide, replace(window, squared=each)).lse for each in (False, True))
            return (torch.where(lse.abs() < _DIGITS, (2 * lse - squared).exp(), 0.0),)

        return self._by_parts(query, self._wide, work)[0]

    def log_density(self, query: Array) -> Array:
        """log Σ_j W_j K_j, with K such that its integral over the numbers is 1, less log Σ_j W_j: (n,)."""
        size = self.joined.numbers

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._points, window).lse - window.bandwidth[..., :size].log().sum(-1)
            return (around.masked_fill(has_unseen(self.joined, part), -math.inf),)

        if self.profile == "gaussian":
            scale = -size / 2 * math.log(2 * math.pi)
        else:
            scale = math.log((size + 2) / 2) - (size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1))
        mass = self._by_parts(query, self._points, work)[0]
        return np.asarray(mass - math.log(self.joined.weight.sum()) + scale)

    def trace(self) -> float:
        """The trace of the smoother matrix over the training rows, in float64."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            around = moments(part, self._wide, window, degree=1 if self.drawn else self.degree)
            fit = local_fit(around, *self._drawn(window))
            rest = self._of_slopes(around, fit, window) if self.drawn else fit.row[:, :0]
            return around.lse, fit.row[:, 0], rest

        lse, own, rest = self._by_parts(self.joined.x, self._wide, work)
        plane = float((rest * self.trend.row.numpy()).sum()) if self.drawn else 0.0
        return float((np.exp(np.log(self.joined.weight) - lse) * own).sum()) + plane

    def attention(self, query: Array, row_weight: Array, top_k: int | None = None) -> Array | csr_array:
        """The weights of all training rows at each query; or the largest, sparse."""
        kept = np.flatnonzero(self.joined.inverse >= 0)
        unique, weight = self.joined.inverse[kept], row_weight[kept]
        dtype, pieces = self.joined.x.dtype, list[Any]()
        for part, result in self._weights(query, self.joined.x[unique], weight):
            lost = result.sum(1) == 0
            if lost.any():
                shares = self.nearest(query[part][lost]).toarray()
                result[lost] = shares[:, unique] * (weight / self.joined.weight[unique])
            if top_k is None:
                pieces.append(np.zeros((len(result), len(row_weight)), dtype))
                pieces[-1][:, kept] = result
                continue
            count = min(int(top_k), len(kept))
            columns = np.sort(np.argpartition(-result, count - 1, axis=1)[:, :count], axis=1)
            largest = np.take_along_axis(result, columns, 1).astype(dtype)
            ends = np.arange(len(result) + 1) * count
            shape = len(result), len(row_weight)
            pieces.append(csr_array((largest.ravel(), kept[columns].ravel(), ends), shape=shape))
            pieces[-1].eliminate_zeros()
        return np.concatenate(pieces) if top_k is None else csr_array(vstack(pieces, format="csr"))

    def _weights(self, query: Array, key: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """The attention of some queries at a time to rows (m, d) with weights (m,)."""
        keys, counts = (torch.tensor(array) for array in (key, weight))
        points = Points(keys, keys[:, :0], counts.to(keys))
        for rows in parts(len(query), key.size):
            queries = torch.tensor(query[rows])
            yield rows, weights(queries, points, self._window(queries)).numpy()

    def nearest(self, query: Array) -> csr_array:
        """The shares (n, m) of the nearest rows in the answer to each query: one, or all that are as near."""
        tree, scale = self._tree
        with np.errstate(over="ignore"):
            scaled = np.clip((query - self.joined.x[0].astype(np.float64)) * scale, -1e150, 1e150)
        distance, _ = tree.query(scaled)
        result = tree.query_ball_point(scaled, distance * (1 + 1e-12))
        unique = np.concatenate(result).astype(np.intp)
        rows = np.repeat(np.arange(len(query)), [len(each) for each in result])
        weight = self.joined.weight[unique]
        share = weight / np.bincount(rows, weight)[rows]
        return csr_array((share, (rows, unique)), shape=(len(query), len(self.joined.x)))

    @cached_property
    def _tree(self) -> tuple[cKDTree, Array]:
        """A tree of the unique rows in a unit in which nothing overflows, and that scale."""
        x = self.joined.x.astype(np.float64) - self.joined.x[0]
        scale = self.bandwidth.min() / self.bandwidth
        scale = scale / max(float(np.abs(x * scale).max()), np.finfo(np.float64).tiny)
        return cKDTree(x * scale), scale

    def _about(self, part: Tensor, window: Window) -> Moments:
        """Moments of degree 1 in float64, with the log S_0 of known categories."""
        around = moments(part, self._wide, window, degree=1)
        return without_unseen(around, self.joined, part, window.bandwidth, window.squared)

    def _deviation(self, at: Tensor, doubt: Tensor) -> tuple[Tensor, Tensor]:
        error, noise, _ = self._errors(at)
        extra = torch.where(doubt > 0, noise * doubt, 0.0)
        return (error + extra).sqrt(), torch.where((error > 0) & (extra > 0), 1 + extra / error, 1.0).sqrt()

    def _errors(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """τ² (n, v), s² (n, v) and ν (n, 1) at points among the data."""
        window = self._window(at, _WIDER)
        around, squared = (moments(at, self._residuals, replace(window, squared=each)) for each in (False, True))
        values = self.joined.y.shape[1]
        error, noise, share = around.value.split([values, values, 1], 1)
        few = share <= _MIN_DEGREES_OF_FREEDOM
        freedom = (2 * around.lse - squared.lse).exp()[:, None] * share
        if self.tested is not None:
            alike = torch.tensor(self.tested.design_effect)
            noise, share = noise * alike, torch.maximum(1 - alike * (1 - share), share / 4)
            freedom = freedom.clamp(max=float(len(self.tested.folds)))
        noise = noise / share.clamp(min=_MIN_DEGREES_OF_FREEDOM)
        return error, torch.where(few, math.inf, noise), freedom

    @cached_property
    def _points(self) -> Points:
        return points_of(self.joined, torch.from_numpy(self.joined.x).dtype)

    @cached_property
    def _wide(self) -> Points:
        """The points in float64, whatever the rows' dtype."""
        wide = self._points.key.dtype == torch.float64
        return self._points if wide else points_of(self.joined, torch.float64)

    @cached_property
    def _residuals(self) -> Points:
        """The points with e², (g e)² and the share of noise in the residuals as values."""
        within, weight = (torch.tensor(each, dtype=torch.float64) for each in (self.joined.within, self.joined.weight))
        criterion, trial = self.left_out
        share = trial.residual_share[:, None]
        count = torch.tensor(self.joined.counts()).double() if self.joined.precise else weight
        kept = 1 - (1 - share) / count.clamp(min=1)[:, None]  # of W equal rows all but one vary freely
        loss = criterion.loss(trial) if self.tested is None else torch.tensor(self.tested.loss)
        squares = torch.cat([loss, (share * trial.errors).square() + within], 1) * (weight / count)[:, None]
        return Points(self._wide.key, torch.cat([squares, kept], 1), count)

    @cached_property
    def _spread(self) -> Tensor:
        return torch.tensor(self.joined.spread()[: self.joined.numbers])

    @cached_property
    def trend(self) -> Trend:
        """The plane to whose slopes lines are drawn."""
        return trend(self.joined)

    @property
    def drawn(self) -> bool:
        """True where there is a ridge, by which lines are drawn to the plane."""
        return bool(self.degree and self.ridge > 0)

    def _drawn(self, window: Window) -> tuple[Tensor | None, Tensor | None]:
        """Λ S_0 of the estimate, and the slopes to which it draws; None for the constant order, and without a ridge."""
        ridge = self._doubt(window, self.ridge) if self.degree else None
        return ridge, self.trend.over(window.bandwidth) if self.drawn else None

    def _doubt(self, window: Window, amount: float = RIDGE) -> Tensor:
        """Λ S_0 of a ridge ρ."""
        bandwidth = window.bandwidth[..., : self.joined.numbers]
        return ridge_of(torch.tensor(amount).to(bandwidth), self._spread.to(bandwidth), bandwidth)

    def _window(self, query: Tensor, times: float = 1.0) -> Window:
        """The kernel at queries, so many times as wide as the estimate's."""
        return Window(self.profile, torch.tensor(self.bandwidth).to(query) * times)

    def _by_parts(self, query: Array, points: Points, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """The results of `work` for all queries, in float64, made a part at a time to save memory."""
        result = [
            [piece.double() for piece in work(torch.tensor(query[rows]).to(points.key))]
            for rows in parts(len(query), points.columns(1))
        ]
        return [torch.cat(pieces).numpy() for pieces in zip(*result, strict=True)]


def _open(around: Moments, ridge: Tensor) -> Tensor:
    """b, (n, 1)."""
    slopes, fit = ridge.shape[-1], local_fit(around, ridge)
    lean = fit.row[:, 1 : 1 + slopes] * (-around.lse[:, None]).clamp(max=-_GONE).exp() * ridge.sqrt()
    gone = (around.lse < _GONE)[:, None]
    return torch.where(gone, _unknown(around.offset[:, :slopes], ridge), lean).square().sum(1, keepdim=True)


def _lost_to_ridge(around: Moments, ridge: Tensor, fit: LocalFit, toward: Tensor) -> Tensor:
    """uᵀΛ(β − b), (n, v)."""
    own = slice(1, 1 + ridge.shape[-1])
    beyond = fit.theta[:, own] - toward[..., : ridge.shape[-1], :]
    held = (fit.row[:, own] * ridge_at(ridge, around.lse))[..., None] * beyond
    return held.sum(1)


def _unknown(offset: Tensor, ridge: Tensor) -> Tensor:
    """The deviation that the ridge leaves open where nothing else is known of the slopes, (n, p)."""
    return torch.where(ridge > 0, offset / ridge.sqrt(), 0.0)
