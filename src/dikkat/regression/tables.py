"""Tables in files: columns of numbers by their names, and columns added to what was read."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError
from dikkat.regression.joined import Array
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

__all__ = ["Table", "write_columns"]

_DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}  # those allowed, the usual one first
GUESSED = "cp1252"
"""The encoding that nothing in a file confirms."""
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_PARQUET = ".parquet"
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ENDINGS = ".csv, .tsv (either may be followed by .gz) and .parquet"
_NAMED = 12  # most columns that a message lists
_CELLS = 3  # most cells that a message lists


class Form(NamedTuple):
    """How a table of text is written.

    Attributes:
        delimiter: What stands between columns.
        decimal: What stands before the decimals.
        encoding: As Python calls it.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    def __str__(self) -> str:
        encoding = self.encoding.upper().removesuffix("-SIG")
        return f"lines of {encoding} with {_WORDS[self.delimiter]} between the columns and the columns' names first"


class Table:
    r"""A table as its file has it.

    Attributes:
        path: The file.
        suffix: What kind it is: ".csv", ".tsv" or ".parquet".
        form: How it is written, where it is text; predictions are written alike.
        columns: The columns, with the types that pyarrow finds.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "homes.csv"
        >>> _ = path.write_text("city,area,price\nParis,30,310.5\nLyon,50,240\n")
        >>> table = Table(path)
        >>> table.numeric()
        ['area', 'price']
        >>> table.numbers("price", "area").tolist()
        [[310.5, 30.0], [240.0, 50.0]]
        >>> table.write(path.with_name("double.csv"), {"double": 2 * table.numbers("price")[:, 0]})
        >>> path.with_name("double.csv").read_text().splitlines()[1]
        '"Paris",30,310.5,621'
    """

    path: Path
    suffix: str
    form: Form
    columns: pyarrow.Table

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Args:
            path: A file of comma-, semicolon- or tab-separated values with the columns' names in its first line, or a
                Parquet file; its name says which. Text is UTF-8, UTF-16 with a byte-order mark, or, where it is
                neither, Windows-1252, as spreadsheets in Western Europe write it. Behind semicolons decimals may have
                a comma.

        Raises:
            InputError: The name ends otherwise, the file cannot be read as what it says, or has no rows.
            OSError: The system could not read it.
        """
        self.path = Path(path)
        self.suffix = _suffix(self.path)
        self.form, self.columns = _read(self.path, self.suffix)
        if not self.columns.num_rows:
            raise InputError(f"{self.path}: there are no rows in it; at least one is needed")

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.columns.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns.column_names)

    def numeric(self) -> list[str]:
        """The names of the columns that hold numbers, or yes and no, which count as 1 and 0."""
        return [field.name for field in self.columns.schema if _holds_numbers(field.type)]

    def others(self, *used: str) -> dict[str, str]:
        """The columns that do not hold numbers, and what they hold instead.

        Args:
            used: Columns that have another use, which are not looked at.

        Raises:
            InputError: One holds numbers but for some cells, which nobody would want to lose for those.
        """
        found = {}
        for name, column in zip(self.names, self.columns.columns, strict=True):
            if name not in used and not _holds_numbers(column.type):
                held = _Held.of(column)
                if held.numbers:
                    raise InputError(
                        f"{self.path}: column {name!r} {held}; correct it, or name the columns to use with --feature"
                    )
                found[name] = str(held)
        return found

    def numbers(self, *names: str) -> NDArray[np.float64]:
        """Columns of finite numbers.

        Args:
            names: Which.

        Returns:
            (rows, columns), in the order of the names.

        Raises:
            InputError: A column is not there, is there twice, holds something else than numbers, or lacks some.
        """
        return np.column_stack([self._column(name) for name in names])

    def frame(self, *names: str) -> pyarrow.Table:
        """The same columns with their names, as a frame that scikit-learn takes."""
        import pyarrow

        return pyarrow.table({name: self._column(name) for name in names})

    def check_new(self, names: Sequence[str]) -> None:
        """Whether columns of these names can be added.

        Raises:
            InputError: There is one of such a name.
        """
        for name in names:
            if name in self.names:
                raise InputError(f"{self.path}: there is a column {name!r} already; rename it, or leave it out")

    def check_writable(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        """Whether the table can be written with columns of these names, before there is anything to put in them.

        Raises:
            InputError: There is one of such a name; or the kind of file cannot hold what the table or the names hold.
        """
        self.check_new(names)
        _encoded(path, _joined(self.columns.slice(0, 1), dict.fromkeys(names, np.zeros(1))), self.form)

    def write(self, path: str | os.PathLike[str], more: Mapping[str, Array]) -> None:
        """Write the table, with columns added on the right, whole or not at all; text is written as it came.

        Args:
            path: The file; its name says what kind it is to be, as for reading.
            more: The columns, (rows,) each. NaN is written as missing.

        Raises:
            InputError: There is a column of such a name, or the path's ending is not known.
            OSError: The system could not write.
        """
        self.check_new(list(more))
        write_whole(path, _encoded(path, _joined(self.columns, more), self.form))

    def _column(self, name: str) -> NDArray[np.float64]:
        import pyarrow

        self.check_once(name)
        column = self.columns.column(name)
        if not _holds_numbers(column.type) and column.null_count < len(column):
            held = _Held.of(column)
            raise InputError(f"{self.path}: column {name!r} {held}; numbers are needed")
        # Not safe: integers past 2^53 are rounded, as in any computation with them.
        found = column.cast(pyarrow.float64(), safe=False).to_numpy()
        missing = np.flatnonzero(~np.isfinite(found))
        if len(missing):
            raise InputError(
                f"{self.path}: column {name!r} has {len(missing):,} of {len(found):,} values missing, NaN or infinite, "
                f"the first in row {missing[0] + 1:,}; leave those rows out, fill them in, or choose other columns"
            )
        return np.asarray(found, np.float64)

    def check_once(self, name: str) -> None:
        """Whether there is a column of this name, and one alone.

        Raises:
            InputError: There is none, or there are several.
        """
        times = self.names.count(name)
        if times > 1:
            raise InputError(f"{self.path}: {times} columns are called {name!r}; rename all but one")
        if not times:
            near = difflib.get_close_matches(name, self.names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            shown = ", ".join(self.names[:_NAMED]) + (", …" if len(self.names) > _NAMED else "")
            raise InputError(f"{self.path}: there is no column {name!r}{meant} There are: {shown}")


def write_columns(path: str | os.PathLike[str], columns: Mapping[str, Array]) -> None:
    """Write columns as a table, whole or not at all.

    Args:
        path: The file; its name says what kind it is to be.
        columns: By name, all of one length. NaN is written as missing.

    Raises:
        InputError: The path's ending is not known.
        OSError: The system could not write.
    """
    import pyarrow

    table = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()})
    write_whole(path, _encoded(path, table, Form()))


def _suffix(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _DELIMITERS or (suffix == _PARQUET and path.suffix != ".gz"):
        return suffix
    raise InputError(f"{path}: got a name that does not say what kind of table it is; expected the ending {_ENDINGS}")


def _read(path: Path, suffix: str) -> tuple[Form, pyarrow.Table]:
    import pyarrow
    from pyarrow import parquet

    path.stat()  # whose errors name the file
    if suffix == _PARQUET:
        # Without Arrow's threads, as in `_parsed`: to read a file itself it would start one, but not to read bytes.
        content = None if path.is_dir() else path.read_bytes()
        try:
            if content is None:
                return Form(), parquet.read_table(path, use_threads=False, pre_buffer=False)
            return Form(), parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
        except (pyarrow.ArrowInvalid, OSError) as error:  # OSError where it is damaged, without the file's name
            raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from error
    encoding, text = _decoded(path)
    form = Form(_delimiter(text, _DELIMITERS[suffix]), encoding=encoding)
    try:
        columns = _parsed(text, form)
        if form.delimiter == ";":
            comma = form._replace(decimal=",")
            other = _parsed(text, comma)
            if _count_numeric(other) > _count_numeric(columns):
                return comma, other
        return form, columns
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: cannot be read as {form} ({error})") from error


def _decoded(path: Path) -> tuple[str, str]:
    """A file's encoding and text."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged, or not compressed by gzip ({error})") from error
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    for encoding in [marked] if marked else ["utf-8", GUESSED]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return encoding, text
    raise InputError(
        f"{path}: got letters in an encoding that is not known here; expected UTF-8, UTF-16 with a byte-order mark or "
        "Windows-1252. Save it as UTF-8"
    )


