"""Kernels for the attention of one query: its weights, its context, and their gradients."""

from typing import Any

import numpy as np

from dikkat._core.compiled.profiles import log_profile, profile_slope
from dikkat._core.compiled.scoring import SMALL_ROW
from dikkat._core.compiled.softmax import by_total, normalise, rescale
from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, clear, read_number
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
def find_index(call: Call, row: int, t: int) -> int:
    """Return the index of a row's t-th computed step among the steps of all rows."""
    step = read_number(call.lengths, row) - 1 - t if call.reverse else t
    return read_number(call.offsets, step) + row


@inlined
def count_keys(call: Call, b: int) -> int:
    """Return the number of keys of sequence `b`, without padding."""
    if call.key_counts == 0:
        return call.keys
    return min(call.keys, max(0, read_number(call.key_counts, b)))


@inlined
def _write_exponentials(query: Pointer, target: Pointer, size: int, zero: Any) -> float:
    """Write e^{2q}; return the largest |q|."""
    peak = full(0, zero)
    for c in range(0, size, lanes_of(zero)):
        q = load(query, c)
        peak = maximum(magnitude(q), peak)
        store(target, c, exp(q + q))
    return largest_lane(peak)


@inlined
def _find_p(call: Call, query: Pointer, key: Pointer, product: Vector, direct: bool, c: int, zero: Any) -> Vector:
    """Return e^{2q} e^{2k}, or if `direct`, for large q or k, e^{2(q + k)}; clamped to finite numbers."""
    p = product
    if direct:
        x = load(query, c) + load(key, c)
        p = exp(x + x)
    limit = full(call.exp_limit, zero)
    return where(limit < p, limit, p)


@inlined
def _additive_scores(
    call: Call, query: Pointer, query_exp: Pointer, peak: float, b: int, key_count: int, scores: Pointer, zero: Any
) -> None:
    lanes, size = lanes_of(zero), call.features
    one, weight = full(1, zero), pointer(call.weight, zero)
    key_peak = pointer(call.key_peaks, zero)[b]
    shares_division, direct = peak + key_peak <= call.folded, not max(peak, key_peak) <= call.single
    for j in range(key_count):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        exps = at(pointer(call.key_exp, zero), (b * call.keys + j) * size)
        acc = full(0, zero)
        if peak + key_peak < SMALL_ROW:  # −2r would lose digits that tanh keeps
            for c in range(0, size, lanes):
                acc += load(weight, c) * tanh(load(query, c) + load(key, c), zero)
            scores[j] = total(acc)
            continue
        if shares_division:
            for c in range(0, size, 2 * lanes):
                low = one + load(query_exp, c) * load(exps, c)
                high = one + load(query_exp, c + lanes) * load(exps, c + lanes)
                numerator = load(weight, c) * high + load(weight, c + lanes) * low
                acc += numerator / (low * high)
        else:
            for c in range(0, size, lanes):
                p = _find_p(call, query, key, load(query_exp, c) * load(exps, c), direct, c, zero)
                acc += load(weight, c) / (one + p)
        scores[j] = -2 * total(acc)


@inlined
def _pair_scores(call: Call, query: Pointer, b: int, key_count: int, scores: Pointer, zero: Any) -> None:
    """Write a query's inner products with, or squared distances from, its keys."""
    lanes, size = lanes_of(zero), call.features
    for j in range(key_count):
        key, acc = at(pointer(call.key, zero), (b * call.keys + j) * size), full(0, zero)
        if call.pair == INNER:
            for c in range(0, size, lanes):
                acc += load(query, c) * load(key, c)
        else:
            for c in range(0, size, lanes):
                difference = load(query, c) - load(key, c)
                acc += difference * difference
        # An overflowing square becomes the largest number, so that a query far from all keys still has weights.
        score = total(acc)
        scores[j] = call.largest if call.pair != INNER and score > call.largest else score


