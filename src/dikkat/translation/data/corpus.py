"""Corpora: sentence pairs that can be iterated over any number of times and need not fit into memory."""

import csv
import gzip
import reprlib
import warnings
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

import regex

from dikkat.extras import missing
from dikkat.translation.errors import CorpusError

Pair = tuple[str, str]

MAX_CHARACTERS = 10_000
"""The longest sentence. A file with a longer line is of another kind or lacks line ends."""

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE = 4 * MAX_CHARACTERS + 2  # bytes: at most four per character in UTF-8, and the line end
_HEAD_LINES = 10_000  # lines of a table that show its delimiter and whether its cells are quoted
_QUOTED_TABLE = regex.compile(r'(?:(?:"(?:[^"]|"")*+"|[^"\t\n]*+)[\t\n])*+')
_NEEDS_QUOTES = regex.compile(r'["\t]|^[ \f\v\ufeff]|[ \f\v]$')
_LINE_BREAK = regex.compile(r"[\r\n]")
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}

COLUMN_NAME = regex.compile(
    r"(?:(?P<language>(?:ar|bg|ca|cs|cy|da|de|el|en|es|et|eu|fa|fi|fr|ga|he|hi|hr|hu|id|it|ja|ko|la|lt|lv|nb|nl|no|pl|"
    r"pt|ro|ru|sk|sl|sr|sv|th|tr|uk|vi|zh)(?:[-_][a-z]{2,4})?|arabic|chinese|czech|danish|dutch|english|finnish|french|"
    r"german|greek|hebrew|hindi|hungarian|italian|japanese|korean|latin|norwegian|persian|polish|portuguese|romanian|"
    r"russian|spanish|swedish|turkish|ukrainian|vietnamese|welsh)|source|target|src|trg|tgt|translation|text|sentence)"
    r"(?:[ _-](?:text|sentence|source|target|language))?",
    regex.IGNORECASE,
)
"""Column names that are recognised in the first row of a table."""


class Corpus(ABC):
    """Sentence pairs that can be iterated over any number of times, each time in the same order.

    Example:
        >>> class Squares(Corpus):
        ...     def __iter__(self):
        ...         return ((str(number), str(number * number)) for number in range(3))
        ...
        ...     def __str__(self):
        ...         return "squares"
        >>> list(Squares()) == list(Squares()) == [("0", "0"), ("1", "1"), ("2", "4")]
        True
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Pair]:
        """Yield the (source, target) pairs."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the corpus's name for messages."""

    def fingerprint(self) -> str | None:
        """Return a text that identifies this corpus and changes with it; None: only the pairs identify it."""
        return None

    @property
    def unsplit(self) -> "Corpus":
        """The corpus that this one is a part of, with the file's numbering of pairs; or this corpus itself."""
        return self


