"""A step of beam search, compiled by Numba: the likeliest tokens of every row, and which hypotheses go on with them.

`candidates` reads a row of scores twice while it is in the cache: for the peak and the likeliest tokens, and for the
log-sum-exp. `advance` is bookkeeping on a few numbers a sentence.
"""

import math
from struct import Struct
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.engine.compile import Kernel, inlined, source_digest
from dikkat.cpu.engine.vectors import (
    Pointer,
    Vector,
    bits_of,
    claim,
    exp,
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

WHOLE = (
    "counters", "tasks", "rows", "size", "count", "scores", "half", "bias", "copies", "may_end", "gains", "tokens",
    "work",
    "sentences", "beam", "n_best", "length", "totals", "open", "kept", "limits",
    "step_tokens", "step_rows", "step_origins", "step_totals", "step_ended", "step_out",
    "next_rows", "next_tokens", "next_sentences", "outcome",
)  # fmt: skip
REAL = ("penalty",)
CALL = np.dtype(
    [(name, np.int64) for name in WHOLE]
    + [(name, np.float64) for name in REAL]
    # A kernel closes over this type, which makes the state of the sources part of what is looked for on disk.
    + [(f"source_{source_digest()}", np.int64)]
)
FORM = Struct(f"{len(WHOLE)}q{len(REAL)}dq")
# Of the tokens that come first in every vocabulary, the two that may come out, and how many there are.
UNKNOWN, END, SPECIAL = 1, 3, 4
# Rows of a task.
GROUP = 4
Call = Any


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
    """Put a token into its place among the likeliest, behind those that are as likely."""
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
def _likeliest(call: Call, row: int, gains: Pointer, tokens: Pointer, work: Pointer, zero: Any) -> None:
    """A row's likeliest tokens that may come out, by log-probability; of equal ones the lowest first."""
    lanes, size, place, count = lanes_of(zero), call.size, row * call.size, call.count
    whole = size // lanes * lanes
    for k in range(count):
        gains[k], tokens[k] = -np.inf, 0
    top = full(-np.inf, zero)
    for c in range(0, whole, lanes):
        x = _vector(call, place, c, zero)
        top = maximum(x, top)
        if c < SPECIAL or some(full(gains[count - 1], zero) < x):
            store(work, 0, x)
            for k in range(lanes):
                if work[k] > gains[count - 1] and (c + k >= SPECIAL or _allowed(call, row, c + k)):
                    _insert(gains, tokens, count, work[k], c + k)
    peak = largest(top)
    for c in range(whole, size):
        x = _number(call, place, c, work, zero)
        peak = max(peak, x)
        if x > gains[count - 1] and (c >= SPECIAL or _allowed(call, row, c)):
            _insert(gains, tokens, count, x, c)
    base, sums = full(peak, zero), full(0, zero)
    for c in range(0, whole, lanes):
        sums += exp(_vector(call, place, c, zero) - base)
    weight = total(sums)
    for c in range(whole, size):
        weight += math.exp(_number(call, place, c, work, zero) - peak)
    lse = peak + math.log(weight)
    for k in range(count):
        gains[k] -= lse


@inlined
def _number(call: Call, place: int, c: int, work: Pointer, zero: Any) -> float:
    """One score."""
    x = pointer(call.bias, zero)[c]
    if not call.half:
        return x + pointer(call.scores, zero)[place + c]
    # As the first of a vector that stands elsewhere, so that nothing behind the scores is read.
    halves = bits_of(work)
    halves[0] = pointer(call.scores, np.uint16(0))[place + c]
    store(work, 0, load_bfloat16(halves, 0, zero))
    return x + work[0]


@Kernel
def candidates(zero: Any) -> Any:
    """The likeliest tokens of each row."""
    layout = CALL

    def candidates(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            for row in range(task * GROUP, min(call.rows, (task + 1) * GROUP)):
                gains = pointer(call.gains + 8 * row * call.count, 0.0)
                tokens = pointer(call.tokens + 8 * row * call.count, np.int64(0))
                _likeliest(call, row, gains, tokens, pointer(call.work + 64 * task, zero), zero)

    return candidates


# --- hypotheses


@inlined
def _normalised(call: Call, sum_of_logs: float, length: int) -> float:
    return sum_of_logs / ((5 + length) / 6) ** call.penalty


@inlined
def _collect(call: Call, b: int, row: int, totals: Pointer, tokens: Pointer, rows: Pointer, origins: Pointer) -> int:
    """The best continuations of a sentence's hypotheses, best first; returns the row behind its last one."""
    beam, count = call.beam, call.count
    own, gains = pointer(call.totals + 8 * b * beam, 0.0), pointer(call.gains, 0.0)
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
            totals[e], tokens[e] = reached, pointer(call.tokens, np.int64(0))[row * count + k]
            rows[e], origins[e] = row, b * beam + place
        row += 1
    return row


@inlined
def _keep(call: Call, b: int, value: float) -> None:
    """A hypothesis that ended among the best that did."""
    kept = pointer(call.kept + 8 * b * call.n_best, 0.0)
    if not value > kept[call.n_best - 1]:
        return
    k = call.n_best - 1
    while k > 0 and kept[k - 1] < value:
        kept[k] = kept[k - 1]
        k -= 1
    kept[k] = value


@inlined
def _go_on(call: Call, b: int, totals: Pointer, tokens: Pointer, rows: Pointer, found: int) -> int:
    """What ends, what is cut and what goes on; returns how many go on so far."""
    beam = call.beam
    open_places, limits = pointer(call.open, np.int64(0)), pointer(call.limits, np.int64(0))
    ended, out = pointer(call.step_ended + b * beam, np.uint8(0)), pointer(call.step_out + b * beam, np.uint8(0))
    places, hope = open_places[b], -np.inf
    for e in range(beam):
        there = e < places and totals[e] > -np.inf
        ended[e] = out[e] = there and tokens[e] == END
        if ended[e]:
            _keep(call, b, _normalised(call, totals[e], call.length))
            open_places[b] -= 1
        elif there:
            hope = max(hope, totals[e])
    at_limit = limits[b] == call.length
    # A log-probability only falls, and the penalty of no length divides by more than that of the limit.
    over = at_limit or pointer(call.kept, 0.0)[(b + 1) * call.n_best - 1] >= _normalised(call, hope, limits[b])
    for e in range(beam):
        goes = e < places and totals[e] > -np.inf and not ended[e]
        if goes and at_limit:
            out[e] = 1
        pointer(call.totals, 0.0)[b * beam + e] = totals[e] if goes and not over else -np.inf
        if goes and not over:
            pointer(call.next_rows, np.int64(0))[found] = rows[e]
            pointer(call.next_tokens, np.int64(0))[found] = tokens[e]
            pointer(call.next_sentences, np.int64(0))[found] = b
            found += 1
    return found


@Kernel
def advance(zero: Any) -> Any:
    """Every sentence one step on. The outcome: how many go on, if a row has no likeliest token, if all stay."""
    layout = CALL

    def advance(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        if claim(call.counters) > 0:
            return
        row, found, outcome = 0, 0, pointer(call.outcome, np.int64(0))
        outcome[1] = 0
        for r in range(call.rows):
            if not abs(pointer(call.gains, 0.0)[r * call.count]) < np.inf:
                outcome[1] = 1
        for b in range(call.sentences):
            at = 8 * b * call.beam
            totals, tokens = pointer(call.step_totals + at, 0.0), pointer(call.step_tokens + at, np.int64(0))
            rows, origins = pointer(call.step_rows + at, np.int64(0)), pointer(call.step_origins + at, np.int64(0))
            row = _collect(call, b, row, totals, tokens, rows, origins)
            found = _go_on(call, b, totals, tokens, rows, found)
        outcome[0], outcome[2] = found, found == call.rows
        for r in range(found):
            if pointer(call.next_rows, np.int64(0))[r] != r:
                outcome[2] = 0

    return advance
