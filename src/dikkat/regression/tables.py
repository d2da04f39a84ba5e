"""Tables in files: columns of numbers by their names, and columns added to what was read."""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute, float64, parquet, string, types

from dikkat.errors import InputError
from dikkat.regression import dialects
from dikkat.regression.columns import MOST_LEVELS, is_number
from dikkat.regression.dialects import DELIMITERS, Form, FormOptions, Text, holds_numbers
from dikkat.regression.joined import Array
from dikkat.storage.files import write_whole

_PARQUET = ".parquet"
_ENDINGS = ".csv, .tsv, .txt, .dat (each may be followed by .gz) or .parquet; save a sheet of a workbook as CSV"
_NAMED = 12  # most columns that a message lists
_IDENTIFIER = re.compile(r"(?i:^|[\W_])(?i:id|uuid)$|[a-z]I[dD]$|^(?i:index)$")
_CELLS = 3  # most cells that a message lists


class Table:
    """A table as its file has it: of text or Parquet, a folder of Parquet files, or -, text from standard input.

    Its `suffix` is ".csv", ".tsv", ".txt", ".dat" or ".parquet"; for all else `dialects.Text` has what is what.
    """

    def __init__(self, path: str | os.PathLike[str], options: FormOptions = FormOptions()) -> None:  # noqa: B008  # a constant
        self.path = Path(path)
        self.suffix = _kind(self.path)
        self.form, self.columns, self.typed, self._doubts, self._identifiers = _read(self.path, self.suffix, options)
        if not self.columns.num_rows:
            raise InputError(f"{self.path}: there are no rows in it; at least one is needed")

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.columns.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns.column_names)

    def numeric(self) -> list[str]:
        """The names of the columns that hold numbers, or yes and no, which count as 1 and 0."""
        return [field.name for field in self.typed.schema if holds_numbers(field.type)]

    def kind(self, name: str) -> str:
        """The kind of a column: "number", "date", or "category"."""
        kind = self._known(name).type
        return "number" if holds_numbers(kind) else "date" if _holds_dates(kind) else "category"

    def holds_text(self, name: str) -> bool:
        """True for a column of text."""
        return _holds_text(self._known(name).type)

    def usable(self, *used: str) -> tuple[list[str], dict[str, str]]:
        """The columns to predict from, without those that are used, and the others, with what they hold instead.

        Those are numbers, dates, and texts that are categories: at most 50 different ones, each there twice on average.
        """
        result, others = [], {}
        for index, name in enumerate(self.names):
            if name in used:
                continue
            if fault := self._fault(index) or self._numbered(index):
                others[name] = fault
            else:
                result.append(name)
        return result, others

    def _numbered(self, index: int) -> str:
        """The reason why a column of different whole numbers that is called an identifier tells nothing."""
        column = self.typed.column(index)
        if not types.is_integer(column.type) or not _IDENTIFIER.search(self.names[index]):
            return ""
        return "numbers the rows" if 1 < compute.count_distinct(column).as_py() == len(column) else ""

    def check_usable(self, name: str) -> None:
        """Refuse a column whose type must be declared (category, ordered, number) before it can be used."""
        self.check_once(name)
        if fault := self._fault(self.names.index(name)):
            named = f", or --categorical {name} too" if self.holds_text(name) else ""
            raise InputError(
                f"{self.path}: column {name!r} {fault}; expected numbers, dates or few different texts{named}"
            )

    def _fault(self, index: int) -> str:
        """The reason why a column cannot be used without a declaration; nothing where it can."""
        column, name = self.typed.column(index), self.names[index]
        if not name:
            return "has no name"
        if column.null_count == len(column):
            return "is empty"
        if holds_numbers(column.type) or _holds_dates(column.type):
            return ""
        held = _Held.of(column)
        if index not in self._identifiers and (held.numbers or index in self._doubts):
            raise InputError(
                f"{self.path}: column {name!r} {self._doubts.get(index, held)}; correct it, leave it out with "
                f"--without, or take its cells as categories with --categorical {name}"
            )
        count, rows = len({value for _, value in held.cells}) if _holds_text(column.type) else 0, len(held.cells)
        if not 1 < count <= min(MOST_LEVELS, rows // 2):
            if index in self._identifiers:
                return f"holds identifiers ({_shown(held.cells[:1])})"
            return f"{held}, the same in all rows" if count == 1 else str(held)
        return ""

    def numbers(self, *names: str, missing: bool = False) -> NDArray[np.float64]:
        """Columns of finite numbers, (rows, columns); with `missing` NaN for cells that lack."""
        return np.column_stack([self._column(name, missing) for name in names])

    def frame(
        self, kinds: Mapping[str, str], missing: bool, orders: Mapping[str, list[str]], texts: Collection[str]
    ) -> pyarrow.Table:
        """Columns by the kinds that they are taken as; `orders` has levels of ordered texts, `texts` are no numbers."""

        def made(name: str, kind: str) -> Any:
            if kind == "number":
                return pyarrow.array(self._column(name, missing))
            column = self._known(name)
            if kind == "date":
                if not _holds_dates(column.type):
                    raise InputError(f"{self.path}: column {name!r} {_Held.of(column)}; dates are needed")
                result = column.cast(pyarrow.timestamp("us", getattr(column.type, "tz", None)), safe=False)
            else:
                is_text = _holds_text(column.type) or (name in texts and self.kind(name) != "category")
                result = dialects.clean_text(column.cast(pyarrow.string())) if is_text else column
            lost = np.flatnonzero(np.asarray(result.is_null()))
            if len(lost) and not missing:
                raise _lacking(self.path, name, lost, len(result), "missing")
            return self._ordered(name, result, orders[name]) if name in orders else result

        return pyarrow.table({name: made(name, kind) for name, kind in kinds.items()})

    def _ordered(self, name: str, column: Any, levels: list[str]) -> Any:
        """A column as categories with these levels in this order."""
        cells = [None if cell is None else str(cell) for cell in column.to_pylist()]
        if new := [cell for cell in cells if cell is not None and cell not in levels]:
            raise InputError(f"{self.path}: column {name!r} holds {new[0]!r}; expected one of {', '.join(levels)}")
        indices = pyarrow.array([None if cell is None else levels.index(cell) for cell in cells], pyarrow.int32())
        return pyarrow.DictionaryArray.from_arrays(indices, levels, ordered=True)

    def check_writable(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        """Refuse columns that could not be written, before there is anything to put in them."""
        if there := [name for name in names if name in self.names]:
            raise InputError(f"{self.path}: there is a column {there[0]!r} already; rename it, or leave it out")
        self._with(dict.fromkeys(names, np.zeros(1)), path, rows=1)

    def write(self, path: str | os.PathLike[str], more: Mapping[str, Array]) -> None:
        """Write the table, with columns added on the right, whole or not at all; text is written as it came."""
        write_whole(path, self._with(more, path))

    def _with(self, more: Mapping[str, Array], path: str | os.PathLike[str], rows: int | None = None) -> bytes:
        """The first rows with columns added, as a file's bytes: in Parquet with their types, else as they came."""
        columns = (self.typed if _suffix(Path(path)) == _PARQUET else self.columns).slice(0, rows)
        for name, values in more.items():
            columns = columns.append_column(name, pyarrow.array(values, from_pandas=True))
        return _encoded(path, columns, self.form)

    def _column(self, name: str, lacking: bool = False) -> NDArray[np.float64]:
        column = self._known(name)
        if not holds_numbers(column.type) and column.null_count < len(column):
            raise InputError(f"{self.path}: column {name!r} {_Held.of(column)}; numbers are needed")
        # Not safe: integers past 2^53 are rounded, as in any computation with them.
        result = column.cast(float64(), safe=False).to_numpy()
        missing = np.flatnonzero(np.isinf(result) if lacking else ~np.isfinite(result))
        if len(missing):
            raise _lacking(self.path, name, missing, len(result), "missing, NaN or infinite")
        return np.asarray(result, np.float64)

    def _known(self, name: str) -> Any:
        """The cells of the only column of this name."""
        self.check_once(name)
        return self.typed.column(name)

    def check_once(self, name: str) -> None:
        """Refuse a name that no column has, or several."""
        times = self.names.count(name)
        if times > 1:
            raise InputError(f"{self.path}: {times} columns are called {name!r}; rename all but one")
        if not times:
            near = difflib.get_close_matches(name, self.names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            shown = ", ".join(self.names[:_NAMED]) + (", …" if len(self.names) > _NAMED else "")
            raise InputError(f"{self.path}: there is no column {name!r}{meant} There are: {shown}")


def write_columns(path: str | os.PathLike[str], columns: Mapping[str, Array]) -> None:
    """Write columns as a table, whole or not at all."""
    table = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})
    write_whole(path, _encoded(path, table, Form()))


def _suffix(path: Path) -> str:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if path.is_dir():
        return _PARQUET
    if suffix in DELIMITERS or (suffix == _PARQUET and path.suffix.lower() != ".gz"):
        return suffix
    raise InputError(f"{path}: got a name that does not say what kind of table it is; expected the ending {_ENDINGS}")


def _kind(path: Path) -> str:
    """The suffix of what a file is by its name, or by its first bytes where that says nothing."""
    if path == dialects.STDIN:
        return ".csv"
    try:
        return _suffix(path)
    except InputError:
        if not path.is_file():  # a pipe, which can be read once
            return ".csv"
        with path.open("rb") as file:
            return _PARQUET if file.read(4) == b"PAR1" else ".csv"


def _read(path: Path, suffix: str, options: FormOptions) -> Text:
    if path != dialects.STDIN:
        path.stat()  # whose errors name the file
    if suffix == _PARQUET:
        # Without Arrow's threads, as in `_parsed`: to read a file itself it would start one, but not to read bytes.
        content = None if path.is_dir() else path.read_bytes()
        try:
            if content is None:
                columns = parquet.read_table(path, use_threads=False, pre_buffer=False)
            else:
                columns = parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
            columns = columns.rename_columns([" ".join(name.split()) for name in columns.column_names])
            return Text(Form(), columns, dialects.with_nulls(columns, options.na), {})
        except (pyarrow.ArrowInvalid, OSError) as error:  # OSError where it is damaged, without the file's name
            raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from error
    return dialects.read(path, suffix, options)


def _lacking(path: Path, name: str, rows: NDArray[np.intp], count: int, what: str) -> InputError:
    return InputError(
        f"{path}: column {name!r} has {len(rows):,} of {count:,} values {what}, the first in row {rows[0] + 1:,}; "
        "take missing ones as they are with --missing indicator, leave them out with --missing drop, or fill them in"
    )


def _encoded(path: str | os.PathLike[str], columns: pyarrow.Table, form: Form) -> bytes:
    """A table as its file's bytes."""
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
            f"{path}: cannot be written as {form.encoding}, as the table came, since that has no {letter!r}; save the "
            "table as UTF-8"
        ) from error


