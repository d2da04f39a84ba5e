"""Checks of settings and data before any work, each an error in one sentence; and training rows as arrays."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _get_feature_names, _num_samples, check_array, check_X_y, validate_data

from dikkat.regression.bandwidth import Rule, Searched
from dikkat.regression.columns import Column, columns_of, encoded, find, listed, names_of
from dikkat.regression.joined import Array, Rows, largest
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile

Order = Literal["constant", "linear"]

DTYPES = [np.float64, np.float32]
_LEAST = 1e-150  # whose square is a number
_MARGIN = 0.1  # share of a column's range by which queries may lie beyond it without a warning
_RULES = (*get_args(Rule), *get_args(Searched))
LIKELIHOOD = (*get_args(Rule), "auto")
"""The rules and the search of estimators whose criterion is a likelihood."""


def check_settings(model: Any) -> None:
    """Check the settings of a regressor, those of a file as well."""
    check_kernel(model.kernel, model.bandwidth)
    check_name("order", model.order, get_args(Order))
    check_metric(model.metric, model.n_components, model.bandwidth)
    check_name("missing", model.missing, ("refuse", "indicator"))
    check_name("weights", model.weights, ("repeats", "precision"))
    ridge = model.ridge
    amount = isinstance(ridge, Real) and not isinstance(ridge, bool) and 0 <= float(ridge) < math.inf
    if not (amount or (isinstance(ridge, str) and ridge == "auto")):
        raise ValueError(f"ridge: got {ridge!r}; expected a number of rows, at least 0, or 'auto'")


def check_kernel(kernel: object, bandwidth: object, rules: tuple[str, ...] = _RULES) -> None:
    """Refuse a kernel that is none, and bandwidths that are neither positive nor by a rule or search of these."""
    check_name("kernel", kernel, get_args(Profile))
    if not (isinstance(bandwidth, str) and bandwidth in rules) and not _are_positive(bandwidth):
        raise _not_positive(bandwidth, rules)


def check_name(name: str, given: object, names: tuple[str, ...]) -> None:
    """Refuse all but these names."""
    if not isinstance(given, str) or given not in names:
        raise ValueError(f"{name}: got {given!r}; expected {listed(names)}")


def check_metric(metric: object, components: object, bandwidth: object) -> None:
    """Refuse a metric that is none, and bandwidths given for directions that are not known yet."""
    check_name("metric", metric, get_args(Metric))
    check_count("n_components", components, or_none=", or None for all")
    if metric == "linear" and not (isinstance(bandwidth, str) and bandwidth in get_args(Searched)):
        raise ValueError(f"metric: got 'linear' with the bandwidth {bandwidth!r}; expected one that is searched for")


def split(cv: object, rows: Rows, groups: ArrayLike | None) -> list[tuple[Any, Any]]:
    """The pairs of indices of rows to learn from and to test."""
    try:
        splitter = check_cv(cv, rows.y, classifier=False)
    except ValueError as error:
        raise ValueError(
            f"cv: got {cv!r}; expected a splitter of scikit-learn's, pairs of indices, or a number"
        ) from error
    splits = list(splitter.split(rows.x, rows.y, groups))
    if isinstance(cv, Integral):  # blocks of rows, less those next to the block, whose errors are like the block's
        splits = [
            (learned[np.abs(learned[:, None] - tested[[0, -1]]).min(1) > len(tested) // 2], tested)
            for learned, tested in splits
        ]
    return splits


def check_count(name: str, given: object, least: int = 1, or_none: str = "") -> None:
    """Refuse all but a whole number of at least so much, and None where the message allows it."""
    none = given is None and or_none
    if not none and (isinstance(given, bool) or not isinstance(given, Integral) or given < least):
        raise ValueError(f"{name}: got {given!r}; expected a whole number of at least {least}{or_none}")


def checked_share(name: str, given: object, such_as: float = 0.9) -> float:
    """A number between 0 and 1."""
    if not (isinstance(given, Real) and 0 < float(given) < 1):
        raise ValueError(f"{name}: got {given!r}; expected a number between 0 and 1, such as {such_as}")
    return float(given)


def checked_rows(estimator: Any, X: ArrayLike, y: ArrayLike | None, sample_weight: ArrayLike | None) -> Rows:
    """Rows to learn from; scikit-learn sets d and the names of columns."""
    names, X, y = _get_feature_names(X), unmasked(X), _numeric(y)
    kinds = estimator.categorical_features, estimator.ordered_features
    periodic, gaps = estimator.periodic_features, estimator.missing == "indicator"
    named = any(not (each is None or (isinstance(each, str) and each == "from_dtype")) for each in kinds)
    plain = isinstance(X, np.ndarray | list | tuple) and not (
        named or periodic or gaps or (isinstance(X, np.ndarray) and X.dtype == object)
    )
    counts: Any = np.ones(1)
    if gaps and sample_weight is not None and np.asarray(sample_weight).shape == (_num_samples(X),):
        counts = np.asarray(sample_weight, np.float64)
    columns = () if plain else find(X, *kinds, names, periodic, gaps and counts)
    if estimator.kernel != "gaussian" and any(each.coded for each in columns):
        raise ValueError(
            f"kernel: got {estimator.kernel!r} beside categories; expected 'gaussian', of whose weights theirs are "
            "factors, or None for categorical_features and ordered_features"
        )
    settings: dict[str, Any] = {"dtype": DTYPES, "multi_output": True, "y_numeric": True, "copy": True}
    # Warnings would be of a sum by which infinite numbers are looked for.
    with np.errstate(over="ignore", invalid="ignore"), gaps_named(estimator, X):
        if columns:
            validate_data(estimator, X, skip_check_array=True)
            x, values = check_X_y(encoded(X, columns, names), y, estimator=estimator, **settings)
        else:
            x, values = validate_data(estimator, X, y, **settings)
    weight = _checked_weights(estimator, sample_weight, x)
    values = values.astype(np.float64)
    _check_sizes(x, values, weight)
    return Rows(x, values, weight, columns, weights=estimator.weights)


@contextmanager
def gaps_named(estimator: Any, X: Any) -> Iterator[None]:
    """Missing cells of X are refused by what there is to do about them, where an estimator can take them."""
    try:
        yield
    except ValueError as error:
        if "Input X contains infinity" in str(error) and np.ndim(X) == 2:
            names = _get_feature_names(X)
            infinite = [_is_infinite(_safe_indexing(X, j, axis=1)) for j in range(np.shape(X)[1])]
            found = [f"column {j if names is None else repr(names[j])}" for j in np.flatnonzero(infinite)]
            raise ValueError(f"X: got an infinite number in {', '.join(found[:5])}; expected finite numbers") from None
        if "Input X contains NaN" not in str(error) or "missing" not in estimator.get_params():
            raise
        if estimator.missing == "indicator":
            raise ValueError(
                "X: got a missing cell (NaN) in a column with an order or a period, or of which fit knew no number; "
                "expected a value: with missing='indicator' numbers, dates and categories without an order may lack one"
            ) from None
        lost = [str(name) for name in X.columns if X[name].isna().any()] if hasattr(X, "isna") else []
        where = f" in the columns {', '.join(lost[:5])}{', …' * (len(lost) > 5)}" if lost else ""
        raise ValueError(
            f"X: got missing cells (NaN){where}; expected a value in each, or missing='indicator' in fit, which "
            "learns from rows with gaps and predicts them"
        ) from None


def _is_infinite(column: Any) -> bool:
    try:
        return bool(np.isinf(np.asarray(column, np.float64)).any())
    except (TypeError, ValueError):
        return False  # a category


def unmasked(given: Any) -> Any:
    """An array with NaN for masked cells and NaT, before a conversion takes them for numbers."""
    if isinstance(given, np.ma.MaskedArray):
        is_date = given.dtype.kind == "M"
        given = np.ma.filled(given if is_date else given.astype(float), np.datetime64("NaT") if is_date else np.nan)
    if isinstance(given, np.ndarray) and given.dtype.kind == "M":
        given = np.where(np.isnat(given), np.nan, given.astype(np.int64))
    return given


def _numeric(y: Any) -> Any:
    """Return y with NaN for masked cells; raise ValueError for dates and durations."""
    array = np.asarray(y)
    cells = array.ravel().tolist() if array.dtype == object else []
    times = (date, timedelta, np.datetime64, np.timedelta64)
    wrong = array.dtype if array.dtype.kind in "mM" else next((repr(c) for c in cells if isinstance(c, times)), None)
    if wrong is not None:
        raise ValueError(f"y: got {wrong}; expected numbers")
    return unmasked(y)


def with_values(X: Any, y: Any, weight: Any, groups: Any, cv: object) -> tuple[Any, Any, Any, Any]:
    """The rows whose y is there, where cells may be missing."""
    X, y = unmasked(X), _numeric(y)
    values = np.asarray(y)
    lost = np.asarray(np.isnan(values.astype(np.float64).reshape(len(values), -1)).any(1))
    if not lost.any() or lost.all() or len(values) != _num_samples(X):
        return X, y, weight, groups
    if not (cv is None or isinstance(cv, Integral) or hasattr(cv, "split")):
        raise ValueError(
            f"cv: got pairs of indices, and {lost.sum()} of {len(lost)} rows without y, which are left out; expected a "
            "splitter, or a y for each row"
        )
    warnings.warn(f"y: {lost.sum()} of {len(lost)} rows have none, and are left out", stacklevel=3)
    there = np.flatnonzero(~lost)
    weight, groups = (each if np.ndim(each) == 0 else np.asarray(each)[there] for each in (weight, groups))
    return _safe_indexing(X, there), values[there], weight, groups


def _checked_weights(estimator: Any, given: ArrayLike | None, x: Array) -> Array:
    """The weights of the rows x, (n,), in their dtype: 1 each for None."""
    if given is None:
        return np.ones(len(x), dtype=x.dtype)
    if isinstance(given, Real):
        given = np.full(len(x), given)
    with np.errstate(over="ignore"):
        weight: Array = check_array(given, ensure_2d=False, dtype=x.dtype, copy=True, input_name="sample_weight")
    if weight.shape != (len(x),):
        raise ValueError(f"sample_weight: got shape {weight.shape}; expected ({len(x)},), one for each row of X")
    if (weight < 0).any():
        raise ValueError(f"sample_weight: got {weight.min()}; expected numbers of at least 0")
    if not weight.any():
        raise ValueError("sample_weight: got zeros alone; expected at least one row whose weight is positive")
    if (
        estimator.weights == "repeats"
        and (total := float(weight.sum(dtype=np.float64))) < 2 <= np.count_nonzero(weight) - 1
    ):
        warnings.warn(
            f"sample_weight: got weights that sum up to {total:.3g}. One says how many rows a row is, so all are "
            "worth that many, and intervals are infinite; expected a sum of about the number of rows",
            stacklevel=5,
        )
    return weight


def checked_precisions(model: Any, sample_weight: ArrayLike | None, x: Array) -> Array | None:
    """The precisions (n,) of new values at rows x, if there are any."""
    if sample_weight is None:
        return None
    weight = _checked_weights(model, sample_weight, x)
    if model.weights_ != "precision" or not weight.all():
        raise ValueError(
            f"sample_weight: got {weight.min()} and weights={model.weights_!r} in fit; expected positive precisions of "
            "the new values, and weights='precision'"
        )
    return weight


def warn_of_weights(weight: Array) -> None:
    """Warn of weights that are no counts of rows, such as one over a squared error."""
    count, total = np.count_nonzero(weight), float(weight.sum(dtype=np.float64))
    if total > 2 * count or (weight != np.round(weight)).any():
        warnings.warn(
            f"sample_weight: got weights that sum to {total:.4g} for {count} rows"
            + (", not all whole numbers" if (weight != np.round(weight)).any() else "")
            + ". They count repeated rows, so intervals are those of that many rows. If they are precisions, such as "
            "1/σ² of known errors or weights of importance, expected weights='precision', for which their scale does "
            "not matter",
            UserWarning,
            stacklevel=5,
        )


def warn_of_beyond(model: Any, x: Array) -> None:
    """Warn of queries beyond a column's range by more than a share of it, where no interval is sure."""
    rows = model.X_train_[model.sample_weight_ > 0].astype(np.float64)
    low, high = rows.min(0), rows.max(0)
    margin = _MARGIN * (high - low)
    beyond = (x < low - margin) | (x > high + margin)
    beyond &= np.array([column.kind in ("number", "date") for column in columns_of(model)])
    if beyond.any():
        columns = zip(names_of(model), columns_of(model), low, high, strict=True)
        named = [
            f"{name} ({column.shown(least)} to {column.shown(most)})"
            for (name, column, least, most), far in zip(columns, beyond.any(0), strict=True) if far
        ]  # fmt: skip
        warnings.warn(
            f"X: got {beyond.any(1).sum()} of {len(x)} rows beyond the rows in fit, in {', '.join(named[:3])}"
            f"{', …' * (len(named) > 3)}. The data say nothing about y there: intervals are wider, and may still "
            "miss it",
            UserWarning,
            stacklevel=4,
        )


