"""Attention for few queries, from operands that are not packed, compiled by Numba.

Packing keys costs as much as comparing each key with one or two queries. So here the lanes of a vector are features,
and nothing beyond a row's length is read. A task of the forward is a row. A task of the backward is a batch element,
so that no other task writes to its keys' gradients.

Four additive keys share a division: Σ v tanh x = Σ v − 2 Σ v/a with a = 1 + e^{2x}, and four 1/a come from the
reciprocal of their product. The product is finite up to 2x = `limit`; beyond, 1/a is less than half a unit in
the last place of 1. The backward needs all digits of 1/a, and divides for each.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._core.compiled.softmax import base_of, by_total, normalise
from dikkat._core.implementations.numba.packing import clip
from dikkat._core.implementations.numba.record import FEW
from dikkat._core.implementations.numba.visibility import limit_of
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import SMALL_TANH, exp, small_tanh
from dikkat._engine.memory import Call, Work, clear, load_part, store_four, workplace_of
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    full,
    fused,
    gather,
    lane_numbers,
    lanes_of,
    load,
    magnitude,
    pointer,
    spread,
    store,
    total,
    totals,
    where,
)


@inlined
def _write(row: Pointer, c: int, size: int, vector: Vector, spare: Pointer, zero: Any) -> None:
    """Write a vector of a row's features from c on, without lanes beyond the last feature."""
    if c + lanes_of(zero) <= size:
        store(row, c, vector)
    else:
        store(spare, 0, vector)
        for k in range(size - c):
            row[c + k] = spare[k]


@inlined
def _begin_row(call: Call, b: int, i: int, work: Work, zero: Any, distance: Any) -> None:
    """Copy a query row to the work space, scaled, and clipped for distances."""
    row = at(pointer(call.query, zero), (b * call.queries + i) * call.features)
    for c in range(0, call.padded, lanes_of(zero)):
        x = load_part(row, c, call.features, zero)
        if distance is not None:
            x = clip(x, full(call.highest, zero), zero)
        store(work.query, c, x * full(call.scale, zero))


@inlined
def _begin_weight(call: Call, work: Work, zero: Any) -> float:
    """Copy the additive score's weight vector v to the work space; return Σ v."""
    acc = full(0, zero)
    for c in range(0, call.padded, lanes_of(zero)):
        v = load_part(pointer(call.weight, zero), c, call.features, zero)
        store(work.weight, c, v)
        acc += v
    return total(acc)


@inlined
def _divisor(query: Pointer, key: Pointer, c: int, size: int, limit: Vector, zero: Any) -> Vector:
    """Return a = 1 + e^{min(2x, limit)} with x = q + k, for a vector of features from c on; NaN stays NaN."""
    x = load(query, c) + load_part(key, c, size, zero)  # before doubling: 2q and 2k can overflow if q + k does not
    x += x
    return full(1, zero) + exp(where(limit < x, limit, x))


