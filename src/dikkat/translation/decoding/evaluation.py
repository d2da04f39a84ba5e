"""Scores of translations: sacreBLEU's corpus scores with their signatures, and the textbook's sentence BLEU."""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

import regex

from dikkat.errors import InputError
from dikkat.translation.text.slots import count_digit_groups, invented_numbers
from dikkat.translation.text.units import WORD

if TYPE_CHECKING:
    from sacrebleu.significance import Result

_SCRIPTS = {
    "any": regex.compile(r"\p{L}"),
    "kana": regex.compile(r"[\p{Hiragana}\p{Katakana}]"),
    "han": regex.compile(r"\p{Han}"),
    "other": regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"),
}
BUCKET = 10  # source words: 1 to 10, 11 to 20 and so on
_BLANK = regex.compile(r"\s{2,}|[\t-\r]")  # a translation has one space instead


@dataclass(frozen=True)
class Evaluation:
    """Corpus scores of sacreBLEU.

    Attributes:
        sentences: The number of translations.
        bleu: From 0 to 100. None if no translation or reference has four words, since BLEU is then undefined.
        bleu_line: sacreBLEU's line, `BLEU = …`, with the n-gram precisions and the brevity penalty.
        bleu_signature: sacreBLEU's settings. Scores with different signatures cannot be compared.
        chrf: From 0 to 100.
        chrf_line: sacreBLEU's line, `chrF2 = …`.
        chrf_signature: sacreBLEU's settings.
        exact_matches: Translations that equal their reference, ignoring repeated spaces and Unicode composition.
        lost_numbers: Groups of digits in both source and reference that the translation lacks; None without sources.
        invented_numbers: Groups of digits in neither source nor reference; None without sources.
    """

    sentences: int
    bleu: float | None
    bleu_line: str
    bleu_signature: str
    chrf: float
    chrf_line: str
    chrf_signature: str
    exact_matches: int
    lost_numbers: int | None
    invented_numbers: int | None


def evaluate(hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None) -> Evaluation:
    """Compute BLEU, chrF, exact matches and wrong numbers of a corpus of translations.

    Papineni et al. (2002), Popović (2015), as in Post, "A call for clarity in reporting BLEU scores" (2018).

    The references' script chooses the tokenizer: `zh` for Chinese, `ja-mecab` for Japanese if MeCab is installed, and
    letters (`char`) for other Japanese, Thai, Lao, Khmer and Burmese texts.

    Numbers are compared by their groups of digits, with repetitions: `14:05` and `14h05` have `14` and `05`.

    Args:
        hypotheses: The translations, as a person would write them.
        references: A human translation of each sentence.
        sources: The source sentences. None: numbers are not compared.

    Returns:
        The scores with sacreBLEU's signatures.

    Raises:
        InputError: The lists are empty or of different lengths.

    Example:
        >>> evaluate(["Il est calme, je crois."], ["Il est calme, je crois."]).bleu_line[:13]
        'BLEU = 100.00'
        >>> scores = evaluate(["À 9h30."], ["À 14h05."], ["At 14:05."])
        >>> scores.exact_matches, scores.lost_numbers, scores.invented_numbers
        (0, 2, 2)
    """
    check_counts(hypotheses=hypotheses, references=references)
    lost, invented = None, None
    if sources is not None:
        check_counts(hypotheses=hypotheses, sources=sources)
        lost, invented = map(sum, zip(*map(_count_wrong_numbers, sources, hypotheses, references), strict=True))
    from sacrebleu.metrics.bleu import BLEU  # imported here, since translating does not need it
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(tokenize=words_of(references)), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return Evaluation(
        sentences=len(references),
        bleu=bleu_score.score
        if bleu_score.totals[-1] or bleu.corpus_score(list(references), [list(references)]).totals[-1]
        else None,
        bleu_line=str(bleu_score),
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score.score,
        chrf_line=str(chrf_score),
        chrf_signature=str(chrf.get_signature()),
        exact_matches=sum(map(_is_equal, hypotheses, references)),
        lost_numbers=lost,
        invented_numbers=invented,
    )


def _is_equal(hypothesis: str, reference: str) -> bool:
    output, expected = (_BLANK.sub(" ", unicodedata.normalize("NFC", text)).strip() for text in (hypothesis, reference))
    return bool(output == expected)


def _count_wrong_numbers(source: str, hypothesis: str, reference: str) -> tuple[int, int]:
    read, written, expected = map(count_digit_groups, (source, hypothesis, reference))
    return ((read & expected) - written).total(), invented_numbers(hypothesis, source, reference).total()


