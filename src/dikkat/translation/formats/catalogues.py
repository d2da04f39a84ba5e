"""Filling of missing translations in PO and XLIFF files."""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from dikkat.errors import InputError
from dikkat.translation.data.catalogues import (
    PARSER_OPTIONS,
    UNITS,
    explaining_xml_errors,
    inner_text,
    is_unreviewed,
    kind_of,
    local_name,
    open_catalogue,
    plural_forms,
)
from dikkat.translation.errors import CorpusError

_WIDTH = 78  # columns of a written PO entry, as gettext writes it
# Inline elements without code in them, which can be moved like the tags of HTML.
_MOVABLE = {"g", "x", "bx", "ex", "mrk", "pc", "sc", "ec"}
_BYTE_ORDER_MARK = "\ufeff"
_HEADER_COMMENT = re.compile(r"\s*(#([\s#].*)?)?", re.DOTALL)
# The lines of a PO entry and of comments before it, to the end of its last translation.
_ENTRY = re.compile(r"""(?s:.*?)(?:^|[\r\n])[ \t]*msgstr[^\r\n]*(?:[\r\n]\s*(?:msgstr|")[^\r\n]*)*""")
_INNER_BREAK = re.compile(r"(?<=\S)\s*\n\s*(?=\S)")
_LINE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


@dataclass
class Gap:
    """A missing translation.

    Attributes:
        text: The source text; lines are translated one by one, but with `markup`, line ends become spaces.
        line: The line of the file, for messages.
        write: The function that takes the translation.
        markup: Whether the text has tags, which move with the words that they enclose.
    """

    text: str
    line: int
    write: Callable[[str], object]
    markup: bool = False

    def __post_init__(self) -> None:
        if self.markup:  # a line end has no meaning, and may be between two attributes or within an element
            self.text = _INNER_BREAK.sub(" ", self.text)

    @property
    def sentences(self) -> list[str]:
        """The text's lines without the white space around them; empty lines are left out."""
        return [line.strip() for line in self.text.split("\n") if line.strip()]

    def fill(self, translations: list[str]) -> bool:
        r"""Write the translations of `sentences`, with the line ends and indents of the source, unless one is empty.

        Returns:
            Whether the translation was written.

        Example:
            >>> Gap("  Go.\n\nI lost.\n", 1, print).fill(["Va !", "J'ai perdu."])
              Va !
            <BLANKLINE>
            J'ai perdu.
            <BLANKLINE>
            True
        """
        remaining, written = iter(translations), []
        for line in self.text.split("\n"):
            match = _LINE.fullmatch(line)
            before, text, after = match.groups() if match else ("", line, "")
            written.append(before + (next(remaining) if text else "") + after)
        if not all(text.strip() for text in translations):
            return False
        self.write("\n".join(written))
        return True


@dataclass
class Catalogue:
    """A PO or XLIFF file, its gaps, and the numbers of unchanged texts.

    Attributes:
        gaps: The missing translations.
        translated: The number of texts that have a translation.
        fuzzy: The number of fuzzy or unreviewed translations that stay.
        coded: The number of XLIFF units without translation that have inline code, which stay empty.
    """

    gaps: list[Gap] = field(default_factory=list)
    translated: int = 0
    fuzzy: int = 0
    coded: int = 0
    content: Callable[[], bytes] = bytes
    """A function that returns the file's content with the written translations."""


def read_catalogue(path: Path, *, replace_fuzzy: bool = False, markup: bool = False) -> Catalogue:
    """Return a PO or XLIFF file with its gaps.

    A filled PO entry is fuzzy, and has no previous source text (`#|`). A filled XLIFF target has the state
    `needs-review-translation` (version 1) or `initial` (version 2). So translators see that a person has yet to check
    it. In a plural, the form of the count 1 is a gap of the singular, and the other forms are gaps of the plural. In a
    PO file all other entries stay byte for byte.

    Args:
        path: The file, by whose name `kind_of` tells the kind.
        replace_fuzzy: Whether fuzzy entries, and XLIFF targets in the states `new`, `initial` and `needs-…`, are gaps.
        markup: Whether texts without inline elements are HTML too.

    Raises:
        CorpusError: The file is damaged, or the library that reads it is not installed.
        InputError: A file of another kind.
        OSError: The file cannot be read.
    """
    kind = kind_of(path)
    if kind == "PO":
        return _read_entries(path, replace_fuzzy, markup)
    if kind == "XLIFF" and path.suffix.lower() != ".gz":
        return _read_units(path, replace_fuzzy, markup)
    raise InputError(f"{path}: got a {kind} file; expected a PO or XLIFF file, or a text file with sentences")


# --- PO


def _read_entries(path: Path, replace_fuzzy: bool, markup: bool) -> Catalogue:
    catalogue, filled = open_catalogue(path), set[int]()
    result = Catalogue(content=lambda: _splice(catalogue, path, filled))
    for index, entry in enumerate(catalogue):
        if entry.obsolete:
            continue
        if entry.fuzzy and not replace_fuzzy:
            result.fuzzy += 1
            continue
        gaps = [
            Gap(text, max(entry.linenum, 1), partial(_write_entry, entry, form, index, filled), markup)
            for form, text in _forms(entry, catalogue, path)
            if entry.fuzzy or not (entry.msgstr if form is None else entry.msgstr_plural.get(form))
        ]
        result.gaps += gaps
        result.translated += not gaps
    return result