@inlined
def attend_row(
    call: Call, index: int, b: int, query: Pointer, exps: Pointer, weights: Pointer, context: Pointer, zero: Any
) -> None:
    """Write a query's weights over its keys, and the weighted sum of their values."""
    lanes, size, key_count = lanes_of(zero), call.values, count_keys(call, b)
    for c in range(0, call.key_row, lanes):
        store(weights, c, full(-np.inf, zero))
    if call.pair == ADDITIVE:
        peak = _write_exponentials(query, exps, call.features, zero)
        _additive_scores(call, query, exps, peak, b, key_count, weights, zero)
    else:
        _pair_scores(call, query, b, key_count, weights, zero)
    if call.pair == DISTANCE:
        for c in range(0, call.key_row, lanes):
            square = load(weights, c)
            store(weights, c, where(square < full(0, zero), square, log_profile(call.profile, square, zero)))
    blocks = call.key_row // lanes
    _, sum_exps = normalise(weights, weights, blocks, -np.inf, zero)
    rescale(weights, call.key_row, by_total(sum_exps, zero), zero)
    for c in range(0, size, 2 * lanes):
        low, high = full(0, zero), full(0, zero)
        for j in range(key_count):
            weight = spread(weights, j)
            if call.weight_factors != 0:
                weight = weight * spread(pointer(call.weight_factors, zero), index * call.key_row + j)
            value = at(pointer(call.value, zero), (b * call.keys + j) * size + c)
            low += weight * load(value, 0)
            high += weight * load(value, lanes)
        store(context, c, low)
        store(context, c + lanes, high)


@inlined
def _find_slope(call: Call, query: Pointer, exps: Pointer, b: int, j: int, c: int, direct: bool, zero: Any) -> Vector:
    """Return the derivatives of an additive score for a vector of features: 4 p r² v.

    Here p = e^{2(q + k)} and r = 1/(1 + p).
    """
    offset = (b * call.keys + j) * call.features
    key, key_exp = at(pointer(call.key, zero), offset), at(pointer(call.key_exp, zero), offset)
    p = _find_p(call, query, key, load(exps, c) * load(key_exp, c), direct, c, zero)
    r = full(1, zero) / (full(1, zero) + p)
    return full(4, zero) * p * r * r * load(pointer(call.weight, zero), c)


@inlined
def _find_peak(call: Call, query: Pointer, zero: Any) -> float:
    peak = full(0, zero)
    for c in range(0, call.features, lanes_of(zero)):
        peak = maximum(magnitude(load(query, c)), peak)
    return largest_lane(peak)


