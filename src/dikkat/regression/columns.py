"""Kinds of columns, and cells as numbers: a category is the index of its level, a date its day."""

from __future__ import annotations

import math
import re
import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.regression.frames import dates_in

Array = NDArray[np.floating]

Kind = Literal["number", "date", "category", "ordered", "periodic"]
Level = str | int | float | bool

_DAY_US = 86_400_000_000  # microseconds
MISSING = "(missing)"
"""The level of a category's missing cells."""
MOST_LEVELS = 50
"""The largest number of different texts that are categories without being declared."""
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
# With a year of four digits: a day, or a month.
_OTHER_DATE = re.compile(r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3\d{4})([ T]|$)|\d{4}-(0[1-9]|1[0-2])$")
_IDENTIFIER = re.compile(r"(?i:^|[\W_])(?i:id|uuid)$|[a-z]I[dD]$|^(?i:index)$")
_NAMED = 5  # levels in a message, at most


class Column(NamedTuple):
    """The kind of one column of X.

    Attributes:
        kind: "number"; "date", in days since `origin`; "category"; "ordered", a category whose levels have an order;
            or "periodic", a number that repeats.
        levels: The levels of a category (texts, numbers or booleans; sorted by order for "ordered"); the period of a
            periodic number; the value used for missing cells of a number or date, if these are allowed.
        origin: The first date, in ISO 8601. For a number that was True or False, "bool". For an indicator of missing
            cells, a category after the columns of X, the position of its column.
        log: (smallest, offset) of a number that is compared by log(x + offset); from `smallest` down to 0 by the
            tangent at `smallest`, and below 0 like 0. () for other columns.
    """

    kind: Kind = "number"
    levels: tuple[Level, ...] = ()
    origin: str = ""
    log: tuple[float, ...] = ()

    @property
    def coded(self) -> bool:
        """True for categories and periodic numbers, which have several coordinates and no slope."""
        return self.is_category or self.kind == "periodic"

    @property
    def is_gap(self) -> bool:
        """True for the indicator of missing cells of another column."""
        return self.kind == "category" and bool(self.origin)

    @property
    def is_category(self) -> bool:
        """True for categories, ordered or not."""
        return self.kind in ("category", "ordered")

    @property
    def groups(self) -> tuple[Level, ...]:
        """The levels of a category, False and True of a flag, () of another column; cells are their indices."""
        return self.levels if self.is_category else (False, True) if self.is_flag else ()

    @property
    def is_flag(self) -> bool:
        """True for a number that was True or False in fit."""
        return self.kind == "number" and self.origin == "bool"

    def cell_text(self, value: float) -> str:
        """Convert an encoded number back to the text of its table cell; "" for NaN."""
        if np.isnan(value):
            return ""
        if self.is_category:
            return str(self.levels[round(value)])
        if self.kind == "date":
            return str(self.moment(value).astype("datetime64[m]")).removesuffix("T00:00")
        return str(self.cell(value)) if self.is_flag and value in (0, 1) else format_number(value)

    def cell(self, value: float) -> Any:
        """Convert an encoded number back to its table cell, such as a category or a date; NaN or NaT if missing."""
        if np.isnan(value):
            return np.datetime64("NaT") if self.kind == "date" else value
        if self.is_category:
            return self.levels[round(value)]
        if self.is_flag and value in (0, 1):
            return bool(value)
        return self.moment(value) if self.kind == "date" else value

    def scaled(self, numbers: Array) -> Array:
        """Return numbers on the scale on which they are compared: as they are, or float64 logarithms."""
        if not self.log:
            return numbers
        smallest, offset = self.log
        numbers = np.maximum(numbers.astype(np.float64), 0.0)
        below = np.minimum(numbers - smallest, 0.0) / (smallest + offset)
        return np.asarray(np.log(np.maximum(numbers, smallest) + offset) + below)

    def scale_slope(self, numbers: Array) -> Array:
        """Return the derivative of `scaled`; 0 below 0 for a logarithm."""
        if not self.log:
            return np.ones(numbers.shape)
        smallest, offset = self.log
        return np.where(numbers < 0, 0.0, 1 / (np.maximum(numbers.astype(np.float64), smallest) + offset))

    def grid(self, low: float, high: float, count: int) -> Array:
        """Return `count` numbers from low to high, evenly spaced in the number or its logarithm."""
        if not self.log:
            return np.linspace(low, high, count)
        start, end = (math.log(float(number) + self.log[1]) for number in (low, high))
        return np.asarray(np.clip(np.exp(np.linspace(start, end, count)) - self.log[1], low, high))

    def moment(self, value: float) -> np.datetime64:
        """Return the date that is `value` days after `origin`."""
        return np.datetime64(self.origin, "us") + np.timedelta64(round(value * _DAY_US), "us")


