r"""The errors of rows that are predicted from other folds: for rows that depend on each other.

A splitter gives pairs of rows, those to learn from and those to test. With $\hat y_{-k}$ the estimate from the former
of pair k, the criterion is the weighted mean of $(y_i - \hat y_{-k}(x_i))^2$ over the tested rows.

What single errors say of a mean of errors depends on how alike those are that are tested together. With $v_i$ the
weights,

$$ \kappa = \frac{\sum_k \big(\sum_{i \in k} v_i e_i\big)^2}{\sum_k \sum_{i \in k} (v_i e_i)^2} $$

is 1 in the mean where errors are independent; the variance of an estimate is taken κ times as large, where κ is more
than 1, with at most as many degrees of freedom as there are folds. The noise in a residual is less by κ times the share
of a row in its own estimate: in place of g it is 1 − κ(1 − g), at least g/4. Folds that are runs of b rows cut off what
their errors have in common with the next ones': with correlations $\rho^j$ of errors j apart
$\kappa = 1 + 2\sum_{j<b}(1 - j/b)\rho^j$, and $(1 + \rho)/(1 - \rho)$, at most half as much again, takes its place.

Source: Burman, Chow and Nolan 1994, A cross-validatory method for dependent data; Kish 1965, section 5.4 (κ, there the
design effect of clusters); Barber, Candès, Ramdas and Tibshirani 2021, section 3.1 (CV+).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from dikkat.regression.criterion import Criterion, Trial, summed
from dikkat.regression.joined import Array, Joined, Repeats, Rows
from dikkat.regression.local import Points, fits, parts, sensitivity
from dikkat.regression.moments.launch import Profile, Window
from dikkat.regression.trend import trend

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
        part = rows.take(learned).joined()
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
        self,
        joined: Joined,
        folds: list[Fold],
        profile: Profile,
        degree: int,
        ridge: float | None = 0.0,
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
        result: Array = np.bincount(self.rows.unique, self.rows.weight, len(self._held.joined.x)).astype(np.float64)
        return result

    @property
    def loss(self) -> Array:
        """(n, v), the mean squared error at each unique row; of one that is never tested that of all."""
        squares = self.rows.weight[:, None] * self.errors**2
        total = np.array([np.bincount(self.rows.unique, each, len(self._held.joined.x)) for each in squares.T]).T
        weight = self.weight[:, None]
        mean = squares.sum(0) / self.rows.weight.sum()
        result: Array = np.where(weight > 0, total / np.where(weight > 0, weight, 1), mean)
        return result

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
        result: Array = np.minimum((1 + found) / (1 - found), 1.5 * alike)
        return result

    def without(self, query: Array) -> Array:
        """Estimates of the first output, (n, m), at queries, each without the fold of a tested row."""
        return self._held.estimates(self._t, query)[:, self.fold]
