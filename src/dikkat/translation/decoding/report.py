"""Where a translator fails: scores by how rare the words are, and each sentence's faults."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dikkat.translation.decoding.evaluation import Bucket, check_counts, evaluate_apart
from dikkat.translation.decoding.translation import Translation
from dikkat.translation.text.units import UNSPACED, WORD, Units

_CLASSES = (0, 1, 2, 5, 20, 100)  # times that a word was met, the fewest of each class
_LITTLE, _MUCH = 0.2, 0.5  # of a source word: what comes from it in a translation that lacks it, and in one that has it
_LONGEST_REPEAT = 4  # words


@dataclass(frozen=True)
class Judged(Translation):
    """A translation with its reference, its chrF from 0 to 100, and its faults as words.

    `unseen` in training; `not_copied` numbers and names, which the reference has; `doubled`, and not so in the
    reference; `dropped` source words, from which something in the reference comes, and nothing in the translation.
    """

    reference: str = ""
    chrf: float = 0.0
    unseen: list[str] = field(default_factory=list)
    not_copied: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def words(sentence: str) -> list[str]:
    """The words of a sentence, without its marks."""
    return list(WORD.findall(sentence))


def count_words(sentences: Iterable[str]) -> Counter[str]:
    """How often each word occurs, in lower case."""
    return Counter(word.lower() for sentence in sentences for word in words(sentence))


def evaluate_by_rarity(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], counts: Counter[str]
) -> list[Bucket]:
    """BLEU and chrF by how often the rarest source word was met in training: never, once, 2 to 4 times and so on.

    Example:
        >>> counts = count_words(["Go.", "Go home."])
        >>> classes = evaluate_by_rarity(["Go.", "Go on."], ["Va !", "Va !"], ["Va !", "Vas-y !"], counts)
        >>> [(each.least, each.most, each.sentences) for each in classes]
        [(0, 0, 1), (2, 4, 1)]
    """
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    classes = list(zip(_CLASSES, [*(other - 1 for other in _CLASSES[1:]), None], strict=True))
    rarest = [min((counts[word.lower()] for word in words(source)), default=None) for source in sources]
    bounds = [None if count is None else classes[bisect_right(_CLASSES, count) - 1] for count in rarest]
    return evaluate_apart(bounds, hypotheses, references)


def judge(
    translation: Translation,
    reference: str,
    counts: Counter[str] | None,
    translated: Tensor | None,
    expected: Tensor | None,
) -> Judged:
    """Return a translation with its faults; without `counts` of the training's words, no word is unseen.

    `translated` (S,) says how much of the translation comes from each unit of the source, `expected` the same of the
    reference; both are None without attention.
    """
    from sacrebleu.metrics.chrf import CHRF

    source, target = translation.source, translation.target
    dropped = []
    if translated is not None and expected is not None:
        units = Units.of(source)
        lost = ((translated < _LITTLE) & (expected > _MUCH)).tolist()
        dropped = [source[slice(*span)] for span, is_lost in zip(units.spans, lost, strict=True) if is_lost]
    return Judged(
        **vars(translation),
        reference=reference,
        chrf=CHRF().sentence_score(target, [reference]).score,
        unseen=[word for word in words(source) if counts is not None and not counts[word.lower()]],
        not_copied=_not_copied(words(source), words(target), words(reference)),
        doubled=_find_doubled(words(target.lower()), words(reference.lower())),
        dropped=dropped,
    )


def _not_copied(source: Sequence[str], target: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Numbers and words with a capital inside a sentence, that a person copied."""
    copied = [
        word
        for index, word in enumerate(source)
        if any(letter.isdigit() for letter in word) or (index and word[0].isupper())
    ]
    left = Counter(target)
    missing = []
    for word, count in (Counter(copied) & Counter(reference)).items():
        missing += [word] * max(0, count - left[word])
    return missing


def _find_doubled(target: Sequence[str], reference: Sequence[str]) -> list[str]:
    found = []
    for length in range(1, _LONGEST_REPEAT + 1):
        twice = {" ".join(run) for run in _twice(reference, length)}
        found += [text for run in _twice(target, length) if (text := " ".join(run)) not in twice]
    return found


def _twice(text: Sequence[str], length: int) -> list[Sequence[str]]:
    starts = range(len(text) - 2 * length + 1)
    runs = [text[i : i + length] for i in starts if text[i : i + length] == text[i + length : i + 2 * length]]
    return [run for run in runs if len(set(run)) > 1 or (length == 1 and not UNSPACED.match(run[0]))]
