"""Corpora: sentence pairs that can be gone through any number of times, and need not fit into memory."""

import gzip
import reprlib
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

from dikkat.extras import missing
from dikkat.translation.errors import CorpusError

Pair = tuple[str, str]

MAX_CHARACTERS = 10_000
"""The longest line that is taken for a sentence. A longer one is a file of another kind, or lacks its line ends."""

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE = 4 * MAX_CHARACTERS + 2  # bytes: four a character in UTF-8 at most, and the line's end


class Corpus(ABC):
    """Sentence pairs that can be gone through any number of times, in the same order each time.

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
        """The (source, target) pairs, one after another."""

    @abstractmethod
    def __str__(self) -> str:
        """The name in messages."""

    def fingerprint(self) -> str | None:
        """A text that identifies this corpus, and changes when it does; None: only its pairs can be compared."""
        return None

    @property
    def whole(self) -> "Corpus":
        """The corpus that this is a part of, whose pairs have the numbers of those of its file; or itself."""
        return self


class PairCorpus(Corpus):
    """Pairs in memory as a corpus.

    Args:
        pairs: (source, target) sentences.

    Raises (when gone through):
        CorpusError: A row that is no pair of texts, or has an empty side.

    Example:
        >>> list(PairCorpus([("Go.", "Va !")]))
        [('Go.', 'Va !')]
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, as they are."""
        for number, pair in enumerate(self.pairs, start=1):
            where = f"{self}, row {number}"
            if not isinstance(pair, (tuple, list)) or [isinstance(side, str) for side in pair] != [True, True]:
                raise CorpusError(f"{where}: got {reprlib.repr(pair)}; expected (source, target), two texts")
            _pair(*pair, where)
            yield pair

    def __str__(self) -> str:
        """The number of pairs."""
        return f"{len(self.pairs):,} {'pair' if len(self.pairs) == 1 else 'pairs'} in memory"


def as_corpus(pairs: Corpus | Sequence[Pair]) -> Corpus:
    """A corpus as it is, and a list of pairs as a corpus.

    Raises:
        TypeError: Neither of them.

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
    """True where each of several equal pairs counts: in a list they are intended, in a file they are an accident."""
    return as_corpus(pairs).fingerprint() is None