class PairCorpus(Corpus):
    """A corpus of pairs in memory.

    Args:
        pairs: (source, target) sentences.

    Raises (during iteration):
        CorpusError: A row is not a pair of texts, or has an empty side.

    Example:
        >>> list(PairCorpus([("Go.", "Va !")]))
        [('Go.', 'Va !')]
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        for number, pair in enumerate(self.pairs, start=1):
            where = f"{self}, row {number}"
            if not isinstance(pair, (tuple, list)) or [isinstance(side, str) for side in pair] != [True, True]:
                raise CorpusError(f"{where}: got {reprlib.repr(pair)}; expected (source, target), two texts")
            _check_pair(*pair, where)
            yield pair

    def __str__(self) -> str:
        return f"{len(self.pairs):,} {'pair' if len(self.pairs) == 1 else 'pairs'} in memory"


def as_corpus(pairs: Corpus | Sequence[Pair]) -> Corpus:
    """Return a corpus unchanged, or a list of pairs as a corpus.

    Raises:
        TypeError: `pairs` is neither a corpus nor a list.

    Example:
        >>> print(as_corpus([("Go.", "Va !")]))
        1 pair in memory
    """
    if isinstance(pairs, Corpus):
        return pairs
    if isinstance(pairs, Sequence) and not isinstance(pairs, (str, bytes)):
        return PairCorpus(pairs)
    raise TypeError(
        f"corpus: got {type(pairs).__name__}; expected a list of (source, target) pairs, or a Corpus such as "
        "TsvCorpus(path)"
    )


def keeps_duplicates(pairs: Corpus | Sequence[Pair]) -> bool:
    """Return whether equal pairs all count: they are deliberate in a list, and an accident in a file."""
    return as_corpus(pairs).fingerprint() is None


class StoredCorpus(Corpus):
    """A corpus that reads its pairs and raises `CorpusError` if there are none."""

    def __iter__(self) -> Iterator[Pair]:
        empty = True
        for pair in self._pairs():
            empty = False
            yield pair
        if empty:
            raise CorpusError(f"{self}: got no sentence pairs; expected at least one")

    @abstractmethod
    def _pairs(self) -> Iterator[Pair]: ...


class TsvCorpus(StoredCorpus):
    r"""Sentence pairs of a table: lines `source TAB target`, or CSV if the file's name ends in `.csv` or `.csv.gz`.

    Each iteration reads the file. Without names of columns the first two columns are read, and a first row such as
    `English TAB French` is skipped with a warning. Cells of a CSV may be in quotation marks, as may cells of a TSV
    that has no other quotation marks in its first 10,000 lines.

    Args:
        path: A UTF-8 file, plain or compressed with gzip.
        source: The column of source sentences, by its name in the first row.
        target: The column of their translations.

    Raises:
        CorpusError: `path` is a pipe, or only one column is named.

    Raises (during iteration):
        CorpusError: A line without a tab, with an empty side, too long, or not UTF-8; a broken .gz; no pairs; a missing
            column; a quotation mark that is never closed.
        OSError: The file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.csv")
        ...     _ = path.write_text('English,id,French\n"Yes, I am.",7,"Oui, je le suis."\n', encoding="utf-8")
        ...     corpus = TsvCorpus(path, "English", "French")
        ...     list(corpus), corpus.languages
        ([('Yes, I am.', 'Oui, je le suis.')], ('English', 'French'))
    """

    def __init__(self, path: str | Path, source: str | None = None, target: str | None = None) -> None:
        if (source is None) != (target is None):
            raise CorpusError(f"columns: got source={source!r} and target={target!r}; expected the names of both")
        self.path = rereadable(path)
        self._columns = [] if source is None or target is None else [source, target]
        self._has_warned = False

    @property
    def languages(self) -> tuple[str, str] | None:
        """The languages in the names of the selected columns, or else in the first row; None if there are none."""
        _, rows = self._rows()
        source, target = self._columns or find_header(next(rows, (0, []))[1]) or ["source", "target"]
        is_generic = any(label and not label["language"] for label in map(COLUMN_NAME.fullmatch, (source, target)))
        return None if is_generic else (source, target)

    def _pairs(self) -> Iterator[Pair]:
        return (pair for _, pair in self.numbered_pairs())

    def _rows(self) -> tuple[str, Iterator[tuple[int, list[str]]]]:
        return read_rows(partial(read_lines, self.path), self.path)

    def numbered_pairs(self) -> Iterator[tuple[int, Pair]]:
        """Yield the pairs with the numbers of their lines, from 1."""
        delimiter, rows = self._rows()
        source, target = 0, 1
        for index, (number, row) in enumerate(rows):
            where = f"{self.path}, line {number}"
            if index == 0 and self._columns:
                if missing := [name for name in self._columns if name not in row]:
                    raise CorpusError(f"{where}: column {missing[0]!r} is missing; expected one of {', '.join(row)}")
                source, target = map(row.index, self._columns)
            elif index == 0 and (header := find_header(row)):
                if not self._has_warned:
                    self._has_warned = True
                    warnings.warn(skipped_header(header, where), UserWarning, stacklevel=2)
            elif len(row) <= max(source, target):
                raise CorpusError(
                    f"{where}: got {_shortened(row[-1])}, which has no {delimiter}; expected a source sentence, a "
                    f"{delimiter} and its translation"
                )
            else:
                yield number, _check_pair(row[source], row[target], where)

    def __str__(self) -> str:
        return str(self.path)

    def fingerprint(self) -> str:
        """Return the file's path, size and modification time, and the columns."""
        return " ".join(["tsv", file_state(self.path), *self._columns])


