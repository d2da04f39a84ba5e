"""The accuracy of a fitted model, its curve along one feature, and the attention among its own points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dikkat.regression import intervals
from dikkat.regression.columns import Column, refilled
from dikkat.regression.dependence import errors_are_alike
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.local import parts

if TYPE_CHECKING:
    from dikkat.regression.estimator import KernelRegressor

_STEPS = 201  # query points along a feature
_GROUPS = 200  # most groups of points in the picture of attention


class LeftOut(NamedTuple):
    """Each training row predicted from others.

    Attributes:
        predicted: (n,) or (n, outputs), NaN for a row of weight 0.
        error: The mean squared error, the mean over the outputs; NaN where there is but one row.
        r2: The share of the variance that these predictions explain, at most 1, the mean over the outputs; NaN where
            there is no variance.
    """

    predicted: Array
    error: float
    r2: float


@dataclass(frozen=True)
class Curve:
    """Estimates along one feature, the others at their medians."""

    name: str
    at: Array  # (k,), its values, ascending; of a category the indices of its levels
    estimate: Array  # (k,)
    lower: Array  # (k,), of the 95 % confidence interval, NaN where it has none
    upper: Array  # (k,)
    data: Array  # (n,), the feature's values in the training rows that have weight
    column: Column = Column()  # noqa: RUF009  # a constant
    values: tuple[Array, Array, float] | None = None  # the ends of intervals that hold new values, and their coverage


class Among(NamedTuple):
    """The attention of training points to each other, all in one order; of many in groups of neighbours."""

    weights: Array  # (k, k), of the middle point of each group on all points of each; of few points each is a group
    total: int  # how many points there are
    by: Array | None = None  # (k,), what the middle points are sorted by


def leave_out(model: KernelRegressor) -> LeftOut:
    """Predict each training row from the others; rows equal in x and y, which are copies, are left out together.

    Of a discrete y they are none: `dikkat.regression.criterion` has when, and the formulas.

    Args:
        model: Fitted.
    """
    check_is_fitted(model)
    rows, fit = model._rows, model._smoother
    joined = fit.joined
    if joined.counts().sum() == 1:
        return LeftOut(np.full(rows.y.shape, math.nan), math.nan, math.nan)
    _, trial = fit.left_out
    unique, repeats = trial.left.numpy() + joined.y, trial.repeated.numpy() + joined.repeats.y
    predicted = np.full((len(rows.y), joined.y.shape[1]), np.nan)
    known, shared = joined.inverse >= 0, joined.repeat >= 0
    predicted[known] = unique[joined.inverse[known]] + joined.origin
    predicted[shared] = repeats[joined.repeat[shared]] + joined.origin
    return _judged(predicted.reshape(rows.y.shape), rows, joined)


def hold_out(
    model: KernelRegressor, folds: Any = 5, groups: ArrayLike | None = None, random_state: object = 0
) -> LeftOut:
    """Predict each training row by a model of the rows in the other folds, for which everything is chosen anew.

    That is the accuracy to expect on new rows: the bandwidth has not seen the rows that it is judged by, as it has in
    `leave_out`. Copies of a row, as `leave_out` has them, are held out together. Each fold takes as long as a fit.

    Args:
        model: Fitted.
        folds: How many, at least 2; of fewer rows each is a fold. Or a splitter of scikit-learn's: rows that depend on
            each other belong together, as in blocks of time (`KFold`, which does not shuffle) or in groups
            (`GroupKFold`).
        groups: (n,), for a splitter, the group of each row.
        random_state: Without a splitter, where the random numbers begin by which rows are dealt, as scikit-learn takes
            it.

    Returns:
        R² is 0 for predictions as good as the mean of all rows. Rows that are in no fold have NaN, and do not count.

    Raises:
        ValueError: Folds that are none; a splitter that leaves nothing to learn from or to predict.
    """
    check_is_fitted(model)
    is_splitter = hasattr(folds, "split")
    if not is_splitter and (isinstance(folds, bool) or not isinstance(folds, Integral) or folds < 2):
        raise ValueError(f"folds: got {folds!r}; expected a whole number, at least 2, or a splitter of scikit-learn's")
    rows, joined = model._rows, model._smoother.joined
    if joined.counts().sum() == 1:
        return LeftOut(np.full(rows.y.shape, math.nan), math.nan, math.nan)
    predicted = np.full(rows.y.shape, np.nan)
    if is_splitter:
        parts = list(folds.split(rows.x, rows.y, groups))
    else:
        fold = joined.folds(folds, random_state)
        parts = [((fold != each) & (fold >= 0), fold == each) for each in range(fold.max() + 1)]
    for rest, held in parts:
        if not len(held) or not rows.weight[rest].any():
            name = type(folds).__name__
            raise ValueError(f"folds: got a {name} that leaves no row to learn from or to predict; expected some")
        # The search starts anew: starting from the bandwidths of all rows would leak the held-out rows.
        fitted = model._anew(rows.take(rest))
        predicted[held] = fitted._answer(refilled(rows.x[held], fitted.columns_)[0])
    return _judged(predicted, rows, joined)


def _judged(predicted: Array, rows: Rows, joined: Joined) -> LeftOut:
    """Predictions of the training rows, with their error and R²."""
    known = (joined.inverse >= 0) & ~np.isnan(predicted.reshape(len(predicted), -1)).any(1)
    squares = ((rows.y - predicted) ** 2).reshape(len(predicted), -1)[known]
    error, variance = np.average(squares, axis=0, weights=rows.weight[known]), joined.variances()
    explained = 1 - error / variance if (variance > 0).all() else np.array(math.nan)
    return LeftOut(predicted, float(error.mean()), float(explained.mean()))


def influence(model: KernelRegressor, most: int = 500) -> Array:
    """(d,): by how much a feature moves the estimate: the root mean square change where it is put in its middle.

    That is its median, or its most frequent category; of so many rows at most.
    """
    rows = model.X_train_[model.sample_weight_ > 0]
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)]
    own, middle = np.asarray(model._answer(rows)), middles(model)
    result = np.empty(rows.shape[1])
    for j in range(len(result)):
        moved = rows.copy()
        moved[:, j] = middle[j]
        result[j] = np.sqrt(np.mean((np.asarray(model._answer(moved)) - own) ** 2))
    return result


def middles(model: KernelRegressor) -> Array:
    """(d,), the medians of the features; of a category the index of its most frequent level."""
    rows = model.X_train_[model.sample_weight_ > 0]
    middle: Array = np.median(rows, axis=0)
    for j, column in enumerate(model.columns_):
        if column.is_category:
            middle[j] = np.bincount(rows[:, j].astype(int)).argmax()
    return middle


def dependent_column(model: KernelRegressor, most: int = 2000) -> int | None:
    """Return the first date or number along which errors are like those of their neighbours; None if there is none.

    The effects of the other columns are taken from y: the estimates with this column in its middle. A column counts if
    most of its values differ. Of many rows the middle ones in the order of the column are looked at.
    """
    joined, there = model._smoother.joined, np.flatnonzero(model._smoother.joined.inverse >= 0)
    first = np.zeros(len(joined.x), np.intp)
    first[joined.inverse[there]] = there
    rows, middle, y = model.X_train_[first], middles(model), joined.y[:, 0] + joined.origin[0]
    plain = [column.kind in ("number", "date") for column in model.columns_] or [True] * rows.shape[1]
    columns = [j for j in np.flatnonzero(plain).tolist() if 2 * len(np.unique(rows[:, j])) > len(rows)]
    for j in columns:
        start = max(0, len(rows) - most) // 2
        some = np.argsort(rows[:, j], kind="stable")[start : start + most]
        others = rows[some]
        others[:, j] = middle[j]
        rest = y[some] - (np.asarray(model._answer(others)) if rows.shape[1] > 1 else 0)
        if errors_are_alike(rows[some, j], rest, len(columns)):
            return j
    return None


def along(model: KernelRegressor, feature: int, name: str, coverage: float | None = None) -> Curve:
    """The estimate and its 95 % confidence interval as one feature goes from its least to its greatest value.

    With a coverage the intervals of new values too. Other categories are at their most frequent level.
    """
    rows = model.X_train_[model.sample_weight_ > 0]
    data, column = rows[:, feature], model.columns_[feature] if model.columns_ else Column()
    at = np.arange(len(column.levels)) if column.is_category else np.linspace(data.min(), data.max(), _STEPS)
    points = np.tile(middles(model), (len(at), 1)).astype(rows.dtype)
    points[:, feature] = at
    lower, upper = model._interval(points)
    estimate = np.asarray(model._answer(points))
    if model.n_outputs_ == 1:
        estimate, lower, upper = estimate.ravel(), lower.ravel(), upper.ravel()
    unknown = ~np.isfinite(upper - lower)  # where one row is alone, the interval is infinite
    lower[unknown] = upper[unknown] = math.nan
    values = None
    if coverage is not None:  # no value is surer than the function, as between columns that go together
        low, high = intervals.interval(model, points, coverage, "jackknife+")
        values = np.fmin(low, lower), np.fmax(high, upper), coverage
    return Curve(name, points[:, feature], estimate, lower, upper, data, column, values)


def among(model: KernelRegressor, by: Array) -> Among:
    """The attention of training points to each other, sorted by `by` (n,)."""
    rows = np.flatnonzero(model.sample_weight_ > 0)
    order = rows[np.argsort(by[rows], kind="stable")]
    groups = np.array_split(order, min(len(order), _GROUPS))
    starts = np.cumsum([0, *map(len, groups[:-1])])
    middle = [group[len(group) // 2] for group in groups]
    query = model._coordinates(model.X_train_[middle])
    weights = []
    for part in parts(len(query), len(model.X_train_)):
        result = np.asarray(model._smoother.attention(query[part], model.sample_weight_))
        weights.append(np.add.reduceat(result[:, order], starts, axis=1))
    return Among(np.concatenate(weights), len(order), by[middle])
