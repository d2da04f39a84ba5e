"""The form of a table of text: its encoding, and the marks between columns, in numbers and in dates."""

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

import pyarrow  # type: ignore[import-untyped]
from pyarrow import array, compute, csv, float64, scalar, string, timestamp, types

from dikkat.errors import InputError

STDIN = Path("-")
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
_BEFORE, _BEHIND = r"^([+-]?)(?:[$€£¥₺]|EUR|USD|GBP)\s*", r"\s*(?:[$€£¥₺%]|EUR|USD|GBP)$"
_DIGITS = r"[\d.,'’\s+-]"
_DOUBTED = {",": ",", ";": "."}  # by what is between the columns, which of both marks may be either
_LOOKED = 1_000_000  # letters of a text in which numbers are looked at


class FormOptions(NamedTuple):
    """The parts of a form that a person gives; None for those that are to be found."""

    delimiter: str | None = None  # between columns
    decimal: str | None = None  # the mark before decimals
    thousands: str | None = None  # the mark between thousands; "" for none
    encoding: str | None = None  # as Python calls it
    na: tuple[str, ...] = ()  # cells that stand for nothing besides `MISSING`


class Form(NamedTuple):
    """The form of a table of text."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str = ""
    guessed: bool = False  # whether nothing confirms the encoding

    def __str__(self) -> str:
        encoding = _ENCODINGS.get(self.encoding, self.encoding.upper())
        delimiter, decimal, thousands = (
            _WORDS.get(mark, repr(mark)) for mark in (self.delimiter, self.decimal, self.thousands)
        )
        said = [f"{delimiter} between the columns"]
        if self.decimal != ".":
            said.append(f"decimal {decimal}")
        if self.thousands:
            said.append(f"{thousands} between thousands")
        return f"{encoding}{' (a guess)' if self.guessed else ''} with {', '.join(said)}"


class Text(NamedTuple):
    """The content of a table of text."""

    form: Form
    columns: pyarrow.Table  # the cells as they came, of a file of text as texts
    typed: pyarrow.Table  # as numbers, dates and texts
    doubts: dict[int, str]  # of columns of dates that can be read in two ways, what they hold
    identifiers: frozenset[int] = frozenset()  # columns of whole numbers some of which begin with a 0, which are texts


def read(path: Path, suffix: str, options: FormOptions) -> Text:
    """Read a file of text."""
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
    """The content with the marks in numbers by which most columns are numbers, of those that were not given."""
    result: list[tuple[int, Form, Any, Any]] = []
    for decimal in [options.decimal] if options.decimal else ".,".replace(options.thousands or " ", ""):
        columns = without(_parsed(text, form._replace(decimal=decimal), na=options.na), options.na)
        plain = all(map(holds_numbers, columns.schema.types))  # and no other reading has more numbers
        for group in ["", *_GROUPS[decimal]] if options.thousands is None and not plain else [options.thousands or ""]:
            typed = without(_with_numbers(columns, decimal, group), options.na)
            result.append(
                (
                    sum(map(holds_numbers, typed.schema.types)),
                    form._replace(decimal=decimal, thousands=group),
                    columns,
                    typed,
                )
            )
        if plain:
            break
    # Beside commas between the columns one in a number is between thousands; else it is before decimals.
    result.sort(key=lambda each: (-each[0], bool(each[1].thousands) if form.delimiter != "," else False))
    best_count, best, columns, typed = result[0]
    if options.decimal is None and options.thousands is None and any(map(types.is_floating, typed.schema.types)):
        _check_clear(path, text, best, {form.decimal for count, form, _, _ in result if count == best_count})
    names = [" ".join(name.split()) for name in columns.column_names]
    if all(re.fullmatch(_NUMBER, name) for name in names):
        raise InputError(
            f"{path}: the first line looks like numbers ({', '.join(names[:3])}); expected the names of the columns"
        )
    cells = _parsed(text, best, columns.column_names).rename_columns(names)
    typed, doubts = _with_dates(typed.rename_columns(names))
    whole = [index for index, kind in enumerate(typed.schema.types) if types.is_integer(kind)]
    zeros = [compute.any(compute.match_substring_regex(cells.column(index), r"^ *0\d")).as_py() for index in whole]
    identifiers = frozenset(index for index, is_one in zip(whole, zeros, strict=True) if is_one)
    for index in identifiers:
        typed = typed.set_column(index, names[index], without(cells.select([index]), options.na).column(0))
    return Text(best, cells, typed, doubts, identifiers)


def _check_clear(path: Path, text: str, form: Form, decimals: set[str]) -> None:
    """Refuse numbers whose comma or point may stand before decimals or between thousands; `decimals` are as good."""
    mark = form.thousands or form.decimal
    if mark not in _DOUBTED.get(form.delimiter, ".,") or (form.thousands and mark not in decimals):
        return  # in the latter case other numbers say which mark is before decimals
    _, _, rows = text[:_LOOKED].partition("\n")
    found = re.findall(rf'"[^"\n]*"|[^{re.escape(form.delimiter)}"\n]+', rows)
    cells = [re.sub(_BEHIND, "", re.sub(_BEFORE, r"\1", cell.strip('" '))) for cell in found]
    marked = [cell for cell in cells if re.fullmatch(rf"[+-]?\d[\d{re.escape(mark)}]*", cell) and mark in cell]
    if marked and all(re.fullmatch(rf"[+-]?[1-9]\d?\d?{re.escape(mark)}\d\d\d", cell) for cell in marked):
        small, large = marked[0].replace(mark, "."), marked[0].replace(mark, "")
        raise InputError(
            f"{path}: got numbers such as {marked[0]}, which may be {small} or {large}; say which with "
            f"--text decimal={mark} or --text thousands={mark}"
        )


def _decoded(path: Path, given: str | None) -> tuple[str, bool, str]:
    """A file's encoding, whether it is a guess, and its text."""
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged, or not compressed by gzip ({error})") from error
    if data.startswith((b"PK", b"\xd0\xcf\x11\xe0")):
        raise InputError(f"{path}: a workbook of a spreadsheet, or compressed by zip; save the sheet as CSV")
    marked = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    if given is not None:
        try:
            return given, False, data.decode(given if marked != "utf-8-sig" else "utf-8-sig").lstrip("\ufeff")
        except (LookupError, UnicodeError) as error:
            raise InputError(
                f"{path}: --text encoding: got {given!r}; expected how the file is encoded ({error})"
            ) from error
    for encoding in [marked] if marked else ["utf-8", GUESSED]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return encoding, encoding == GUESSED, text
    raise InputError(
        f"{path}: got letters in an encoding that is not known here; expected UTF-8, UTF-16 or Windows-1252. Save it "
        "as UTF-8, or say with --text encoding=NAME how it is written"
    )


