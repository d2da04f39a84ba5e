"""The forward pass of attention in tiles, for the three pair functions, compiled by Numba.

The lanes of a vector are keys. Keys and values are packed into blocks of as many keys as a vector has lanes, feature by
feature: `key[block][feature][lane]`. A task is some rows of one batch element, with all tiles of keys that they may
see. Threads claim tasks from a counter.

Additive scores come from Σ v tanh(q + k) = Σ v − 2 Σ v r with r = 1/(1 + p), p = e^{2q} e^{2k}. Eight features share
one division: with a_c = s(1 + p_c),

    Σ_c v_c / a_c = numerator / denominator,  u/a + v/b = (u b + v a)/(a b).

s is small, so that the product of eight a's can use all exponents, not only the upper half. The largest denominator
shows afterwards whether a product left the range; such scores are recomputed with plain exponentials. Exponentials of
features beyond ±`highest` are NaN, because they could pass this test by mistake.

Two of the arguments `inner`, `additive` and `distance` are None, and Numba does not compile their branches.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._core.compiled.softmax import base_of, by_total, normalise, rescale
from dikkat._core.implementations.numba.packing import pack_rows, pack_weight, packed_value, weight_at
from dikkat._core.implementations.numba.record import CALL, TILE
from dikkat._core.implementations.numba.scores import tile_scores
from dikkat._core.implementations.numba.visibility import drop, first_of, limits_of, owner
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, clear, copy, workplace_of
from dikkat._engine.vectors import Pointer, at, claim, full, lanes_of, load, pointer, spread, store, total, where


@inlined
def _add_weighted_narrow(
    scores: Pointer, weights: Pointer, value: Pointer, blocks: int, size: int, exact: bool, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add weights · values of few features to a row's mean, with keys as lanes."""
    lanes = lanes_of(zero)
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for c in range(size):
        acc = load(mean, c * lanes)
        for block in range(blocks):
            term = load(weights, block * lanes) * load(value, (block * size + c) * lanes)
            if exact:
                term = where(load(scores, block * lanes) == hidden, nothing, term)
            acc += term
        store(mean, c * lanes, acc)


