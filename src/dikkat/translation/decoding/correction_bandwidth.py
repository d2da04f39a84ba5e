"""The bandwidth of corrections, from validation pairs: how far other sentences follow a correction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dikkat.translation.data.corpus import MAX_CHARACTERS, Pair
from dikkat.translation.decoding.correcting import (
    DEFAULT_BANDWIDTH,
    compute_keys,
    make_projection,
    new_pair,
    tokenize_pair,
)
from dikkat.translation.memory.pair_memory import PairMemory, StoredPair, normalise

if TYPE_CHECKING:
    from dikkat.translation.decoding.translator import Translator

BANDWIDTHS = (0.05, 0.06, 0.08, 0.1)
"""Bandwidths to choose from: root mean square differences of the scores of two states, in nats.

With .12 and more, some translations became worse although their references became more probable: a wrong token also
changes the later ones.
"""


def fit_memory(translator: "Translator", corrections: Sequence[Pair], held_out: Sequence[Pair]) -> PairMemory:
    """Return a memory without pairs, with a bandwidth at which the corrections predict the held-out pairs well.

    It is the smallest of `BANDWIDTHS` whose log-probability of the held-out pairs is lower than the highest one by at
    most one standard error: Breiman and others, "Classification and Regression Trees" (1984), section 3.4.3. Without
    pairs to compare, it is `DEFAULT_BANDWIDTH`.
    """
    projection = make_projection(translator.model, 1.0)
    stored = _tokenize(translator, corrections)
    sources = {normalise(source) for source, _ in corrections}
    expected = _tokenize(translator, [pair for pair in held_out if normalise(pair[0]) not in sources])
    compared = [(pair.source, pair.target) for pair in expected]
    if not stored or not compared:
        return PairMemory(projection=projection / DEFAULT_BANDWIDTH)
    keys = [compute_keys(translator.model, projection, [(pair.source_ids, pair.target_ids)])[0] for pair in stored]
    scores = []
    for bandwidth in BANDWIDTHS:
        pairs = [replace(pair, keys=key / bandwidth) for pair, key in zip(stored, keys, strict=True)]
        scores.append(replace(translator, memory=PairMemory(pairs, projection / bandwidth)).score(compared))
    by_bandwidth = np.array(scores)
    deficits = by_bandwidth[by_bandwidth.sum(1).argmax()] - by_bandwidth
    is_close = deficits.sum(1) <= deficits.std(1) * len(compared) ** 0.5
    return PairMemory(projection=projection / BANDWIDTHS[int(is_close.argmax())])


def _tokenize(translator: "Translator", pairs: Sequence[Pair]) -> list[StoredPair]:
    """Return the pairs that can be stored and scored, with their tokens."""
    tokenized = [tokenize_pair(new_pair(*pair), translator) for pair in pairs if max(map(len, pair)) <= MAX_CHARACTERS]
    return [pair for pair in tokenized if pair.source_ids and pair.target_ids]
