"""The accuracy of a fitted model, its curve along one feature, and the attention among its own points."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from dikkat.regression.columns import Column
from dikkat.regression.criterion import Criterion
from dikkat.regression.estimator import NadarayaWatson
from dikkat.regression.factors import factors_of
from dikkat.regression.held_out import FOLDS, LeftOut, folds_of, judged, nothing
from dikkat.regression.joined import Array
from dikkat.regression.rows import Rows

__all__ = ["Among", "Curve", "LeftOut", "along", "among", "hold_out", "leave_out", "reach"]

_STEPS = 201  # query points along a feature
_GROUPS = 200  # most groups of points in the picture of attention
_WEIGHTS = 2**24  # most weights held at once


@dataclass(frozen=True)
class Curve:
    """Estimates along one feature, the others at their medians.

    Attributes:
        name: The feature.
        at: (k,), its values, ascending.
        estimate: (k,).
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
    """Predict each training row from the others; rows equal in x and y, which are copies, are left out together.

    Of a discrete y they are none: `dikkat.regression.criterion` has when, and the formulas.

    Args:
        model: Fitted.
    """
    check_is_fitted(model)
    y, weight, joined = model.y_train_, model.sample_weight_, model._joined()
    if joined.counts().sum() == 1:
        return nothing(y)
    criterion = Criterion(
        joined,
        model.kernel_,
        int(model.order_ == "linear"),
        torch.device(model.device),
        model.ridge_,
        factors=factors_of(joined, model.neighbors_),
    )
    trial = criterion(np.log(model._coding().widths(model.bandwidth_)))
    places, repeats = trial.left.cpu().numpy() + joined.y, trial.repeated.cpu().numpy() + joined.repeats.y
    predicted = np.full((len(y), joined.y.shape[1]), np.nan)
    known, shared = joined.place >= 0, joined.repeat >= 0
    predicted[known] = places[joined.place[known]] + joined.origin
    predicted[shared] = repeats[joined.repeat[shared]] + joined.origin
    return judged(predicted.reshape(y.shape), y, weight, joined)


def hold_out(model: NadarayaWatson, folds: int = FOLDS) -> LeftOut:
    """Predict each training row by a model of the rows in the other folds, for which everything is chosen anew.

    That is the accuracy to expect on new rows: the bandwidth has not seen the rows that it is judged by, as it has in
    `leave_out`. Copies of a row, as `leave_out` has them, are held out together. Each fold takes as long as a fit.

    Args:
        model: Fitted.
        folds: How many, at least 2; of fewer rows each is a fold.

    Returns:
        R² is 0 for predictions as good as the mean of all rows.
    """
    check_is_fitted(model)
    if isinstance(folds, bool) or not isinstance(folds, Integral) or folds < 2:
        raise ValueError(f"folds: got {folds!r}; expected a whole number, at least 2")
    x, y, weight, joined = model.X_train_, model.y_train_, model.sample_weight_, model._joined()
    if joined.counts().sum() == 1:
        return nothing(y)
    predicted, fold = np.full(y.shape, np.nan), folds_of(joined, y, weight, folds)
    settings = {**model.get_params(), "kernel": model.kernel_, "order": model.order_}
    # A search does not start from what was found for all rows, which has followed the noise of those held out.
    for each in range(fold.max() + 1):
        out, rest = fold == each, (fold != each) & (fold >= 0)
        other = NadarayaWatson(**{name: settings[name] for name in NadarayaWatson().get_params()})
        other._take(Rows(x[rest], y[rest], weight[rest], model.columns_))
        other._choose()
        predicted[out] = other._answer(other._at(x[out]))
    return judged(predicted, y, weight, joined)


def reach(model: NadarayaWatson) -> Array:
    """The kernel's width along each feature, (d,), over the feature's range; infinite along a constant one.

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
    query = model._at(places)
    lower, upper = model._interval(query)
    estimate = np.asarray(model._answer(query))
    unknown = ~np.isfinite(upper - lower)  # where one row is alone, the band is infinite
    lower[unknown] = upper[unknown] = math.nan
    return Curve(name, places[:, feature], estimate, lower, upper, data, column)


def among(model: NadarayaWatson, by: Array) -> Among:
    """The attention of training points to each other.

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
        sorted_weights = np.asarray(
            model._current().attention(model._at(query[start : start + at_once]), model.sample_weight_)
        )[:, order]
        weights.append(np.add.reduceat(sorted_weights, starts, axis=1))
    return Among(np.concatenate(weights), len(order))