@inlined
def _add_weighted_visible(
    scores: Pointer, weights: Pointer, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add weights · values of only the visible keys to a row's mean, since 0 · NaN is NaN."""
    for j in range(keys):
        if scores[j] != -np.inf:
            weight = spread(weights, j)
            for c in range(0, stride, lanes_of(zero)):
                store(mean, c, load(mean, c) + weight * load(value, j * stride + c))


@inlined
def _add_weighted_row(weights: Pointer, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any) -> None:
    """Add weights · values of many features to a row's mean, with features as lanes."""
    lanes = lanes_of(zero)
    for c in range(0, stride, lanes):
        acc = load(mean, c)
        for j in range(keys):
            acc += spread(weights, j) * load(value, j * stride + c)
        store(mean, c, acc)


@inlined
def _add_weighted_rows(
    weights: Pointer, width: int, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add weights · values to the means of four rows.

    Two vectors of features are processed at a time, so that each load serves several products.
    """
    lanes = lanes_of(zero)
    w0, w1, w2, w3 = weights, at(weights, width), at(weights, 2 * width), at(weights, 3 * width)
    m0, m1, m2, m3 = mean, at(mean, stride), at(mean, 2 * stride), at(mean, 3 * stride)
    for c in range(0, stride, 2 * lanes):
        d = min(c + lanes, stride - lanes)  # repeats the last vector of an odd number
        a0, a1, a2, a3 = load(m0, c), load(m1, c), load(m2, c), load(m3, c)
        b0, b1, b2, b3 = load(m0, d), load(m1, d), load(m2, d), load(m3, d)
        for j in range(keys):
            v, w = load(value, j * stride + c), load(value, j * stride + d)
            a0 += spread(w0, j) * v
            b0 += spread(w0, j) * w
            a1 += spread(w1, j) * v
            b1 += spread(w1, j) * w
            a2 += spread(w2, j) * v
            b2 += spread(w2, j) * w
            a3 += spread(w3, j) * v
            b3 += spread(w3, j) * w
        store(m0, c, a0)
        store(m0, d, b0)
        store(m1, c, a1)
        store(m1, d, b1)
        store(m2, c, a2)
        store(m2, d, b2)
        store(m3, c, a3)
        store(m3, d, b3)


@inlined
def average(
    call: Call, b: int, rows: int, j0: int, blocks: int, width: int, scores: Pointer, weights: Pointer,
    mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a tile's weighted values to the means of some rows."""
    stride = call.value_stride
    if call.narrow:
        value = packed_value(call, b, j0, zero)
        for i in range(rows):
            out = at(mean, i * stride)
            _add_weighted_narrow(
                at(scores, i * width), at(weights, i * width), value, blocks, call.values, call.exact != 0, out, zero
            )
        return
    keys = min(blocks * lanes_of(zero), call.keys - j0)
    value = at(pointer(call.value, zero), (owner(call.value_step, call.value_table, b) * call.keys + j0) * stride)
    i = 0
    while i < rows:
        out = at(mean, i * stride)
        if call.exact:
            _add_weighted_visible(at(scores, i * width), at(weights, i * width), value, keys, stride, out, zero)
            i += 1
        elif i + 4 <= rows:
            _add_weighted_rows(at(weights, i * width), width, value, keys, stride, out, zero)
            i += 4
        else:
            _add_weighted_row(at(weights, i * width), value, keys, stride, out, zero)
            i += 1


@inlined
def _drop_tile(
    call: Call, b: int, i0: int, rows: int, j0: int, count: int, width: int, weights: Pointer, factors: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    for i in range(rows):
        drop(call, b, i0 + i, j0, count, factors)
        for index in range(0, count, lanes_of(zero)):
            store(weights, i * width + index, load(weights, i * width + index) * load(factors, index))


_workplace = workplace_of(CALL)


@Kernel
def forward(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute means, peaks and totals; and the weights if requested."""
    layout = CALL.layout(__name__)

    def forward(record: Any) -> None:
        call, lanes = carray(record, 1, layout)[0], lanes_of(zero)
        width, work = TILE * lanes, _workplace(call, zero)
        scores, weights, mean, peaks, sums = work.scores, work.weights, work.mean, work.peaks, work.sums
        packed_weight, power, constant = 0, 1.0, zero
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b, i0 = task // call.element_tasks, (task % call.element_tasks) * call.rows
            rows = min(call.rows, call.queries - i0)
            if additive is not None and weight_at(call, b, zero) != packed_weight:
                packed_weight = weight_at(call, b, zero)
                power, constant = pack_weight(call, packed_weight, work.weight, zero)
            pack_rows(call, b, i0, rows, work.query, zero, additive, distance)
            for i in range(rows):
                peaks[i], sums[i] = -np.inf, zero
            clear(mean, rows * call.value_stride, zero)
            reach = limits_of(call, b, i0, rows, work.limits)
            for j0 in range(first_of(call, b, i0, rows, lanes), reach, width):
                blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                tile_scores(
                    call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance
                )
                for i in range(rows):
                    old_peak = peaks[i]
                    peaks[i], added = normalise(at(scores, i * width), at(weights, i * width), blocks, old_peak, zero)
                    if peaks[i] > old_peak > -np.inf:
                        shrink = math.exp(old_peak - peaks[i])
                        sums[i] *= shrink
                        rescale(at(mean, i * call.value_stride), call.value_stride, shrink, zero)
                    sums[i] += added
                if call.seeds != 0:
                    _drop_tile(call, b, i0, rows, j0, blocks * lanes, width, weights, work.drop_factors, zero)
                average(call, b, rows, j0, blocks, width, scores, weights, mean, zero)
            for i in range(rows):
                finish_row(call, b * call.queries + i0 + i, at(mean, i * call.value_stride), peaks[i], sums[i], zero)
            if call.weights == 0:
                continue
            for j0 in range(first_of(call, b, i0, rows, lanes), reach, width):
                blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                tile_scores(
                    call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance
                )
                for i in range(rows):
                    row = b * call.queries + i0 + i
                    _write_weights(call, row, j0, blocks, peaks[i], sums[i], at(scores, i * width), zero)

    return forward


@inlined
def finish_row(call: Call, row: int, mean: Pointer, peak: float, row_total: float, zero: Any) -> None:
    """Write a row's mean, peak and total: 0, −∞ and 0 if no key is visible."""
    lanes = lanes_of(zero)
    out = at(pointer(call.mean, zero), row * call.values)
    inverse_total = by_total(row_total, zero)
    if call.narrow:
        for c in range(call.values):
            out[c] = inverse_total * total(load(mean, c * lanes))
    else:
        rescale(mean, call.value_stride, inverse_total, zero)
        copy(mean, out, call.values, zero)
    pointer(call.peak, zero)[row], pointer(call.total, zero)[row] = peak, row_total


@inlined
def _write_weights(
    call: Call, row: int, j0: int, blocks: int, peak: float, row_total: float, scores: Pointer, zero: Any
) -> None:
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    base, inverse_total = full(base_of(peak, zero), zero), full(by_total(row_total, zero), zero)
    out = at(pointer(call.weights, zero), row * call.keys + j0)
    for block in range(blocks):
        score = load(scores, block * lanes)
        # A hidden key has weight 0, also in a row of NaN.
        weight = where(score == hidden, nothing, exp(score - base) * inverse_total)
        if j0 + (block + 1) * lanes <= call.keys:
            store(out, block * lanes, weight)
        else:
            store(scores, block * lanes, weight)
            for j in range(block * lanes, call.keys - j0):
                out[j] = scores[j]
