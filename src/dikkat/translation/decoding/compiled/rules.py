"""The rules of a beam search: loops over the record `HYPOTHESES`, shared by all engines.

An engine computes log-probabilities of next tokens. The rules extend hypotheses, end some, choose the rows that
continue, and write the results. The fields of `call` are described in `record.HYPOTHESES`. Of a sentence b:

- Each step has K = `beam` *places*, best first. A hypothesis is identified by its step and its `place_index`.
- The `parent` of a continuation is the place of the hypothesis that it continues. Tables store it as `step_origins`,
  the sum of b · K and the parent.
- A *row* is the row of the engine's batch that computed the hypothesis.

A comparison such as `not a > b` is also True if a is NaN.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.memory import Call, doubles_at, flags_at, numbers_at, read_double, read_flag, read_number
from dikkat._engine.vectors import Pointer, address
from dikkat.translation.decoding.compiled.record import DONE, ENDED, HYPOTHESES, NONFINITE_SCORES, RUNNING, STATE
from dikkat.translation.text.special_tokens import END, SPECIAL, UNKNOWN

# The type of a search's progress, `record.STATE`, in kernels' signatures.
State = Any


def may_be_next(token: Any, slot_bit: Any, missing: Any, may_copy: Any, min_length: Any, step: int) -> Any:
    """Return whether a token may be next, for numbers or arrays, compiled or not; a slot, only if still missing."""
    is_word = (token >= SPECIAL) & ((slot_bit == 0) | (slot_bit & missing != 0))
    return is_word | ((token == UNKNOWN) & may_copy) | ((token == END) & (min_length <= step))


@inlined
def _count(bits: int) -> int:
    """Return the number of 1 bits."""
    count = 0
    while bits:
        bits, count = bits & (bits - 1), count + 1
    return count


@inlined
def _missing_before(call: Call, state: State, b: int, place_index: int) -> int:
    """Return the set of slots that the hypothesis at a place of the last step still lacks."""
    if state.step == 0:
        return read_number(call.slots, b)
    return read_number(call.step_missing, ((state.step - 1) * call.sentences + b) * call.beam + place_index)


@inlined
def _insert(call: Call, state: State, b: int, first: int, total: float, row: int, parent: int, token: int) -> None:
    """Insert a continuation into a sentence's places from `first` on, after equally good ones; the last is dropped."""
    beam, offset = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, offset), numbers_at(call.step_tokens, offset)
    rows, origins = numbers_at(call.step_rows, offset), numbers_at(call.step_origins, offset)
    k = beam - 1
    while k > first and totals[k - 1] < total:
        totals[k], tokens[k], rows[k], origins[k] = totals[k - 1], tokens[k - 1], rows[k - 1], origins[k - 1]
        k -= 1
    totals[k], tokens[k], rows[k], origins[k] = total, token, row, b * beam + parent


@inlined
def _reserve(call: Call, state: State, b: int, first_row: int) -> int:
    """Write the best continuation for each number of missing slots into the first places; return how many there are.

    Otherwise hypotheses that write few slots could take all places, as text is often likelier than a slot. Post, Vilar,
    "Fast lexically constrained decoding with dynamic beam allocation" (2018).
    """
    beam, reserved = call.beam, 0
    old_totals, gains = doubles_at(call.totals, b * beam), doubles_at(call.gains, 0)
    for count in range(_count(read_number(call.slots, b)) + 1):
        best, best_row, best_parent, best_token, row = -np.inf, 0, 0, 0, first_row
        for parent in range(beam):
            if old_totals[parent] == -np.inf:
                continue
            missing = _missing_before(call, state, b, parent)
            for rank in range(beam):
                token = read_number(call.tokens, row * beam + rank)
                total = old_totals[parent] + gains[row * beam + rank]
                if total > best and _count(missing & ~read_number(call.slot_bits, token)) == count:
                    best, best_row, best_parent, best_token = total, row, parent, token
            row += 1
        last_total = read_double(call.step_totals, (state.step * call.sentences + b) * beam + beam - 1)
        if best > last_total:  # −∞ if the last place is free; if not, the insertion drops the hypothesis at this place
            _insert(call, state, b, 0, best, best_row, best_parent, best_token)
            reserved = min(reserved + 1, beam)
    return reserved


@inlined
def _is_reserved(call: Call, state: State, b: int, reserved: int, row: int, token: int) -> bool:
    offset = (state.step * call.sentences + b) * call.beam
    for index in range(offset, offset + reserved):
        if read_number(call.step_rows, index) == row and read_number(call.step_tokens, index) == token:
            return True
    return False


