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
from dikkat.translation.text.special_tokens import END, UNKNOWN

# In a kernel's signature: the progress of a search, `record.STATE`.
State = Any


def may_come(token: Any, copies: Any, fewest: Any, step: int) -> Any:
    """Whether a special token may be the next one, for numbers or arrays, compiled or not."""
    return ((token == UNKNOWN) & copies) | ((token == END) & (fewest <= step))


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
    for origin in range(beam):
        if before[origin] == -np.inf:
            continue
        if not abs(gains[row * beam]) < np.inf:
            state.status = UNKNOWN_SCORES
        for k in range(beam):
            total = before[origin] + gains[row * beam + k]
            if not total > totals[beam - 1]:  # and none of those that follow is better
                break
            e = beam - 1
            while e > 0 and totals[e - 1] < total:
                totals[e], tokens[e], rows[e], origins[e] = totals[e - 1], tokens[e - 1], rows[e - 1], origins[e - 1]
                e -= 1
            totals[e], tokens[e] = total, number_at(call.tokens, row * beam + k)
            rows[e], origins[e] = row, b * beam + origin
        row += 1
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
    numbers_at(call.open, b)[0] = beam  # hypotheses that ended have places of their own


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
            at = (step * call.sentences + b) * call.beam + e
            if not flags_at(call.step_out, at)[0]:
                continue
            total, ended = doubles_at(call.step_totals, at)[0], flags_at(call.step_ended, at)[0]
            score, k = _normalised(total, step + 1, call.penalty), count
            while k > 0 and (ended > finished[k - 1] or (ended == finished[k - 1] and score > scores[k - 1])):
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
