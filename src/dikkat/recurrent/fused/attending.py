"""Attention of one query at a time: weights, context, and the gradients."""

from typing import Any

import numpy as np

from dikkat._core.compiled.profiles import log_profile, profile_slope
from dikkat._core.compiled.scoring import SMALL_ROW
from dikkat._core.compiled.softmax import by_total, normalise, rescale
from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, clear, number_at
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    full,
    lanes_of,
    largest_lane,
    load,
    magnitude,
    maximum,
    pointer,
    spread,
    store,
    total,
    where,
)
from dikkat.recurrent.fused.record import ADDITIVE, DISTANCE, INNER


@inlined
def place_of(call: Call, row: int, t: int) -> int:
    """The index of a row's t-th step, in the order of computing, among all steps of all rows."""
    step = number_at(call.lengths, row) - 1 - t if call.reverse else t
    return number_at(call.offsets, step) + row


@inlined
def seen_by(call: Call, b: int) -> int:
    """The number of keys that exist for a sequence."""
    if call.seen == 0:
        return call.keys
    return min(call.keys, max(0, number_at(call.seen, b)))


@inlined
def _exponentials(query: Pointer, into: Pointer, size: int, zero: Any) -> float:
    """Write e^{2q}; return the largest |q|."""
    peak = full(0, zero)
    for c in range(0, size, lanes_of(zero)):
        x = load(query, c)
        peak = maximum(magnitude(x), peak)
        store(into, c, exp(x + x))
    return largest_lane(peak)


@inlined
def _ratio(call: Call, query: Pointer, key: Pointer, products: Vector, direct: bool, c: int, zero: Any) -> Vector:
    """p, finite: the product of the exponentials, or e^{2(q + k)} if q or k is too large for its own."""
    p = products
    if direct:
        x = load(query, c) + load(key, c)
        p = exp(x + x)
    most = full(call.most, zero)
    return where(most < p, most, p)


@inlined
def _additive_scores(
    call: Call, query: Pointer, query_exp: Pointer, peak: float, b: int, seen: int, scores: Pointer, zero: Any
) -> None:
    lanes, size = lanes_of(zero), call.features
    one, weight = full(1, zero), pointer(call.weight, zero)
    reach = pointer(call.reach, zero)[b]
    folds, direct = peak + reach <= call.folded, not max(peak, reach) <= call.single
    for j in range(seen):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        exps = at(pointer(call.key_exp, zero), (b * call.keys + j) * size)
        acc = full(0, zero)
        if peak + reach < SMALL_ROW:  # −2r has lost digits here that tanh has
            for c in range(0, size, lanes):
                acc += load(weight, c) * tanh(load(query, c) + load(key, c), zero)
            scores[j] = total(acc)
            continue
        if folds:
            for c in range(0, size, 2 * lanes):
                first = one + load(query_exp, c) * load(exps, c)
                second = one + load(query_exp, c + lanes) * load(exps, c + lanes)
                above = load(weight, c) * second + load(weight, c + lanes) * first
                acc += above / (first * second)
        else:
            for c in range(0, size, lanes):
                p = _ratio(call, query, key, load(query_exp, c) * load(exps, c), direct, c, zero)
                acc += load(weight, c) / (one + p)
        scores[j] = -2 * total(acc)


@inlined
def _pair_scores(call: Call, query: Pointer, b: int, seen: int, scores: Pointer, zero: Any) -> None:
    """Write the inner products, or squared distances, of a query with its keys."""
    lanes, size = lanes_of(zero), call.features
    for j in range(seen):
        key, acc = at(pointer(call.key, zero), (b * call.keys + j) * size), full(0, zero)
        if call.pair == INNER:
            for c in range(0, size, lanes):
                acc += load(query, c) * load(key, c)
        else:
            for c in range(0, size, lanes):
                away = load(query, c) - load(key, c)
                acc += away * away
        # A square that overflows becomes the largest number: a query far from all keys still has weights.
        score = total(acc)
        scores[j] = call.largest if call.pair != INNER and score > call.largest else score


