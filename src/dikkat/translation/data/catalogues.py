"""Corpora in files of translation programs: TMX memories, gettext catalogues (PO and MO) and XLIFF."""

import gettext
import gzip
import re
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dikkat.extras import missing
from dikkat.translation.data.corpus import MAX_CHARACTERS, Pair, StoredCorpus, check_text, file_state, rereadable
from dikkat.translation.errors import CorpusError

_KINDS = {".tmx": "TMX", ".po": "PO", ".pot": "PO", ".mo": "MO", ".xlf": "XLIFF", ".xliff": "XLIFF"}
_XML = "TMX", "XLIFF"
_PACKED = ".gz"
_LINE_ENDS = str.maketrans("\t\n\r", "   ")
_GZIP_MAGIC = b"\x1f\x8b"
# Elements whose content is code of the original document, not text.
_CODES = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "sc", "ec", "cp", "sub"}
_UNREVIEWED = re.compile(r"new|initial|needs-.*")  # values of XLIFF's `state`
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_GERMANIC = "nplurals=2; plural=(n != 1);"  # gettext's rule for catalogues without Plural-Forms


def kind_of(path: str | Path) -> str | None:
    """Return "TMX", "PO", "MO" or "XLIFF" by the end of a file's name, or None for another kind of file.

    Example:
        >>> kind_of("memory.TMX.gz"), kind_of("messages.po"), kind_of("pairs.tsv")
        ('TMX', 'PO', None)
    """
    return _KINDS.get(Path(str(path).lower().removesuffix(_PACKED)).suffix)


class CatalogueCorpus(StoredCorpus):
    r"""Sentence pairs of a TMX, PO, MO or XLIFF file; `kind_of` tells the kind by the file's name.

    Each iteration reads the file. TMX and XLIFF files may be compressed with gzip, and are read in constant memory,
    without expanding entities. White space within a sentence becomes one space. Inline tags are left out with the code
    that they contain.

    Skipped are fuzzy, obsolete and untranslated entries of PO files; XLIFF targets in the states `new`, `initial` and
    `needs-…`; and units without a text in both languages or with more than `MAX_CHARACTERS` characters on a side. A
    warning has the number of the last ones. An entry with plural forms gives two pairs: the singular, and the plural
    with the form for most numbers.

    Args:
        path: The file.
        source: The language to translate from, such as `en`, which also stands for `en-US`. It can be omitted if the
            file has two languages: the file's header or its first unit has the source language. PO files have no
            language codes: write `msgid` or `msgstr`.
        target: The language of the translations.

    Raises:
        CorpusError: `path` is a pipe, or only one language is named.

    Raises (during iteration):
        CorpusError: The file is damaged, has entities, has more than two languages or lacks a named one; no pairs;
            lxml or polib is not installed.
        OSError: The file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "messages.po")
        ...     _ = path.write_text('msgid "Open"\nmsgstr "Ouvrir"\n', encoding="utf-8")
        ...     list(CatalogueCorpus(path)), list(CatalogueCorpus(path, "msgstr", "msgid"))
        ([('Open', 'Ouvrir')], [('Ouvrir', 'Open')])
    """

    def __init__(self, path: str | Path, source: str | None = None, target: str | None = None) -> None:
        if (source is None) != (target is None):
            raise CorpusError(f"languages: got source={source!r} and target={target!r}; expected both of them")
        self.path = rereadable(path)
        self._has_warned = False
        self._chosen = None if source is None or target is None else (source, target)

    @property
    def languages(self) -> tuple[str, str] | None:
        """The source and the target language: the chosen ones, or those of the first unit; None for PO and MO."""
        if kind_of(self.path) not in _XML:
            return None
        if self._chosen:
            return self._chosen
        first, texts = next(self._units(), (None, {}))
        return _order(first, texts) if len(texts) == 2 else None

    def _pairs(self) -> Iterator[Pair]:
        read = left_out = 0
        choose = _Chooser(self)
        for first, texts in self._units():
            read += 1
            pair = choose(first, texts)
            if pair and all(0 < len(text) <= MAX_CHARACTERS for text in pair):
                yield pair
            else:
                left_out += 1
        if choose.absent and left_out == read and read:
            raise CorpusError(f"{self}: got no text in {choose.absent[0]}; expected {_listed(choose.seen)}")
        if left_out and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self}: {left_out:,} of {read:,} units left out: a side has no text, or more than "
                f"{MAX_CHARACTERS:,} characters",
                UserWarning,
                stacklevel=2,
            )

    def _units(self) -> Iterator[tuple[str | None, dict[str, str]]]:
        """Yield the source language, if the file has it, and the texts by language of each unit."""
        kind = kind_of(self.path)
        if kind == "TMX":
            units = _tmx_units(self.path)
        elif kind == "XLIFF":
            units = _xliff_units(self.path)
        else:
            units = _entry_units(self.path)
        for first, texts in units:
            yield first, {name: check_text(text, str(self)) for name, text in texts.items()}

    def __str__(self) -> str:
        return str(self.path)

    def fingerprint(self) -> str:
        """Return the file's path, size and modification time, and the languages."""
        return " ".join(["catalogue", file_state(self.path), *(self._chosen or ())])


