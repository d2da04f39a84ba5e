"""The rules of a beam search, as plain loops over the record `HYPOTHESES` that every engine shares.

An engine computes log-probabilities of next tokens. The rules extend the hypotheses, decide which of them end and which
rows go on, and write the results.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.memory import Call, doubles_at, flags_at, number_at, numbers_at
from dikkat._engine.vectors import address
from dikkat.translation.decoding.compiled.record import DONE, ENDED, GOING, HYPOTHESES, STATE, UNKNOWN_SCORES
from dikkat.translation.text.special_tokens import END, SPECIAL, UNKNOWN

# In a kernel's signature: the progress of a search, `record.STATE`.
State = Any


def may_come(token: Any, bit: Any, missing: Any, copies: Any, fewest: Any, step: int) -> Any:
    """Whether a token may be the next one, for numbers or arrays, compiled or not; a slot only if it is missing."""
    usual = (token >= SPECIAL) & ((bit == 0) | (bit & missing != 0))
    return usual | ((token == UNKNOWN) & copies) | ((token == END) & (fewest <= step))


@inlined
def _count(bits: int) -> int:
    """Return the number of slots in a set."""
    count = 0
    while bits:
        bits, count = bits & (bits - 1), count + 1
    return count


@inlined
def _missing_before(call: Call, state: State, b: int, place: int) -> int:
    """Return the slots that a hypothesis lacked before this step."""
    if state.step == 0:
        return number_at(call.slots, b)
    return number_at(call.step_missing, ((state.step - 1) * call.sentences + b) * call.beam + place)


@inlined
def _insert(call: Call, state: State, b: int, first: int, total: float, row: int, origin: int, token: int) -> None:
    """Insert a continuation into a sentence's places from the `first` on, behind those that are as good."""
    beam, place = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    rows, origins = numbers_at(call.step_rows, place), numbers_at(call.step_origins, place)
    e = beam - 1
    while e > first and totals[e - 1] < total:
        totals[e], tokens[e], rows[e], origins[e] = totals[e - 1], tokens[e - 1], rows[e - 1], origins[e - 1]
        e -= 1
    totals[e], tokens[e], rows[e], origins[e] = total, token, row, b * beam + origin


@inlined
def _reserve(call: Call, state: State, b: int, first_row: int) -> int:
    """Write the best continuation with each number of missing slots; return how many there are.

    Hypotheses with few slots would otherwise take all places, since text is often likelier than a slot: Post and Vilar,
    "Fast lexically constrained decoding with dynamic beam allocation" (2018).
    """
    beam, reserved = call.beam, 0
    before, gains = doubles_at(call.totals, b * beam), doubles_at(call.gains, 0)
    for count in range(_count(number_at(call.slots, b)) + 1):
        best, best_row, best_origin, best_token, row = -np.inf, 0, 0, 0, first_row
        for origin in range(beam):
            if before[origin] == -np.inf:
                continue
            missing = _missing_before(call, state, b, origin)
            for k in range(beam):
                token = number_at(call.tokens, row * beam + k)
                total = before[origin] + gains[row * beam + k]
                if total > best and _count(missing & ~number_at(call.slot_bits, token)) == count:
                    best, best_row, best_origin, best_token = total, row, origin, token
            row += 1
        worst = doubles_at(call.step_totals, (state.step * call.sentences + b) * beam + beam - 1)[0]
        if best > worst:
            _insert(call, state, b, 0, best, best_row, best_origin, best_token)
            reserved = min(reserved + 1, beam)
    return reserved


@inlined
def _is_reserved(call: Call, state: State, b: int, reserved: int, row: int, token: int) -> bool:
    place = (state.step * call.sentences + b) * call.beam
    for e in range(place, place + reserved):
        if number_at(call.step_rows, e) == row and number_at(call.step_tokens, e) == token:
            return True
    return False


