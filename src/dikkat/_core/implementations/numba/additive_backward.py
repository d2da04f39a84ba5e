"""The backward pass of additive attention, compiled by Numba.

The lanes of a vector are features here, so that sums over keys and over rows are vectors of features. With
a = s(1 + p) as in `scores`, Q' = s e^{2q}, K = e^{2k} and g the gradient of a score,

    ∂q = 4 s v Q' Σ_j g K / a²,   ∂k = 4 s v K Σ_i g Q' / a²,   ∂v = Σ g tanh = Σ g − 2 s Σ g / a.

The derivative is not computed as 1 − tanh², which loses all digits of large arguments. For small arguments the formula
of ∂v would lose digits, so tanh is computed directly.

Four keys and a few rows are processed together. Their 1/a are computed once for the scores, with one division for four,
and stored. The scores give the g, and the sums use the stored 1/a.

These scores differ from the forward's in the last bits, which e^(score − peak) magnifies if a score is large or few
keys have all the weight. Then a sweep over the keys first recomputes the rows' peaks and totals, so that weights add up
to 1. (If the output is over more keys than the call's, their weights add up to less.)
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._core.compiled.scoring import LOWER
from dikkat._core.implementations.numba.additive_pairs import (
    add_exact,
    add_features,
    add_small,
    add_values,
    any_small,
    begin_pairs,
    clear_reciprocals,
    four_rows,
    keep_row,
    keep_row_exact,
    pack_row,
    peak_of,
    products,
)
from dikkat._core.implementations.numba.packing import pack_weight, raw_keys, raw_row, weight_at
from dikkat._core.implementations.numba.record import CALL, PEAK_KEYS, SIDE
from dikkat._core.implementations.numba.visibility import bias_grad_of, drop, first_of, limits_of, owner, turn_of
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, Work, clear, copy, load_part, workplace_of
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    full,
    lanes_of,
    load,
    maximum,
    pointer,
    store,
    total,
    totals,
    where,
)

# A row needs a sweep if its peak's magnitude is larger than LARGE or its total smaller than FEW.
LARGE, FEW = 16.0, 4.0
_workplace = workplace_of(CALL)


@Kernel
def pack_features(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Write the keys' exponentials row by row, flags of keys without them, and each tile's largest magnitudes."""
    layout = CALL.layout(__name__)

    def pack_features(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, padded = call.features, call.padded
        one, highest = full(1, zero), full(call.highest, zero)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            tiles = (call.keys + PEAK_KEYS - 1) // PEAK_KEYS
            first = task // tiles * call.keys + task % tiles * PEAK_KEYS
            count = min(PEAK_KEYS, call.keys - task % tiles * PEAK_KEYS)
            source = at(pointer(call.key, zero), first * size)
            for k in range(count):
                into = at(pointer(call.packed_key, zero), (first + k) * padded)
                out_of_range = pack_row(at(source, k * size), size, into, padded, one, highest, zero)
                pointer(call.key_beyond, np.uint8(0))[first + k] = out_of_range
            peak_of(source, count, size, padded, highest, at(pointer(call.key_peak, zero), task * padded), zero)

    return pack_features


@inlined
def _flush_keys(
    call: Call, keys: Pointer, count: int, weight: Pointer, key_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add 4 s v K Σ_i g Q' / a² to the keys' gradients."""
    lanes, padded = lanes_of(zero), call.padded
    for c in range(0, padded, lanes):
        factor = full(4 * call.scale, zero) * load_part(weight, c, call.features, zero)
        for k in range(count):
            index = k * padded + c
            share = factor * load(keys, index) * load(key_sums, index)
            store(key_grad, index, load(key_grad, index) + share)


@inlined
def _keep_rows(
    call: Call, work: Work, b: int, i0: int, rows: int, g: int, raw: Pointer, count: int, k0: Pointer, k1: Pointer,
    k2: Pointer, k3: Pointer, keys_beyond: bool, s: Vector, limit: Vector, zero: Any,
) -> None:  # fmt: skip
    """Run `keep_row` for some rows with four keys. Compute rows out of range directly; mark them in `exact_rows`."""
    lanes, size, padded, pairs = lanes_of(zero), call.features, call.padded, call.group * SIDE
    for i in range(rows):
        reciprocals, sums = at(work.reciprocals, i * SIDE * lanes), at(work.score_sums, i * SIDE * lanes)
        exact = keys_beyond or work.beyond[g + i] != 0
        if not exact:
            query = at(work.query, (g + i) * padded)
            exact = not keep_row(query, k0, k1, k2, k3, work.weight, padded, pairs, s, limit, reciprocals, sums, zero)
            if exact:
                clear_reciprocals(reciprocals, padded, pairs, zero)
        if exact:
            row, scores = raw_row(call, b, i0 + i, zero), at(work.scores, i * SIDE)
            keep_row_exact(row, raw, count, size, work.weight, scores, call.scale, sums, zero)
        work.exact_rows[i] = exact


@inlined
def _any_beyond(call: Call, first: int, count: int, zero: Any) -> bool:
    out_of_range = False
    for k in range(first, first + count):
        out_of_range = out_of_range or pointer(call.key_beyond, np.uint8(0))[k] != 0
    return out_of_range


@inlined
def _load_upstream(call: Call, work: Work, b: int, i0: int, rows: int, j0: int, zero: Any) -> None:
    """Load the pairs' dropout factors and the upstream gradients of their weights, if the call has them."""
    keys = min(SIDE, call.keys - j0)
    if call.seeds != 0:
        for i in range(rows):
            drop(call, b, i0 + i, j0, SIDE, at(work.drop_factors, i * SIDE))
    if call.weights_grad != 0:
        for i in range(rows):
            for k in range(keys):
                index = (b * call.queries + i0 + i) * call.keys + j0 + k
                work.upstream[i * SIDE + k] = pointer(call.weights_grad, zero)[index]


@inlined
def _score_pairs(call: Call, work: Work, pair: int, factor: Vector, zero: Any) -> tuple[Vector, Vector]:
    """Return the scores of a vector of pairs, −∞ if hidden, and the gradients of their weights."""
    lanes, hidden, begin = lanes_of(zero), full(-np.inf, zero), load(work.scores, pair)
    score = where(begin == hidden, begin, begin + factor * totals(work.score_sums, pair * lanes))
    by_weight = totals(work.value_sums, pair * lanes)
    if call.seeds != 0:
        by_weight = by_weight * load(work.drop_factors, pair)
    if call.weights_grad != 0:
        by_weight = by_weight + load(work.upstream, pair)
    return score, by_weight


@inlined
def _weigh_pairs(
    call: Call, work: Work, b: int, i0: int, rows: int, j0: int, g: int, factor: Vector, zero: Any
) -> None:
    """Compute the pairs' scores, their shares e^(score − peak) after dropout, and the gradients of the scores."""
    pairs, hidden, nothing = call.group * SIDE, full(-np.inf, zero), full(0, zero)
    peaks, drifts, factors = at(work.peaks, g * SIDE), at(work.drifts, g * SIDE), at(work.factors, g * SIDE)
    _load_upstream(call, work, b, i0, rows, j0, zero)
    for pair in range(0, pairs, lanes_of(zero)):
        visible = load(work.scores, pair) != hidden
        score, by_weight = _score_pairs(call, work, pair, factor, zero)
        share = exp(score - load(peaks, pair)) * load(factors, pair)
        dropped = share
        if call.seeds != 0:
            dropped = share * load(work.drop_factors, pair)
        store(work.scores, pair, score)
        store(work.weights, pair, where(visible, dropped, nothing))
        store(work.by_score, pair, where(visible, share * (by_weight - load(drifts, pair)), nothing))


@inlined
def _sweep_pairs(
    call: Call, work: Work, b: int, i0: int, rows: int, j0: int, g: int, factor: Vector, zero: Any
) -> None:
    peaks, row_totals, drifts = at(work.peaks, g * SIDE), at(work.totals, g * SIDE), at(work.drifts, g * SIDE)
    _load_upstream(call, work, b, i0, rows, j0, zero)
    for pair in range(0, call.group * SIDE, lanes_of(zero)):
        score, by_weight = _score_pairs(call, work, pair, factor, zero)
        _update(score, by_weight, at(peaks, pair), at(row_totals, pair), at(drifts, pair), zero)


@inlined
def _update(score: Vector, by_weight: Vector, peak: Pointer, row_total: Pointer, drift: Pointer, zero: Any) -> None:
    """Add pairs to the total and to Σ share · gradient of each lane, as in a running softmax."""
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    old_peak = load(peak, 0)
    new_peak = maximum(score, old_peak)
    base = where(new_peak == hidden, nothing, new_peak)
    fade, share = exp(old_peak - base), exp(score - base)
    store(peak, 0, new_peak)
    store(row_total, 0, load(row_total, 0) * fade + share)
    store(drift, 0, load(drift, 0) * fade + where(score == hidden, nothing, share * by_weight))


@inlined
def _needs_sweep(call: Call, row: int, zero: Any) -> bool:
    peak, row_total = pointer(call.peak, zero)[row], pointer(call.total, zero)[row]
    return row_total > 0 and (row_total < FEW or abs(peak) > LARGE)


@inlined
def _write_known_row(call: Call, work: Work, row: int, first_lane: int, zero: Any) -> None:
    """Write the forward pass's peak and drift of a row to each of its four lanes."""
    peak, drift = pointer(call.peak, zero)[row], pointer(call.drift, zero)[row]
    for k in range(first_lane, first_lane + SIDE):
        work.peaks[k], work.drifts[k], work.factors[k] = (peak if peak > -np.inf else zero), drift, 1.0


@inlined
def _write_swept_row(call: Call, work: Work, row: int, first_lane: int, zero: Any) -> None:
    """Write a row's peak and drift of the sweep, and the factor from the forward pass's total to the sweep's."""
    peaks, row_totals, drifts = at(work.peaks, first_lane), at(work.totals, first_lane), at(work.drifts, first_lane)
    peak = peaks[0]
    for k in range(1, SIDE):
        peak = max(peak, peaks[k])
    base = peak if peak > -np.inf else zero
    row_total, drift = zero, zero
    for k in range(SIDE):
        fade = math.exp(peaks[k] - base)
        row_total += row_totals[k] * fade
        drift += drifts[k] * fade
    inverse = zero if row_total == 0 else 1 / row_total
    factor, drift = pointer(call.total, zero)[row] * inverse, drift * inverse - pointer(call.total_grad, zero)[row]
    for k in range(SIDE):
        peaks[k], work.factors[first_lane + k], drifts[k] = base, factor, drift


@inlined
def _sweep_rows(
    call: Call, work: Work, b: int, i0: int, rows: int, reach: int, constant: float, factor: Vector, key_owner: int,
    value_owner: int, s: Vector, limit: Vector, zero: Any,
) -> None:  # fmt: skip
    """Sweep over the keys to recompute the peaks, drifts and factors of the rows marked in `sweeps`."""
    group, stride, padded = call.group, call.value_stride, call.padded
    for g in range(0, rows, group):
        i, group_rows, any_sweep = i0 + g, min(group, rows - g), False
        for k in range(g, g + group_rows):
            any_sweep = any_sweep or work.sweeps[k] != 0
        if not any_sweep:
            continue
        clear(at(work.totals, g * SIDE), group * SIDE, zero)
        clear(at(work.drifts, g * SIDE), group * SIDE, zero)
        for pair in range(g * SIDE, (g + group) * SIDE):
            work.peaks[pair] = -np.inf
        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
        for j0 in range(first_of(call, b, i, group_rows, SIDE), reach, SIDE):
            if not begin_pairs(call, b, i, group_rows, j0, at(work.limits, g), constant, work.scores, zero):
                continue
            count, raw = min(SIDE, call.keys - j0), raw_keys(call, b, j0, zero)
            k0, k1, k2, k3 = four_rows(pointer(call.packed_key, zero), key_owner + j0, count, padded)
            keys_beyond = _any_beyond(call, key_owner + j0, count, zero)
            _keep_rows(call, work, b, i, group_rows, g, raw, count, k0, k1, k2, k3, keys_beyond, s, limit, zero)
            v0, v1, v2, v3 = four_rows(pointer(call.value, zero), value_owner + j0, count, stride)
            products(mean_grad, group_rows, v0, v1, v2, v3, stride, work.value_sums, zero)
            _sweep_pairs(call, work, b, i, group_rows, j0, g, factor, zero)
        for k in range(g, g + group_rows):
            row, first_lane = b * call.queries + i0 + k, k * SIDE
            if work.sweeps[k] != 0:
                _write_swept_row(call, work, row, first_lane, zero)
            else:
                _write_known_row(call, work, row, first_lane, zero)


@Kernel
def backward(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute all gradients. The caller adds each task's gradients of keys, values, biases and v."""
    layout = CALL.layout(__name__)

    def backward(record: Any) -> None:
        call, lanes = carray(record, 1, layout)[0], lanes_of(zero)
        work = _workplace(call, zero)
        size, padded, stride = call.features, call.padded, call.value_stride
        group, pairs = call.group, call.group * SIDE
        scores, reciprocals, by_score, in_fast = work.scores, work.reciprocals, work.by_score, work.in_fast
        query, query_peak, query_sums, query_exact = work.query, work.query_peak, work.query_sums, work.query_exact
        key_sums, weight_sums = work.key_sums, work.weight_sums
        packed_weight, power, constant = 0, 1.0, zero
        s, limit, highest = full(call.scale, zero), full(call.limit * LOWER, zero), full(call.highest, zero)
        # Reciprocals of hidden pairs are not written but multiplied by 0: they must be finite.
        clear(reciprocals, pairs * padded, zero)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            task = turn_of(call, task)
            b, local_task = task // call.element_tasks, task % call.element_tasks
            first = local_task * call.task_rows
            last = min(first + call.task_rows, call.queries)
            raw_weight = pointer(weight_at(call, b, zero), zero)
            if weight_at(call, b, zero) != packed_weight:
                packed_weight = weight_at(call, b, zero)
                power, constant = pack_weight(call, packed_weight, work.weight, zero)
            factor = full(-2 * power, zero)
            key_owner = owner(call.key_step, call.key_table, b) * call.keys
            value_owner = owner(call.value_step, call.value_table, b) * call.keys
            key_grads = at(pointer(call.key_grad, zero), task * call.keys * padded)
            value_grads = at(pointer(call.value_grad, zero), task * call.keys * stride)
            clear(key_grads, call.keys * padded, zero)
            clear(value_grads, call.keys * stride, zero)
            clear(weight_sums, padded, zero)
            for i0 in range(first, last, call.rows):
                rows = min(call.rows, last - i0)
                clear(query_sums, call.rows * padded, zero)
                clear(query_exact, call.rows * padded, zero)
                reach = limits_of(call, b, i0, rows, work.limits)
                any_sweep = False
                for i in range(rows):
                    raw, row = raw_row(call, b, i0 + i, zero), b * call.queries + i0 + i
                    work.beyond[i] = pack_row(raw, size, at(query, i * padded), padded, s, highest, zero)
                    _write_known_row(call, work, row, i * SIDE, zero)
                    work.sweeps[i] = _needs_sweep(call, row, zero)
                    any_sweep = any_sweep or work.sweeps[i] != 0
                peak_of(raw_row(call, b, i0, zero), rows, size, padded, highest, query_peak, zero)
                any_small_feature, key_peak = False, query_peak
                if any_sweep:
                    _sweep_rows(
                        call, work, b, i0, rows, reach, constant, factor, key_owner, value_owner, s, limit, zero
                    )
                for j0 in range(first_of(call, b, i0, rows, PEAK_KEYS), reach, SIDE):
                    if j0 % PEAK_KEYS == 0:
                        tile = key_owner // call.keys * ((call.keys + PEAK_KEYS - 1) // PEAK_KEYS) + j0 // PEAK_KEYS
                        key_peak = at(pointer(call.key_peak, zero), tile * padded)
                        any_small_feature = any_small(query_peak, key_peak, padded, zero)
                    count = min(SIDE, call.keys - j0)
                    raw = raw_keys(call, b, j0, zero)
                    keys, k1, k2, k3 = four_rows(pointer(call.packed_key, zero), key_owner + j0, count, padded)
                    values, v1, v2, v3 = four_rows(pointer(call.value, zero), value_owner + j0, count, stride)
                    keys_beyond = _any_beyond(call, key_owner + j0, count, zero)
                    clear(key_sums, SIDE * padded, zero)
                    key_grad, value_grad = at(key_grads, j0 * padded), at(value_grads, j0 * stride)
                    for g in range(0, rows, group):
                        i, in_group = i0 + g, min(group, rows - g)
                        if not begin_pairs(call, b, i, in_group, j0, at(work.limits, g), constant, scores, zero):
                            continue
                        _keep_rows(
                            call, work, b, i, in_group, g, raw, count, keys, k1, k2, k3, keys_beyond, s, limit, zero
                        )
                        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
                        products(mean_grad, in_group, values, v1, v2, v3, stride, work.value_sums, zero)
                        _weigh_pairs(call, work, b, i, in_group, j0, g, factor, zero)
                        exact = call.exact != 0
                        add_values(work.weights, mean_grad, in_group, stride, count, value_grad, scores, exact, zero)
                        if call.bias_grad != 0:
                            for r in range(in_group):
                                bias_grad = bias_grad_of(call, b, i + r, local_task, zero)
                                for k in range(count):
                                    bias_grad[(j0 + k) * (call.bias_cols != 1)] += by_score[r * SIDE + k]
                        if call.key_bias_grad != 0:
                            for k in range(count):
                                acc = zero
                                for r in range(in_group):
                                    acc += by_score[r * SIDE + k]
                                pointer(call.key_bias_grad, zero)[task * call.keys + j0 + k] += acc
                        copy(by_score, in_fast, pairs, zero)
                        for k in range(in_group):
                            if work.exact_rows[k]:
                                for n in range(count):
                                    pair = k * SIDE + n
                                    if scores[pair] != -np.inf:
                                        add_exact(
                                            raw_row(call, b, i + k, zero), at(raw, n * size), raw_weight,
                                            by_score[pair], size, at(query_exact, (g + k) * padded),
                                            at(key_grad, n * padded), weight_sums, zero,
                                        )  # fmt: skip
                                for n in range(SIDE):
                                    in_fast[k * SIDE + n] = zero
                        grad_sum = load(in_fast, 0)
                        for pair in range(lanes, pairs, lanes):
                            grad_sum += load(in_fast, pair)
                        grad_sum = full(total(grad_sum), zero)
                        add_features(
                            at(query, g * padded), keys, k1, k2, k3, in_group, padded, pairs, reciprocals, in_fast,
                            grad_sum, query_peak, key_peak, call.scale, at(query_sums, g * padded), key_sums,
                            weight_sums, zero,
                        )  # fmt: skip
                        if any_small_feature:
                            add_small(
                                raw_row(call, b, i, zero), raw, query_peak, key_peak, in_group, count, size, padded,
                                in_fast, weight_sums, zero,
                            )  # fmt: skip
                    _flush_keys(call, keys, count, raw_weight, key_sums, key_grad, zero)
                for i in range(rows):
                    out = at(pointer(call.query_grad, zero), (b * call.queries + i0 + i) * size)
                    row, sums, added = at(query, i * padded), at(query_sums, i * padded), at(query_exact, i * padded)
                    for c in range(0, padded, lanes):
                        factors = full(4 * call.scale, zero) * load_part(raw_weight, c, size, zero)
                        store(sums, c, factors * load(row, c) * load(sums, c) + load(added, c))
                    copy(sums, out, size, zero)
            copy(weight_sums, at(pointer(call.weight_grad, zero), task * size), size, zero)

    return backward
