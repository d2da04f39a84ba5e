"""A step of beam search, compiled by Numba: the likeliest tokens of every row, and which hypotheses go on with them.

`candidates` reads a row of scores twice while it is in the cache: for the peak and the likeliest tokens, and for the
log-sum-exp. `advance` is bookkeeping on a few numbers a sentence.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.engine.compile import Kernel, inlined
from dikkat.cpu.engine.elementary import exp
from dikkat.cpu.engine.memory import Call, workplace_of
from dikkat.cpu.engine.vectors import (
    Pointer,
    Vector,
    at,
    bits_of,
    claim,
    full,
    lanes_of,
    largest,
    load,
    load_bfloat16,
    maximum,
    pointer,
    some,
    store,
    total,
)
from dikkat.cpu.search.record import CALL, GROUP
from dikkat.cpu.search.rules import END, SPECIAL, UNKNOWN, normalised

_workplace = workplace_of(CALL)
_normalised = inlined(normalised)


@inlined
def _whole(address: int, index: int) -> Pointer:
    """Whole numbers at an address, from one of them on."""
    return at(pointer(address, np.int64(0)), index)


@inlined
def _flags(address: int, index: int) -> Pointer:
    """Likewise flags."""
    return at(pointer(address, np.uint8(0)), index)


# --- candidates


@inlined
def _vector(call: Call, place: int, c: int, zero: Any) -> Vector:
    if call.half:
        x = load_bfloat16(pointer(call.scores, np.uint16(0)), place + c, zero)
    else:
        x = load(pointer(call.scores, zero), place + c)
    return x + load(pointer(call.bias, zero), c)


@inlined
def _insert(gains: Pointer, tokens: Pointer, count: int, gain: float, token: int) -> None:
    """Insert a token among the likeliest, behind those that are as likely."""
    k = count - 1
    while k > 0 and gains[k - 1] < gain:
        gains[k], tokens[k] = gains[k - 1], tokens[k - 1]
        k -= 1
    gains[k], tokens[k] = gain, token


@inlined
def _allowed(call: Call, row: int, token: int) -> bool:
    if token == UNKNOWN:
        return pointer(call.copies, np.uint8(0))[row] != 0
    if token == END:
        return pointer(call.may_end, np.uint8(0))[row] != 0
    return token >= SPECIAL


@inlined
def _likeliest(call: Call, row: int, gains: Pointer, tokens: Pointer, vector: Pointer, zero: Any) -> None:
    """Write a row's likeliest allowed tokens with their log-probabilities; of equally likely ones the lowest first."""
    lanes, size, place, count = lanes_of(zero), call.size, row * call.size, call.count
    whole = size // lanes * lanes
    for k in range(count):
        gains[k], tokens[k] = -np.inf, 0
    top = full(-np.inf, zero)
    for c in range(0, whole, lanes):
        x = _vector(call, place, c, zero)
        top = maximum(x, top)
        if c < SPECIAL or some(full(gains[count - 1], zero) < x):
            store(vector, 0, x)
            for k in range(lanes):
                if vector[k] > gains[count - 1] and (c + k >= SPECIAL or _allowed(call, row, c + k)):
                    _insert(gains, tokens, count, vector[k], c + k)
    peak = largest(top)
    for c in range(whole, size):
        x = _number(call, place, c, vector, zero)
        peak = max(peak, x)
        if x > gains[count - 1] and (c >= SPECIAL or _allowed(call, row, c)):
            _insert(gains, tokens, count, x, c)
    base, sums = full(peak, zero), full(0, zero)
    for c in range(0, whole, lanes):
        sums += exp(_vector(call, place, c, zero) - base)
    weight = total(sums)
    for c in range(whole, size):
        weight += math.exp(_number(call, place, c, vector, zero) - peak)
    lse = peak + math.log(weight)
    for k in range(count):
        gains[k] -= lse


@inlined
def _number(call: Call, place: int, c: int, vector: Pointer, zero: Any) -> float:
    """One score."""
    x = pointer(call.bias, zero)[c]
    if not call.half:
        return x + pointer(call.scores, zero)[place + c]
    # Widened in a vector of its own, so that nothing beyond the scores is read.
    halves = bits_of(vector)
    halves[0] = pointer(call.scores, np.uint16(0))[place + c]
    store(vector, 0, load_bfloat16(halves, 0, zero))
    return x + vector[0]