class _Chooser:
    """Chooses the two texts of a unit, and notes the languages of a file."""

    def __init__(self, corpus: CatalogueCorpus) -> None:
        self._corpus = corpus
        self._languages = corpus._chosen
        self.seen: dict[str, None] = {}

    def __call__(self, first: str | None, texts: dict[str, str]) -> Pair | None:
        self.seen |= dict.fromkeys(texts)
        if self._languages is None and len(texts) == 2:
            self._languages = _order(first, texts)
        if self._corpus._chosen is None and len(self.seen) > 2:
            for _, unit_texts in self._corpus._units():
                self.seen |= dict.fromkeys(unit_texts)
            first_seen, second_seen, *_ = self.seen
            raise CorpusError(
                f"{self._corpus}: got {len(self.seen)} languages: {_listed(self.seen)}; expected two. Choose them: "
                f'{{tsv = "{self._corpus}", source = "{first_seen}", target = "{second_seen}"}}'
            )
        if self._languages is None:
            return None
        source, target = (_text_in(language, texts) for language in self._languages)
        return (source, target) if source is not None and target is not None else None

    @property
    def absent(self) -> list[str]:
        """The chosen languages that no unit so far has."""
        return [name for name in self._languages or () if _text_in(name, dict.fromkeys(self.seen, "")) is None]


def _order(first: str | None, texts: dict[str, str]) -> tuple[str, str]:
    """Return the languages of the two texts; the one closest to the header's source language `first` comes first."""
    a, b = texts
    return (b, a) if first is not None and _closeness(b, first) > _closeness(a, first) else (a, b)


def _closeness(language: str, reference: str) -> int:
    """Return 2 for equal languages, 1 for variants of a language such as `en-US` and `en-GB`, else 0."""
    a, b = _code(language), _code(reference)
    return (a == b) + (a.partition("-")[0] == b.partition("-")[0])


def _code(language: str) -> str:
    return language.casefold().replace("_", "-")


def _text_in(language: str, texts: dict[str, str]) -> str | None:
    """Return the text in a language, or else in the first variant of it: `en-US` for `en`."""
    plain = {_code(name): text for name, text in reversed(texts.items())}
    code = _code(language)
    variants = [text for name, text in plain.items() if name.startswith(f"{code}-")]
    return plain.get(code, variants[-1] if variants else None)


def _listed(names: dict[str, None]) -> str:
    return ", ".join(sorted(names)) or "none"


# --- gettext


def open_catalogue(path: Path) -> Any:
    """Return polib's contents of a PO or MO file."""
    try:
        import polib
    except ImportError as error:
        raise CorpusError(f"{path}: {missing('polib', 'catalogues')}") from error
    if path.suffix.lower() == _PACKED:
        raise CorpusError(f"{path}: got a compressed {kind_of(path)} file; expected it without .gz. Run: gunzip {path}")
    with path.open("rb"):  # polib takes the name of a missing file for the text of one
        pass
    try:
        return polib.mofile(str(path)) if kind_of(path) == "MO" else polib.pofile(str(path))
    except (OSError, ValueError, LookupError, struct.error) as error:  # LookupError: an unknown encoding
        reason = str(error).removeprefix(str(path)).strip()
        raise CorpusError(f"{path}: cannot be read ({reason}). Check it with msgfmt --check") from error


