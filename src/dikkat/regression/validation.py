"""Checks of settings and data before the computation, and training rows as arrays."""

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

from dikkat.regression.bandwidth import Rule
from dikkat.regression.columns import (
    Column,
    columns_of,
    encode_cells,
    find_kinds,
    is_missing,
    is_number,
    label_of,
    list_some,
    names_of,
    numbers_rows,
)  # fmt: skip
from dikkat.regression.criterion import Searched
from dikkat.regression.joined import Array, Rows, largest_rate
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile

Order = Literal["constant", "linear"]

DTYPES = [np.float64, np.float32]
_SMALLEST = 1e-150  # the square of a smaller number is 0
_MARGIN = 0.1  # share of a column's range by which queries may lie beyond it without a warning
_NEAR_END = 0.05  # the distance from 0 and from 1 that some of a target's shares have
_SUGGESTED: set[tuple[str | None, str]] = set()  # target names and supports that a warning has suggested
_RULES = (*get_args(Rule), *get_args(Searched))
LIKELIHOOD = (*get_args(Rule), "auto")
"""The bandwidth rules, and the search, of estimators whose criterion is a likelihood."""


def check_settings(model: Any) -> None:
    """Raise `ValueError` for a setting of a regressor (from code or a file) that is not allowed."""
    check_kernel(model.kernel, model.bandwidth)
    check_name("order", model.order, get_args(Order))
    check_metric(model.metric, model.n_components, model.bandwidth)
    check_name("missing", model.missing, ("refuse", "indicator"))
    check_name("weights", model.weights, ("repeats", "precision"))
    if not (model.logarithms is None or (isinstance(model.logarithms, str) and model.logarithms == "auto")):
        raise ValueError(f"logarithms: got {model.logarithms!r}; expected 'auto', or None for the numbers as they are")
    if model.support is not None:
        check_support(model.support)
    ridge = model.ridge
    is_number = isinstance(ridge, Real) and not isinstance(ridge, bool) and 0 <= float(ridge) < math.inf
    if not (is_number or (isinstance(ridge, str) and ridge == "auto")):
        raise ValueError(f"ridge: got {ridge!r}; expected a number of rows, at least 0, or 'auto'")


def check_kernel(kernel: object, bandwidth: object, rules: tuple[str, ...] = _RULES) -> None:
    """Raise for an unknown kernel, and for a bandwidth that is neither positive nor one of `rules`."""
    check_name("kernel", kernel, get_args(Profile))
    if not (isinstance(bandwidth, str) and bandwidth in rules) and not _are_positive(bandwidth):
        raise _not_positive(bandwidth, rules)


