"""How good a fitted model is, and what it says along one feature and among its own points."""

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dikkat.regression.columns import Column
from dikkat.regression.criterion import Criterion
from dikkat.regression.estimator import NadarayaWatson
from dikkat.regression.joined import Array
from dikkat.regression.rows import Rows

__all__ = ["Among", "Curve", "LeftOut", "along", "among", "hold_out", "leave_out", "reach"]

_STEPS = 201  # query points along a feature
_GROUPS = 200  # most groups of points in the picture of attention
_WEIGHTS = 2**24  # most weights held at once


class LeftOut(NamedTuple):
    """Each training row predicted from the others; those at its own place are left out with it.

    Attributes:
        predicted: (n,), NaN for a row of weight 0.
        error: The mean squared error; NaN where all rows are at one place.
        r2: The share of the variance that these predictions explain, at most 1; NaN where there is no variance.
    """

    predicted: Array
    error: float
    r2: float


@dataclass(frozen=True)
class Curve:
    """Estimates along one feature, the others at their medians.

    Attributes:
        name: The feature.
        at: (k,), its values, ascending.
        estimate: (k,), NaN where no training row is within reach.
        lower: (k,), the lower end of the 95 % band, NaN where it has none.
        upper: (k,), the upper one.
        data: (n,), the feature's values in the training rows that have weight.
        column: What it is; of a category `at` are its levels' places.
    """

    name: str
    at: Array
    estimate: Array
    lower: Array
    upper: Array
    data: Array
    column: Column = Column()  # noqa: RUF009  # a constant


class Among(NamedTuple):
    """The attention of training points to each other, all in one order; where there are many, in groups of neighbours.

    Attributes:
        weights: (k, k), of the middle point of each group on all points of each; a point is a group if they are few.
        total: How many points there are.
    """

    weights: Array
    total: int


def leave_out(model: NadarayaWatson) -> LeftOut:
    """Predict each training row from the others.

    Args:
        model: Fitted, to one target.
    """
    y, weight, joined = model.y_train_, model.sample_weight_, model._joined()
    predicted = np.full(len(y), np.nan)
    if len(joined.x) == 1:
        return LeftOut(predicted, math.nan, math.nan)
    criterion = Criterion(
        joined, model.kernel_, int(model.order_ == "linear"), torch.device(model.device), model.ridge_
    )
    # Any finite bandwidth will do for the kernel "average".
    sigma = model._coding().widths(model.bandwidth_)
    left = criterion(np.log(np.where(np.isinf(sigma), 1.0, sigma))).left[:, 0].cpu().numpy()
    known = joined.place >= 0
    predicted[known] = (left + joined.y[:, 0] + joined.origin)[joined.place[known]]
    error = float(np.average((y - predicted)[known] ** 2, weights=weight[known]))
    variance = joined.variance()
    return LeftOut(predicted, error, 1 - error / variance if variance > 0 else math.nan)


def hold_out(model: NadarayaWatson, folds: int = 5) -> LeftOut:
    """Predict each training row by a model of the rows in the other folds, for which everything is chosen anew.

    That is the accuracy to expect on new rows: the bandwidth has not seen the rows that it is judged by, as it has in
    `leave_out`. Rows at one place are held out together. Each fold takes as long as a fit.

    Args:
        model: Fitted, to one target.
        folds: How many; of fewer places each is a fold.

    Returns:
        As `leave_out`; R² is 0 for predictions as good as the mean of all rows.
    """
    x, y, weight = model.X_train_, model.y_train_, model.sample_weight_
    joined = model._joined()
    places, known = len(joined.x), joined.place >= 0
    predicted = np.full(len(y), np.nan)
    if places == 1:
        return LeftOut(predicted, math.nan, math.nan)
    by_coordinates = np.lexsort(joined.x.T[::-1])
    fold = np.empty(places, int)  # at random, and the same whatever the order of the rows
    fold[by_coordinates] = np.random.default_rng(0).permutation(places) % min(folds, places)
    of_row = np.where(known, fold[joined.place], -1)
    settings = {**model.get_params(), "kernel": model.kernel_, "order": model.order_, "out_of_reach": "nearest"}
    for each in range(min(folds, places)):
        out, rest = of_row == each, known & (of_row != each)
        other = NadarayaWatson(**{name: settings[name] for name in NadarayaWatson().get_params()})
        other._take(Rows(x[rest], y[rest], weight[rest], model.columns_, 0))
        other._choose()
        predicted[out] = other._answer(*other._at(x[out]))
    error = float(np.average((y - predicted)[known] ** 2, weights=weight[known]))
    variance = joined.variance()
    return LeftOut(predicted, error, 1 - error / variance if variance > 0 else math.nan)


def reach(model: NadarayaWatson) -> Array:
    """How wide the kernel is along each feature, (d,), over the feature's range; infinite along a constant one.

    Of a category that is the width in its coordinates, in which two categories are 1 apart.

    Args:
        model: Fitted.
    """
    coding, rows = model._coding(), model.X_train_[model.sample_weight_ > 0]
    found = np.empty(rows.shape[1])
    found[coding.order] = coding.widths(model.bandwidth_)
    ranges = np.ptp(rows, axis=0).astype(np.float64)
    coded = np.array([column.coded for column in model.columns_], bool)
    ranges[: len(coded)][coded] = np.minimum(ranges[: len(coded)][coded], 1.0)
    relative: Array = np.divide(found, ranges, out=np.full(len(found), math.inf), where=ranges > 0)
    return relative


def along(model: NadarayaWatson, feature: int, name: str) -> Curve:
    """The estimate and its 95 % band as one feature goes from its least to its greatest value.

    A row of weight 0 is not there: it has no part in the range, the medians and the data. Other
    categories are at their most frequent level.

    Args:
        model: Fitted, to one target.
        feature: The feature's place among the columns.
        name: What it is called.
    """
    rows = model.X_train_[model.sample_weight_ > 0]
    data, column = rows[:, feature], model.columns_[feature] if model.columns_ else Column()
    middle = np.median(rows, axis=0)
    for c, each in enumerate(model.columns_):
        if each.coded:
            middle[c] = np.bincount(rows[:, c].astype(int)).argmax()
    at = np.arange(len(column.levels)) if column.coded else np.linspace(data.min(), data.max(), _STEPS)
    places = np.tile(middle, (len(at), 1))
    places[:, feature] = at
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a gap in the curve shows what the warning would say
        lower, upper = model._interval(*model._at(places))
        estimate = np.asarray(model._answer(*model._at(places)))
    unknown = ~np.isfinite(upper - lower)  # where one row is alone, the band is infinite
    lower[unknown] = upper[unknown] = math.nan
    return Curve(name, places[:, feature], estimate, lower, upper, data, column)


def among(model: NadarayaWatson, by: Array) -> Among:
    """How much training points look at each other.

    Args:
        model: Fitted.
        by: (n,), what the points are sorted by.
    """
    rows = np.flatnonzero(model.sample_weight_ > 0)
    order = rows[np.argsort(by[rows], kind="stable")]
    groups = np.array_split(order, min(len(order), _GROUPS))
    starts = np.cumsum([0, *map(len, groups[:-1])])
    query = model.X_train_[[group[len(group) // 2] for group in groups]]
    at_once = max(1, _WEIGHTS // len(model.X_train_))
    weights = []
    for start in range(0, len(query), at_once):
        sorted_weights = np.asarray(model._attention(*model._at(query[start : start + at_once])))[:, order]
        weights.append(np.add.reduceat(sorted_weights, starts, axis=1))
    return Among(np.concatenate(weights), len(order))
