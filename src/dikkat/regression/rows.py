"""Rows as an estimator gets them, checked, with what their columns are."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import _get_feature_names, check_array, check_X_y, validate_data

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
    """

    x: Array
    y: Array
    weight: Array
    columns: tuple[Column, ...]


def checked_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, before: Rows | None
) -> Rows:
    """Rows to learn from, behind those that were there before, if there were some; d is set on the estimator."""
    check_at_hand(X=X, y=y, sample_weight=sample_weight)
    reset, names = before is None, _get_feature_names(X)
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
        if columns:
            validate_data(estimator, X, skip_check_array=True, reset=reset)
            x, values = check_X_y(
                encoded(X, columns, names),
                y,
                dtype=_DTYPES,
                multi_output=True,
                y_numeric=True,
                estimator=estimator,
                copy=True,
            )
        else:
            x, values = validate_data(
                estimator, X, y, dtype=_DTYPES, multi_output=True, y_numeric=True, reset=reset, copy=True
            )
    weight = checked_weights(sample_weight, x)
    values = values.astype(np.float64)
    check_sizes(x, values, weight)
    if before is None:
        return Rows(x, values, weight, columns)
    if values.shape[1:] != before.y.shape[1:]:
        expected = "(n,)" if before.y.ndim == 1 else f"(n, {before.y.shape[1]})"
        raise ValueError(f"y: got shape {values.shape}; expected {expected}, as it was before")
    old = recoded(before.x, before.columns, columns) if columns else before.x
    return Rows(
        np.concatenate([old, x]),
        np.concatenate([before.y, values]),
        np.concatenate([before.weight, weight]),
        columns,
    )


def checked_query(estimator: Any, X: ArrayLike) -> Array:
    """Queries (n, d) as training rows are, in their dtype."""
    check_at_hand(X=X)
    columns, dtype = estimator.columns_, estimator.X_train_.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        if columns:
            validate_data(estimator, X, skip_check_array=True, reset=False)
            names = _get_feature_names(X)
            query: Array = check_array(encoded(X, columns, names), dtype=_DTYPES, estimator=estimator, input_name="X")
            _warn_of_new(query, columns, names)
        else:
            query = validate_data(estimator, X, dtype=_DTYPES, reset=False)
    check_size("X", query, float(np.finfo(dtype).max), dtype)
    return np.ascontiguousarray(query, dtype)


def _warn_of_new(query: Array, columns: Sequence[Column], names: Sequence[str] | None) -> None:
    for j, column in enumerate(columns):
        if column.kind == "category" and (new := query[:, j] == -1).any():
            name = repr(names[j]) if names is not None else str(j)
            warnings.warn(
                f"{new.sum()} of {len(query)} rows of X have a category in column {name} that was not there in fit; "
                "it is equally far from every row",
                UserWarning,
                stacklevel=4,
            )
