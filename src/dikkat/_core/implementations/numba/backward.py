"""The backward pass of attention with inner or distance scores, compiled by Numba.

A pair's share is s = e^(score − peak), and by_weight = ⟨mean_grad, v⟩ is the gradient of its weight. The incoming
gradients are divided by the rows' totals (`Upstream`), so the gradient of the score is by_score = g = s (by_weight −
drift). Values get Σ_i s mean_grad. With inner scores, queries get Σ_j g k and keys Σ_i g q.

`zero` carries the dtype. Of `inner`, `additive` and `distance`, the score that a kernel is compiled for is not None.
With `call.exact`, sums skip hidden pairs, whose operands may be infinite or NaN: 0 · NaN is NaN.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._core.compiled.profiles import profile_slope
from dikkat._core.compiled.scoring import GAUSSIAN
from dikkat._core.compiled.softmax import base_of
from dikkat._core.implementations.numba.packing import pack_rows, packed_key, packed_value, raw_keys
from dikkat._core.implementations.numba.record import CALL, GROUP, TILE_BACK
from dikkat._core.implementations.numba.scores import distance_scores, inner_product, inner_scores, squared_distance
from dikkat._core.implementations.numba.visibility import begin_scores, bias_grad_of, drop, first_of, limits_of, turn_of
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, clear, copy, load_part, store_four, workplace_of
from dikkat._engine.vectors import (
    Pointer,
    at,
    claim,
    full,
    gather,
    lanes_of,
    load,
    pointer,
    spread,
    store,
    total,
    where,
)


@inlined
def _distance_gradients(
    call: Call, rows: int, query: Pointer, key: Pointer, scores: Pointer, by_score: Pointer, width: int,
    query_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a block's 2 g slope (q − k) to the queries' sums over keys, and subtract it from the keys' sums over rows."""
    lanes, size = lanes_of(zero), call.features
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for i in range(rows):
        row, score = at(query, i * size), load(scores, i * width)
        by_square = load(by_score, i * width) * full(2, zero)
        square = nothing
        if call.profile != GAUSSIAN:
            square = squared_distance(row, key, size, zero)
        by_square = by_square * profile_slope(call.profile, square, zero)
        for c in range(size):
            share = by_square * (spread(row, c) - load(key, c * lanes))
            if call.exact:
                share = where(score == hidden, nothing, share)
            index = (c * GROUP + i) * lanes
            store(query_sums, index, load(query_sums, index) + share)
            store(key_grad, c * lanes, load(key_grad, c * lanes) - share)


