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
from dikkat.cpu.search.hypotheses import collect, flags, go_on, insert, whole
from dikkat.cpu.search.record import CALL, GROUP
from dikkat.cpu.search.rules import END, SPECIAL, UNKNOWN

_workplace = workplace_of(CALL)


# --- candidates


@inlined
def _vector(call: Call, place: int, c: int, zero: Any) -> Vector:
    if call.half:
        x = load_bfloat16(pointer(call.scores, np.uint16(0)), place + c, zero)
    else:
        x = load(pointer(call.scores, zero), place + c)
    return x + load(pointer(call.bias, zero), c)


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
                    insert(gains, tokens, count, vector[k], c + k)
    peak = largest(top)
    for c in range(whole, size):
        x = _number(call, place, c, vector, zero)
        peak = max(peak, x)
        if x > gains[count - 1] and (c >= SPECIAL or _allowed(call, row, c)):
            insert(gains, tokens, count, x, c)
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
    layout = CALL.layout(__name__)

    def candidates(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        vector = _workplace(call, zero).vector
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            for row in range(task * GROUP, min(call.rows, (task + 1) * GROUP)):
                gains, tokens = at(pointer(call.gains, 0.0), row * call.count), whole(call.tokens, row * call.count)
                _likeliest(call, row, gains, tokens, vector, zero)

    return candidates


# --- hypotheses


@Kernel
def advance(zero: Any) -> Any:
    """Advance every sentence by one step.

    The outcome: how many hypotheses go on, whether a row has no likeliest token, whether all rows stay as they were.
    """
    layout = CALL.layout(__name__)

    def advance(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        if claim(call.counters) > 0:
            return
        row, found, outcome = 0, 0, whole(call.outcome, 0)
        outcome[1] = 0
        for r in range(call.rows):
            if not abs(pointer(call.gains, 0.0)[r * call.count]) < np.inf:
                outcome[1] = 1
        for b in range(call.sentences):
            place = b * call.beam
            totals, tokens = at(pointer(call.step_totals, 0.0), place), whole(call.step_tokens, place)
            rows, origins = whole(call.step_rows, place), whole(call.step_origins, place)
            row = collect(call, b, row, totals, tokens, rows, origins)
            ended, out = flags(call.step_ended, place), flags(call.step_out, place)
            found = go_on(call, b, call.length, totals, tokens, rows, ended, out, found)
        outcome[0], outcome[2] = found, found == call.rows
        for r in range(found):
            if whole(call.next_rows, r)[0] != r:
                outcome[2] = 0

    return advance