def numbers_rows(name: str, cells: NDArray[Any]) -> bool:
    """Return True for a column of different integers that is named like an identifier."""
    is_named = cells.dtype.kind in "iu" and _IDENTIFIER.search(name)
    return bool(is_named and 1 < len(cells) == len(np.unique(cells)))


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


def find_kinds(
    X: Any, categorical: object, ordered: object, names: Sequence[str] | None, periodic: Mapping[Any, float] | None,
    gaps: bool | Array,
) -> tuple[Column, ...]:  # fmt: skip
    """Return the columns' kinds, () if all are numbers. `gaps`: False, or the rows' weights if cells may be missing."""
    if hasattr(X, "tocsr"):
        return ()  # sparse: an error when arrays are checked
    X = _indexed(X)
    if len(X.shape) != 2:
        return ()  # also an error then
    count = int(X.shape[1])
    unordered = _mask("categorical_features", categorical, count, names)
    in_order = _mask("ordered_features", ordered, count, names)
    if duplicates := np.flatnonzero(unordered & in_order).tolist():
        label = label_of(duplicates[0], names)
        raise ValueError(
            f"ordered_features: got {label}, which is in categorical_features too; expected it in only one"
        )
    periods, declared = _periods(periodic or {}, count, names), unordered | in_order
    if duplicates := [j for j in periods if declared[j]]:
        label = label_of(duplicates[0], names)
        raise ValueError(f"periodic_features: got {label}, which is a category too; expected one kind")
    has_gaps = gaps is not False
    if not (_is_frame(X) or declared.any() or periods or has_gaps or X.dtype.kind == "M"):
        for j in range(count):
            if texts := [cell for cell in X[:, j].tolist() if isinstance(cell, str | date) and not is_number(cell)]:
                hint = "; a pipeline passes frames with set_output(transform='pandas')"
                raise ValueError(_no_number(texts[0], label_of(j, names)) + hint)
        return ()
    result = []
    for j in range(count):
        cells = _cells(X, j)
        is_typed = cells.levels is not None and not declared[j]
        if j in periods:
            if cells.values.dtype.kind == "M" or text_dates(cells.values) is not None:
                raise ValueError(
                    f"periodic_features: got {label_of(j, names)}, which holds dates; expected numbers, such as the "
                    "day of the year"
                )
            result.append(Column("periodic", (periods[j],)))
        elif in_order[j] or (is_typed and cells.ordered and _is_dtype(ordered)):
            result.append(Column("ordered", _ordered_levels(cells, label_of(j, names))))
        elif not declared[j] and cells.levels is None and (dates := text_dates(cells.values)) is not None:
            result.append(_date_column(dates))
        elif unordered[j] or (_is_dtype(categorical) and (is_typed or _holds_text(cells, label_of(j, names)))):
            result.append(Column("category", _levels(cells.values, label_of(j, names))))
        elif cells.values.dtype.kind == "M":
            result.append(_date_column(cells.values))
        else:
            result.append(Column(origin="bool" if _holds_flags(cells.values) else ""))
    if has_gaps:
        values = [_encode(_cells(X, j).values, column, label_of(j, names)) for j, column in enumerate(result)]
        result = _with_gaps(result, values, names, np.broadcast_to(gaps, len(values[0])))
    if not all(column == Column() for column in result):
        return tuple(result)
    for j in range(count):  # an error names the column
        if (raw := _cells(X, j).values).dtype.kind not in "biuf":
            _encode(raw, Column(), label_of(j, names))
    return ()


def _date_column(dates: NDArray[Any]) -> Column:
    known = dates[~np.isnat(dates)]
    first = known.min() if len(known) else np.datetime64("1970-01-01")
    return Column("date", origin=str(first.astype("datetime64[us]")))