def _delimiter(text: str, allowed: str) -> str:
    """The first that the first line has as often as the second; the usual one if none does."""
    lines = [re.sub('"[^"]*"', "", line) for line in text.lstrip().split("\n", 2)[:2]]
    regular = (each for each in allowed if lines[0].count(each) and len({line.count(each) for line in lines}) == 1)
    return next(regular, allowed[0])


def _parsed(text: str, form: Form, texts: Sequence[str] = (), na: Sequence[str] = ()) -> pyarrow.Table:
    """The columns, these as texts and the others with the types that pyarrow finds."""
    # Without Arrow's threads: an interpreter that ends while some still start may be aborted ("terminate called without
    # an active exception"), and one that refuses a small table ends soon after it read it.
    return csv.read_csv(
        pyarrow.BufferReader(text.encode()),
        csv.ReadOptions(use_threads=False),
        csv.ParseOptions(delimiter=form.delimiter, newlines_in_values='"' in text),
        csv.ConvertOptions(
            decimal_point=form.decimal, column_types=dict.fromkeys(texts, string()),
            null_values=[*csv.ConvertOptions().null_values, *na],
        ),
    )  # fmt: skip


def without(columns: pyarrow.Table, na: Sequence[str]) -> pyarrow.Table:
    """The columns with null for cells that stand for nothing: these texts, or these numbers, however written."""
    numbers = array([float(each) for each in na if re.fullmatch(_NUMBER, each) and "," not in each], float64())
    for index, field in enumerate(columns.schema if na else ()):
        cells = columns.column(index)
        if types.is_string(field.type) or types.is_large_string(field.type):
            nothing = compute.is_in(compute.utf8_trim_whitespace(cells.cast(string())), array(na, string()))
        elif types.is_integer(field.type) or types.is_floating(field.type):
            nothing = compute.is_in(cells.cast(float64(), safe=False), numbers)
        else:
            continue
        columns = columns.set_column(index, field.name, compute.if_else(nothing, scalar(None, field.type), cells))
    return columns