@inlined
def _inner_gradients(
    call: Call, rows: int, query: Pointer, key: Pointer, scores: Pointer, by_score: Pointer, width: int,
    key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Multiply a block's score gradients g by the soft cap's slope; add Σ_i g q to the keys' gradients."""
    lanes, size = lanes_of(zero), call.features
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    if call.softcap != 0:
        for i in range(rows):
            capped = tanh(inner_product(at(query, i * size), key, size, zero) / full(call.softcap, zero), zero)
            store(by_score, i * width, load(by_score, i * width) * (full(1, zero) - capped * capped))
    for c in range(size):
        key_sum = load(key_grad, c * lanes)
        for i in range(rows):
            by_key = load(by_score, i * width) * spread(query, i * size + c)
            if call.exact:
                by_key = where(load(scores, i * width) == hidden, nothing, by_key)
            key_sum += by_key
        store(key_grad, c * lanes, key_sum)


@inlined
def _query_gradients(
    call: Call, rows: int, j0: int, count: int, key: Pointer, scores: Pointer, by_score: Pointer, width: int,
    sums: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a tile's Σ_j g k to the gradients of four queries; sums beyond `rows` are unused. Lanes are features."""
    lanes, size = lanes_of(zero), call.features
    stride = (size + lanes - 1) // lanes * lanes
    for c in range(0, size, lanes):
        if call.exact:
            for i in range(rows):
                for j in range(count):
                    if scores[i * width + j] != -np.inf:
                        share = spread(by_score, i * width + j) * load_part(at(key, j * size), c, size, zero)
                        store(sums, i * stride + c, load(sums, i * stride + c) + share)
            continue
        s0, s1 = load(sums, c), load(sums, stride + c)
        s2, s3 = load(sums, 2 * stride + c), load(sums, 3 * stride + c)
        # The keys of which a vector of features is inside the array. The other keys are loaded in part.
        whole_loads = min(count, ((call.keys - j0) * size - c - lanes) // size + 1)
        for j in range(whole_loads):
            k = load(key, j * size + c)
            s0 += spread(by_score, j) * k
            s1 += spread(by_score, width + j) * k
            s2 += spread(by_score, 2 * width + j) * k
            s3 += spread(by_score, 3 * width + j) * k
        for j in range(max(0, whole_loads), count):
            k = load_part(at(key, j * size), c, size, zero)
            s0 += spread(by_score, j) * k
            s1 += spread(by_score, width + j) * k
            s2 += spread(by_score, 2 * width + j) * k
            s3 += spread(by_score, 3 * width + j) * k
        store_four(sums, c, stride, s0, s1, s2, s3)


@inlined
def _by_weights(
    call: Call, rows: int, mean_grad: Pointer, value: Pointer, into: Pointer, width: int, zero: Any
) -> None:
    """Write the gradients of the weights, ⟨gradient of the row's mean, value⟩, for a block of values."""
    lanes, size = lanes_of(zero), call.values
    i = 0
    while i < rows:
        grad, acc0 = at(mean_grad, i * size), full(0, zero)
        if i + 4 > rows:
            for c in range(size):
                acc0 += spread(grad, c) * load(value, c * lanes)
            store(into, i * width, acc0)
            i += 1
            continue
        acc1, acc2, acc3 = acc0, acc0, acc0
        for c in range(size):
            v = load(value, c * lanes)
            acc0 += spread(grad, c) * v
            acc1 += spread(grad, c + size) * v
            acc2 += spread(grad, c + 2 * size) * v
            acc3 += spread(grad, c + 3 * size) * v
        store_four(into, i * width, width, acc0, acc1, acc2, acc3)
        i += 4


@inlined
def _value_gradients(
    call: Call, rows: int, mean_grad: Pointer, weights: Pointer, scores: Pointer, width: int, value_grad: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """Add Σ_i weight · gradient of the row's mean to the gradients of a block of values."""
    lanes, size, exact = lanes_of(zero), call.values, call.exact != 0
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for c in range(size):
        acc = load(value_grad, c * lanes)
        for i in range(rows):
            share = load(weights, i * width) * spread(mean_grad, i * size + c)
            if exact:
                share = where(load(scores, i * width) == hidden, nothing, share)
            acc += share
        store(value_grad, c * lanes, acc)


@inlined
def _by_scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, scores: Pointer, weights: Pointer,
    by_score: Pointer, factors: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Write a tile's shares after dropout to `weights`; replace the weights' gradients in `by_score` by the scores'."""
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    for i in range(rows):
        row = b * call.queries + i0 + i
        drift, base = spread(pointer(call.drift, zero), row), full(base_of(pointer(call.peak, zero)[row], zero), zero)
        if call.seeds != 0:
            drop(call, b, i0 + i, j0, blocks * lanes, factors)
        for block in range(blocks):
            index = i * width + block * lanes
            score, by_weight = load(scores, index), load(by_score, index)
            share = exp(score - base)
            dropped = share
            if call.seeds != 0:
                dropped, by_weight = share * load(factors, block * lanes), by_weight * load(factors, block * lanes)
            if call.weights_grad != 0:
                j = j0 + block * lanes
                weights_grad = at(pointer(call.weights_grad, zero), row * call.keys + j)
                by_weight = by_weight + gather(weights_grad, 0, 1, call.keys - j)
            store(weights, index, dropped)
            store(by_score, index, where(score == hidden, nothing, share * (by_weight - drift)))


@inlined
def _add_to_bias(call: Call, into: Pointer, j: int, by_score: Pointer, zero: Any) -> None:
    """Add a block's score gradients of a row to the gradient of its bias, whose single column all keys may share."""
    lanes = lanes_of(zero)
    if call.bias_cols != 1 and j + lanes <= call.keys:
        store(into, j, load(into, j) + load(by_score, 0))
    else:
        for k in range(min(lanes, call.keys - j)):
            into[(j + k) * (call.bias_cols != 1)] += by_score[k]


_workplace = workplace_of(CALL)


@Kernel
def backward(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute all gradients. The caller adds each task's gradients of keys and values (in blocks) and of biases."""
    layout = CALL.layout(__name__)

    def backward(record: Any) -> None:
        call, lanes = carray(record, 1, layout)[0], lanes_of(zero)
        size, width = call.features, TILE_BACK * lanes
        work = _workplace(call, zero)
        scores, weights, by_score, query_sums = work.scores, work.weights, work.by_score, work.query_sums
        query, limits = work.query, work.limits
        sums_stride = (size + lanes - 1) // lanes * lanes  # for inner products a vector holds features, not keys
        if distance is not None:
            sums_stride = size * lanes
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            task = turn_of(call, task)
            b, local_task = task // call.element_tasks, task % call.element_tasks
            key_grad = at(pointer(call.key_grad, zero), task * call.blocks * size * lanes)
            value_grad = at(pointer(call.value_grad, zero), task * call.blocks * call.values * lanes)
            key_bias_grad = at(pointer(call.key_bias_grad, zero), task * call.blocks * lanes)
            first = local_task * call.task_rows
            last = min(first + call.task_rows, call.queries)
            for i0 in range(first, last, call.rows):
                rows = min(call.rows, last - i0)
                pack_rows(call, b, i0, rows, query, zero, additive, distance)
                clear(query_sums, (rows + GROUP - 1) // GROUP * GROUP * sums_stride, zero)
                reach = limits_of(call, b, i0, rows, limits)
                for j0 in range(first_of(call, b, i0, rows, lanes), reach, width):
                    blocks = min(TILE_BACK, (reach - j0 + lanes - 1) // lanes)
                    key, value = packed_key(call, b, j0, zero), packed_value(call, b, j0, zero)
                    for g in range(0, rows, GROUP):
                        count, i = min(GROUP, rows - g), i0 + g
                        group_limit = 0
                        for k in range(g, g + count):
                            group_limit = max(group_limit, limits[k])
                        if group_limit <= j0:
                            continue
                        row, sums = at(query, g * size), at(query_sums, g * sums_stride)
                        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * call.values)
                        plain = begin_scores(call, b, i, count, j0, blocks, width, at(limits, g), scores, zero)
                        if distance is not None:
                            distance_scores(call, count, blocks, width, row, key, scores, plain, zero)
                        if inner is not None:
                            inner_scores(call, count, blocks, width, row, key, scores, plain, zero)
                        for block in range(blocks):
                            values = at(value, block * call.values * lanes)
                            _by_weights(call, count, mean_grad, values, at(by_score, block * lanes), width, zero)
                        _by_scores(
                            call, b, i, count, j0, blocks, width, scores, weights, by_score, work.drop_factors, zero
                        )
                        for block in range(blocks):
                            index, j = block * lanes, j0 + block * lanes
                            score, grad = at(scores, index), at(by_score, index)
                            keys, grads = at(key, index * size), at(key_grad, j * size)
                            _value_gradients(
                                call, count, mean_grad, at(weights, index), score, width,
                                at(value_grad, j * call.values), zero,
                            )  # fmt: skip
                            if call.bias_grad != 0:
                                for k in range(count):
                                    bias_grad = bias_grad_of(call, b, i + k, local_task, zero)
                                    _add_to_bias(call, bias_grad, j, at(grad, k * width), zero)
                            if call.key_bias_grad != 0:
                                acc = load(key_bias_grad, j)
                                for k in range(count):
                                    acc += load(grad, k * width)
                                store(key_bias_grad, j, acc)
                            if distance is not None:
                                _distance_gradients(call, count, row, keys, score, grad, width, sums, grads, zero)
                            if inner is not None:
                                _inner_gradients(call, count, row, keys, score, grad, width, grads, zero)
                        if inner is not None:
                            _query_gradients(
                                call, count, j0, min(blocks * lanes, call.keys - j0), raw_keys(call, b, j0, zero),
                                scores, by_score, width, sums, zero,
                            )  # fmt: skip
                for k in range(rows):
                    out = at(pointer(call.query_grad, zero), (b * call.queries + i0 + k) * size)
                    if inner is not None:
                        copy(at(query_sums, k * sums_stride), out, size, zero)
                    if distance is not None:
                        for c in range(size):
                            # The sums are in the order group, feature, row, lane.
                            out[c] = total(load(query_sums, ((k // GROUP * size + c) * GROUP + k % GROUP) * lanes))

    return backward
