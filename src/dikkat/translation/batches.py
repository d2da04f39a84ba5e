import random
from collections.abc import Iterator, Sequence

from dikkat.translation.model import Batch, collate

TokenPair = tuple[Sequence[int], Sequence[int]]


class Batches:
    """Batches of pairs of nearly equal lengths, shuffled anew each time they are gone through.

    The pairs are sorted by their lengths, equal ones in random order, cut into batches, and the batches shuffled:
    little padding, and in every round other company for a pair.

    Args:
        pairs: token numbers of source and target.
        batch_size: pairs in a batch; the last one of the sorted pairs may have fewer.
        seed: of the order; None keeps the sorted order, for validation.

    Example:
        >>> batches = Batches([([5], [6]), ([5, 6, 7], [8, 9]), ([7], [8])], batch_size=2, seed=None)
        >>> [batch.source.tolist() for batch in batches]
        [[[5], [7]], [[5, 6, 7]]]
    """

    def __init__(self, pairs: Sequence[TokenPair], batch_size: int, seed: int | None) -> None:
        self._pairs = pairs
        self._batch_size = batch_size
        self._random = None if seed is None else random.Random(seed)

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self._pairs) // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """One round through all pairs."""
        order = self._sorted()
        groups = [order[start : start + self._batch_size] for start in range(0, len(order), self._batch_size)]
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