class TsvCorpus(Corpus):
    r"""Sentence pairs of a file of lines `source TAB target`; further columns are ignored.

    The file is read as the pairs are gone through, and anew each time.

    Args:
        path: A UTF-8 file, plain or compressed with gzip.

    Raises:
        CorpusError: A pipe.

    Raises (when gone through):
        CorpusError: A line without a tab, with an empty side, too long, or not UTF-8; a broken .gz; no pairs at all.
        OSError: The file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.tsv")
        ...     _ = path.write_text("Go.\tVa !\tCC-BY\nI lost.\tJ'ai perdu.\n", encoding="utf-8")
        ...     list(TsvCorpus(path)) == [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]
        True
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _rereadable(path)

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, in the file's order, stripped of white space at their ends."""
        return _some(self._pairs(), str(self))

    def _pairs(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line:
                continue  # an empty line holds nothing that could be lost
            columns = line.split("\t", 2)
            if len(columns) < 2:
                raise CorpusError(
                    f"{self.path}, line {number}: got {_shortened(line)}, which has no tab; expected a source "
                    "sentence, a tab and its translation"
                )
            yield _pair(columns[0], columns[1], f"{self.path}, line {number}")

    def __str__(self) -> str:
        """The path."""
        return str(self.path)

    def fingerprint(self) -> str:
        """The file's path, size and time of change."""
        return f"tsv {_fingerprint(self.path)}"


class AlignedCorpus(Corpus):
    """Sentence pairs of two files of which line i of one translates line i of the other.

    The files are read side by side as the pairs are gone through, and anew each time.

    Args:
        source: A UTF-8 file of sentences, one a line, plain or compressed with gzip.
        target: The same number of translations.

    Raises:
        CorpusError: A pipe.

    Raises (when gone through):
        CorpusError: Unequal numbers of lines; an empty line, one too long, or not UTF-8; a broken .gz; no pairs at all.
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
        self.source, self.target = _rereadable(source), _rereadable(target)

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, in the files' order, stripped of white space at their ends."""
        return _some(self._pairs(), str(self))

    def _pairs(self) -> Iterator[Pair]:
        lines = enumerate(zip_longest(read_lines(self.source), read_lines(self.target)), start=1)
        for number, (source, target) in lines:
            if source is None or target is None:
                most = number + sum(1 for _ in lines)
                counts = (number - 1, most) if source is None else (most, number - 1)
                raise CorpusError(
                    f"{self.source} has {counts[0]} lines and {self.target} has {counts[1]}: line i of one must "
                    "translate line i of the other"
                )
            if source or target:  # a line that is empty in both holds nothing that could be lost
                yield _pair(source, target, f"{self}, line {number}")

    def __str__(self) -> str:
        """The two paths."""
        return f"{self.source} and {self.target}"

    def fingerprint(self) -> str:
        """Both files' paths, sizes and times of change."""
        return f"aligned {_fingerprint(self.source)} {_fingerprint(self.target)}"


class DatasetCorpus(Corpus):
    """Sentence pairs of a data set of Hugging Face, by its name there or from a local folder, streamed.

    Rows without text on a side, or with more than `MAX_CHARACTERS` characters there, are left out, and a warning says
    how many. It needs the extra `dikkat[datasets]`.

    Args:
        name: Of the data set, as `datasets.load_dataset` takes it, for instance `"Helsinki-NLP/opus_books"`.
        config: Which of its configurations, a pair of languages for instance; None: its only or default one.
        split: Which of its parts.
        source: The column of source sentences; `translation.en` is the field `en` in the column `translation`.
        target: The column of their translations.

    Raises (when gone through, or for its fingerprint):
        CorpusError: The library is not installed; no such data set, configuration, split or column; a column that is
            no text; no network.

    Example:
        >>> print(DatasetCorpus("Helsinki-NLP/opus_books", "en-fr", source="translation.en", target="translation.fr"))
        data set Helsinki-NLP/opus_books (en-fr), split train
    """

    def __init__(self, name: str, config: str | None = None, split: str = "train", *, source: str, target: str) -> None:
        self.name, self.config, self.split = name, config, split
        self.source, self.target = source, target
        self._opened: Any = None

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, in the data set's order, stripped of white space at their ends."""
        return _some(self._pairs(), str(self))

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
            raise CorpusError(f"{self}: no such split ({error})") from error
        try:
            yield from rows
        except OSError as error:
            raise CorpusError(f"{self}: cannot be read ({error}). {_WITHOUT_NETWORK}") from error

    def _builder(self) -> Any:
        if self._opened is None:
            try:
                import datasets  # type: ignore[import-untyped]
            except ImportError as error:
                raise CorpusError(f"{self}: {missing('datasets', 'datasets')}") from error
            try:
                self._opened = datasets.load_dataset_builder(self.name, self.config)
            except (OSError, ValueError, RuntimeError) as error:  # all that it raises for a wrong name, and its network
                raise CorpusError(f"{self}: cannot be opened ({error}). {_WITHOUT_NETWORK}") from error
        return self._opened

    def _text(self, row: Mapping[str, Any], column: str, number: int) -> str:
        value: Any = row
        for name in column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise CorpusError(f"{self}: no column {column!r}; it has {', '.join(_columns(row))}")
            value = value[name]
        if value is not None and not isinstance(value, str):
            raise CorpusError(
                f"{self}, row {number}: column {column!r}: got {type(value).__name__}; expected text. The columns are "
                f"{', '.join(_columns(row))}"
            )
        return (value or "").strip()

    def __str__(self) -> str:
        """Its name, configuration and split."""
        return f"data set {self.name}{f' ({self.config})' if self.config else ''}, split {self.split}"

    def fingerprint(self) -> str:
        """The data set's name and state, and what of it is read."""
        builder = self._builder()
        chosen = (self.name, builder.config_id, builder.hash, self.split, self.source, self.target)
        return f"dataset {' '.join(map(str, chosen))}"


_WITHOUT_NETWORK = (
    "Check its name and configuration, and the network; without one, give the path of a folder that holds its files"
)


def _columns(row: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """The names of a row's columns, nested ones included."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _columns(value, f"{within}{name}.")
        else:
            yield f"{within}{name}"


def _rereadable(path: str | Path) -> Path:
    """A path, if it is no pipe."""
    path = Path(path)
    if path.is_fifo():
        raise CorpusError(f"{path}: got a pipe, which can be read once only; give a file")
    return path


def _fingerprint(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _pair(source: str, target: str, where: str) -> Pair:
    source, target = (_checked(side, where).strip() for side in (source, target))
    if not source or not target:
        side = "target" if source else "source"
        raise CorpusError(f"{where}: the {side} sentence is empty. Remove the pair, on both sides")
    return source, target


def _checked(text: str, where: str) -> str:
    """A text without the byte-order mark that a file joined to another brings along."""
    if "\0" in text:
        raise CorpusError(f"{where}: got a NUL character; expected text: binary, or UTF-16? Convert it to UTF-8")
    return text.removeprefix("\ufeff")


def _some(pairs: Iterable[Pair], where: str) -> Iterator[Pair]:
    """The pairs; an error where there are none."""
    empty = True
    for pair in pairs:
        empty = False
        yield pair
    if empty:
        raise CorpusError(f"{where}: no sentence pairs: the corpus is empty")


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a plain or gzip file, checked one by one, without white space at their ends."""
    path = Path(path)
    if path.is_dir():
        raise CorpusError(f"{path}: got a folder; expected a file of sentences")
    with path.open("rb") as file:
        magic = file.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)]  # a pipe cannot go back
        # A line ends at a line feed and nowhere else: str.splitlines would also cut at U+2028 and the like.
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if magic == _GZIP_MAGIC else file
        number = 0
        while True:
            number += 1
            raw = _read_line(stream, f"{path}, line {number}")
            if number == 1 and b"\n" not in raw and b"\r" in raw.rstrip(b"\r"):
                raise CorpusError(
                    f"{path}: its lines end in CR alone, as those of old Macs; expected LF, or CR LF. Convert it, for "
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
    r"""One line of bytes as text, checked.

    Example:
        >>> decode_line("J'ai faim.\n".encode(), "standard input, line 1")
        "J'ai faim."
    """
    try:
        line = raw.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        # A line cut at the limit can end within a character: then its length is the fault, not its encoding.
        if len(raw) < _LONGEST_LINE:
            raise CorpusError(
                f"{where}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}). Convert it to UTF-8"
            ) from error
        line = raw.decode("utf-8", errors="replace")
    if len(line) > MAX_CHARACTERS:
        raise CorpusError(
            f"{where}: got more than {MAX_CHARACTERS:,} characters; expected one sentence a line. It begins "
            f"{_shortened(line)}"
        )
    return _checked(line, where).strip(" \r\n\f\v")


def _shortened(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
