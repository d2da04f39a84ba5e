r"""The criteria for a bandwidth: the leave-one-out squared error, with or without a penalty, and the error of folds.

Equal rows of X are joined to a unique row g with the weight $W_g$ and the mean value $\bar y_g$. $\hat y_{-g}$ is the
estimate at g without these rows, and $a_g$ the squared length of its row of the smoother matrix over the weight of one
row. A row of weight w at g would have the leverage $w a_g/(1 + w a_g)$. The prediction of a row at g uses all other
rows, including the remaining rows at g,

$$ y_i - \hat y_{-i} = \frac{(\bar y_g - \hat y_{-g}) + (1 + W_g a_g)(y_i - \bar y_g)}{1 + (W_g - v_i) a_g} , $$

where $v_i$ is the weight that is left out. Rows equal in x and y are copies and are left out together, so that repeated
rows and integer weights mean the same: $v_i$ is the sum of their weights. If y is discrete, equal rows are no copies.
A single row is left out if its value occurs elsewhere too, and its place has other values or places have five or more
rows on average. The error is the weighted mean of the squares, over the outputs as well. The prediction of a row that
no other row reaches is the mean of the other rows, so that no bandwidth wins by predicting nothing.

Let $s_g = 1/(1 + W_g a_g)$, which is 1 minus the share of g in its own estimate. The residual of the mean at g is
$s_g (\bar y_g - \hat y_{-g})$, and the degrees of freedom are $\nu = \sum_g (1 - s_g)$. With n the sum of the weights,
"auto" is the leave-one-out error with a penalty,

$$ \frac{\mathrm{LOO}}{1 - \nu/(0.8\,n)} , $$

because the least error over many bandwidths follows the noise of few rows. In a search both criteria are infinite above
0.8 degrees of freedom a row: then the estimate is a staircase from row to row, which leaving out rows does not show.

**Folds** are for rows that depend on each other. A splitter gives pairs: rows to learn from and rows to test. Let
$\hat y_{-k}$ be the estimate from the learned rows of pair k. The criterion is the weighted mean of
$(y_i - \hat y_{-k}(x_i))^2$ over the tested rows. With $v_i$ the weights, the design effect

$$ \kappa = \frac{\sum_k \big(\sum_{i \in k} v_i e_i\big)^2}{\sum_k \sum_{i \in k} (v_i e_i)^2} $$

is 1 in the mean if the errors of a fold are independent. If κ is more than 1, the variance of an estimate is multiplied
by κ, and there are at most as many degrees of freedom as folds. The share of noise in a residual is then 1 − κ(1 − g)
instead of g, at least g/4. Folds that are runs of b rows cut off the correlation with the next run: with correlations
$\rho^j$ of errors j apart $\kappa = 1 + 2\sum_{j<b}(1 - j/b)\rho^j$. It is replaced by $(1 + \rho)/(1 - \rho)$, at most
1.5 κ.

Source: Burman, Chow and Nolan 1994, A cross-validatory method for dependent data; Kish 1965, section 5.4 (κ, there the
design effect of clusters); Barber, Candès, Ramdas and Tibshirani 2021, section 3.1 (CV+).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch.nn.functional import pad

from dikkat.regression.joined import NARROWEST, Array, Joined, Repeats, Rows
from dikkat.regression.local import (
    RIDGE,
    Points,
    Trend,
    fit_queries,
    parts,
    points_of,
    ridge_at,
    ridge_of,
    sensitivity,
    trend,
)  # fmt: skip
from dikkat.regression.moments.launch import Profile, Window

Searched = Literal["auto", "loo"]

MAX_FREEDOM = 0.8
"""The most degrees of freedom a row in a search."""
MANY_ROWS = 2000
"""Above so many rows the descent over all rows stops sooner and toggles no features."""
_QUIET = np.errstate(all="ignore")  # NaN becomes 0 here, or the descent checks for it
_EPS, _EPS_OF_MANY = 2.0**-52, 1e-9  # the share of a query's weight that may be omitted
HUGE_ERROR = 1e20  # in variances: errors from here on count as infinite; below, squares of their slopes do not overflow


@dataclass(frozen=True)
class Step:
    """The criterion at one t.

    Attributes:
        t: log σ of each feature, and last log ρ if the ridge is searched for.
        error: The value of the criterion.
    """

    t: Array
    error: float


@dataclass(frozen=True)
class Trial(Step):
    """A step with the inputs of its gradient, for n unique rows.

    Attributes:
        errors: (n, v), the estimate at each unique row without that row, minus the mean value there.
        repeat_errors: (k, v), the estimate without each row of `Joined.repeats`, minus its value.
        lse: (n,), of the moments.
        row: (n, k), of the local fit.
        theta: (n, k, v), of the local fit.
        residual_share: (n,), s: the share of a row's noise in its residual.
    """

    errors: torch.Tensor
    repeat_errors: torch.Tensor
    lse: torch.Tensor
    row: torch.Tensor
    theta: torch.Tensor
    residual_share: torch.Tensor

    def step(self) -> Step:
        """Return only t and the error: a path keeps many steps."""
        return Step(self.t, self.error)


class Criterion:
    """The criterion as a function of t = log σ, and its gradient if K is smooth.

    If `ridge` is None, the last entry of t is log ρ. The criterion is infinite if the estimate has at least
    `freedom_per_row` degrees of freedom for each row.

    Attributes:
        narrowest: The least σ of a numeric feature in a search, over the least gap between two of its values.
        least: The step of the least error without a penalty so far.
        ridges: The least, first and largest ρ of a search: at 0.001 no slope explodes, and 10⁶ removes all slopes.
    """

    narrowest = NARROWEST
    ridges = 1e-3, RIDGE, 1e6

    def __init__(
        self, joined: Joined, profile: Profile, degree: int, ridge: float | None = 0.0, kind: Searched = "loo",
        freedom_per_row: float = math.inf,
    ) -> None:  # fmt: skip
        self.joined, self.profile, self.degree = joined, profile, degree
        self.ridge, self.kind, self.least = ridge, kind, Step(np.empty(0), math.inf)
        self.variance, self.total = joined.variance(), float(joined.weight.sum())
        self.spread = torch.tensor(joined.spread())[: joined.num_numeric]
        self.points = points_of(joined, torch.float64)
        value, weight = self.points.value, self.points.weight[:, None]
        self.max_freedom = freedom_per_row * max(len(joined.x), self.total)
        self.share = weight / (self.total * value.shape[1])
        other_weight = self.total - weight
        total_value = torch.tensor(joined.weight @ joined.y)
        self.mean_without = torch.where(other_weight > 0, (total_value - weight * value) / other_weight, 0.0)
        self.row_index = torch.arange(len(value))
        self.unique = torch.from_numpy(joined.repeats.unique)
        self.single_share = self.share.index_fill(0, self.unique, 0.0)
        y, repeat_weight, left_out = (torch.tensor(array, dtype=torch.float64) for array in joined.repeats[1:])
        self.offset, self.remaining = y - value[self.unique], weight[self.unique] - left_out[:, None]
        self.repeat_share = repeat_weight[:, None] / (self.total * value.shape[1])

    def __call__(self, t: Array) -> Trial:
        """Return the trial at t."""
        lse, row, theta = self._fits(t)
        errors = theta[:, 0] - self.points.value
        known = torch.isfinite(errors).all(1) & torch.isfinite(lse)
        if not known.all():
            errors = torch.where(known[:, None], errors, self.mean_without - self.points.value)
        weighted_a = self.points.weight * row[:, 0] * (-lse).exp()
        share = (1 + weighted_a).reciprocal().nan_to_num(0.0)
        repeat_errors = self._repeat_errors(lse, row, errors) if len(self.unique) else errors[:0]
        error = float((self.single_share * errors.square()).sum())
        if len(self.unique):
            error += float((self.repeat_share * repeat_errors.square()).sum())
        free = 1 - float((1 - share).sum()) / self.max_freedom
        if free > 0 and error < self.least.error:
            self.least = Step(t, error)
        criterion = math.inf if free <= 0 else error / (free if self.kind == "auto" else 1)
        return Trial(t, criterion, errors, repeat_errors, lse, row, theta, share)

    def _fits(self, t: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the lse (n,), row (n, k) and θ (n, k, v) of the fit at each unique row without that row."""
        window, pieces = self.window(t), []
        for rows in parts(len(self.row_index), self.points.columns(self.degree)):
            penalty, excluded = (self._ridge(t, window), self._trend_slopes(window, rows)), self.row_index[rows]
            lse, fit = fit_queries(self.points.key[rows], self.points, window, *penalty, exclude=excluded, ordered=True)
            pieces.append((lse, fit.row, fit.theta))
        lse, row, theta = (torch.cat(piece) for piece in zip(*pieces, strict=True)) if len(pieces) > 1 else pieces[0]
        return lse, row, theta

    @cached_property
    def _with_zeros(self) -> Points:
        return with_zeros(self.points)

    def _repeat_errors(self, lse: torch.Tensor, row: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
        inv_a, weight = self._inverse_a(lse, row), self.points.weight[self.unique, None]
        result: torch.Tensor = (inv_a * errors[self.unique] - (inv_a + weight) * self.offset) / (inv_a + self.remaining)
        return result

    def _inverse_a(self, lse: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Return 1/a, (k, 1), of the unique rows of repeats; 0 if no other row is in reach."""
        result: torch.Tensor = lse[self.unique].exp() / row[self.unique, 0]
        return result.nan_to_num(0.0)[:, None]

    @cached_property
    def trend(self) -> Trend:
        """The plane through all rows, to whose slopes the ridge shrinks local slopes."""
        return trend(self.joined)

    def _trend_slopes(self, window: Window, rows: slice = slice(None)) -> torch.Tensor | None:
        """Return the shrinkage target of lines at some rows: for each the slopes of the plane without that row."""
        shrinks = self.degree and self.ridge != 0
        return self.trend.over(window.bandwidth, self.trend.without[rows]) if shrinks else None

    def _ridge(self, t: Array, window: Window) -> torch.Tensor | None:
        """Return Λ S_0 at t for the numeric features; None for the constant order."""
        if not self.degree:
            return None
        amount = torch.tensor(math.exp(t[-1]) if self.ridge is None else self.ridge, dtype=torch.float64)
        return ridge_of(amount, self.spread, window.bandwidth[..., : len(self.spread)])

    def loss(self, trial: Trial) -> torch.Tensor:
        """Return the (m, v) mean squared error over the rows of each unique row."""
        weighted = self.repeat_share * trial.repeat_errors.square()
        repeat_loss = torch.zeros_like(trial.errors).index_add_(0, self.unique, weighted) / self.share
        return torch.where(self.single_share > 0, trial.errors.square(), repeat_loss)

    @_QUIET
    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Return the error's slope with respect to t, and the Gauss-Newton matrix of its second derivatives."""
        window, points, theta = self.window(trial.t), self.points, trial.theta
        if len(self.unique) or self.kind == "auto":
            # The change of log 1/a is that of an additional output whose values are 0 and whose fit is −u.
            minus_row = -pad(trial.row, (0, theta.shape[1] - trial.row.shape[1]))
            points, theta = self._with_zeros, torch.cat([theta, minus_row[..., None]], -1)
        state = window, trial.lse, trial.row, theta
        by_feature = sensitivity(
            points.key, points, *state, self.joined.feature_of, exclude=self.row_index, ordered=True
        )
        change = self._finite(by_feature, trial.t, *state, self._trend_slopes(window))
        # On these small arrays NumPy takes a third of PyTorch's time.
        errors, row, share = (tensor.numpy() for tensor in (trial.errors, trial.row, trial.residual_share))
        values = errors.shape[1]
        if self.kind == "auto" or len(self.unique):
            log_change = change[..., values:] / row[:, :1, None]
        slope, curve = sum_of_squares_slope(change[..., :values], self.single_share.numpy(), errors)
        if len(self.unique):
            inv_a, unique = self._inverse_a(trial.lse, trial.row).numpy()[..., None], self.unique.numpy()
            offset, remaining, repeat_errors = (x.numpy() for x in (self.offset, self.remaining, trial.repeat_errors))
            terms = change[unique, :, :values] + log_change[unique] * (errors[unique] - offset - repeat_errors)[:, None]
            repeat_change = inv_a * terms / (inv_a + remaining[..., None])
            sums = sum_of_squares_slope(repeat_change, self.repeat_share.numpy(), repeat_errors)
            slope, curve = slope + sums[0], curve + sums[1]
        if self.kind == "auto":
            freedom_slope = (share * (1 - share)) @ log_change[..., 0]
            free = 1 - float((1 - share).sum()) / self.max_freedom
            slope, curve = (slope - trial.error * freedom_slope / self.max_freedom) / free, curve / free
        return slope, curve

    def window(self, t: Array) -> Window:
        """Return the kernel at t."""
        bandwidth = torch.tensor(np.exp(t[self.joined.feature_of]), dtype=torch.float64)
        return Window(self.profile, bandwidth, tolerance=_EPS if len(self.joined.x) <= MANY_ROWS else _EPS_OF_MANY)

    def under(self, profile: Profile) -> Criterion:
        """Return the criterion with another kernel and without a limit on degrees of freedom."""
        criterion = copy.copy(self)
        criterion.profile, criterion.max_freedom = profile, math.inf
        return criterion

    def unpenalised(self) -> Criterion:
        """Return the criterion without the penalty on degrees of freedom; their limit stays."""
        criterion = copy.copy(self)
        criterion.kind = "loo"
        return criterion

    def is_better(self, trial: Trial, other: Trial, standard_errors: float) -> bool:
        """Return True if the errors of a trial are smaller by so many standard errors of the paired differences."""
        gain = (self.loss(other) - self.loss(trial)).mean(1).numpy()
        weight = self.joined.weight / self.total
        mean = float(weight @ gain)
        return mean > standard_errors * float(np.sqrt(np.square(weight) @ np.square(gain - mean))) > 0

    @_QUIET
    def _finite(
        self, change: torch.Tensor, t: Array, window: Window, lse: torch.Tensor, row: torch.Tensor,
        theta: torch.Tensor, target: torch.Tensor | None,
    ) -> Array:  # fmt: skip
        """Add the change by the ridge, and append the derivative by log ρ if it is searched for.

        NaN and infinity become 0.
        """
        derivatives: Array = change.numpy()
        ridge = self._ridge(t, window)
        if ridge is not None:
            slopes, amount = len(self.spread), math.exp(t[-1]) if self.ridge is None else self.ridge or 1.0
            penalty = theta[:, 1 : 1 + slopes].numpy().copy()
            if target is not None:  # the ridge shrinks the additional output of u to 0
                penalty[..., : target.shape[-1]] -= target[..., :slopes, :].numpy()
            penalty *= (row[:, 1 : 1 + slopes] * ridge_at(ridge, lse)).numpy()[..., None]
            derivatives[:, :slopes] -= (2 / amount * ridge.numpy())[:, None] * penalty
            if self.ridge is None:
                derivatives = np.concatenate([derivatives, -penalty.sum(1, keepdims=True)], 1)
        return np.where(np.isfinite(derivatives), derivatives, 0.0)


def with_zeros(points: Points) -> Points:
    """Return points with an additional output of zeros."""
    return Points(points.key, torch.nn.functional.pad(points.value, (0, 1)), points.weight)


@_QUIET
def sum_of_squares_slope(derivatives: Array, share: Array, errors: Array) -> tuple[Array, Array]:
    """Return the slope (d,) and the Gauss-Newton matrix (d, d) of Σ share · errors².

    `derivatives` (n, d, v) are those of the errors (n, v).
    """
    weighted = 2 * share[:, None] * derivatives
    return np.einsum("ncv,nv->c", weighted, errors), np.tensordot(weighted, derivatives, ([0, 2], [0, 2]))


# --- folds

Membership = NDArray[np.int8]

LEARNED, TESTED = 1, 2


class Fold(NamedTuple):
    """A pair of training rows and k tested rows.

    Attributes:
        learned: The joined training rows.
        row: (k,) integers: the index of each tested row among all rows.
        unique: (k,) integers: the index of its unique row.
        x: (k, d), coordinates of the tested rows.
        y: (k, v), their values minus the origin of all rows.
        weight: (k,), their weights.
    """

    learned: Joined
    row: NDArray[np.intp]
    unique: NDArray[np.intp]
    x: Array
    y: Array
    weight: Array

    def divide_y(self, divisor: float) -> Fold:
        """Return the fold with y divided by `divisor`."""
        return self._replace(learned=self.learned.divide_y(divisor), y=self.y / divisor)


def membership(splits: Iterable[tuple[Any, Any]], count: int) -> Membership:
    """Return (pairs, n): `LEARNED`, `TESTED` or 0 for each row; a row in both lists of a pair is tested."""
    memberships = []
    for learned, tested in splits:
        roles = np.zeros(count, np.int8)
        for role, indices in ((LEARNED, learned), (TESTED, tested)):
            rows = np.asarray(indices)
            if len(rows) and rows.dtype.kind not in "iu":
                raise ValueError(f"cv: got {rows.dtype} for rows; expected integer indices")
            if wrong := [row for row in rows.tolist() if not -count <= row < count]:
                raise ValueError(f"cv: got row {wrong[0]}; expected row indices from {-count} to {count - 1}")
            roles[rows.astype(np.intp)] = role
        memberships.append(roles)
    return np.array(memberships).reshape(-1, count)


def folds_of(rows: Rows, joined: Joined) -> list[Fold] | None:
    """Return the folds that have rows of positive weight to learn from and to test; None without a splitter.

    Raises:
        ValueError: If there is no such fold.
    """
    if rows.folds is None:
        return None
    counted, folds = joined.unique_index >= 0, []
    coordinates, y = rows.coding.coordinates(rows.x), rows.y.reshape(len(rows.y), -1)
    for roles in rows.folds:
        learned, tested = (np.flatnonzero((roles == role) & counted) for role in (LEARNED, TESTED))
        if not (len(learned) and len(tested)):
            continue
        joined_rows = rows.take(learned).joined(rows.unit_weight)
        joined_rows = joined_rows._replace(y=joined_rows.y + (joined_rows.origin - joined.origin), origin=joined.origin)
        weight = rows.weight[tested].astype(np.float64) / rows.unit_weight
        unique, offset_y = joined.unique_index[tested], y[tested] - joined.origin
        folds.append(Fold(joined_rows, tested, unique, coordinates[tested], offset_y, weight))
    if not folds:
        raise ValueError(
            f"cv: got {len(rows.folds)} splits, none with rows of positive weight both to learn from and to test; "
            "expected at least one"
        )
    return folds


class HeldOut(Criterion):
    """The mean squared error of tested rows as a function of t = log σ, and its gradient if K is smooth."""

    def __init__(
        self, joined: Joined, folds: list[Fold], profile: Profile, degree: int, ridge: float | None = 0.0
    ) -> None:
        super().__init__(joined, profile, degree, ridge)
        self.folds = folds

        def tensor(array: Array) -> torch.Tensor:
            return torch.tensor(array, dtype=torch.float64)

        self._points = [Points(*map(tensor, (fold.learned.x, fold.learned.y, fold.learned.weight))) for fold in folds]
        self._query = [tensor(fold.x) for fold in folds]
        self._trends = [trend(fold.learned) for fold in folds if degree and ridge != 0]
        self._value = [tensor(fold.y) for fold in folds]
        weight = torch.cat([tensor(fold.weight) for fold in folds])[:, None]
        self._share = weight / (weight.sum() * joined.y.shape[1])

    def __call__(self, t: Array) -> Trial:
        """Return the trial at t."""
        fits = [self._fit(t, k, query) for k, query in enumerate(self._query)]
        width = max(theta.shape[1] for _, _, theta in fits)  # few learned rows have a plane with fewer slopes
        fits = [(lse, row, pad(theta, (0, 0, 0, width - theta.shape[1]))) for lse, row, theta in fits]
        lse, row, theta = (torch.cat(piece) for piece in zip(*fits, strict=True))
        errors = theta[:, 0] - torch.cat(self._value)
        error = float((self._share * errors.square()).sum())
        return Trial(t, error if math.isfinite(error) else math.inf, errors, errors[:0], lse, row, theta, lse)

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Return the error's slope with respect to t, and the Gauss-Newton matrix of its second derivatives."""
        changes = self._derivatives(trial, trial.theta, self._points)
        return sum_of_squares_slope(changes, self._share.numpy(), trial.errors.numpy())

    def _derivatives(self, trial: Trial, theta: torch.Tensor, points: list[Points]) -> Array:
        """Return the derivatives by t of the estimates θ (n, k, v) of tested rows from `points`, (n, d, v)."""
        sizes, changes, window = [len(tensor) for tensor in self._query], [], self.window(trial.t)
        by_fold = zip(*(tensor.split(sizes) for tensor in (trial.lse, trial.row, theta)), strict=True)
        for k, (query, (lse, row, fit)) in enumerate(zip(self._query, by_fold, strict=True)):
            state = window, lse, row, fit
            change = sensitivity(query, points[k], *state, self.joined.feature_of)
            changes.append(self._finite(change, trial.t, *state, self._fold_slopes(k, window)))
        return np.concatenate(changes)

    def estimates(self, t: Array, query: Array) -> Array:
        """Return the estimates of the first output, (n, folds), at queries, minus the origin."""
        points = torch.tensor(query, dtype=torch.float64)
        return torch.stack([self._fit(t, k, points)[2][:, 0, 0] for k in range(len(self.folds))], 1).numpy()

    def _fold_slopes(self, k: int, window: Window) -> torch.Tensor | None:
        return self._trends[k].over(window.bandwidth) if self._trends else None

    def _fit(self, t: Array, k: int, query: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return lse, row and θ of local fits to the learned rows of fold k; the rows' mean if none is in reach."""
        points, pieces, window = self._points[k], [], self.window(t)
        ridge, target = self._ridge(t, window), self._fold_slopes(k, window)
        for rows in parts(len(query), points.columns(self.degree)):
            lse_piece, fit = fit_queries(query[rows], points, window, ridge, target)
            pieces.append((lse_piece, fit.row, fit.theta))
        lse, row, theta = (torch.cat(piece) for piece in zip(*pieces, strict=True))
        isolated = ~(torch.isfinite(theta[:, 0]).all(1) & torch.isfinite(lse))
        if isolated.any():
            theta[isolated] = 0.0
            theta[isolated, 0] = (points.weight @ points.value) / points.weight.sum()
        return lse, row, theta


class FoldErrors:
    """The errors of tested rows at the bandwidths of a fit.

    Attributes:
        rows: The tested rows. A row that is tested k times occurs k times, each time with 1/k of its weight.
        fold: (m,) integers: the fold of each row.
        errors: (m, v), y minus the estimate.
    """

    def __init__(self, held: HeldOut, trial: Trial) -> None:
        self._held, self._t, self.folds = held, trial.t, held.folds
        folds = held.folds
        row = np.concatenate([fold.row for fold in folds])
        weight = np.concatenate([fold.weight for fold in folds]) / np.bincount(row)[row]
        unique = np.concatenate([fold.unique for fold in folds])
        self.rows = Repeats(unique, np.concatenate([fold.y for fold in folds]), weight, weight)
        self.fold = np.repeat(np.arange(len(folds)), [len(fold.row) for fold in folds])
        self.errors: Array = -trial.errors.numpy()

    @property
    def weight(self) -> Array:
        """The tested weight of each unique row, (n,)."""
        return np.asarray(np.bincount(self.rows.unique, self.rows.weight, len(self._held.joined.x)).astype(np.float64))

    @property
    def loss(self) -> Array:
        """The mean squared error at each unique row, (n, v); for an untested unique row, the mean of all rows."""
        squares = self.rows.weight[:, None] * self.errors**2
        total = np.array([np.bincount(self.rows.unique, column, len(self._held.joined.x)) for column in squares.T]).T
        weight = self.weight[:, None]
        mean = squares.sum(0) / self.rows.weight.sum()
        return np.asarray(np.where(weight > 0, total / np.where(weight > 0, weight, 1), mean))

    @cached_property
    def design_effect(self) -> Array:
        """κ of each output, (v,), at least 1."""
        weight = self.rows.weight[:, None]
        weighted = (np.sqrt(weight) if self._held.joined.precise else weight) * self.errors
        sums = np.array([np.bincount(self.fold, column) for column in weighted.T]).T
        squares = (weighted**2).sum(0)
        effect: Array = np.divide((sums**2).sum(0), squares, out=np.ones_like(squares), where=squares > 0).clip(1)
        length = min(len(fold.row) for fold in self.folds)
        position = np.cumsum(self._held.joined.unique_index >= 0)  # among the rows with weight
        if length < 2 or any((np.diff(position[fold.row]) != 1).any() for fold in self.folds):
            return effect
        lags = np.arange(1, length)

        def excess(correlation: float, target: float) -> float:
            return 1 + 2 * float(correlation**lags @ (1 - lags / length)) - target

        correlations = np.array([brentq(excess, 0, 1, (min(kappa, length),)) for kappa in effect])
        correlations = correlations.clip(max=0.999)
        return np.asarray(np.minimum((1 + correlations) / (1 - correlations), 1.5 * effect))

    def without(self, query: Array) -> Array:
        """Return estimates of the first output, (n, m), at queries, each without the fold of a tested row."""
        return self._held.estimates(self._t, query)[:, self.fold]
