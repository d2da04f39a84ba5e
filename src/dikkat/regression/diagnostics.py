r"""The accuracy of a fitted model, its curves, the attention among its rows, and tests for dependent rows.

**Neighbours.** Sort the rows by one feature. $e_{ik}$ is the distance of $y_i$ from the line between the k-th
neighbours on either side, scaled so that independent errors of variance σ² give it the variance σ². A smooth mean adds
terms of k⁴ and k⁶. A least-squares fit to $e_{i2}^2, …, e_{i6}^2$ predicts $e_{i1}^2$ if errors are independent. If
neighbours have similar errors, $e_{i1}^2$ is smaller. Means over blocks of rows give the standard error of the
difference. There is no warning if the curvature of the mean explains nearly all of $e_{i2}^2$ (rows without errors), or
if the squares grow as for a mean that turns within a few rows (a season). A season of a dozen rows with errors of its
size still counts as dependence in one of seven samples.

**Near repeats.** Among evenly spread rows in d dimensions, with $r_{ik}$ the distance from row i to its k-th
neighbour, $k\,d \log(r_{i,k+1}/r_{ik})$ are independent and exponential. If rows are grouped in places, one step is far
larger: from the last row of the place to the first row of another place. In one dimension places with many rows
overlap. There, the gaps between n evenly spread rows are exponential, and a gap of log n + 2 times their mean separates
places.

Source: the variance from differences: Gasser, Sroka and Jennen-Steinmetz 1986; of dependent errors: Hall and Van
Keilegom 2003; distances to neighbours: Levina and Bickel 2004.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.special import stdtrit
from sklearn.utils.validation import check_is_fitted

from dikkat.extras import require_extra
from dikkat.regression import intervals
from dikkat.regression.columns import Column, columns_of, names_of, refill_cells
from dikkat.regression.criterion import FoldErrors, folds_of
from dikkat.regression.joined import Array
from dikkat.regression.local import parts
from dikkat.regression.validation import targets_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from dikkat.regression.estimator import KernelRegressor

_POINTS = 201  # query points along a feature
_MAX_GROUPS = 200  # groups of points in the picture of attention
_INFLUENCE_ROWS = 500  # rows on which influences are measured, at most

# --- dependence
_LAGS, _POWERS, _BLOCK = np.arange(1, 7), (0, 4, 6), 5
_MIN_ROWS = 60  # rows, or distinct values
_ROUNDING = 1e-24  # squared errors, over the square of the largest y, that are rounding
_FALSE_ALARM = 0.01  # the probability of a false alarm if the means of blocks are normal
_MAX_NEIGHBORS, _MIN_STEP, _MIN_PLACES = 25, 5.5, 5  # rows at a place; median of the largest steps; places
_SEPARATION = 8.0  # minimum of (distance between places / distance of neighbours in a place) ** dimensions
_RARE_GAP = 2.0  # evenly spread rows in one dimension have exp(-2) gaps that count as gaps between places
_SAMPLE = 2000  # rows whose neighbours tell whether the rows may form places
_QUANTILE = 0.15  # the quantile of rows' radii that separates places; larger radii join places
_MOST_FOLDS = 60  # folds that leave out places, at most
_MIN_RATIO = 1.3  # minimum of the mean squared error at new places over that with known repeats


class LeftOut(NamedTuple):
    """Predictions of each training row from other rows.

    Attributes:
        predicted: (n,) or (n, outputs), NaN for a row of weight 0.
        error: The mean squared error, averaged over the outputs; NaN for a single row.
        r2: The share of the variance that the predictions explain, at most 1, averaged over the outputs; NaN without
            variance.
    """

    predicted: Array
    error: float
    r2: float

    def __repr__(self) -> str:
        return f"LeftOut({len(self.predicted)} predictions, error {self.error:.4g}, r2 {self.r2:.4g})"

    def to_frame(self) -> DataFrame:
        """Return a pandas frame of the predictions.

        Raises:
            ImportError: pandas is not installed.
        """
        with require_extra("regression"):
            import pandas
        count = self.predicted.ndim == 2 and self.predicted.shape[1]
        names = [f"predicted{output}" for output in range(count)] if count else ["predicted"]
        return pandas.DataFrame(self.predicted, columns=names)


@dataclass(frozen=True)
class Curve:
    """Estimates along one feature, with other features at their medians."""

    name: str
    at: Array  # (k,), the feature's values, ascending; for a category the indices of its levels
    estimate: Array  # (k,)
    lower: Array  # (k,), of the 95 % confidence interval; NaN without an interval
    upper: Array  # (k,)
    data: Array  # (n,), the feature's values in the training rows of positive weight
    column: Column = Column()  # noqa: RUF009  # a constant
    values: tuple[Array, Array, float] | None = None  # the ends of intervals for new values, and their coverage


class Among(NamedTuple):
    """The attention of training points to each other in one order, in groups of neighbours if there are many points."""

    weights: Array  # (k, k), of the middle point of each group to all points of each group
    total: int  # the number of points
    by: Array | None = None  # (k,), the sort key of the middle points


def leave_out(model: KernelRegressor) -> LeftOut:
    """Predict each training row from the other rows; copies, which are equal in x and y, are left out together.

    If y is discrete, equal rows may not count as copies; see `dikkat.regression.criterion`, which has the formulas.

    Args:
        model: Fitted.
    """
    check_is_fitted(model)
    rows, fit = model._rows, model._smoother
    joined = fit.joined
    if joined.left_out_counts().sum() == 1:
        return LeftOut(np.full(rows.y.shape, math.nan), math.nan, math.nan)
    _, trial = fit.left_out
    unique, repeats = trial.errors.numpy() + joined.y, trial.repeat_errors.numpy() + joined.repeats.y
    predicted = np.full((len(rows.y), joined.y.shape[1]), np.nan)
    known, shared = joined.unique_index >= 0, joined.repeat_index >= 0
    predicted[known] = unique[joined.unique_index[known]] + joined.origin
    predicted[shared] = repeats[joined.repeat_index[shared]] + joined.origin
    return _add_scores(model, predicted.reshape(rows.y.shape))


def hold_out(
    model: KernelRegressor, folds: Any = 5, groups: ArrayLike | None = None, random_state: object = 0
) -> LeftOut:
    """Predict each training row by a model that is fitted, with a new search, to the rows of the other folds.

    The result is the accuracy to expect on new rows, because the bandwidth does not depend on the predicted rows, as it
    does in `leave_out`. Copies of a row (see `leave_out`) are held out together. Each fold takes the time of a fit.

    Args:
        model: Fitted.
        folds: The number of folds, at least 2, at most one for each row; or a scikit-learn splitter. Rows that depend
            on each other belong in one fold, such as blocks of time (`KFold`, without shuffling) or groups
            (`GroupKFold`).
        groups: (n,), the group of each row, for a splitter.
        random_state: A seed or generator for random folds, as in scikit-learn; unused with a splitter.

    Returns:
        The predictions and their error. R² is 0 for predictions as good as the mean of all rows. Rows in no fold have
        NaN and do not count.

    Raises:
        ValueError: If `folds` is invalid, or a splitter leaves no row to learn from or to predict.
    """
    check_is_fitted(model)
    is_splitter = hasattr(folds, "split")
    if not is_splitter and (isinstance(folds, bool) or not isinstance(folds, Integral) or folds < 2):
        raise ValueError(f"folds: got {folds!r}; expected a whole number, at least 2, or a scikit-learn splitter")
    rows, joined = model._rows, model._smoother.joined
    if joined.left_out_counts().sum() == 1:
        return LeftOut(np.full(rows.y.shape, math.nan), math.nan, math.nan)
    predicted = np.full(rows.y.shape, np.nan)
    if is_splitter:
        splits = list(folds.split(rows.x, targets_of(model, rows), groups))
    else:
        fold = joined.folds(folds, random_state)
        splits = [((fold != k) & (fold >= 0), fold == k) for k in range(fold.max() + 1)]
    for learned, held in splits:
        if not len(held) or not rows.weight[learned].any():
            name = type(folds).__name__
            raise ValueError(f"folds: got a {name} with no row to learn from or to predict; expected both in each fold")
        # A new search: starting from the bandwidths of all rows would leak the held-out rows.
        fitted = model._refit(rows.take(learned))
        predicted[held] = fitted._estimate(refill_cells(rows.x[held], fitted.columns_)[0])
    return _add_scores(model, predicted)


def _add_scores(model: KernelRegressor, predicted: Array) -> LeftOut:
    """Return predictions, clipped as those of `predict`, with their error and R²."""
    rows, joined, predicted = model._rows, model._smoother.joined, intervals.clip(model, predicted)
    known = (joined.unique_index >= 0) & ~np.isnan(predicted.reshape(len(predicted), -1)).any(1)
    squares = ((rows.y - predicted) ** 2).reshape(len(predicted), -1)[known]
    error, variance = np.average(squares, axis=0, weights=rows.weight[known]), joined.variances()
    explained = 1 - error / variance if (variance > 0).all() else np.array(math.nan)
    return LeftOut(predicted, float(error.mean()), float(explained.mean()))


def influence(model: KernelRegressor) -> Array:
    """Return each feature's influence (d,): the root mean square change of the estimate if the feature is set constant.

    The constant is the feature's median, or its most frequent category. At most `_INFLUENCE_ROWS` rows are used.
    """
    cache = model._smoother.added
    if "influence" not in cache:
        cache["influence"] = _measure_influence(model)
    return cache["influence"].copy()


def _measure_influence(model: KernelRegressor) -> Array:
    rows = model.X_train_[model.sample_weight_ > 0]
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _INFLUENCE_ROWS)).astype(int)]
    estimate, middle = np.asarray(model._estimate(rows)), middles(model)
    result = np.empty(rows.shape[1])
    for j in range(len(result)):
        moved = rows.copy()
        moved[:, j] = middle[j]
        result[j] = np.sqrt(np.mean((np.asarray(model._estimate(moved)) - estimate) ** 2))
    return result


def middles(model: KernelRegressor) -> Array:
    """Return the medians of the features (d,), for a category or a flag the index of its most frequent level."""
    rows = model.X_train_[model.sample_weight_ > 0]
    middle: Array = np.median(rows, axis=0)
    for j, column in enumerate(model.columns_):
        if column.groups:  # missing cells of a flag are between its levels
            middle[j] = np.bincount(rows[:, j].round().astype(int)).argmax()
    return middle


def curve_along(
    model: KernelRegressor, feature: int, name: str, coverage: float | None = None,
    fixed: Mapping[int, float] | None = None,
) -> Curve:  # fmt: skip
    """Return the estimate and its 95 % confidence interval from one feature's least to its greatest value.

    With `coverage` also return intervals for new values. Other features are constant: at `fixed`, else at `middles`.
    """
    points, data, column = _points_along(model, feature)
    points[:, list(fixed or {})] = list((fixed or {}).values())
    lower, upper = model._interval(points)
    estimate = intervals.clip(model, np.asarray(model._estimate(points)))
    if model.n_outputs_ == 1:
        estimate, lower, upper = estimate.ravel(), lower.ravel(), upper.ravel()
    unknown = ~np.isfinite(upper - lower)  # at an isolated row the interval is infinite
    lower[unknown] = upper[unknown] = math.nan
    new_values = None
    if coverage is not None:  # an interval for new values contains the confidence interval, even far from all rows
        low, high = intervals.interval(model, points, coverage, "jackknife+")
        new_values = np.fmin(low, lower), np.fmax(high, upper), coverage
    return Curve(name, points[:, feature], estimate, lower, upper, data, column, new_values)


def probabilities_along(model: Any, feature: int, name: str) -> list[Curve]:
    """Return a curve of each class's probability from one feature's least to its greatest value, as `curve_along`."""
    points, data, column = _points_along(model, feature)
    unknown = np.full(len(points), math.nan)
    return [
        Curve(name, points[:, feature], probability, unknown, unknown, data, column)
        for probability in model._estimate(points).T
    ]


def _points_along(model: Any, feature: int) -> tuple[Array, Array, Column]:
    """Return points along a feature, with the other features at `middles`; the feature's data, and its column."""
    rows = model.X_train_[model.sample_weight_ > 0]
    data, column = rows[:, feature], model.columns_[feature] if model.columns_ else Column()
    positions = np.arange(len(column.levels)) if column.is_category else column.grid(data.min(), data.max(), _POINTS)
    points = np.tile(middles(model), (len(positions), 1)).astype(rows.dtype)
    points[:, feature] = positions
    return points, data, column