def words_of(texts: Sequence[str]) -> str:
    """Return the name of sacreBLEU's tokenizer for the script of most letters. Japanese may be mostly Han.

    Example:
        >>> words_of(["Go."]), words_of(["走开。"]), words_of(["ไป"])
        ('13a', 'zh', 'char')
    """
    counts = {name: sum(len(letters.findall(text)) for text in texts) for name, letters in _SCRIPTS.items()}
    if sum(counts.values()) - counts["any"] <= counts["any"] / 2:
        return "13a"
    if counts["other"] >= counts["kana"] + counts["han"]:
        return "char"
    if 10 * counts["kana"] > counts["han"]:  # Chinese has less kana, Japanese more
        return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
    return "zh"


@dataclass(frozen=True)
class TokenEvaluation:
    """BLEU over tokens in lower case.

    Attributes:
        bleu: From 0 to 100.
        bleu_line: sacreBLEU's line; `ref_len` is the number of the references' tokens.
        bleu_signature: The tokenizer and sacreBLEU's settings.
    """

    bleu: float
    bleu_line: str
    bleu_signature: str


def evaluate_lowercased_tokens(hypotheses: Sequence[str], references: Sequence[str], language: str) -> TokenEvaluation:
    """Compute BLEU over tokens in lower case, as in papers from before sacreBLEU.

    sacremoses makes the tokens of Moses's `tokenizer.perl`, with escapes such as `&apos;`. Compare a score with a
    paper's only if the references have the same number of tokens, since papers tokenize differently.

    Args:
        hypotheses: The translations, as a person would write them.
        references: A human translation of each sentence.
        language: The translations' language, such as `"fr"`.

    Returns:
        The score, sacreBLEU's line and signature.

    Raises:
        InputError: The lists are empty or of different lengths, or Moses's tokenizer has no rules for the language.

    Example:
        >>> evaluate_lowercased_tokens(["Il n'est pas là."] * 2, ["il n'est pas LÀ."] * 2, "fr").bleu_line[-13:-1]
        'ref_len = 12'
    """
    check_counts(hypotheses=hypotheses, references=references)
    check_language(language)
    from sacrebleu.metrics.bleu import BLEU
    from sacremoses import MosesTokenizer, __version__

    tokenizer = MosesTokenizer(language)
    tokens = [
        [tokenizer.tokenize(text.lower(), escape=True, return_str=True) for text in side]
        for side in (hypotheses, references)
    ]
    bleu = BLEU(tokenize="none", force=True)
    score = bleu.corpus_score(tokens[0], [tokens[1]])
    signature = f"lower case, sacremoses {__version__} {language}|{bleu.get_signature()}"
    return TokenEvaluation(score.score, str(score), signature)


def check_language(language: str, name: str = "language") -> None:
    """Raise `InputError` about the argument `name` if Moses's tokenizer has no rules for a language."""
    from sacremoses.corpus import NonbreakingPrefixes

    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise InputError(f"{name}: got {language!r}; expected one of {', '.join(known)}")


@dataclass(frozen=True)
class Bucket:
    """Scores of sentences with sources of similar length, or with similarly rare words.

    Attributes:
        least: The fewest words of a source; or the fewest occurrences of its rarest word in training.
        most: The most words, or occurrences. None: any number.
        sentences: The number of sentences.
        bleu: The corpus score of these sentences, from 0 to 100; None as in `Evaluation`.
        chrf: The corpus score of these sentences, from 0 to 100.
    """

    least: int
    most: int | None
    sentences: int
    bleu: float | None
    chrf: float


