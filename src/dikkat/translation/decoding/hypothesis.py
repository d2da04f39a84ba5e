"""The sentences that a search takes and the hypotheses that it returns, at each of its speeds."""

from collections.abc import Sequence
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