@inlined
def _sort(call: Call, state: State, b: int) -> None:
    """Sort a sentence's places, best first."""
    beam, place = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    rows, origins = numbers_at(call.step_rows, place), numbers_at(call.step_origins, place)
    for last in range(1, beam):
        total, token, row, origin, e = totals[last], tokens[last], rows[last], origins[last], last
        while e > 0 and totals[e - 1] < total:
            totals[e], tokens[e], rows[e], origins[e] = totals[e - 1], tokens[e - 1], rows[e - 1], origins[e - 1]
            e -= 1
        totals[e], tokens[e], rows[e], origins[e] = total, token, row, origin


@inlined
def _normalised(log_probability: float, length: int, penalty: float) -> float:
    """Return the score by which ended hypotheses compete.

    For one log-probability it must not fall as the length grows: a search stops early because of that.

    Wu et al., "Google's neural machine translation system" (2016), section 7.
    """
    return log_probability / ((5 + length) / 6) ** penalty


@inlined
def _extend(call: Call, state: State, b: int, row: int) -> int:
    """Write the best continuations of a sentence's hypotheses, best first; return the row after the sentence's last."""
    beam, place = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    rows, origins = numbers_at(call.step_rows, place), numbers_at(call.step_origins, place)
    before, gains = doubles_at(call.totals, b * beam), doubles_at(call.gains, 0)
    for e in range(beam):
        totals[e], tokens[e], rows[e], origins[e] = -np.inf, 0, 0, b * beam
    reserved = _reserve(call, state, b, row) if number_at(call.slots, b) != 0 else 0
    for origin in range(beam):
        if before[origin] == -np.inf:
            continue
        if not abs(gains[row * beam]) < np.inf:
            state.status = UNKNOWN_SCORES
        for k in range(beam):
            total, token = before[origin] + gains[row * beam + k], number_at(call.tokens, row * beam + k)
            if reserved == beam or not total > totals[beam - 1]:  # the remaining tokens are not better
                break
            if not _is_reserved(call, state, b, reserved, row, token):
                _insert(call, state, b, reserved, total, row, origin, token)
        row += 1
    if reserved:
        _sort(call, state, b)
    for e in range(beam):
        missing = _missing_before(call, state, b, origins[e] - b * beam)
        numbers_at(call.step_missing, place + e)[0] = missing & ~number_at(call.slot_bits, tokens[e])
    return row


@inlined
def _adopt(call: Call, state: State, b: int) -> None:
    """Take a sentence's places as a device chose them, best first behind those that ended before."""
    beam, place, searched = call.beam, (state.step * call.sentences + b) * call.beam, False
    totals = doubles_at(call.step_totals, place)
    for e in range(beam):
        searched |= doubles_at(call.totals, b * beam + e)[0] > -np.inf
    if searched and not totals[0] > -np.inf:
        state.status = UNKNOWN_SCORES
    for e in range(beam):
        if not searched or totals[e] > ENDED / 2:
            totals[e] = -np.inf
        numbers_at(call.step_missing, place + e)[0] = 0  # a device searches no sentences with slots
    numbers_at(call.open, b)[0] = beam  # hypotheses that ended have places of their own


@inlined
def _decide(call: Call, state: State, b: int, going: int) -> int:
    """Decide which hypotheses end, are cut or go on; return how many go on so far."""
    beam, place, length = call.beam, (state.step * call.sentences + b) * call.beam, state.step + 1
    totals, tokens = doubles_at(call.step_totals, place), numbers_at(call.step_tokens, place)
    ended, out = flags_at(call.step_ended, place), flags_at(call.step_out, place)
    missing = numbers_at(call.step_missing, place)
    best = doubles_at(call.best_ended, b * call.n_best)
    open_places, limit = numbers_at(call.open, b), number_at(call.limits, b)
    places, hope = open_places[0], -np.inf
    for e in range(beam):
        there = e < places and totals[e] > -np.inf
        ended[e] = out[e] = there and tokens[e] == END
        if ended[e] and missing[e] == 0:  # one that lacks a slot ends no search
            score, k = _normalised(totals[e], length, call.penalty), call.n_best - 1
            if score > best[k]:
                while k > 0 and best[k - 1] < score:
                    best[k] = best[k - 1]
                    k -= 1
                best[k] = score
            open_places[0] -= 1
        elif there and not ended[e]:
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
            numbers_at(call.next_missing, going)[0] = missing[e]
            going += 1
    return going


