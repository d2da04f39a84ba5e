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
    """Maximum number of target tokens for a source of this length: twice as many and ten, and at most fifty more.

    A model that has not learnt to stop would go on for ever; no sensible translation comes near these.
    """
    return min(2 * source_tokens + 10, source_tokens + 50)


@dataclass(frozen=True)
class Search:
    r"""The options of a search for the best translation, or of drawing some at random.

    Of a sentence's hypotheses the `beam` likeliest go on from each step to the next. One that the model ends leaves
    the beam and its place is not filled again, so that a beam of 1 is greedy search. Ended ones compete by

    $$ \log p \,\Big/ \Big(\frac{5 + \text{length}}{6}\Big)^{\text{length\_penalty}} $$

    with the end counted in the length. The search of a sentence is over when no hypothesis that goes on could still
    become one of the `n_best`.
    Wu et al., "Google's neural machine translation system" (2016), section 7.

    With `sample`, `n_best` translations are drawn independently of each other, token by token, each with the
    probability that

    $$ p_v^{1/\text{temperature}} \,\Big/ \sum_w p_w^{1/\text{temperature}} $$

    gives it among the `top_k` likeliest. They come in the order in which they were drawn, and may be equal. The samples
    of a sentence depend on `seed`, its tokens and the model; other sentences have no effect but that of rounding.

    Ranges stand with the fields.

    Attributes:
        beam: hypotheses of a sentence that go on; at most as many as the model has tokens to write.
        n_best: hypotheses to return of a sentence, at most `beam`; with `sample` any number.
        length_penalty: with 0 the likeliest wins, which favours short ones. A larger one favours longer translations; a
            beam of 1 is not affected. None: a translator's own, which its training chose; of an ensemble the mean; of
            networks alone 1.
        min_ratio: fewest target tokens for one of the source's, rounded up; one token there is always.
        max_ratio: most target tokens for one of the source's, rounded down, but at least one token; no less than
            `min_ratio`; None: `length_limit`.
        max_length: most tokens of any translation, whatever the ratios say; None: as many as they allow.
        sample: whether to draw translations instead. `beam` and `length_penalty` then have no meaning, and must have
            their defaults, as without it the four that follow must.
        temperature: 1 for the model's own probabilities; near 0 the likeliest is drawn nearly always, and the larger it
            is, the more all are alike.
        top_k: how many of the likeliest tokens a step draws from, at most as many as the model has; None: all.
        seed: where the random numbers begin.
        precision: `"float32"`, that of the weights; or `"int8"` for all weights in int8, one scale a row, on a CPU and
            for searches of one model: several times as fast, and scores have two digits.

    Raises:
        SettingsError: a value of the wrong type or out of its range, or two that contradict each other; the message
            names them and what is allowed.

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
        """The length penalty: 1 where none is said."""
        return 1.0 if self.length_penalty is None else self.length_penalty

    def __post_init__(self) -> None:
        check(self)
        if not self.sample and self.n_best > self.beam:
            raise SettingsError(f"n_best: got {self.n_best}; expected a whole number from 1 to {self.beam}, the beam")
        if self.max_ratio is not None and self.max_ratio < self.min_ratio:
            raise SettingsError(f"max_ratio: got {self.max_ratio}; expected at least {self.min_ratio}, the min_ratio")
        unused = ("beam", "length_penalty") if self.sample else ("temperature", "top_k", "seed")
        why = "samples are drawn one by one" if self.sample else "it acts on samples alone"
        for name in unused:
            if getattr(self, name) != getattr(Search, name):
                raise SettingsError(
                    f"{name} is {getattr(self, name)} and sample is {str(self.sample).lower()}: {why}; leave one out"
                )


@lru_cache(1024)
def limits(search: Search, source_tokens: int) -> tuple[int, int]:
    """The minimum and maximum number of target tokens for a source of this length."""
    # A ratio means the decimal number that was written: 1.1 times 10 is 11, and not a little more.
    fewest, most = max(1, math.ceil(Fraction(str(search.min_ratio)) * source_tokens)), length_limit(source_tokens)
    if search.max_ratio is not None:
        most = max(1, math.floor(Fraction(str(search.max_ratio)) * source_tokens))
    return fewest, most if search.max_length is None else min(most, search.max_length)


DEFAULT = Search()
GREEDY = Search(beam=1)
