"""Tables in files: reading typed columns by name, and writing the table with added columns."""

from __future__ import annotations

import csv
import difflib
import io
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute, float64, parquet, string, types

from dikkat.errors import InputError
from dikkat.regression import dialects
from dikkat.regression.columns import MOST_LEVELS, is_iso_date, is_number, numbers_rows
from dikkat.regression.dialects import DELIMITERS, Form, FormOptions, Text, holds_numbers
from dikkat.regression.joined import Array
from dikkat.storage.files import write_whole

_PARQUET = ".parquet"
_ENDINGS = ".csv, .tsv, .txt, .dat (each may be followed by .gz) or .parquet; save a sheet of a workbook as CSV"
_NAMED = 12  # columns in a message, at most
_CELLS = 3  # cells in a message, at most


class Table:
    """A table from a file of text or Parquet, a folder of Parquet files, or -, text from standard input.

    `suffix` is ".csv", ".tsv", ".txt", ".dat" or ".parquet"; `dialects.Text` explains the other attributes.
    """

    def __init__(self, path: str | os.PathLike[str], options: FormOptions = FormOptions()) -> None:  # noqa: B008  # a constant
        self.path = Path(path)
        self.suffix = _guess_suffix(self.path)
        self.form, self.columns, self.typed, self._doubts, self._identifiers = _read(self.path, self.suffix, options)
        if not self.columns.num_rows:
            raise InputError(f"{self.path}: got no rows; expected at least one")

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.columns.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns.column_names)

    def numeric(self) -> list[str]:
        """Return the names of the columns of numbers and booleans."""
        return [field.name for field in self.typed.schema if holds_numbers(field.type)]

    def kind(self, name: str) -> str:
        """Return the kind of a column: "number", "date", or "category"."""
        kind = self._typed_column(name).type
        return "number" if holds_numbers(kind) else "date" if _holds_dates(kind) else "category"

    def holds_text(self, name: str) -> bool:
        """Return True for a column of text."""
        return _holds_text(self._typed_column(name).type)

    def usable(self, *used: str) -> tuple[list[str], dict[str, str]]:
        """Return the columns to predict from, without `used`, and {other column: reason}.

        Usable are numbers, dates, and texts with at most 50 different values that occur twice or more on average.
        """
        result, left_out = [], {}
        for index, name in enumerate(self.names):
            if name in used:
                continue
            if fault := self._find_fault(index) or self._identifier_reason(index):
                left_out[name] = fault
            else:
                result.append(name)
        return result, left_out

    def _identifier_reason(self, index: int) -> str:
        """Return a reason to leave out a column of distinct integers that is named like an identifier, else ""."""
        column = self.typed.column(index)
        is_identifier = types.is_integer(column.type) and numbers_rows(self.names[index], column.to_numpy())
        return "numbers the rows" if is_identifier else ""

    def check_usable(self, name: str) -> None:
        """Raise for a column that cannot be used without declaring its type (category, ordered, number)."""
        self.check_once(name)
        if fault := self._find_fault(self.names.index(name)):
            hint = f", or --categorical {name} too" if self.holds_text(name) else ""
            raise InputError(
                f"{self.path}: column {name!r} {fault}; expected numbers, dates, or text with few different "
                f"values{hint}"
            )

    def _find_fault(self, index: int) -> str:
        """Return the reason why a column cannot be used without declaring its type, else ""."""
        column, name = self.typed.column(index), self.names[index]
        if not name:
            return "has no name"
        if column.null_count == len(column):
            return "is empty"
        if holds_numbers(column.type) or _holds_dates(column.type):
            return ""
        content = _Content.of(column)
        if index not in self._identifiers and (content.numbers or index in self._doubts):
            raise InputError(
                f"{self.path}: column {name!r} {self._doubts.get(index, content)}; correct it (write dates as "
                f"2020-01-31), leave it out with --without, or take its cells as categories with --categorical {name}"
                + content.na_hint
            )
        count, rows = len({value for _, value in content.cells}) if _holds_text(column.type) else 0, len(content.cells)
        if not 1 < count <= min(MOST_LEVELS, rows // 2):
            if index in self._identifiers:
                return f"holds identifiers ({_list_cells(content.cells[:1])})"
            return f"{content}, the same in all rows" if count == 1 else str(content)
        return ""

    def numbers(self, *names: str, missing: bool = False) -> NDArray[np.float64]:
        """Return columns of finite numbers, (rows, columns); with `missing`, NaN for missing cells."""
        return np.column_stack([self._column(name, missing) for name in names])

    def frame(
        self, kinds: Mapping[str, str], missing: bool, orders: Mapping[str, list[str]], texts: Collection[str]
    ) -> pyarrow.Table:
        """Return columns as `kinds`; `orders` has the levels of ordered categories, `texts` are kept as text."""

        def convert(name: str, kind: str) -> Any:
            column = self._typed_column(name)
            if kind in ("number", "periodic"):
                numbers = self._column(name, missing)
                return column if types.is_boolean(column.type) else pyarrow.array(numbers)
            if kind == "date":
                if not _holds_dates(column.type):
                    raise InputError(f"{self.path}: column {name!r} {_Content.of(column)}; expected dates")
                result = column.cast(pyarrow.timestamp("us", getattr(column.type, "tz", None)), safe=False)
            else:
                is_text = _holds_text(column.type) or (name in texts and self.kind(name) != "category")
                result = dialects.clean_text(column.cast(pyarrow.string())) if is_text else column
            missing_rows = np.flatnonzero(np.asarray(result.is_null()))
            if len(missing_rows) and not missing:
                raise _cell_error(self.path, name, missing_rows, len(result), "missing")
            return self._ordered(name, result, orders[name]) if name in orders else result

        return pyarrow.table({name: convert(name, kind) for name, kind in kinds.items()})

    def _ordered(self, name: str, column: Any, levels: list[str]) -> Any:
        """Return a column as categories with ordered levels."""
        cells = [None if cell is None else str(cell) for cell in column.to_pylist()]
        if unknown := [cell for cell in cells if cell is not None and cell not in levels]:
            raise InputError(f"{self.path}: column {name!r} holds {unknown[0]!r}; expected one of {', '.join(levels)}")
        indices = pyarrow.array([None if cell is None else levels.index(cell) for cell in cells], pyarrow.int32())
        return pyarrow.DictionaryArray.from_arrays(indices, levels, ordered=True)

    def check_writable(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        """Raise if the table cannot be written to `path` with further columns."""
        if existing := [name for name in names if name in self.names]:
            raise InputError(f"{self.path}: there is a column {existing[0]!r} already; rename it, or leave it out")
        self._to_bytes(dict.fromkeys(names, np.zeros(1)), path, rows=1)

    def write(self, path: str | os.PathLike[str], added: Mapping[str, Array]) -> None:
        """Write the table with columns added on the right; text cells stay as they were."""
        write_whole(path, self._to_bytes(added, path))

    def _to_bytes(self, added: Mapping[str, Array], path: str | os.PathLike[str], rows: int | None = None) -> bytes:
        """Return the first rows with added columns as a file: typed for Parquet of a text, else the original cells."""
        is_typed = _suffix(Path(path)) == _PARQUET != self.suffix
        columns = (self.typed if is_typed else self.columns).slice(0, rows)
        for name, values in added.items():
            columns = columns.append_column(name, pyarrow.array(values, from_pandas=True))
        return _encode(path, columns, self.form)

    def _column(self, name: str, may_miss: bool = False) -> NDArray[np.float64]:
        column = self._typed_column(name)
        if not holds_numbers(column.type) and column.null_count < len(column):
            raise InputError(f"{self.path}: column {name!r} {_Content.of(column)}; expected numbers")
        # Not safe: integers above 2⁵³ are rounded.
        result = column.cast(float64(), safe=False).to_numpy()
        for fault, is_fault in (("infinite", np.isinf), ("missing", np.isnan)):
            faulty_rows = np.flatnonzero(is_fault(result))
            if len(faulty_rows) and not (may_miss and fault == "missing"):
                raise _cell_error(self.path, name, faulty_rows, len(result), fault)
        return np.asarray(result, np.float64)

    def _typed_column(self, name: str) -> Any:
        self.check_once(name)
        return self.typed.column(name)

    def check_once(self, name: str) -> None:
        """Raise unless exactly one column has this name."""
        count = self.names.count(name)
        if count > 1:
            raise InputError(f"{self.path}: {count} columns are called {name!r}; rename all but one")
        if not count:
            similar = difflib.get_close_matches(name, self.names, n=1)
            hint = f"; did you mean {similar[0]!r}?" if similar else "."
            available = ", ".join(self.names[:_NAMED]) + (", …" if len(self.names) > _NAMED else "")
            raise InputError(f"{self.path}: there is no column {name!r}{hint} There are: {available}")


def write_columns(path: str | os.PathLike[str], columns: Mapping[str, Array]) -> None:
    """Write columns as a table, whole or not at all."""
    table = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})
    write_whole(path, _encode(path, table, Form()))


