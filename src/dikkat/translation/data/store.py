"""Tokenised sentence pairs, in a memory-mapped file or in memory."""

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

from dikkat.storage.cache import cache_folder, create_file, explaining_write_errors, hold_lock
from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.data.splits import sketch
from dikkat.translation.errors import CorpusError
from dikkat.translation.text.slots import NO_SLOTS, Slots
from dikkat.translation.text.tokenizer import Tokenizer

TokenPair = tuple[Sequence[int], Sequence[int]]

_FORMAT = 5  # version of the file format; a new one invalidates cached files
COPIES = 1_000
_PRACTISED_PAIRS = 100_000  # only the first pairs are copied
_CHUNK = 8192  # pairs tokenised at once, on all cores
_KEY = b"dikkat's pairs"
_CACHE_LABEL = "a corpus's token numbers"


class Sentences(NamedTuple):
    """Concatenated token numbers (tokens,) int32 of sentences, and their lengths (sentences,) int32."""

    numbers: NDArray[np.int32]
    lengths: NDArray[np.int32]


@dataclass
class Counts:
    """Counts of a corpus's pairs: read, excluded as duplicates, excluded as too long, and excluded without tokens.

    `sketch` has the hashes of the source sentences of all read pairs (`splits.sketch`) in hexadecimal digits.
    `copies` counts added pairs with more slots (`Slots.practise`). `digest` is the SHA-256 of all pairs without
    duplicates, in order.
    """

    read: int = 0
    duplicates: int = 0
    left_out: int = 0
    without_tokens: int = 0
    copies: int = 0
    digest: str = ""
    sketch: str = ""


