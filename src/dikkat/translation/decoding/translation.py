"""Translated sentences with their attention weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dikkat.translation.memory.sources import Source


@dataclass(frozen=True)
class Translation:
    """A translated sentence with its attention weights.

    Attributes:
        source: The sentence.
        target: The translation as a person would write it. A sentence without letters is copied, its slots rewritten.
        source_tokens: The S pieces that the model read.
        target_tokens: The T pieces that the model wrote.
        weights: (T, S) float32, the attention weights of each target token. Rows sum to 1. All are equal if the model
            has no attention.
        score: The natural log-probability of the translation; 0 for a sentence without letters.
        finished: Whether the model ended the sentence. If not, the length limit cut the translation.
        unknown: Words and marks of the source that were in no training sentence.
        repeated: Whether the model wrote the same tokens at least three times in a row, and the source has fewer
            repetitions. The translation ends after their first occurrence; the score includes all.
        sources: For each target token the stored pairs that took part in its probability, with their weights, largest
            first. Empty if the translator has no stored pairs, and for an ensemble.
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
    sources: list[list[Source]] = field(default_factory=list)

    def _repr_html_(self) -> str:
        from dikkat.show.table import table

        return table(self)


def join_sentences(line: str, translations: Sequence[Translation], spaces: Sequence[str]) -> Translation:
    """Join the translations of a line's sentences, with the spaces between them."""
    return Translation(
        source=line, target="".join(t.target + space for t, space in zip(translations, [*spaces, ""], strict=True)),
        source_tokens=[token for t in translations for token in t.source_tokens],
        target_tokens=[token for t in translations for token in t.target_tokens],
        weights=torch.block_diag(*(t.weights for t in translations)), score=sum(t.score for t in translations),
        finished=all(t.finished for t in translations), unknown=tuple(word for t in translations for word in t.unknown),
        repeated=any(t.repeated for t in translations), sources=[token for t in translations for token in t.sources],
    )  # fmt: skip
