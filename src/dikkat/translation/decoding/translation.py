"""Translated sentences, and what the model looked at for each word."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Translation:
    """A translated sentence, and what the model looked at for each word.

    Attributes:
        source: The sentence as it was given.
        target: Its translation as a person would write it. A sentence without letters is copied, its slots rewritten.
        source_tokens: The S pieces that the model read.
        target_tokens: The T pieces that it wrote.
        weights: (T, S) float32, the attention weights of each target token; each row adds up to 1. All are equal if
            the model has no attention.
        score: log-probability of the translation, natural logarithm; 0 for a sentence without letters.
        finished: Whether the model ended the sentence itself. If not, it was cut at a length that no sensible
            translation reaches.
        unknown: Words and marks of the source that were in no sentence that the model learnt from.
        repeated: Whether the model wrote the same tokens three times in a row or more, and the source does not repeat
            itself as often. The translation ends after the first of them, the score is that of all.
    """

    source: str
    target: str
    source_tokens: list[str]
    target_tokens: list[str]
    weights: Tensor
    score: float
    finished: bool = True
    unknown: tuple[str, ...] = ()
    repeated: bool = False

    def _repr_html_(self) -> str:
        from dikkat.show.table import table

        return table(self)


def joined(line: str, parts: Sequence[Translation], spaces: Sequence[str]) -> Translation:
    """The translation of a line, of those of its sentences."""
    return Translation(
        source=line, target="".join(each.target + space for each, space in zip(parts, [*spaces, ""], strict=True)),
        source_tokens=[token for each in parts for token in each.source_tokens],
        target_tokens=[token for each in parts for token in each.target_tokens],
        weights=torch.block_diag(*(each.weights for each in parts)), score=sum(each.score for each in parts),
        finished=all(each.finished for each in parts), unknown=tuple(word for each in parts for word in each.unknown),
        repeated=any(each.repeated for each in parts),
    )  # fmt: skip
