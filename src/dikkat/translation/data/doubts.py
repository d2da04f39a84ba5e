"""Doubts about a corpus: what looks like a mistake, and need not be one."""

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from dikkat.translation.data.corpus import Pair

_ENOUGH = 20  # pairs, and words that tell the languages apart: of fewer nothing is said
_LOOKED = 20_000  # pairs whose words are looked at, about


def doubts(pairs: Sequence[Pair], interval: int, validation: Iterable[Pair]) -> Iterator[str]:
    """Warnings about pairs that look wrong: those of a corpus, of which one in `interval` is here, and validation."""
    if len(pairs) < _ENOUGH:
        return
    equal = [row for row, (source, target) in enumerate(pairs) if source == target]
    if len(equal) >= max(3, len(pairs) / 100):
        yield f"{_rows(equal, pairs, interval)}: both sides are the same"
    ratios = np.array([math.log((len(target) or 1) / (len(source) or 1)) for source, target in pairs])
    away = abs(ratios - np.median(ratios))
    # Of captions and help texts in four languages at most 0.2 % are so far away, mistakes among them.
    if odd := np.flatnonzero(away > max(math.log(3), 5 * np.median(away))).tolist():
        yield f"{_rows(odd, pairs, interval)}: one side is far longer than usual. Do they translate each other?"
    looked = pairs[:: 1 + len(pairs) // _LOOKED]
    first, later = looked[: len(looked) // 2], looked[len(looked) // 2 :]
    sources, targets = (set(_words(first, side)) for side in (0, 1))
    for name, part in (("the later half", later), ("validation", list(islice(validation, _LOOKED)))):
        words = _words(part, 0)
        right, wrong = (sum(word in own for word in words) for own in (sources - targets, targets - sources))
        if min(len(part), wrong) >= _ENOUGH and wrong >= 4 * right:
            yield f"most source words of {name} are words of the targets elsewhere: are its columns exchanged?"


def _rows(rows: Sequence[int], pairs: Sequence[Pair], interval: int) -> str:
    numbers = ", ".join(f"{row * interval + 1:,}" for row in rows[:5]) + (" …" if len(rows) > 5 else "")
    return f"{len(rows):,} of {len(pairs):,} pairs ({numbers}; the first is {reprlib.repr(pairs[rows[0]][0])})"


def _words(pairs: Sequence[Pair], side: int) -> list[str]:
    return [word for pair in pairs for word in re.findall(r"\w+", pair[side].lower())]
