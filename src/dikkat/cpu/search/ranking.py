"""What a search does with scores: it ranks them while they are in the cache, and takes every sentence a step on."""

import math
from typing import Any

import numpy as np

from dikkat.cpu.engine.compile import inlined
from dikkat.cpu.engine.elementary import exp
from dikkat.cpu.engine.memory import Call
from dikkat.cpu.engine.vectors import Pointer, at, full, lanes_of, largest, load, maximum, pointer, some, total
from dikkat.cpu.recurrence.cells import number_at
from dikkat.cpu.search.hypotheses import collect, doubles, flags, go_on, insert, whole
from dikkat.cpu.search.record import DONE, UNKNOWN_SCORES
from dikkat.cpu.search.rules import END, SPECIAL, UNKNOWN, normalised

# In a kernel's signature: a phase, and where the search is.
Phase = Any
State = Any

_normalised = inlined(normalised)


@inlined
def _allowed(call: Call, state: State, b: int, token: int) -> bool:
    if token == UNKNOWN:
        return flags(call.copies, b)[0] != 0
    if token == END:
        return number_at(call.fewest, b) <= state.step
    return token >= SPECIAL


@inlined
def rank(call: Call, state: State, phase: Phase, block: int, first: int, rows: int, found: Pointer, zero: Any) -> None:
    """Of a block of scores, while it is in the cache: the likeliest tokens, the peak, and Σ e^{score − peak}."""
    lanes, count = lanes_of(zero), call.count
    wide = phase.panels * lanes
    for i in range(rows):
        scores, place, b = (
            at(found, i * wide),
            (first + i) * call.blocks + block,
            number_at(call.next_sentences, first + i),
        )
        gains, tokens = at(pointer(call.block_gains, zero), place * count), whole(call.block_tokens, place * count)
        for k in range(count):
            gains[k], tokens[k] = -np.inf, 0
        top = full(-np.inf, zero)
        for c in range(0, wide, lanes):
            x, token = load(scores, c), block * wide + c
            top = maximum(x, top)
            if token < SPECIAL or some(full(gains[count - 1], zero) < x):
                for k in range(lanes):
                    better = scores[c + k] > gains[count - 1]
                    if better and (token + k >= SPECIAL or _allowed(call, state, b, token + k)):
                        insert(gains, tokens, count, scores[c + k], token + k)
        peak = largest(top)
        base, sums = full(peak if peak > -np.inf else zero, zero), full(0, zero)
        for c in range(0, wide, lanes):
            sums += exp(load(scores, c) - base)
        pointer(call.block_peaks, zero)[place] = peak
        pointer(call.block_sums, zero)[place] = total(sums)


@inlined
def _merge(call: Call, row: int, zero: Any) -> None:
    """A row's likeliest tokens with their log-probabilities, out of those of its blocks."""
    count, place = call.count, row * call.blocks
    gains, tokens = doubles(call.gains, row * count), whole(call.tokens, row * count)
    peaks, sums = at(pointer(call.block_peaks, zero), place), at(pointer(call.block_sums, zero), place)
    for k in range(count):
        gains[k], tokens[k] = -np.inf, 0
    peak = -np.inf
    for block in range(call.blocks):
        if not peaks[block] <= peak:
            peak = peaks[block]
        for k in range(count):
            own = (place + block) * count + k
            gain = pointer(call.block_gains, zero)[own]
            if not gain > gains[count - 1]:
                break
            insert(gains, tokens, count, gain, whole(call.block_tokens, own)[0])
    weight = 0.0
    for block in range(call.blocks):
        if peaks[block] > -np.inf or sums[block] != 0:
            weight += sums[block] * math.exp(peaks[block] - peak)
    lse = peak + math.log(weight)
    for k in range(count):
        gains[k] -= lse


@inlined
def _choose(call: Call, state: State, b: int) -> None:
    """A sentence's best hypotheses: finished ones first, the best first; of equal ones the one that was out first."""
    count, place = 0, b * call.n_best
    steps, places = whole(call.result_steps, place), whole(call.result_places, place)
    finished, scores = flags(call.result_ended, place), doubles(call.result_scores, place)
    totals = doubles(call.result_totals, place)
    for k in range(call.n_best):
        steps[k] = -1
    for step in range(state.step):
        for e in range(call.beam):
            own = (step * call.sentences + b) * call.beam + e
            if not flags(call.step_out, own)[0]:
                continue
            reached, ended = doubles(call.step_totals, own)[0], flags(call.step_ended, own)[0]
            score, k = _normalised(reached, step + 1, call.penalty), count
            while k > 0 and (ended > finished[k - 1] or (ended == finished[k - 1] and score > scores[k - 1])):
                if k < call.n_best:
                    steps[k], places[k], finished[k] = steps[k - 1], places[k - 1], finished[k - 1]
                    scores[k], totals[k] = scores[k - 1], totals[k - 1]
                k -= 1
            if k < call.n_best:
                steps[k], places[k], finished[k], scores[k], totals[k] = step, e, ended, score, reached
                count = min(count + 1, call.n_best)


@inlined
def book(call: Call, state: State, zero: Any) -> None:
    """Take every sentence one step on."""
    for row in range(state.rows):
        _merge(call, row, zero)
        if not abs(doubles(call.gains, row * call.count)[0]) < np.inf:
            state.status = UNKNOWN_SCORES
            return
    row, found = 0, 0
    for b in range(call.sentences):
        place = (state.step * call.sentences + b) * call.beam
        totals, tokens = doubles(call.step_totals, place), whole(call.step_tokens, place)
        rows, origins = whole(call.step_rows, place), whole(call.step_origins, place)
        row = collect(call, b, row, totals, tokens, rows, origins)
        ended, out = flags(call.step_ended, place), flags(call.step_out, place)
        found = go_on(call, b, state.step + 1, totals, tokens, rows, ended, out, found)
    state.step += 1
    state.rows = found
    if found == 0:
        for b in range(call.sentences):
            _choose(call, state, b)
        state.status = DONE
