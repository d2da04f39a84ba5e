"""The backward pass of additive attention, compiled by Numba.

The lanes of a vector are features here, so that sums over keys and over rows are vectors of features. v is the score's
weight vector, p = e^{2(q + k)} and a = s(1 + p), as in `scores`. With Q' = s e^{2q}, K = e^{2k} and g the gradient of a
score,

    ∂q = 4 s v Q' Σ_j g K / a²,   ∂k = 4 s v K Σ_i g Q' / a²,   ∂v = Σ g tanh = Σ g − 2 s Σ g / a.

The derivative is not computed as 1 − tanh², which loses all digits of large arguments. For small arguments the formula
of ∂v would lose digits, so tanh is computed directly.

A group of at most `call.group` rows is processed with four keys (`SIDE`). Their 1/a are computed once for the scores,
with one division for four, and stored. The scores give the g, and the sums use the stored 1/a. Pairs *out of range*,
whose e^{2x} are too large for this, are computed one by one.

The gradient of a score is weight · (gradient of the weight − offset), where a row's offset is
Σ weight · gradient − the gradient of its total. Work fields of pairs have an entry for each row and each of the four
keys; peaks, totals and offsets (`drifts`), too, so that a row has four *lanes*.

These scores differ from the forward's in the last bits, which e^(score − peak) magnifies if a score is large or few
keys have all the weight. Then a sweep over the keys first recomputes the rows' peaks and totals, so that weights add up
to 1. (They add up to less if the output has further keys, which are not in this call.)

Kernels are made for the type of `zero`.
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

# A row needs a sweep if its peak's magnitude is larger than LARGE, or its total, Σ e^(score − peak), smaller than FEW:
# then about as few keys have all the weight.
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
    call: Call, packed_keys: Pointer, count: int, v: Pointer, key_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add 4 s v K Σ_i g Q' / a² to the keys' gradients."""
    lanes, padded = lanes_of(zero), call.padded
    for c in range(0, padded, lanes):
        slope_factor = full(4 * call.scale, zero) * load_part(v, c, call.features, zero)
        for k in range(count):
            index = k * padded + c
            addend = slope_factor * load(packed_keys, index) * load(key_sums, index)
            store(key_grad, index, load(key_grad, index) + addend)


@inlined
def _compute_reciprocals(
    call: Call, work: Work, b: int, i0: int, rows: int, group_start: int, raw: Pointer, count: int, k0: Pointer,
    k1: Pointer, k2: Pointer, k3: Pointer, keys_out_of_range: bool, s: Vector, max_product: Vector, zero: Any,
) -> None:  # fmt: skip
    """Store the 1/a of some rows with four keys, and the sums Σ v/a, from which the scores follow.

    Rows out of range are computed from the keys as given, `raw`, and marked in `exact_rows`. `k0` ... `k3` are the
    packed keys, e^{2k}.
    """
    lanes, size, padded, pairs = lanes_of(zero), call.features, call.padded, call.group * SIDE
    for i in range(rows):
        reciprocals, sums = at(work.reciprocals, i * SIDE * lanes), at(work.score_sums, i * SIDE * lanes)
        exact = keys_out_of_range or work.beyond[group_start + i] != 0
        if not exact:
            query = at(work.query, (group_start + i) * padded)
            exact = not keep_row(
                query, k0, k1, k2, k3, work.weight, padded, pairs, s, max_product, reciprocals, sums, zero
            )
            if exact:
                clear_reciprocals(reciprocals, padded, pairs, zero)
        if exact:
            row, scores = raw_row(call, b, i0 + i, zero), at(work.scores, i * SIDE)
            keep_row_exact(row, raw, count, size, work.weight, scores, call.scale, sums, zero)
        work.exact_rows[i] = exact


@inlined
def _any_out_of_range(call: Call, first: int, count: int, zero: Any) -> bool:
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
def _score_pairs(call: Call, work: Work, pair: int, score_factor: Vector, zero: Any) -> tuple[Vector, Vector]:
    """Return the scores of a vector of pairs, −∞ if hidden, and the gradients of their attention weights."""
    lanes, hidden, initial = lanes_of(zero), full(-np.inf, zero), load(work.scores, pair)
    score = where(initial == hidden, initial, initial + score_factor * totals(work.score_sums, pair * lanes))
    weight_grad = totals(work.value_sums, pair * lanes)
    if call.seeds != 0:
        weight_grad = weight_grad * load(work.drop_factors, pair)
    if call.weights_grad != 0:
        weight_grad = weight_grad + load(work.upstream, pair)
    return score, weight_grad


