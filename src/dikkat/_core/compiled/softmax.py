"""Compiled steps of a row's softmax: its peak, its shares e^(score − peak), and their sum."""

from typing import Any

import numpy as np

from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp
from dikkat._engine.vectors import Pointer, full, lanes_of, largest_lane, load, maximum, store, total


@inlined
def base_of(peak: float, zero: Any) -> float:
    """Return the number to subtract from a row's scores: its peak, or 0 for a row of only −∞ or NaN."""
    return peak if peak > -np.inf else zero


@inlined
def largest_of(scores: Pointer, blocks: int, zero: Any) -> float:
    top = load(scores, 0)
    for block in range(1, blocks):
        top = maximum(load(scores, block * lanes_of(zero)), top)
    return largest_lane(top)


@inlined
def write_shares(scores: Pointer, shares: Pointer, blocks: int, peak: float, zero: Any) -> float:
    """Write a row's shares e^(score − peak); return their sum."""
    lanes, base, acc = lanes_of(zero), full(base_of(peak, zero), zero), full(0, zero)
    for block in range(blocks):
        share = exp(load(scores, block * lanes) - base)
        store(shares, block * lanes, share)
        acc += share
    return total(acc)


@inlined
def normalise(scores: Pointer, shares: Pointer, blocks: int, before: float, zero: Any) -> tuple[float, float]:
    """Write a row's shares; return the peak over these and earlier keys (`before`), and the sum of the shares."""
    # A row of NaN has no peak: subtracting 0 keeps the NaN.
    peak = max(before, largest_of(scores, blocks, zero))
    return peak, write_shares(scores, shares, blocks, peak, zero)


@inlined
def by_total(sum_of_shares: float, zero: Any) -> float:
    """Return the factor that turns shares into weights; 0 for a row without visible keys."""
    return zero if sum_of_shares == 0 else 1 / sum_of_shares


@inlined
def rescale(numbers: Pointer, count: int, factor: float, zero: Any) -> None:
    factors = full(factor, zero)
    for c in range(0, count, lanes_of(zero)):
        store(numbers, c, load(numbers, c) * factors)