@inlined
def _sort(call: Call, state: State, b: int) -> None:
    """Sort a sentence's places, best first; equally good continuations keep their order."""
    beam, offset = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, offset), numbers_at(call.step_tokens, offset)
    rows, origins = numbers_at(call.step_rows, offset), numbers_at(call.step_origins, offset)
    for start in range(1, beam):
        total, token, row, origin, k = totals[start], tokens[start], rows[start], origins[start], start
        while k > 0 and totals[k - 1] < total:
            totals[k], tokens[k], rows[k], origins[k] = totals[k - 1], tokens[k - 1], rows[k - 1], origins[k - 1]
            k -= 1
        totals[k], tokens[k], rows[k], origins[k] = total, token, row, origin


@inlined
def _normalised(log_probability: float, length: int, penalty: float) -> float:
    """Return the score that ranks ended hypotheses.

    For a fixed log-probability it must not fall as the length grows, since `_decide` relies on that to stop early.
    Wu et al., "Google's neural machine translation system" (2016), section 7.
    """
    return log_probability / ((5 + length) / 6) ** penalty


@inlined
def _extend(call: Call, state: State, b: int, row: int) -> int:
    """Write the best continuations of a sentence's hypotheses, best first; return the row after its last row."""
    beam, offset = call.beam, (state.step * call.sentences + b) * call.beam
    totals, tokens = doubles_at(call.step_totals, offset), numbers_at(call.step_tokens, offset)
    rows, origins = numbers_at(call.step_rows, offset), numbers_at(call.step_origins, offset)
    old_totals, gains = doubles_at(call.totals, b * beam), doubles_at(call.gains, 0)
    for k in range(beam):
        totals[k], tokens[k], rows[k], origins[k] = -np.inf, 0, 0, b * beam
    reserved = _reserve(call, state, b, row) if read_number(call.slots, b) != 0 else 0
    for parent in range(beam):
        if old_totals[parent] == -np.inf:
            continue
        if not abs(gains[row * beam]) < np.inf:
            state.status = NONFINITE_SCORES
        for rank in range(beam):
            total, token = old_totals[parent] + gains[row * beam + rank], read_number(call.tokens, row * beam + rank)
            # The places after the reserved ones are sorted, so the last is the worst. Later tokens have smaller gains.
            if reserved == beam or not total > totals[beam - 1]:
                break
            if not _is_reserved(call, state, b, reserved, row, token):
                _insert(call, state, b, reserved, total, row, parent, token)
        row += 1
    if reserved:
        _sort(call, state, b)
    for k in range(beam):
        missing = _missing_before(call, state, b, origins[k] - b * beam)
        numbers_at(call.step_missing, offset + k)[0] = missing & ~read_number(call.slot_bits, tokens[k])
    return row


@inlined
def _adopt_chosen_step(call: Call, state: State, b: int) -> None:
    """Finish a step whose tokens a device chose: clear the places of hypotheses that ended in earlier steps.

    These are the first places: the device added `ENDED` to their log-probabilities.
    """
    beam, offset, has_running = call.beam, (state.step * call.sentences + b) * call.beam, False
    totals = doubles_at(call.step_totals, offset)
    for k in range(beam):
        has_running |= read_double(call.totals, b * beam + k) > -np.inf
    if has_running and not totals[0] > -np.inf:
        state.status = NONFINITE_SCORES
    for k in range(beam):
        if not has_running or totals[k] > ENDED / 2:
            totals[k] = -np.inf
        numbers_at(call.step_missing, offset + k)[0] = 0  # sentences with slots are never searched on a device
    numbers_at(call.open, b)[0] = beam  # on a device, ended hypotheses keep their places


@inlined
def _rank_ended(best: Pointer, n_best: int, score: float) -> None:
    """Insert the score of an ended hypothesis into the `n_best` best scores, best first."""
    k = n_best - 1
    if score > best[k]:
        while k > 0 and best[k - 1] < score:
            best[k] = best[k - 1]
            k -= 1
        best[k] = score


@inlined
def _decide(call: Call, state: State, b: int, next_row: int) -> int:
    """Decide which hypotheses of a sentence end, are cut or continue; return the next free row."""
    beam, offset, length = call.beam, (state.step * call.sentences + b) * call.beam, state.step + 1
    totals, tokens = doubles_at(call.step_totals, offset), numbers_at(call.step_tokens, offset)
    ended, out = flags_at(call.step_ended, offset), flags_at(call.step_out, offset)
    missing = numbers_at(call.step_missing, offset)
    best = doubles_at(call.best_ended, b * call.n_best)
    places_next, limit = numbers_at(call.open, b), read_number(call.limits, b)
    places_now, best_running = places_next[0], -np.inf
    for k in range(beam):
        is_filled = k < places_now and totals[k] > -np.inf
        ended[k] = out[k] = is_filled and tokens[k] == END
        if ended[k] and missing[k] == 0:  # a hypothesis that lacks a slot ends no search
            _rank_ended(best, call.n_best, _normalised(totals[k], length, call.penalty))
            places_next[0] -= 1
        elif is_filled and not ended[k]:
            best_running = max(best_running, totals[k])
    at_limit = limit == length
    # Log-probabilities fall and the divisor grows with the length, so this bounds every final score.
    is_over = at_limit or best[call.n_best - 1] >= _normalised(best_running, limit, call.penalty)
    for k in range(beam):
        continues = k < places_now and totals[k] > -np.inf and not ended[k]
        if continues and at_limit:
            out[k] = 1
        doubles_at(call.totals, b * beam + k)[0] = totals[k] if continues and not is_over else -np.inf
        if continues and not is_over:
            numbers_at(call.next_rows, next_row)[0] = numbers_at(call.step_rows, offset)[k]
            numbers_at(call.next_tokens, next_row)[0] = tokens[k]
            numbers_at(call.next_sentences, next_row)[0] = b
            numbers_at(call.next_missing, next_row)[0] = missing[k]
            next_row += 1
    return next_row