@inlined
def _grade(call: Call, at: int) -> int:
    """Return 2 for a hypothesis that ended with all slots, 1 for one that ended, 0 for one that was cut."""
    if not flags_at(call.step_ended, at)[0]:
        return 0
    return 2 if number_at(call.step_missing, at) == 0 else 1


@inlined
def _choose(call: Call, state: State, b: int) -> None:
    """Write a sentence's results, the best first; of equal ones that which was out first.

    Finished ones with all slots come first, then finished ones, then those that the limit cut.
    """
    count, place = 0, b * call.n_best
    steps, places = numbers_at(call.result_steps, place), numbers_at(call.result_places, place)
    finished, scores = flags_at(call.result_ended, place), doubles_at(call.result_scores, place)
    totals = doubles_at(call.result_totals, place)
    for k in range(call.n_best):
        steps[k] = -1
    for step in range(state.step):
        for e in range(call.beam):
            at = (step * call.sentences + b) * call.beam + e
            if not flags_at(call.step_out, at)[0]:
                continue
            total, ended = doubles_at(call.step_totals, at)[0], flags_at(call.step_ended, at)[0]
            score, k = _normalised(total, step + 1, call.penalty), count
            grade = _grade(call, at)
            while k > 0:
                other = _grade(call, (steps[k - 1] * call.sentences + b) * call.beam + places[k - 1])
                if grade < other or (grade == other and not score > scores[k - 1]):
                    break
                if k < call.n_best:
                    steps[k], places[k], finished[k] = steps[k - 1], places[k - 1], finished[k - 1]
                    scores[k], totals[k] = scores[k - 1], totals[k - 1]
                k -= 1
            if k < call.n_best:
                steps[k], places[k], finished[k], scores[k], totals[k] = step, e, ended, score, total
                count = min(count + 1, call.n_best)


@inlined
def _trace(call: Call, state: State, hypothesis: int) -> None:
    """Write a hypothesis's token and row at each step; 0 after its last."""
    room, b, place = state.room, hypothesis // call.n_best, number_at(call.result_places, hypothesis)
    ids, rows = numbers_at(call.result_ids, hypothesis * room), numbers_at(call.result_rows, hypothesis * room)
    for step in range(state.step - 1, -1, -1):
        ids[step], rows[step] = 0, 0
        if step <= number_at(call.result_steps, hypothesis):
            at = (step * call.sentences + b) * call.beam + place
            ids[step], rows[step] = number_at(call.step_tokens, at), number_at(call.step_rows, at)
            place = number_at(call.step_origins, at) - b * call.beam


@inlined
def book(call: Call, state: State, chosen: bool) -> None:
    """Take every sentence one step on, from `gains` and `tokens` or a `chosen` step; at the end write the results."""
    row, going = 0, 0
    for b in range(call.sentences):
        if chosen:
            _adopt(call, state, b)
        else:
            row = _extend(call, state, b, row)
        going = _decide(call, state, b, going)
    if state.status == UNKNOWN_SCORES:
        return
    state.step += 1
    state.rows = going
    if going == 0:
        for b in range(call.sentences):
            _choose(call, state, b)
        for hypothesis in range(call.sentences * call.n_best):
            _trace(call, state, hypothesis)
        state.status = DONE


@Kernel
def advance(zero: Any) -> Any:
    """One step from `gains` and `tokens`, or the `chosen` steps whose tables are filled."""
    layout, state_type = HYPOTHESES.layout(__name__), STATE

    def advance(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        state = carray(address(call.state), 1, state_type)[0]
        if call.chosen == 0:
            book(call, state, False)
        for _ in range(call.chosen):
            if state.status == GOING:
                book(call, state, True)

    return advance