def evaluate_by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[Bucket]:
    """Compute BLEU and chrF of sentences with up to 10 source words, with 11 to 20, and so on.

    Args:
        sources: The source sentences. Punctuation does not count; in scripts without spaces each letter is a word.
        hypotheses: The translations.
        references: A human translation of each sentence.

    Returns:
        The buckets that have a sentence, shortest first. Scores of small buckets are not reliable.

    Raises:
        InputError: The lists are empty or of different lengths.

    Example:
        >>> sources, references = ["Go.", "a " * 11], ["Va !", "non"]
        >>> buckets = evaluate_by_length(sources, ["", ""], references)
        >>> [(bucket.least, bucket.most, bucket.sentences) for bucket in buckets]
        [(1, 10, 1), (11, 20, 1)]
    """
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    lengths = [max(0, len(WORD.findall(source)) - 1) // BUCKET for source in sources]
    bounds = [(number * BUCKET + 1, (number + 1) * BUCKET) for number in lengths]
    return evaluate_buckets(bounds, hypotheses, references)


def evaluate_buckets(
    bounds: Sequence[tuple[int, int | None] | None], hypotheses: Sequence[str], references: Sequence[str]
) -> list[Bucket]:
    """Compute the scores of each bucket, from each sentence's bounds; None leaves a sentence out."""
    members: dict[tuple[int, int | None], list[int]] = {}
    for index, bound in enumerate(bounds):
        if bound is not None:
            members.setdefault(bound, []).append(index)
    buckets = []
    for (least, most), indices in sorted(members.items(), key=lambda bucket: bucket[0][0]):
        scores = evaluate([hypotheses[index] for index in indices], [references[index] for index in indices])
        buckets.append(Bucket(least, most, len(indices), scores.bleu, scores.chrf))
    return buckets


@dataclass(frozen=True)
class Difference:
    """A comparison of two systems' scores, by paired bootstrap resampling.

    Attributes:
        metric: `"BLEU"` or `"chrF2"`.
        score: The system's score.
        interval: Half the width of the score's 95 % confidence interval.
        other_score: The baseline's score.
        other_interval: Half the width of the baseline's confidence interval.
        p_value: The probability of so large a difference if both systems are equally good.
        signature: sacreBLEU's settings.
    """

    metric: str
    score: float
    interval: float
    other_score: float
    other_interval: float
    p_value: float
    signature: str


def significance(hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str]) -> list[Difference]:
    """Compare two systems on the same sentences by sacreBLEU's test, with 1,000 resamples.

    Koehn, "Statistical significance tests for machine translation evaluation" (2004).

    Args:
        hypotheses: The system's translations.
        others: The baseline's translations.
        references: A human translation of each sentence.

    Returns:
        BLEU and chrF of both, with the p-value of the difference.

    Raises:
        InputError: The lists are empty or of different lengths.

    Example:
        >>> bleu, chrf = significance(["Va !", "Il est calme."], ["Va !", "Elle est là."], ["Va !", "Il est calme."])
        >>> bleu.metric, round(bleu.score), bleu.other_score < bleu.score
        ('BLEU', 100, True)
    """
    check_counts(hypotheses=hypotheses, others=others, references=references)
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    # The first is the baseline.
    systems: list[tuple[str, Sequence[str]]] = [("other", others), ("system", hypotheses)]
    test = PairedTest(
        systems, {"BLEU": BLEU(tokenize=words_of(references)), "chrF": CHRF()}, [list(references)], test_type="bs"
    )
    signatures, results = test()
    differ = list(hypotheses) != list(others)  # sacreBLEU gives equal systems a p-value near 0

    def difference(metric: str) -> Difference:
        other, system = (cast("Result", result) for result in results[metric])
        return Difference(
            metric, score=float(system.score), interval=float(system.ci or 0.0), other_score=float(other.score),
            other_interval=float(other.ci or 0.0), p_value=float(system.p_value or 0.0) if differ else 1.0,
            signature=str(signatures[metric]),
        )  # fmt: skip

    return [difference(metric) for metric in signatures]


def bleu_k(hypothesis: str | Sequence[str], reference: str | Sequence[str], k: int) -> float:
    r"""Return the textbook's BLEU of a sentence, with n-grams up to k.

    $$ \exp\Big(\min\Big(0, 1 - \frac{l_\mathrm{reference}}{l_\mathrm{hypothesis}}\Big)\Big)
    \prod_{n=1}^{k} p_n^{1/2^n} $$

    where l counts words, and $p_n$ is the share of the hypothesis's n-grams that the reference has, each counted at
    most as often as in the reference. The product ends at the hypothesis's length if that is less than k.
    Zhang, Lipton, Li, Smola, "Dive into Deep Learning", section 10.7.6.

    Args:
        hypothesis: A list of words, or a string of words separated by white space.
        reference: A list of words, or a string of words separated by white space.
        k: The words of the longest n-grams, at least 1.

    Returns:
        From 0 to 1; 0 for an empty hypothesis.

    Raises:
        ValueError: `k` is below 1.

    Example:
        >>> round(bleu_k("il est calme", "il est très calme .", k=2), 4)
        0.4317
    """
    if k < 1:
        raise ValueError(f"k: got {k}; expected at least 1, as n-grams have up to k words")
    words = hypothesis.split() if isinstance(hypothesis, str) else list(hypothesis)
    reference_words = reference.split() if isinstance(reference, str) else list(reference)
    if not words:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference_words) / len(words)))
    for n in range(1, min(k, len(words)) + 1):
        matches = (_count_ngrams(words, n) & _count_ngrams(reference_words, n)).total()
        score *= (matches / (len(words) - n + 1)) ** (0.5**n)
    return score


def check_counts(**texts: Sequence[str]) -> None:
    """Raise `InputError` if the lists are empty or of different lengths."""
    counts = [len(group) for group in texts.values()]
    if len(set(counts)) > 1 or not counts[0]:
        names, numbers = ([*map(str, group)] for group in (texts, counts))
        raise InputError(
            f"{', '.join(names[:-1])} and {names[-1]}: got {', '.join(numbers[:-1])} and {numbers[-1]} texts; "
            "expected as many of each, at least one"
        )


def _count_ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