def _as_texts(columns: pyarrow.Table, decimal: str) -> list[list[str | None]]:
    """The cells of each column, of fractions with this mark before their decimals."""
    result = []
    for column in columns.columns:
        cells = column.cast(string())
        is_marked = decimal != "." and types.is_floating(column.type)
        result.append((compute.replace_substring(cells, ".", decimal) if is_marked else cells).to_pylist())
    return result


def _holds_dates(kind: Any) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _holds_text(kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


class _Held(NamedTuple):
    """The cells of a column that does not hold numbers."""

    kind: str  # the type of its cells, as pyarrow calls it but for text
    cells: list[tuple[int, object]]  # (row, cell) of those that are not empty
    faults: list[tuple[int, object]]  # of these, those that do not read as numbers

    @classmethod
    def of(cls, column: Any) -> _Held:
        """The cells of a column; text that stands for nothing is missing."""
        if _holds_text(column.type):
            column = dialects.clean_text(column.cast(string()))
        cells = [(row, value) for row, value in enumerate(column.to_pylist(), start=1) if value is not None]
        faults = [(row, value) for row, value in cells if not is_number(str(value))]
        return cls("text" if _holds_text(column.type) else str(column.type), cells, faults)

    @property
    def numbers(self) -> bool:
        """True where most cells read as numbers."""
        return 2 * len(self.faults) < len(self.cells)

    def __str__(self) -> str:
        if not self.cells:
            return "is empty"
        if not self.faults:
            return f"holds numbers as {self.kind} ({_shown(self.cells[:1])})"
        if not self.numbers:
            return f"holds {self.kind} ({_shown(self.faults[:1])})"
        more = ", …" if len(self.faults) > _CELLS else ""
        some = f"in {len(self.faults):,} of {len(self.cells):,} cells"
        return f"holds {self.kind} {some} ({_shown(self.faults[:_CELLS])}{more})"


def _shown(cells: list[tuple[int, object]]) -> str:
    return ", ".join(f"{str(value)!r} in row {row:,}" for row, value in cells)
