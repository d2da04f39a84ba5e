"""Kernels that find the likeliest tokens of each row, while a compiled search's scores are in the cache."""

import math
from typing import Any

import numpy as np

from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, doubles_at, numbers_at, read_flag, read_number
from dikkat._engine.vectors import Pointer, at, full, lanes_of, largest_lane, load, maximum, pointer, some, total
from dikkat.translation.decoding.compiled import record
from dikkat.translation.decoding.compiled.rules import State, may_be_next
from dikkat.translation.text.special_tokens import SPECIAL

# The type of a phase, `record.PHASE`, in kernels' signatures.
Phase = Any

_allowed = inlined(may_be_next)
_PROBE = record.BUFFERS.index("probe")


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
        _copy_scores(call, state, first + i, scores, block * width, width, zero)
        pointer(call.block_peaks, zero)[index] = peak
        pointer(call.block_sums, zero)[index] = total(sums)


@inlined
def merge(call: Call, state: State, row: int, zero: Any) -> None:
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
    if call.nearest != 0:
        _mix(call, state, row, log_sum_exp, zero)


# --- stored states


@inlined
def rank_states(call: Call, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any) -> None:
    """Write for each row the nearest states of a block; −1 for none that matters."""
    lanes, count, size = lanes_of(zero), call.nearest, call.state_size
    width, queries = phase.panels * lanes, pointer(read_number(call.buffers, _PROBE), zero)
    for i in range(rows):
        scores, index = at(results, i * width), ((first + i) * call.state_blocks + block) * count
        query, squares = at(queries, (first + i) * size), full(0, zero)
        for c in range(0, size, lanes):
            squares += load(query, c) * load(query, c)
        weights, states = at(pointer(call.block_weights, zero), index), numbers_at(call.block_states, index)
        for k in range(count):
            weights[k], states[k] = call.negligible + total(squares) / 2, -1
        for c in range(0, width, lanes):
            if some(full(weights[count - 1], zero) < load(scores, c)):
                for k in range(lanes):
                    if scores[c + k] > weights[count - 1]:
                        _insert(weights, states, count, scores[c + k], block * width + c + k)


@inlined
def merge_states(call: Call, state: State, row: int, zero: Any) -> None:
    """Merge the nearest states of all blocks of a row, and write them with weights from exact distances."""
    count, size, first_block = call.nearest, call.state_size, row * call.state_blocks
    query = at(pointer(read_number(call.buffers, _PROBE), zero), row * size)
    offset = (state.step * call.capacity + row) * count
    states, weights = numbers_at(call.nearest_states, offset), doubles_at(call.nearest_weights, offset)
    for k in range(count):
        states[k], weights[k] = -1, -np.inf
    for block in range(call.state_blocks):
        for k in range(count):
            index = (first_block + block) * count + k
            number, weight = read_number(call.block_states, index), pointer(call.block_weights, zero)[index]
            if number < 0 or not weight > weights[count - 1]:
                break
            _insert(weights, states, count, weight, number)
    for k in range(count):
        number = max(states[k], 0)
        key, squares = at(pointer(call.state_keys, zero), number * size), 0.0
        for c in range(size):
            difference = float(query[c]) - float(key[c])
            squares += difference * difference
        log_weight = float(pointer(call.state_biases, zero)[number]) - squares / 2
        is_negligible = states[k] < 0 or log_weight < call.negligible
        states[k], weights[k] = number, 0.0 if is_negligible else math.exp(log_weight)


@inlined
def _copy_scores(call: Call, state: State, row: int, scores: Pointer, first_token: int, count: int, zero: Any) -> None:
    """Copy the scores of the nearest states' tokens from a block of scores."""
    offset = (state.step * call.capacity + row) * call.nearest
    for k in range(call.nearest):
        token = read_number(call.state_tokens, read_number(call.nearest_states, offset + k))
        if first_token <= token and token < first_token + count:
            pointer(call.nearest_scores, zero)[row * call.nearest + k] = scores[token - first_token]


@inlined
def _mix(call: Call, state: State, row: int, log_sum_exp: float, zero: Any) -> None:
    """Merge the nearest states with the model's distribution: change the likeliest tokens and log-probabilities."""
    count, offset, b = (
        call.beam,
        (state.step * call.capacity + row) * call.nearest,
        read_number(call.next_sentences, row),
    )
    gains, tokens = doubles_at(call.gains, row * count), numbers_at(call.tokens, row * count)
    weights, total_weight = doubles_at(call.nearest_weights, offset), 0.0
    for k in range(call.nearest):
        total_weight += weights[k]
    if total_weight == 0:
        return
    for k in range(count):
        gains[k] -= math.log1p(total_weight)
    for k in range(call.nearest):
        token, mass, is_first = read_number(call.state_tokens, read_number(call.nearest_states, offset + k)), 0.0, True
        for j in range(call.nearest):
            if read_number(call.state_tokens, read_number(call.nearest_states, offset + j)) == token:
                mass += weights[j]
                is_first &= j >= k or weights[j] == 0
        slot_bit, missing = read_number(call.slot_bits, token), read_number(call.next_missing, row)
        may_copy, min_length = read_flag(call.copies, b) != 0, read_number(call.fewest, b)
        is_allowed = _allowed(token, slot_bit, missing, may_copy, min_length, state.step)
        if weights[k] == 0 or not is_first or not is_allowed:
            continue
        score = float(pointer(call.nearest_scores, zero)[row * call.nearest + k])
        _replace(gains, tokens, count, math.log(math.exp(score - log_sum_exp) + mass) - math.log1p(total_weight), token)


@inlined
def _replace(gains: Pointer, tokens: Pointer, count: int, gain: float, token: int) -> None:
    """Insert a token among the likeliest, before equally likely larger ones, and remove its earlier entry."""
    k = 0
    while k < count - 1 and tokens[k] != token:
        k += 1
    if tokens[k] != token and not (gain > gains[k] or (gain == gains[k] and token < tokens[k])):
        return
    while k > 0 and (gains[k - 1] < gain or (gains[k - 1] == gain and tokens[k - 1] > token)):
        gains[k], tokens[k] = gains[k - 1], tokens[k - 1]
        k -= 1
    gains[k], tokens[k] = gain, token