class Store:
    """Tokenised sentence pairs, their lengths (pairs,) int32, and `counts` of the corpus; `Store.build` makes one.

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
        """Return a store in memory of tokenised pairs."""
        return cls(_table([_batch(pairs)]), Counts(read=len(pairs)))

    @classmethod
    def build(
        cls, corpus: Corpus | Sequence[Pair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, *,
        slots: Slots = NO_SLOTS, max_length: int, pairs: Iterable[Pair] | None = None, distinct: bool = True,
        practice: bool = False, progress: Callable[[int], None] | None = None,
    ) -> "Store":  # fmt: skip
        """Tokenise a corpus, or open its cached tokens.

        The corpus is read once, unless its `pairs` are in memory. Equal pairs have equal 64-bit hashes, which take
        about 70 bytes of memory per pair; n pairs have a collision with probability n²/2⁶⁵. The tokens of a corpus
        without a fingerprint, such as a list, stay in memory. A damaged cache file is replaced, with a warning. Only
        one process at a time builds a cache file; others wait.
        """
        import pyarrow as pa  # type: ignore[import-untyped]

        corpus = as_corpus(corpus)
        tokenizers = source_tokenizer, target_tokenizer
        task = _Tokenization(
            corpus, corpus if pairs is None else pairs, tokenizers, slots, max_length, distinct, practice, progress
        )
        fingerprint = corpus.fingerprint()
        if fingerprint is None:
            batches: list[Any] = []
            task.write_to(batches.append)
            return cls(_table(batches), task.counts)
        identity = [_FORMAT, fingerprint, max_length, distinct, source_tokenizer.to_json(), target_tokenizer.to_json()]
        identity += [slots.to_dict(), practice]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        path = cache_folder("tokenised") / f"{key[:32]}.arrow"
        with hold_lock(path.with_suffix(".lock"), _CACHE_LABEL):
            if path.exists():
                try:
                    return cls(*_from_file(path))
                except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    reason = str(error) or type(error).__name__
                    warnings.warn(f"{path}: damaged ({reason}); replacing it", UserWarning, stacklevel=2)
            _write(path, task)
            return cls(*_from_file(path))

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __getitem__(self, row: int) -> TokenPair:
        source, target = (column[row].as_py() for column in self._table.columns)
        return source, target

    def read(self, ranges: Iterable[tuple[int, int]]) -> tuple[Sentences, Sentences]:
        """Return copies of the pairs in `ranges` of (first row, end)."""
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
        """Return a message with the numbers of excluded pairs and the reasons; None if all pairs were used."""
        counts = self.counts
        reasons = (
            (counts.left_out, "longer than max_length tokens on a side"),
            (counts.without_tokens, "without a token"),
            (counts.duplicates, "equal to an earlier pair"),
        )
        descriptions = [f"{count:,} {reason}" for count, reason in reasons if count]
        left_out = counts.read + counts.copies - len(self)
        return f"{left_out:,} of {counts.read:,} pairs left out: {', '.join(descriptions)}" if descriptions else None


def _write(path: Path, task: "_Tokenization") -> None:
    """Write the pairs atomically to an Arrow file, whose last, empty batch has the counts as metadata."""
    import pyarrow as pa

    def write(batch: Any, metadata: dict[str, str] | None = None) -> None:
        with explaining_write_errors(_CACHE_LABEL, path.parent):
            writer.write_batch(batch, metadata)

    with create_file(path, _CACHE_LABEL) as file:
        with explaining_write_errors(_CACHE_LABEL, path.parent):
            writer = pa.ipc.new_file(file, _batch([]).schema)
        task.write_to(write)
        write(_batch([]), {"counts": json.dumps(asdict(task.counts))})
        with explaining_write_errors(_CACHE_LABEL, path.parent):
            writer.close()


def _from_file(path: Path) -> tuple[Any, Counts]:
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.schema != _batch([]).schema:
        raise ValueError(f"its columns are {reader.schema}")
    counts, batches = b"", []
    for number in range(reader.num_record_batches):
        batch, metadata = reader.get_batch_with_custom_metadata(number)
        batch.validate()  # else a damaged batch could be read past the end of the memory map
        counts = metadata.get(b"counts", b"") if metadata else b""
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
class _Tokenization:
    corpus: Corpus
    pairs: Iterable[Pair]
    tokenizers: tuple[Tokenizer, Tokenizer]
    slots: Slots
    max_length: int
    distinct: bool
    practice: bool
    progress: Callable[[int], None] | None
    counts: Counts = field(default_factory=Counts)

    def write_to(self, write: Callable[[Any], None]) -> None:
        known_hashes: set[int] = set()
        digest, pair_count, hashes = hashlib.sha256(), 0, np.empty(0, np.uint32)
        pairs = iter(self.pairs)
        while chunk := list(islice(pairs, _CHUNK)):
            new_pairs = []
            for pair in chunk:
                pair_hash = _hash(pair)
                if not self.distinct or pair_hash not in known_hashes:
                    known_hashes.add(pair_hash)
                    digest.update(pair_hash.to_bytes(8, "little"))
                    new_pairs.append(pair)
            token_pairs = self._tokenize(new_pairs)
            pair_count += len(token_pairs)
            hashes = sketch(hashes, (source for source, _ in chunk))
            self.counts.read += len(chunk)
            self.counts.duplicates += len(chunk) - len(new_pairs)
            write(_batch(token_pairs))
            if self.progress is not None:
                self.progress(self.counts.read)
        if pair_count == self.counts.copies:
            raise CorpusError(
                f"{self.corpus}: none of the {self.counts.read:,} pairs has between 1 and {self.max_length} tokens on "
                "each side: raise max_length, or give another corpus"
            )
        self.counts.digest, self.counts.sketch = digest.hexdigest(), hashes.astype("<u4").tobytes().hex()

    def _tokenize(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        masked_pairs = [self.slots.mask(*pair) for pair in pairs]
        short_pairs = self._tokenize_short([(source.text, target.text) for source, target in masked_pairs])
        token_pairs = [pair for pair in short_pairs if pair[0]]
        self.counts.left_out += len(pairs) - len(short_pairs)
        self.counts.without_tokens += len(short_pairs) - len(token_pairs)
        practises = self.practice and self.counts.read < _PRACTISED_PAIRS
        copied_pairs = filter(None, (self.slots.practise(*pair) for pair in pairs if practises))
        copies = self._tokenize_short(list(islice(copied_pairs, COPIES - self.counts.copies)))
        self.counts.copies += len(copies)
        return token_pairs + copies

    def _tokenize_short(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        sides = ([pair[side] for pair in pairs] for side in (0, 1))
        numbers = [tokenizer.numbers(side) for tokenizer, side in zip(self.tokenizers, sides, strict=True)]
        return [pair for pair in zip(*numbers, strict=True) if max(map(len, pair)) <= self.max_length]


def _hash(pair: Pair) -> int:
    source, target = pair
    text = f"{len(source)} {source}{target}"  # the length distinguishes pairs with equal concatenations
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=_KEY).digest(), "little")
