"""The sentences that a search takes and the hypotheses that it returns, at each of its speeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

_LONGEST = 30  # tokens of a sequence that repeats itself


class Sentence(NamedTuple):
    """A sentence to be translated."""

    tokens: Sequence[int]  # token numbers, at least one
    copies: bool  # whether `<unk>` may come out
    fewest: int  # tokens, at least one, before which `<eos>` may not
    most: int  # tokens after which it is cut
    slots: int = 0  # the slots to write, each once, as bits of a number


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
    """Find sequences of tokens that directly follow themselves.

    Only sequences with the beginning of a word count: `1000` and `Schifffahrt` repeat nothing. Returns the most times
    in a row, and the end of the first sequence that stands there more than `allowed` times, or the number of tokens.

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
