"""Where a translator fails: scores by how rare the words are, and each sentence's faults."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import regex
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.decoding.evaluation import evaluate
from dikkat.translation.decoding.translator import Translation
from dikkat.translation.text.units import Units

_CLASSES = (0, 1, 2, 5, 20, 100)  # times that a word was met, the fewest of each class
_LITTLE, _MUCH = 0.2, 0.5  # of a source word: what comes from it in a translation that lacks it, and in one that has it
_LONGEST_REPEAT = 4  # words


@dataclass(frozen=True)
class Rarity:
    """Scores of the sentences whose rarest source word was met about equally often in training.

    Attributes:
        least: How often, at least.
        most: How often, at most; None: any number.
        sentences: How many there are.
        bleu: Of these sentences as a corpus, from 0 to 100.
        chrf: The same.
    """

    least: int
    most: int | None
    sentences: int
    bleu: float
    chrf: float


@dataclass(frozen=True)
class Judged(Translation):
    """A translation with a person's, and what is wrong with it.

    Attributes:
        reference: A person's translation.
        chrf: From 0 to 100.
        unseen: Source words that training never met.
        not_copied: Numbers and names that source and reference share, and the translation has not.
        repeated: Words that stand twice beside each other, and not so in the reference.
        dropped: Source words from which something in the reference comes, and nothing in the translation.
    """

    reference: str = ""
    chrf: float = 0.0
    unseen: list[str] = field(default_factory=list)
    not_copied: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def words(sentence: str) -> list[str]:
    """The words of a sentence, without its marks."""
    return list(regex.findall(r"\w+(?:[-'’.,:]\w+)*", sentence))


def count_words(sentences: Iterable[str]) -> Counter[str]:
    """How often each word occurs, in lower case."""
    return Counter(word.lower() for sentence in sentences for word in words(sentence))


def evaluate_by_rarity(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], met: Counter[str]
) -> list[Rarity]:
    """BLEU and chrF by how often the rarest source word was met in training: never, once, 2 to 4 times and so on.

    Args:
        sources: What was translated.
        hypotheses: The translations.
        references: A human translation of each.
        met: `count_words` of the training's source sentences.

    Returns:
        The classes that have a sentence, rarest first; one without a word is in none. A small one's scores say little.

    Raises:
        InputError: none at all, or not as many of one as of the others.

    Example:
        >>> met = count_words(["Go.", "Go home."])
        >>> classes = evaluate_by_rarity(["Go.", "Go on."], ["Va !", "Va !"], ["Va !", "Vas-y !"], met)
        >>> [(each.least, each.most, each.sentences) for each in classes]
        [(0, 0, 1), (2, 4, 1)]
    """
    if not len(sources) == len(hypotheses) == len(references):
        raise InputError(
            f"sources, hypotheses and references: got {len(sources)}, {len(hypotheses)} and {len(references)}; "
            "expected as many of each"
        )
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        if counts := [met[word.lower()] for word in words(source)]:
            members.setdefault(max(least for least in _CLASSES if least <= min(counts)), []).append(index)
    found = []
    for least, chosen in sorted(members.items()):
        scores = evaluate([hypotheses[index] for index in chosen], [references[index] for index in chosen])
        most = next((other - 1 for other in _CLASSES if other > least), None)
        found.append(Rarity(least, most, len(chosen), scores.bleu, scores.chrf))
    return found


def judge(
    translation: Translation, reference: str, met: Counter[str] | None, came: Tensor | None, wanted: Tensor | None
) -> Judged:
    """A translation with its faults.

    Args:
        translation: Of a sentence.
        reference: A person's.
        met: `count_words` of the training's source sentences; None: unknown, and no word is called unseen.
        came: (S,): how much of the translation comes from each unit of the source; None: unknown, without attention.
        wanted: The same of the reference.

    Returns:
        The translation, its reference and chrF, and the words that are at fault.
    """
    from sacrebleu.metrics.chrf import CHRF

    source, target = translation.source, translation.target
    dropped = []
    if came is not None and wanted is not None:
        units = Units.of(source)
        lost = ((came < _LITTLE) & (wanted > _MUCH)).tolist()
        dropped = [source[slice(*span)] for span, is_lost in zip(units.spans, lost, strict=True) if is_lost]
    return Judged(
        **vars(translation),
        reference=reference,
        chrf=CHRF().sentence_score(target, [reference]).score,
        unseen=[word for word in words(source) if met is not None and not met[word.lower()]],
        not_copied=_not_copied(words(source), words(target), words(reference)),
        repeated=_repeated(words(target.lower()), words(reference.lower())),
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


def _repeated(target: Sequence[str], reference: Sequence[str]) -> list[str]:
    found = []
    for length in range(1, _LONGEST_REPEAT + 1):
        twice = {" ".join(run) for run in _twice(reference, length)}
        found += [text for run in _twice(target, length) if (text := " ".join(run)) not in twice]
    return found


def _twice(text: Sequence[str], length: int) -> list[Sequence[str]]:
    starts = range(len(text) - 2 * length + 1)
    runs = [text[start : start + length] for start in starts if _doubled(text[start : start + 2 * length], length)]
    return [run for run in runs if len(set(run)) > 1 or length == 1]


def _doubled(text: Sequence[str], length: int) -> bool:
    return text[:length] == text[length:]
