"""Kernels that find the likeliest tokens of each row, while a compiled search's scores are in the cache."""

import math
from typing import Any

import numpy as np

from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, doubles_at, numbers_at, read_flag, read_number
from dikkat._engine.vectors import Pointer, at, full, lanes_of, largest_lane, load, maximum, pointer, some, total
from dikkat.translation.decoding.compiled.rules import State, may_be_next
from dikkat.translation.text.special_tokens import SPECIAL

# The type of a phase, `record.PHASE`, in kernels' signatures.
Phase = Any

_allowed = inlined(may_be_next)


@inlined
def _insert(gains: Pointer, tokens: Pointer, count: int, gain: float, token: int) -> None:
    """Insert a token among the likeliest, after equally likely tokens."""
    k = count - 1
    while k > 0 and gains[k - 1] < gain:
        gains[k], tokens[k] = gains[k - 1], tokens[k - 1]
        k -= 1
    gains[k], tokens[k] = gain, token


@inlined
def rank(
    call: Call, state: State, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any
) -> None:
    """Write for each row the likeliest tokens of a block of scores, the block's peak, and Σ e^{score − peak}."""
    lanes, count = lanes_of(zero), call.beam
    width = phase.panels * lanes
    for i in range(rows):
        scores, index = at(results, i * width), (first + i) * call.blocks + block
        b = read_number(call.next_sentences, first + i)
        may_copy, min_length = read_flag(call.copies, b) != 0, read_number(call.fewest, b)
        missing = read_number(call.next_missing, first + i)
        gains, tokens = at(pointer(call.block_gains, zero), index * count), numbers_at(call.block_tokens, index * count)
        for k in range(count):
            gains[k], tokens[k] = -np.inf, 0
        top = full(-np.inf, zero)
        for c in range(0, width, lanes):
            values, token = load(scores, c), block * width + c
            top = maximum(values, top)
            if token < SPECIAL or some(full(gains[count - 1], zero) < values):
                for k in range(lanes):
                    better = scores[c + k] > gains[count - 1]
                    if better and _allowed(
                        token + k, read_number(call.slot_bits, token + k), missing, may_copy, min_length, state.step
                    ):
                        _insert(gains, tokens, count, scores[c + k], token + k)
        peak = largest_lane(top)
        base, sums = full(peak if peak > -np.inf else zero, zero), full(0, zero)
        for c in range(0, width, lanes):
            sums += exp(load(scores, c) - base)
        pointer(call.block_peaks, zero)[index] = peak
        pointer(call.block_sums, zero)[index] = total(sums)


@inlined
def merge(call: Call, row: int, zero: Any) -> None:
    """Merge the likeliest tokens of all blocks of a row, and write them with their log-probabilities."""
    count, first_block = call.beam, row * call.blocks
    gains, tokens = doubles_at(call.gains, row * count), numbers_at(call.tokens, row * count)
    peaks, sums = at(pointer(call.block_peaks, zero), first_block), at(pointer(call.block_sums, zero), first_block)
    for k in range(count):
        gains[k], tokens[k] = -np.inf, 0
    peak = -np.inf
    for block in range(call.blocks):
        if not peaks[block] <= peak:
            peak = peaks[block]
        for k in range(count):
            index = (first_block + block) * count + k
            gain = pointer(call.block_gains, zero)[index]
            if not gain > gains[count - 1]:
                break
            _insert(gains, tokens, count, gain, read_number(call.block_tokens, index))
    total_weight = 0.0
    for block in range(call.blocks):
        if peaks[block] > -np.inf or sums[block] != 0:
            total_weight += sums[block] * math.exp(peaks[block] - peak)
    log_sum_exp = peak + math.log(total_weight)
    for k in range(count):
        gains[k] -= log_sum_exp
