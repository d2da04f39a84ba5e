"""Sentence pairs from files, and splits of them that share no source sentence."""

import gzip
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from dikkat.translation.errors import CorpusError

Pair = tuple[str, str]

MAX_CHARACTERS = 10_000
"""The longest line that is taken for a sentence. A longer one is a file of another kind, or lacks its line ends."""

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE = 4 * MAX_CHARACTERS + 2  # bytes: four a character in UTF-8 at most, and the line's end


def read_tsv(path: str | Path) -> list[Pair]:
    r"""Sentence pairs from a file of lines `source TAB target`; further columns are ignored.

    Args:
        path: a UTF-8 file, plain or compressed with gzip.

    Returns:
        The pairs, in the file's order, stripped of white space at their ends.

    Raises:
        CorpusError: a line without a tab, with an empty side, too long, or not UTF-8; a broken .gz; no pairs at all.
        OSError: the file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.tsv")
        ...     _ = path.write_text("Go.\tVa !\tCC-BY\nI lost.\tJ'ai perdu.\n", encoding="utf-8")
        ...     read_tsv(path)
        [('Go.', 'Va !'), ('I lost.', "J'ai perdu.")]
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue  # an empty line holds nothing that could be lost
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(
                f"{path}, line {number}: no tab. Each line must be a source sentence, a tab and its translation; "
                f"this one is {_shortened(line)}"
            )
        pairs.append(_pair(columns[0], columns[1], f"{path}, line {number}"))
    return _some(pairs, str(path))


def read_aligned(source: str | Path, target: str | Path) -> list[Pair]:
    """Sentence pairs from two files of which line i of one translates line i of the other.

    Args:
        source: a UTF-8 file of sentences, one a line, plain or compressed with gzip.
        target: the same number of translations.

    Returns:
        The pairs, in the files' order, stripped of white space at their ends.

    Raises:
        CorpusError: unequal numbers of lines; an empty line, one too long, or not UTF-8; a broken .gz; no pairs at all.
        OSError: a file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     english, french = pathlib.Path(folder, "train.en"), pathlib.Path(folder, "train.fr")
        ...     _ = english.write_text("Go.", encoding="utf-8"), french.write_text("Va !", encoding="utf-8")
        ...     read_aligned(english, french)
        [('Go.', 'Va !')]
    """
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise CorpusError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: line i of one must translate line i "
            "of the other"
        )
    pairs = [
        _pair(first, second, f"{source} and {target}, line {number}")
        for number, (first, second) in enumerate(zip(sources, targets, strict=True), start=1)
        if first or second  # a line that is empty in both holds nothing that could be lost
    ]
    return _some(pairs, f"{source} and {target}")


def hold_out(pairs: Sequence[Pair], share: float, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Split pairs in two that have no source sentence in common, whatever its case and spacing.

    A sentence with several translations goes to one side with all of them, so a model cannot score by having seen it.

    Args:
        pairs: the corpus; equal pairs are taken once.
        share: the part of the source sentences to hold out, between 0 and 1; at least one sentence is.
        seed: which sentences.

    Returns:
        Training pairs and held-out pairs, each in the corpus's order.

    Raises:
        CorpusError: a share outside 0…1, or fewer than two different source sentences.

    Example:
        >>> training, held_out = hold_out([("Go.", "Va !"), ("go.", "Marche."), ("I lost.", "J'ai perdu.")], share=0.5)
        >>> training, held_out
        ([('I lost.', "J'ai perdu.")], [('Go.', 'Va !'), ('go.', 'Marche.')])
    """
    if not 0.0 < share < 1.0:
        raise CorpusError(f"the share to hold out is {share}; it must be between 0 and 1")
    keys = sorted({_same(source) for source, _ in pairs})
    if len(keys) < 2:
        raise CorpusError(
            f"the corpus has {len(keys)} different source sentences: with fewer than two there is nothing to hold out. "
            "Give more pairs, or separate validation files"
        )
    random.Random(seed).shuffle(keys)
    held = set(keys[: min(len(keys) - 1, max(1, round(share * len(keys))))])
    distinct = list(dict.fromkeys(pairs))
    training = [pair for pair in distinct if _same(pair[0]) not in held]
    return training, [pair for pair in distinct if _same(pair[0]) in held]


def _same(sentence: str) -> str:
    """What two sentences share that are the same to a reader."""
    return " ".join(sentence.casefold().split())


def _pair(source: str, target: str, where: str) -> Pair:
    source, target = source.strip(), target.strip()
    if not source or not target:
        side = "target" if source else "source"
        raise CorpusError(f"{where}: the {side} sentence is empty. Remove the line, on both sides")
    return source, target


def _some(pairs: list[Pair], where: str) -> list[Pair]:
    if not pairs:
        raise CorpusError(f"{where}: no sentence pairs: the corpus is empty")
    return pairs


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a plain or gzip file, checked one by one, without white space at their ends.

    Args:
        path: a UTF-8 file.

    Raises:
        CorpusError: a line too long or not UTF-8; a broken .gz; a folder.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if path.is_dir():
        raise CorpusError(f"{path}: a folder, where a file of sentences must be")
    with path.open("rb") as file:
        magic = file.read(len(_GZIP_MAGIC))
        file.seek(0)
        # A line ends at a line feed and nowhere else: str.splitlines would also cut at U+2028 and the like.
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if magic == _GZIP_MAGIC else file
        number = 0
        while True:
            number += 1
            raw = _read_line(stream, f"{path}, line {number}")
            if not raw:
                return
            yield decode_line(raw, f"{path}, line {number}", first=number == 1)


def _read_line(stream: BinaryIO, where: str) -> bytes:
    try:
        return stream.readline(_LONGEST_LINE)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{where}: the .gz file is truncated or damaged ({error}). Fetch it again") from error


def decode_line(raw: bytes, where: str, *, first: bool = False) -> str:
    r"""One line of bytes as text, checked.

    Args:
        raw: the line, with or without its end.
        where: what an error calls it, a file and a line number for instance.
        first: whether a byte-order mark may stand before it.

    Returns:
        The text, without white space at its ends.

    Raises:
        CorpusError: the line is not UTF-8, or has more than `MAX_CHARACTERS` characters.

    Example:
        >>> decode_line("J'ai faim.\n".encode(), "standard input, line 1")
        "J'ai faim."
    """
    try:
        line = raw.rstrip(b"\r\n").decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        # A line cut at the limit can end within a character: then its length is the fault, not its encoding.
        if len(raw) < _LONGEST_LINE:
            raise CorpusError(
                f"{where}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}). Convert it to UTF-8"
            ) from error
        line = raw.decode("utf-8", errors="replace")
    if len(line) > MAX_CHARACTERS:
        raise CorpusError(
            f"{where}: more than {MAX_CHARACTERS:,} characters. Each line must be one sentence; it begins "
            f"{_shortened(line)}"
        )
    return line.strip(" \r\n\f\v")


def _shortened(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