@inlined
def _weigh_pairs(
    call: Call, work: Work, b: int, i0: int, rows: int, j0: int, group_start: int, score_factor: Vector, zero: Any
) -> None:
    """Write the pairs' scores, their shares e^(score − peak) after dropout to `weights`, and the scores' gradients."""
    pairs, hidden, nothing = call.group * SIDE, full(-np.inf, zero), full(0, zero)
    first_lane = group_start * SIDE
    peaks, offsets, total_ratios = at(work.peaks, first_lane), at(work.drifts, first_lane), at(work.factors, first_lane)
    _load_upstream(call, work, b, i0, rows, j0, zero)
    for pair in range(0, pairs, lanes_of(zero)):
        visible = load(work.scores, pair) != hidden
        score, weight_grad = _score_pairs(call, work, pair, score_factor, zero)
        share = exp(score - load(peaks, pair)) * load(total_ratios, pair)
        dropped = share
        if call.seeds != 0:
            dropped = share * load(work.drop_factors, pair)
        store(work.scores, pair, score)
        store(work.weights, pair, where(visible, dropped, nothing))
        store(work.by_score, pair, where(visible, share * (weight_grad - load(offsets, pair)), nothing))


@inlined
def _sweep_pairs(
    call: Call, work: Work, b: int, i0: int, rows: int, j0: int, group_start: int, score_factor: Vector, zero: Any
) -> None:
    first_lane = group_start * SIDE
    peaks, row_totals, offsets = at(work.peaks, first_lane), at(work.totals, first_lane), at(work.drifts, first_lane)
    _load_upstream(call, work, b, i0, rows, j0, zero)
    for pair in range(0, call.group * SIDE, lanes_of(zero)):
        score, weight_grad = _score_pairs(call, work, pair, score_factor, zero)
        _update(score, weight_grad, at(peaks, pair), at(row_totals, pair), at(offsets, pair), zero)


@inlined
def _update(score: Vector, weight_grad: Vector, peak: Pointer, row_total: Pointer, offset: Pointer, zero: Any) -> None:
    """Add a vector of pairs to each lane's total and Σ share · gradient, as in a running softmax."""
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    old_peak = load(peak, 0)
    new_peak = maximum(score, old_peak)
    base = where(new_peak == hidden, nothing, new_peak)
    fade, share = exp(old_peak - base), exp(score - base)
    store(peak, 0, new_peak)
    store(row_total, 0, load(row_total, 0) * fade + share)
    store(offset, 0, load(offset, 0) * fade + where(score == hidden, nothing, share * weight_grad))


@inlined
def _needs_sweep(call: Call, row: int, zero: Any) -> bool:
    peak, row_total = pointer(call.peak, zero)[row], pointer(call.total, zero)[row]
    return row_total > 0 and (row_total < FEW or abs(peak) > LARGE)


@inlined
def _write_known_row(call: Call, work: Work, row: int, first_lane: int, zero: Any) -> None:
    """Write the forward pass's peak and offset of a row to each of its four lanes."""
    peak, offset = pointer(call.peak, zero)[row], pointer(call.drift, zero)[row]
    for k in range(first_lane, first_lane + SIDE):
        work.peaks[k], work.drifts[k], work.factors[k] = (peak if peak > -np.inf else zero), offset, 1.0


@inlined
def _write_swept_row(call: Call, work: Work, row: int, first_lane: int, zero: Any) -> None:
    """Write a row's peak and offset of the sweep, and the ratio of the forward pass's total to the sweep's."""
    peaks, row_totals, offsets = at(work.peaks, first_lane), at(work.totals, first_lane), at(work.drifts, first_lane)
    peak = peaks[0]
    for k in range(1, SIDE):
        peak = max(peak, peaks[k])
    base = peak if peak > -np.inf else zero
    row_total, offset = zero, zero
    for k in range(SIDE):
        fade = math.exp(peaks[k] - base)
        row_total += row_totals[k] * fade
        offset += offsets[k] * fade
    inverse = zero if row_total == 0 else 1 / row_total
    total_ratio = pointer(call.total, zero)[row] * inverse
    offset = offset * inverse - pointer(call.total_grad, zero)[row]
    for k in range(SIDE):
        peaks[k], work.factors[first_lane + k], offsets[k] = base, total_ratio, offset