def _forms(entry: Any, catalogue: Any, path: Path) -> Iterator[tuple[int | None, str]]:
    """Yield each form of an entry, None without plural forms, and its source text."""
    if not entry.msgid_plural:
        yield None, entry.msgid
        return
    count, first_form, usual_form = plural_forms(catalogue, path)
    for form in range(count):
        yield form, entry.msgid if form == first_form != usual_form else entry.msgid_plural


def _write_entry(entry: Any, form: int | None, index: int, filled: set[int], text: str) -> None:
    if form is None:
        entry.msgstr = text
    else:
        entry.msgstr_plural[form] = text
    entry.previous_msgid = entry.previous_msgid_plural = entry.previous_msgctxt = None
    if not entry.fuzzy:
        entry.flags.insert(0, "fuzzy")
    filled.add(index)


def _splice(catalogue: Any, path: Path, filled: set[int]) -> bytes:
    """Return the file with only the filled entries rewritten; polib would wrap all others again."""
    text = path.read_bytes().decode(catalogue.encoding)
    lines = list(io.StringIO(text.removeprefix(_BYTE_ORDER_MARK), newline=""))  # polib's lines, with their ends
    starts = [entry.linenum - 1 for entry in catalogue] + [len(lines)]
    if starts[0] < 0:  # polib gives the first entry of a file without header no line and no translator comments
        starts[0] = next(number for number, line in enumerate(lines) if not _HEADER_COMMENT.fullmatch(line))
    written = [_BYTE_ORDER_MARK * text.startswith(_BYTE_ORDER_MARK), *lines[: starts[0]]]
    for index, (start, end) in enumerate(pairwise(starts)):
        block = "".join(lines[start:end])
        if index in filled and (old := _ENTRY.match(block)):
            line_end = lines[start][len(lines[start].rstrip("\r\n")) :] or "\n"
            block = catalogue[index].__unicode__(_WIDTH).rstrip("\n").replace("\n", line_end) + block[old.end() :]
        written.append(block)
    try:
        return "".join(written).encode(catalogue.encoding)
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{path}: {error.object[error.start : error.end]!r} of a translation is not in {catalogue.encoding}. "
            "Convert the file first: msgconv --to-code=UTF-8"
        ) from error


# --- XLIFF


def _read_units(path: Path, replace_unreviewed: bool, markup: bool) -> Catalogue:
    with explaining_xml_errors(path) as etree:
        tree = etree.parse(str(path), etree.XMLParser(**PARSER_OPTIONS))
    if local_name(tree.getroot()) != "xliff":
        raise CorpusError(f"{path}: got the element <{local_name(tree.getroot())}>; expected <xliff>")

    def content() -> bytes:
        declared = tree.docinfo.encoding or "UTF-8"
        result: bytes = etree.tostring(tree, xml_declaration=True, encoding=declared)
        return result + b"\n"

    result = Catalogue(content=content)
    for unit in tree.iter(*(f"{{*}}{name}" for name in UNITS)):
        source, target = (next(unit.iterchildren(f"{{*}}{side}"), None) for side in ("source", "target"))
        choice = next(filter(None, (element.get("translate") for element in (unit, *unit.iterancestors()))), "yes")
        if source is None or choice == "no" or not inner_text(source, path):
            continue
        if target is not None and inner_text(target, path):
            unreviewed = is_unreviewed(unit, target)
            result.translated += not unreviewed
            result.fuzzy += unreviewed and not replace_unreviewed
            if not unreviewed or not replace_unreviewed:
                continue
        tags = {local_name(element) for element in source.iterdescendants() if isinstance(element.tag, str)}
        if tags <= _MOVABLE:
            text = _inner_xml(source, etree) if tags else "".join(source.itertext())
            write = partial(_write_target, unit, source, target, etree, bool(tags))
            result.gaps.append(Gap(text, unit.sourceline, write, bool(tags) or markup))
        else:
            result.coded += 1
    return result


def _inner_xml(element: Any, etree: Any) -> str:
    text = etree.tostring(element, encoding="unicode", with_tail=False)
    return str(text[text.index(">") + 1 : text.rindex("<")])


def _write_target(unit: Any, source: Any, target: Any, etree: Any, markup: bool, text: str) -> None:
    name = source.tag.replace("source", "target")
    if markup:
        declared = {f"xmlns:{prefix}" if prefix else "xmlns": uri for prefix, uri in source.nsmap.items()}
        names = "".join(f" {attribute}={quoteattr(uri)}" for attribute, uri in declared.items())
        new = etree.fromstring(f"<target{names}>{text}</target>", etree.XMLParser(**PARSER_OPTIONS))
    else:
        new = etree.Element(name, nsmap=source.nsmap)
        new.text = text
    if local_name(unit) == "trans-unit":
        new.set("state", "needs-review-translation")
    else:
        unit.set("state", "initial")
    sibling = next(unit.iterchildren("{*}seg-source"), source) if target is None else target
    new.tail = sibling.tail
    if target is None:
        sibling.addnext(new)
    else:
        unit.replace(target, new)
