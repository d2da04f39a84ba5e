"""The backward pass of additive attention, compiled by Numba.

Here the lanes of a vector are features, so that sums over keys and over rows are vectors of features and need no room
of their own. With a = s(1 + p) as in `kernel`, Q' = s e^{2q}, K = e^{2k} and g the gradient of a score,

    ∂q = 4 s v Q' Σ_j g K / a²,   ∂k = 4 s v K Σ_i g Q' / a²,   ∂v = Σ g tanh = Σ g − 2 s Σ g / a.

The derivative is not 1 − tanh², which loses all digits for large arguments, nor is ∂v this for small ones, where it
would lose them: there tanh is computed as such.

Four keys and a few rows are taken together. Their 1/a are computed once for the scores and kept, one division for four;
as soon as the scores are known, so are the g, and the sums are made from what was kept.

These scores are not the forward's to the last bit, and e^(score − peak) is off by as much as they are. Where that could
show, because a score is large or few keys have all the weight, a sweep over the keys before finds the rows' peaks and
totals anew, so that weights add up to 1 here too.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.attention.kernel import (
    CALL,
    Call,
    clear,
    copy,
    drop,
    in_range,
    limits_of,
    owner,
    pack_weight,
    raw_keys,
    raw_row,
)
from dikkat.cpu.engine.compile import Kernel, inlined
from dikkat.cpu.engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    exp,
    full,
    gather,
    lanes_of,
    load,
    maximum,
    pointer,
    small_tanh,
    some,
    spread,
    store,
    total,
    totals,
    where,
    whole_numbers,
)

# Keys that are taken together, the most rows that are, and keys whose features' largest magnitudes are known together.
SIDE, MOST, TILE = 4, 8, 64
# What s is multiplied by where four and not eight share a division.
LOWER = 2.0**-13
# Below this sum of |q| and |k|, tanh is computed as such.
SMALL = 0.25
# A row is swept twice from this peak on, or below this total.
LARGE, SHARP = 16.0, 4.0


@inlined
def _part(row: Pointer, c: int, size: int, zero: Any) -> Vector:
    """A vector of a row's features; beyond the last, any of them."""
    if c + lanes_of(zero) <= size:
        return load(row, c)
    return gather(row, c, 1, size - c)


@inlined
def _pack_features(
    source: Pointer, size: int, into: Pointer, padded: int, scale: Vector, highest: Vector, zero: Any,
) -> bool:  # fmt: skip
    """s e^{2x} of one row; 0 where x is beyond ±highest or NaN, and whether that occurs."""
    lanes, nothing = lanes_of(zero), full(0, zero)
    astray = False
    for c in range(0, padded, lanes):
        x = _part(source, c, size, zero)
        within = (x < highest) & (nothing - highest < x)
        value = where(within, scale * exp(x + x), nothing)
        astray = astray or some(value == nothing)
        store(into, c, value)
    for c in range(size, padded):
        into[c] = zero
    return astray