@Kernel
def candidates(zero: Any) -> Any:
    """The likeliest tokens of each row."""
    layout = CALL.dtype

    def candidates(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        vector = _workplace(call, zero).vector
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            for row in range(task * GROUP, min(call.rows, (task + 1) * GROUP)):
                gains, tokens = at(pointer(call.gains, 0.0), row * call.count), _whole(call.tokens, row * call.count)
                _likeliest(call, row, gains, tokens, vector, zero)

    return candidates


# --- hypotheses


@inlined
def _collect(call: Call, b: int, row: int, totals: Pointer, tokens: Pointer, rows: Pointer, origins: Pointer) -> int:
    """Write the best continuations of a sentence's hypotheses, best first; return the row after the sentence's last."""
    beam, count = call.beam, call.count
    own, gains = at(pointer(call.totals, 0.0), b * beam), pointer(call.gains, 0.0)
    for e in range(beam):
        totals[e], tokens[e], rows[e], origins[e] = -np.inf, 0, 0, b * beam
    for place in range(beam):
        if own[place] == -np.inf:
            continue
        for k in range(count):
            reached = own[place] + gains[row * count + k]
            if not reached > totals[beam - 1]:  # and none of those that follow is better
                break
            e = beam - 1
            while e > 0 and totals[e - 1] < reached:
                totals[e], tokens[e], rows[e], origins[e] = totals[e - 1], tokens[e - 1], rows[e - 1], origins[e - 1]
                e -= 1
            totals[e], tokens[e] = reached, _whole(call.tokens, row * count + k)[0]
            rows[e], origins[e] = row, b * beam + place
        row += 1
    return row


@inlined
def _keep(call: Call, b: int, value: float) -> None:
    """Insert the score of an ended hypothesis among the best ones."""
    kept = at(pointer(call.kept, 0.0), b * call.n_best)
    if not value > kept[call.n_best - 1]:
        return
    k = call.n_best - 1
    while k > 0 and kept[k - 1] < value:
        kept[k] = kept[k - 1]
        k -= 1
    kept[k] = value


@inlined
def _go_on(call: Call, b: int, totals: Pointer, tokens: Pointer, rows: Pointer, found: int) -> int:
    """Decide which hypotheses end, are cut or go on; return how many go on so far."""
    beam = call.beam
    open_places, limits = _whole(call.open, 0), _whole(call.limits, 0)
    ended, out = _flags(call.step_ended, b * beam), _flags(call.step_out, b * beam)
    places, hope = open_places[b], -np.inf
    for e in range(beam):
        there = e < places and totals[e] > -np.inf
        ended[e] = out[e] = there and tokens[e] == END
        if ended[e]:
            _keep(call, b, _normalised(totals[e], call.length, call.penalty))
            open_places[b] -= 1
        elif there:
            hope = max(hope, totals[e])
    at_limit = limits[b] == call.length
    # A log-probability only falls, and the penalty of no length divides by more than that of the limit.
    over = at_limit or pointer(call.kept, 0.0)[(b + 1) * call.n_best - 1] >= _normalised(hope, limits[b], call.penalty)
    for e in range(beam):
        goes = e < places and totals[e] > -np.inf and not ended[e]
        if goes and at_limit:
            out[e] = 1
        pointer(call.totals, 0.0)[b * beam + e] = totals[e] if goes and not over else -np.inf
        if goes and not over:
            _whole(call.next_rows, found)[0] = rows[e]
            _whole(call.next_tokens, found)[0] = tokens[e]
            _whole(call.next_sentences, found)[0] = b
            found += 1
    return found


@Kernel
def advance(zero: Any) -> Any:
    """Advance every sentence by one step.

    The outcome: how many hypotheses go on, whether a row has no likeliest token, whether all rows stay as they were.
    """
    layout = CALL.dtype

    def advance(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        if claim(call.counters) > 0:
            return
        row, found, outcome = 0, 0, _whole(call.outcome, 0)
        outcome[1] = 0
        for r in range(call.rows):
            if not abs(pointer(call.gains, 0.0)[r * call.count]) < np.inf:
                outcome[1] = 1
        for b in range(call.sentences):
            place = b * call.beam
            totals, tokens = at(pointer(call.step_totals, 0.0), place), _whole(call.step_tokens, place)
            rows, origins = _whole(call.step_rows, place), _whole(call.step_origins, place)
            row = _collect(call, b, row, totals, tokens, rows, origins)
            found = _go_on(call, b, totals, tokens, rows, found)
        outcome[0], outcome[2] = found, found == call.rows
        for r in range(found):
            if _whole(call.next_rows, r)[0] != r:
                outcome[2] = 0

    return advance
