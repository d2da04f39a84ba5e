"""Translated sentences with their attention weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dikkat.translation.memory.pair_shares import PairShare

_FLAGS: dict[str, Callable[["Translation"], object]] = {
    "unknown words": lambda translation: any(any(map(str.isalnum, word)) for word in translation.unknown),
    "repeated": lambda translation: translation.repeated,
    "cut": lambda translation: not translation.finished,
    "lost numbers": lambda translation: any(map(_is_number, translation.lost)),
    "lost placeholders": lambda translation: not all(map(_is_number, translation.lost)),
    "invented numbers": lambda translation: translation.invented,
    "unused terms": lambda translation: translation.unused_terms,
}
FLAGS = tuple(_FLAGS)
"""The names of the reasons to check a translation."""


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
        lost: Numbers, addresses and placeholders of the source that the translation lacks, in the form in which the
            training pairs write them.
        invented: Groups of digits in the translation that the source has in no form.
        confidence: The probability that the translation is right: that its chrF with a human translation is at least
            80. It is calibrated on validation pairs; None if the model was trained without them.
        unused_terms: The source terms whose translation could not be used.
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
    lost: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    confidence: float | None = None
    unused_terms: tuple[str, ...] = ()
    sources: list[list[PairShare]] = field(default_factory=list)

    @property
    def flags(self) -> tuple[str, ...]:
        """The reasons to check the translation, some of `FLAGS`: other attributes have the details.

        Example:
            >>> "unknown words" in translator.translate("Zorglub lost.").flags
            True
        """
        return tuple(name for name, applies in _FLAGS.items() if applies(self))

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
        unused_terms=tuple(term for t in translations for term in t.unused_terms),
    )  # fmt: skip


def _is_number(text: str) -> bool:
    """Return whether a lost text is a number, such as `14h05`: only these begin and end with digits."""
    return text[0].isdecimal() and text[-1].isdecimal()