def _with_numbers(columns: pyarrow.Table, decimal: str, group: str) -> pyarrow.Table:
    """Columns of text that are numbers, with this between their thousands or with a unit, as numbers."""
    digits = (rf"[1-9]\d{{0,2}}({re.escape(group)}\d{{3}})+|" if group else "") + r"\d+"
    pattern = rf"^[+-]?({digits})({re.escape(decimal)}\d+)?$"
    for index, field in enumerate(columns.schema):
        if field.type != string():
            continue
        cells = known(columns.column(index))
        bare = _bare(cells)
        if bare is cells and not group:
            continue  # as it was parsed
        there = compute.drop_null(bare)
        units = set() if bare is cells else {re.sub(_DIGITS, "", each) for each in set(cells.to_pylist()) - {None}}
        if len(there) and len(units) < 2 and compute.all(compute.match_substring_regex(there, pattern)).as_py():
            plain = compute.replace_substring(bare, group, "") if group else bare
            plain = compute.replace_substring(plain, decimal, ".")
            columns = columns.set_column(index, field.name, compute.cast(plain, float64()))
    return columns


def _bare(cells: Any) -> Any:
    """Cells without a percent sign or a currency; the same object where none has one."""
    bare = compute.replace_substring_regex(compute.replace_substring_regex(cells, _BEFORE, r"\1"), _BEHIND, "")
    return cells if bare.equals(cells) else bare


def known(column: Any) -> Any:
    """Cells of text without the space around them; null where they stand for nothing."""
    cells = compute.utf8_trim_whitespace(column)
    nothing = compute.is_in(cells, array(MISSING))
    there = compute.unique(cells.filter(compute.invert(nothing)).drop_null())
    if len(there) > 1 and compute.all(compute.match_substring_regex(there, "^[A-Z]{2}$")).as_py():
        nothing = compute.and_(nothing, compute.not_equal(cells, "NA"))  # a code among codes, as Namibia's is
    return compute.if_else(nothing, scalar(None, string()), cells)


def _with_dates(columns: pyarrow.Table) -> tuple[pyarrow.Table, dict[int, str]]:
    """Columns of dates with the day or the month first as dates; and the doubts about those that may be either."""
    doubts = {}
    for index, field in enumerate(columns.schema):
        if field.type != string():
            continue
        cells = known(columns.column(index))
        there = compute.drop_null(cells)
        if not len(there) or not compute.all(compute.match_substring_regex(there, _DATE)).as_py():
            continue
        result = [cell and re.match(_DATE, cell) for cell in cells.to_pylist()]
        dates = [match for match in result if match]
        first, second = (max(int(match[part]) for match in dates) for part in (1, 3))
        day_first = first > 12 or (second <= 12 and {match[2] for match in dates} == {"."})
        if max(first, second) <= 12 and not day_first:
            doubts[index] = f"holds dates that can be read in two ways ({dates[0][0]!r}); write them as 2020-01-31"
            continue
        order = "%d{0}%m{0}%Y" if day_first else "%m{0}%d{0}%Y"
        times = "", " %H:%M", " %H:%M:%S"
        try:
            made = [
                match and datetime.strptime(match[0], order.format(match[2]) + times[match[0].count(":")])
                for match in result
            ]
        except ValueError:  # some are none, such as 31 February
            continue
        columns = columns.set_column(index, field.name, array(made, timestamp("us")))
    return columns, doubts


def holds_numbers(kind: Any) -> bool:
    """True for numbers, and for yes and no, which count as 1 and 0."""
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))
