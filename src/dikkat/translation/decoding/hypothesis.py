"""The sentences that a search takes and the hypotheses that it returns, at each of its speeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

_LONGEST = 30  # tokens of a sequence that repeats itself


class Sentence(NamedTuple):
    """A sentence to be translated: its token numbers, at least one, and the limits of its translations.

    `<unk>` may come out if it `copies`; `slots` are bits of a number, each slot to be written once.
    """

    tokens: Sequence[int]
    copies: bool
    min_tokens: int
    max_tokens: int
    slots: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A translation of a sentence that a search returns.

    Attributes:
        ids: The T target tokens, without the end.
        score: log-probability of the tokens and, where it is finished, the end; natural logarithm, not normalised.
        weights: (T, S) float32 on the CPU: where each token looked; every row adds up to 1. Of a model without
            attention all are alike.
        finished: Whether the model ended the sentence itself, rather than the limit on its length.
    """

    ids: list[int]
    score: float
    weights: Tensor
    finished: bool


def repetition(ids: Sequence[int], begins_word: Callable[[int], bool], allowed: float = math.inf) -> tuple[int, int]:
    """Return how often a sequence of tokens follows itself directly, and the end of the first that does so too often.

    Only sequences with the beginning of a word count: `1000` and `Schifffahrt` repeat nothing. Without one that stands
    in a row more than `allowed` times, the end is that of all tokens.

    Example:
        >>> repetition([5, 6, 7, 6, 7, 6, 7], lambda token: token == 6, allowed=2)
        (3, 3)
    """
    most, start, end = 1, len(ids), len(ids)
    for size in range(1, min(_LONGEST, len(ids) // 3) + 1):
        equal = 0
        for index in range(size, len(ids) + 1):
            if index < len(ids) and ids[index] == ids[index - size]:
                equal += 1
                continue
            times, first, equal = 1 + equal // size, index - size - equal, 0
            if times > most and any(begins_word(token) for token in ids[first : first + size]):
                most = times
            if allowed < times and first < start and any(begins_word(token) for token in ids[first : first + size]):
                start, end = first, first + size
    return most, end
