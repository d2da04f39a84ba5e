r"""The criteria for a bandwidth: the leave-one-out squared error, perhaps with a penalty, and the error of folds.

With equal rows of X joined to a unique row g (weight $W_g$, mean value $\bar y_g$), the estimate at g is found without
them: $\hat y_{-g}$, with $a_g$ the square of the length of its row of the smoother matrix in units of one row's weight,
so that a row of weight w at g would have the leverage $w a_g/(1 + w a_g)$. Each of its rows is then predicted from all
others, those equal in X as well,

$$ y_i - \hat y_{-i} = \frac{(\bar y_g - \hat y_{-g}) + (1 + W_g a_g)(y_i - \bar y_g)}{1 + (W_g - v_i) a_g} , $$

with $v_i$ the weight that is left out. Rows equal in x and y are copies, which are left out together, so that repeated
rows and integer weights mean the same: $v_i$ is the sum of their weights. Where y is discrete equal rows are no copies:
of those whose value occurs elsewhere too, and that share their coordinates with other values or are in cells, with five
rows and more on average, a single row is left out. The error is the weighted mean of the squares, over the outputs as
well. A row that no other reaches is answered with the mean of the others, lest a bandwidth win by answering nothing.

With $s_g = 1/(1 + W_g a_g)$, which is 1 less the share of g in its own estimate, the residual of its mean is
$s_g (\bar y_g - \hat y_{-g})$, the degrees of freedom are $\nu = \sum_g (1 - s_g)$, and with n the sum of the weights
"auto" is the leave-one-out error with a penalty,

$$ \frac{\mathrm{LOO}}{1 - \nu/(0.8\,n)} , $$

since the least of an error over many bandwidths follows the noise of few rows. In a search both are infinite with more
than 0.8 degrees of freedom a row: then the estimate is a staircase from row to row, which its own rows cannot see.

**Folds**, for rows that depend on each other. A splitter gives pairs: rows to learn from and rows to test. With
$\hat y_{-k}$ the estimate from the former of pair k, the criterion is the weighted mean of $(y_i - \hat y_{-k}(x_i))^2$
over the tested rows. With $v_i$ the weights, the design effect

$$ \kappa = \frac{\sum_k \big(\sum_{i \in k} v_i e_i\big)^2}{\sum_k \sum_{i \in k} (v_i e_i)^2} $$

is 1 in the mean if the errors of a fold are independent. If κ is more than 1, the variance of an estimate is multiplied
by it, with at most as many degrees of freedom as there are folds. The noise in a residual is less by κ times the share
of a row in its own estimate: in place of g it is 1 − κ(1 − g), at least g/4. Folds that are runs of b rows cut off the
correlation with the next run: with correlations $\rho^j$ of errors j apart
$\kappa = 1 + 2\sum_{j<b}(1 - j/b)\rho^j$, and $(1 + \rho)/(1 - \rho)$, at most half as much again, takes its place.

Source: Burman, Chow and Nolan 1994, A cross-validatory method for dependent data; Kish 1965, section 5.4 (κ, there the
design effect of clusters); Barber, Candès, Ramdas and Tibshirani 2021, section 3.1 (CV+).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from dikkat.regression.joined import NARROWEST, Array, Joined, Repeats, Rows
from dikkat.regression.local import (
    RIDGE,
    Points,
    Trend,
    fits,
    parts,
    points_of,
    ridge_at,
    ridge_of,
    sensitivity,
    trend,
)  # fmt: skip
from dikkat.regression.moments.launch import Profile, Window

Kind = Literal["auto", "loo"]

MOST = 0.8
"""The most degrees of freedom a row of an estimate that a search may find."""
MANY = 2000
"""Rows from which a descent over all of them stops sooner, and no feature is tried anew on them."""
_QUIET = np.errstate(all="ignore")  # what is no number is 0, or looked for by the descent
_EPS, _EPS_OF_MANY = 2.0**-52, 1e-9  # the share of a weight that may be omitted
HOPELESS = 1e20  # variances, from which an error is as good as infinite; below, squares of its slopes are numbers


@dataclass(frozen=True)
class Step:
    """The criterion at one t.

    Attributes:
        t: log σ of each feature; and log ρ behind it where the ridge is searched for too.
        error: The criterion.
    """

    t: Array
    error: float


@dataclass(frozen=True)
class Trial(Step):
    """A step with what the gradient there needs, of n unique rows.

    Attributes:
        left: (n, v), the estimates at the unique rows, each without that row, less the mean values there.
        repeated: (k, v), the estimates without each row of `Joined.repeats`, less its value.
        lse: (n,), of the moments.
        row: (n, k), of the local fit.
        theta: (n, k, v), of the local fit.
        kept: (n,), s: the part of a row's noise that is left in its residual.
    """

    left: torch.Tensor
    repeated: torch.Tensor
    lse: torch.Tensor
    row: torch.Tensor
    theta: torch.Tensor
    kept: torch.Tensor

    def step(self) -> Step:
        """The step alone: a path has many."""
        return Step(self.t, self.error)


class Criterion:
    """The criterion as a function of t = log σ, and its gradient where K is smooth.

    With `ridge` None the last of t is log ρ. It is infinite from `most` degrees of freedom a row on.

    Attributes:
        narrowest: The least σ of a number that is searched for, over the least gap between two of its values.
        ridges: The least ρ, the first and the largest: by 0.001 no slope explodes, and 10⁶ leaves nothing of a slope.
    """

    narrowest = NARROWEST
    ridges = 1e-3, RIDGE, 1e6

    def __init__(
        self,
        joined: Joined,
        profile: Profile,
        degree: int,
        ridge: float | None = 0.0,
        kind: Kind = "loo",
        most: float = math.inf,
    ) -> None:
        self.joined, self.profile, self.degree = joined, profile, degree
        self.ridge, self.kind = ridge, kind
        self.variance, self.total = joined.variance(), float(joined.weight.sum())
        self.spread = torch.tensor(joined.spread())[: joined.numbers]
        self.points = points_of(joined, torch.float64)
        value, weight = self.points.value, self.points.weight[:, None]
        self.most = most * max(len(joined.x), self.total)
        self.share = weight / (self.total * value.shape[1])
        rest = self.total - weight
        every = torch.tensor(joined.weight @ joined.y)
        self.others = torch.where(rest > 0, (every - weight * value) / rest, 0.0)
        self.itself = torch.arange(len(value))
        self.unique = torch.from_numpy(joined.repeats.unique)
        self.alone = self.share.index_fill(0, self.unique, 0.0)
        y, own, out = (torch.tensor(each, dtype=torch.float64) for each in joined.repeats[1:])
        self.about = y - value[self.unique]
        self.repeats_share, self.rest = own[:, None] / (self.total * value.shape[1]), weight[self.unique] - out[:, None]

    def __call__(self, t: Array) -> Trial:
        """The error at one t."""
        lse, row, theta = self._fits(t)
        left = theta[:, 0] - self.points.value
        lost = ~(torch.isfinite(left).all(1, keepdim=True) & torch.isfinite(lse)[:, None])
        left = torch.where(lost, self.others - self.points.value, left)
        own = self.points.weight * row[:, 0] * (-lse).exp()
        kept = (1 / (1 + own)).nan_to_num(0.0)
        repeated = self._repeated(lse, row, left) if len(self.unique) else left[:0]
        trial = Trial(t, math.nan, left, repeated, lse, row, theta, kept)
        error = (self.alone * left.square()).sum() + (self.repeats_share * repeated.square()).sum()
        free = 1 - float((1 - kept).sum()) / self.most
        return replace(trial, error=math.inf if free <= 0 else float(error) / (free if self.kind == "auto" else 1))

    def _fits(self, t: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The lse (n,), row (n, k) and θ (n, k, v) of the fit at each unique row without it."""
        window, pieces = self.window(t), []
        for part in parts(len(self.itself), self.points.columns(self.degree)):
            drawn, own = (self._ridge(t, window), self._toward(window, part)), self.itself[part]
            lse, fit = fits(self.points.key[part], self.points, window, *drawn, exclude=own, ordered=True)
            pieces.append((lse, fit.row, fit.theta))
        lse, row, theta = (torch.cat(piece) for piece in zip(*pieces, strict=True)) if len(pieces) > 1 else pieces[0]
        return lse, row, theta

    @cached_property
    def _with_zeros(self) -> Points:
        """The points with an output more."""
        return Points(self.points.key, torch.nn.functional.pad(self.points.value, (0, 1)), self.points.weight)

    def _repeated(self, lse: torch.Tensor, row: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """`Trial.repeated`."""
        bare, own = self._bare(lse, row), self.points.weight[self.unique, None]
        result: torch.Tensor = (bare * left[self.unique] - (bare + own) * self.about) / (bare + self.rest)
        return result

    def _bare(self, lse: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """1/a of the unique rows of repeats, (k, 1); 0 where no other row is in reach."""
        result: torch.Tensor = lse[self.unique].exp() / row[self.unique, 0]
        return result.nan_to_num(0.0)[:, None]

    @cached_property
    def trend(self) -> Trend:
        """The plane to whose slopes the ridge draws."""
        return trend(self.joined)

    def _toward(self, window: Window, rows: slice = slice(None)) -> torch.Tensor | None:
        """The slopes to which lines at rows are drawn, each without the row."""
        drawn = self.degree and self.ridge != 0
        return self.trend.over(window.bandwidth, self.trend.without[rows]) if drawn else None

    def _ridge(self, t: Array, window: Window) -> torch.Tensor | None:
        """Λ S_0 at t, of the features that are numbers, under a window; None for the constant order."""
        if not self.degree:
            return None
        amount = torch.tensor(math.exp(t[-1]) if self.ridge is None else self.ridge, dtype=torch.float64)
        return ridge_of(amount, self.spread, window.bandwidth[..., : len(self.spread)])

    def loss(self, trial: Trial) -> torch.Tensor:
        """(m, v): the mean squared error of the rows of each unique row."""
        weighted = self.repeats_share * trial.repeated.square()
        repeated = torch.zeros_like(trial.left).index_add_(0, self.unique, weighted) / self.share
        return torch.where(self.alone > 0, trial.left.square(), repeated)

    @_QUIET
    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """The error's slope with respect to t, and Gauss and Newton's guess at its second derivatives, a matrix."""
        window, points, theta = self.window(trial.t), self.points, trial.theta
        if len(self.unique) or self.kind == "auto":
            # log 1/a changes as a further output does whose values are 0 and whose fit is −u
            points, theta = self._with_zeros, torch.cat([theta, -trial.row[..., None]], -1)
        own = window, trial.lse, trial.row, theta
        by_coordinates = sensitivity(points.key, points, *own, exclude=self.itself, ordered=True)
        change = self._finite(by_coordinates, trial.t, *own, self._toward(window))
        # Small arrays, in which NumPy's operations take a third of the time of PyTorch's.
        left, row, kept, alone = (each.numpy() for each in (trial.left, trial.row, trial.kept, self.alone))
        values = left.shape[1]
        if self.kind == "auto" or len(self.unique):
            barer = change[..., values:] / row[:, :1, None]
        slope, curve = summed(change[..., :values], alone, left)
        if len(self.unique):
            bare, unique = self._bare(trial.lse, trial.row).numpy()[..., None], self.unique.numpy()
            about, rest, repeated = (each.numpy() for each in (self.about, self.rest, trial.repeated))
            moved = change[unique, :, :values] + barer[unique] * (left[unique] - about - repeated)[:, None]
            more = summed(bare * moved / (bare + rest[..., None]), self.repeats_share.numpy(), repeated)
            slope, curve = slope + more[0], curve + more[1]
        if self.kind == "auto":
            fewer = (kept * (1 - kept)) @ barer[..., 0]
            free = 1 - float((1 - kept).sum()) / self.most
            slope, curve = (slope - trial.error * fewer / self.most) / free, curve / free
        return slope, curve

    def window(self, t: Array) -> Window:
        """The kernel at t."""
        bandwidth = torch.tensor(np.exp(t[self.joined.feature]), dtype=torch.float64)
        return Window(self.profile, bandwidth, tolerance=_EPS if len(self.joined.x) <= MANY else _EPS_OF_MANY)

    def under(self, profile: Profile) -> Criterion:
        """The criterion with another kernel, finite with any degrees of freedom."""
        other = copy.copy(self)
        other.profile, other.most = profile, math.inf
        return other

    @_QUIET
    def _finite(
        self, change: torch.Tensor, t: Array, window: Window, lse: torch.Tensor, row: torch.Tensor,
        theta: torch.Tensor, toward: torch.Tensor | None,
    ) -> Array:  # fmt: skip
        """Changes by features and log ρ, from those by coordinates; 0 where they are no numbers."""
        changed: Array = change.numpy()
        if changed.shape[1] > self.joined.features:  # the coordinates of a category have one bandwidth
            firsts = np.searchsorted(self.joined.feature, np.arange(self.joined.features))
            changed = np.add.reduceat(changed, firsts, 1)
        ridge = self._ridge(t, window)
        if ridge is not None:
            slopes, amount = len(self.spread), math.exp(t[-1]) if self.ridge is None else self.ridge or 1.0
            held = theta[:, 1 : 1 + slopes].numpy().copy()
            if toward is not None:  # an output of u, behind the others, is drawn to 0
                held[..., : toward.shape[-1]] -= toward[..., :slopes, :].numpy()
            held *= (row[:, 1 : 1 + slopes] * ridge_at(ridge, lse)).numpy()[..., None]
            changed[:, :slopes] -= (2 / amount * ridge.numpy())[:, None] * held
            if self.ridge is None:
                changed = np.concatenate([changed, -held.sum(1, keepdims=True)], 1)
        return np.where(np.isfinite(changed), changed, 0.0)


@_QUIET
def summed(changes: Array, share: Array, errors: Array) -> tuple[Array, Array]:
    """The slope and Gauss and Newton's matrix of a weighted sum of squares, from (n, d, v)."""
    weighted = 2 * share[:, None] * changes
    return np.einsum("ncv,nv->c", weighted, errors), np.tensordot(weighted, changes, ([0, 2], [0, 2]))


# --- folds

Membership = NDArray[np.int8]

LEARNED, TESTED = 1, 2


class Fold(NamedTuple):
    """The rows that are learned from, joined, and those that are tested.

    Attributes:
        learned: The former.
        row: (k,) integers: which of all rows the tested ones are.
        unique: (k,) integers: which of the unique rows.
        x: (k, d), their coordinates.
        y: (k, v), less the origin of all rows.
        weight: (k,).
    """

    learned: Joined
    row: NDArray[np.intp]
    unique: NDArray[np.intp]
    x: Array
    y: Array
    weight: Array

    def in_unit(self, unit: float) -> Fold:
        """With values in another unit."""
        return self._replace(learned=self.learned.in_unit(unit), y=self.y / unit)


def membership(splits: Iterable[tuple[Any, Any]], count: int) -> Membership:
    """(pairs, n): whether a row is learned from, tested or neither; one that is in both is tested."""
    result = []
    for learned, tested in splits:
        own = np.zeros(count, np.int8)
        for name, chosen in ((LEARNED, learned), (TESTED, tested)):
            rows = np.asarray(chosen)
            if len(rows) and rows.dtype.kind not in "iu":
                raise ValueError(f"cv: got {rows.dtype} for rows; expected indices, integers")
            if wrong := [row for row in rows.tolist() if not -count <= row < count]:
                raise ValueError(f"cv: got row {wrong[0]}, where there are {count}; expected indices of rows")
            own[rows.astype(np.intp)] = name
        result.append(own)
    return np.array(result).reshape(-1, count)


def folds_of(rows: Rows, joined: Joined) -> list[Fold] | None:
    """The folds, if rows have some; those without a row of weight on either side say nothing and are none.

    Raises:
        ValueError: There is none.
    """
    if rows.folds is None:
        return None
    there, result = joined.inverse >= 0, []
    coordinates, y = rows.coding.coordinates(rows.x), rows.y.reshape(len(rows.y), -1)
    for own in rows.folds:
        learned, tested = (np.flatnonzero((own == each) & there) for each in (LEARNED, TESTED))
        if not (len(learned) and len(tested)):
            continue
        part = rows.take(learned).joined(rows.unit)
        part = part._replace(y=part.y + (part.origin - joined.origin), origin=joined.origin)
        weight = rows.weight[tested].astype(np.float64) / rows.unit
        result.append(
            Fold(part, tested, joined.inverse[tested], coordinates[tested], y[tested] - joined.origin, weight)
        )
    if not result:
        raise ValueError(
            f"cv: got {len(rows.folds)} splits, none with rows of positive weight both to learn from and to test; "
            "expected at least one"
        )
    return result


class Held(Criterion):
    """The mean squared error of tested rows as a function of t = log σ, and its gradient where K is smooth."""

    def __init__(
        self, joined: Joined, folds: list[Fold], profile: Profile, degree: int, ridge: float | None = 0.0
    ) -> None:
        super().__init__(joined, profile, degree, ridge)
        self.folds = folds

        def tensor(array: Array) -> torch.Tensor:
            return torch.tensor(array, dtype=torch.float64)

        self._points = [Points(*map(tensor, (each.learned.x, each.learned.y, each.learned.weight))) for each in folds]
        self._query = [tensor(each.x) for each in folds]
        self._trends = [trend(each.learned) for each in folds if degree and ridge != 0]
        self._value = [tensor(each.y) for each in folds]
        weight = torch.cat([tensor(each.weight) for each in folds])[:, None]
        self._share = weight / (weight.sum() * joined.y.shape[1])

    def __call__(self, t: Array) -> Trial:
        """The error at one t."""
        fits = [self._fit(t, k, query) for k, query in enumerate(self._query)]
        lse, row, theta = (torch.cat(each) for each in zip(*fits, strict=True))
        left = theta[:, 0] - torch.cat(self._value)
        error = float((self._share * left.square()).sum())
        return Trial(t, error if math.isfinite(error) else math.inf, left, left[:0], lse, row, theta, lse)

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """The error's slope with respect to t, and Gauss and Newton's guess at its second derivatives, a matrix."""
        sizes, changes, window = [len(each) for each in self._query], [], self.window(trial.t)
        by_fold = zip(*(each.split(sizes) for each in (trial.lse, trial.row, trial.theta)), strict=True)
        for k, (query, (lse, row, theta)) in enumerate(zip(self._query, by_fold, strict=True)):
            own = window, lse, row, theta
            change = sensitivity(query, self._points[k], *own)
            changes.append(self._finite(change, trial.t, *own, self._drawn(k, window)))
        return summed(np.concatenate(changes), self._share.numpy(), trial.left.numpy())

    def estimates(self, t: Array, query: Array) -> Array:
        """Estimates of the first output, (n, folds), at queries, less the origin."""
        at = torch.tensor(query, dtype=torch.float64)
        return torch.stack([self._fit(t, k, at)[2][:, 0, 0] for k in range(len(self.folds))], 1).numpy()

    def _drawn(self, k: int, window: Window) -> torch.Tensor | None:
        """The slopes to which lines of fold k are drawn."""
        return self._trends[k].over(window.bandwidth) if self._trends else None

    def _fit(self, t: Array, k: int, query: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The lse, row and θ of local fits to what fold k learns from; out of reach the mean of it."""
        points, pieces, window = self._points[k], [], self.window(t)
        ridge, toward = self._ridge(t, window), self._drawn(k, window)
        for part in parts(len(query), points.columns(self.degree)):
            own, fit = fits(query[part], points, window, ridge, toward)
            pieces.append((own, fit.row, fit.theta))
        lse, row, theta = (torch.cat(each) for each in zip(*pieces, strict=True))
        lost = ~(torch.isfinite(theta[:, 0]).all(1) & torch.isfinite(lse))
        if lost.any():
            theta[lost] = 0.0
            theta[lost, 0] = (points.weight @ points.value) / points.weight.sum()
        return lse, row, theta


class Tested:
    """The errors of tested rows at the bandwidths of a fit.

    Attributes:
        rows: The tested rows; one that is tested k times k times, each with a k-th of its weight.
        fold: (m,) integers: the fold in which each is.
        errors: (m, v), y less the estimate.
    """

    def __init__(self, held: Held, trial: Trial) -> None:
        self._held, self._t, self.folds = held, trial.t, held.folds
        folds = held.folds
        row = np.concatenate([each.row for each in folds])
        weight = np.concatenate([each.weight for each in folds]) / np.bincount(row)[row]
        unique = np.concatenate([each.unique for each in folds])
        self.rows = Repeats(unique, np.concatenate([each.y for each in folds]), weight, weight)
        self.fold = np.repeat(np.arange(len(folds)), [len(each.row) for each in folds])
        self.errors: Array = -trial.left.numpy()

    @property
    def weight(self) -> Array:
        """(n,), of the unique rows, how much of each is tested."""
        return np.asarray(np.bincount(self.rows.unique, self.rows.weight, len(self._held.joined.x)).astype(np.float64))

    @property
    def loss(self) -> Array:
        """(n, v), the mean squared error at each unique row; of one that is never tested that of all."""
        squares = self.rows.weight[:, None] * self.errors**2
        total = np.array([np.bincount(self.rows.unique, each, len(self._held.joined.x)) for each in squares.T]).T
        weight = self.weight[:, None]
        mean = squares.sum(0) / self.rows.weight.sum()
        return np.asarray(np.where(weight > 0, total / np.where(weight > 0, weight, 1), mean))

    @cached_property
    def alike(self) -> Array:
        """κ, at least 1, (v,)."""
        weight = self.rows.weight[:, None]
        weighted = (np.sqrt(weight) if self._held.joined.precise else weight) * self.errors
        sums = np.array([np.bincount(self.fold, each) for each in weighted.T]).T
        squares = (weighted**2).sum(0)
        alike: Array = np.divide((sums**2).sum(0), squares, out=np.ones_like(squares), where=squares > 0).clip(1)
        length = min(len(each.row) for each in self.folds)
        if length < 2 or any((np.diff(each.row) != 1).any() for each in self.folds):
            return alike
        apart = np.arange(1, length)

        def beyond(correlation: float, kappa: float) -> float:
            return 1 + 2 * float(correlation**apart @ (1 - apart / length)) - kappa

        found = np.array([brentq(beyond, 0, 1, (min(each, length),)) for each in alike])
        found = found.clip(max=0.999)
        return np.asarray(np.minimum((1 + found) / (1 - found), 1.5 * alike))

    def without(self, query: Array) -> Array:
        """Estimates of the first output, (n, m), at queries, each without the fold of a tested row."""
        return self._held.estimates(self._t, query)[:, self.fold]