def text_dates(values: NDArray[Any]) -> NDArray[np.datetime64] | None:
    """Return texts as dates if all are full dates in ISO 8601, such as 2020-01-31, or missing; else None."""
    cells = [None if is_missing(cell) else cell for cell in values.tolist()] if values.dtype.kind in "OU" else []
    texts = [cell for cell in cells if cell is not None]
    if not texts or not all(map(is_iso_date, texts)):
        return None
    return np.array(cells, "datetime64[us]")


def is_iso_date(cell: object) -> bool:
    """Return True for a text that is a full date in ISO 8601."""
    if not isinstance(cell, str) or not _ISO_DATE.fullmatch(cell):
        return False
    try:
        return np.datetime64(cell) is not None
    except ValueError:  # such as 31 February
        return False


def _with_gaps(
    columns: Sequence[Column], values: Sequence[Array], names: Sequence[str] | None, weight: Array
) -> list[Column]:
    """Return the columns with a value for missing cells (medians by `weight`), and then the indicators."""
    result, indicators = [], []
    for j, (column, cells) in enumerate(zip(columns, values, strict=True)):
        gaps = np.isnan(cells)
        if column.kind in ("number", "date"):
            column = column._replace(levels=(median(cells[~gaps], weight[~gaps]),))
            indicators += [Column("category", ("known", "missing"), str(j))] * bool(gaps.any())
        elif column.kind == "category" and gaps.any():
            column = column._replace(levels=(*column.levels, MISSING))
        elif gaps.any():
            raise ValueError(
                f"X: got {gaps.sum()} missing cells in {label_of(j, names)}, which is {column.kind}; expected none. "
                "missing='indicator' is for numbers, dates and categories without an order"
            )
        result.append(column)
    return [*result, *indicators]