@inlined
def attend_row(
    call: Call, place: int, b: int, query: Pointer, exps: Pointer, weights: Pointer, context: Pointer, zero: Any
) -> None:
    """Write a query's weights over its keys, and the weighted sum of their values."""
    lanes, size, seen = lanes_of(zero), call.values, seen_by(call, b)
    for c in range(0, call.key_row, lanes):
        store(weights, c, full(-np.inf, zero))
    if call.pair == ADDITIVE:
        peak = _exponentials(query, exps, call.features, zero)
        _additive_scores(call, query, exps, peak, b, seen, weights, zero)
    else:
        _pair_scores(call, query, b, seen, weights, zero)
    if call.pair == DISTANCE:
        for c in range(0, call.key_row, lanes):
            began = load(weights, c)
            store(weights, c, where(began < full(0, zero), began, log_profile(call.profile, began, zero)))
    blocks = call.key_row // lanes
    _, whole = normalise(weights, weights, blocks, -np.inf, zero)
    rescale(weights, call.key_row, by_total(whole, zero), zero)
    for c in range(0, size, 2 * lanes):
        first, second = full(0, zero), full(0, zero)
        for j in range(seen):
            weight = spread(weights, j)
            if call.kept != 0:
                weight = weight * spread(pointer(call.kept, zero), place * call.key_row + j)
            value = at(pointer(call.value, zero), (b * call.keys + j) * size + c)
            first += weight * load(value, 0)
            second += weight * load(value, lanes)
        store(context, c, first)
        store(context, c + lanes, second)


@inlined
def _slope(call: Call, query: Pointer, exps: Pointer, b: int, j: int, c: int, direct: bool, zero: Any) -> Vector:
    """4 p r² v, the derivative of an additive score, for a vector of features."""
    place = (b * call.keys + j) * call.features
    key, key_exp = at(pointer(call.key, zero), place), at(pointer(call.key_exp, zero), place)
    p = _ratio(call, query, key, load(exps, c) * load(key_exp, c), direct, c, zero)
    r = full(1, zero) / (full(1, zero) + p)
    return full(4, zero) * p * r * r * load(pointer(call.weight, zero), c)


@inlined
def _peak(call: Call, query: Pointer, zero: Any) -> float:
    peak = full(0, zero)
    for c in range(0, call.features, lanes_of(zero)):
        peak = maximum(magnitude(load(query, c)), peak)
    return largest_lane(peak)


