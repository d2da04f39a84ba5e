"""The sentences that a search takes and the hypotheses that it returns, at each of its speeds."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Sentence(NamedTuple):
    """A sentence to be translated.

    Attributes:
        tokens: Token numbers, at least one.
        copies: Whether `<unk>` may come out.
        fewest: Tokens, at least one, before which `<eos>` may not.
        most: Tokens after which it is cut.
    """

    tokens: Sequence[int]
    copies: bool
    fewest: int
    most: int


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


def cut_of(ids: Sequence[int], source: Sequence[int]) -> int | None:
    """Return the end of the first of some tokens that repeat three times in a row or more; None if nothing does so.

    Tokens that repeat no more often than some of the source do not count.

    Example:
        >>> cut_of([5, 6, 7, 6, 7, 6, 7], [4]), cut_of([5, 6, 6, 6], [8, 8, 8])
        (3, None)
    """
    runs = list(_runs(ids))
    most = max((times for _, times in _runs(source)), default=2) if runs else 2
    return next((end for end, times in runs if times > most), None)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of the first, and the number, of equal sequences of tokens that follow each other three times."""
    if max(Counter(ids).values(), default=0) < 3:
        return
    for start in range(len(ids) - 2):
        for length in range(1, (len(ids) - start) // 3 + 1):
            end = start + length
            while ids[end - length : end] == ids[end : end + length]:
                end += length
            if (times := (end - start) // length) > 2:
                yield start + length, times
