"""Tokenised sentence pairs, in a file that is read where it lies, or in memory."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.storage.cache import cache_folder, create_file, wait_for_lock, writing
from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.errors import CorpusError
from dikkat.translation.text.slots import NO_SLOTS, Slots
from dikkat.translation.text.tokenizer import Tokenizer

TokenPair = tuple[Sequence[int], Sequence[int]]

_FORMAT = 4  # of the file; another number, and files of the old one are made anew
COPIES = 1_000
_PRACTISED = 100_000  # first pairs, of which copies are made
_CHUNK = 8192  # pairs tokenised at once, on all cores
_KEY = b"dikkat's pairs"
_WHAT = "a corpus's token numbers"


class Sentences(NamedTuple):
    """Token numbers (tokens,) int32 of sentences, one after another, and their lengths (sentences,) int32."""

    numbers: NDArray[np.int32]
    lengths: NDArray[np.int32]


@dataclass
class Counts:
    """The numbers of a corpus's pairs that were read, and left out: equal to one before, too long, or without tokens.

    `copies` counts pairs with more slots that were added (`Slots.practise`); `digest` is the SHA-256 of all pairs but
    the duplicates, in their order.
    """

    read: int = 0
    duplicates: int = 0
    left_out: int = 0
    without_tokens: int = 0
    copies: int = 0
    digest: str = ""


class Store:
    """Tokenised sentence pairs, with their lengths (pairs,) int32, and `counts` of the corpus. `Store.build` makes one.

    Example:
        >>> store = Store.of([([5, 6], [7]), ([8], [9, 10])])
        >>> len(store), store[1], store.source_lengths.tolist()
        (2, ([8], [9, 10]), [2, 1])
    """

    def __init__(self, table: Any, counts: Counts) -> None:
        self._table = table  # pyarrow's: list<int32> source, list<int32> target
        self.counts = counts
        self.source_lengths, self.target_lengths = (
            np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]) for column in table.columns
        )

    @classmethod
    def of(cls, pairs: Sequence[TokenPair]) -> "Store":
        """A store in memory of pairs that are tokenised already, all of them."""
        return cls(_table([_batch(pairs)]), Counts(read=len(pairs)))

    @classmethod
    def build(
        cls,
        corpus: Corpus | Sequence[Pair],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        slots: Slots = NO_SLOTS,
        max_length: int,
        pairs: Iterable[Pair] | None = None,
        distinct: bool = True,
        practice: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> "Store":
        """Tokenise a corpus, once: the second time, it is opened from the cache folder.

        The corpus is gone through once, unless its `pairs` are in memory. Equal pairs are told by 64-bit hashes, which
        take about 70 bytes of memory a pair; that two of n pairs have the same hash by chance is as likely as n²/2⁶⁵. A
        corpus without a fingerprint, a list for instance, is kept in memory. A damaged file in the cache is made anew,
        with a warning. Of two processes that want the same at once, one waits for the other.
        """
        import pyarrow as pa  # type: ignore[import-untyped]

        corpus = as_corpus(corpus)
        tokenizers = source_tokenizer, target_tokenizer
        work = _Work(
            corpus, corpus if pairs is None else pairs, tokenizers, slots, max_length, distinct, practice, progress
        )
        fingerprint = corpus.fingerprint()
        if fingerprint is None:
            batches: list[Any] = []
            work.into(batches.append)
            return cls(_table(batches), work.counts)
        parts = [_FORMAT, fingerprint, max_length, distinct, source_tokenizer.to_json(), target_tokenizer.to_json()]
        parts += [slots.to_dict(), practice]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        path = cache_folder("tokenised") / f"{key[:32]}.arrow"
        with wait_for_lock(path.with_suffix(".lock"), _WHAT):
            if path.exists():
                try:
                    return cls(*_from_file(path))
                except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    reason = str(error) or type(error).__name__
                    warnings.warn(f"{path}: damaged ({reason}); it is made anew", UserWarning, stacklevel=2)
            _write(path, work)
            return cls(*_from_file(path))

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __getitem__(self, row: int) -> TokenPair:
        source, target = (column[row].as_py() for column in self._table.columns)
        return source, target

    def read(self, ranges: Iterable[tuple[int, int]]) -> tuple[Sentences, Sentences]:
        """Some of the pairs, by their first rows and ends, copied into memory."""
        import pyarrow as pa

        ranges = list(ranges)
        rows = pa.concat_tables(self._table.slice(first, end - first) for first, end in ranges)
        source, target = (
            Sentences(
                np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks]),
                np.concatenate([lengths[first:end] for first, end in ranges]),
            )
            for column, lengths in zip(rows.columns, (self.source_lengths, self.target_lengths), strict=True)
        )
        return source, target

    def losses(self) -> str | None:
        """A message about the pairs that were left out, and why; None: none were."""
        counts = self.counts
        reasons = (
            (counts.left_out, "longer than max_length tokens on a side"),
            (counts.without_tokens, "without a token"),
            (counts.duplicates, "the same as a pair before"),
        )
        said = [f"{count:,} {reason}" for count, reason in reasons if count]
        left_out = counts.read + counts.copies - len(self)
        return f"{left_out:,} of {counts.read:,} pairs left out: {', '.join(said)}" if said else None


def _write(path: Path, work: "_Work") -> None:
    """Write the pairs to a file of Arrow's, whole or not at all; its last, empty batch has the counts."""
    import pyarrow as pa

    def write(batch: Any, notes: dict[str, str] | None = None) -> None:
        with writing(_WHAT, path.parent):
            writer.write_batch(batch, notes)

    with create_file(path, _WHAT) as file:
        with writing(_WHAT, path.parent):
            writer = pa.ipc.new_file(file, _batch([]).schema)
        work.into(write)
        write(_batch([]), {"counts": json.dumps(asdict(work.counts))})
        with writing(_WHAT, path.parent):
            writer.close()