def read_rows(read: Callable[[], Iterator[str]], name: str | Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Return the name of a table's delimiter, and the line number and cells of each non-empty row.

    `read` returns the lines from the first one, and is called twice. Errors call the table `name`.
    """
    head = [f"{line}\n" for line in islice(read(), _HEAD_LINES)]
    is_csv, text = ".csv" in [suffix.lower() for suffix in Path(name).suffixes], "".join(head)
    delimiter = max(_DELIMITERS, key=lambda mark: _count_like_rows(head, mark)) if is_csv else "\t"
    is_quoted = is_csv or ('"' in text and _QUOTED_TABLE.fullmatch(text, partial=True))
    lines = read()

    def rows() -> Iterator[tuple[int, list[str]]]:
        if not is_quoted:
            yield from ((number, line.split(delimiter)) for number, line in enumerate(lines, start=1) if line)
            return
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
        try:
            yield from ((reader.line_num, [cell.replace("\n", " ") for cell in row]) for row in reader if row)
        except csv.Error as error:
            raise CorpusError(f"{name}, line {reader.line_num}: a quotation mark is not closed ({error})") from error

    return _DELIMITERS[delimiter], rows()


def format_rows(pairs: Sequence[Pair]) -> Iterator[str]:
    r"""Yield the lines of a table from which `TsvCorpus` reads the pairs, with line breaks as spaces.

    Example:
        >>> list(format_rows([("Go.", "Va !"), ('Say "Go" now.', "Va !")]))
        ['"Go."\t"Va !"', '"Say ""Go"" now."\t"Va !"']
    """
    rows = [[_LINE_BREAK.sub(" ", cell) for cell in pair] for pair in pairs]
    if rows and find_header(rows[0]):  # without names, this pair would be read as names
        yield "source\ttarget"
    if any(_NEEDS_QUOTES.search(cell) for row in rows for cell in row):
        # Quotes in all rows: then any selection of the lines is read with quotes.
        rows = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    yield from map("\t".join, rows)


def _count_like_rows(lines: Sequence[str], delimiter: str) -> int:
    try:
        widths = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter) if len(row) > 1)
    except csv.Error:  # an open quotation mark, which reading the rows reports with its line
        return 0
    return max(widths.values(), default=0)


def find_header(row: Sequence[str]) -> list[str] | None:
    """Return the names of the first two columns if a table's first row has names, such as English and French."""
    names = [cell.strip() for cell in row[:2]]
    return names if len(set(names)) == 2 and all(map(COLUMN_NAME.fullmatch, names)) else None


def skipped_header(header: Sequence[str], where: str) -> str:
    """Return the warning about a first row that has names."""
    return f"{where}: skipped the column names {' and '.join(map(repr, header))}"


class AlignedCorpus(StoredCorpus):
    """Sentence pairs of two files; line i of one file translates line i of the other. Each iteration reads both.

    Args:
        source: A UTF-8 file of sentences, one a line, plain or compressed with gzip.
        target: The same number of translations.

    Raises:
        CorpusError: A file is a pipe.

    Raises (during iteration):
        CorpusError: Different numbers of lines; a line that is empty, too long, or not UTF-8; a broken .gz; no pairs.
        OSError: A file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     english, french = pathlib.Path(folder, "train.en"), pathlib.Path(folder, "train.fr")
        ...     _ = english.write_text("Go.", encoding="utf-8"), french.write_text("Va !", encoding="utf-8")
        ...     list(AlignedCorpus(english, french))
        [('Go.', 'Va !')]
    """

    def __init__(self, source: str | Path, target: str | Path) -> None:
        self.source, self.target = rereadable(source), rereadable(target)

    def _pairs(self) -> Iterator[Pair]:
        lines = enumerate(zip_longest(read_lines(self.source), read_lines(self.target)), start=1)
        for number, (source, target) in lines:
            if source is None or target is None:
                line_count = number + sum(1 for _ in lines)
                counts = (number - 1, line_count) if source is None else (line_count, number - 1)
                raise CorpusError(
                    f"{self.source} has {counts[0]} lines and {self.target} has {counts[1]}: line i of one must "
                    "translate line i of the other"
                )
            if source or target:  # lines that are empty in both files are skipped
                yield _check_pair(source, target, f"{self}, line {number}")

    def __str__(self) -> str:
        return f"{self.source} and {self.target}"

    def fingerprint(self) -> str:
        """Return both files' paths, sizes and modification times."""
        return f"aligned {file_state(self.source)} {file_state(self.target)}"


class DatasetCorpus(StoredCorpus):
    """Sentence pairs streamed from a Hugging Face data set, by its name or from a local folder.

    Rows with an empty side, or with more than `MAX_CHARACTERS` characters on a side, are skipped, and a warning has
    their number. The extra `dikkat[datasets]` is required.

    Args:
        name: The data set's name for `datasets.load_dataset`, such as `"Helsinki-NLP/opus_books"`.
        config: The name of a configuration, such as a pair of languages; None: the only or the default one.
        split: The name of a split.
        source: The column of source sentences; `translation.en` is the field `en` in the column `translation`.
        target: The column of their translations.

    Raises (during iteration, or by `fingerprint`):
        CorpusError: The library is not installed; the data set, configuration, split or column does not exist; a
            column is not text; there is no network.

    Example:
        >>> print(DatasetCorpus("Helsinki-NLP/opus_books", "en-fr", source="translation.en", target="translation.fr"))
        data set Helsinki-NLP/opus_books (en-fr), split train
    """

    def __init__(self, name: str, config: str | None = None, split: str = "train", *, source: str, target: str) -> None:
        self.name, self.config, self.split = name, config, split
        self.source, self.target = source, target
        self._dataset: Any = None

    def _pairs(self) -> Iterator[Pair]:
        left_out = 0
        for number, row in enumerate(self._rows(), start=1):
            pair = (self._text(row, self.source, number), self._text(row, self.target, number))
            if all(0 < len(text) <= MAX_CHARACTERS for text in pair):
                yield pair
            else:
                left_out += 1
        if left_out:
            warnings.warn(
                f"{self}: {left_out:,} of {number:,} rows left out: a side has no text, or more than "
                f"{MAX_CHARACTERS:,} characters",
                UserWarning,
                stacklevel=2,
            )

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        builder = self._builder()
        try:
            rows = builder.as_streaming_dataset(split=self.split)
        except ValueError as error:
            raise CorpusError(f"{self}: unknown split ({error})") from error
        try:
            yield from rows
        except OSError as error:
            raise CorpusError(f"{self}: cannot be read ({error}). {_WITHOUT_NETWORK}") from error

    def _builder(self) -> Any:
        if self._dataset is None:
            try:
                import datasets  # type: ignore[import-untyped]
            except ImportError as error:
                raise CorpusError(f"{self}: {missing('datasets', 'datasets')}") from error
            try:
                self._dataset = datasets.load_dataset_builder(self.name, self.config)
            except (OSError, ValueError, RuntimeError) as error:  # for a wrong name or without a network
                raise CorpusError(f"{self}: cannot be opened ({error}). {_WITHOUT_NETWORK}") from error
        return self._dataset

    def _text(self, row: Mapping[str, Any], column: str, number: int) -> str:
        value: Any = row
        for name in column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise CorpusError(f"{self}: column {column!r} is missing; expected one of {', '.join(_columns(row))}")
            value = value[name]
        if value is not None and not isinstance(value, str):
            raise CorpusError(
                f"{self}, row {number}: column {column!r}: got {type(value).__name__}; expected text. The columns are "
                f"{', '.join(_columns(row))}"
            )
        return (value or "").strip()

    def __str__(self) -> str:
        return f"data set {self.name}{f' ({self.config})' if self.config else ''}, split {self.split}"

    def fingerprint(self) -> str:
        """Return the data set's name and state, and the split and columns that are read."""
        builder = self._builder()
        identity = (self.name, builder.config_id, builder.hash, self.split, self.source, self.target)
        return f"dataset {' '.join(map(str, identity))}"


_WITHOUT_NETWORK = (
    "Check its name and configuration, and the network; without a network, give the path of a folder with its files"
)


def _columns(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _columns(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def rereadable(path: str | Path) -> Path:
    """Return the path of a file that can be read several times; a pipe raises."""
    path = Path(path)
    if path.is_fifo():
        raise CorpusError(f"{path}: got a pipe, which can be read only once; expected a file")
    return path


def file_state(path: Path) -> str:
    """Return a file's path, size and modification time."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _check_pair(source: str, target: str, where: str) -> Pair:
    source, target = (check_text(side, where).strip() for side in (source, target))
    if not source or not target:
        side = "target" if source else "source"
        raise CorpusError(f"{where}: the {side} sentence is empty. Remove the pair, on both sides")
    return source, target


def check_text(text: str, where: str) -> str:
    """Return the text without a leading byte-order mark, which concatenated files may have on any line."""
    if "\0" in text:
        raise CorpusError(f"{where}: got a NUL character; expected text: binary, or UTF-16? Convert it to UTF-8")
    return text.removeprefix("\ufeff")


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the checked lines of a plain or gzip file, without white space at their ends."""
    path = Path(path)
    if path.is_dir():
        raise CorpusError(f"{path}: got a folder; expected a file of sentences")
    with path.open("rb") as file:
        magic = file.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)]  # `seek` would fail on a pipe
        # Only a line feed ends a line: str.splitlines would also split at U+2028, for example.
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if magic == _GZIP_MAGIC else file
        number = 0
        while True:
            number += 1
            raw = _read_line(stream, f"{path}, line {number}")
            if number == 1 and b"\n" not in raw and b"\r" in raw.rstrip(b"\r"):
                raise CorpusError(
                    f"{path}: got lines that end in CR, as on old Macs; expected LF or CR LF. Convert the file, for "
                    r"instance with tr '\r' '\n'"
                )
            if not raw:
                return
            yield decode_line(raw, f"{path}, line {number}")


def _read_line(stream: BinaryIO, where: str) -> bytes:
    try:
        return stream.readline(_LONGEST_LINE)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{where}: the .gz file is truncated or damaged ({error}). Fetch it again") from error


def decode_line(raw: bytes, where: str) -> str:
    r"""Return a line of bytes as checked text; errors name it `where`.

    Example:
        >>> decode_line("J'ai faim.\n".encode(), "standard input, line 1")
        "J'ai faim."
    """
    try:
        line = raw.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        # A line cut at the limit can end within a character: then the line is too long, but may be UTF-8.
        if len(raw) < _LONGEST_LINE:
            raise CorpusError(
                f"{where}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}). Convert it to UTF-8"
            ) from error
        line = raw.decode("utf-8", errors="replace")
    if len(line) > MAX_CHARACTERS:
        raise CorpusError(
            f"{where}: got more than {MAX_CHARACTERS:,} characters; expected one sentence a line. The line begins with "
            f"{_shortened(line)}"
        )
    return check_text(line, where).strip(" \r\n\f\v")


def _shortened(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