def _suffix(path: Path) -> str:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if path.is_dir():
        return _PARQUET
    if suffix in DELIMITERS or (suffix == _PARQUET and path.suffix.lower() != ".gz"):
        return suffix
    raise InputError(f"{path}: got an unknown type of table; expected the ending {_ENDINGS}")


def _guess_suffix(path: Path) -> str:
    """Return a file's suffix by its name, else by its first bytes."""
    if path == dialects.STDIN:
        return ".csv"
    try:
        return _suffix(path)
    except InputError:
        if not path.is_file():  # a pipe can be read only once
            return ".csv"
        with path.open("rb") as file:
            return _PARQUET if file.read(4) == b"PAR1" else ".csv"


def _read(path: Path, suffix: str, options: FormOptions) -> Text:
    if path != dialects.STDIN:
        path.stat()  # its errors name the file
    if suffix == _PARQUET:
        # Without Arrow's threads, as in `dialects._parsed`: it starts one to read a file, but none for bytes.
        content = None if path.is_dir() else path.read_bytes()
        try:
            if content is None:
                columns = parquet.read_table(path, use_threads=False, pre_buffer=False)
            else:
                columns = parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
            columns = columns.rename_columns([" ".join(name.split()) for name in columns.column_names])
            return Text(Form(), columns, *dialects.with_dates(dialects.with_nulls(columns, options.na)))
        except (pyarrow.ArrowInvalid, OSError) as error:  # a damaged file raises OSError without its name
            raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from error
    return dialects.read(path, suffix, options)


