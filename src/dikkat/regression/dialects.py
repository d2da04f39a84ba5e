"""Reading tables of text: their encoding, delimiter, marks in numbers, and dates."""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from pyarrow import array, compute, csv, float64, large_string, scalar, string, timestamp, types

from dikkat.errors import InputError
from dikkat.regression.columns import text_dates

STDIN = Path("-")
GUESSED = "cp1252"
"""The encoding that is assumed if a file is not in UTF-8 or UTF-16."""
DELIMITERS = {".csv": ",;\t|", ".tsv": "\t", ".txt": "\t,;|", ".dat": "\t,;|"}  # allowed, the usual one first
MISSING = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null", "-NaN", "-nan", "#NA", "<NA>")
"""Cells that count as missing."""

_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", ".": "points", "'": "apostrophes"}
_WORDS |= {"’": "apostrophes", " ": "spaces", "\u00a0": "spaces", "\u202f": "spaces"}
_ENCODINGS = {"cp1252": "Windows-1252", "utf-8": "UTF-8", "utf-8-sig": "UTF-8"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_GROUPS = {".": ",'’ \u00a0\u202f", ",": ".'’ \u00a0\u202f"}  # thousands separators for each decimal mark
_SEPARATOR = re.compile(r'^"?sep=(.)"?\n')  # a first line for spreadsheets, not a row
_DATE = r"^(\d{1,2})([./-])(\d{1,2})[./-]\d{4}( \d{1,2}:\d{2}(:\d{2})?)?$"
_MONTH = r"^\d{4}-(0[1-9]|1[0-2])$"
_NUMBER = r"[+-]?\d*[.,]?\d+([eE][+-]?\d+)?"
_PREFIX, _SUFFIX = r"^([+-]?)(?:[$€£¥₺]|EUR|USD|GBP)\s*", r"\s*(?:[$€£¥₺%]|EUR|USD|GBP)$"
_DIGIT = r"[\d.,'’\s+-]"
_AMBIGUOUS = {",": ",", ";": "."}  # for each delimiter, the marks that may be decimal or thousands
_EXAMINED = 1_000_000  # characters of a text in which numbers are examined


class FormOptions(NamedTuple):
    """The settings of a form that the user gives; None is detected."""

    delimiter: str | None = None  # between columns
    decimal: str | None = None  # decimal mark
    thousands: str | None = None  # thousands separator; "" for none
    encoding: str | None = None  # a name of Python's
    na: tuple[str, ...] = ()  # further cells that count as missing


class Form(NamedTuple):
    """The form of a table of text."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str = ""
    guessed: bool = False  # whether the encoding was assumed

    def __str__(self) -> str:
        encoding = _ENCODINGS.get(self.encoding, self.encoding.upper())
        delimiter, decimal, thousands = (
            _WORDS.get(mark, repr(mark)) for mark in (self.delimiter, self.decimal, self.thousands)
        )
        words = [f"{delimiter} between the columns"]
        if self.decimal != ".":
            words.append(f"decimal {decimal}")
        if self.thousands:
            words.append(f"{thousands} between thousands")
        return f"{encoding}{' (a guess)' if self.guessed else ''} with {', '.join(words)}"


class Text(NamedTuple):
    """The content of a table of text."""

    form: Form
    columns: pyarrow.Table  # the original cells; texts in a file of text
    typed: pyarrow.Table  # numbers, dates and texts
    doubts: dict[int, str]  # {column: reason} for ambiguous dates
    identifiers: frozenset[int] = frozenset()  # columns of integers with leading zeros, kept as text


def read(path: Path, suffix: str, options: FormOptions) -> Text:
    """Read a file of text, with the delimiter, encoding and number marks of `options` or detected."""
    encoding, guessed, text = _decoded(path, options.encoding)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    separator = _SEPARATOR.match(text)
    text = text[separator.end() :] if separator else text
    delimiter = options.delimiter or (separator[1] if separator else _delimiter(text, DELIMITERS[suffix]))
    form = Form(delimiter, options.decimal or ".", encoding, options.thousands or "", guessed)
    try:
        return _best(path, text, form, options)
    except pyarrow.ArrowInvalid as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: cannot be read as {form} and names in the first line ({reason})") from error


def _best(path: Path, text: str, form: Form, options: FormOptions) -> Text:
    readings: list[tuple[int, Form, Any, Any]] = []
    for decimal in [options.decimal] if options.decimal else ".,".replace(options.thousands or " ", ""):
        columns = with_nulls(_parsed(text, form._replace(decimal=decimal), na=options.na), options.na)
        plain = all(map(holds_numbers, columns.schema.types))  # so no other reading has more numbers
        for group in ["", *_GROUPS[decimal]] if options.thousands is None and not plain else [options.thousands or ""]:
            typed = with_nulls(_with_numbers(columns, decimal, group), options.na)
            marked = form._replace(decimal=decimal, thousands=group)
            readings.append((sum(map(holds_numbers, typed.schema.types)), marked, columns, typed))
        if plain:
            break
    # If commas separate columns, a comma in a number separates thousands; else it is a decimal mark.
    readings.sort(key=lambda reading: (-reading[0], bool(reading[1].thousands) if form.delimiter != "," else False))
    best_count, best, columns, typed = readings[0]
    if options.decimal is None and options.thousands is None and any(map(types.is_floating, typed.schema.types)):
        _check_unambiguous(path, text, best, {form.decimal for count, form, _, _ in readings if count == best_count})
    names = [" ".join(name.split()) for name in columns.column_names]
    if all(re.fullmatch(_NUMBER, name) for name in names):
        raise InputError(
            f"{path}: the first line looks like numbers ({', '.join(names[:3])}); expected the names of the columns"
        )
    cells = _parsed(text, best, columns.column_names).rename_columns(names)
    typed, doubts = with_dates(typed.rename_columns(names))
    integers = [index for index, kind in enumerate(typed.schema.types) if types.is_integer(kind)]
    has_zeros = [
        compute.any(compute.match_substring_regex(cells.column(index), r"^ *0\d")).as_py() for index in integers
    ]
    identifiers = frozenset(index for index, has_zero in zip(integers, has_zeros, strict=True) if has_zero)
    for index in identifiers:
        typed = typed.set_column(index, names[index], with_nulls(cells.select([index]), options.na).column(0))
    return Text(best, cells, typed, doubts, identifiers)


def _check_unambiguous(path: Path, text: str, form: Form, decimals: set[str]) -> None:
    """Raise if a comma or point may be decimal or thousands; `decimals` are the equally good decimal marks."""
    mark = form.thousands or form.decimal
    if mark not in _AMBIGUOUS.get(form.delimiter, ".,") or (form.thousands and mark not in decimals):
        return  # with thousands, other numbers determine the decimal mark
    _, _, rows = text[:_EXAMINED].partition("\n")
    fields = re.findall(rf'"[^"\n]*"|[^{re.escape(form.delimiter)}"\n]+', rows)
    cells = [re.sub(_SUFFIX, "", re.sub(_PREFIX, r"\1", cell.strip('" '))) for cell in fields]
    marked = [cell for cell in cells if re.fullmatch(rf"[+-]?\d[\d{re.escape(mark)}]*", cell) and mark in cell]
    if marked and all(re.fullmatch(rf"[+-]?[1-9]\d?\d?{re.escape(mark)}\d\d\d", cell) for cell in marked):
        small, large = marked[0].replace(mark, "."), marked[0].replace(mark, "")
        raise InputError(
            f"{path}: got numbers such as {marked[0]}, which may be {small} or {large}; add --text decimal={mark} "
            f"or --text thousands={mark}"
        )


def _decoded(path: Path, chosen: str | None) -> tuple[str, bool, str]:
    """Return a file's encoding, whether it is a guess, and the text."""
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: got a damaged file, or not one compressed by gzip ({error})") from error
    if data.startswith((b"PK", b"\xd0\xcf\x11\xe0")):
        raise InputError(f"{path}: got a spreadsheet or a zip file; save the table as CSV")
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    if chosen is not None:
        try:
            return chosen, False, data.decode(chosen if marked != "utf-8-sig" else "utf-8-sig").lstrip("\ufeff")
        except (LookupError, UnicodeError) as error:
            raise InputError(f"{path}: --text encoding: got {chosen!r}; expected the file's ({error})") from error
    for encoding in [marked] if marked else ["utf-8", GUESSED]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return encoding, encoding == GUESSED, text
    raise InputError(
        f"{path}: got text in an unknown encoding; expected UTF-8, UTF-16 or Windows-1252. Save it as UTF-8, or add "
        "--text encoding=NAME"
    )


def _delimiter(text: str, allowed: str) -> str:
    """Return the first mark that occurs equally often in the first two lines, else the usual one."""
    lines = [re.sub('"[^"]*"', "", line) for line in text.lstrip().split("\n", 2)[:2]]
    regular = (mark for mark in allowed if lines[0].count(mark) and len({line.count(mark) for line in lines}) == 1)
    return next(regular, allowed[0])


def _parsed(text: str, form: Form, texts: Sequence[str] = (), na: Sequence[str] = ()) -> pyarrow.Table:
    """Return the columns: `texts` as text, others with the types that pyarrow finds."""
    # Without Arrow's threads: an interpreter that ends while threads start may abort ("terminate called without an
    # active exception"), and after an error in a small table it ends soon.
    return csv.read_csv(
        pyarrow.BufferReader(text.encode()),
        csv.ReadOptions(use_threads=False),
        csv.ParseOptions(delimiter=form.delimiter, newlines_in_values='"' in text),
        csv.ConvertOptions(
            decimal_point=form.decimal, column_types=dict.fromkeys(texts, string()),
            null_values=[*csv.ConvertOptions().null_values, *na],
        ),
    )  # fmt: skip


def with_nulls(columns: pyarrow.Table, na: Sequence[str]) -> pyarrow.Table:
    """Return the columns with null for the cells in `na` (texts, or numbers however written)."""
    numbers = array([float(text) for text in na if re.fullmatch(_NUMBER, text) and "," not in text], float64())
    for index, field in enumerate(columns.schema if na else ()):
        cells = columns.column(index)
        if types.is_string(field.type) or types.is_large_string(field.type):
            is_missing = compute.is_in(compute.utf8_trim_whitespace(cells.cast(string())), array(na, string()))
        elif types.is_integer(field.type) or types.is_floating(field.type):
            is_missing = compute.is_in(cells.cast(float64(), safe=False), numbers)
        else:
            continue
        columns = columns.set_column(index, field.name, compute.if_else(is_missing, scalar(None, field.type), cells))
    return columns


def _with_numbers(columns: pyarrow.Table, decimal: str, group: str) -> pyarrow.Table:
    """Convert columns of text to numbers if all cells are numbers with this thousands separator or one unit."""
    digits = (rf"[1-9]\d{{0,2}}({re.escape(group)}\d{{3}})+|" if group else "") + r"\d+"
    pattern = rf"^[+-]?({digits})({re.escape(decimal)}\d+)?$"
    for index, field in enumerate(columns.schema):
        if field.type != string():
            continue
        cells = clean_text(columns.column(index))
        bare = _bare(cells)
        if bare is cells and not group:
            continue  # pyarrow has parsed it already
        present = compute.drop_null(bare)
        units = set() if bare is cells else {re.sub(_DIGIT, "", cell) for cell in set(cells.to_pylist()) - {None}}
        if len(present) and len(units) < 2 and compute.all(compute.match_substring_regex(present, pattern)).as_py():
            plain = compute.replace_substring(bare, group, "") if group else bare
            plain = compute.replace_substring(plain, decimal, ".")
            columns = columns.set_column(index, field.name, compute.cast(plain, float64()))
    return columns


def _bare(cells: Any) -> Any:
    """Return cells without a percent sign or currency; the same object if there are none."""
    bare = compute.replace_substring_regex(compute.replace_substring_regex(cells, _PREFIX, r"\1"), _SUFFIX, "")
    return cells if bare.equals(cells) else bare


def clean_text(column: Any) -> Any:
    """Return stripped cells of text, null if they are in `MISSING`."""
    cells = compute.utf8_trim_whitespace(column)
    is_missing = compute.is_in(cells, array(MISSING))
    distinct = compute.unique(cells.filter(compute.invert(is_missing)).drop_null())
    if len(distinct) > 1 and compute.all(compute.match_substring_regex(distinct, "^[A-Z]{2}$")).as_py():
        is_missing = compute.and_(is_missing, compute.not_equal(cells, "NA"))  # Namibia, in a column of country codes
    return compute.if_else(is_missing, scalar(None, string()), cells)


def with_dates(columns: pyarrow.Table) -> tuple[pyarrow.Table, dict[int, str]]:
    """Return the columns with texts that are dates converted, and {column: reason} for ambiguous ones.

    Dates are in ISO 8601, or day-first or month-first.
    """
    doubts = {}
    for index, field in enumerate(columns.schema):
        if field.type not in (string(), large_string()):
            continue
        cells = clean_text(columns.column(index).cast(string()))
        if (iso_dates := text_dates(np.array(cells.to_pylist(), object))) is not None:
            columns = columns.set_column(index, field.name, array(iso_dates, timestamp("us")))
            continue
        present = compute.drop_null(cells)
        if len(present) and compute.all(compute.match_substring_regex(present, _MONTH)).as_py():
            doubts[index] = f"holds months without a day ({present[0].as_py()!r})"
            continue
        if not len(present) or not compute.all(compute.match_substring_regex(present, _DATE)).as_py():
            continue
        matches = [cell and re.match(_DATE, cell) for cell in cells.to_pylist()]
        dates = [match for match in matches if match]
        first, second = (max(int(match[group]) for match in dates) for group in (1, 3))
        day_first = first > 12 or (second <= 12 and {match[2] for match in dates} == {"."})
        if max(first, second) <= 12 and not day_first:
            doubts[index] = f"holds dates that can be read in two ways ({dates[0][0]!r})"
            continue
        order = "%d{0}%m{0}%Y" if day_first else "%m{0}%d{0}%Y"
        times = "", " %H:%M", " %H:%M:%S"
        try:
            moments = [
                match and datetime.strptime(match[0], order.format(match[2]) + times[match[0].count(":")])
                for match in matches
            ]
        except ValueError:  # not a date, such as 31 February
            continue
        columns = columns.set_column(index, field.name, array(moments, timestamp("us")))
    return columns, doubts


def holds_numbers(kind: Any) -> bool:
    """Return True for numbers and booleans."""
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))
