"""The form of a table of text: its encoding, and the marks between columns, in numbers and in dates."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dikkat.errors import InputError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

__all__ = ["Asked", "Form", "read"]

GUESSED = "cp1252"
"""The encoding that nothing in a file confirms."""
DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".txt": "\t,;|", ".dat": "\t,;|"}  # those allowed, the usual one first
MISSING = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null", "-NaN", "-nan", "#NA", "<NA>")
"""Cells that stand for nothing."""

_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", ".": "points", "'": "apostrophes"}
_WORDS |= {"’": "apostrophes", " ": "spaces", "\u00a0": "spaces", "\u202f": "spaces"}
_ENCODINGS = {"cp1252": "Windows-1252", "utf-8": "UTF-8", "utf-8-sig": "UTF-8"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_GROUPS = {".": ",'’ \u00a0\u202f", ",": ".'’ \u00a0\u202f"}  # between thousands, by what is before decimals
_SEPARATOR = re.compile(r'^"?sep=(.)"?\n')  # a first line that a spreadsheet reads, and no row
_DATE = r"^(\d{1,2})([./-])(\d{1,2})[./-]\d{4}( \d{1,2}:\d{2}(:\d{2})?)?$"
_NUMBER = r"[+-]?\d*[.,]?\d+([eE][+-]?\d+)?"
_DOUBTED = {",": ",", ";": "."}  # by what is between the columns, which of both marks may be either
_LOOKED = 1_000_000  # letters of a text in which numbers are looked at
_TWICE = "holds dates that can be read in two ways"


class Asked(NamedTuple):
    """The parts of a form that a person gives; None for those that are to be found.

    Attributes:
        delimiter: What stands between columns.
        decimal: What stands before decimals.
        thousands: What stands between thousands; "" for nothing.
        encoding: As Python calls it.
    """

    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None


class Form(NamedTuple):
    """The form of a table of text.

    Attributes:
        delimiter: What stands between columns.
        decimal: What stands before the decimals.
        encoding: As Python calls it.
        thousands: What stands between thousands, or "".
        guessed: Whether nothing confirms the encoding.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str = ""
    guessed: bool = False

    def __str__(self) -> str:
        encoding = _ENCODINGS.get(self.encoding, self.encoding.upper())
        said = [f"{_word(self.delimiter)} between the columns"]
        if self.decimal != ".":
            said.append(f"decimal {_word(self.decimal)}")
        if self.thousands:
            said.append(f"{_word(self.thousands)} between thousands")
        return f"{encoding}{' (a guess)' if self.guessed else ''} with {', '.join(said)}"


class Text(NamedTuple):
    """A table of text.

    Attributes:
        form: How it is written.
        columns: As they came, with the types that pyarrow finds.
        typed: With the numbers and dates that it does not.
        doubts: Of columns of dates that can be read in two ways, what they hold.
    """

    form: Form
    columns: pyarrow.Table
    typed: pyarrow.Table
    doubts: dict[int, str]


def read(path: Path, suffix: str, asked: Asked) -> Text:
    """Read a file of text."""
    import pyarrow

    encoding, guessed, text = _decoded(path, asked.encoding)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    said = _SEPARATOR.match(text)
    text = text[said.end() :] if said else text
    delimiter = asked.delimiter or (said[1] if said else _delimiter(text, DELIMITERS[suffix]))
    form = Form(delimiter, asked.decimal or ".", encoding, asked.thousands or "", guessed)
    try:
        return _best(path, text, form, asked)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: cannot be read as {form} and names in the first line ({_first(error)})") from error


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _best(path: Path, text: str, form: Form, asked: Asked) -> Text:
    """With the decimals and thousands by which most columns are numbers, of those that were not said."""
    found: list[tuple[int, Form, Any, Any]] = []
    for decimal in [asked.decimal] if asked.decimal else ".,".replace(asked.thousands or " ", ""):
        columns = _parsed(text, form.delimiter, decimal)
        plain = _count_numeric(columns) == columns.num_columns  # and no other reading has more numbers
        for group in ["", *_GROUPS[decimal]] if asked.thousands is None and not plain else [asked.thousands or ""]:
            typed = _with_numbers(columns, decimal, group)
            found.append((_count_numeric(typed), form._replace(decimal=decimal, thousands=group), columns, typed))
        if plain:
            break
    # Beside commas between the columns one in a number is between thousands; else it is before decimals.
    found.sort(key=lambda each: (-each[0], bool(each[1].thousands) if form.delimiter != "," else False))
    _, best, columns, typed = found[0]
    if asked.decimal is None and asked.thousands is None:
        best_count = found[0][0]
        _check_clear(path, text, best, [form for count, form, _, _ in found if count == best_count], typed)
    names = [" ".join(name.split()) for name in columns.column_names]
    if all(re.fullmatch(_NUMBER, name) for name in names):
        raise InputError(
            f"{path}: the first line looks like numbers ({', '.join(names[:3])}); expected the names of the columns"
        )
    columns, typed = columns.rename_columns(names), typed.rename_columns(names)
    typed, doubts = _with_dates(typed)
    return Text(best, columns, typed, doubts)


