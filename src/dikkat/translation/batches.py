from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dikkat.translation.errors import SettingsError
from dikkat.translation.model import Batch
from dikkat.translation.tokenizer import BEGIN, END, PAD

TokenPair = tuple[Sequence[int], Sequence[int]]


class Batches:
    """Batches of pairs of nearly equal lengths, shuffled anew each time they are gone through.

    The pairs are sorted by their lengths, equal ones in random order, cut into batches, and the batches shuffled:
    little padding, and in every round other company for a pair. Where the batches are cut depends on the lengths
    alone, so that every round has as many of them.

    Args:
        pairs: token numbers of source and target, at least one pair.
        batch_size: pairs in a batch where `batch_tokens` is None; the last one of the sorted pairs may have fewer.
        batch_tokens: most tokens in a batch, padding and the target's end included, on the side that has more of
            them; None: `batch_size` counts instead.
        seed: of the order; None keeps the sorted order, for validation.
        rank: which of the processes that train together this is, ...
        world: ... and how many there are: each has its share of the rows of every batch.

    Raises:
        SettingsError: a pair that is longer than `batch_tokens` alone.

    Example:
        >>> pairs = [([5], [6]), ([5, 6, 7], [8, 9]), ([7], [8])]
        >>> [batch.source.tolist() for batch in Batches(pairs, batch_size=2, seed=None)]
        [[[5], [7]], [[5, 6, 7]]]
        >>> [batch.source.tolist() for batch in Batches(pairs, batch_size=2, batch_tokens=3, seed=None)]
        [[[5]], [[7]], [[5, 6, 7]]]
    """

    def __init__(
        self,
        pairs: Sequence[TokenPair],
        batch_size: int,
        seed: int | None,
        *,
        batch_tokens: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._rank, self._world = rank, world
        self._sources = _Sentences([source for source, _ in pairs])
        self._targets = _Sentences([[BEGIN, *target, END] for _, target in pairs])
        self._seed, self._position = seed, {"epoch": 0, "batch": 0}
        self._begin_round(0)
        whole, rest = divmod(len(pairs), batch_size)
        self._sizes = [batch_size] * whole + [rest] * (rest > 0) if batch_tokens is None else self._cut(batch_tokens)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        """One round through all pairs, or what is left of it; the next one is in another order."""
        epoch, done = self._position["epoch"], self._position["batch"]
        self._begin_round(epoch)
        groups = self._sorted().split(self._sizes)
        for index, group in enumerate(self._shuffled(len(groups)).tolist()):
            if index >= done:
                self._position = {"epoch": epoch, "batch": index + 1}
                yield self._batch(groups[group])
        self._position = {"epoch": epoch + 1, "batch": 0}

    def state_dict(self) -> dict[str, int]:
        """The position: how many rounds are over, and how many batches of the present one."""
        return dict(self._position)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a position."""
        self._position = dict(state)

    def _begin_round(self, epoch: int) -> None:
        self._random = None
        if self._seed is not None:
            self._random = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)

    def _batch(self, rows: Tensor) -> Batch:
        total = int((self._targets.lengths[rows] - 1).sum())
        own = rows[self._rank :: self._world]
        counts = len(own) > 0
        if not counts:
            own = rows[:1]
        source, source_lengths = self._sources.padded(own)
        target, lengths = self._targets.padded(own)
        return Batch(source, source_lengths, target, lengths - 1, total, counts)

    def _sorted(self) -> Tensor:
        """All pairs by the length of the target, then of the source, then by chance."""
        sources, targets = self._sources.lengths, self._targets.lengths
        key = targets * (int(sources.max()) + 1) + sources
        order = self._shuffled(len(key))
        return order[key[order].argsort(stable=True)]

    def _shuffled(self, count: int) -> Tensor:
        return torch.arange(count) if self._random is None else torch.randperm(count, generator=self._random)

    def _cut(self, batch_tokens: int) -> list[int]:
        """How many of the sorted pairs go together."""
        longer = torch.maximum(self._sources.lengths, self._targets.lengths - 1)
        if int(longer.max()) > batch_tokens:
            raise SettingsError(
                f"batch_tokens is {batch_tokens}; a pair has {int(longer.max())} tokens on a side, the target's end "
                "included, and no batch can hold it: use at least as many, or a smaller max_length"
            )
        order = self._sorted()
        sizes, widest = [0], 0
        for length in longer[order].tolist():
            widest = max(widest, length)
            if (sizes[-1] + 1) * widest > batch_tokens:
                sizes.append(0)
                widest = length
            sizes[-1] += 1
        return sizes


class _Sentences:
    """Token numbers of all sentences one after another, so that a batch is one look-up, however many rows it has.

    Attributes:
        lengths: (sentences,) int64.
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(sentence) for sentence in sentences])
        self._starts = self.lengths.cumsum(0) - self.lengths
        self._numbers = torch.tensor([number for sentence in sentences for number in sentence] + [PAD])

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Some of the sentences as one tensor (B, S) int64, and their lengths (B,) int64."""
        lengths = self.lengths[rows]
        positions = torch.arange(int(lengths.max()))
        places = self._starts[rows].unsqueeze(1) + positions
        # What is behind a sentence's end looks up the padding, which stands behind all sentences.
        return self._numbers[places.where(positions < lengths.unsqueeze(1), len(self._numbers) - 1)], lengths
