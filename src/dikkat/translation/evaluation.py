"""How good translations are: sacreBLEU's corpus scores with their signatures, and the textbook's for a sentence."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dikkat.translation.errors import InputError


@dataclass(frozen=True)
class Evaluation:
    """Corpus scores as sacreBLEU computes and words them.

    Attributes:
        bleu: from 0 to 100.
        bleu_line: sacreBLEU's own line, `BLEU = …`, with the n-gram precisions and the brevity penalty.
        bleu_signature: how it was computed; scores with different signatures cannot be compared.
        chrf: from 0 to 100.
        chrf_line: sacreBLEU's own line, `chrF2 = …`.
        chrf_signature: how it was computed.
    """

    bleu: float
    bleu_line: str
    bleu_signature: str
    chrf: float
    chrf_line: str
    chrf_signature: str


def evaluate(hypotheses: Sequence[str], references: Sequence[str]) -> Evaluation:
    """BLEU and chrF of a corpus of translations.

    Papineni et al. (2002), Popović (2015), as Post, "A call for clarity in reporting BLEU scores" (2018), has them.

    Args:
        hypotheses: the translations, as a person would write them.
        references: a human translation of each.

    Returns:
        The scores with sacreBLEU's signatures.

    Raises:
        InputError: none at all, or not as many of one as of the other.

    Example:
        >>> evaluate(["Il est calme, je crois."], ["Il est calme, je crois."]).bleu_line[:13]
        'BLEU = 100.00'
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} translations and {len(references)} references; there must be as many of "
            "both, and at least one"
        )
    from sacrebleu.metrics.bleu import BLEU  # here, since translating needs none of it
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return Evaluation(
        bleu=bleu_score.score,
        bleu_line=str(bleu_score),
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score.score,
        chrf_line=str(chrf_score),
        chrf_signature=str(chrf.get_signature()),
    )


def bleu_k(hypothesis: str | Sequence[str], reference: str | Sequence[str], k: int) -> float:
    r"""The textbook's BLEU of one sentence, with n-grams up to k and long ones weighted more.

    $$ \exp\Big(\min\Big(0, 1 - \frac{l_\mathrm{reference}}{l_\mathrm{hypothesis}}\Big)\Big)
    \prod_{n=1}^{k} p_n^{1/2^n} $$

    where $p_n$ is the share of the hypothesis's n-grams that the reference has, each counted at most as often as
    there; l counts words. A hypothesis of fewer than k words has no longer n-grams: the product ends before them.
    Zhang, Lipton, Li, Smola, "Dive into Deep Learning", section 10.7.6.

    Args:
        hypothesis: words, or a string of words with white space between them.
        reference: likewise.
        k: the longest n-grams, at least 1.

    Returns:
        From 0 to 1; 0 for an empty hypothesis.

    Raises:
        ValueError: k below 1.

    Example:
        >>> round(bleu_k("il est calme", "il est très calme .", k=2), 4)
        0.4317
    """
    if k < 1:
        raise ValueError(f"k is {k}; the longest n-grams must have at least 1 word")
    words = hypothesis.split() if isinstance(hypothesis, str) else list(hypothesis)
    label = reference.split() if isinstance(reference, str) else list(reference)
    if not words:
        return 0.0
    score = math.exp(min(0.0, 1 - len(label) / len(words)))
    for n in range(1, min(k, len(words)) + 1):
        matches = (_ngrams(words, n) & _ngrams(label, n)).total()
        score *= (matches / (len(words) - n + 1)) ** (0.5**n)
    return score


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
