"""Tables in files: columns of numbers by their names, and columns added to what was read."""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError
from dikkat.files import write_whole
from dikkat.regression.joined import Array

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

__all__ = ["Table", "write_columns"]

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PARQUET = ".parquet"
_KINDS = {
    ".csv": "lines of UTF-8 with commas between the columns and the columns' names first",
    ".tsv": "lines of UTF-8 with tabs between the columns and the columns' names first",
    _PARQUET: "Parquet",
}
_ALLOWED = ".csv, .tsv (either may be followed by .gz) and .parquet"
_NAMED = 12  # columns that a message lists


class Table:
    r"""A table as its file has it.

    Attributes:
        path: The file.
        suffix: What kind it is: ".csv", ".tsv" or ".parquet".
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
    columns: pyarrow.Table

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Args:
            path: A file of comma- or tab-separated values in UTF-8, with the columns' names in its first line, or a
                Parquet file; its name says which.

        Raises:
            InputError: The name ends otherwise, the file cannot be read as what it says, or has no rows.
            OSError: The system could not read it.
        """
        self.path = Path(path)
        self.suffix = _suffix(self.path)
        self.columns = _read(self.path, self.suffix)
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

    def write(self, path: str | os.PathLike[str], more: Mapping[str, Array]) -> None:
        """Write the table, with columns added on the right, whole or not at all.

        Args:
            path: The file; its name says what kind it is to be, as for reading.
            more: The columns, (rows,) each. NaN is written as missing.

        Raises:
            InputError: There is a column of such a name, or the path's ending is not known.
            OSError: The system could not write.
        """
        import pyarrow

        self.check_new(list(more))
        columns = self.columns
        for name, values in more.items():
            columns = columns.append_column(name, pyarrow.array(values, from_pandas=True))
        _write(path, columns)

    def _column(self, name: str) -> NDArray[np.float64]:
        import pyarrow

        self._check_once(name)
        column = self.columns.column(name)
        if not _holds_numbers(column.type) and column.null_count < len(column):
            raise InputError(f"{self.path}: column {name!r} {_other(column)}; numbers are needed")
        # Not safe: integers past 2^53 are rounded, as in any computation with them.
        found = column.cast(pyarrow.float64(), safe=False).to_numpy()
        missing = np.flatnonzero(~np.isfinite(found))
        if len(missing):
            raise InputError(
                f"{self.path}: column {name!r} has {len(missing):,} of {len(found):,} values missing, NaN or infinite, "
                f"the first in row {missing[0] + 1:,}; leave those rows out, fill them in, or choose other columns"
            )
        return np.asarray(found, np.float64)

    def _check_once(self, name: str) -> None:
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

    _write(path, pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in columns.items()}))


def _suffix(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _DELIMITERS or (suffix == _PARQUET and path.suffix != ".gz"):
        return suffix
    raise InputError(f"{path}: what kind of table it is cannot be told from its name; allowed endings are {_ALLOWED}")


def _read(path: Path, suffix: str) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv, parquet

    path.stat()  # whose errors name the file
    try:
        if suffix == _PARQUET:
            return parquet.read_table(path)
        columns = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=_DELIMITERS[suffix]))
        columns.column_names  # noqa: B018  (names are decoded when they are asked for)
        return columns
    except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as {_KINDS[suffix]} ({error})") from error


def _write(path: str | os.PathLike[str], columns: pyarrow.Table) -> None:
    from pyarrow import csv, parquet

    suffix, content = _suffix(Path(path)), io.BytesIO()
    if suffix == _PARQUET:
        parquet.write_table(columns, content)
    else:
        csv.write_csv(columns, content, csv.WriteOptions(delimiter=_DELIMITERS[suffix]))
    write_whole(path, content.getvalue())


def _holds_numbers(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return any(test(kind) for test in tests)


def _other(column: Any) -> str:
    """What a column holds that are no numbers, and the first of it that cannot be one."""
    values = column.to_pylist()
    known = [row for row, value in enumerate(values) if value is not None]
    row = next((row for row in known if not _reads_as_number(values[row])), known[0])
    return f"holds {column.type} ({str(values[row])!r} in row {row + 1:,})"


def _reads_as_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