def among(model: KernelRegressor, by: Array) -> Among:
    """Return the attention of training points to each other, sorted by `by` (n,)."""
    rows = np.flatnonzero(model.sample_weight_ > 0)
    order = rows[np.argsort(by[rows], kind="stable")]
    group_size = math.ceil(len(order) / _MAX_GROUPS)
    groups = np.array_split(order, math.ceil(len(order) / group_size))  # of equal size: a larger group would be darker
    starts = np.cumsum([0, *map(len, groups[:-1])])
    middle = [group[len(group) // 2] for group in groups]
    query = model._coordinates(model.X_train_[middle])
    weights = []
    for chunk in parts(len(query), len(model.X_train_)):
        result = np.asarray(model._smoother.attention(query[chunk], model.sample_weight_))
        weights.append(np.add.reduceat(result[:, order], starts, axis=1))
    return Among(np.concatenate(weights), len(order), by[middle])


# --- dependence


def warn_of_dependence(model: KernelRegressor) -> None:
    """Warn if errors are similar along a date or a number, or among repeats and near repeats."""
    if not model._smoother.joined.num_numeric or model.n_outputs_ > 1:
        return
    if (column := dependent_column(model)) is not None:
        message = (
            f"y: got rows whose errors correlate with their neighbours' along {names_of(model)[column]!r}, as in a "
            "time series (or with a mean that turns within a few rows), so that the bandwidth and intervals are too "
            "narrow; expected independent errors, or cv=20, which makes 20 blocks of rows (sort rows by that column)"
        )
    elif (repeated := errors_at_places(model)) is not None:
        place_count, known_error, new_error = repeated
        message = (
            f"X: got rows at {place_count} places, equal or nearly equal in X, as in repeated measurements. At a new "
            f"place the error is {new_error:.3g}, not {known_error:.3g}, and intervals are too narrow. Expected the "
            "mean of each place, or in Python the place of each row as groups, with "
            f"cv=GroupKFold({min(10, place_count)})"
        )
    else:
        return
    warnings.warn(message, UserWarning, stacklevel=5)


def dependent_column(model: KernelRegressor, max_values: int = 2000) -> int | None:
    """Return the first date or number along which neighbours have similar errors; None if there is no such column.

    The residual of a row is y minus the estimate with this column at its median, which removes the effects of the other
    columns. Rows with equal values, such as several stores on the same date, count as one row with their mean residual.
    The test runs on all rows, and on the rows with the most frequent level of each category, such as one store.

    The test needs 60 distinct values. It uses at most `max_values` values, from the middle of the column, and about as
    many rows: the first rows of each value.
    """
    joined, there = model._smoother.joined, np.flatnonzero(model._smoother.joined.unique_index >= 0)
    first = np.zeros(len(joined.x), np.intp)
    first[joined.unique_index[there]] = there
    rows, middle, y = model.X_train_[first], middles(model), joined.y[:, 0] + joined.origin[0]
    is_number = np.array([column.kind in ("number", "date") for column in columns_of(model)])
    subsets = [np.arange(len(rows)), *(np.flatnonzero(rows[:, k] == middle[k]) for k in np.flatnonzero(~is_number))]
    tests = [
        (j, subset) for j in np.flatnonzero(is_number).tolist() for subset in subsets
        if len(np.unique(rows[subset, j])) >= _MIN_ROWS
    ]  # fmt: skip
    residuals = np.full(rows.T.shape, np.nan) if len(middle) > 1 else y[None]  # subsets share rows
    for j, subset in tests:
        order = subset[np.argsort(rows[subset, j], kind="stable")]
        values, starts, position = np.unique(rows[order, j], return_index=True, return_inverse=True)
        rank, skipped = np.arange(len(order)) - starts[position], max(0, len(values) - max_values) // 2
        values, position = values[skipped : skipped + max_values], position - skipped
        chosen = (rank < max(1, max_values // len(values))) & (position >= 0) & (position < len(values))
        order, position, residual = order[chosen], position[chosen], residuals[j]
        if len(unknown := order[np.isnan(residual[order])]):
            changed = rows[unknown]
            changed[:, j] = middle[j]
            residual[unknown] = y[unknown] - np.asarray(model._estimate(changed)).ravel()
        if errors_are_alike(values, np.bincount(position, residual[order]) / np.bincount(position), len(tests)):
            return j
    return None


def errors_at_places(model: KernelRegressor) -> tuple[int, float, float] | None:
    """Return the number of places with repeats or near repeats, and two errors; None if the errors are similar.

    The root mean squared errors are of predictions with the other rows of the place, and without these rows.
    """
    joined, smoother = model._smoother.joined, model._smoother
    reached, rows = np.ptp(joined.x, axis=0) > smoother.bandwidth, joined.rows()
    if not reached[: joined.num_numeric].any():
        return None
    scaled = joined.x[rows.unique] / smoother.bandwidth
    place_ids = places_of(scaled, len(np.unique(joined.feature_of[reached])))
    if place_ids is None:
        return None
    errors = intervals.left_out_errors(model)[1]
    groups = np.full(len(joined.unique_index), -1)
    unique_place = np.empty(len(joined.x), np.intp)
    unique_place[rows.unique] = place_ids
    counted = joined.unique_index >= 0
    groups[counted] = unique_place[joined.unique_index[counted]]
    count = len(np.unique(place_ids))
    fold = groups % min(count, _MOST_FOLDS)
    folds = np.where(counted, 1 + (fold == np.arange(min(count, _MOST_FOLDS))[:, None]), 0).astype(np.int8)
    by_place = cast(FoldErrors, replace(smoother, folds=folds_of(model._rows._replace(folds=folds), joined)).tested)
    known = np.average(errors**2, weights=rows.weight)
    unknown = np.average(by_place.errors[:, 0] ** 2, weights=by_place.rows.weight)
    return (count, float(np.sqrt(known)), float(np.sqrt(unknown))) if unknown > _MIN_RATIO * known else None


def places_of(x: Array, dimensions: int) -> NDArray[np.intp] | None:
    """Group equal or nearly equal rows of x (n, d) in places. Return the number of each row's place (n,), or None.

    None means that the rows form no places. `dimensions` is the most dimensions in which the rows vary.
    """
    if len(x) < _MIN_ROWS // 2:
        return None
    neighbors, tree = min(_MAX_NEIGHBORS, len(x) - 2), cKDTree(x)

    def measure(rows: Array) -> tuple[Array, Array, Array]:
        """Return the distances to the nearest other rows, the largest step between them, and its index."""
        distances = np.asarray(tree.query(rows, neighbors + 2)[0][:, 1:])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.nan_to_num(np.log(distances[:, 1:] / distances[:, :-1]), posinf=np.inf)
            steps = ratios * np.arange(1, neighbors + 1)
            steps *= min(dimensions, np.log(2) / np.median(steps))  # fewer if rows lie near a line or a plane
        return distances, steps.max(1), steps.argmax(1)

    # A part of the rows tells whether they may form places: the distances of 10,000 rows take a quarter of a fit.
    distances, largest, index = measure(x[:: -(-len(x) // _SAMPLE)])
    nearest = np.median(distances[:, 0])
    if np.median(largest) >= _MIN_STEP:
        distances, _, index = measure(x)
        row = np.arange(len(x))
        inside = distances[row, index]
        radius = np.quantile((inside + distances[row, index + 1]) / 2, _QUANTILE) if np.median(inside) > 0 else 0.0
        size_factor = 2
    elif dimensions == 1 and nearest > 0:
        radius = (np.log(len(x)) + _RARE_GAP) * nearest * 2 / np.log(2)
        size_factor = _MIN_PLACES  # rows around a few centers are not places
    else:
        return None
    if x.shape[1] == 1:
        order = np.argsort(x[:, 0])
        place_ids = np.empty(len(x), np.intp)
        place_ids[order] = np.concatenate([[0], np.cumsum(np.diff(x[order, 0]) > radius)])
        count = int(place_ids[order[-1]]) + 1
    else:
        pairs = tree.query_pairs(radius, output_type="ndarray")
        count, place_ids = connected_components(coo_array((np.ones(len(pairs)), pairs.T), (len(x), len(x))))
    sizes = np.bincount(place_ids)
    too_few = count < _MIN_PLACES or len(x) ** 2 < size_factor * (sizes**2).sum()
    if too_few or (sizes[place_ids] > 1).mean() < 0.5:
        return None
    distances, gaps = measure(x)[0], np.full(count, np.inf)
    np.minimum.at(gaps, place_ids, np.where(distances > radius, distances, np.inf).min(1))
    return place_ids if np.median(gaps) > _SEPARATION ** (1 / dimensions) * np.median(distances[:, 0]) else None


def errors_are_alike(x: Array, y: Array, tests: int = 1) -> bool:
    """Return True if neighbours in x (n,) have similar errors y (n,), in one of `tests` tests."""
    order = np.argsort(x, kind="stable")
    x, y = x[order].astype(np.float64), y[order]
    inner = np.arange(_LAGS[-1], len(x) - _LAGS[-1])
    if len(x) < _MIN_ROWS or x[0] == x[-1]:
        return False
    squares = np.array([_squared_errors(x, y / max(np.abs(y).max(), 1e-300), inner, int(lag)) for lag in _LAGS])
    lag1, lag2, lag3, *longer = squares.mean(1)
    if lag1 <= max(lag2 / 4, _ROUNDING) or lag3 - lag2 > 2 * (lag2 - lag1) or longer[-1] < max(lag2, lag3, *longer) / 2:
        return False
    terms = (_LAGS[:, None] / _LAGS[-1]) ** np.array(_POWERS)
    excess = terms[0] @ np.linalg.pinv(terms[1:]) @ squares[1:] - squares[0]
    means = excess[: len(excess) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).mean(1)
    limit = -stdtrit(len(means) - 1, _FALSE_ALARM / tests)
    return bool(means.mean() > limit * means.std(ddof=1) / np.sqrt(len(means)))


def _squared_errors(x: Array, y: Array, inner: Array, lag: int) -> Array:
    """Return noise variances from inner rows' squared distances to the line between the rows `lag` before and after."""
    gap_before, gap_after = x[inner] - x[inner - lag], x[inner + lag] - x[inner]
    share = np.divide(gap_after, gap_before + gap_after, out=np.full(len(inner), 0.5), where=gap_before + gap_after > 0)
    error = y[inner] - share * y[inner - lag] - (1 - share) * y[inner + lag]
    return np.asarray(error**2 / (1 + share**2 + (1 - share) ** 2))