def _check_sizes(x: Array, values: Array, weight: Array) -> None:
    """Refuse data whose sums and squares are infinite in their dtype, or 0."""
    limits, low, high = np.finfo(x.dtype), x.min(0).astype(np.float64), x.max(0).astype(np.float64)
    with np.errstate(over="ignore"):
        total, ranges = float(weight.sum(dtype=np.float64)), high - low
    widest, limit = int(ranges.argmax()), float(limits.max) / 2**22  # a bandwidth may be 10⁶ times as wide
    if ranges[widest] > limit:
        raise ValueError(
            f"X: got {low[widest]} and {high[widest]} in one column; expected in {x.dtype}, the dtype of X and "
            f"the answers: numbers that are {limit:.3g} apart. Bring it to another unit"
        )
    check_size("sample_weight", np.array(total), float(limits.max) / 2**10, x.dtype)
    total = max(total, 1.0)
    squares = math.sqrt(float(np.finfo(np.float64).max) / total) / 2**10
    check_size("y", values, min(float(limits.max) / total / 2**10, squares), x.dtype)
    spread = float(np.ptp(values, axis=0).max())
    if 0 < spread < _LEAST:
        raise ValueError(f"y: got values at most {spread} apart; expected {_LEAST} and more. Bring it to another unit")