def _cell_error(path: Path, name: str, rows: NDArray[np.intp], count: int, fault: str) -> InputError:
    remedy = "add --missing drop to leave such rows out, or fit with --missing indicator to use them"
    return InputError(
        f"{path}: column {name!r} has {len(rows):,} of {count:,} cells {fault}, the first in row {rows[0] + 1:,}; "
        + (remedy if fault == "missing" else "correct them")
    )


def _encode(path: str | os.PathLike[str], columns: pyarrow.Table, form: Form) -> bytes:
    suffix = _suffix(Path(path))
    try:
        if suffix == _PARQUET:
            content = io.BytesIO()
            parquet.write_table(columns, content)
            return content.getvalue()
        allowed, text = DELIMITERS[suffix], io.StringIO(newline="")
        delimiter = form.delimiter if form.delimiter in allowed else allowed[0]
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns.column_names)
        writer.writerows(zip(*_as_texts(columns, form.decimal), strict=True))
        return text.getvalue().encode(form.encoding)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: cannot be written as {suffix[1:]} ({error})") from error
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise InputError(
            f"{path}: cannot be written as {form.encoding}, the table's encoding, which has no {letter!r}; save the "
            "table as UTF-8"
        ) from error


def _as_texts(columns: pyarrow.Table, decimal: str) -> list[list[str | None]]:
    """Return the cells of each column as text, fractions with this decimal mark."""
    result = []
    for column in columns.columns:
        cells = column.cast(string())
        replaces_point = decimal != "." and types.is_floating(column.type)
        result.append((compute.replace_substring(cells, ".", decimal) if replaces_point else cells).to_pylist())
    return result


def _holds_dates(kind: Any) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _holds_text(kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


class _Content(NamedTuple):
    """The cells of a column that is not numeric."""

    kind: str  # "text", or pyarrow's name of the type
    cells: list[tuple[int, object]]  # (row, cell) of the cells that are not empty
    faults: list[tuple[int, object]]  # the cells that do not read as numbers, or as dates if most cells do

    @classmethod
    def of(cls, column: Any) -> _Content:
        """Return the content of a column; texts such as "NA" are missing."""
        if _holds_text(column.type):
            column = dialects.clean_text(column.cast(string()))
        cells = [(row, value) for row, value in enumerate(column.to_pylist(), start=1) if value is not None]
        faults = [(row, value) for row, value in cells if not is_number(str(value))]
        no_dates = [(row, value) for row, value in faults if not is_iso_date(value)]
        if no_dates and 2 * (len(faults) - len(no_dates)) > len(cells):
            faults = no_dates
        return cls("text" if _holds_text(column.type) else str(column.type), cells, faults)

    @property
    def numbers(self) -> bool:
        """True if most cells read as numbers, or most as dates."""
        return 2 * len(self.faults) < len(self.cells)

    @property
    def na_hint(self) -> str:
        """The option that makes the texts among numbers missing; "" if they are many."""
        texts = dict.fromkeys(str(cell) for _, cell in self.faults)
        are_few = self.numbers and 0 < len(texts) <= _CELLS
        return f"; if {' and '.join(map(repr, texts))} means a missing cell, add --text na={','.join(texts)}" * are_few

    def __str__(self) -> str:
        if not self.cells:
            return "is empty"
        if not self.faults:
            return f"holds numbers as {self.kind} ({_list_cells(self.cells[:1])})"
        if not self.numbers:
            return f"holds {self.kind} ({_list_cells(self.faults[:1])})"
        ellipsis = ", …" if len(self.faults) > _CELLS else ""
        count = f"in {len(self.faults):,} of {len(self.cells):,} cells"
        return f"holds {self.kind} {count} ({_list_cells(self.faults[:_CELLS])}{ellipsis})"


def _list_cells(cells: list[tuple[int, object]]) -> str:
    return ", ".join(f"{str(value)!r} in row {row:,}" for row, value in cells)
