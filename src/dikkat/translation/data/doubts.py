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

_ENOUGH = 20  # pairs: of fewer nothing is said, nor of fewer whose words do not go together
_EXCHANGED = 3  # pairs with exchanged sides: fewer may be chance; docs/recipes.md has the trials
_LOOKED = 20_000  # pairs whose words are looked at, at most
_WORDS = 40  # of a side: where there are more, the pair is not judged by its words
_SEEN = 3  # times that a word occurs, to be known
_KNOWN = 8  # words of a pair, to be judged by them
_STRANGE = -0.75  # docs/recipes.md has how many right and wrong pairs are below
_ITERATIONS = 5
_ANY = 0.1  # chance that a word has nothing to do with the other side
_ONE_SIDED = 1.4  # times that a word is likelier on a side that is its own
_SIDED = 4  # words on the wrong side, for one on its own

_Numbers = npt.NDArray[np.int64]
_Answers = npt.NDArray[np.bool_]


def doubts(
    name: str, pairs: Sequence[Pair], interval: int, held_out: str = "", validation: Iterable[Pair] = ()
) -> Iterator[str]:
    """Warnings about pairs that look wrong: those of a corpus, of which one in `interval` is here, and validation."""
    if len(pairs) < _ENOUGH:
        return
    quoted = [all(len(each) > 1 and each[0] == each[-1] == '"' for each in pair) for pair in pairs]
    tabbed = ["\t" in "".join(pair) for pair in pairs]
    for rows, what in (
        (quoted, "both sides are in quotation marks, which are learnt. Remove them"),
        (tabbed, "a side has a tab, as between the sentences of a TSV, which is a corpus by itself: --corpus FILE"),
    ):
        if sum(rows) >= 0.9 * len(pairs):
            yield f"{name}: {_rows(np.flatnonzero(rows).tolist(), pairs, interval)}: {what}"
    equal = [row for row, (source, target) in enumerate(pairs) if source == target]
    if len(equal) >= max(3, len(pairs) / 100):
        yield f"{name}: {_rows(equal, pairs, interval)}: both sides are the same"
    ratios = np.array([math.log((len(target) or 1) / (len(source) or 1)) for source, target in pairs])
    away = abs(ratios - np.median(ratios))
    # Of captions and help texts in four languages at most 0.2 % are so far away, mistakes among them.
    if odd := np.flatnonzero(away > max(math.log(3), 5 * np.median(away))).tolist():
        yield f"{name}: {_rows(odd, pairs, interval)}: one side is far longer than usual. Do they translate each other?"
    step = -(-len(pairs) // _LOOKED)
    looked, interval = pairs[::step], interval * step
    others = list(islice(validation, _LOOKED))
    numbers: dict[str, int] = {}
    sources, targets = (_numbered((pair[side] for pair in [*looked, *others]), numbers) for side in (0, 1))
    exchanged = _exchanged(sources, targets, len(looked), len(numbers))
    strange = _strange(sources[: len(looked)], targets[: len(looked)], len(numbers))
    turned = "the two sides look exchanged"
    apart = "their words do not go together in other pairs. Do they translate each other?"
    for of, part, every, wrong, fewest, share, what in (
        (name, looked, interval, exchanged[: len(looked)], _EXCHANGED, 0.01, turned),
        (held_out, others, 1, exchanged[len(looked) :], _EXCHANGED, 0.1, turned),
        (name, looked, interval, strange, _ENOUGH, 0.01, apart),
    ):
        if wrong.sum() >= max(fewest, share * len(part)):
            yield f"{of}: {_rows(np.flatnonzero(wrong).tolist(), part, every)}: {what}"


def _rows(rows: Sequence[int], pairs: Sequence[Pair], interval: int) -> str:
    numbers = ", ".join(f"{row * interval + 1:,}" for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return f"{len(rows):,} of {len(pairs):,} pairs ({numbers}; the first is {reprlib.repr(pairs[rows[0]][0])})"


def _numbered(sentences: Iterable[str], numbers: dict[str, int]) -> list[_Numbers]:
    found = []
    for each in sentences:
        words = UNIT.findall(each.lower())
        known = [numbers.setdefault(word, len(numbers)) for word in words if len(words) <= _WORDS]
        found.append(np.unique(np.array(known, np.int64)))
    return found


def _exchanged(sources: list[_Numbers], targets: list[_Numbers], looked: int, size: int) -> _Answers:
    """Pairs whose words are on the wrong sides: judged by the first half, put right, and judged again by all."""
    exchanged: _Answers = np.zeros(len(sources), bool)
    for learnt in (looked // 2, looked):
        both = [(b, a) if wrong else (a, b) for a, b, wrong in zip(sources, targets, exchanged, strict=True)]
        counts = np.array(
            [np.bincount(np.concatenate(side), minlength=size) for side in zip(*both[:learnt], strict=True)]
        )
        shares = (counts + 0.5) / (1 + counts.sum(1, keepdims=True))
        own = (shares > _ONE_SIDED * shares[::-1]) & (counts >= _SEEN)  # words of the source, and of the target
        right, wrong = (
            np.array([own[one][a].sum() + own[1 - one][b].sum() for a, b in zip(sources, targets, strict=True)])
            for one in (0, 1)
        )
        exchanged = np.asarray(wrong >= _SIDED * np.maximum(right, 1))
    return exchanged


def _strange(sources: list[_Numbers], targets: list[_Numbers], size: int) -> _Answers:
    """Pairs whose words are rarer with each other than with any: each half is judged by the other."""
    gains, known = np.zeros((2, len(sources))), np.zeros((2, len(sources)))
    first = np.random.default_rng(0).permutation(len(sources)) % 2 == 0  # of files whose lines alternate, some of each
    for half in (first, ~first):
        learnt, judged = np.flatnonzero(half), np.flatnonzero(~half)
        for way, (own, other) in enumerate(((sources, targets), (targets, sources))):
            lexicon = _Lexicon([own[row] for row in learnt], [other[row] for row in learnt], size)
            found = lexicon.gains([own[row] for row in judged], [other[row] for row in judged])
            gains[way, judged], known[way, judged] = found
    strange = (known.sum(0) >= _KNOWN) & (known.min(0) > 0) & (gains.sum(0) < _STRANGE * known.sum(0))
    return np.asarray(strange)


class _Lexicon:
    """Chances that a word translates another, learnt as in IBM's model 1.

    Brown and others, "The mathematics of statistical machine translation: parameter estimation" (1993), section 4.1.
    """

    def __init__(self, sources: list[_Numbers], targets: list[_Numbers], size: int) -> None:
        self.size = size
        frequencies = np.bincount(np.concatenate(targets), minlength=size)
        self.usual = frequencies / max(1, frequencies.sum()) * (frequencies >= _SEEN)
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
        """Sums of logarithms, how much likelier each target's words are with its source; and numbers of those words."""
        place, both = self._together(sources, targets)
        entry = np.searchsorted(self.both, both)
        chances = np.where(np.append(self.both, -1)[entry] == both, np.append(self.chances, 0)[entry], 0)
        place, word, count = np.unique(place, return_inverse=True, return_counts=True)
        pair, target = np.divmod(place, self.size)
        usual = self.usual[target]
        known = usual > 0
        ratio = np.bincount(word, chances) / count / np.where(known, usual, 1)
        gain = np.where(known, np.log((1 - _ANY) * ratio + _ANY), 0)
        return np.bincount(pair, gain, len(sources)), np.bincount(pair[known], minlength=len(sources))

    def _together(self, sources: list[_Numbers], targets: list[_Numbers]) -> tuple[_Numbers, _Numbers]:
        """Numbers of each target word's place, once for each source word and once for none, and of the two words."""
        place, both = [], []
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            place.append(np.tile(row * self.size + target, len(source) + 1))
            both.append(np.add.outer(np.append(source, self.size) * self.size, target).ravel())
        return np.concatenate(place), np.concatenate(both)
