"""Batches of tokenised sentence pairs of similar lengths."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat.translation.data.store import Sentences, Store, TokenPair
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import Batch
from dikkat.translation.text.special_tokens import BEGIN, END, PAD

_MAX_BLOCK = 4096  # consecutive pairs that share a buffer: fast to read, and much smaller than a buffer
_MIN_BLOCKS = 16  # the fewest blocks of a buffer, so that it mixes pairs from the whole corpus


class Batches:
    """Batches of pairs of nearly equal lengths, in a new order each epoch.

    Each epoch sorts the pairs by length, in random order if lengths are equal, cuts them into batches and shuffles
    the batches. So there is little padding, and pairs share batches with new pairs each epoch. A batch has
    `batch_size` pairs, or at most `batch_tokens` tokens on its longer side (source or target), including padding and
    end tokens. Cuts depend only on the lengths, so that all epochs have the same number of batches.

    With more than `buffer` pairs, only one buffer of pairs is in memory at a time. Blocks of consecutive pairs, of at
    most 4,096 pairs and a sixteenth of a buffer, are assigned to buffers at random, once for all epochs. The
    order of the buffers is random in each epoch. All random numbers depend only on the seed and the epoch's number;
    without a seed, for validation, pairs stay sorted.

    The process `rank` of `world` gets rows `rank`, `rank + world` and so on of each batch. `Batch.total_tokens` counts
    the target tokens of the whole batch. A rank without a row gets row 0, and `Batch.counts` is False.

    Raises:
        SettingsError: A pair that is longer than `batch_tokens`.
        ValueError: No pairs.

    Example:
        >>> pairs = [([5], [6]), ([5, 6, 7], [8, 9]), ([7], [8])]
        >>> [batch.source.tolist() for batch in Batches(pairs, batch_size=2, seed=None)]
        [[[5], [7]], [[5, 6, 7]]]
        >>> batches = Batches(pairs, batch_size=2, batch_tokens=3, seed=None)
        >>> [batch.source.tolist() for batch in batches.epoch(0, first=1)]
        [[[7]], [[5, 6, 7]]]
    """

    def __init__(
        self, pairs: Store | Sequence[TokenPair], batch_size: int, seed: int | None, *,
        batch_tokens: int | None = None, buffer: int = 1_000_000, rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        self._store = pairs if isinstance(pairs, Store) else Store.of(pairs)
        if not len(self._store):
            raise ValueError("pairs: got none; expected at least one")
        self._seed, self._rank, self._world = seed, rank, world
        self._buffers = self._assign_buffers(buffer)
        if batch_tokens is None:
            counts = [sum(end - first for first, end in ranges) for ranges in self._buffers]
            self._sizes = [np.diff(np.append(np.arange(0, count, batch_size), count)) for count in counts]
        else:
            self._check_batch_tokens(batch_tokens)
            self._sizes = [self._cut(ranges, batch_tokens) for ranges in self._buffers]
        self._batch_count = sum(map(len, self._sizes))

    def __len__(self) -> int:
        return self._batch_count

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number`, from batch `first` on."""
        for buffer in _shuffled(self._generator(number + 1, 0), len(self._buffers)).tolist():
            if first < len(self._sizes[buffer]):
                yield from self._batches(buffer, self._generator(number + 1, buffer + 1), first)
            first = max(0, first - len(self._sizes[buffer]))

    def _generator(self, *numbers: int) -> np.random.Generator | None:
        """Return the generator of (epoch + 1, buffer + 1), each 0 for all epochs or buffers; None without a seed."""
        return None if self._seed is None else np.random.default_rng((self._seed, *numbers))

    def _assign_buffers(self, buffer: int) -> list[list[tuple[int, int]]]:
        count = len(self._store)
        if count <= buffer:
            return [[(0, count)]]
        size = max(1, min(_MAX_BLOCK, buffer // _MIN_BLOCKS))
        blocks = [(first, min(first + size, count)) for first in range(0, count, size)]
        buffer_count = -(-len(blocks) // (buffer // size))
        order = _shuffled(self._generator(0, 0), len(blocks))
        return [[blocks[block] for block in numbers.tolist()] for numbers in np.array_split(order, buffer_count)]

    def _batches(self, buffer: int, generator: np.random.Generator | None, skipped: int) -> Iterator[Batch]:
        sources, targets = map(_SentenceTable, self._store.read(self._buffers[buffer]))
        order = _sorted(sources.lengths, targets.lengths, generator)
        batch_ends = self._sizes[buffer].cumsum()
        for batch in _shuffled(generator, len(batch_ends))[skipped:].tolist():
            rows = torch.from_numpy(order[batch_ends[batch] - self._sizes[buffer][batch] : batch_ends[batch]])
            rank_rows = rows[self._rank :: self._world]
            has_rows = len(rank_rows) > 0
            source, source_lengths = sources.padded(rank_rows if has_rows else rows[:1])
            target, target_lengths = targets.padded(rank_rows if has_rows else rows[:1], ends=True)
            total_tokens = int(targets.lengths[rows].sum()) + len(rows)
            # Steps of the decoder: all target tokens except the last are inputs.
            yield Batch(source, source_lengths, target, target_lengths - 1, total_tokens, has_rows)

    def _check_batch_tokens(self, batch_tokens: int) -> None:
        longest = max(int(self._store.source_lengths.max()), int(self._store.target_lengths.max()) + 1)
        if longest > batch_tokens:
            raise SettingsError(
                f"batch_tokens: got {batch_tokens}; expected at least {longest}, the tokens of the longest sentence "
                "with its end: use a larger batch_tokens or a smaller max_length"
            )

    def _cut(self, ranges: list[tuple[int, int]], batch_tokens: int) -> NDArray[np.intp]:
        sources, targets = (
            np.concatenate([lengths[first:end] for first, end in ranges])
            for lengths in (self._store.source_lengths, self._store.target_lengths)
        )
        widths = np.maximum(sources, targets + 1)[_sorted(sources, targets, None)]
        sizes, first = [], 0
        while first < len(widths):
            # The first width limits the number of pairs, as the running maximum never falls below it.
            max_widths = np.maximum.accumulate(widths[first : first + batch_tokens // int(widths[first])])
            size = int(np.searchsorted(max_widths * np.arange(1, len(max_widths) + 1), batch_tokens, side="right"))
            sizes.append(size)
            first += size
        return np.array(sizes)


def _shuffled(generator: np.random.Generator | None, count: int) -> NDArray[np.int64]:
    return np.arange(count) if generator is None else generator.permutation(count)


def _sorted(
    sources: NDArray[np.int32], targets: NDArray[np.int32], generator: np.random.Generator | None
) -> NDArray[np.int64]:
    """Return the rows sorted by target length, then source length, then at random."""
    key = targets.astype(np.int64) * (int(sources.max()) + 1) + sources
    order = _shuffled(generator, len(key))
    return order[key[order].argsort(kind="stable")]


class _SentenceTable:
    """The sentences of a buffer in one tensor, from which one index operation makes a batch."""

    def __init__(self, sentences: Sentences) -> None:
        self.lengths = sentences.lengths
        self._lengths = torch.from_numpy(sentences.lengths)
        self._starts = torch.from_numpy(np.cumsum(sentences.lengths, dtype=np.int64)) - self._lengths
        self._token_count = len(sentences.numbers)
        # Padding and the end token follow all sentences: out-of-range indices point there.
        self._numbers = torch.from_numpy(np.append(sentences.numbers, np.array([PAD, END], np.int32)))

    def padded(self, rows: Tensor, *, ends: bool = False) -> tuple[Tensor, Tensor]:
        """Return padded sentences (B, S) int64 and their lengths (B,) int64; with `ends` both include BEGIN and END."""
        lengths = self._lengths[rows].long().unsqueeze(1)
        positions = torch.arange(int(lengths.max()) + ends)
        offsets = (self._starts[rows].unsqueeze(1) + positions).where(positions < lengths, self._token_count)
        if ends:
            offsets = offsets.where(positions != lengths, self._token_count + 1)
        numbers = self._numbers[offsets].long()
        if ends:
            numbers = torch.cat([numbers.new_full((len(rows), 1), BEGIN), numbers], dim=1)
        return numbers, lengths.squeeze(1) + 2 * ends
