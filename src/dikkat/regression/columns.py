"""Kinds of columns, and cells as numbers: of a category the index of its level, of a date its day."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

Kind = Literal["number", "date", "category", "ordered", "periodic"]
Level = str | int | float | bool

_DAY = 86_400_000_000  # microseconds
MISSING = "(missing)"
"""The level of missing cells among the others of a category."""
MOST_LEVELS = 50
"""Most different texts that are categories without being declared."""
_NAMED = 5  # most levels that a message lists


class Column(NamedTuple):
    """The kind of one column of X.

    Attributes:
        kind: "number"; "date", which counts as days since `origin`; "category"; "ordered", a category whose levels
            have an order; or "periodic", a number that comes round.
        levels: Of a category, its levels: texts, numbers, or yes and no; of an ordered one in their order. Of a
            periodic number the period alone. Of a number or date what stands in a missing cell, if these are allowed.
        origin: Of a date, the first one, as ISO 8601 has it. Of a number that was True or False, "bool". Of a category
            that says where cells of another column are missing, which is behind the columns of X, the position of that.
    """

    kind: Kind = "number"
    levels: tuple[Level, ...] = ()
    origin: str = ""

    @property
    def coded(self) -> bool:
        """True of categories, ordered or not, and of periodic numbers: of what has several coordinates and no slope."""
        return self.is_category or self.kind == "periodic"

    @property
    def is_gap(self) -> bool:
        """True of a category that says where cells of another column are missing."""
        return self.kind == "category" and bool(self.origin)

    @property
    def is_category(self) -> bool:
        """True of categories, ordered or not."""
        return self.kind in ("category", "ordered")

    @property
    def is_flag(self) -> bool:
        """True of a number that was True or False in fit."""
        return self.kind == "number" and self.origin == "bool"

    def shown(self, value: float) -> str:
        """The cell that a number stands for, as a person reads it; nothing of a missing one."""
        if np.isnan(value):
            return ""
        if self.is_category:
            return str(self.levels[round(value)])
        if self.kind == "date":
            return str(self.moment(value).astype("datetime64[m]")).removesuffix("T00:00")
        return str(self.cell(value)) if self.is_flag and value in (0, 1) else written(value)

    def cell(self, value: float) -> Any:
        """The cell that a number stands for; NaN or NaT of a missing one."""
        if np.isnan(value):
            return np.datetime64("NaT") if self.kind == "date" else value
        if self.is_category:
            return self.levels[round(value)]
        if self.is_flag and value in (0, 1):
            return bool(value)
        return self.moment(value) if self.kind == "date" else value

    def moment(self, value: float) -> np.datetime64:
        """The moment that so many days stand for."""
        return np.datetime64(self.origin, "us") + np.timedelta64(round(value * _DAY), "us")


def names_of(model: Any) -> list[str]:
    """Return the names of a model's features: x, or x0, x1 and so on for the columns of an array."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = ["x"] if model.n_features_in_ == 1 else [f"x{j}" for j in range(model.n_features_in_)]
    gaps = [f"{names[int(column.origin)]} is missing" for column in model.columns_ if column.is_gap]
    return [*map(str, names), *gaps]


def columns_of(model: Any) -> Sequence[Column]:
    """Return the kinds of a model's features."""
    return model.columns_ or [Column()] * model.n_features_in_


class _Cells(NamedTuple):
    """A column's cells (numbers, datetime64, or objects with None for missing) and the levels its dtype declares."""

    values: NDArray[Any]
    levels: tuple[Level, ...] | None = None
    ordered: bool = False