@Kernel
def pack_features(zero: Any, additive: Any, distance: Any, inner: Any) -> Any:
    """The keys' exponentials, row by row; which have none; and each feature's largest magnitude in a tile of keys."""
    layout = CALL

    def pack_features(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, padded = call.features, call.padded
        one, highest = full(1, zero), full(call.highest, zero)
        tiles = (call.keys + TILE - 1) // TILE
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            first = task // tiles * call.keys + task % tiles * TILE
            count = min(TILE, call.keys - task % tiles * TILE)
            source = at(pointer(call.key, zero), first * size)
            for k in range(count):
                into = at(pointer(call.packed_key, zero), (first + k) * padded)
                astray = _pack_features(at(source, k * size), size, into, padded, one, highest, zero)
                pointer(call.key_astray, np.uint8(0))[first + k] = astray
            _peak(source, count, size, padded, highest, at(pointer(call.key_peak, zero), task * padded), zero)

    return pack_features


@inlined
def _peak(rows: Pointer, count: int, size: int, padded: int, highest: Vector, peak: Pointer, zero: Any) -> None:
    """Each feature's largest magnitude in some rows, but for what has no exponential: that goes another way."""
    nothing = full(0, zero)
    for c in range(0, padded, lanes_of(zero)):
        top = nothing
        for i in range(count):
            x = _part(at(rows, i * size), c, size, zero)
            x = maximum(x, nothing - x)
            top = maximum(where(x < highest, x, nothing), top)
        store(peak, c, top)


@inlined
def _begin(
    call: Call, b: int, i0: int, rows: int, j0: int, limits: Pointer, constant: float, scores: Pointer, zero: Any
) -> bool:
    """Begin the pairs' scores: Σ v and the key's bias where visible, −∞ where not. Whether any is visible."""
    keys, least = min(SIDE, call.keys - j0), limits[0]
    for i in range(1, rows):
        least = min(least, limits[i])
    # So many keys below every limit: there are as many.
    if rows == call.group and least >= j0 + SIDE and call.bias == 0 and call.mask == 0 and call.exclude == 0:
        for place in range(0, rows * SIDE, lanes_of(zero)):
            store(scores, place, full(constant, zero))
        return True
    seen = False
    for i in range(call.group):
        excluded = -1
        if call.exclude != 0 and i < rows:
            place = owner(call.exclude_step, call.exclude_table, b) * (call.queries if call.exclude_row else 1)
            excluded = pointer(call.exclude, np.int64(0))[place + (i0 + i) * call.exclude_row]
        for k in range(SIDE):
            j = j0 + k
            visible = i < rows and k < keys and j < limits[min(i, rows - 1)] and j != excluded
            if visible and call.mask != 0:
                rows_of, cols_of = (call.queries if call.mask_row else 1), (call.keys if call.mask_col else 1)
                place = (owner(call.mask_step, call.mask_table, b) * rows_of + (i0 + i) * call.mask_row) * cols_of
                visible = pointer(call.mask, np.uint8(0))[place + j * call.mask_col] != 0
            begin = constant
            if visible and call.bias != 0:
                begin += pointer(call.bias, zero)[owner(call.bias_step, call.bias_table, b) * call.bias_stride + j]
            scores[i * SIDE + k] = begin if visible else -np.inf
            seen = seen or (visible and begin != -np.inf)
    return seen


@inlined
def _keep_four(
    whole: Vector, a0: Vector, a1: Vector, a2: Vector, a3: Vector, d01: Vector, d23: Vector, kept: Pointer,
    zero: Any,
) -> tuple[Vector, Vector, Vector, Vector]:  # fmt: skip
    """The four 1/a, from that of their product."""
    lanes = lanes_of(zero)
    r01, r23 = whole * d23, whole * d01
    r0, r1, r2, r3 = r01 * a1, r01 * a0, r23 * a3, r23 * a2
    store(kept, 0, r0)
    store(kept, lanes, r1)
    store(kept, 2 * lanes, r2)
    store(kept, 3 * lanes, r3)
    return r0, r1, r2, r3


@inlined
def _stayed(
    acc0: Vector, acc1: Vector, acc2: Vector, acc3: Vector, peak: Vector, limit: Vector, sums: Pointer, zero: Any,
) -> bool:  # fmt: skip
    """Write what sums to four scores. Whether all stayed in range."""
    lanes, one = lanes_of(zero), full(1, zero)
    store(sums, 0, acc0)
    store(sums, lanes, acc1)
    store(sums, 2 * lanes, acc2)
    store(sums, 3 * lanes, acc3)
    inside = in_range((acc0 + acc1) + (acc2 + acc3), peak, limit, zero)
    return not some(where(inside, full(0, zero), one) == one)


@inlined
def _keep_row(
    query: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, weight: Pointer, padded: int, pairs: int,
    s: Vector, limit: Vector, kept: Pointer, sums: Pointer, zero: Any,
) -> bool:  # fmt: skip
    """A row with four keys: keeps every 1/a, and what sums to the scores. Whether all stayed in range.

    Where four share a division, s may be the smaller: `LOWER` times; and as much wider is the range. What the division
    gives must be a normal number, since the small denominators are made from it again: as much lower is the `limit`.
    """
    acc0, lower = full(0, zero), full(LOWER, zero)
    acc1, acc2, acc3, peak, s = acc0, acc0, acc0, acc0, s * lower
    for c in range(0, padded, lanes_of(zero)):
        v, q = load(weight, c), load(query, c) * lower
        a0, a1, a2, a3 = s + q * load(k0, c), s + q * load(k1, c), s + q * load(k2, c), s + q * load(k3, c)
        d01, d23 = a0 * a1, a2 * a3
        denominator = d01 * d23
        whole = lower / denominator
        r0, r1, r2, r3 = _keep_four(whole, a0, a1, a2, a3, d01, d23, at(kept, c * pairs), zero)
        acc0 += v * r0
        acc1 += v * r1
        acc2 += v * r2
        acc3 += v * r3
        peak = maximum(peak, denominator)
    return _stayed(acc0, acc1, acc2, acc3, peak, limit, sums, zero)


@inlined
def _forget(kept: Pointer, padded: int, pairs: int, zero: Any) -> None:
    """What was kept of a row with four keys and is of no use: it will be weighed with 0, and may not be finite."""
    for c in range(0, padded, lanes_of(zero)):
        clear(at(kept, c * pairs), SIDE * lanes_of(zero), zero)


@inlined
def _keep_row_exact(
    query: Pointer, keys: Pointer, count: int, size: int, weight: Pointer, scores: Pointer, scale: float,
    sums: Pointer, zero: Any,
) -> None:  # fmt: skip
    """What sums to the scores of a row with its visible keys, for finite numbers of any size."""
    lanes = lanes_of(zero)
    one = full(1, zero)
    for k in range(count):
        acc = full(0, zero)
        if scores[k] != -np.inf:
            for c in range(0, size, lanes):
                x = _part(query, c, size, zero) + _part(at(keys, k * size), c, size, zero)
                acc += load(weight, c) / (one + exp(x + x))
        store(sums, k * lanes, acc * full(1 / scale, zero))


@inlined
def _add_exact(
    query: Pointer, key: Pointer, weight: Pointer, by_score: float, size: int, query_grad: Pointer,
    key_grad: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a pair's share to the gradients themselves, for finite numbers of any size."""
    lanes = lanes_of(zero)
    g, one, nothing = full(by_score, zero), full(1, zero), full(0, zero)
    for c in range(0, size, lanes):
        x = _part(query, c, size, zero) + _part(key, c, size, zero)
        away = where(x < nothing, nothing - x, x)
        e = exp(nothing - away - away)
        share = g * _part(weight, c, size, zero) * full(4, zero) * e / ((one + e) * (one + e))
        tanh = (one - e) / (one + e)
        tanh = where(away < full(SMALL, zero), small_tanh(x), where(x < nothing, nothing - tanh, tanh))
        store(query_grad, c, load(query_grad, c) + share)
        store(key_grad, c, load(key_grad, c) + share)
        store(weight_grad, c, load(weight_grad, c) + g * tanh)


@inlined
def _products(
    left: Pointer, rows: int, v0: Pointer, v1: Pointer, v2: Pointer, v3: Pointer, size: int, sums: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """What sums to the inner products of some rows with four others."""
    lanes = lanes_of(zero)
    for i in range(rows):
        row, acc0 = at(left, i * size), full(0, zero)
        acc1, acc2, acc3 = acc0, acc0, acc0
        for c in range(0, size, lanes):
            x = load(row, c)
            acc0 += x * load(v0, c)
            acc1 += x * load(v1, c)
            acc2 += x * load(v2, c)
            acc3 += x * load(v3, c)
        into = i * SIDE * lanes
        store(sums, into, acc0)
        store(sums, into + lanes, acc1)
        store(sums, into + 2 * lanes, acc2)
        store(sums, into + 3 * lanes, acc3)


@inlined
def _add_values(
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
                        place = k * size + c
                        store(value_grad, place, load(value_grad, place) + weight * load(mean_grad, i * size + c))
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
        store(value_grad, c, b0)
        store(value_grad, size + c, b1)
        store(value_grad, 2 * size + c, b2)
        store(value_grad, 3 * size + c, b3)


@inlined
def _small(query_peak: Pointer, key_peak: Pointer, c: int, zero: Any) -> Any:
    """Which features are small in all rows and keys at hand."""
    return load(query_peak, c) + load(key_peak, c) < full(SMALL, zero)


@inlined
def _any_small(query_peak: Pointer, key_peak: Pointer, padded: int, zero: Any) -> bool:
    found = False
    for c in range(0, padded, lanes_of(zero)):
        found = found or some(_small(query_peak, key_peak, c, zero))
    return found


@inlined
def _add_features(
    query: Pointer, k0: Pointer, k1: Pointer, k2: Pointer, k3: Pointer, rows: int, padded: int, pairs: int,
    kept: Pointer, by_score: Pointer, whole: Vector, query_peak: Pointer, key_peak: Pointer, scale: float,
    query_sums: Pointer, key_sums: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add the pairs' shares to the sums over keys and over rows, and to v's gradient but for small features."""
    lanes, both = lanes_of(zero), full(-2 * scale, zero)
    for c in range(0, padded, lanes):
        k_0, k_1, k_2, k_3 = load(k0, c), load(k1, c), load(k2, c), load(k3, c)
        b0, b1 = load(key_sums, c), load(key_sums, padded + c)
        b2, b3, shares = load(key_sums, 2 * padded + c), load(key_sums, 3 * padded + c), full(0, zero)
        for i in range(rows):
            q, a = load(query, i * padded + c), load(query_sums, i * padded + c)
            pair = i * SIDE
            place = c * pairs + pair * lanes
            r0, r1 = load(kept, place), load(kept, place + lanes)
            r2, r3 = load(kept, place + 2 * lanes), load(kept, place + 3 * lanes)
            g0, g1 = spread(by_score, pair) * r0, spread(by_score, pair + 1) * r1
            g2, g3 = spread(by_score, pair + 2) * r2, spread(by_score, pair + 3) * r3
            shares += (g0 + g1) + (g2 + g3)
            g0, g1, g2, g3 = g0 * r0, g1 * r1, g2 * r2, g3 * r3
            store(query_sums, i * padded + c, a + (g0 * k_0 + g1 * k_1) + (g2 * k_2 + g3 * k_3))
            b0 += g0 * q
            b1 += g1 * q
            b2 += g2 * q
            b3 += g3 * q
        store(key_sums, c, b0)
        store(key_sums, padded + c, b1)
        store(key_sums, 2 * padded + c, b2)
        store(key_sums, 3 * padded + c, b3)
        by_weight = where(_small(query_peak, key_peak, c, zero), full(0, zero), whole + both * shares)
        store(weight_grad, c, load(weight_grad, c) + by_weight)


@inlined
def _add_small(
    query: Pointer, keys: Pointer, query_peak: Pointer, key_peak: Pointer, rows: int, count: int, size: int,
    padded: int, by_score: Pointer, weight_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add the pairs' shares to v's gradient for small features, by tanh itself: 1 − 2 s r has an absolute error."""
    nothing = full(0, zero)
    for c in range(0, padded, lanes_of(zero)):
        small = _small(query_peak, key_peak, c, zero)
        if not some(small):
            continue
        shares = nothing
        for i in range(rows):
            q = _part(at(query, i * size), c, size, zero)
            for k in range(count):
                pair = i * SIDE + k
                if by_score[pair] == 0:  # hidden, or done otherwise: perhaps not finite
                    continue
                tanh = small_tanh(q + _part(at(keys, k * size), c, size, zero))
                shares += spread(by_score, pair) * tanh
        store(weight_grad, c, load(weight_grad, c) + where(small, shares, nothing))


@inlined
def _flush_keys(
    call: Call, keys: Pointer, count: int, weight: Pointer, key_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add 4 s v K Σ_i g Q' / a² to the keys' gradients."""
    lanes, padded = lanes_of(zero), call.padded
    for c in range(0, padded, lanes):
        factor = full(4 * call.scale, zero) * _part(weight, c, call.features, zero)
        for k in range(count):
            place = k * padded + c
            share = factor * load(keys, place) * load(key_sums, place)
            store(key_grad, place, load(key_grad, place) + share)


@inlined
def _keep_rows(
    call: Call, b: int, i0: int, rows: int, raw: Pointer, count: int, k0: Pointer, k1: Pointer, k2: Pointer,
    k3: Pointer, wild: bool, query: Pointer, astray: Pointer, weight: Pointer, s: Vector, limit: Vector,
    scores: Pointer, kept: Pointer, sums: Pointer, exact: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Some rows with four keys: what `_keep_row` keeps of each, and which went the other way."""
    lanes, size, padded, pairs = lanes_of(zero), call.features, call.padded, call.group * SIDE
    for i in range(rows):
        own, own_sums = at(kept, i * SIDE * lanes), at(sums, i * SIDE * lanes)
        strayed = wild or astray[i] != 0
        if not strayed:
            strayed = not _keep_row(
                at(query, i * padded), k0, k1, k2, k3, weight, padded, pairs, s, limit, own, own_sums, zero
            )
            if strayed:
                _forget(own, padded, pairs, zero)
        if strayed:
            row = raw_row(call, b, i0 + i, zero)
            _keep_row_exact(row, raw, count, size, weight, at(scores, i * SIDE), call.scale, own_sums, zero)
        exact[i] = strayed


@inlined
def _any_astray(call: Call, first: int, count: int, zero: Any) -> bool:
    """Whether a key of some has features without exponentials."""
    found = False
    for k in range(first, first + count):
        found = found or pointer(call.key_astray, np.uint8(0))[k] != 0
    return found


@inlined
def _four(rows: Pointer, first: int, count: int, size: int) -> tuple[Pointer, Pointer, Pointer, Pointer]:
    """Four rows; beyond the last, the last again: hidden."""
    row = at(rows, first * size)
    n1, n2, n3 = min(1, count - 1), min(2, count - 1), min(3, count - 1)
    return row, at(row, n1 * size), at(row, n2 * size), at(row, n3 * size)


@inlined
def _from_above(
    call: Call, b: int, i0: int, rows: int, j0: int, dropped: Pointer, upstream: Pointer, zero: Any
) -> None:
    """The pairs' factors of dropout, and the gradients of their weights; where there are such."""
    keys = min(SIDE, call.keys - j0)
    if call.seeds != 0:
        for i in range(rows):
            drop(call, b, i0 + i, j0, SIDE, at(dropped, i * SIDE))
    if call.weights_grad != 0:
        for i in range(rows):
            for k in range(keys):
                place = (b * call.queries + i0 + i) * call.keys + j0 + k
                upstream[i * SIDE + k] = pointer(call.weights_grad, zero)[place]


@inlined
def _pair(
    call: Call, pair: int, factor: Vector, score_sums: Pointer, value_sums: Pointer, scores: Pointer, dropped: Pointer,
    upstream: Pointer, zero: Any,
) -> tuple[Vector, Vector]:  # fmt: skip
    """From the pairs' sums their scores, −∞ where hidden, and the gradients of their weights."""
    lanes, hidden, begin = lanes_of(zero), full(-np.inf, zero), load(scores, pair)
    score = where(begin == hidden, begin, begin + factor * totals(score_sums, pair * lanes))
    by_weight = totals(value_sums, pair * lanes)
    if call.seeds != 0:
        by_weight = by_weight * load(dropped, pair)
    if call.weights_grad != 0:
        by_weight = by_weight + load(upstream, pair)
    return score, by_weight


@inlined
def _weigh_pairs(
    call: Call, b: int, i0: int, rows: int, j0: int, peaks: Pointer, drifts: Pointer, factors: Pointer, factor: Vector,
    score_sums: Pointer, value_sums: Pointer, scores: Pointer, weights: Pointer, by_score: Pointer, spare: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """From the pairs' sums their scores, shares e^(score − peak) after dropout, and the gradients of the scores."""
    pairs, hidden, nothing = call.group * SIDE, full(-np.inf, zero), full(0, zero)
    dropped, upstream = spare, at(spare, pairs)
    _from_above(call, b, i0, rows, j0, dropped, upstream, zero)
    for pair in range(0, pairs, lanes_of(zero)):
        seen = load(scores, pair) != hidden
        score, by_weight = _pair(call, pair, factor, score_sums, value_sums, scores, dropped, upstream, zero)
        share = exp(score - load(peaks, pair)) * load(factors, pair)
        kept = share
        if call.seeds != 0:
            kept = share * load(dropped, pair)
        store(scores, pair, score)
        store(weights, pair, where(seen, kept, nothing))
        store(by_score, pair, where(seen, share * (by_weight - load(drifts, pair)), nothing))


@inlined
def _find_pairs(
    call: Call, b: int, i0: int, rows: int, j0: int, peaks: Pointer, totals_: Pointer, drifts: Pointer, factor: Vector,
    score_sums: Pointer, value_sums: Pointer, scores: Pointer, spare: Pointer, zero: Any,
) -> None:  # fmt: skip
    """What the pairs add to their rows' peaks, totals and drifts."""
    pairs = call.group * SIDE
    dropped, upstream = spare, at(spare, pairs)
    _from_above(call, b, i0, rows, j0, dropped, upstream, zero)
    for pair in range(0, pairs, lanes_of(zero)):
        score, by_weight = _pair(call, pair, factor, score_sums, value_sums, scores, dropped, upstream, zero)
        _find(score, by_weight, at(peaks, pair), at(totals_, pair), at(drifts, pair), zero)


@inlined
def _find(score: Vector, by_weight: Vector, peak: Pointer, total_: Pointer, drift: Pointer, zero: Any) -> None:
    """Add pairs to the totals, and to Σ share · gradient, of their lanes: a running softmax."""
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    before = load(peak, 0)
    top = maximum(score, before)
    base = where(top == hidden, nothing, top)
    fade, share = exp(before - base), exp(score - base)
    store(peak, 0, top)
    store(total_, 0, load(total_, 0) * fade + share)
    store(drift, 0, load(drift, 0) * fade + where(score == hidden, nothing, share * by_weight))


@inlined
def _is_sharp(call: Call, row: int, zero: Any) -> bool:
    """Whether a row is swept twice."""
    peak, total_ = pointer(call.peak, zero)[row], pointer(call.total, zero)[row]
    return total_ > 0 and (total_ < SHARP or abs(peak) > LARGE)


@inlined
def _known_row(call: Call, row: int, peaks: Pointer, drifts: Pointer, factors: Pointer, zero: Any) -> None:
    """A row's peak and drift as the forward has them, for each of four lanes."""
    peak, drift = pointer(call.peak, zero)[row], pointer(call.drift, zero)[row]
    for k in range(SIDE):
        peaks[k], drifts[k], factors[k] = (peak if peak > -np.inf else zero), drift, 1.0


@inlined
def _found_row(
    call: Call, row: int, peaks: Pointer, totals_: Pointer, drifts: Pointer, factors: Pointer, zero: Any
) -> None:
    """The peak and the drift that a sweep has found, and what brings shares from the forward's total to its own."""
    peak = peaks[0]
    for k in range(1, SIDE):
        peak = max(peak, peaks[k])
    base = peak if peak > -np.inf else zero
    total_, drift = zero, zero
    for k in range(SIDE):
        fade = math.exp(peaks[k] - base)
        total_ += totals_[k] * fade
        drift += drifts[k] * fade
    by = zero if total_ == 0 else 1 / total_
    factor, drift = pointer(call.total, zero)[row] * by, drift * by - pointer(call.total_grad, zero)[row]
    for k in range(SIDE):
        peaks[k], factors[k], drifts[k] = base, factor, drift


@inlined
def _find_rows(
    call: Call, b: int, i0: int, rows: int, reach: int, limits: Pointer, constant: float, factor: Vector,
    key_owner: int, value_owner: int, query: Pointer, astray: Pointer, sharp: Pointer, weight: Pointer, s: Vector,
    limit: Vector, peaks: Pointer, totals_: Pointer, drifts: Pointer, factors: Pointer, scores: Pointer, kept: Pointer,
    score_sums: Pointer, value_sums: Pointer, exact: Pointer, spare: Pointer, zero: Any,
) -> None:  # fmt: skip
    """The sweep over the keys before: of the rows that are sharp, peaks, drifts and factors."""
    group, stride, padded = call.group, call.value_stride, call.padded
    for g in range(0, rows, group):
        i, taken, any_sharp = i0 + g, min(group, rows - g), False
        for k in range(g, g + taken):
            any_sharp = any_sharp or sharp[k] != 0
        if not any_sharp:
            continue
        own_peaks, own_totals, own_drifts = at(peaks, g * SIDE), at(totals_, g * SIDE), at(drifts, g * SIDE)
        clear(own_totals, group * SIDE, zero)
        clear(own_drifts, group * SIDE, zero)
        for pair in range(group * SIDE):
            own_peaks[pair] = -np.inf
        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
        for j0 in range(0, reach, SIDE):
            if not _begin(call, b, i, taken, j0, at(limits, g), constant, scores, zero):
                continue
            count, raw = min(SIDE, call.keys - j0), raw_keys(call, b, j0, zero)
            k0, k1, k2, k3 = _four(pointer(call.packed_key, zero), key_owner + j0, count, padded)
            wild = _any_astray(call, key_owner + j0, count, zero)
            _keep_rows(
                call, b, i, taken, raw, count, k0, k1, k2, k3, wild, at(query, g * padded),
                at(astray, g), weight, s, limit, scores, kept, score_sums, exact, zero,
            )  # fmt: skip
            v0, v1, v2, v3 = _four(pointer(call.value, zero), value_owner + j0, count, stride)
            _products(mean_grad, taken, v0, v1, v2, v3, stride, value_sums, zero)
            _find_pairs(
                call, b, i, taken, j0, own_peaks, own_totals, own_drifts, factor, score_sums, value_sums, scores,
                spare, zero,
            )  # fmt: skip
        for k in range(g, g + taken):
            row, place = b * call.queries + i0 + k, k * SIDE
            if sharp[k] != 0:
                _found_row(call, row, at(peaks, place), at(totals_, place), at(drifts, place), at(factors, place), zero)
            else:
                _known_row(call, row, at(peaks, place), at(drifts, place), at(factors, place), zero)


@Kernel
def backward(zero: Any, additive: Any, distance: Any, inner: Any) -> Any:
    """The gradients of everything, those over keys for each task."""
    layout = CALL

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, padded, stride = lanes_of(zero), call.features, call.padded, call.value_stride
        group, pairs = call.group, call.group * SIDE
        worker = claim(call.counters + 8)
        if worker >= call.tasks:  # more threads than tasks, and than scratch
            return
        scratch = at(pointer(call.scratch, zero), worker * call.scratch_size)
        scores, weights = scratch, at(scratch, pairs)
        by_score, in_fast = at(scratch, 2 * pairs), at(scratch, 3 * pairs)
        spare = at(scratch, 4 * pairs)
        peaks = at(scratch, 6 * pairs)
        totals_, drifts = at(peaks, call.rows * SIDE), at(peaks, 2 * call.rows * SIDE)
        factors = at(peaks, 3 * call.rows * SIDE)
        score_sums = at(peaks, 4 * call.rows * SIDE)
        value_sums = at(score_sums, pairs * lanes)
        kept = at(value_sums, pairs * lanes)
        weight = at(kept, pairs * padded)
        weight_sums, query_peak = at(weight, padded), at(weight, 2 * padded)
        key_sums = at(weight, 3 * padded)
        query = at(key_sums, SIDE * padded)
        query_sums, query_exact = at(query, call.rows * padded), at(query, 2 * call.rows * padded)
        limits = whole_numbers(at(query, 3 * call.rows * padded))
        astray, sharp = at(limits, call.rows), at(limits, 2 * call.rows)
        exact = at(limits, 3 * call.rows)
        packed_weight, power, constant = -1, 1.0, zero
        s, limit, highest = full(call.scale, zero), full(call.limit * LOWER, zero), full(call.highest, zero)
        # A pair that is hidden, or out of range, leaves what was kept as it is, and weighs it with 0.
        clear(kept, pairs * padded, zero)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b = task // call.parts
            first = (task % call.parts) * call.part_rows
            last = min(first + call.part_rows, call.queries)
            raw_weight = at(pointer(call.weight, zero), owner(call.weight_step, call.weight_table, b) * size)
            if owner(call.weight_step, call.weight_table, b) != packed_weight:
                packed_weight = owner(call.weight_step, call.weight_table, b)
                power, constant = pack_weight(call, packed_weight, weight, zero)
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
                clear(query_sums, 2 * call.rows * padded, zero)  # and query_exact
                reach = limits_of(call, b, i0, rows, limits)
                any_sharp = False
                for i in range(rows):
                    raw, row, place = raw_row(call, b, i0 + i, zero), b * call.queries + i0 + i, i * SIDE
                    astray[i] = _pack_features(raw, size, at(query, i * padded), padded, s, highest, zero)
                    _known_row(call, row, at(peaks, place), at(drifts, place), at(factors, place), zero)
                    sharp[i] = _is_sharp(call, row, zero)
                    any_sharp = any_sharp or sharp[i] != 0
                _peak(raw_row(call, b, i0, zero), rows, size, padded, highest, query_peak, zero)
                small, key_peak = False, query_peak
                if any_sharp:
                    _find_rows(
                        call, b, i0, rows, reach, limits, constant, factor, key_owner, value_owner, query, astray,
                        sharp, weight, s, limit, peaks, totals_, drifts, factors, scores, kept, score_sums, value_sums,
                        exact, spare, zero,
                    )  # fmt: skip
                for j0 in range(0, reach, SIDE):
                    if j0 % TILE == 0:
                        tile = key_owner // call.keys * ((call.keys + TILE - 1) // TILE) + j0 // TILE
                        key_peak = at(pointer(call.key_peak, zero), tile * padded)
                        small = _any_small(query_peak, key_peak, padded, zero)
                    count = min(SIDE, call.keys - j0)
                    raw = raw_keys(call, b, j0, zero)
                    keys, k1, k2, k3 = _four(pointer(call.packed_key, zero), key_owner + j0, count, padded)
                    values, v1, v2, v3 = _four(pointer(call.value, zero), value_owner + j0, count, stride)
                    wild = _any_astray(call, key_owner + j0, count, zero)
                    clear(key_sums, SIDE * padded, zero)
                    key_grad, value_grad = at(key_grads, j0 * padded), at(value_grads, j0 * stride)
                    for g in range(0, rows, group):
                        i, taken = i0 + g, min(group, rows - g)
                        if not _begin(call, b, i, taken, j0, at(limits, g), constant, scores, zero):
                            continue
                        _keep_rows(
                            call, b, i, taken, raw, count, keys, k1, k2, k3, wild, at(query, g * padded),
                            at(astray, g), weight, s, limit, scores, kept, score_sums, exact, zero,
                        )  # fmt: skip
                        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * stride)
                        _products(mean_grad, taken, values, v1, v2, v3, stride, value_sums, zero)
                        _weigh_pairs(
                            call, b, i, taken, j0, at(peaks, g * SIDE), at(drifts, g * SIDE), at(factors, g * SIDE),
                            factor, score_sums, value_sums, scores, weights, by_score, spare, zero,
                        )  # fmt: skip
                        _add_values(weights, mean_grad, taken, stride, count, value_grad, scores, call.exact != 0, zero)
                        if call.bias_grad != 0:
                            for k in range(count):
                                acc = zero
                                for r in range(taken):
                                    acc += by_score[r * SIDE + k]
                                pointer(call.bias_grad, zero)[task * call.keys + j0 + k] += acc
                        copy(by_score, in_fast, pairs, zero)
                        for k in range(taken):
                            if exact[k]:
                                for n in range(count):
                                    pair = k * SIDE + n
                                    if scores[pair] != -np.inf:
                                        _add_exact(
                                            raw_row(call, b, i + k, zero), at(raw, n * size), raw_weight,
                                            by_score[pair], size, at(query_exact, (g + k) * padded),
                                            at(key_grad, n * padded), weight_sums, zero,
                                        )  # fmt: skip
                                for n in range(SIDE):
                                    in_fast[k * SIDE + n] = zero
                        whole = load(in_fast, 0)
                        for pair in range(lanes, pairs, lanes):
                            whole += load(in_fast, pair)
                        whole = full(total(whole), zero)
                        sums = at(query_sums, g * padded)
                        _add_features(
                            at(query, g * padded), keys, k1, k2, k3, taken, padded, pairs, kept, in_fast, whole,
                            query_peak, key_peak, call.scale, sums, key_sums, weight_sums, zero,
                        )  # fmt: skip
                        if small:
                            _add_small(
                                raw_row(call, b, i, zero), raw, query_peak, key_peak, taken, count, size, padded,
                                in_fast, weight_sums, zero,
                            )  # fmt: skip
                    _flush_keys(call, keys, count, raw_weight, key_sums, key_grad, zero)
                for i in range(rows):
                    out = at(pointer(call.query_grad, zero), (b * call.queries + i0 + i) * size)
                    row, sums, exactly = at(query, i * padded), at(query_sums, i * padded), at(query_exact, i * padded)
                    for c in range(0, padded, lanes):
                        by = full(4 * call.scale, zero) * _part(raw_weight, c, size, zero)
                        store(sums, c, by * load(row, c) * load(sums, c) + load(exactly, c))
                    copy(sums, out, size, zero)
            copy(weight_sums, at(pointer(call.weight_grad, zero), task * size), size, zero)

    return backward
