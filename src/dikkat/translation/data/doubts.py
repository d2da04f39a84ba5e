"""Doubts about a corpus: what looks like a mistake, and need not be one."""

import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dikkat.translation.data.corpus import Pair
from dikkat.translation.text.units import UNIT

_ENOUGH = 20  # pairs: of fewer nothing is said
_LOOKED = 50_000  # pairs whose words are looked at, at most
_WORDS = 30  # of each side of a pair that are looked at, at most
_KNOWN = 8  # words of a pair that others have too: by fewer it is not judged
# Of captions and help texts in three languages at most 0.8 % of the pairs are as strange, mistakes among them, and with
# the translation of another sentence 81 to 92 % (docs/recipes.md).
_STRANGE = -0.75
_ITERATIONS = 5
_ANY = 0.1  # chance that a word has nothing to do with the other side

_Numbers = npt.NDArray[np.int64]


def doubts(pairs: Sequence[Pair], interval: int, validation: Iterable[Pair]) -> Iterator[str]:
    """Warnings about pairs that look wrong: those of a corpus, of which one in `interval` is here, and validation."""
    if len(pairs) < _ENOUGH:
        return
    equal = [row for row, (source, target) in enumerate(pairs) if source == target]
    if _many(equal, pairs):
        yield f"{_rows(equal, pairs, interval)}: both sides are the same"
    ratios = np.array([math.log((len(target) or 1) / (len(source) or 1)) for source, target in pairs])
    away = abs(ratios - np.median(ratios))
    # Of captions and help texts in four languages at most 0.2 % are so far away, mistakes among them.
    if odd := np.flatnonzero(away > max(math.log(3), 5 * np.median(away))).tolist():
        yield f"{_rows(odd, pairs, interval)}: one side is far longer than usual. Do they translate each other?"
    step = -(-len(pairs) // _LOOKED)
    looked, interval = pairs[::step], interval * step
    held_out = list(islice(validation, _LOOKED))
    numbers: dict[str, int] = {}
    sources, targets = (_numbered((pair[side] for pair in [*looked, *held_out]), numbers) for side in (0, 1))
    exchanged = _exchanged(sources, targets, len(looked), len(numbers))
    if _many(rows := np.flatnonzero(exchanged[: len(looked)]).tolist(), looked):
        yield f"{_rows(rows, looked, interval)}: the two sides look exchanged"
    if _many(rows := np.flatnonzero(exchanged[len(looked) :]).tolist(), held_out):
        yield f"validation: {_rows(rows, held_out, 1)}: the two sides look exchanged"
    strange = _strange(sources[: len(looked)], targets[: len(looked)], len(numbers))
    if _many(rows := np.flatnonzero(strange).tolist(), looked):
        yield (
            f"{_rows(rows, looked, interval)}: their words do not go together in other pairs. Do they translate "
            "each other?"
        )


def _many(rows: Sequence[int], pairs: Sequence[Pair]) -> bool:
    return len(rows) >= max(3, len(pairs) / 100)


def _rows(rows: Sequence[int], pairs: Sequence[Pair], interval: int) -> str:
    numbers = ", ".join(f"{row * interval + 1:,}" for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return f"{len(rows):,} of {len(pairs):,} pairs ({numbers}; the first is {reprlib.repr(pairs[rows[0]][0])})"


def _numbered(sentences: Iterable[str], numbers: dict[str, int]) -> list[_Numbers]:
    """The different words of each sentence as numbers, from 0."""
    return [
        np.unique([numbers.setdefault(word, len(numbers)) for word in UNIT.findall(each.lower())[:_WORDS]]).astype(int)
        for each in sentences
    ]


def _exchanged(sources: list[_Numbers], targets: list[_Numbers], looked: int, size: int) -> npt.NDArray[np.bool_]:
    """Whether the words of each pair are on the wrong sides: by half of those looked at, and then by all, put right."""
    exchanged = np.zeros(len(sources), bool)
    for learnt in (looked // 2, looked):
        both = [(b, a) if wrong else (a, b) for a, b, wrong in zip(sources, targets, exchanged, strict=True)]
        counts = [np.bincount(np.concatenate(side), minlength=size) + 0.5 for side in zip(*both[:learnt], strict=True)]
        lean = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
        exchanged = np.array([lean[a].sum() < lean[b].sum() - 1 for a, b in zip(sources, targets, strict=True)])
    return exchanged


def _strange(sources: list[_Numbers], targets: list[_Numbers], size: int) -> npt.NDArray[np.bool_]:
    """Whether the words of each pair are rarer beside each other than beside any: each half judged by the other."""
    gains, known = np.zeros((2, len(sources)))
    for half in (0, 1):
        for own, other in ((sources, targets), (targets, sources)):
            lexicon = _Lexicon(own[half::2], other[half::2], size)
            gain, count = lexicon.gains(own[1 - half :: 2], other[1 - half :: 2])
            gains[1 - half :: 2] += gain
            known[1 - half :: 2] += count
    return (known >= _KNOWN) & (gains < _STRANGE * known)


class _Lexicon:
    """What words are translated by, learnt as IBM's model 1 does.

    Brown and others, "The mathematics of statistical machine translation: parameter estimation" (1993), section 4.1.

    Args:
        sources: The different words of each source sentence.
        targets: Those of each target sentence.
        size: How many words there are.
    """

    def __init__(self, sources: list[_Numbers], targets: list[_Numbers], size: int) -> None:
        self.size = size
        self.frequencies = np.bincount(np.concatenate(targets), minlength=size)
        place, both = self._together(sources, targets)
        _, place = np.unique(place, return_inverse=True)
        self.both, entry = np.unique(both, return_inverse=True)
        source = self.both // size
        self.chances = np.ones(len(self.both))
        for _ in range(_ITERATIONS):
            shares = self.chances[entry]
            shares /= np.bincount(place, shares)[place]
            counts = np.bincount(entry, shares)
            self.chances = counts / np.bincount(source, counts)[source]

    def gains(self, sources: list[_Numbers], targets: list[_Numbers]) -> tuple[npt.NDArray[Any], ...]:
        """How much likelier the target's words are with its source, as a sum of logarithms; and of how many words."""
        place, both = self._together(sources, targets)
        entry = np.searchsorted(self.both, both).clip(max=len(self.both) - 1)
        chances = np.where(self.both[entry] == both, self.chances[entry], 0)
        place, word, count = np.unique(place, return_inverse=True, return_counts=True)
        pair, target = np.divmod(place, self.size)
        usual = self.frequencies[target] / self.frequencies.sum()
        known = usual > 0
        ratio = np.bincount(word, chances) / count / np.where(known, usual, 1)
        gain = np.where(known, np.log((1 - _ANY) * ratio + _ANY), 0)
        return np.bincount(pair, gain, len(sources)), np.bincount(pair[known], minlength=len(sources))

    def _together(self, sources: list[_Numbers], targets: list[_Numbers]) -> tuple[_Numbers, _Numbers]:
        """Of each target word beside each source word, and beside none: numbers of its place and of both words."""
        place, both = [], []
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            place.append(np.tile(row * self.size + target, len(source) + 1))
            both.append(np.add.outer(np.append(source, self.size) * self.size, target).ravel())
        return np.concatenate(place), np.concatenate(both)