def _delimiter(text: str, allowed: str) -> str:
    """The first that the first line has as often as the second; the usual one if none does."""
    lines = [re.sub('"[^"]*"', "", line) for line in text.lstrip().split("\n", 2)[:2]]
    regular = (each for each in allowed if lines[0].count(each) and len({line.count(each) for line in lines}) == 1)
    return next(regular, allowed[0])


def _parsed(text: str, form: Form) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv

    # Without Arrow's threads: an interpreter that ends while some still start may be aborted ("terminate called without
    # an active exception"), and one that refuses a small table ends soon after it read it.
    return csv.read_csv(
        pyarrow.BufferReader(text.encode()),
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=csv.ParseOptions(delimiter=form.delimiter),
        convert_options=csv.ConvertOptions(decimal_point=form.decimal),
    )


def _count_numeric(columns: pyarrow.Table) -> int:
    return sum(_holds_numbers(field.type) for field in columns.schema)


def _joined(columns: pyarrow.Table, more: Mapping[str, Array]) -> pyarrow.Table:
    import pyarrow

    for name, values in more.items():
        columns = columns.append_column(name, pyarrow.array(values, from_pandas=True))
    return columns


def _encoded(path: str | os.PathLike[str], columns: pyarrow.Table, form: Form) -> bytes:
    """A table as its file's bytes.

    Raises:
        InputError: The path's ending is not known, or a kind of column cannot be written there.
    """
    import pyarrow
    from pyarrow import csv, parquet

    suffix, content = _suffix(Path(path)), io.BytesIO()
    try:
        if suffix == _PARQUET:
            parquet.write_table(columns, content)
            return content.getvalue()
        allowed = _DELIMITERS[suffix]
        options = csv.WriteOptions(delimiter=form.delimiter if form.delimiter in allowed else allowed[0])
        csv.write_csv(_with_decimals(columns, form.decimal), content, options)
        if form.encoding == "utf-8":
            return content.getvalue()
        return content.getvalue().decode().encode(form.encoding)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: cannot be written as {suffix[1:]} ({error})") from error
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise InputError(
            f"{path}: cannot be written as {form.encoding}, as the table came, since that has no {letter!r}; save the "
            "table as UTF-8"
        ) from error