def check_size(name: str, numbers: Array, limit: float, dtype: np.dtype[Any]) -> None:
    """Refuse numbers that are larger than a limit."""
    largest = float(np.abs(numbers).max())
    if largest > limit:
        raise ValueError(
            f"{name}: got {largest}; expected in {dtype}, the dtype of X and the answers: to {limit:.3g}. Bring "
            "it to another unit"
        )


def checked_bandwidth(bandwidth: Any, columns: Sequence[Column]) -> Any:
    """The bandwidth; beside columns that are not all numbers, numbers are (d,): σ, or of a category λ."""
    if isinstance(bandwidth, str) or (np.ndim(bandwidth) == 0 and not columns):
        return bandwidth
    given, size, coded = np.asarray(bandwidth, np.float64), len(columns), any(column.coded for column in columns)
    if coded and given.shape != (size,):
        raise ValueError(
            f"bandwidth: got shape {given.shape}; expected beside categories ({size},), one for each column: σ "
            "of numbers, λ of categories"
        )
    if not (given[[not column.is_category for column in columns]] if coded else given).all():
        raise _not_positive(bandwidth)
    for number, column in zip(given, columns, strict=True) if coded else ():
        if column.is_category and number > 1:
            raise ValueError(
                f"bandwidth: got {number} for a column of categories; expected λ of at most 1. From "
                f"{largest(column):.4g} on it counts for nothing"
            )
    if columns and given.shape not in ((), (size,)):
        raise ValueError(f"bandwidth: got shape {given.shape}; expected a number, or ({size},), one for each feature")
    return np.full(size, given) if columns else bandwidth


def _not_positive(bandwidth: object, rules: tuple[str, ...] = _RULES) -> ValueError:
    return ValueError(
        f"bandwidth: got {bandwidth!r}; expected a positive number in the units of X, one for each feature, or one of "
        f"{listed(rules)}"
    )


def _are_positive(bandwidth: object) -> bool:
    """True for positive numbers; one of several may be 0, as a category's may."""
    try:
        sigma = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    if isinstance(bandwidth, bool | str) or not sigma.size or not np.isfinite(sigma).all():
        return False
    return bool((sigma >= 0).all() if sigma.ndim else sigma > 0)