@inlined
def _completeness(call: Call, index: int) -> int:
    """Return 2 for a hypothesis that ended with all slots, 1 if it ended without some, 0 if it was cut."""
    if not read_flag(call.step_ended, index):
        return 0
    return 2 if read_number(call.step_missing, index) == 0 else 1


@inlined
def _write_results(call: Call, state: State, b: int) -> None:
    """Write a sentence's results, sorted by `_completeness`, then by score; equal ones in the order of the search."""
    count, offset = 0, b * call.n_best
    steps, place_indices = numbers_at(call.result_steps, offset), numbers_at(call.result_places, offset)
    are_ended, scores = flags_at(call.result_ended, offset), doubles_at(call.result_scores, offset)
    totals = doubles_at(call.result_totals, offset)
    for k in range(call.n_best):
        steps[k] = -1
    for step in range(state.step):
        for place_index in range(call.beam):
            index = (step * call.sentences + b) * call.beam + place_index
            if not read_flag(call.step_out, index):
                continue
            total, ended = read_double(call.step_totals, index), read_flag(call.step_ended, index)
            score, k = _normalised(total, step + 1, call.penalty), count
            completeness = _completeness(call, index)
            while k > 0:
                above = (steps[k - 1] * call.sentences + b) * call.beam + place_indices[k - 1]
                completeness_above = _completeness(call, above)
                is_equal = completeness == completeness_above
                if completeness < completeness_above or (is_equal and not score > scores[k - 1]):
                    break
                if k < call.n_best:
                    steps[k], place_indices[k], are_ended[k] = steps[k - 1], place_indices[k - 1], are_ended[k - 1]
                    scores[k], totals[k] = scores[k - 1], totals[k - 1]
                k -= 1
            if k < call.n_best:
                steps[k], place_indices[k], are_ended[k], scores[k], totals[k] = step, place_index, ended, score, total
                count = min(count + 1, call.n_best)


@inlined
def _trace(call: Call, state: State, hypothesis: int) -> None:
    """Write the token and row of each step of a result, from its last step back; 0 after its last step."""
    size, b, place_index = state.table_steps, hypothesis // call.n_best, read_number(call.result_places, hypothesis)
    ids, rows = numbers_at(call.result_ids, hypothesis * size), numbers_at(call.result_rows, hypothesis * size)
    for step in range(state.step - 1, -1, -1):
        ids[step], rows[step] = 0, 0
        if step <= read_number(call.result_steps, hypothesis):
            index = (step * call.sentences + b) * call.beam + place_index
            ids[step], rows[step] = read_number(call.step_tokens, index), read_number(call.step_rows, index)
            place_index = read_number(call.step_origins, index) - b * call.beam


@inlined
def finish_step(call: Call, state: State, by_device: bool) -> None:
    """Advance all sentences by one step; after the last step write the results.

    The step comes from `gains` and `tokens`, or with `by_device` from tables that a device filled.
    """
    row, next_row = 0, 0
    for b in range(call.sentences):
        if by_device:
            _adopt_chosen_step(call, state, b)
        else:
            row = _extend(call, state, b, row)
        next_row = _decide(call, state, b, next_row)
    if state.status == NONFINITE_SCORES:
        return
    state.step += 1
    state.rows = next_row
    if next_row == 0:
        for b in range(call.sentences):
            _write_results(call, state, b)
        for hypothesis in range(call.sentences * call.n_best):
            _trace(call, state, hypothesis)
        state.status = DONE


@Kernel
def advance(zero: Any) -> Any:
    """Make the kernel that finishes one step, or the `call.chosen` steps of a device if this number is not 0.

    `zero` is unused: the kernel computes in float64.
    """
    layout, state_type = HYPOTHESES.layout(__name__), STATE

    def advance(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        state = carray(address(call.state), 1, state_type)[0]
        if call.chosen == 0:
            finish_step(call, state, False)
        for _ in range(call.chosen):
            if state.status == RUNNING:
                finish_step(call, state, True)

    return advance
