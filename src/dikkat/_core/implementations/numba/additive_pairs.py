"""Functions for a group of pairs, a few rows with four keys (`SIDE`), in the backward pass of additive attention.

With a = s (1 + e^{2(q + k)}) and r = 1/a, tanh(q + k) = 1 − 2 s r. The scale s keeps the product of several a finite,
and v is the score's weight vector. A feature is small if 1 − 2 s r, which has an absolute error, would lose its digits.
Exact functions compute e^{2(q + k)} directly, for numbers beyond the range of the products.
"""

from typing import Any

import numpy as np

from dikkat._core.compiled.scoring import LOWER, SMALL_PAIR
from dikkat._core.implementations.numba.record import SIDE
from dikkat._core.implementations.numba.scores import in_range
from dikkat._core.implementations.numba.visibility import bias_of, excluded_of, mask_of, owner, start_of
from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp, small_tanh
from dikkat._engine.memory import Call, clear, load_part, store_four
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    full,
    lanes_of,
    load,
    magnitude,
    maximum,
    pointer,
    some,
    spread,
    store,
    where,
)


@inlined
def pack_row(
    source: Pointer, size: int, into: Pointer, padded: int, scale: Vector, highest: Vector, zero: Any,
) -> bool:  # fmt: skip
    """Write s e^{2x} for each x of a row, or 0 if x is NaN or beyond ±highest; return whether a 0 was written."""
    lanes, nothing = lanes_of(zero), full(0, zero)
    out_of_range = False
    for c in range(0, padded, lanes):
        x = load_part(source, c, size, zero)
        within = (x < highest) & (nothing - highest < x)
        value = where(within, scale * exp(x + x), nothing)
        out_of_range = out_of_range or some(value == nothing)
        store(into, c, value)
    for c in range(size, padded):
        into[c] = zero
    return out_of_range


@inlined
def peak_of(rows: Pointer, count: int, size: int, padded: int, highest: Vector, peak: Pointer, zero: Any) -> None:
    """Write each feature's largest magnitude in some rows, ignoring numbers beyond ±highest."""
    nothing = full(0, zero)
    for c in range(0, padded, lanes_of(zero)):
        largest = nothing
        for i in range(count):
            x = magnitude(load_part(at(rows, i * size), c, size, zero))
            largest = maximum(where(x < highest, x, nothing), largest)
        store(peak, c, largest)


@inlined
def begin_pairs(
    call: Call, b: int, i0: int, rows: int, j0: int, limits: Pointer, weight_sum: float, scores: Pointer, zero: Any
) -> bool:
    """Initialise the pairs' scores: Σ v plus biases if visible, −∞ if not. Return whether any is visible."""
    keys, lowest_limit = min(SIDE, call.keys - j0), limits[0]
    plain = call.starts == 0 and call.bias == 0 and call.key_bias == 0 and call.mask == 0 and call.exclude == 0
    for i in range(1, rows):
        lowest_limit = min(lowest_limit, limits[i])
    # Limits are at most the number of keys, so these four keys exist.
    if plain and rows == call.group and lowest_limit >= j0 + SIDE:
        for index in range(0, rows * SIDE, lanes_of(zero)):
            store(scores, index, full(weight_sum, zero))
        return True
    any_visible = False
    for i in range(call.group):  # rows beyond the last repeat it, and are hidden
        excluded, start = -1, start_of(call, b, min(i0 + i, i0 + rows - 1))
        if call.exclude != 0 and i < rows:
            excluded = excluded_of(call, b, i0 + i)
        for k in range(SIDE):
            j = j0 + k
            visible = i < rows and k < keys and start <= j < limits[min(i, rows - 1)] and j != excluded
            if visible and call.mask != 0:
                visible = mask_of(call, b, i0 + i)[j * call.mask_col] != 0
            begin = weight_sum
            if visible and call.key_bias != 0:
                begin += pointer(call.key_bias, zero)[
                    owner(call.key_bias_step, call.key_bias_table, b) * call.key_bias_stride + j
                ]
                visible = begin != -np.inf  # even if the pair's bias is ∞ or NaN
            if visible and call.bias != 0:
                added = bias_of(call, b, i0 + i, zero)[j * call.bias_col]
                begin += added
                visible = added != -np.inf
            scores[i * SIDE + k] = begin if visible else -np.inf
            any_visible = any_visible or visible
    return any_visible