def _from_file(path: Path) -> tuple[Any, Counts]:
    """The table of a file, memory-mapped, and the counts."""
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.schema != _batch([]).schema:
        raise ValueError(f"its columns are {reader.schema}")
    counts, batches = b"", []
    for number in range(reader.num_record_batches):
        batch, notes = reader.get_batch_with_custom_metadata(number)
        batch.validate()  # checked before the memory map is read past the end of the file
        counts = notes.get(b"counts", b"") if notes else b""
        batches.append(batch)
    return _table(batches), Counts(**json.loads(counts))


def _table(batches: list[Any]) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batches)


def _batch(pairs: Sequence[TokenPair]) -> Any:
    import pyarrow as pa

    columns = [pa.array([pair[side] for pair in pairs], pa.list_(pa.int32())) for side in (0, 1)]
    return pa.record_batch(columns, names=["source", "target"])


@dataclass
class _Work:
    corpus: Corpus
    pairs: Iterable[Pair]
    tokenizers: tuple[Tokenizer, Tokenizer]
    slots: Slots
    max_length: int
    distinct: bool
    practice: bool
    progress: Callable[[int], None] | None
    counts: Counts = field(default_factory=Counts)

    def into(self, write: Callable[[Any], None]) -> None:
        met: set[int] = set()
        digest, kept = hashlib.sha256(), 0
        pairs = iter(self.pairs)
        while chunk := list(islice(pairs, _CHUNK)):
            new = []
            for pair in chunk:
                number = _hash(pair)
                if not self.distinct or number not in met:
                    met.add(number)
                    digest.update(number.to_bytes(8, "little"))
                    new.append(pair)
            numbered = self._numbered(new)
            kept += len(numbered)
            self.counts.read += len(chunk)
            self.counts.duplicates += len(chunk) - len(new)
            write(_batch(numbered))
            if self.progress is not None:
                self.progress(self.counts.read)
        if kept == self.counts.copies:
            raise CorpusError(
                f"{self.corpus}: none of the {self.counts.read:,} pairs has tokens, and at most {self.max_length} on "
                "each side: raise max_length, or give another corpus"
            )
        self.counts.digest = digest.hexdigest()

    def _numbered(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        masked = [self.slots.mask(*pair) for pair in pairs]
        short = self._short([(source.text, target.text) for source, target in masked])
        numbered = [pair for pair in short if pair[0]]
        self.counts.left_out += len(pairs) - len(short)
        self.counts.without_tokens += len(short) - len(numbered)
        practises = self.practice and self.counts.read < _PRACTISED
        practised = filter(None, (self.slots.practise(*pair) for pair in pairs if practises))
        copies = self._short(list(islice(practised, COPIES - self.counts.copies)))
        self.counts.copies += len(copies)
        return numbered + copies

    def _short(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        sides = ([pair[side] for pair in pairs] for side in (0, 1))
        numbers = [tokenizer.numbers(side) for tokenizer, side in zip(self.tokenizers, sides, strict=True)]
        return [pair for pair in zip(*numbers, strict=True) if max(map(len, pair)) <= self.max_length]


def _hash(pair: Pair) -> int:
    source, target = pair
    text = f"{len(source)} {source}{target}"  # the length tells pairs whose joined sides are equal
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=_KEY).digest(), "little")
