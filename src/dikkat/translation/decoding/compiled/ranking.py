"""The ranking of scores while they are in the cache, and the bookkeeping of hypotheses from a step to the next."""

import math
from typing import Any

import numpy as np

from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, doubles_at, flags_at, number_at, numbers_at
from dikkat._engine.vectors import Pointer, at, full, lanes_of, largest_lane, load, maximum, pointer, some, total
from dikkat.translation.decoding.compiled.record import DONE, UNKNOWN_SCORES
from dikkat.translation.decoding.length_penalty import normalised_score
from dikkat.translation.text.special_tokens import END, SPECIAL, UNKNOWN

# In a kernel's signature: a phase, and where the search is.
Phase = Any
State = Any

_normalised = inlined(normalised_score)


@inlined
def _insert(gains: Pointer, tokens: Pointer, count: int, gain: float, token: int) -> None:
    """Insert a token among the likeliest, behind those that are as likely."""
    k = count - 1
    while k > 0 and gains[k - 1] < gain:
        gains[k], tokens[k] = gains[k - 1], tokens[k - 1]
        k -= 1
    gains[k], tokens[k] = gain, token


@inlined
def _allowed(call: Call, state: State, b: int, token: int) -> bool:
    if token == UNKNOWN:
        return flags_at(call.copies, b)[0] != 0
    if token == END:
        return number_at(call.fewest, b) <= state.step
    return token >= SPECIAL


@inlined
def rank(
    call: Call, state: State, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any
) -> None:
    """Write the likeliest tokens of a block of scores, their peak, and Σ e^{score − peak}."""
    lanes, count = lanes_of(zero), call.beam
    wide = phase.panels * lanes
    for i in range(rows):
        scores, place = at(results, i * wide), (first + i) * call.blocks + block
        b = number_at(call.next_sentences, first + i)
        gains, tokens = at(pointer(call.block_gains, zero), place * count), numbers_at(call.block_tokens, place * count)
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
                        _insert(gains, tokens, count, scores[c + k], token + k)
        peak = largest_lane(top)
        base, sums = full(peak if peak > -np.inf else zero, zero), full(0, zero)
        for c in range(0, wide, lanes):
            sums += exp(load(scores, c) - base)
        pointer(call.block_peaks, zero)[place] = peak
        pointer(call.block_sums, zero)[place] = total(sums)


@inlined
def _merge(call: Call, row: int, zero: Any) -> None:
    """Write a row's likeliest tokens, out of those of its blocks, with their log-probabilities."""
    count, place = call.beam, row * call.blocks
    gains, tokens = doubles_at(call.gains, row * count), numbers_at(call.tokens, row * count)
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
            _insert(gains, tokens, count, gain, number_at(call.block_tokens, own))
    weight = 0.0
    for block in range(call.blocks):
        if peaks[block] > -np.inf or sums[block] != 0:
            weight += sums[block] * math.exp(peaks[block] - peak)
    lse = peak + math.log(weight)
    for k in range(count):
        gains[k] -= lse


@inlined
def _choose(call: Call, state: State, b: int) -> None:
    """Write a sentence's results: finished ones first, the best first; of equal ones that which was out first."""
    count, place = 0, b * call.n_best
    steps, places = numbers_at(call.result_steps, place), numbers_at(call.result_places, place)
    finished, scores = flags_at(call.result_ended, place), doubles_at(call.result_scores, place)
    totals = doubles_at(call.result_totals, place)
    for k in range(call.n_best):
        steps[k] = -1
    for step in range(state.step):
        for e in range(call.beam):
            own = (step * call.sentences + b) * call.beam + e
            if not flags_at(call.step_out, own)[0]:
                continue
            reached, ended = doubles_at(call.step_totals, own)[0], flags_at(call.step_ended, own)[0]
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
def _continue(call: Call, state: State, b: int, row: int) -> int:
    """Write the best continuations of a sentence's hypotheses, best first; return the row after the sentence's last."""
    beam, place = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    rows, origins = numbers_at(call.step_rows, place), numbers_at(call.step_origins, place)
    own, gains = doubles_at(call.totals, b * beam), doubles_at(call.gains, 0)
    for e in range(beam):
        totals[e], tokens[e], rows[e], origins[e] = -np.inf, 0, 0, b * beam
    for before in range(beam):
        if own[before] == -np.inf:
            continue
        for k in range(beam):
            reached = own[before] + gains[row * beam + k]
            if not reached > totals[beam - 1]:  # and none of those that follow is better
                break
            e = beam - 1
            while e > 0 and totals[e - 1] < reached:
                totals[e], tokens[e], rows[e], origins[e] = totals[e - 1], tokens[e - 1], rows[e - 1], origins[e - 1]
                e -= 1
            totals[e], tokens[e] = reached, number_at(call.tokens, row * beam + k)
            rows[e], origins[e] = row, b * beam + before
        row += 1
    return row


@inlined
def _decide(call: Call, state: State, b: int, going: int) -> int:
    """Decide which hypotheses end, are cut or go on; return how many go on so far."""
    beam, place, length = call.beam, (state.step * call.sentences + b) * call.beam, state.step + 1
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    ended, out = flags_at(call.step_ended, place), flags_at(call.step_out, place)
    best = doubles_at(call.best_ended, b * call.n_best)
    open_places, limit = numbers_at(call.open, b), number_at(call.limits, b)
    places, hope = open_places[0], -np.inf
    for e in range(beam):
        there = e < places and totals[e] > -np.inf
        ended[e] = out[e] = there and tokens[e] == END
        if ended[e]:
            score, k = _normalised(totals[e], length, call.penalty), call.n_best - 1
            if score > best[k]:
                while k > 0 and best[k - 1] < score:
                    best[k] = best[k - 1]
                    k -= 1
                best[k] = score
            open_places[0] -= 1
        elif there:
            hope = max(hope, totals[e])
    at_limit = limit == length
    # Log-probabilities only fall as a hypothesis grows and the divisor grows with length, so this bounds every final
    # score.
    over = at_limit or best[call.n_best - 1] >= _normalised(hope, limit, call.penalty)
    for e in range(beam):
        goes = e < places and totals[e] > -np.inf and not ended[e]
        if goes and at_limit:
            out[e] = 1
        doubles_at(call.totals, b * beam + e)[0] = totals[e] if goes and not over else -np.inf
        if goes and not over:
            numbers_at(call.next_rows, going)[0] = numbers_at(call.step_rows, place)[e]
            numbers_at(call.next_tokens, going)[0] = tokens[e]
            numbers_at(call.next_sentences, going)[0] = b
            going += 1
    return going


@inlined
def book(call: Call, state: State, zero: Any) -> None:
    """Take every sentence one step on."""
    for row in range(state.rows):
        _merge(call, row, zero)
        if not abs(doubles_at(call.gains, row * call.beam)[0]) < np.inf:
            state.status = UNKNOWN_SCORES
            return
    row, going = 0, 0
    for b in range(call.sentences):
        row = _continue(call, state, b, row)
        going = _decide(call, state, b, going)
    state.step += 1
    state.rows = going
    if going == 0:
        for b in range(call.sentences):
            _choose(call, state, b)
        state.status = DONE