@inlined
def keep_row(
    query: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, weight: Pointer, padded: int, pairs: int,
    s: Vector, limit: Vector, out: Pointer, sums: Pointer, zero: Any,
) -> bool:  # fmt: skip
    """Store 1/a of a row with four keys, and for each key a vector that sums to Σ v/a; return whether all are in range.

    One division serves four keys. The product of their a must not overflow, so s and q are multiplied by `LOWER`. The
    quotient must be a normal number, since reciprocals are computed from it, so `limit` is lower by the same factor.
    """
    lanes, acc0, one, lower = lanes_of(zero), full(0, zero), full(1, zero), full(LOWER, zero)
    acc1, acc2, acc3, peak, s = acc0, acc0, acc0, acc0, s * lower
    for c in range(0, padded, lanes):
        v, q = load(weight, c), load(query, c) * lower
        a0, a1, a2, a3 = s + q * load(k0, c), s + q * load(k1, c), s + q * load(k2, c), s + q * load(k3, c)
        d01, d23 = a0 * a1, a2 * a3
        denominator = d01 * d23
        quotient = lower / denominator
        r01, r23 = quotient * d23, quotient * d01
        r0, r1, r2, r3 = r01 * a1, r01 * a0, r23 * a3, r23 * a2
        store_four(out, c * pairs, lanes, r0, r1, r2, r3)
        acc0 += v * r0
        acc1 += v * r1
        acc2 += v * r2
        acc3 += v * r3
        peak = maximum(peak, denominator)
    store_four(sums, 0, lanes, acc0, acc1, acc2, acc3)
    inside = in_range((acc0 + acc1) + (acc2 + acc3), peak, limit, zero)
    return not some(where(inside, full(0, zero), one) == one)


@inlined
def clear_reciprocals(reciprocals: Pointer, padded: int, pairs: int, zero: Any) -> None:
    """Clear the reciprocals of a row with four keys: they will be multiplied by 0, so they must be finite."""
    for c in range(0, padded, lanes_of(zero)):
        clear(at(reciprocals, c * pairs), SIDE * lanes_of(zero), zero)