@inlined
def _sweep_rows(
    call: Call, work: Work, b: int, i0: int, rows: int, key_end: int, v_sum: float, score_factor: Vector,
    key_owner: int, value_owner: int, s: Vector, max_product: Vector, zero: Any,
) -> None:  # fmt: skip
    """Sweep over the keys to recompute the peaks, offsets and ratios of totals of the rows marked in `sweeps`."""
    group, stride, padded = call.group, call.value_stride, call.padded
    for group_start in range(0, rows, group):
        i, group_rows, any_sweep = i0 + group_start, min(group, rows - group_start), False
        for k in range(group_start, group_start + group_rows):
            any_sweep = any_sweep or work.sweeps[k] != 0
        if not any_sweep:
            continue
        clear(at(work.totals, group_start * SIDE), group * SIDE, zero)
        clear(at(work.drifts, group_start * SIDE), group * SIDE, zero)
        for pair in range(group_start * SIDE, (group_start + group) * SIDE):
            work.peaks[pair] = -np.inf
        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
        for j0 in range(first_of(call, b, i, group_rows, SIDE), key_end, SIDE):
            if not begin_pairs(call, b, i, group_rows, j0, at(work.limits, group_start), v_sum, work.scores, zero):
                continue
            count, raw = min(SIDE, call.keys - j0), raw_keys(call, b, j0, zero)
            k0, k1, k2, k3 = four_rows(pointer(call.packed_key, zero), key_owner + j0, count, padded)
            keys_out_of_range = _any_out_of_range(call, key_owner + j0, count, zero)
            _compute_reciprocals(
                call, work, b, i, group_rows, group_start, raw, count, k0, k1, k2, k3, keys_out_of_range, s,
                max_product, zero,
            )  # fmt: skip
            v0, v1, v2, v3 = four_rows(pointer(call.value, zero), value_owner + j0, count, stride)
            products(mean_grad, group_rows, v0, v1, v2, v3, stride, work.value_sums, zero)
            _sweep_pairs(call, work, b, i, group_rows, j0, group_start, score_factor, zero)
        for k in range(group_start, group_start + group_rows):
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
        scores, reciprocals, score_grads, fast_grads = work.scores, work.reciprocals, work.by_score, work.in_fast
        query, query_peak, query_sums, query_exact = work.query, work.query_peak, work.query_sums, work.query_exact
        key_sums, weight_sums = work.key_sums, work.weight_sums
        packed_weight, v_unit, v_sum = 0, 1.0, zero
        s, max_product, highest = full(call.scale, zero), full(call.limit * LOWER, zero), full(call.highest, zero)
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
            v = pointer(weight_at(call, b, zero), zero)
            if weight_at(call, b, zero) != packed_weight:
                packed_weight = weight_at(call, b, zero)
                v_unit, v_sum = pack_weight(call, packed_weight, work.weight, zero)
            score_factor = full(-2 * v_unit, zero)
            key_owner = owner(call.key_step, call.key_table, b) * call.keys
            value_owner = owner(call.value_step, call.value_table, b) * call.keys
            key_grads = at(pointer(call.key_grad, zero), task * call.keys * padded)
            value_grads = at(pointer(call.value_grad, zero), task * call.keys * stride)
            clear(key_grads, call.keys * padded, zero)
            clear(value_grads, call.keys * stride, zero)
            clear(weight_sums, padded, zero)
            for i0 in range(first, last, call.rows):
                # --- pack a block of queries
                rows = min(call.rows, last - i0)
                clear(query_sums, call.rows * padded, zero)
                clear(query_exact, call.rows * padded, zero)
                key_end = limits_of(call, b, i0, rows, work.limits)
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
                        call, work, b, i0, rows, key_end, v_sum, score_factor, key_owner, value_owner, s, max_product,
                        zero,
                    )  # fmt: skip
                for j0 in range(first_of(call, b, i0, rows, PEAK_KEYS), key_end, SIDE):
                    # --- find four keys
                    if j0 % PEAK_KEYS == 0:
                        tile = key_owner // call.keys * ((call.keys + PEAK_KEYS - 1) // PEAK_KEYS) + j0 // PEAK_KEYS
                        key_peak = at(pointer(call.key_peak, zero), tile * padded)
                        any_small_feature = any_small(query_peak, key_peak, padded, zero)
                    count = min(SIDE, call.keys - j0)
                    raw = raw_keys(call, b, j0, zero)
                    k0, k1, k2, k3 = four_rows(pointer(call.packed_key, zero), key_owner + j0, count, padded)
                    v0, v1, v2, v3 = four_rows(pointer(call.value, zero), value_owner + j0, count, stride)
                    keys_out_of_range = _any_out_of_range(call, key_owner + j0, count, zero)
                    clear(key_sums, SIDE * padded, zero)
                    key_grad, value_grad = at(key_grads, j0 * padded), at(value_grads, j0 * stride)
                    for group_start in range(0, rows, group):
                        # --- compute the scores of a group of rows and their gradients
                        i, in_group = i0 + group_start, min(group, rows - group_start)
                        if not begin_pairs(call, b, i, in_group, j0, at(work.limits, group_start), v_sum, scores, zero):
                            continue
                        _compute_reciprocals(
                            call, work, b, i, in_group, group_start, raw, count, k0, k1, k2, k3, keys_out_of_range, s,
                            max_product, zero,
                        )  # fmt: skip
                        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
                        products(mean_grad, in_group, v0, v1, v2, v3, stride, work.value_sums, zero)
                        _weigh_pairs(call, work, b, i, in_group, j0, group_start, score_factor, zero)
                        exact = call.exact != 0
                        add_values(work.weights, mean_grad, in_group, stride, count, value_grad, scores, exact, zero)
                        if call.bias_grad != 0:
                            for r in range(in_group):
                                bias_grad = bias_grad_of(call, b, i + r, local_task, zero)
                                for k in range(count):  # a bias of one column is shared by all keys
                                    bias_grad[(j0 + k) * (call.bias_cols != 1)] += score_grads[r * SIDE + k]
                        if call.key_bias_grad != 0:
                            for k in range(count):
                                acc = zero
                                for r in range(in_group):
                                    acc += score_grads[r * SIDE + k]
                                pointer(call.key_bias_grad, zero)[task * call.keys + j0 + k] += acc
                        # --- add the gradients of queries, keys and v: pairs out of range one by one, then the others
                        copy(score_grads, fast_grads, pairs, zero)
                        for k in range(in_group):
                            if work.exact_rows[k]:
                                for n in range(count):
                                    pair = k * SIDE + n
                                    if scores[pair] != -np.inf:
                                        add_exact(
                                            raw_row(call, b, i + k, zero), at(raw, n * size), v,
                                            score_grads[pair], size, at(query_exact, (group_start + k) * padded),
                                            at(key_grad, n * padded), weight_sums, zero,
                                        )  # fmt: skip
                                for n in range(SIDE):
                                    fast_grads[k * SIDE + n] = zero
                        grad_sum = load(fast_grads, 0)
                        for pair in range(lanes, pairs, lanes):
                            grad_sum += load(fast_grads, pair)
                        grad_sum = full(total(grad_sum), zero)
                        add_features(
                            at(query, group_start * padded), k0, k1, k2, k3, in_group, padded, pairs, reciprocals,
                            fast_grads, grad_sum, query_peak, key_peak, call.scale,
                            at(query_sums, group_start * padded), key_sums, weight_sums, zero,
                        )  # fmt: skip
                        if any_small_feature:
                            add_small(
                                raw_row(call, b, i, zero), raw, query_peak, key_peak, in_group, count, size, padded,
                                fast_grads, weight_sums, zero,
                            )  # fmt: skip
                    _flush_keys(call, k0, count, v, key_sums, key_grad, zero)
                # --- write the gradients of the block of queries
                for i in range(rows):
                    out = at(pointer(call.query_grad, zero), (b * call.queries + i0 + i) * size)
                    row, sums, added = at(query, i * padded), at(query_sums, i * padded), at(query_exact, i * padded)
                    for c in range(0, padded, lanes):
                        slope_factor = full(4 * call.scale, zero) * load_part(v, c, size, zero)
                        store(sums, c, slope_factor * load(row, c) * load(sums, c) + load(added, c))
                    copy(sums, out, size, zero)
            copy(weight_sums, at(pointer(call.weight_grad, zero), task * size), size, zero)

    return backward