@inlined
def _additive_keys(
    query: Pointer, weight: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, size: int, padded: int,
    limit: float, sums: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Store four vectors whose lanes sum to Σ v/a of four keys."""
    lanes, limits, acc0 = lanes_of(zero), full(limit, zero), full(0, zero)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for c in range(0, padded, lanes):
        a0, a1 = _divisor(query, k0, c, size, limits, zero), _divisor(query, k1, c, size, limits, zero)
        a2, a3 = _divisor(query, k2, c, size, limits, zero), _divisor(query, k3, c, size, limits, zero)
        d01, d23 = a0 * a1, a2 * a3
        quotient = load(weight, c) / (d01 * d23)
        r01, r23 = quotient * d23, quotient * d01
        acc0 += r01 * a1
        acc1 += r01 * a0
        acc2 += r23 * a3
        acc3 += r23 * a2
    store_four(sums, 0, lanes, acc0, acc1, acc2, acc3)


@inlined
def _other_keys(
    call: Call, query: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, sums: Pointer, zero: Any,
    distance: Any,
) -> None:  # fmt: skip
    """Store four vectors whose lanes sum to ‖q − k‖², or to ⟨q, k⟩, of four keys."""
    lanes, size, acc0 = lanes_of(zero), call.features, full(0, zero)
    acc1, acc2, acc3, highest = acc0, acc0, acc0, full(call.highest, zero)
    for c in range(0, size, lanes):
        q = load(query, c)
        x0, x1 = load_part(k0, c, size, zero), load_part(k1, c, size, zero)
        x2, x3 = load_part(k2, c, size, zero), load_part(k3, c, size, zero)
        if distance is None:
            acc0, acc1, acc2, acc3 = fused(q, x0, acc0), fused(q, x1, acc1), fused(q, x2, acc2), fused(q, x3, acc3)
        else:
            x0, x1, x2, x3 = (
                q - clip(x0, highest, zero), q - clip(x1, highest, zero),
                q - clip(x2, highest, zero), q - clip(x3, highest, zero),
            )  # fmt: skip
            acc0, acc1, acc2, acc3 = fused(x0, x0, acc0), fused(x1, x1, acc1), fused(x2, x2, acc2), fused(x3, x3, acc3)
    store_four(sums, 0, lanes, acc0, acc1, acc2, acc3)


@inlined
def _scores(
    call: Call, b: int, limit: int, work: Work, constant: float, zero: Any, additive: Any, distance: Any
) -> None:
    """Write a row's scores with the keys below its limit, and −∞ to the end of the last vector."""
    lanes, size, sums = lanes_of(zero), call.features, work.sums
    keys = at(pointer(call.key, zero), b * call.keys * size)
    for j0 in range(0, limit, lanes):
        count = min(lanes, limit - j0)
        for k in range(0, count, 4):
            # Indices beyond the last key repeat it.
            n1, n2, n3 = min(k + 1, count - 1), min(k + 2, count - 1), min(k + 3, count - 1)
            k0, k1 = at(keys, (j0 + k) * size), at(keys, (j0 + n1) * size)
            k2, k3 = at(keys, (j0 + n2) * size), at(keys, (j0 + n3) * size)
            into = at(sums, k * lanes)
            if additive is not None:
                _additive_keys(work.query, work.weight, k0, k1, k2, k3, size, call.padded, call.limit, into, zero)
            else:
                _other_keys(call, work.query, k0, k1, k2, k3, into, zero, distance)
        score = totals(sums, 0)
        if additive is not None:
            score = full(constant, zero) - (score + score)
        if distance is not None:
            score = full(-0.5, zero) * score
        inside = lane_numbers(zero) < full(count, zero)
        store(work.scores, j0, where(inside, score, full(-np.inf, zero)))


@inlined
def _average(call: Call, b: int, limit: int, inverse_total: float, mean: Pointer, work: Work, zero: Any) -> None:
    """Write a row's mean, Σ share · value / total."""
    lanes, size = lanes_of(zero), call.values
    values = at(pointer(call.value, zero), b * call.keys * size)
    shrunk, c = full(inverse_total, zero), 0
    while c + 4 * lanes <= size:
        acc0 = full(0, zero)
        acc1, acc2, acc3 = acc0, acc0, acc0
        for j in range(limit):
            share, index = spread(work.shares, j), j * size + c
            acc0 = fused(share, load(values, index), acc0)
            acc1 = fused(share, load(values, index + lanes), acc1)
            acc2 = fused(share, load(values, index + 2 * lanes), acc2)
            acc3 = fused(share, load(values, index + 3 * lanes), acc3)
        store_four(mean, c, lanes, acc0 * shrunk, acc1 * shrunk, acc2 * shrunk, acc3 * shrunk)
        c += 4 * lanes
    while c < size:
        acc0 = full(0, zero)
        for j in range(limit):
            acc0 = fused(spread(work.shares, j), load_part(at(values, j * size), c, size, zero), acc0)
        _write(mean, c, size, acc0 * shrunk, work.spare, zero)
        c += lanes


_workplace = workplace_of(FEW)


@Kernel
def forward(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute means; peaks, totals and weights if requested."""
    layout = FEW.layout(__name__)

    def forward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, work, constant, weight_loaded = lanes_of(zero), _workplace(call, zero), zero, False
        while True:
            row = claim(call.counters)
            if row >= call.tasks:
                return
            b, i = row // call.queries, row % call.queries
            if additive is not None and not weight_loaded:
                constant, weight_loaded = _begin_weight(call, work, zero), True
            limit = limit_of(call, b, i)
            _begin_row(call, b, i, work, zero, distance)
            _scores(call, b, limit, work, constant, zero, additive, distance)
            blocks = (limit + lanes - 1) // lanes
            peak, row_total = -np.inf, zero
            if blocks > 0:
                peak, row_total = normalise(work.scores, work.shares, blocks, peak, zero)
            inverse_total = by_total(row_total, zero)
            if call.peak != 0:
                pointer(call.peak, zero)[row], pointer(call.total, zero)[row] = peak, row_total
            _average(call, b, limit, inverse_total, at(pointer(call.mean, zero), row * call.values), work, zero)
            if call.weights != 0:
                out = at(pointer(call.weights, zero), row * call.keys)
                for j in range(limit):
                    out[j] = work.shares[j] * inverse_total
                for j in range(limit, call.keys):
                    out[j] = zero

    return forward


@inlined
def _product(x: Pointer, y: Pointer, size: int, zero: Any) -> Vector:
    """Return a vector whose lanes sum to an inner product."""
    acc = full(0, zero)
    for c in range(0, size, lanes_of(zero)):
        acc = fused(load_part(x, c, size, zero), load_part(y, c, size, zero), acc)
    return acc


@inlined
def _score_gradients(call: Call, b: int, row: int, limit: int, inverse_total: float, work: Work, zero: Any) -> None:
    """Write a row's weights to `work.shares`, and the scores' gradients weight · (gradient − Σ weight · gradient)."""
    lanes, size = lanes_of(zero), call.values
    values = at(pointer(call.value, zero), b * call.keys * size)
    mean_grad = at(pointer(call.mean_grad, zero), row * size)
    weights_grad = at(pointer(call.weights_grad, zero), row * call.keys)
    base, shrunk = full(base_of(pointer(call.peak, zero)[row], zero), zero), full(inverse_total, zero)
    drifts = full(0, zero)
    for j0 in range(0, limit, lanes):
        count = min(lanes, limit - j0)
        for k in range(count):
            store(work.sums, k * lanes, _product(mean_grad, at(values, (j0 + k) * size), size, zero))
        grad = totals(work.sums, 0)
        weight = exp(load(work.scores, j0) - base) * shrunk
        if call.weights_grad != 0:
            inside = lane_numbers(zero) < full(count, zero)
            incoming = where(inside, gather(at(weights_grad, j0), 0, 1, count), full(0, zero))
            grad += incoming
            drifts += incoming * weight
        store(work.shares, j0, weight)
        store(work.by_score, j0, grad)
    mean = at(pointer(call.mean, zero), row * size)
    drift = total(drifts) + total(_product(mean_grad, mean, size, zero))
    drift -= pointer(call.total_grad, zero)[row] / inverse_total
    for j0 in range(0, limit, lanes):
        store(work.by_score, j0, load(work.shares, j0) * (load(work.by_score, j0) - full(drift, zero)))


@inlined
def _pair_gradients(
    call: Call, work: Work, key: Pointer, key_grad: Pointer, by_score: Vector, alone: bool, zero: Any,
    additive: Any, distance: Any,
) -> None:  # fmt: skip
    """Add a pair's terms to the gradients of the key, the row and v."""
    size, nothing, one = call.features, full(0, zero), full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        q, k = load(work.query, c), load_part(key, c, size, zero)
        if additive is not None:
            x = q + k
            x += x
            away = magnitude(x)
            e = exp(nothing - away)
            r = one / (one + e)
            key_term = by_score * load(work.weight, c) * full(4, zero) * e * r * r
            large = (one - e) * r
            large = where(x < nothing, nothing - large, large)
            tanh = where(away < full(2 * SMALL_TANH, zero), small_tanh(full(0.5, zero) * x), large)
            store(work.weight_sums, c, fused(by_score, tanh, load(work.weight_sums, c)))
            query_term = key_term
        elif distance is not None:
            key_term = by_score * (q - clip(k, full(call.highest, zero), zero))
            query_term = nothing - key_term
        else:
            key_term, query_term = by_score * q, by_score * k
        store(work.query_sums, c, load(work.query_sums, c) + query_term)
        if not alone:
            key_term += load_part(key_grad, c, size, zero)
        _write(key_grad, c, size, key_term, work.spare, zero)


@inlined
def _value_gradient(
    call: Call, work: Work, mean_grad: Pointer, value_grad: Pointer, weight: Vector, alone: bool, zero: Any
) -> None:
    size = call.values
    for c in range(0, size, lanes_of(zero)):
        value_term = weight * load_part(mean_grad, c, size, zero)
        if not alone:
            value_term += load_part(value_grad, c, size, zero)
        _write(value_grad, c, size, value_term, work.spare, zero)


@Kernel
def backward(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute all gradients. The caller adds each task's gradient of v."""
    layout = FEW.layout(__name__)

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, values, work, constant, weight_loaded = call.features, call.values, _workplace(call, zero), zero, False
        alone = call.queries == 1
        while True:
            b = claim(call.counters)
            if b >= call.tasks:
                return
            if additive is not None:
                if not weight_loaded:
                    constant, weight_loaded = _begin_weight(call, work, zero), True
                clear(work.weight_sums, call.padded, zero)
            key = at(pointer(call.key, zero), b * call.keys * size)
            key_grad = at(pointer(call.key_grad, zero), b * call.keys * size)
            value_grad = at(pointer(call.value_grad, zero), b * call.keys * values)
            first = limit_of(call, b, 0) if alone else 0  # a single query writes keys below its limit, without adding
            for k in range(first * size, call.keys * size):
                key_grad[k] = zero
            for k in range(first * values, call.keys * values):
                value_grad[k] = zero
            for i in range(call.queries):
                row, limit = b * call.queries + i, limit_of(call, b, i)
                _begin_row(call, b, i, work, zero, distance)
                _scores(call, b, limit, work, constant, zero, additive, distance)
                inverse_total = by_total(pointer(call.total, zero)[row], zero)
                _score_gradients(call, b, row, limit, inverse_total, work, zero)
                clear(work.query_sums, call.padded, zero)
                mean_grad = at(pointer(call.mean_grad, zero), row * values)
                for j in range(limit):
                    by_score, weight = spread(work.by_score, j), spread(work.shares, j)
                    _pair_gradients(
                        call, work, at(key, j * size), at(key_grad, j * size), by_score, alone, zero, additive, distance
                    )
                    _value_gradient(call, work, mean_grad, at(value_grad, j * values), weight, alone, zero)
                query_grad = at(pointer(call.query_grad, zero), row * size)
                for c in range(0, size, lanes_of(zero)):
                    _write(query_grad, c, size, load(work.query_sums, c) * full(call.scale, zero), work.spare, zero)
            if additive is not None:
                weight_grad = at(pointer(call.weight_grad, zero), b * size)
                for c in range(0, size, lanes_of(zero)):
                    _write(weight_grad, c, size, load(work.weight_sums, c), work.spare, zero)

    return backward
