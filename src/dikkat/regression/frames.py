"""Tables as users pass them: a single column, frames with the columns of `fit` and more, and rows in another order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError

_FEW_VALUES = 5  # a column of so few values may equal a y without a name by chance


def as_table(X: Any, y: Any = None, **by_row: Any) -> Any:
    """Return X with two dimensions: a series, an array of one dimension, or a list of numbers or dates is one column.

    Raises:
        InputError: A lazy collection or frame.
        ValueError: Columns of the same name, other labels than those of X, or a column of X with the name and the
            values of y. A warning names a column with only the values of y.
    """
    _check_in_memory(X=X, y=y, **by_row)
    for got, cell in (("dict", X), ("list of dicts", X[0] if isinstance(X, list) and X else None)):
        if isinstance(cell, dict) and not hasattr(cell, "tocsr"):  # some sparse arrays are a dict
            raise ValueError(f"X: got a {got}; expected a frame, such as pandas.DataFrame(X)")
    if isinstance(X, np.ndarray) and X.ndim == 1:
        X = X[:, None]
    if isinstance(X, list) and X and all(isinstance(cell, Real | date) for cell in X):
        X = np.array([[cell] for cell in X])
    if isinstance(X, np.ndarray) and X.dtype.kind == "O" and (dates := dates_in(X)) is not None:
        X = dates
    if hasattr(X, "to_frame") and np.ndim(X) == 1:
        X = X.to_frame()
    names, name = columns_of_frame(X), target_name(y)
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"X: got {names.count(repeated[0])} columns {repeated[0]!r}; expected different names")
    y_values = np.asarray(y)
    targets = list(y_values.T) if y_values.ndim == 2 else [y_values]
    target_names = [name] if len(targets) == 1 else columns_of_frame(y) or [None] * len(targets)
    for column in names if y is not None and (len(names) > 1 or set(names) & set(target_names)) else []:
        cells = np.asarray(X[column])
        for of, values in zip(target_names, targets, strict=True):
            if not _is_equal(cells, values, column == of):
                continue
            advice = f"X.drop(columns={column!r})"
            if column == of:
                raise ValueError(f"X: got the column {column!r}, which is y; expected the other columns, {advice}")
            warnings.warn(
                f"X: the column {column!r} equals y in all {len(values):,} rows. If it is the target, use {advice}",
                UserWarning,
                stacklevel=3,
            )
    check_labels(X=X, y=y, **by_row)
    return X


def check_labels(**tables: Any) -> None:
    """Raise if a table has labels of the first table, in another order or among other labels.

    Rows match by position if tables have no common label, or no labels.
    """
    first, *names = tables
    index: Any = getattr(tables[first], "index", None)
    for name in names:
        labels: Any = getattr(tables[name], "index", None)
        if not (hasattr(index, "nlevels") and hasattr(labels, "nlevels") and labels.nlevels == index.nlevels):
            continue
        if len(labels) != len(index) or labels.equals(index) or not (is_known := labels.isin(index)).any():
            continue
        problem, rows = "in another order", f"the rows of {first}"
        if not is_known.all():
            problem = f"among {(~is_known).sum()} other labels"
        elif labels.is_unique:
            rows += f", as in {name}.loc[{first}.index]"
        raise ValueError(
            f"{name}: got labels of {first} {problem}; expected {rows}, or {name}.to_numpy() if the rows match by "
            "position"
        )


def _is_equal(column: NDArray[Any], y: NDArray[Any], any_values: bool) -> bool:
    """Return whether two columns are equal, missing values included; False for a few values unless `any_values`."""
    try:
        is_equal = column.shape == y.shape and all(
            a is b or a == b or (a != a and b != b) for a, b in zip(column, y, strict=True)
        )
    except (TypeError, ValueError):  # pandas.NA is neither equal nor different, and cells may be arrays
        return False
    return is_equal and (any_values or len(set(y.tolist())) > _FEW_VALUES)


def select_columns(X: Any, names: Sequence[str] | None, count: int) -> Any:
    """Return the columns `names` of a frame, in this order; other tables are returned as they are.

    Raises:
        ValueError: As for `as_table`; a single column instead of `count`, or a frame without one of `names`.
    """
    if count > 1 and getattr(X, "ndim", 2) == 1:
        row = "X.reshape(1, -1)" if isinstance(X, np.ndarray) else "a frame of one row, such as X.iloc[[0]]"
        raise ValueError(
            f"X: got a {type(X).__name__} of one dimension, which is one column; expected {count} columns. Reshape "
            f"your data: for one row pass {row}"
        )
    X = as_table(X)
    columns = columns_of_frame(X)
    if names is None or not all(isinstance(name, str) for name in columns) or list(names) == columns or not columns:
        return X
    if lost := [name for name in names if name not in columns]:
        raise ValueError(f"X: got no column {', '.join(map(repr, lost))}; expected {', '.join(map(repr, names))}")
    return X[list(names)] if hasattr(X, "iloc") else X.select(list(names))


def names_of_fit(X: Any, y: object) -> dict[str, Any]:
    """Return the attributes `target_name_` and `row_labels_`: the name of y and the index of X, or None."""
    return {"target_name_": target_name(y), "row_labels_": X.index.to_numpy() if hasattr(X, "iloc") else None}


def target_name(y: object) -> str | None:
    """Return the name of a column, or of the only column of a frame; None without a name."""
    names = columns_of_frame(y)
    name = names[0] if len(names) == 1 else getattr(y, "name", None)
    return name if isinstance(name, str) else None


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
