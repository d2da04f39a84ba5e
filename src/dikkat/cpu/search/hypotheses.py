"""How the hypotheses of a sentence go on from a step to the next, compiled."""

import numpy as np

from dikkat.cpu.engine.compile import inlined
from dikkat.cpu.engine.memory import Call
from dikkat.cpu.engine.vectors import Pointer, at, pointer
from dikkat.cpu.search.rules import END, normalised

_normalised = inlined(normalised)


@inlined
def whole(address: int, index: int) -> Pointer:
    """Whole numbers at an address, from one of them on."""
    return at(pointer(address, np.int64(0)), index)


@inlined
def flags(address: int, index: int) -> Pointer:
    """Likewise flags."""
    return at(pointer(address, np.uint8(0)), index)


@inlined
def doubles(address: int, index: int) -> Pointer:
    """Likewise float64 numbers."""
    return at(pointer(address, 0.0), index)


@inlined
def insert(gains: Pointer, tokens: Pointer, count: int, gain: float, token: int) -> None:
    """Insert a token among the likeliest, behind those that are as likely."""
    k = count - 1
    while k > 0 and gains[k - 1] < gain:
        gains[k], tokens[k] = gains[k - 1], tokens[k - 1]
        k -= 1
    gains[k], tokens[k] = gain, token


@inlined
def collect(call: Call, b: int, row: int, totals: Pointer, tokens: Pointer, rows: Pointer, origins: Pointer) -> int:
    """Write the best continuations of a sentence's hypotheses, best first; return the row after the sentence's last."""
    beam, count = call.beam, call.count
    own, gains = doubles(call.totals, b * beam), doubles(call.gains, 0)
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
            totals[e], tokens[e] = reached, whole(call.tokens, row * count + k)[0]
            rows[e], origins[e] = row, b * beam + place
        row += 1
    return row


@inlined
def _keep(call: Call, b: int, value: float) -> None:
    """Insert the score of an ended hypothesis among the best ones."""
    best = doubles(call.best_ended, b * call.n_best)
    if not value > best[call.n_best - 1]:
        return
    k = call.n_best - 1
    while k > 0 and best[k - 1] < value:
        best[k] = best[k - 1]
        k -= 1
    best[k] = value


@inlined
def go_on(
    call: Call, b: int, length: int, totals: Pointer, tokens: Pointer, rows: Pointer, ended: Pointer, out: Pointer,
    found: int,
) -> int:  # fmt: skip
    """Decide which hypotheses end, are cut or go on; return how many go on so far."""
    beam = call.beam
    open_places, limit = whole(call.open, b), whole(call.limits, b)[0]
    places, hope = open_places[0], -np.inf
    for e in range(beam):
        there = e < places and totals[e] > -np.inf
        ended[e] = out[e] = there and tokens[e] == END
        if ended[e]:
            _keep(call, b, _normalised(totals[e], length, call.penalty))
            open_places[0] -= 1
        elif there:
            hope = max(hope, totals[e])
    at_limit = limit == length
    # A log-probability only falls, and the penalty of no length divides by more than that of the limit.
    over = at_limit or doubles(call.best_ended, (b + 1) * call.n_best - 1)[0] >= _normalised(hope, limit, call.penalty)
    for e in range(beam):
        goes = e < places and totals[e] > -np.inf and not ended[e]
        if goes and at_limit:
            out[e] = 1
        doubles(call.totals, b * beam + e)[0] = totals[e] if goes and not over else -np.inf
        if goes and not over:
            whole(call.next_rows, found)[0] = rows[e]
            whole(call.next_tokens, found)[0] = tokens[e]
            whole(call.next_sentences, found)[0] = b
            found += 1
    return found