@inlined
def keep_row_exact(
    query: Pointer, keys: Pointer, count: int, size: int, weight: Pointer, scores: Pointer, scale: float,
    sums: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Store a vector for each visible key that sums to Σ v/a of the row and key, for finite numbers of any size."""
    lanes = lanes_of(zero)
    one = full(1, zero)
    for k in range(count):
        acc = full(0, zero)
        if scores[k] != -np.inf:
            for c in range(0, size, lanes):
                x = load_part(query, c, size, zero) + load_part(at(keys, k * size), c, size, zero)
                acc += load(weight, c) / (one + exp(x + x))
        store(sums, k * lanes, acc * full(1 / scale, zero))


@inlined
def add_exact(
    query: Pointer, key: Pointer, weight: Pointer, by_score: float, size: int, query_grad: Pointer,
    key_grad: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a pair directly to the gradients of the query, the key and v, for finite numbers of any size."""
    lanes = lanes_of(zero)
    g, one, nothing = full(by_score, zero), full(1, zero), full(0, zero)
    for c in range(0, size, lanes):
        x = load_part(query, c, size, zero) + load_part(key, c, size, zero)
        size_x = magnitude(x)
        e = exp(nothing - size_x - size_x)  # e^{−2|x|}
        share = g * load_part(weight, c, size, zero) * full(4, zero) * e / ((one + e) * (one + e))
        tanh = (one - e) / (one + e)
        tanh = where(size_x < full(SMALL_PAIR, zero), small_tanh(x), where(x < nothing, nothing - tanh, tanh))
        store(query_grad, c, load(query_grad, c) + share)
        store(key_grad, c, load(key_grad, c) + share)
        store(weight_grad, c, load(weight_grad, c) + g * tanh)


@inlined
def products(
    vectors: Pointer, rows: int, v0: Pointer, v1: Pointer, v2: Pointer, v3: Pointer, size: int, sums: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """Store for each of some rows four vectors, which sum to its inner products with v0 ... v3."""
    lanes = lanes_of(zero)
    for i in range(rows):
        row, acc0 = at(vectors, i * size), full(0, zero)
        acc1, acc2, acc3 = acc0, acc0, acc0
        for c in range(0, size, lanes):
            x = load(row, c)
            acc0 += x * load(v0, c)
            acc1 += x * load(v1, c)
            acc2 += x * load(v2, c)
            acc3 += x * load(v3, c)
        store_four(sums, i * SIDE * lanes, lanes, acc0, acc1, acc2, acc3)


@inlined
def add_values(
    weights: Pointer, mean_grad: Pointer, rows: int, size: int, keys: int, value_grad: Pointer, scores: Pointer,
    exact: bool, zero: Any,
) -> None:  # fmt: skip
    """Add each row's gradient times its weight to the four values' gradients."""
    lanes = lanes_of(zero)
    if exact or keys < SIDE:
        for k in range(keys):
            for i in range(rows):
                if scores[i * SIDE + k] != -np.inf:
                    weight = spread(weights, i * SIDE + k)
                    for c in range(0, size, lanes):
                        index = k * size + c
                        store(value_grad, index, load(value_grad, index) + weight * load(mean_grad, i * size + c))
        return
    for c in range(0, size, lanes):
        b0, b1 = load(value_grad, c), load(value_grad, size + c)
        b2, b3 = load(value_grad, 2 * size + c), load(value_grad, 3 * size + c)
        for i in range(rows):
            x, pair = load(mean_grad, i * size + c), i * SIDE
            b0 += spread(weights, pair) * x
            b1 += spread(weights, pair + 1) * x
            b2 += spread(weights, pair + 2) * x
            b3 += spread(weights, pair + 3) * x
        store_four(value_grad, c, size, b0, b1, b2, b3)


@inlined
def _small(query_peak: Pointer, key_peak: Pointer, c: int, zero: Any) -> Any:
    """Return the lanes whose features are small, with |q| + |k| below `SMALL_PAIR` in all rows and keys of the tile."""
    return load(query_peak, c) + load(key_peak, c) < full(SMALL_PAIR, zero)


@inlined
def any_small(query_peak: Pointer, key_peak: Pointer, padded: int, zero: Any) -> bool:
    """Return whether any feature is small in all rows and keys of the tile."""
    small = False
    for c in range(0, padded, lanes_of(zero)):
        small = small or some(_small(query_peak, key_peak, c, zero))
    return small


@inlined
def add_features(
    query: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, rows: int, padded: int, pairs: int,
    reciprocals: Pointer, by_score: Pointer, grad_sum: Vector, query_peak: Pointer, key_peak: Pointer, scale: float,
    query_sums: Pointer, key_sums: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add pairs to the gradient sums of queries and keys, and to v's gradient; `add_small` adds v's small features."""
    lanes, factor = lanes_of(zero), full(-2 * scale, zero)
    for c in range(0, padded, lanes):
        k_0, k_1, k_2, k_3 = load(k0, c), load(k1, c), load(k2, c), load(k3, c)
        b0, b1 = load(key_sums, c), load(key_sums, padded + c)
        b2, b3, shares = load(key_sums, 2 * padded + c), load(key_sums, 3 * padded + c), full(0, zero)
        for i in range(rows):
            q, query_sum = load(query, i * padded + c), load(query_sums, i * padded + c)
            pair = i * SIDE
            index = c * pairs + pair * lanes
            r0, r1 = load(reciprocals, index), load(reciprocals, index + lanes)
            r2, r3 = load(reciprocals, index + 2 * lanes), load(reciprocals, index + 3 * lanes)
            g0, g1 = spread(by_score, pair) * r0, spread(by_score, pair + 1) * r1
            g2, g3 = spread(by_score, pair + 2) * r2, spread(by_score, pair + 3) * r3
            shares += (g0 + g1) + (g2 + g3)
            g0, g1, g2, g3 = g0 * r0, g1 * r1, g2 * r2, g3 * r3
            store(query_sums, i * padded + c, query_sum + (g0 * k_0 + g1 * k_1) + (g2 * k_2 + g3 * k_3))
            b0 += g0 * q
            b1 += g1 * q
            b2 += g2 * q
            b3 += g3 * q
        store_four(key_sums, c, padded, b0, b1, b2, b3)
        by_weight = where(_small(query_peak, key_peak, c, zero), full(0, zero), grad_sum + factor * shares)
        store(weight_grad, c, load(weight_grad, c) + by_weight)


@inlined
def add_small(
    query: Pointer, keys: Pointer, query_peak: Pointer, key_peak: Pointer, rows: int, count: int, size: int,
    padded: int, by_score: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add pairs to v's gradient for small features, with tanh computed directly."""
    nothing = full(0, zero)
    for c in range(0, padded, lanes_of(zero)):
        small = _small(query_peak, key_peak, c, zero)
        if not some(small):
            continue
        shares = nothing
        for i in range(rows):
            q = load_part(at(query, i * size), c, size, zero)
            for k in range(count):
                pair = i * SIDE + k
                if by_score[pair] == 0:  # hidden or computed exactly; may not be finite
                    continue
                tanh = small_tanh(q + load_part(at(keys, k * size), c, size, zero))
                shares += spread(by_score, pair) * tanh
        store(weight_grad, c, load(weight_grad, c) + where(small, shares, nothing))


@inlined
def four_rows(rows: Pointer, first: int, count: int, size: int) -> tuple[Pointer, Pointer, Pointer, Pointer]:
    """Return pointers to four rows. Beyond the last row they repeat it; the pairs of repeated rows are hidden."""
    row = at(rows, first * size)
    n1, n2, n3 = min(1, count - 1), min(2, count - 1), min(3, count - 1)
    return row, at(row, n1 * size), at(row, n2 * size), at(row, n3 * size)
