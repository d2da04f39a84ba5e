"""Rows as an estimator gets them, checked, with what their columns are and without those that lack cells."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _get_feature_names, check_array, check_consistent_length, check_X_y, validate_data

from dikkat.regression.collections import check_at_hand
from dikkat.regression.columns import Column, encoded, extended, find, recoded
from dikkat.regression.joined import Array
from dikkat.regression.validation import check_size, check_sizes, checked_weights

_DTYPES = [np.float64, np.float32]


class Rows(NamedTuple):
    """Training rows.

    Attributes:
        x: (n, d), numbers; of a category the places of the levels.
        y: (n,) or (n, outputs), float64.
        weight: (n,).
        columns: What each column is; nothing where all are numbers.
        dropped: How many rows lacked cells and were left out.
    """

    x: Array
    y: Array
    weight: Array
    columns: tuple[Column, ...]
    dropped: int


def checked_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, before: Rows | None
) -> Rows:
    """Rows to learn from, behind those that were there before, if there were some; d is set on the estimator.

    Raises:
        ValueError: They are no numbers where they should be, lack cells, or do not fit those before.
    """
    check_at_hand(X=X, y=y, sample_weight=sample_weight)
    drops, reset, names = estimator.missing == "drop", before is None, _get_feature_names(X)
    if before is None:
        columns = find(X, estimator.categorical_features, estimator.ordered_features, names)
    else:
        if before.columns:
            validate_data(estimator, X, skip_check_array=True, reset=False)  # as many columns, and the same ones
        columns = extended(X, before.columns, names)
    coded = [each for each in columns if each.coded]
    if coded and estimator.kernel != "gaussian":
        raise ValueError(
            f"kernel: got {estimator.kernel!r} beside categories; expected 'gaussian', of whose weights theirs are "
            "factors, or None for categorical_features and ordered_features"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # of a sum by which infinite numbers are looked for
        if columns or drops:
            validate_data(estimator, X, skip_check_array=True, reset=reset)
            x = _numbers(estimator, X, columns, names, drops)
            x, values, weight, dropped = _complete(estimator, x, y, sample_weight, drops)
        else:
            x, values = validate_data(
                estimator, X, y, dtype=_DTYPES, multi_output=True, y_numeric=True, reset=reset, copy=True
            )
            weight, dropped = checked_weights(sample_weight, x), 0
    values = values.astype(np.float64)
    check_sizes(x, values, weight)
    if before is None:
        return Rows(x, values, weight, columns, dropped)
    if values.shape[1:] != before.y.shape[1:]:
        expected = "(n,)" if before.y.ndim == 1 else f"(n, {before.y.shape[1]})"
        raise ValueError(f"y: got shape {values.shape}; expected {expected}, as it was before")
    old = recoded(before.x, before.columns, columns) if columns else before.x
    return Rows(
        np.concatenate([old, x]),
        np.concatenate([before.y, values]),
        np.concatenate([before.weight, weight]),
        columns,
        before.dropped + dropped,
    )


def checked_query(estimator: Any, X: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Queries (n, d) as training rows are, in their dtype, and which of them lack cells; for those the first row.

    Raises:
        ValueError: They have other columns, or lack cells and the estimator does not take that.
    """
    check_at_hand(X=X)
    columns, rows, drops = estimator.columns_, estimator.X_train_, estimator.missing == "drop"
    with np.errstate(over="ignore", invalid="ignore"):
        if columns or drops:
            validate_data(estimator, X, skip_check_array=True, reset=False)
            names = _get_feature_names(X)
            query = _numbers(estimator, X, columns, names, drops)
            _warn_of_new(X, query, columns, names)
        else:
            query = validate_data(estimator, X, dtype=_DTYPES, reset=False)
    lost: NDArray[np.bool_] = np.asarray(np.isnan(query).any(1))
    if lost.any():
        query = np.where(lost[:, None], rows[0].astype(query.dtype), query)
        warnings.warn(
            f"{lost.sum()} of {len(lost)} rows of X have missing cells and get NaN", UserWarning, stacklevel=4
        )
    check_size("X", query, float(np.finfo(rows.dtype).max), rows.dtype)
    return np.ascontiguousarray(query, rows.dtype), lost


def _numbers(
    estimator: Any, X: ArrayLike, columns: Sequence[Column], names: Sequence[str] | None, drops: bool
) -> Array:
    X = encoded(X, columns, names) if columns else X
    checked: Array = check_array(
        X,
        dtype=_DTYPES,
        ensure_all_finite="allow-nan" if drops else True,
        copy=True,
        estimator=estimator,
        input_name="X",
    )
    return checked


def _complete(
    estimator: Any, x: Array, y: ArrayLike, sample_weight: ArrayLike | None, drops: bool
) -> tuple[Array, Array, Array, int]:
    """The rows without missing cells, and how many others there were."""
    if y is not None and drops:
        values = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
        check_consistent_length(x, values)
        known = ~(np.isnan(x).any(1) | np.isnan(values).reshape(len(x), -1).any(1))
        if not known.any():
            raise ValueError(f"X: got missing cells, in X or y, in each of {len(x)} rows; expected one without")
    else:
        values, known = y, np.ones(len(x), dtype=bool)
    weight = checked_weights(sample_weight, x)
    kept = (x[known], values[known]) if not known.all() else (x, values)
    found, values = check_X_y(*kept, dtype=_DTYPES, multi_output=True, y_numeric=True, estimator=estimator)
    if not weight[known].any():
        raise ValueError("sample_weight: got zeros alone in rows without missing cells; expected a positive weight")
    return found, values, weight[known], int((~known).sum())


def complete_pairs(
    predicted: Array, y: ArrayLike, sample_weight: ArrayLike | None, missing: NDArray[np.bool_]
) -> tuple[Array, Array, Array | None]:
    """Predictions, what should have been predicted, and weights, without rows that lack a cell of X or y.

    Raises:
        ValueError: There is no other row, or y or the weights are not as many.
    """
    values = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
    weight = None if sample_weight is None else np.asarray(sample_weight)
    check_consistent_length(predicted, values, weight)
    known = ~(missing | np.isnan(values).reshape(len(values), -1).any(1))
    if not known.any():
        raise ValueError(f"X: got missing cells, in X or y, in each of {len(known)} rows; expected one without")
    return predicted[known], values[known], None if weight is None else weight[known]


def _warn_of_new(X: ArrayLike, query: Array, columns: Sequence[Column], names: Sequence[str] | None) -> None:
    for j, column in enumerate(columns):
        if column.kind == "category" and (new := query[:, j] == -1).any():
            name = repr(names[j]) if names is not None else str(j)
            warnings.warn(
                f"{new.sum()} of {len(query)} rows of X have a category in column {name} that was not there in fit; "
                "it is equally far from every row",
                UserWarning,
                stacklevel=5,
            )
