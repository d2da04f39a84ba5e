"""The stored pairs that took part in a translation."""

from collections.abc import Sequence
from typing import NamedTuple

from dikkat.translation.memory.pair_memory import Snapshot
from dikkat.translation.memory.states import Nearest

_LEAST = 1e-3  # weights below are left out


class PairShare(NamedTuple):
    """A stored pair that took part in the probability of a token.

    Attributes:
        source: The stored sentence.
        target: Its translation.
        weight: The pair's share of the mixture with the model's probabilities, from 0 to 1.
    """

    source: str
    target: str
    weight: float


def list_sources(
    memories: Sequence[Snapshot | None], nearest: Nearest | None, indices: Sequence[int]
) -> list[list[PairShare]]:
    """Return the stored pairs of the tokens with these indices, with the largest weights first."""
    if nearest is None or (snapshot := memories[0]) is None:
        return []
    shares = nearest.weights / (1 + nearest.weights.sum(1, keepdim=True))
    pairs = snapshot.states.pairs[nearest.states]
    sources = []
    for row_pairs, row_shares in zip(pairs[list(indices)].tolist(), shares[list(indices)].tolist(), strict=True):
        totals = dict.fromkeys(row_pairs, 0.0)
        for pair, share in zip(row_pairs, row_shares, strict=True):
            totals[pair] += share
        largest = sorted(totals.items(), key=lambda item: -item[1])
        sources.append(
            [
                PairShare(snapshot.pairs[pair].source, snapshot.pairs[pair].target, weight)
                for pair, weight in largest
                if weight >= _LEAST
            ]
        )
    return sources
