"""Warnings about sentence pairs that look like mistakes but may be right."""

import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dikkat.translation.data.corpus import Pair
from dikkat.translation.text.units import UNIT

_MIN_PAIRS = 20  # in a corpus, and pairs with unrelated words: fewer give no warning
_MIN_EXCHANGED = 3  # pairs with exchanged sides: fewer may be chance; benchmarks/trials.md has the trials
_MAX_PAIRS = 20_000  # whose words are compared
_MAX_WORDS = 40  # of a side: longer sides are not compared
_MIN_COUNT = 3  # occurrences of a known word
_MIN_KNOWN_WORDS = 8  # of a pair, for a judgement by its words
_MAX_GAIN = -0.75  # mean gain of a strange pair; benchmarks/trials.md has the shares of right and wrong pairs below it
_ITERATIONS = 5
_UNRELATED = 0.1  # probability that a word translates no word of the other side
_SIDE_RATIO = 1.4  # a word is typical of a side if it is this many times more frequent there
_EXCHANGE_RATIO = 4  # words on the wrong side for each word on the right side

_Numbers = npt.NDArray[np.int64]
_RowMask = npt.NDArray[np.bool_]


def doubts(
    name: str, pairs: Sequence[Pair], interval: int, held_out: str = "", validation: Iterable[Pair] = ()
) -> Iterator[str]:
    """Yield warnings about the corpus `name`, sampled as every `interval`-th pair, and about the validation pairs."""
    if len(pairs) < _MIN_PAIRS:
        return
    is_quoted = [all(len(side) > 1 and side[0] == side[-1] == '"' for side in pair) for pair in pairs]
    has_tab = ["\t" in "".join(pair) for pair in pairs]
    for flags, message in (
        (is_quoted, "both sides are in quotation marks, and the model learns the marks. Remove them"),
        (has_tab, "a side has a tab. Is the file a TSV of both languages? Then give it as --corpus FILE"),
    ):
        if sum(flags) >= 0.9 * len(pairs):
            yield f"{name}: {_describe(np.flatnonzero(flags).tolist(), pairs, interval)}: {message}"
    equal_rows = [row for row, (source, target) in enumerate(pairs) if source == target]
    if len(equal_rows) >= max(3, len(pairs) / 100):
        yield f"{name}: {_describe(equal_rows, pairs, interval)}: both sides are the same"
    ratios = np.array([math.log((len(target) or 1) / (len(source) or 1)) for source, target in pairs])
    deviations = abs(ratios - np.median(ratios))
    # In captions and help texts in four languages at most 0.2 % of the pairs, mistakes included, are this far away.
    if odd_rows := np.flatnonzero(deviations > max(math.log(3), 5 * np.median(deviations))).tolist():
        yield f"{name}: {_describe(odd_rows, pairs, interval)}: one side is far longer than usual. Is it a translation?"
    stride = -(-len(pairs) // _MAX_PAIRS)
    sample, interval = pairs[::stride], interval * stride
    held_out_sample = list(islice(validation, _MAX_PAIRS))
    vocabulary: dict[str, int] = {}
    sources, targets = (_number((pair[side] for pair in [*sample, *held_out_sample]), vocabulary) for side in (0, 1))
    exchanged = _find_exchanged(sources, targets, len(sample), len(vocabulary))
    strange = _find_strange(sources[: len(sample)], targets[: len(sample)], len(vocabulary))
    exchanged_message = "the two sides look exchanged"
    strange_message = "their words do not go together in other pairs. Do they translate each other?"
    for corpus_name, judged_pairs, step, row_mask, min_rows, min_share, message in (
        (name, sample, interval, exchanged[: len(sample)], _MIN_EXCHANGED, 0.01, exchanged_message),
        (held_out, held_out_sample, 1, exchanged[len(sample) :], _MIN_EXCHANGED, 0.1, exchanged_message),
        (name, sample, interval, strange, _MIN_PAIRS, 0.01, strange_message),
    ):
        if row_mask.sum() >= max(min_rows, min_share * len(judged_pairs)):
            yield f"{corpus_name}: {_describe(np.flatnonzero(row_mask).tolist(), judged_pairs, step)}: {message}"


def _describe(rows: Sequence[int], pairs: Sequence[Pair], interval: int) -> str:
    numbers = ", ".join(f"{row * interval + 1:,}" for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return f"{len(rows):,} of {len(pairs):,} pairs ({numbers}; the first is {reprlib.repr(pairs[rows[0]][0])})"


def _number(sentences: Iterable[str], vocabulary: dict[str, int]) -> list[_Numbers]:
    sentence_words = []
    for sentence in sentences:
        words = UNIT.findall(sentence.lower())
        word_ids = [vocabulary.setdefault(word, len(vocabulary)) for word in words if len(words) <= _MAX_WORDS]
        sentence_words.append(np.unique(np.array(word_ids, np.int64)))
    return sentence_words


def _find_exchanged(sources: list[_Numbers], targets: list[_Numbers], sample_size: int, size: int) -> _RowMask:
    """Return the mask of pairs with exchanged sides, by words typical of a side in the first half, then in all."""
    exchanged: _RowMask = np.zeros(len(sources), bool)
    for count in (sample_size // 2, sample_size):
        ordered = [(b, a) if wrong else (a, b) for a, b, wrong in zip(sources, targets, exchanged, strict=True)]
        counts = np.array(
            [np.bincount(np.concatenate(side), minlength=size) for side in zip(*ordered[:count], strict=True)]
        )
        shares = (counts + 0.5) / (1 + counts.sum(1, keepdims=True))
        usual = (shares > _SIDE_RATIO * shares[::-1]) & (counts >= _MIN_COUNT)  # (sides, words)
        right, wrong = (
            np.array([usual[side][a].sum() + usual[1 - side][b].sum() for a, b in zip(sources, targets, strict=True)])
            for side in (0, 1)
        )
        exchanged = np.asarray(wrong >= _EXCHANGE_RATIO * np.maximum(right, 1))
    return exchanged


def _find_strange(sources: list[_Numbers], targets: list[_Numbers], size: int) -> _RowMask:
    """Return the mask of pairs whose words rarely occur together in other pairs; each half judges the other half."""
    gains, counts = np.zeros((2, len(sources))), np.zeros((2, len(sources)))
    half = np.random.default_rng(0).permutation(len(sources)) % 2 == 0  # random: lines of a file may alternate
    for training_mask in (half, ~half):
        learnt_rows, judged_rows = np.flatnonzero(training_mask), np.flatnonzero(~training_mask)
        for direction, (inputs, outputs) in enumerate(((sources, targets), (targets, sources))):
            lexicon = _Lexicon([inputs[row] for row in learnt_rows], [outputs[row] for row in learnt_rows], size)
            row_gains = lexicon.gains([inputs[row] for row in judged_rows], [outputs[row] for row in judged_rows])
            gains[direction, judged_rows], counts[direction, judged_rows] = row_gains
    strange = (counts.sum(0) >= _MIN_KNOWN_WORDS) & (counts.min(0) > 0) & (gains.sum(0) < _MAX_GAIN * counts.sum(0))
    return np.asarray(strange)


class _Lexicon:
    """Probabilities that one word translates another, learnt as in IBM's model 1.

    Brown and others, "The mathematics of statistical machine translation: parameter estimation" (1993), section 4.1.
    """

    def __init__(self, sources: list[_Numbers], targets: list[_Numbers], size: int) -> None:
        self.size = size
        counts = np.bincount(np.concatenate(targets), minlength=size)
        self.frequencies = counts / max(1, counts.sum()) * (counts >= _MIN_COUNT)
        occurrence, pairs = self._pair_words(sources, targets)
        _, occurrence = np.unique(occurrence, return_inverse=True)
        self.pairs, pair_index = np.unique(pairs, return_inverse=True)
        pair_source = self.pairs // size
        self.chances = np.ones(len(self.pairs))
        for _ in range(_ITERATIONS):
            shares = self.chances[pair_index]
            shares /= np.bincount(occurrence, shares)[occurrence]
            expected_counts = np.bincount(pair_index, shares)
            self.chances = expected_counts / np.bincount(pair_source, expected_counts)[pair_source]

    def gains(self, sources: list[_Numbers], targets: list[_Numbers]) -> tuple[npt.NDArray[Any], ...]:
        """Return, for each pair, Σ log(p(word | source) / p(word)) over its known target words, and their number."""
        occurrence, pairs = self._pair_words(sources, targets)
        pair_index = np.searchsorted(self.pairs, pairs)
        chances = np.where(np.append(self.pairs, -1)[pair_index] == pairs, np.append(self.chances, 0)[pair_index], 0)
        occurrence, index, counts = np.unique(occurrence, return_inverse=True, return_counts=True)
        pair, target = np.divmod(occurrence, self.size)
        frequency = self.frequencies[target]
        is_known = frequency > 0
        ratio = np.bincount(index, chances) / counts / np.where(is_known, frequency, 1)
        gain = np.where(is_known, np.log((1 - _UNRELATED) * ratio + _UNRELATED), 0)
        return np.bincount(pair, gain, len(sources)), np.bincount(pair[is_known], minlength=len(sources))

    def _pair_words(self, sources: list[_Numbers], targets: list[_Numbers]) -> tuple[_Numbers, _Numbers]:
        """Return codes of (pair, target word) and (source word, target word), with an empty source word per pair."""
        occurrences, word_pairs = [], []
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            occurrences.append(np.tile(row * self.size + target, len(source) + 1))
            word_pairs.append(np.add.outer(np.append(source, self.size) * self.size, target).ravel())
        return np.concatenate(occurrences), np.concatenate(word_pairs)
