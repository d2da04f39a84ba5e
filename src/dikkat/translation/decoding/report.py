"""Reports of a translator's errors: scores by the rarity of words, and the errors in each sentence."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dikkat.translation.decoding.evaluation import Bucket, check_counts, evaluate_buckets
from dikkat.translation.decoding.translation import Translation
from dikkat.translation.text.units import UNSPACED, WORD, Units

_CLASS_STARTS = (0, 1, 2, 5, 20, 100)  # the smallest number of a word's occurrences in training, for each class
# A source word is dropped if its weight is below _LOST in the translation and above _EXPECTED in the reference.
_LOST, _EXPECTED = 0.2, 0.5
_LONGEST_REPEAT = 4  # words


@dataclass(frozen=True)
class Judged(Translation):
    """A translation with its reference, its chrF from 0 to 100, and its faults as words.

    `unseen` words were not in training. `not_copied` numbers and names are in the source and the reference. `doubled`
    words are not doubled in the reference. `dropped` source words have weight in the reference, not in the translation.
    """

    reference: str = ""
    chrf: float = 0.0
    unseen: list[str] = field(default_factory=list)
    not_copied: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def words(sentence: str) -> list[str]:
    """Return the words of a sentence, without punctuation."""
    return list(WORD.findall(sentence))


def count_words(sentences: Iterable[str]) -> Counter[str]:
    """Count the occurrences of each word, in lower case."""
    return Counter(word.lower() for sentence in sentences for word in words(sentence))


def evaluate_by_rarity(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], counts: Counter[str]
) -> list[Bucket]:
    """Compute BLEU and chrF by how often training had the rarest source word: never, once, 2 to 4 times, and so on.

    Example:
        >>> counts = count_words(["Go.", "Go home."])
        >>> classes = evaluate_by_rarity(["Go.", "Go on."], ["Va !", "Va !"], ["Va !", "Vas-y !"], counts)
        >>> [(each.least, each.most, each.sentences) for each in classes]
        [(0, 0, 1), (2, 4, 1)]
    """
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    classes = list(zip(_CLASS_STARTS, [*(start - 1 for start in _CLASS_STARTS[1:]), None], strict=True))
    rarest = [min((counts[word.lower()] for word in words(source)), default=None) for source in sources]
    bounds = [None if count is None else classes[bisect_right(_CLASS_STARTS, count) - 1] for count in rarest]
    return evaluate_buckets(bounds, hypotheses, references)


def judge(
    translation: Translation, reference: str, counts: Counter[str] | None, translated: Tensor | None,
    expected: Tensor | None,
) -> Judged:  # fmt: skip
    """Return a translation with its faults. Without `counts` of the words in training, no word is unseen.

    `translated` (S,) has the weight of each source unit in the translation, `expected` (S,) in the reference. Both are
    None without attention.
    """
    from sacrebleu.metrics.chrf import CHRF

    source, target = translation.source, translation.target
    dropped = []
    if translated is not None and expected is not None:
        units = Units.of(source)
        lost = ((translated < _LOST) & (expected > _EXPECTED)).tolist()
        dropped = [source[slice(*span)] for span, is_lost in zip(units.spans, lost, strict=True) if is_lost]
    return Judged(
        **vars(translation), reference=reference, chrf=CHRF().sentence_score(target, [reference]).score,
        unseen=[word for word in words(source) if counts is not None and not counts[word.lower()]],
        not_copied=_find_not_copied(words(source), words(target), words(reference)),
        doubled=_find_doubled(words(target.lower()), words(reference.lower())),
        dropped=dropped,
    )  # fmt: skip


def _find_not_copied(source: Sequence[str], target: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Return numbers and capitalised words inside the sentence that the reference copies and the target does not."""
    copied = [
        word
        for index, word in enumerate(source)
        if any(letter.isdigit() for letter in word) or (index and word[0].isupper())
    ]
    remaining = Counter(target)
    missing = []
    for word, count in (Counter(copied) & Counter(reference)).items():
        missing += [word] * max(0, count - remaining[word])
    return missing


def _find_doubled(target: Sequence[str], reference: Sequence[str]) -> list[str]:
    doubled = []
    for length in range(1, _LONGEST_REPEAT + 1):
        expected = {" ".join(run) for run in _find_repeats(reference, length)}
        doubled += [text for run in _find_repeats(target, length) if (text := " ".join(run)) not in expected]
    return doubled


def _find_repeats(text: Sequence[str], length: int) -> list[Sequence[str]]:
    starts = range(len(text) - 2 * length + 1)
    runs = [text[i : i + length] for i in starts if text[i : i + length] == text[i + length : i + 2 * length]]
    return [run for run in runs if len(set(run)) > 1 or (length == 1 and not UNSPACED.match(run[0]))]
