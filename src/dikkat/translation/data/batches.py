"""Sentence pairs of numbers, in batches of similar lengths."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat.translation.data.store import Sentences, Store, TokenPair
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import Batch
from dikkat.translation.text.special_tokens import BEGIN, END, PAD

_BLOCK = 4096  # pairs that stay neighbours at most: many enough to be read at once, and few beside a buffer
_BLOCKS = 16  # in a buffer at least, so that it mixes pairs from all over the corpus


class Batches:
    """Batches of pairs of nearly equal lengths, in another order each epoch.

    The pairs are sorted by their lengths, equal ones in random order, cut into batches, and the batches shuffled:
    little padding, and in every epoch other company for a pair. Where the batches are cut depends on the lengths
    alone, so that every epoch has as many of them.

    Of more than `buffer` pairs, this is done buffer by buffer, and only one buffer is in memory. Which pairs share a
    buffer is drawn once, in blocks of consecutive pairs, at most 4,096 and a sixteenth of a buffer; in what order the
    buffers come is drawn each epoch.

    **Order.** It depends on the seed and the number of the epoch alone.

    **Position.** `state_dict()` is the number of the epoch and of the batches handed out in it; `iter()` goes on from
    there, without making the batches before. With the last batch of an epoch, the position becomes the beginning of
    the next. So what stopped in the middle of an epoch goes on in the middle: `load_state_dict` goes elsewhere.

    **Ranks.** Each of several processes gets its rows of the same batches: of each batch rows `rank`, `rank + world`
    and so on. `Batch.total_tokens` counts the target tokens of the whole batch. Where a batch has no row for a
    rank, the rank gets row 0, and `Batch.counts` is False.

    Args:
        pairs: Token numbers of source and target, at least one pair.
        batch_size: Pairs in a batch where `batch_tokens` is None; the last one of a buffer may have fewer.
        batch_tokens: Most tokens in a batch, padding and the target's end included, on the side that has more of
            them; None: `batch_size` counts instead.
        seed: Of the order, at least 0; None keeps the sorted order, for validation.
        buffer: Most pairs that are in memory and shuffled together.
        rank: Which of the processes this is, from 0.
        world: How many processes share the batches.

    Raises:
        SettingsError: A pair that is longer than `batch_tokens` alone.
        ValueError: No pairs.

    Example:
        >>> pairs = [([5], [6]), ([5, 6, 7], [8, 9]), ([7], [8])]
        >>> [batch.source.tolist() for batch in Batches(pairs, batch_size=2, seed=None)]
        [[[5], [7]], [[5, 6, 7]]]
        >>> batches = Batches(pairs, batch_size=2, batch_tokens=3, seed=None)
        >>> next(iter(batches)).source.tolist(), batches.state_dict()
        ([[5]], {'epoch': 0, 'batch': 1})
        >>> [batch.source.tolist() for batch in batches]
        [[[7]], [[5, 6, 7]]]
    """

    def __init__(
        self,
        pairs: Store | Sequence[TokenPair],
        batch_size: int,
        seed: int | None,
        *,
        batch_tokens: int | None = None,
        buffer: int = 1_000_000,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._store = pairs if isinstance(pairs, Store) else Store.of(pairs)
        if not len(self._store):
            raise ValueError("there are no pairs to make batches of")
        self._seed, self._rank, self._world = seed, rank, world
        self._buffers = self._in_buffers(buffer)
        if batch_tokens is None:
            counts = [sum(end - first for first, end in ranges) for ranges in self._buffers]
            self._sizes = [np.diff(np.append(np.arange(0, count, batch_size), count)) for count in counts]
        else:
            self._check(batch_tokens)
            self._sizes = [self._cut(ranges, batch_tokens) for ranges in self._buffers]
        self._count = sum(map(len, self._sizes))
        self._epoch, self._done = 0, 0

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        return self._count

    def state_dict(self) -> dict[str, int]:
        """The number of the epoch, and of its batches that were handed out."""
        return {"epoch": self._epoch, "batch": self._done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position of `state_dict`, also with another `rank` and `world`; ValueError for none that there is."""
        epoch, batch = state["epoch"], state["batch"]
        if epoch < 0 or not 0 <= batch < self._count:
            raise ValueError(
                f"state: got batch {batch} of epoch {epoch}; expected numbers from 0, of the batch to {self._count - 1}"
            )
        self._epoch, self._done = epoch, batch

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the position to the end of its epoch."""
        epoch, done = self._epoch, self._done
        skipped = done
        for buffer in _shuffled(self._random(epoch + 1, 0), len(self._buffers)).tolist():
            if skipped >= len(self._sizes[buffer]):
                skipped -= len(self._sizes[buffer])
                continue
            for batch in self._batches(buffer, self._random(epoch + 1, buffer + 1), skipped):
                done += 1
                self._epoch, self._done = (epoch, done) if done < self._count else (epoch + 1, 0)
                yield batch
            skipped = 0

    def _random(self, *numbers: int) -> np.random.Generator | None:
        """A stream of random numbers, by epoch + 1 and buffer + 1; 0 stands for all of them."""
        return None if self._seed is None else np.random.default_rng((self._seed, *numbers))

    def _in_buffers(self, buffer: int) -> list[list[tuple[int, int]]]:
        """The blocks of each buffer, by their first rows and ends."""
        count = len(self._store)
        if count <= buffer:
            return [[(0, count)]]
        size = max(1, min(_BLOCK, buffer // _BLOCKS))
        blocks = [(first, min(first + size, count)) for first in range(0, count, size)]
        buffers = -(-len(blocks) // (buffer // size))
        order = _shuffled(self._random(0, 0), len(blocks))
        return [[blocks[block] for block in part.tolist()] for part in np.array_split(order, buffers)]

    def _batches(self, buffer: int, random: np.random.Generator | None, skipped: int) -> Iterator[Batch]:
        """The batches of a buffer but for the skipped ones."""
        sources, targets = map(_Sentences, self._store.read(self._buffers[buffer]))
        order = _sorted(sources.lengths, targets.lengths, random)
        ends = self._sizes[buffer].cumsum()
        for group in _shuffled(random, len(ends))[skipped:].tolist():
            rows = torch.from_numpy(order[ends[group] - self._sizes[buffer][group] : ends[group]])
            mine = rows[self._rank :: self._world]
            counts = len(mine) > 0
            source, source_lengths = sources.padded(mine if counts else rows[:1])
            target, target_lengths = targets.padded(mine if counts else rows[:1], ends=True)
            total = int(targets.lengths[rows].sum()) + len(rows)
            yield Batch(source, source_lengths, target, target_lengths - 1, total, counts)

    def _check(self, batch_tokens: int) -> None:
        longest = max(int(self._store.source_lengths.max()), int(self._store.target_lengths.max()) + 1)
        if longest > batch_tokens:
            raise SettingsError(
                f"batch_tokens: got {batch_tokens}; expected at least {longest}, the tokens of a pair on a side, the "
                "target's end included, which no smaller batch can hold: use as many, or a smaller max_length"
            )

    def _cut(self, ranges: list[tuple[int, int]], batch_tokens: int) -> NDArray[np.intp]:
        """The sizes of a buffer's batches, cut from its sorted pairs."""
        sources, targets = (
            np.concatenate([lengths[first:end] for first, end in ranges])
            for lengths in (self._store.source_lengths, self._store.target_lengths)
        )
        longer = np.maximum(sources, targets + 1)[_sorted(sources, targets, None)]
        sizes, first = [], 0
        while first < len(longer):
            # No more fit than would if all were as long as the first one.
            widest = np.maximum.accumulate(longer[first : first + batch_tokens // int(longer[first])])
            fitting = int(np.searchsorted(widest * np.arange(1, len(widest) + 1), batch_tokens, side="right"))
            sizes.append(fitting)
            first += fitting
        return np.array(sizes)


def _shuffled(random: np.random.Generator | None, count: int) -> NDArray[np.int64]:
    return np.arange(count) if random is None else random.permutation(count)


def _sorted(
    sources: NDArray[np.int32], targets: NDArray[np.int32], random: np.random.Generator | None
) -> NDArray[np.int64]:
    """The rows in order of the target's length, then of the source's, then at random."""
    key = targets.astype(np.int64) * (int(sources.max()) + 1) + sources
    order = _shuffled(random, len(key))
    return order[key[order].argsort(kind="stable")]


class _Sentences:
    """The sentences of a buffer, so that a batch is one look-up, however many rows it has."""

    def __init__(self, sentences: Sentences) -> None:
        self.lengths = sentences.lengths
        self._lengths = torch.from_numpy(sentences.lengths)
        self._starts = torch.from_numpy(np.cumsum(sentences.lengths, dtype=np.int64)) - self._lengths
        self._count = len(sentences.numbers)
        # Padding and the end token follow all sentences: out-of-range indices point there.
        self._numbers = torch.from_numpy(np.append(sentences.numbers, np.array([PAD, END], np.int32)))

    def padded(self, rows: Tensor, *, ends: bool = False) -> tuple[Tensor, Tensor]:
        """Some of the sentences as one tensor (B, S) int64, and their lengths (B,) int64; with both ends or without."""
        lengths = self._lengths[rows].long().unsqueeze(1)
        positions = torch.arange(int(lengths.max()) + ends)
        offsets = (self._starts[rows].unsqueeze(1) + positions).where(positions < lengths, self._count)
        if ends:
            offsets = offsets.where(positions != lengths, self._count + 1)
        numbers = self._numbers[offsets].long()
        if ends:
            numbers = torch.cat([numbers.new_full((len(rows), 1), BEGIN), numbers], dim=1)
        return numbers, lengths.squeeze(1) + 2 * ends