def median(values: Array, weight: Array) -> float:
    """Return the median of values repeated by weight; 0 without values."""
    order = np.argsort(values, kind="stable")
    order = order[weight[order] > 0]
    if not len(order):
        return 0.0
    below = np.cumsum(weight[order], dtype=np.float64)
    low, high = (np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right"))
    return float((values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2)


def refill_cells(x: Array, columns: Sequence[Column], weight: Array | None = None) -> tuple[Array, tuple[Column, ...]]:
    """Return rows from `encode_cells` with medians in missing cells, and the columns; with `weight`, new medians."""
    x, result = x.copy(), list(columns)
    for j, gap in enumerate(columns):
        if gap.is_gap:
            missing_rows, position = x[:, j] == 1, int(gap.origin)
            if weight is not None:
                result[position] = columns[position]._replace(
                    levels=(median(x[~missing_rows, position], weight[~missing_rows]),)
                )
            x[missing_rows, position] = result[position].levels[0]
    return x, tuple(result)


def _holds_text(cells: _Cells, label: str) -> bool:
    """Return True for a column of few different texts; raise for many, such as names or identifiers."""
    if cells.levels is not None or cells.values.dtype.kind != "O":
        return False
    filled = [cell for cell in cells.values.tolist() if not is_missing(cell)]
    if not any(isinstance(cell, str) and not is_number(cell) for cell in filled):
        return False
    if any(not isinstance(cell, str) for cell in filled):
        return False  # an error when cells become numbers
    kinds = (
        ("numbers", "numeric", is_number),
        ("dates", "datetime", is_iso_date),
        ("dates", "datetime", _OTHER_DATE.match),
    )
    for kind, function, is_of_kind in kinds:
        count = sum(map(bool, map(is_of_kind, filled)))
        if len(filled) / 2 < count < len(filled):
            rows = enumerate(cells.values.tolist())
            row, text = next((row, cell) for row, cell in rows if not (is_missing(cell) or is_of_kind(cell)))
            raise ValueError(
                f"X: got {text!r} in row {row} of {label}, where {count} of {len(filled)} texts are {kind}; expected "
                f"{kind} (use pandas.to_{function}(column, errors='coerce') and missing='indicator'), or the column in "
                "categorical_features"
            )
    if all(map(_OTHER_DATE.match, filled)):
        no_date = next(cell for cell in filled if not is_iso_date(cell))
        raise ValueError(
            f"X: got {no_date!r} in {label}, text that looks like a date; expected dates such as 2020-01-31, or by "
            "pandas.to_datetime(column), or the column in categorical_features"
        )
    count = len(set(filled))
    if count > min(MOST_LEVELS, max(2, len(filled) // 2)):
        raise ValueError(
            f"X: got {count} different texts in {len(filled)} rows of {label}, such as {filled[0]!r}; expected few: "
            "leave the column out, or name it in categorical_features"
        )
    return True


def _holds_flags(values: NDArray[Any]) -> bool:
    cells = values.tolist() if values.dtype.kind == "O" else []
    flags = [cell for cell in cells if not is_missing(cell)]
    return values.dtype.kind == "b" or bool(flags and all(isinstance(cell, bool) for cell in flags))


def _periods(setting: Mapping[Any, float], size: int, names: Sequence[str] | None) -> dict[int, float]:
    """Return the periodic columns, {column position: period}."""
    if not isinstance(setting, Mapping):
        raise ValueError(
            f"periodic_features: got {setting!r}; expected columns with their periods, such as {{'hour': 24}}"
        )
    result = {}
    for name, period in setting.items():
        if not (is_number(period) and 0 < float(period) < math.inf):
            raise ValueError(f"periodic_features: got the period {period!r} of {name!r}; expected a positive number")
        position = int(_mask("periodic_features", [name], size, names).argmax())
        result[position] = float(period)
    return result


def encode_cells(X: Any, columns: Sequence[Column], names: Sequence[str] | None) -> Array:
    """Return X (n, d) as floats: NaN for a missing cell in a column without any in fit, −1 for an unseen category.

    The dtype is float32 if a column is float32 and float32 can hold all numbers (categories and bools do not count). A
    number between two ordered levels gets an index between theirs, and beyond the last level the last index.
    """
    X, data_columns = _indexed(X), [column for column in columns if not column.is_gap]
    cells = [(_cells(X, j).values, column) for j, column in enumerate(data_columns)]
    result = [_encode(values, column, label_of(j, names)) for j, (values, column) in enumerate(cells)]
    dtypes = [values.dtype for values, column in cells if not (column.is_category or column.is_flag)]
    is_float32 = np.dtype(np.float32) in dtypes and all(np.can_cast(dtype, np.float32) for dtype in dtypes)
    positions = [int(column.origin) for column in columns[len(data_columns) :]]
    gaps = [np.isnan(result[j]).astype(np.float64) for j in positions]
    for j in positions:
        result[j][np.isnan(result[j])] = data_columns[j].levels[0]
    return np.column_stack([*result, *gaps]).astype(np.float32 if is_float32 else np.float64, copy=False)


def missing(x: Array, columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Return which cells of rows from `encode_cells` are missing, (n, d without indicators)."""
    data_columns = [column for column in columns if not column.is_gap]
    result = np.isnan(x[:, : len(data_columns)])
    for j, column in enumerate(data_columns):
        if MISSING in column.levels:
            result[:, j] |= x[:, j] == column.levels.index(MISSING)
    for j, gap in enumerate(columns[len(data_columns) :], start=len(data_columns)):
        result[:, int(gap.origin)] |= x[:, j] == 1
    return result


def without(x: Array, removed: NDArray[np.bool_], columns: Sequence[Column]) -> Array:
    """Return rows from `encode_cells` as if the cells of the columns `removed`, (d,) booleans, were missing."""
    result = x.copy()
    for j in np.flatnonzero(removed).tolist():
        result[:, j] = columns[j].levels.index(MISSING) if columns[j].is_category else np.nan
    for j, gap in enumerate(columns):
        if gap.is_gap and removed[int(gap.origin)]:
            result[:, int(gap.origin)], result[:, j] = columns[int(gap.origin)].levels[0], 1
    return result


def warn_of_unseen(query: Array, columns: Sequence[Column], names: Sequence[str] | None) -> None:
    """Warn of categories that were not in fit, and of missing cells in columns that had none."""
    for j, column in enumerate(columns):
        if (gaps := np.isnan(query[:, j])).any():
            warnings.warn(
                f"X: got {gaps.sum()} of {len(query)} rows with a missing cell in {label_of(j, names)}, which had none "
                f"in fit: {'it is equally far from every row' if column.is_category else 'the median is used'}, and "
                "intervals are wider",
                UserWarning,
                stacklevel=4,
            )
        if column.kind == "category" and (unseen := query[:, j] == -1).any():
            warnings.warn(
                f"X: got {unseen.sum()} of {len(query)} rows with a category in {label_of(j, names)} that was not in "
                "fit; it is equally far from every row",
                stacklevel=4,
            )


def _encode(values: NDArray[Any], column: Column, label: str) -> Array:
    if column.kind == "date":
        if values.dtype.kind != "M" and all(map(is_missing, values.tolist())):
            return np.full(len(values), np.nan)
        dates = values if values.dtype.kind == "M" else text_dates(values)
        if dates is None:
            cells = enumerate(values.tolist())
            row, cell = next((row, cell) for row, cell in cells if not (is_missing(cell) or is_iso_date(cell)))
            raise ValueError(f"X: got {cell!r} in row {row} of {label}; expected dates, as in fit")
        days = (dates - np.datetime64(column.origin, "us")).astype("timedelta64[us]")
        return np.asarray(np.where(np.isnat(days), np.nan, days.astype(np.int64) / _DAY_US))
    if not column.is_category:
        try:
            return values.astype(np.float64, copy=True)
        except (TypeError, ValueError):
            unreadable = next(value for value in values.tolist() if not is_number(value))
            raise ValueError(_no_number(unreadable, label)) from None
    index = _indices(column.levels)
    missing_level = column.levels.index(MISSING) if MISSING in column.levels else math.nan
    result = np.array([missing_level if is_missing(value) else index(value) for value in values.tolist()], np.float64)
    unseen = np.flatnonzero(result == -1)
    if column.kind == "ordered" and len(unseen):
        if any(isinstance(level, str) for level in column.levels) or not all(map(is_number, values[unseen].tolist())):
            raise ValueError(f"X: got {values[unseen[0]]!r} in {label}; expected one of {list_some(column.levels)}")
        levels = np.array(column.levels, np.float64)
        result[unseen] = np.interp(values[unseen].astype(np.float64), levels, np.arange(len(levels)))
    return result


def _no_number(cell: object, label: str) -> str:
    hints = {"total_seconds": ", by .dt.total_seconds()", "to_timestamp": ", dates, by .dt.to_timestamp()"}
    hint = "".join(hint for name, hint in hints.items() if hasattr(cell, name))
    return f"X: got {cell!r} in {label}; expected numbers{hint}, or the column in categorical_features"


def _indices(levels: Sequence[Level]) -> Callable[[Level], int]:
    """Return a function from a level to its index, −1 if unknown.

    If no level is equal, the only level with the same number is taken, 1 for "1": in another file a column of numbers
    is text if one cell is not a number.
    """
    exact = {level: index for index, level in enumerate(levels)}
    counts = Counter(map(_as_number, levels))
    by_number = {_as_number(level): index for level, index in exact.items() if counts[_as_number(level)] == 1}
    return lambda level: exact[level] if level in exact else by_number.get(_as_number(level), -1)


def _as_number(level: Level) -> float | str:
    """Return a level as a number, or else its text."""
    try:
        return float(level)
    except (TypeError, ValueError, OverflowError):
        return str(level)


def _levels(values: NDArray[Any], label: str) -> tuple[Level, ...]:
    """Return the levels that occur, sorted: numbers, then texts."""
    cells = (value.item() if isinstance(value, np.generic) else value for value in values.tolist())
    result = set(_checked([value for value in cells if not is_missing(value)], label))
    return tuple(sorted(result, key=lambda value: (isinstance(value, str), value)))


def _checked(levels: Sequence[Any], label: str) -> Sequence[Level]:
    if invalid := [level for level in levels if not isinstance(level, str | int | float)]:
        raise ValueError(f"X: got {invalid[0]!r} in {label}; expected texts or numbers as categories")
    return levels


def _ordered_levels(cells: _Cells, label: str) -> tuple[Level, ...]:
    if cells.levels is not None and cells.ordered:
        return tuple(_checked(cells.levels, label))
    levels = _levels(cells.values, label)
    if any(isinstance(level, str) for level in levels):
        raise ValueError(
            f"ordered_features: got {label}, which holds text ({list_some(levels)}) that has no order; expected "
            "numbers, or a type with an order, such as pandas.CategoricalDtype(['low', 'high'], ordered=True)"
        )
    return levels


def _cells(X: Any, j: int) -> _Cells:
    if hasattr(X, "iloc"):
        return _of_pandas(X.iloc[:, j])
    if hasattr(X, "to_series"):  # polars
        import pyarrow  # type: ignore[import-untyped]

        return _of_arrow(pyarrow.chunked_array([X.to_series(j).to_arrow()]))
    if hasattr(X, "column"):
        return _of_arrow(X.column(j))
    dates = dates_in(X[:, j]) if X.dtype.kind in "OM" else None
    return _Cells(X[:, j] if dates is None else dates)


def _of_pandas(series: Any) -> _Cells:
    kind = series.dtype
    if getattr(kind, "kind", "") == "M":
        return _Cells(series.to_numpy(dtype="datetime64[us]"))
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return _Cells(series.to_numpy())
    cells = [None if gap else value for value, gap in zip(series.tolist(), series.isna(), strict=True)]
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
    """Return the cells as a one-dimensional array, also if they are lists of equal length; dates as datetime64."""
    values = np.fromiter(cells, object, len(cells))
    dates = dates_in(values)
    return values if dates is None else dates


def _indexed(X: Any) -> Any:
    """Return a frame as it is, and anything else as an array."""
    if hasattr(X, "tocsr"):
        raise TypeError("X: got a sparse matrix with categories or dates; expected an array or a frame")
    return X if _is_frame(X) else np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)


def _is_frame(X: Any) -> bool:
    return any(hasattr(X, name) for name in ("iloc", "to_series", "column_names"))


def _mask(name: str, setting: object, size: int, names: Sequence[str] | None) -> NDArray[np.bool_]:
    mask = np.zeros(size, bool)
    if setting is None or _is_dtype(setting):
        return mask
    requested = np.asarray(setting, dtype=object)
    if requested.ndim != 1:
        raise ValueError(
            f"{name}: got {setting!r}; expected 'from_dtype', None, a list of names or positions, or a mask"
        )
    if requested.size and all(isinstance(item, bool | np.bool_) for item in requested):
        if len(requested) != size:
            raise ValueError(f"{name}: got a mask of {len(requested)}; expected {size}, one for each column of X")
        return requested.astype(bool)
    for item in requested:
        if isinstance(item, str):
            if names is None or item not in names:
                available = "no names" if names is None else list_some(list(names))
                raise ValueError(f"{name}: got {item!r}; expected a column of X, which has {available}")
            item = list(names).index(item)
        elif not (isinstance(item, Integral) and -size <= int(item) < size):
            raise ValueError(f"{name}: got {item!r}; expected a name, or a position below {size}, the columns of X")
        mask[int(item)] = True
    return mask


def _is_dtype(setting: object) -> bool:
    return isinstance(setting, str) and setting == "from_dtype"


def is_missing(value: object) -> bool:
    """Return True for None, NaN, NaT and pandas.NA."""
    try:
        return value is None or (not isinstance(value, np.ndarray) and bool(value != value))
    except TypeError:  # pandas.NA is neither equal nor different
        return True


def format_number(value: float) -> str:
    """Return a number as text: four digits, from 10⁴ on rounded to an integer, and from 10¹² on with an exponent."""
    if not 1e4 <= abs(value) < 1e12:
        return f"{value:.4g}"
    return f"{value if value == round(value) else float(f'{value:.4g}'):,.0f}"


def is_number(value: object) -> bool:
    """Return True for a number, a text that reads as one, and None."""
    try:
        float(value)  # type: ignore[arg-type]  # of any type
    except (TypeError, ValueError):
        return value is None
    return True


def label_of(j: int, names: Sequence[str] | None) -> str:
    """Return "column" and a column's name, else its position, for a message."""
    return f"column {names[j]!r}" if names is not None else f"column {j}"


def list_some(levels: Sequence[object]) -> str:
    """Return the first few levels or names as text, for a message."""
    return ", ".join(reprlib.repr(level) for level in levels[:_NAMED]) + (", …" if len(levels) > _NAMED else "")