@inlined
def score_gradients(
    call: Call, index: int, b: int, key_count: int, query: Pointer, context_grad: Pointer, by_score: Pointer,
    squares: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Write the gradients of a query's scores, or, for distances, of the squared distances."""
    lanes, size = lanes_of(zero), call.values
    weights = at(pointer(call.weights, zero), index * call.key_row)
    clear(by_score, call.key_row, zero)
    for j in range(key_count):
        value, acc = at(pointer(call.value, zero), (b * call.keys + j) * size), full(0, zero)
        for c in range(0, size, lanes):
            acc += load(context_grad, c) * load(value, c)
        by_score[j] = total(acc)
    dot = full(0, zero)
    for c in range(0, call.key_row, lanes):
        by_weight = load(by_score, c)
        if call.weight_factors != 0:
            by_weight = by_weight * load(pointer(call.weight_factors, zero), index * call.key_row + c)
        if call.weights_grad != 0:
            by_weight = by_weight + load(pointer(call.weights_grad, zero), index * call.key_row + c)
        store(by_score, c, by_weight)
        weight = load(weights, c)
        dot += where(weight == full(0, zero), full(0, zero), weight * by_weight)
    mean = full(total(dot), zero)
    for c in range(0, call.key_row, lanes):
        weight = load(weights, c)
        store(by_score, c, where(weight == full(0, zero), full(0, zero), weight * (load(by_score, c) - mean)))
    if call.pair == DISTANCE:
        clear(squares, call.key_row, zero)
        _pair_scores(call, query, b, key_count, squares, zero)
        for c in range(0, call.key_row, lanes):
            slope = profile_slope(call.profile, load(squares, c), zero)
            store(by_score, c, load(by_score, c) * (slope + slope))


@inlined
def query_gradient(
    call: Call, b: int, key_count: int, query: Pointer, exps: Pointer, by_score: Pointer, target: Pointer, zero: Any
) -> None:
    """Write a query's gradient, from the gradients of its scores."""
    lanes, size = lanes_of(zero), call.features
    direct = False  # True if the query or its keys are too large for separate exponentials
    if call.pair == ADDITIVE:
        direct = not max(_find_peak(call, query, zero), pointer(call.key_peaks, zero)[b]) <= call.single
    for c in range(0, size, lanes):
        acc = full(0, zero)
        if call.pair == ADDITIVE:
            for j in range(key_count):
                acc += spread(by_score, j) * _find_slope(call, query, exps, b, j, c, direct, zero)
        elif call.pair == INNER:
            for j in range(key_count):
                acc += spread(by_score, j) * load(pointer(call.key, zero), (b * call.keys + j) * size + c)
        else:
            q = load(query, c)
            for j in range(key_count):
                acc += spread(by_score, j) * (q - load(pointer(call.key, zero), (b * call.keys + j) * size + c))
        store(target, c, acc)


@inlined
def key_gradients(call: Call, row: int, weight_grad: Pointer, zero: Any) -> None:
    """Write the gradients of a row's keys, summed over its steps, and add to the gradient of v."""
    lanes, size, b = lanes_of(zero), call.features, read_number(call.order, row)
    length, key_count = read_number(call.lengths, row), count_keys(call, b)
    one, minus_two = full(1, zero), full(-2, zero)
    queries, exps = pointer(call.queries, zero), pointer(call.query_exp, zero)
    by_scores = pointer(call.score_grad, zero)
    direct, is_small = False, False
    if call.pair == ADDITIVE:
        peak = zero
        for t in range(length):
            peak = max(peak, _find_peak(call, at(queries, find_index(call, row, t) * size), zero))
        direct = not max(peak, pointer(call.key_peaks, zero)[b]) <= call.single
        is_small = peak + pointer(call.key_peaks, zero)[b] < SMALL_ROW
    for j in range(key_count):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        key_grad = at(pointer(call.key_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, lanes):
            acc, by_weight = full(0, zero), full(0, zero)
            for t in range(length):
                index = find_index(call, row, t)
                by_score, query = spread(by_scores, index * call.key_row + j), at(queries, index * size)
                if call.pair == ADDITIVE:
                    products = load(exps, index * size + c) * load(
                        pointer(call.key_exp, zero), (b * call.keys + j) * size + c
                    )
                    p = _find_p(call, query, key, products, direct, c, zero)
                    r = one / (one + p)
                    acc += by_score * p * r * r
                    # A small tanh is computed as such, for its digits. In 1 − 2r the 1 cancels in the sum over keys.
                    by_weight += by_score * (tanh(load(query, c) + load(key, c), zero) if is_small else minus_two * r)
                elif call.pair == INNER:
                    acc += by_score * load(query, c)
                else:
                    acc += by_score * (load(key, c) - load(query, c))
            if call.pair == ADDITIVE:
                acc = acc * full(4, zero) * load(pointer(call.weight, zero), c)
                store(weight_grad, c, load(weight_grad, c) + by_weight)
            store(key_grad, c, acc)


@inlined
def value_gradients(call: Call, row: int, zero: Any) -> None:
    """Write the gradients of a row's values, summed over its steps."""
    lanes, size, b = lanes_of(zero), call.values, read_number(call.order, row)
    length, key_count = read_number(call.lengths, row), count_keys(call, b)
    weights, context_sums = pointer(call.weights, zero), pointer(call.context_sums, zero)
    for j in range(key_count):
        value_grad = at(pointer(call.value_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, 2 * lanes):
            low, high = full(0, zero), full(0, zero)
            for t in range(length):
                index = find_index(call, row, t)
                weight = spread(weights, index * call.key_row + j)
                if call.weight_factors != 0:
                    weight = weight * spread(pointer(call.weight_factors, zero), index * call.key_row + j)
                low += weight * load(context_sums, index * size + c)
                high += weight * load(context_sums, index * size + c + lanes)
            store(value_grad, c, low)
            store(value_grad, c + lanes, high)