def plural_forms(catalogue: Any, path: Path) -> tuple[int, int, int]:
    """Return the number of a catalogue's plural forms, the form of the count 1, and the form of most counts."""
    text = catalogue.metadata.get("Plural-Forms") or _GERMANIC
    match = re.fullmatch(r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=(.*?);?\s*", text, re.DOTALL)
    try:
        if match is None:
            raise ValueError("expected nplurals=N; plural=…;")
        forms = list(map(gettext.c2py(match[2]), range(200)))
    except (ValueError, ZeroDivisionError) as error:
        raise CorpusError(f"{path}: got the Plural-Forms {text!r} ({error}). Correct the header") from error
    return int(match[1]), forms[1], Counter(forms[2:]).most_common(1)[0][0]


def _entry_units(path: Path) -> Iterator[tuple[str | None, dict[str, str]]]:
    catalogue = open_catalogue(path)
    for entry in catalogue.translated_entries():
        sides = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            _, first_form, usual_form = plural_forms(catalogue, path)
            singular = [(entry.msgid, entry.msgstr_plural.get(first_form, ""))] if first_form != usual_form else []
            sides = [*singular, (entry.msgid_plural, entry.msgstr_plural.get(usual_form, ""))]
        for source, target in sides:
            yield "msgid", {"msgid": _one_line(source), "msgstr": _one_line(target)}


# --- XML


def _tmx_units(path: Path) -> Iterator[tuple[str | None, dict[str, str]]]:
    first: str | None = None
    for element in stream_elements(path, "tmx", ("header", "tu")):
        name = local_name(element)
        if name == "header":
            first = element.get("srclang")
            continue
        texts: dict[str, str] = {}
        for variant in element.iterchildren("{*}tuv"):
            language = variant.get(_LANGUAGE) or variant.get("lang") or ""
            segment = next(variant.iterchildren("{*}seg"), None)
            if segment is not None:
                texts.setdefault(language, inner_text(segment, path))
        yield element.get("srclang") or first, texts


def _xliff_units(path: Path) -> Iterator[tuple[str | None, dict[str, str]]]:
    for unit in stream_elements(path, "xliff", (*UNITS, "unit", "group")):
        if local_name(unit) not in UNITS:
            continue
        languages = unit_languages(unit)
        source, target = (next(unit.iterchildren(f"{{*}}{side}"), None) for side in ("source", "target"))
        if source is None or target is None or is_unreviewed(unit, target):
            continue
        texts = [inner_text(side, path) for side in (source, target)]
        if texts[1]:
            yield languages[0], dict(zip(languages, texts, strict=True))


UNITS = ("trans-unit", "segment")
"""XLIFF's elements with a source and a target, of versions 1.2 and 2."""


def unit_languages(unit: Any) -> tuple[str, str]:
    """Return the source and the target language of an XLIFF unit."""
    for ancestor in unit.iterancestors("{*}file", "{*}xliff"):
        for names in (("source-language", "target-language"), ("srcLang", "trgLang")):
            if source := ancestor.get(names[0]):
                return source, ancestor.get(names[1]) or "target"
    return "source", "target"


def is_unreviewed(unit: Any, target: Any) -> bool:
    """Return whether the state of an XLIFF target says that a person has yet to check it."""
    return bool(_UNREVIEWED.fullmatch((target if local_name(unit) == "trans-unit" else unit).get("state", "")))


def local_name(element: Any) -> str:
    """Return the name of an element without its namespace; "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def inner_text(element: Any, path: Path) -> str:
    """Return the text of an element without inline tags and their code."""
    return _one_line("".join(_texts(element, path)))


def _texts(element: Any, path: Path) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if not isinstance(child.tag, str) and type(child).__name__ == "_Entity":
            raise CorpusError(f"{path}, line {element.sourceline}: got the entity {child.text}, which is not expanded")
        if isinstance(child.tag, str) and local_name(child) not in _CODES:
            yield from _texts(child, path)
        yield child.tail or ""


def _one_line(text: str) -> str:
    return re.sub(" {2,}", " ", text.translate(_LINE_ENDS)).strip(" ")


PARSER_OPTIONS = {"resolve_entities": False, "no_network": True, "load_dtd": False, "dtd_validation": False}


@contextmanager
def explaining_xml_errors(path: Path) -> Iterator[Any]:
    """Return a context with the module lxml.etree, which raises `CorpusError` for errors of files."""
    try:
        from lxml import etree
    except ImportError as error:
        raise CorpusError(f"{path}: {missing('lxml', 'catalogues')}") from error
    try:
        yield etree
    except etree.XMLSyntaxError as error:
        raise CorpusError(f"{path}: not well-formed XML ({error.msg})") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path}: the .gz file is truncated or damaged ({error}). Fetch it again") from error


def stream_elements(path: Path, root: str, names: Sequence[str]) -> Iterator[Any]:
    """Yield each element with one of the names when it ends, in constant memory: earlier siblings are removed."""
    with path.open("rb") as file, explaining_xml_errors(path) as etree:
        packed = file.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)] == _GZIP_MAGIC
        stream = gzip.GzipFile(fileobj=file) if packed else file
        tags = [f"{{*}}{name}" for name in names]
        elements = etree.iterparse(stream, tag=tags, collect_ids=False, **PARSER_OPTIONS)
        for _, element in elements:
            yield element
            while element.getprevious() is not None:
                del element.getparent()[0]
        if local_name(elements.root) != root:
            raise CorpusError(f"{path}: got the element <{local_name(elements.root)}>; expected <{root}>")
