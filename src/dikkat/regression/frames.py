"""Tables as users pass them: a column alone, frames with the columns of `fit` and more, and rows in another order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError

_FEW_VALUES = 5  # a column of so few values may equal a y without a name by chance


def as_table(X: Any, y: Any = None, **by_row: Any) -> Any:
    """Return X with two dimensions: a series, or a list of numbers or dates, becomes one column.

    Raises:
        InputError: A lazy collection or frame.
        ValueError: Columns of the same name, labels in another order than in X, or a column of X whose values are y's.
    """
    _check_in_memory(X=X, y=y, **by_row)
    if isinstance(X, list) and X and all(isinstance(cell, Real | date) for cell in X):
        X = np.array([[cell] for cell in X])
    if isinstance(X, np.ndarray) and X.dtype.kind == "O" and (dates := dates_in(X)) is not None:
        X = dates
    if hasattr(X, "to_frame") and np.ndim(X) == 1:
        X = X.to_frame()
    names, name = columns_of_frame(X), getattr(y, "name", None)
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"X: got {names.count(repeated[0])} columns {repeated[0]!r}; expected different names")
    y_values = np.asarray(y)
    for column in names if y is not None and (len(names) > 1 or name in names) else []:
        if _is_equal(np.asarray(X[column]), y_values, any_values=column == name):
            raise ValueError(
                f"X: got the column {column!r}, which is y; expected the other columns, X.drop(columns={column!r})"
            )
    for argument, values in {"y": y, **by_row}.items():
        if not (hasattr(values, "iloc") and hasattr(X, "iloc")) or values.index.equals(X.index):
            continue
        if values.index.nlevels != X.index.nlevels:
            continue
        if len(values) == len(X) and values.index.is_unique and values.index.isin(X.index).all():
            raise ValueError(
                f"{argument}: got the labels of X in another order; expected the rows of X, as in "
                f"{argument}.loc[X.index], or {argument}.to_numpy() if the rows match by position"
            )
    return X


def _is_equal(column: NDArray[Any], y: NDArray[Any], any_values: bool) -> bool:
    """Return whether two columns are equal, missing values included; False for a few values unless `any_values`."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    try:
        is_equal = column.shape == y.shape and all(
            a is b or a == b or (a != a and b != b) for a, b in zip(column, y, strict=True)
        )
    except (TypeError, ValueError):  # pandas.NA is neither equal nor different, and cells may be arrays
        return False
    return is_equal and (any_values or len(set(y.tolist())) > _FEW_VALUES)


def select_columns(X: Any, names: Sequence[str] | None) -> Any:
    """Return the columns `names` of a frame, in this order; other tables are returned as they are."""
    X = as_table(X)
    columns = columns_of_frame(X)
    if names is None or not all(isinstance(name, str) for name in columns) or list(names) == columns or not columns:
        return X
    if lost := [name for name in names if name not in columns]:
        raise ValueError(f"X: got no column {', '.join(map(repr, lost))}; expected {', '.join(map(repr, names))}")
    return X[list(names)] if hasattr(X, "iloc") else X.select(list(names))


def names_of_fit(X: Any, y: object) -> dict[str, Any]:
    """Return the attributes `target_name_` and `row_labels_`: the name of y and the index of X, or None."""
    name = getattr(y, "name", None)
    labels = X.index.to_numpy() if hasattr(X, "iloc") else None
    return {"target_name_": name if isinstance(name, str) else None, "row_labels_": labels}


def columns_of_frame(X: Any) -> list[Any]:
    """Return the names of a frame's columns; an empty list for an array."""
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    return [] if names is None else list(names)


def dates_in(values: object) -> NDArray[np.datetime64] | None:
    """Return dates as datetime64[us], in UTC if they have a time zone; None if there are other values, or no dates."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        cells = [None if isinstance(cell, float | date) and cell != cell else cell for cell in array.ravel().tolist()]
        if not all(cell is None or isinstance(cell, date) for cell in cells) or not any(cells):
            return None
        times: list[Any] = cells
        free = [c.astimezone(UTC).replace(tzinfo=None) if getattr(c, "tzinfo", None) else c for c in times]
        array = np.array(free, "datetime64[us]").reshape(array.shape)
    return array.astype("datetime64[us]") if array.dtype.kind == "M" else None


def _check_in_memory(**arguments: object) -> None:
    for name, value in arguments.items():
        if hasattr(value, "__dask_graph__"):
            raise InputError(
                f"{name}: got a Dask collection; expected rows in memory, such as `.sample(frac=0.01).compute()`. Only "
                "predict accepts collections"
            )
        if hasattr(value, "collect_schema") and hasattr(value, "lazy") and not hasattr(value, "to_numpy"):
            raise InputError(f"{name}: got a {type(value).__name__}; expected a frame in memory; call `.collect()`")