def find(
    X: Any, categorical: object, ordered: object, names: Sequence[str] | None, periodic: Mapping[Any, float] | None,
    gaps: bool | Array,
) -> tuple[Column, ...]:  # fmt: skip
    """The kinds of the columns; nothing where all are numbers. With `gaps`, weights of rows, cells may be missing."""
    if hasattr(X, "tocsr"):
        return ()  # sparse: refused where arrays are checked
    X = _indexed(X)
    if len(X.shape) != 2:
        return ()  # refused there too
    size = int(X.shape[1])
    unordered = _mask("categorical_features", categorical, size, names)
    in_order = _mask("ordered_features", ordered, size, names)
    if twice := np.flatnonzero(unordered & in_order).tolist():
        both = _called(twice[0], names)
        raise ValueError(f"ordered_features: got {both}, which is in categorical_features too; expected it in one")
    periods, declared = _periods(periodic or {}, size, names), unordered | in_order
    if twice := [j for j in periods if declared[j]]:
        both = _called(twice[0], names)
        raise ValueError(f"periodic_features: got {both}, which is a category too; expected one kind")
    has_gaps = gaps is not False
    if not (_is_frame(X) or declared.any() or periods or has_gaps):
        for j in range(size):
            if texts := [each for each in X[:, j].tolist() if isinstance(each, str) and not is_number(each)]:
                raise ValueError(_no_number(texts[0], _called(j, names)))
        return ()
    result = []
    for j in range(size):
        cells = _cells(X, j)
        typed = cells.levels is not None and not declared[j]
        if j in periods:
            result.append(Column("periodic", (periods[j],)))
        elif in_order[j] or (typed and cells.ordered and _is_dtype(ordered)):
            result.append(Column("ordered", _ordered_levels(cells, _called(j, names))))
        elif unordered[j] or (_is_dtype(categorical) and (typed or _holds_text(cells, _called(j, names)))):
            result.append(Column("category", _levels(cells.values, _called(j, names))))
        elif cells.values.dtype.kind == "M":
            known = cells.values[~np.isnat(cells.values)]
            first = known.min() if len(known) else np.datetime64("1970-01-01")
            result.append(Column("date", origin=str(first.astype("datetime64[us]"))))
        else:
            result.append(Column(origin="bool" if _holds_flags(cells.values) else ""))
    if has_gaps:
        values = [_encode(_cells(X, j).values, each, _called(j, names)) for j, each in enumerate(result)]
        result = _with_gaps(result, values, names, np.broadcast_to(gaps, len(values[0])))
    if not all(each == Column() for each in result):
        return tuple(result)
    for j in range(size):  # refused by name
        if (raw := _cells(X, j).values).dtype.kind not in "biuf":
            _encode(raw, Column(), _called(j, names))
    return ()


def _with_gaps(
    columns: Sequence[Column], values: Sequence[Array], names: Sequence[str] | None, weight: Array
) -> list[Column]:
    """The columns with what stands in missing cells, by the rows that count, and behind them where these are."""
    result, more = [], []
    for j, (column, cells) in enumerate(zip(columns, values, strict=True)):
        lost = np.isnan(cells)
        if column.kind in ("number", "date"):
            column = column._replace(levels=(median(cells[~lost], weight[~lost]),))
            more += [Column("category", ("known", "missing"), str(j))] * bool(lost.any())
        elif column.kind == "category" and lost.any():
            column = column._replace(levels=(*column.levels, MISSING))
        elif lost.any():
            raise ValueError(
                f"X: got {lost.sum()} missing cells in {_called(j, names)}, which is {column.kind}; expected none: "
                "with missing='indicator' they may be missing of numbers, dates and categories without an order"
            )
        result.append(column)
    return [*result, *more]