def _with_decimals(columns: pyarrow.Table, decimal: str) -> pyarrow.Table:
    """Fractions as text with what stands before their decimals, where that is not a point."""
    from pyarrow import compute, string, types

    for place, field in enumerate(columns.schema if decimal != "." else ()):
        if types.is_floating(field.type):
            written = compute.replace_substring(columns.column(place).cast(string()), ".", decimal)
            columns = columns.set_column(place, field.name, written)
    return columns


def _holds_numbers(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return any(test(kind) for test in tests)


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


class _Held(NamedTuple):
    """What a column holds that does not hold numbers.

    Attributes:
        kind: The type of its cells, as pyarrow calls it but for text.
        cells: (row, cell) of those that are not empty.
        faults: Of these, those that do not read as numbers.
    """

    kind: str
    cells: list[tuple[int, object]]
    faults: list[tuple[int, object]]

    @classmethod
    def of(cls, column: Any) -> _Held:
        cells = [(row, value) for row, value in enumerate(column.to_pylist(), start=1) if value is not None]
        faults = [(row, value) for row, value in cells if not _reads_as_number(value)]
        return cls("text" if _holds_text(column.type) else str(column.type), cells, faults)

    @property
    def numbers(self) -> bool:
        """Whether most cells read as numbers."""
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


def _reads_as_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