def check_name(name: str, value: object, names: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `names`."""
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name}: got {value!r}; expected {list_some(names)}")


def check_metric(metric: object, n_components: object, bandwidth: object) -> None:
    """Raise for an unknown metric, and for a linear metric with a fixed bandwidth (its directions are unknown)."""
    check_name("metric", metric, get_args(Metric))
    check_count("n_components", n_components, or_none=", or None for all")
    if metric == "linear" and not (isinstance(bandwidth, str) and bandwidth in get_args(Searched)):
        raise ValueError(f"metric: got 'linear' with bandwidth={bandwidth!r}; expected bandwidth='auto' or 'loo'")


def targets_of(model: Any, rows: Rows) -> Array:
    """Return y as scikit-learn's splitters expect it: the numbers of the classes, or the values."""
    return rows.y.argmax(1) if hasattr(model, "classes_") else rows.y


def split(model: Any, rows: Rows, groups: ArrayLike | None) -> list[tuple[Any, Any]]:
    """Return (learned rows, tested rows), as indices, for each fold of the setting `cv`."""
    cv, targets = model.cv, targets_of(model, rows)
    try:
        splitter = check_cv(cv, targets, classifier=False)
    except ValueError as error:
        raise ValueError(f"cv: got {cv!r}; expected a scikit-learn splitter, pairs of indices, or a number") from error
    splits = list(splitter.split(rows.x, targets, groups))
    if isinstance(cv, Integral):  # blocks of rows; half a block on either side, whose errors are similar, is left out
        splits = [
            (learned[np.abs(learned[:, None] - tested[[0, -1]]).min(1) > len(tested) // 2], tested)
            for learned, tested in splits
        ]
    return splits


def check_groups(model: Any, X: Any, groups: Any) -> None:
    """Raise for groups without a `cv`, or another number of groups than rows of X."""
    if groups is not None and model.cv is None:
        raise ValueError(
            f"groups: got groups and cv=None; expected a cv that splits by groups, such as {type(model).__name__}"
            "(cv=GroupKFold(10))"
        )
    if groups is not None and np.shape(groups) != (_num_samples(X),):
        got = repr(groups) if isinstance(groups, str) else f"shape {np.shape(groups)}"
        raise ValueError(f"groups: got {got}; expected the group of each row, ({_num_samples(X)},)")


def check_count(name: str, value: object, minimum: int = 1, or_none: str = "") -> None:
    """Raise unless `value` is a whole number of at least `minimum`, or None if `or_none` describes None."""
    is_none = value is None and or_none
    if not is_none and (isinstance(value, bool) or not isinstance(value, Integral) or value < minimum):
        raise ValueError(f"{name}: got {value!r}; expected a whole number of at least {minimum}{or_none}")


def check_share(name: str, value: object, example: float = 0.9) -> float:
    """Return `value`, or raise unless it is between 0 and 1."""
    if not (isinstance(value, Real) and 0 < float(value) < 1):
        raise ValueError(f"{name}: got {value!r}; expected a number between 0 and 1, such as {example}")
    return float(value)


def check_rows(estimator: Any, X: ArrayLike, y: ArrayLike | None, sample_weight: ArrayLike | None) -> Rows:
    """Return the checked training rows; scikit-learn sets `n_features_in_` and `feature_names_in_`."""
    names, X, y = _get_feature_names(X), fill_masked(X), _numeric(y)
    declared = estimator.categorical_features, estimator.ordered_features
    periodic, gaps = estimator.periodic_features, estimator.missing == "indicator"
    declares = any(not (value is None or (isinstance(value, str) and value == "from_dtype")) for value in declared)
    plain = isinstance(X, np.ndarray | list | tuple) and not (
        declares or periodic or gaps or (isinstance(X, np.ndarray) and X.dtype.kind in "OM")
    )
    row_weights: Any = np.ones(1)
    if gaps and sample_weight is not None and np.asarray(sample_weight).shape == (_num_samples(X),):
        row_weights = np.asarray(sample_weight, np.float64)
    columns = () if plain else find_kinds(X, *declared, names, periodic, gaps and row_weights)
    for j, name in enumerate(names if names is not None and len(names) > 1 else ()):
        is_declared = bool(columns) and columns[j].coded
        if not is_declared and numbers_rows(name, np.asarray(_safe_indexing(X, j, axis=1))):
            warnings.warn(
                f"X: got {name!r}, different integers that number the rows; expected the other columns, such as "
                f"X.drop(columns={name!r})",
                UserWarning,
                stacklevel=4,
            )
    if estimator.kernel != "gaussian" and any(column.coded for column in columns):
        raise ValueError(f"kernel: got {estimator.kernel!r} with categories; expected 'gaussian', or no categories")
    settings: dict[str, Any] = {"dtype": DTYPES, "multi_output": True, "y_numeric": True, "copy": True}
    # scikit-learn looks for infinite numbers by a sum that may overflow.
    with np.errstate(over="ignore", invalid="ignore"), naming_missing_cells(estimator, X, estimator.missing):
        if columns:
            validate_data(estimator, X, skip_check_array=True)
            x, values = check_X_y(encode_cells(X, columns, names), y, estimator=estimator, **settings)
        else:
            x, values = validate_data(estimator, X, y, **settings)
    weight = _check_weights(sample_weight, x)
    values = values.astype(np.float64)
    if estimator.support is not None:
        check_within(values, estimator.support)
    _check_sizes(x, values, weight, names)
    return Rows(x, values, weight, columns, weights=estimator.weights)


@contextmanager
def naming_missing_cells(estimator: Any, X: Any, missing: str) -> Iterator[None]:
    """Add the columns' names and the remedy to scikit-learn's errors for infinite and missing cells."""
    try:
        yield
    except ValueError as error:
        if "Input X contains infinity" in str(error) and np.ndim(X) == 2:
            names = _get_feature_names(X)
            infinite = [_is_infinite(_safe_indexing(X, j, axis=1)) for j in range(np.shape(X)[1])]
            labels = [label_of(j, names) for j in np.flatnonzero(infinite).tolist()]
            raise ValueError(f"X: got an infinite number in {', '.join(labels[:5])}; expected finite numbers") from None
        if "Input y contains NaN" in str(error) and missing == "refuse":
            raise ValueError(
                "y: got missing values (NaN); expected a number for each row, or missing='indicator', which leaves out "
                "rows without y"
            ) from None
        if "Input X contains NaN" not in str(error) or "missing" not in estimator.get_params():
            raise
        if missing == "indicator":
            raise ValueError(
                "X: got a missing cell (NaN) in a column that is ordered, periodic, or had no numbers in fit; expected "
                "a value, because missing='indicator' is only for numbers, dates and unordered categories"
            ) from None
        gaps = [str(name) for name in X.columns if X[name].isna().any()] if hasattr(X, "isna") else []
        where = f" in the columns {', '.join(gaps[:5])}{', …' * (len(gaps) > 5)}" if gaps else ""
        raise ValueError(
            f"X: got missing cells (NaN){where}; expected a value in each, or a model with missing='indicator'"
        ) from None


def _is_infinite(column: Any) -> bool:
    try:
        return bool(np.isinf(np.asarray(column, np.float64)).any())
    except (TypeError, ValueError):
        return False  # a category


def fill_masked(array: Any) -> Any:
    """Return an array with NaN or NaT for masked cells; other values are returned as they are."""
    if isinstance(array, np.ma.MaskedArray):
        is_date = array.dtype.kind == "M"
        array = np.ma.filled(array if is_date else array.astype(float), np.datetime64("NaT") if is_date else np.nan)
    return array


def _numeric(y: Any) -> Any:
    """Return y with NaN for masked cells; dates, durations and texts that are not numbers raise `ValueError`."""
    array = np.asarray(y)
    cells = array.ravel().tolist() if array.dtype == object else []
    times = (date, timedelta, np.datetime64, np.timedelta64)
    unusable = array.dtype if array.dtype.kind in "mM" else next((repr(c) for c in cells if isinstance(c, times)), None)
    if unusable is not None:
        raise ValueError(f"y: got {unusable}; expected numbers")
    cells = array.ravel().tolist() if array.dtype.kind in "OU" else []
    if others := [cell for cell in cells if not (is_number(cell) or is_missing(cell))]:
        raise ValueError(f"y: got {others[0]!r}; expected numbers (for classes use KernelClassifier)")
    return array if hasattr(y, "categories") else fill_masked(y)


def with_values(X: Any, y: Any, weight: Any, groups: Any, labels: Any, cv: object) -> tuple[Any, ...]:
    """Return X, y, weight, groups and labels of the rows with a y, and warn about the rows without one.

    Without labels, the labels of some of the rows are their positions.
    """
    X, y = fill_masked(X), _numeric(y)
    values = np.asarray(y)
    lacks_y = np.asarray(np.isnan(values.astype(np.float64).reshape(len(values), -1)).any(1))
    if not lacks_y.any() or lacks_y.all() or len(values) != _num_samples(X):
        return X, y, weight, groups, labels
    if not (cv is None or isinstance(cv, Integral) or hasattr(cv, "split")):
        raise ValueError(
            f"cv: got pairs of indices, and {lacks_y.sum()} of {len(lacks_y)} rows have no y; expected a splitter, or "
            "a y for each row"
        )
    warnings.warn(f"y: {lacks_y.sum()} of {len(lacks_y)} rows have no y and are left out", stacklevel=3)
    kept_rows = np.flatnonzero(~lacks_y)
    weight, groups = (array if np.ndim(array) == 0 else np.asarray(array)[kept_rows] for array in (weight, groups))
    labels = kept_rows if labels is None else labels[kept_rows]
    return _safe_indexing(X, kept_rows), values[kept_rows], weight, groups, labels


def _check_weights(weights: ArrayLike | None, x: Array) -> Array:
    """Return the weights of the rows x, (n,), in their dtype; 1 each for None."""
    if weights is None:
        return np.ones(len(x), dtype=x.dtype)
    if isinstance(weights, Real):
        weights = np.full(len(x), weights)
    with np.errstate(over="ignore"):
        weight: Array = check_array(weights, ensure_2d=False, dtype=x.dtype, copy=True, input_name="sample_weight")
    if weight.shape != (len(x),):
        raise ValueError(f"sample_weight: got shape {weight.shape}; expected ({len(x)},), one for each row of X")
    if (weight < 0).any():
        raise ValueError(f"sample_weight: got {weight.min()}; expected numbers of at least 0")
    if not weight.any():
        raise ValueError("sample_weight: got only zeros; expected at least one positive weight")
    return weight


def check_one_target(model: Any) -> None:
    """Raise for a regressor of several targets."""
    if model.n_outputs_ > 1:
        raise ValueError(f"y: got {model.n_outputs_} targets in fit; expected one")


def check_precisions(model: Any, sample_weight: ArrayLike | None, x: Array) -> Array | None:
    """Return the precisions (n,) of new values at rows x, or None."""
    if sample_weight is None:
        return None
    if model.weights_ != "precision":
        raise ValueError(
            f"sample_weight: got weights of new values and weights={model.weights_!r} in fit; expected None, or a "
            "model fitted with weights='precision'"
        )
    weight = _check_weights(sample_weight, x)
    if not weight.all():
        raise ValueError(f"sample_weight: got {weight.min()}; expected positive precisions of the new values")
    return weight


def check_support(support: Any) -> None:
    """Raise unless the support is a pair of numbers, the first below the second; None for no limit."""
    is_pair = isinstance(support, Sequence) and len(support) == 2 and not isinstance(support, str)
    if is_pair and all(end is None or (isinstance(end, Real) and math.isfinite(end)) for end in support):
        low, high = (
            default if end is None else end for end, default in zip(support, (-math.inf, math.inf), strict=True)
        )
        if low < high and (low, high) != (-math.inf, math.inf):
            return
    raise ValueError(f"support: got {support!r}; expected (least, greatest), None for no limit, such as (0, None)")


def check_within(y: Array, support: tuple[float | None, float | None]) -> None:
    """Raise if a value of y is outside the support."""
    outside = y[y != np.clip(y, *support)]
    if len(outside):
        raise ValueError(f"y: got {outside[0]}; expected numbers within support={support}")


def suggest_support(model: Any, lower: Array, upper: Array) -> None:
    """Warn if intervals leave the range of all rows: positive numbers, or shares; once for each target in a process."""
    y = model.y_train_[model.sample_weight_ > 0]
    are_shares = y.max() <= 1 and y.min() <= _NEAR_END and y.max() >= 1 - _NEAR_END
    support = "(0, 1)" if are_shares else "(0, None)"
    beyond = ((lower < 0) & np.isfinite(lower)) | ((upper > 1) & np.isfinite(upper) & are_shares)
    if y.min() < 0 or not beyond.any() or (model.target_name_, support) in _SUGGESTED:
        return
    _SUGGESTED.add((model.target_name_, support))
    classes = " A KernelClassifier returns probabilities of y = 1." if set(np.unique(y)) <= {0.0, 1.0} else ""
    count, ends = beyond.sum(), "below 0 or above 1" if are_shares else "below 0"
    warnings.warn(
        f"y: {count} of {len(lower)} intervals {'ends' if count == 1 else 'end'} {ends}, but no y does. If y cannot be "
        f"{'there' if are_shares else 'negative'}, set support={support}.{classes} This message is not repeated",
        UserWarning,
        stacklevel=3,
    )


def warn_of_weights(weight: Array) -> None:
    """Warn if weights do not look like counts of rows, as inverse squared errors do not."""
    count, total = np.count_nonzero(weight), float(weight.sum(dtype=np.float64))
    consequence = f"intervals are those of {total:.4g} rows" if total >= 2 else "intervals are infinite"
    if total > 2 * count or (weight != np.round(weight)).any():
        warnings.warn(
            f"sample_weight: got weights that sum to {total:.4g} for {count} rows"
            + (", not all whole numbers" if (weight != np.round(weight)).any() else "")
            + f". They count repeated rows, so {consequence}. "
            "For 1/σ² of known errors, or importance weights, use weights='precision', for which only ratios matter",
            UserWarning,
            stacklevel=5,
        )


def warn_of_extrapolation(model: Any, x: Array) -> None:
    """Warn about queries beyond a column's range, as compared, by more than `_MARGIN`: intervals have no guarantee."""
    rows, beyond = model.X_train_[model.sample_weight_ > 0].astype(np.float64), np.zeros(x.shape, bool)
    low, high = rows.min(0), rows.max(0)
    for j, column in enumerate(columns_of(model)):
        if column.kind in ("number", "date"):
            numbers, start, end = map(column.scaled, (x[:, j], low[j], high[j]))
            margin = _MARGIN * (end - start)
            beyond[:, j] = (numbers < start - margin) | (numbers > end + margin)
            beyond[:, j] |= bool(column.log) & (x[:, j] < 0)
    if beyond.any():
        names, columns = names_of(model), columns_of(model)
        column_ranges = [
            f"{names[j]} ({columns[j].cell_text(low[j])} to {columns[j].cell_text(high[j])})"
            for j in np.flatnonzero(beyond.any(0)).tolist()
        ]
        warnings.warn(
            f"X: got {beyond.any(1).sum()} of {len(x)} rows beyond the rows in fit, in {', '.join(column_ranges[:3])}"
            f"{', …' * (len(column_ranges) > 3)}. There are no data there: intervals are wider, and may still miss y",
            UserWarning,
            stacklevel=4,
        )


def _check_sizes(x: Array, values: Array, weight: Array, names: Sequence[str] | None) -> None:
    """Raise for data whose sums or squares would overflow or underflow."""
    limits, low, high = np.finfo(x.dtype), x.min(0).astype(np.float64), x.max(0).astype(np.float64)
    with np.errstate(over="ignore"):
        total, ranges = float(weight.sum(dtype=np.float64)), high - low
    widest, limit = int(ranges.argmax()), float(limits.max) / 2**22  # a bandwidth may be 10⁶ times as wide
    if ranges[widest] > limit:
        raise ValueError(
            f"X: got {low[widest]} and {high[widest]} in {label_of(widest, names)}; expected a range of at most "
            f"{limit:.3g}, the limit of {x.dtype}. Rescale the column"
        )
    check_size("sample_weight", np.array(total), float(limits.max) / 2**10, x.dtype)
    total = max(total, 1.0)
    squares = math.sqrt(float(np.finfo(np.float64).max) / total) / 2**10
    check_size("y", values, min(float(limits.max) / total / 2**10, squares), x.dtype)
    spread = float(np.ptp(values, axis=0).max())
    if 0 < spread < _SMALLEST:
        raise ValueError(f"y: got values at most {spread} apart; expected at least {_SMALLEST}. Rescale y")


def check_size(name: str, numbers: Array, limit: float, dtype: np.dtype[Any]) -> None:
    """Raise for numbers above `limit` in magnitude."""
    largest_number = float(np.abs(numbers).max())
    if largest_number > limit:
        raise ValueError(
            f"{name}: got {largest_number}; expected at most {limit:.3g}, the limit of {dtype}. Rescale the numbers"
        )


def check_bandwidth(bandwidth: Any, columns: Sequence[Column], size: int) -> Any:
    """Return the bandwidth of `size` columns; with `columns` (not all numbers) numbers become (d,): σ, or λ."""
    if isinstance(bandwidth, str) or (np.ndim(bandwidth) == 0 and not columns):
        return bandwidth
    sigma, coded = np.asarray(bandwidth, np.float64), any(column.coded for column in columns)
    if coded and sigma.shape != (size,):
        raise ValueError(
            f"bandwidth: got shape {sigma.shape}; expected ({size},), a number for each column (σ, or λ of categories)"
        )
    if not (sigma[[not column.is_category for column in columns]] if coded else sigma).all():
        raise _not_positive(bandwidth)
    for sigma_or_rate, column in zip(sigma, columns, strict=True) if coded else ():
        if column.is_category and sigma_or_rate > 1:
            raise ValueError(
                f"bandwidth: got {sigma_or_rate} for a column of categories; expected λ of at most 1. From "
                f"{largest_rate(column):.4g} on the column has no influence"
            )
    if sigma.shape not in ((), (size,)):
        raise ValueError(f"bandwidth: got shape {sigma.shape}; expected a number, or ({size},), one for each feature")
    return np.full(size, sigma) if columns else bandwidth


def _not_positive(bandwidth: object, rules: tuple[str, ...] = _RULES) -> ValueError:
    return ValueError(
        f"bandwidth: got {bandwidth!r}; expected a positive number in the units of X, one for each feature, or one of "
        f"{list_some(rules)}"
    )


def _are_positive(bandwidth: object) -> bool:
    """Return True for positive numbers; in an array a number may be 0 (λ of a category)."""
    try:
        sigma = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    if isinstance(bandwidth, bool | str) or not sigma.size or not np.isfinite(sigma).all():
        return False
    return bool((sigma >= 0).all() if sigma.ndim else sigma > 0)
