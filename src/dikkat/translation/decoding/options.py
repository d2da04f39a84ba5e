"""The options of a search."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

from dikkat.translation.errors import SettingsError
from dikkat.translation.fields import Range, check

SearchPrecision = Literal["float32", "int8"]


def length_limit(source_tokens: int) -> int:
    """Return the most target tokens for a source of this length: twice as many plus ten, but at most fifty more.

    Sensible translations are far shorter. The limit stops models that have not learnt to end a sentence.
    """
    return min(2 * source_tokens + 10, source_tokens + 50)


@dataclass(frozen=True)
class Search:
    r"""The options of a search for the best translation, or of random samples.

    At each step the `beam` likeliest hypotheses of a sentence continue. An ended hypothesis leaves the beam, and its
    place stays empty, so a beam of 1 is greedy search. Ended hypotheses compete by

    $$ \log p \,\Big/ \Big(\frac{5 + \text{length}}{6}\Big)^{\text{length\_penalty}} $$

    with the end counted in the length. The search of a sentence ends when no continuing hypothesis can become one of
    the `n_best`.
    Wu et al., "Google's neural machine translation system" (2016), section 7.

    With `sample`, `n_best` translations are drawn independently, token by token, among the `top_k` likeliest tokens
    with probabilities

    $$ p_v^{1/\text{temperature}} \,\Big/ \sum_w p_w^{1/\text{temperature}} $$

    They are returned in the order of drawing, and may be equal. The samples of a sentence depend on `seed`, its tokens
    and the model. Other sentences have no effect except rounding.

    Valid ranges are listed with each field.

    Attributes:
        beam: Hypotheses of a sentence that continue at each step, at most the size of the target vocabulary.
        n_best: Hypotheses to return for each sentence, at most `beam`; with `sample` any number.
        length_penalty: 0 ranks by probability, which favours short translations. A larger penalty favours longer
            translations. A beam of 1 is not affected. None: the penalty that a translator's training chose, the mean
            for an ensemble, 1 for networks.
        min_ratio: The fewest target tokens per source token, rounded up, at least one token in total.
        max_ratio: The most target tokens per source token, rounded down, at least one token in total and at least
            `min_ratio`. None: `length_limit`.
        max_length: The most tokens of any translation, regardless of the ratios. None: no such limit.
        sample: Whether to draw translations. Then `beam` and `length_penalty` must have their defaults. Without it,
            `temperature`, `top_k` and `seed` must have their defaults.
        temperature: 1 draws with the model's probabilities. Values near 0 nearly always draw the likeliest token.
            Larger values make tokens more equally likely.
        top_k: The number of likeliest tokens to draw from, at most the size of the target vocabulary. None: all.
        seed: The seed of the random numbers.
        precision: `"float32"`: that of the weights. `"int8"`: all weights in int8 with one scale for each row, on a CPU
            and for a single model: faster, and scores have two digits.

    Raises:
        SettingsError: A value has the wrong type or is out of its range, or two values contradict each other; the
            message names them and the allowed values.

    Example:
        >>> Search(beam=3, n_best=5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: n_best: got 5; expected a whole number from 1 to 3, the beam
    """

    beam: Annotated[int, Range(1)] = 5
    n_best: Annotated[int, Range(1)] = 1
    length_penalty: Annotated[float | None, Range(0, 10)] = None
    min_ratio: Annotated[float, Range(0, 10)] = 0.0
    max_ratio: Annotated[float | None, Range(0, 10, open_below=True)] = None
    max_length: Annotated[int | None, Range(1)] = None
    sample: bool = False
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    top_k: Annotated[int | None, Range(1)] = None
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    precision: SearchPrecision = "float32"

    @property
    def penalty(self) -> float:
        """The length penalty, or 1 if it is None."""
        return 1.0 if self.length_penalty is None else self.length_penalty

    def __post_init__(self) -> None:
        check(self)
        if not self.sample and self.n_best > self.beam:
            raise SettingsError(f"n_best: got {self.n_best}; expected a whole number from 1 to {self.beam}, the beam")
        if self.max_ratio is not None and self.max_ratio < self.min_ratio:
            raise SettingsError(f"max_ratio: got {self.max_ratio}; expected at least {self.min_ratio}, the min_ratio")
        unused = ("beam", "length_penalty") if self.sample else ("temperature", "top_k", "seed")
        why = "samples are drawn one by one" if self.sample else "it only affects samples"
        for name in unused:
            if getattr(self, name) != (default := getattr(Search, name)):
                raise SettingsError(
                    f"{name}: got {getattr(self, name)} with sample={self.sample}; expected {default}, since {why}"
                )


@lru_cache(1024)
def limits(search: Search, source_tokens: int) -> tuple[int, int]:
    """Return the minimum and the maximum number of target tokens for a source of this length."""
    # Fractions of the decimal numbers: 1.1 times 10 is exactly 11.
    min_length = max(1, math.ceil(Fraction(str(search.min_ratio)) * source_tokens))
    max_length = length_limit(source_tokens)
    if search.max_ratio is not None:
        max_length = max(1, math.floor(Fraction(str(search.max_ratio)) * source_tokens))
    return min_length, max_length if search.max_length is None else min(max_length, search.max_length)


DEFAULT = Search()
GREEDY = Search(beam=1)