def _check_clear(path: Path, text: str, form: Form, as_good: list[Form], typed: pyarrow.Table) -> None:
    """Refuse numbers whose comma or point may stand before decimals or between thousands."""
    mark, tried = form.thousands or form.decimal, {each.decimal for each in as_good}
    if mark not in _DOUBTED.get(form.delimiter, ".,") or not any(_is_floating(field.type) for field in typed.schema):
        return
    if form.thousands and mark not in tried:
        return  # other numbers say what stands before decimals
    _, _, rows = text[:_LOOKED].partition("\n")
    cells = [cell.strip('" ') for cell in re.findall(rf'"[^"\n]*"|[^{re.escape(form.delimiter)}"\n]+', rows)]
    marked = [cell for cell in cells if re.fullmatch(rf"[+-]?\d[\d{re.escape(mark)}]*", cell) and mark in cell]
    if marked and all(re.fullmatch(rf"[+-]?[1-9]\d?\d?{re.escape(mark)}\d\d\d", cell) for cell in marked):
        small, large = marked[0].replace(mark, "."), marked[0].replace(mark, "")
        raise InputError(
            f"{path}: got numbers such as {marked[0]}, which may be {small} or {large}; say which with "
            f"--text decimal={mark} or --text thousands={mark}"
        )


def _decoded(path: Path, asked: str | None) -> tuple[str, bool, str]:
    """A file's encoding, whether it is a guess, and its text."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged, or not compressed by gzip ({error})") from error
    if data.startswith((b"PK", b"\xd0\xcf\x11\xe0")):
        raise InputError(f"{path}: a workbook of a spreadsheet, or compressed by zip; save the sheet as CSV")
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    if asked is not None:
        try:
            return asked, False, data.decode(asked if marked != "utf-8-sig" else "utf-8-sig").lstrip("\ufeff")
        except (LookupError, UnicodeError) as error:
            raise InputError(
                f"{path}: --text encoding: got {asked!r}; expected how the file is encoded ({error})"
            ) from error
    bare = _bare_utf16(data)
    for encoding in [marked] if marked else [bare] if bare else ["utf-8", GUESSED]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return encoding, encoding in (GUESSED, bare), text
    raise InputError(
        f"{path}: got letters in an encoding that is not known here; expected UTF-8, UTF-16 or Windows-1252. Save it "
        "as UTF-8, or say with --text encoding=NAME how it is written"
    )


def _bare_utf16(data: bytes) -> str | None:
    """UTF-16 without a mark has a zero in every second byte of Latin letters."""
    some = data[:4096]
    if len(some) < 4 or len(data) % 2:
        return None
    even, odd = some[::2].count(0), some[1::2].count(0)
    if min(even, odd) == 0 and max(even, odd) > len(some) // 4:
        return "utf-16-le" if odd else "utf-16-be"
    return None


def _delimiter(text: str, allowed: str) -> str:
    """The first that the first line has as often as the second; the usual one if none does."""
    lines = [re.sub('"[^"]*"', "", line) for line in text.lstrip().split("\n", 2)[:2]]
    regular = (each for each in allowed if lines[0].count(each) and len({line.count(each) for line in lines}) == 1)
    return next(regular, allowed[0])


def _parsed(text: str, delimiter: str, decimal: str) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv

    # Without Arrow's threads: an interpreter that ends while some still start may be aborted ("terminate called without
    # an active exception"), and one that refuses a small table ends soon after it read it.
    return csv.read_csv(
        pyarrow.BufferReader(text.encode()),
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values='"' in text),
        convert_options=csv.ConvertOptions(decimal_point=decimal),
    )


def _with_numbers(columns: pyarrow.Table, decimal: str, group: str) -> pyarrow.Table:
    """Columns of text that are numbers with this between their thousands as numbers."""
    from pyarrow import compute, float64, string

    if not group:
        return columns
    digits = rf"[1-9]\d{{0,2}}({re.escape(group)}\d{{3}})+|\d+"
    pattern = rf"^[+-]?({digits})({re.escape(decimal)}\d+)?$"
    for place, field in enumerate(columns.schema):
        if field.type != string():
            continue
        cells = known(columns.column(place))
        there = compute.drop_null(cells)
        if len(there) and compute.all(compute.match_substring_regex(there, pattern)).as_py():
            plain = compute.replace_substring(compute.replace_substring(cells, group, ""), decimal, ".")
            columns = columns.set_column(place, field.name, compute.cast(plain, float64()))
    return columns


def known(column: Any) -> Any:
    """Cells of text without the space around them; null where they stand for nothing."""
    import pyarrow
    from pyarrow import compute

    cells = compute.utf8_trim_whitespace(column)
    nothing = compute.is_in(cells, pyarrow.array(MISSING))
    return compute.if_else(nothing, pyarrow.scalar(None, pyarrow.string()), cells)


def _with_dates(columns: pyarrow.Table) -> tuple[pyarrow.Table, dict[int, str]]:
    """Columns of days of months, in either order, as dates; and what those hold of which the order is not clear."""
    from pyarrow import compute, string

    doubts = {}
    for place, field in enumerate(columns.schema):
        if field.type != string():
            continue
        cells = known(columns.column(place))
        there = compute.drop_null(cells)
        if not len(there) or not compute.all(compute.match_substring_regex(there, _DATE)).as_py():
            continue
        found = [re.match(_DATE, cell) for cell in there.to_pylist()]
        first, second = (max(int(each[part]) for each in found if each) for part in (1, 3))
        marks = {each[2] for each in found if each}
        if first > 12 >= second or (marks == {"."} and second <= 12):
            order = "%d{0}%m{0}%Y"
        elif second > 12 >= first:
            order = "%m{0}%d{0}%Y"
        elif first <= 12 and second <= 12:
            doubts[place] = f"{_TWICE} ({there[0].as_py()!r}); write them as 2020-01-31"
            continue
        else:
            continue
        dates = _dates(cells, order)
        if dates is not None:
            columns = columns.set_column(place, field.name, dates)
    return columns, doubts


def _dates(cells: Any, order: str) -> Any:
    """Cells as dates, with or without the time of the day; None where some are none, such as 31 February."""
    from datetime import datetime

    import pyarrow

    found: list[datetime | None] = []
    for cell in cells.to_pylist():
        if cell is None:
            found.append(None)
            continue
        mark, colons = re.sub(r"\d", "", cell)[0], cell.count(":")
        try:
            found.append(datetime.strptime(cell, order.format(mark) + ("", " %H:%M", " %H:%M:%S")[colons]))
        except ValueError:
            return None
    return pyarrow.array(found, pyarrow.timestamp("us"))


def _count_numeric(columns: pyarrow.Table) -> int:
    from pyarrow import types

    return sum(types.is_integer(kind) or _is_floating(kind) or types.is_boolean(kind) for kind in columns.schema.types)


def _is_floating(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind))


def _word(mark: str) -> str:
    return _WORDS.get(mark, repr(mark))
