r"""The accuracy of a fitted model, its curves, the attention among its rows, and whether its rows are independent.

**Neighbours.** Sort the rows by one feature. $e_{ik}$ is the distance of $y_i$ from the line between the k-th
neighbours on either side, scaled so that independent errors of variance σ² give it the variance σ². A smooth mean adds
terms of k⁴ and k⁶. A least-squares fit to $e_{i2}^2, …, e_{i6}^2$ predicts $e_{i1}^2$ if errors are independent; if
neighbours err alike, $e_{i1}^2$ is smaller. Means over blocks of rows give the standard error of the difference. There
is no warning if the bend of the mean is nearly all of $e_{i2}^2$ (rows without errors), or if the squares grow as those
of a mean that turns within a few rows (a season). A season of a dozen rows under errors as large still counts as
dependence, in one draw of seven.

**Near repeats.** Among rows that are spread evenly in d dimensions, with $r_{ik}$ the distance from row i to its k-th
neighbour, $k\,d \log(r_{i,k+1}/r_{ik})$ are independent and exponential. Rows in places have one such step that is far
larger: from the last row of the place to the first one of another. In one dimension places with many rows overlap.
There, the gaps between n evenly spread rows are exponential, and a gap of log n + 2 times their mean separates places.

Source: the variance from differences: Gasser, Sroka and Jennen-Steinmetz 1986; of dependent errors: Hall and Van
Keilegom 2003; distances to neighbours: Levina and Bickel 2004.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.special import stdtrit
from sklearn.utils.validation import check_is_fitted

from dikkat.regression import intervals
from dikkat.regression.columns import Column, columns_of, names_of, refilled
from dikkat.regression.criterion import folds_of
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.local import parts

if TYPE_CHECKING:
    from dikkat.regression.estimator import KernelRegressor

_STEPS = 201  # query points along a feature
_GROUPS = 200  # most groups of points in the picture of attention

# --- dependence
_LAGS, _POWERS, _BLOCK = np.arange(1, 7), (0, 4, 6), 5
_LEAST = 60  # rows, or distinct values
_EXACT = 1e-24  # squares of errors, in units of y's, that are rounding
_RARE = 0.01  # the chance of a false alarm if the means of blocks are normal
_NEIGHBORS, _STEP, _PLACES = 25, 5.5, 5  # most rows at a place; least median of the largest steps; least places
_APART = 8.0  # least distance between places over that of neighbours at one, to the power of the dimensions
_RARE_GAP = 2.0  # in one dimension, evenly spread rows have exp(-2) gaps that count as gaps between places
_SMALL = 0.15  # the quantile of rows' radii that separates places: larger ones join places
_MOST_FOLDS = 60  # most folds in which places are left out
_RATIO = 1.3  # least mean square of errors at new places over that beside repeats


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
    if coverage is not None:  # an interval for new values contains that of the function, also far from all rows
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


# --- dependence


def warn_of_dependence(model: KernelRegressor) -> None:
    """Warn if errors are alike along a date or a number, or if repeats and near repeats are."""
    if not model._smoother.joined.numbers or model.n_outputs_ > 1:
        return
    if (column := dependent_column(model)) is not None:
        message = (
            f"y: got rows whose errors are like those of their neighbours in {names_of(model)[column]!r}, as in a time "
            "series (or a mean that turns within a few rows): the bandwidth follows them, and intervals are too "
            "narrow. Expected independent errors, or folds that are far apart: `cv=20` for 20 blocks of rows in their "
            "order (sort them by that column), or a splitter by groups"
        )
    elif (repeated := errors_at_places(model)) is not None:
        places, beside_repeats, at_new_places = repeated
        message = (
            f"X: got rows at {places} places, equal or nearly equal in X, as repeated measurements are. The error of a "
            f"row is {beside_repeats:.3g} if its repeats are known, and {at_new_places:.3g} if they are not, as at a "
            "new place: there, intervals and errors are too small. Expected folds that keep repeats together, by "
            "`cv=GroupKFold(10)` and `groups` in fit; or the mean of each place"
        )
    else:
        return
    warnings.warn(message, UserWarning, stacklevel=5)


def dependent_column(model: KernelRegressor, most: int = 2000) -> int | None:
    """Return the first date or number along which errors are like those of their neighbours; None if there is none.

    The residual of a row is y minus the estimate with this column at its median, which removes the effects of the other
    columns. Rows with equal values, such as several stores on the same date, count as one row with their mean residual.
    The test runs on all rows, and on the rows with the most frequent level of each category, such as one store.

    It needs 60 distinct values. It uses at most 2000 values, from the middle of the column, and about 2000 rows: from
    each value the first ones.
    """
    joined, there = model._smoother.joined, np.flatnonzero(model._smoother.joined.inverse >= 0)
    first = np.zeros(len(joined.x), np.intp)
    first[joined.inverse[there]] = there
    rows, middle, y = model.X_train_[first], middles(model), joined.y[:, 0] + joined.origin[0]
    plain = np.array([column.kind in ("number", "date") for column in columns_of(model)])
    subsets = [np.arange(len(rows)), *(np.flatnonzero(rows[:, k] == middle[k]) for k in np.flatnonzero(~plain))]
    tests = [
        (j, subset) for j in np.flatnonzero(plain).tolist() for subset in subsets
        if len(np.unique(rows[subset, j])) >= _LEAST
    ]  # fmt: skip
    for j, subset in tests:
        order = subset[np.argsort(rows[subset, j], kind="stable")]
        values, starts, position = np.unique(rows[order, j], return_index=True, return_inverse=True)
        rank, cut = np.arange(len(order)) - starts[position], max(0, len(values) - most) // 2
        values, position = values[cut : cut + most], position - cut
        chosen = (rank < max(1, most // len(values))) & (position >= 0) & (position < len(values))
        others, position = rows[order[chosen]], position[chosen]
        others[:, j] = middle[j]
        residual = y[order[chosen]] - (np.asarray(model._answer(others)) if rows.shape[1] > 1 else 0)
        if errors_are_alike(values, np.bincount(position, residual) / np.bincount(position), len(tests)):
            return j
    return None


def errors_at_places(model: KernelRegressor) -> tuple[int, float, float] | None:
    """Return the number of places at which rows are repeats or near repeats, and two errors; None if they are alike.

    The errors are root mean squares: of rows predicted with the other rows of their place, and without them.
    """
    joined, smoother = model._smoother.joined, model._smoother
    reached, rows = np.ptp(joined.x, axis=0) > smoother.bandwidth, joined.rows()
    if not reached[: joined.numbers].any():
        return None
    scaled = joined.x[rows.unique] / smoother.bandwidth
    place = places_of(scaled, len(np.unique(joined.feature[reached])))
    if place is None:
        return None
    errors = intervals.left_out_errors(model)[1]
    groups = np.full(len(joined.inverse), -1)
    own = np.empty(len(joined.x), np.intp)
    own[rows.unique] = place
    there = joined.inverse >= 0
    groups[there] = own[joined.inverse[there]]
    count = len(np.unique(place))
    fold = groups % min(count, _MOST_FOLDS)
    folds = np.where(there, 1 + (fold == np.arange(min(count, _MOST_FOLDS))[:, None]), 0).astype(np.int8)
    by_place = replace(smoother, folds=folds_of(model._rows._replace(folds=folds), joined)).tested
    old = np.average(errors**2, weights=rows.weight)
    assert by_place is not None  # since folds are given
    new = np.average(by_place.errors[:, 0] ** 2, weights=by_place.rows.weight)
    return (count, float(np.sqrt(old)), float(np.sqrt(new))) if new > _RATIO * old else None


def places_of(x: Array, dimensions: int) -> NDArray[np.intp] | None:
    """The place of each row of x (n, d), (n,), if rows are equal or nearly equal in groups; else None.

    The rows are spread in at most so many dimensions.
    """
    if len(x) < _LEAST // 2:
        return None
    most, tree = min(_NEIGHBORS, len(x) - 2), cKDTree(x)
    apart = tree.query(x, most + 2)[0][:, 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.nan_to_num(np.log(apart[:, 1:] / apart[:, :-1]), posinf=np.inf) * np.arange(1, most + 1)
        steps *= min(dimensions, np.log(2) / np.median(steps))  # fewer if rows lie near a line or a plane
    row, last = np.arange(len(x)), steps.argmax(1)
    inside = apart[row, last]
    if np.median(steps[row, last]) >= _STEP:
        radius = np.quantile((inside + apart[row, last + 1]) / 2, _SMALL) if np.median(inside) > 0 else 0.0
        of_one_size = 2
    elif dimensions == 1 and (nearest := np.median(apart[:, 0])) > 0:
        radius = (np.log(len(x)) + _RARE_GAP) * nearest * 2 / np.log(2)
        of_one_size = _PLACES  # rows around a few centers are no places
    else:
        return None
    pairs = tree.query_pairs(radius, output_type="ndarray")
    count, place = connected_components(coo_array((np.ones(len(pairs)), pairs.T), (len(x), len(x))))
    sizes, between = np.bincount(place), np.full(count, np.inf)
    np.minimum.at(between, place, np.where(apart > radius, apart, np.inf).min(1))
    few = count < _PLACES or len(x) ** 2 < of_one_size * (sizes**2).sum()
    if few or (sizes[place] > 1).mean() < 0.5:
        return None
    return place if np.median(between) > _APART ** (1 / dimensions) * np.median(apart[:, 0]) else None


def errors_are_alike(x: Array, y: Array, tests: int = 1) -> bool:
    """True where rows (n,) that are neighbours in x have errors in y (n,) that are alike, in one of so many tests."""
    order = np.argsort(x, kind="stable")
    x, y = x[order].astype(np.float64), y[order]
    inner = np.arange(_LAGS[-1], len(x) - _LAGS[-1])
    if len(x) < _LEAST or x[0] == x[-1]:
        return False
    squares = np.array([_squares(x, y / max(np.abs(y).max(), 1e-300), inner, int(lag)) for lag in _LAGS])
    one, two, three, *more = squares.mean(1)
    if one <= max(two / 4, _EXACT) or three - two > 2 * (two - one) or more[-1] < max(two, three, *more) / 2:
        return False
    terms = (_LAGS[:, None] / _LAGS[-1]) ** np.array(_POWERS)
    excess = terms[0] @ np.linalg.pinv(terms[1:]) @ squares[1:] - squares[0]
    means = excess[: len(excess) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).mean(1)
    limit = -stdtrit(len(means) - 1, _RARE / tests)
    return bool(means.mean() > limit * means.std(ddof=1) / np.sqrt(len(means)))


def _squares(x: Array, y: Array, inner: Array, lag: int) -> Array:
    """e² of the inner rows."""
    before, after = x[inner] - x[inner - lag], x[inner + lag] - x[inner]
    share = np.divide(after, before + after, out=np.full(len(inner), 0.5), where=before + after > 0)
    off = y[inner] - share * y[inner - lag] - (1 - share) * y[inner + lag]
    return np.asarray(off**2 / (1 + share**2 + (1 - share) ** 2))
