import random
from collections.abc import Iterator, Sequence

from dikkat.translation.model import Batch, collate

TokenPair = tuple[Sequence[int], Sequence[int]]


class Batches:
    """Batches of pairs of nearly equal lengths, shuffled anew each time they are gone through.

    The pairs are sorted by their lengths, equal ones in random order, cut into batches of as many pairs as fit, and the
    batches shuffled: little padding, and always the same number of batches.

    Args:
        pairs: token numbers of source and target.
        batch_tokens: largest number of positions, padding included, of a batch's source or target.
        seed: of the order; None keeps the sorted order, for validation.

    Example:
        >>> batches = Batches([([5], [6]), ([5, 6, 7], [8, 9]), ([7], [8])], batch_tokens=4, seed=None)
        >>> [batch.source.tolist() for batch in batches]
        [[[5], [7]], [[5, 6, 7]]]
    """

    def __init__(self, pairs: Sequence[TokenPair], batch_tokens: int, seed: int | None) -> None:
        self._pairs = pairs
        self._batch_tokens = batch_tokens
        self._random = None if seed is None else random.Random(seed)
        self._count = len(self._cut(self._sorted()))

    def __len__(self) -> int:
        """Number of batches."""
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        """One round through all pairs."""
        groups = self._cut(self._sorted())
        if self._random is not None:
            self._random.shuffle(groups)
        for group in groups:
            yield collate([self._pairs[index] for index in group])

    def _lengths(self, index: int) -> tuple[int, int]:
        source, target = self._pairs[index]
        return len(target) + 1, len(source)  # the target's end is a token too

    def _sorted(self) -> list[int]:
        order = list(range(len(self._pairs)))
        if self._random is not None:
            self._random.shuffle(order)
        return sorted(order, key=self._lengths)

    def _cut(self, order: list[int]) -> list[list[int]]:
        groups: list[list[int]] = []
        longest = 0
        for index in order:
            here = max(self._lengths(index))
            longest = max(longest, here)
            if groups and longest * (len(groups[-1]) + 1) <= self._batch_tokens:
                groups[-1].append(index)
            else:
                groups.append([index])
                longest = here
        return groups
