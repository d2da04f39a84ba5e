"""Choices that are the same on every machine and in every version of Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Dice:
    """Draws from sequences, by `random.Random.random` alone: the one method whose sequence Python promises to keep.

    Examples:
        >>> Dice(7).pick("abc") == Dice(7).pick("abc")
        True
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, items: Sequence[Item]) -> Item:
        """Draws one item."""
        return items[int(self._random.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Is true with a probability."""
        return self._random.random() < probability