def median(values: Array, weight: Array) -> float:
    """The median of values that each count as often as their weight says; 0 of none."""
    order = np.argsort(values, kind="stable")
    order = order[weight[order] > 0]
    if not len(order):
        return 0.0
    below = np.cumsum(weight[order], dtype=np.float64)
    low, high = (np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right"))
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def refilled(x: Array, columns: Sequence[Column], weight: Array | None = None) -> tuple[Array, tuple[Column, ...]]:
    """Rows from `encoded` with medians in missing cells, and columns; with weights the medians are of these rows."""
    x, result = x.copy(), list(columns)
    for j, gap in enumerate(columns):
        if gap.is_gap:
            lost, own = x[:, j] == 1, int(gap.origin)
            if weight is not None:
                result[own] = columns[own]._replace(levels=(median(x[~lost, own], weight[~lost]),))
            x[lost, own] = result[own].levels[0]
    return x, tuple(result)


def _holds_text(cells: _Cells, called: str) -> bool:
    """True of a column of text with few different ones; refuses one of many, such as names or identifiers."""
    if cells.levels is not None or cells.values.dtype.kind != "O":
        return False
    there = [each for each in cells.values.tolist() if not _is_missing(each)]
    if not any(isinstance(each, str) and not is_number(each) for each in there):
        return False
    if any(not isinstance(each, str) for each in there):
        return False  # which is refused where cells become numbers
    numbers = sum(map(is_number, there))
    if 2 * numbers > len(there):
        wrong = next(each for each in there if not is_number(each))
        raise ValueError(
            f"X: got {wrong!r} in {called}, of whose {len(there)} texts {numbers} are numbers; expected numbers, by "
            "pandas.to_numeric(column, errors='coerce') and missing='indicator', or the column among the "
            "categorical_features"
        )
    count = len(set(there))
    if count > min(MOST_LEVELS, max(2, len(there) // 2)):
        raise ValueError(
            f"X: got {count} different texts in {len(there)} rows of {called}, such as {there[0]!r}; expected few, as "
            "categories have: leave it out, name it among the categorical_features, or make dates of texts, by "
            "pandas.to_datetime"
        )
    return True


def _holds_flags(values: NDArray[Any]) -> bool:
    there = values.tolist() if values.dtype.kind == "O" else []
    flags = [each for each in there if not _is_missing(each)]
    return values.dtype.kind == "b" or bool(flags and all(isinstance(each, bool) for each in flags))


def _periods(given: Mapping[Any, float], size: int, names: Sequence[str] | None) -> dict[int, float]:
    """The periods of columns by their positions."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"periodic_features: got {given!r}; expected columns with their periods, such as {{'hour': 24}}"
        )
    result = {}
    for each, period in given.items():
        if not (is_number(period) and 0 < float(period) < math.inf):
            raise ValueError(f"periodic_features: got the period {period!r} of {each!r}; expected a positive number")
        position = int(_mask("periodic_features", [each], size, names).argmax())
        result[position] = float(period)
    return result


def encoded(X: Any, columns: Sequence[Column], names: Sequence[str] | None) -> Array:
    """X (n, d) in its float type: NaN for a missing cell where none was in fit, −1 for a category that was not there.

    Categories and bools do not change the float type: it is float32 if X has a float32 column and float32 can hold all
    numbers. A number between two ordered levels that are numbers has an index between theirs; beyond the last, the last
    one's.
    """
    X, own = _indexed(X), [each for each in columns if not each.is_gap]
    cells = [_cells(X, j).values for j in range(len(own))]
    result = [_encode(values, each, _called(j, names)) for j, (values, each) in enumerate(zip(cells, own, strict=True))]
    dtypes = [values.dtype for values, each in zip(cells, own, strict=True) if not (each.is_category or each.is_flag)]
    narrow = np.dtype(np.float32) in dtypes and all(np.can_cast(each, np.float32) for each in dtypes)
    gaps = [np.isnan(result[int(each.origin)]).astype(np.float64) for each in columns[len(own) :]]
    for each in columns[len(own) :]:
        values, column = result[int(each.origin)], own[int(each.origin)]
        values[np.isnan(values)] = column.levels[0]
    return np.column_stack([*result, *gaps]).astype(np.float32 if narrow else np.float64, copy=False)


def missing(x: Array, columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Where cells of rows from `encoded` are missing, (n, d) without the columns that say so."""
    own = [each for each in columns if not each.is_gap]
    result = np.isnan(x[:, : len(own)])
    for j, column in enumerate(own):
        if MISSING in column.levels:
            result[:, j] |= x[:, j] == column.levels.index(MISSING)
    for j, each in enumerate(columns[len(own) :], start=len(own)):
        result[:, int(each.origin)] |= x[:, j] == 1
    return result


def without(x: Array, lost: NDArray[np.bool_], columns: Sequence[Column]) -> Array:
    """Rows from `encoded` as if cells of these columns, (d,) of True and False, were missing."""
    result = x.copy()
    for j in np.flatnonzero(lost).tolist():
        result[:, j] = columns[j].levels.index(MISSING) if columns[j].is_category else np.nan
    for j, each in enumerate(columns):
        if each.is_gap and lost[int(each.origin)]:
            result[:, int(each.origin)], result[:, j] = columns[int(each.origin)].levels[0], 1
    return result


def warn_of_unseen(query: Array, columns: Sequence[Column], names: Sequence[str] | None) -> None:
    """Warn of categories in queries that were not there in fit, and of gaps where there were none."""
    for j, column in enumerate(columns):
        if (lost := np.isnan(query[:, j])).any():
            warnings.warn(
                f"{lost.sum()} of {len(query)} rows of X have a missing cell in {_called(j, names)}, of which none was "
                "missing in fit: "
                + ("it is equally far from every row" if column.is_category else "the median stands there")
                + ", and intervals are wider by what it could have said",
                UserWarning,
                stacklevel=4,
            )
        if column.kind == "category" and (new := query[:, j] == -1).any():
            warnings.warn(
                f"{new.sum()} of {len(query)} rows of X have a category in {_called(j, names)} that was not there in "
                "fit; it is equally far from every row",
                stacklevel=4,
            )


def _encode(values: NDArray[Any], column: Column, called: str) -> Array:
    if column.kind == "date":
        if values.dtype.kind != "M" and all(map(_is_missing, values.tolist())):
            return np.full(len(values), np.nan)
        if values.dtype.kind != "M":
            raise ValueError(f"X: got {called} without dates; expected dates, as in fit")
        days = (values - np.datetime64(column.origin, "us")).astype("timedelta64[us]")
        return np.asarray(np.where(np.isnat(days), np.nan, days.astype(np.int64) / _DAY))
    if not column.is_category:
        try:
            return values.astype(np.float64, copy=True)
        except (TypeError, ValueError):
            wrong = next(value for value in values.tolist() if not is_number(value))
            raise ValueError(_no_number(wrong, called)) from None
    index = _indices(column.levels)
    lost = column.levels.index(MISSING) if MISSING in column.levels else math.nan
    result = np.array([lost if _is_missing(each) else index(each) for each in values.tolist()], np.float64)
    new = np.flatnonzero(result == -1)
    if column.kind == "ordered" and len(new):
        if any(isinstance(level, str) for level in column.levels) or not all(map(is_number, values[new].tolist())):
            raise ValueError(f"X: got {values[new[0]]!r} in {called}; expected one of {listed(column.levels)}")
        levels = np.array(column.levels, np.float64)
        result[new] = np.interp(values[new].astype(np.float64), levels, np.arange(len(levels)))
    return result


def _no_number(cell: object, called: str) -> str:
    hints = {"total_seconds": ", by .dt.total_seconds()", "to_timestamp": ", dates, by .dt.to_timestamp()"}
    hint = "".join(hint for name, hint in hints.items() if hasattr(cell, name))
    return f"X: got {cell!r} in {called}; expected numbers{hint}, or the column among the categorical_features"


def _indices(levels: Sequence[Level]) -> Callable[[Level], int]:
    """The index of a level, −1 of one that is not there.

    A column of numbers is one of text in another file as soon as one cell is no number. So where no level is equal, one
    is taken that is written alike, 1 for "1", if there is but one.
    """
    exact = {level: index for index, level in enumerate(levels)}
    counts = Counter(map(_alike, levels))
    alike = {_alike(level): index for level, index in exact.items() if counts[_alike(level)] == 1}
    return lambda level: exact[level] if level in exact else alike.get(_alike(level), -1)


def _alike(level: Level) -> float | str:
    """The number that a level is or is written as, or its text."""
    try:
        return float(level)
    except (TypeError, ValueError, OverflowError):
        return str(level)


def _levels(values: NDArray[Any], called: str) -> tuple[Level, ...]:
    """The levels that occur, sorted: numbers, and then texts."""
    cells = (value.item() if isinstance(value, np.generic) else value for value in values.tolist())
    result = set(_checked([value for value in cells if not _is_missing(value)], called))
    return tuple(sorted(result, key=lambda value: (isinstance(value, str), value)))


def _checked(levels: Sequence[Any], called: str) -> Sequence[Level]:
    if wrong := [level for level in levels if not isinstance(level, str | int | float)]:
        raise ValueError(f"X: got {wrong[0]!r} in {called}; expected texts or numbers as categories")
    return levels


def _ordered_levels(cells: _Cells, called: str) -> tuple[Level, ...]:
    if cells.levels is not None and cells.ordered:
        return tuple(_checked(cells.levels, called))
    levels = _levels(cells.values, called)
    if any(isinstance(level, str) for level in levels):
        raise ValueError(
            f"ordered_features: got {called}, which holds text ({listed(levels)}) that has no order; expected "
            "numbers, or a type with an order, such as pandas.CategoricalDtype(['low', 'high'], ordered=True)"
        )
    return levels


def _cells(X: Any, j: int) -> _Cells:
    if hasattr(X, "iloc"):
        return _of_pandas(X.iloc[:, j])
    if hasattr(X, "to_series"):  # polars
        import pyarrow  # type: ignore[import-untyped]

        return _of_arrow(pyarrow.chunked_array([X.to_series(j).to_arrow()]))
    return _of_arrow(X.column(j)) if hasattr(X, "column") else _Cells(X[:, j])


def _of_pandas(series: Any) -> _Cells:
    kind = series.dtype
    if getattr(kind, "kind", "") == "M":
        return _Cells(series.to_numpy(dtype="datetime64[us]"))
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return _Cells(series.to_numpy())
    cells = [None if lost else value for value, lost in zip(series.tolist(), series.isna(), strict=True)]
    values, levels = _objects(cells), getattr(kind, "categories", None)
    return _Cells(values) if levels is None else _Cells(values, tuple(levels.tolist()), bool(kind.ordered))


def _of_arrow(column: Any) -> _Cells:
    from pyarrow import timestamp, types

    if types.is_timestamp(column.type) or types.is_date(column.type):
        moments = column.cast(timestamp("us", getattr(column.type, "tz", None)), safe=False)
        return _Cells(moments.to_numpy().astype("datetime64[us]"))
    if types.is_dictionary(column.type):
        levels = column.unify_dictionaries().chunk(0).dictionary.to_pylist() if column.num_chunks else []
        return _Cells(_objects(column.to_pylist()), tuple(levels), bool(column.type.ordered))
    return _Cells(column.to_numpy() if types.is_floating(column.type) else _objects(column.to_pylist()))


def _objects(cells: list[Any]) -> NDArray[Any]:
    """Return the cells as a one-dimensional array, also if they are lists of equal length."""
    return np.fromiter(cells, object, len(cells))


def _indexed(X: Any) -> Any:
    """A frame as it is; all else as an array."""
    if hasattr(X, "tocsr"):
        raise TypeError("X: got a sparse matrix beside categories or dates; expected an array or a frame")
    return X if _is_frame(X) else np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)


def _is_frame(X: Any) -> bool:
    return any(hasattr(X, name) for name in ("iloc", "to_series", "column_names"))


def _mask(name: str, given: object, size: int, names: Sequence[str] | None) -> NDArray[np.bool_]:
    """(d,): the columns that a setting names."""
    mask = np.zeros(size, bool)
    if given is None or _is_dtype(given):
        return mask
    requested = np.asarray(given, dtype=object)
    if requested.ndim != 1:
        raise ValueError(
            f"{name}: got {given!r}; expected 'from_dtype', None, or a list of names or positions, or a mask"
        )
    if requested.size and all(isinstance(each, bool | np.bool_) for each in requested):
        if len(requested) != size:
            raise ValueError(f"{name}: got a mask of {len(requested)}; expected {size}, one for each column of X")
        return requested.astype(bool)
    for each in requested:
        if isinstance(each, str):
            if names is None or each not in names:
                there = "no names" if names is None else listed(list(names))
                raise ValueError(f"{name}: got {each!r}; expected a column of X, which has {there}")
            each = list(names).index(each)
        elif not (isinstance(each, Integral) and -size <= int(each) < size):
            raise ValueError(f"{name}: got {each!r}; expected a name, or a position below {size}, the columns of X")
        mask[int(each)] = True
    return mask


def _is_dtype(given: object) -> bool:
    return isinstance(given, str) and given == "from_dtype"


def _is_missing(value: object) -> bool:
    return value is None or (not isinstance(value, np.ndarray) and bool(value != value))


def written(value: float) -> str:
    """A number of four digits, or a whole one, without a power of ten up to twelve places."""
    if not 1e4 <= abs(value) < 1e12:
        return f"{value:.4g}"
    return f"{value if value == round(value) else float(f'{value:.4g}'):,.0f}"


def is_number(value: object) -> bool:
    """True for what reads as a number, and for nothing."""
    try:
        float(value)  # type: ignore[arg-type]  # of any type
    except (TypeError, ValueError):
        return value is None
    return True


def _called(j: int, names: Sequence[str] | None) -> str:
    return f"column {names[j]!r}" if names is not None else f"column {j}"


def listed(levels: Sequence[object]) -> str:
    """The first of some levels or names, for a message."""
    return ", ".join(reprlib.repr(level) for level in levels[:_NAMED]) + (", …" if len(levels) > _NAMED else "")