@inlined
def score_gradients(
    call: Call, place: int, b: int, seen: int, query: Pointer, context_grad: Pointer, by_score: Pointer,
    squares: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Write the gradients of a query's scores, or, for distances, of the squares."""
    lanes, size = lanes_of(zero), call.values
    weights = at(pointer(call.weights, zero), place * call.key_row)
    clear(by_score, call.key_row, zero)
    for j in range(seen):
        value, acc = at(pointer(call.value, zero), (b * call.keys + j) * size), full(0, zero)
        for c in range(0, size, lanes):
            acc += load(context_grad, c) * load(value, c)
        by_score[j] = total(acc)
    drift = full(0, zero)
    for c in range(0, call.key_row, lanes):
        by_weight = load(by_score, c)
        if call.kept != 0:
            by_weight = by_weight * load(pointer(call.kept, zero), place * call.key_row + c)
        if call.weights_grad != 0:
            by_weight = by_weight + load(pointer(call.weights_grad, zero), place * call.key_row + c)
        store(by_score, c, by_weight)
        share = load(weights, c)
        drift += where(share == full(0, zero), full(0, zero), share * by_weight)
    mean = full(total(drift), zero)
    for c in range(0, call.key_row, lanes):
        share = load(weights, c)
        store(by_score, c, where(share == full(0, zero), full(0, zero), share * (load(by_score, c) - mean)))
    if call.pair == DISTANCE:
        clear(squares, call.key_row, zero)
        _pair_scores(call, query, b, seen, squares, zero)
        for c in range(0, call.key_row, lanes):
            slope = profile_slope(call.profile, load(squares, c), zero)
            store(by_score, c, load(by_score, c) * (slope + slope))


@inlined
def query_gradient(
    call: Call, b: int, seen: int, query: Pointer, exps: Pointer, by_score: Pointer, into: Pointer, zero: Any
) -> None:
    """Write the gradient of a query, from those of its scores."""
    lanes, size = lanes_of(zero), call.features
    direct = False  # whether the query or its keys are too large for exponentials
    if call.pair == ADDITIVE:
        direct = not max(_peak(call, query, zero), pointer(call.reach, zero)[b]) <= call.single
    for c in range(0, size, lanes):
        acc = full(0, zero)
        if call.pair == ADDITIVE:
            for j in range(seen):
                acc += spread(by_score, j) * _slope(call, query, exps, b, j, c, direct, zero)
        elif call.pair == INNER:
            for j in range(seen):
                acc += spread(by_score, j) * load(pointer(call.key, zero), (b * call.keys + j) * size + c)
        else:
            own = load(query, c)
            for j in range(seen):
                acc += spread(by_score, j) * (own - load(pointer(call.key, zero), (b * call.keys + j) * size + c))
        store(into, c, acc)


@inlined
def key_gradients(call: Call, row: int, weight_grad: Pointer, zero: Any) -> None:
    """Write the gradients of a row's keys, and add its share of v's, over all its steps."""
    lanes, size, b = lanes_of(zero), call.features, number_at(call.order, row)
    length, seen = number_at(call.lengths, row), seen_by(call, b)
    one, minus_two = full(1, zero), full(-2, zero)
    queries, exps = pointer(call.queries, zero), pointer(call.query_exp, zero)
    by_scores = pointer(call.score_grad, zero)
    direct, small = False, False
    if call.pair == ADDITIVE:
        peak = zero
        for t in range(length):
            peak = max(peak, _peak(call, at(queries, place_of(call, row, t) * size), zero))
        direct = not max(peak, pointer(call.reach, zero)[b]) <= call.single
        small = peak + pointer(call.reach, zero)[b] < SMALL_ROW
    for j in range(seen):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        out = at(pointer(call.key_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, lanes):
            acc, by_weight = full(0, zero), full(0, zero)
            for t in range(length):
                place = place_of(call, row, t)
                share, query = spread(by_scores, place * call.key_row + j), at(queries, place * size)
                if call.pair == ADDITIVE:
                    products = load(exps, place * size + c) * load(
                        pointer(call.key_exp, zero), (b * call.keys + j) * size + c
                    )
                    p = _ratio(call, query, key, products, direct, c, zero)
                    r = one / (one + p)
                    acc += share * p * r * r
                    # tanh itself if it is small, for its digits; else 1 − 2r, whose 1 cancels in the sum over keys.
                    by_weight += share * (tanh(load(query, c) + load(key, c), zero) if small else minus_two * r)
                elif call.pair == INNER:
                    acc += share * load(query, c)
                else:
                    acc += share * (load(key, c) - load(query, c))
            if call.pair == ADDITIVE:
                acc = acc * full(4, zero) * load(pointer(call.weight, zero), c)
                store(weight_grad, c, load(weight_grad, c) + by_weight)
            store(out, c, acc)


@inlined
def value_gradients(call: Call, row: int, zero: Any) -> None:
    """Write the gradients of a row's values, over all its steps."""
    lanes, size, b = lanes_of(zero), call.values, number_at(call.order, row)
    length, seen = number_at(call.lengths, row), seen_by(call, b)
    weights, sums = pointer(call.weights, zero), pointer(call.context_sums, zero)
    for j in range(seen):
        out = at(pointer(call.value_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, 2 * lanes):
            first, second = full(0, zero), full(0, zero)
            for t in range(length):
                place = place_of(call, row, t)
                weight = spread(weights, place * call.key_row + j)
                if call.kept != 0:
                    weight = weight * spread(pointer(call.kept, zero), place * call.key_row + j)
                first += weight * load(sums, place * size + c)
                second += weight * load(sums, place * size + c + lanes)
            store(out, c, first)
            store(out, c + lanes, second)
