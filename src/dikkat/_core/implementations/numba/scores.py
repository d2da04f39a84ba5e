"""The scores of a tile of keys, by the three pair functions.

The additive score is Σ_c v_c tanh(q_c + k_c) = Σ v − 2 s Σ v/a, with a_c = s (1 + e^{2(q_c + k_c)}). v is the score's
weight vector, and the scale s keeps the products of several a finite.
"""

from typing import Any

import numpy as np

from dikkat._core.compiled.profiles import log_profile
from dikkat._core.implementations.numba.packing import packed_key, raw_keys, raw_row
from dikkat._core.implementations.numba.record import FOLD
from dikkat._core.implementations.numba.visibility import begin_scores
from dikkat._engine.compile import inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, Work, store_four
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    full,
    fused,
    gather,
    lanes_of,
    load,
    maximum,
    some,
    spread,
    store,
    where,
)


@inlined
def in_range(acc: Vector, peak: Vector, limit: Vector, zero: Any) -> Any:
    """Return the lanes whose largest denominator `peak` and sum `acc` are within the limit, and not NaN."""
    return (peak < limit) & (acc < limit) & (full(0, zero) - limit < acc)


@inlined
def _denominator(query: Pointer, key: Pointer, c: int, s: Vector, zero: Any) -> Vector:
    return s + spread(query, c) * load(key, c * lanes_of(zero))


@inlined
def _fold_eight(query: Pointer, key: Pointer, c: int, weight: Pointer, s: Vector, zero: Any) -> tuple[Vector, Vector]:
    """Return the numerator and denominator of Σ v/a over eight features. Calls for two rows load a key once."""
    a0, a1 = _denominator(query, key, c, s, zero), _denominator(query, key, c + 1, s, zero)
    a2, a3 = _denominator(query, key, c + 2, s, zero), _denominator(query, key, c + 3, s, zero)
    a4, a5 = _denominator(query, key, c + 4, s, zero), _denominator(query, key, c + 5, s, zero)
    a6, a7 = _denominator(query, key, c + 6, s, zero), _denominator(query, key, c + 7, s, zero)
    n01, d01 = spread(weight, c) * a1 + spread(weight, c + 1) * a0, a0 * a1
    n23, d23 = spread(weight, c + 2) * a3 + spread(weight, c + 3) * a2, a2 * a3
    n45, d45 = spread(weight, c + 4) * a5 + spread(weight, c + 5) * a4, a4 * a5
    n67, d67 = spread(weight, c + 6) * a7 + spread(weight, c + 7) * a6, a6 * a7
    n03, d03 = n01 * d23 + n23 * d01, d01 * d23
    n47, d47 = n45 * d67 + n67 * d45, d45 * d67
    return n03 * d47 + n47 * d03, d03 * d47


@inlined
def _additive_row(
    query: Pointer, key: Pointer, weight: Pointer, padded: int, s: Vector, zero: Any
) -> tuple[Vector, Vector]:
    """Return Σ v/a of a row with a block of keys, and the largest denominator, by which `in_range` finds overflow."""
    acc = full(0, zero)
    peak = acc
    for c in range(0, padded, FOLD):
        numerator, denominator = _fold_eight(query, key, c, weight, s, zero)
        acc += numerator / denominator
        peak = maximum(peak, denominator)
    return acc, peak


@inlined
def _additive_rows(
    query: Pointer, key: Pointer, weight: Pointer, padded: int, s: Vector, zero: Any,
) -> tuple[Vector, Vector, Vector, Vector]:  # fmt: skip
    """Return Σ v/a of two rows with a block of keys, each with its largest denominator."""
    acc0 = full(0, zero)
    acc1, peak0, peak1 = acc0, acc0, acc0
    for c in range(0, padded, FOLD):
        numerator, denominator = _fold_eight(query, key, c, weight, s, zero)
        acc0 += numerator / denominator
        peak0 = maximum(peak0, denominator)
        numerator, denominator = _fold_eight(at(query, padded), key, c, weight, s, zero)
        acc1 += numerator / denominator
        peak1 = maximum(peak1, denominator)
    return acc0, peak0, acc1, peak1


@inlined
def _additive_exact(call: Call, b: int, i: int, j: int, weight: Pointer, zero: Any) -> Vector:
    """Return Σ v/a of a row with each key of a block, without overflow for any finite input."""
    query, key = raw_row(call, b, i, zero), raw_keys(call, b, j, zero)
    one, acc = full(1, zero), full(0, zero)
    for c in range(call.features):
        x = spread(query, c) + gather(key, c, call.features, call.keys - j)
        acc += spread(weight, c) / (one + exp(x + x))
    return acc * full(1 / call.scale, zero)


@inlined
def _add_scores(scores: Pointer, index: int, term: Vector, plain: bool, zero: Any) -> None:
    """Add a term to the visible scores of a block, or write it if the tile is plain (see `begin_scores`)."""
    if plain:
        store(scores, index, term)
    else:
        begin, hidden = load(scores, index), full(-np.inf, zero)
        store(scores, index, where(begin == hidden, begin, begin + term))


@inlined
def _visible(scores: Pointer, index: int, plain: bool, zero: Any) -> bool:
    return plain or some(load(scores, index) != full(-np.inf, zero))


@inlined
def _add_additive(
    call: Call, b: int, i: int, j: int, acc: Vector, peak: Vector, scores: Pointer, index: int, weight: Pointer,
    factor: Vector, constant: Vector, plain: bool, zero: Any,
) -> None:  # fmt: skip
    """Add constant + factor · Σ v/a to a row's block of scores; recompute the sum if a visible one is out of range."""
    hidden, begin = full(-np.inf, zero), full(0, zero)
    if not plain:
        begin = load(scores, index)
    out_of_range = where(in_range(acc, peak, full(call.limit, zero), zero), hidden, begin)
    if some(out_of_range != hidden):
        acc = _additive_exact(call, b, i, j, weight, zero)
    _add_scores(scores, index, constant + factor * acc, plain, zero)


@inlined
def _additive_scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, query: Pointer, key: Pointer,
    weight: Pointer, power: float, constant: float, scores: Pointer, plain: bool, zero: Any,
) -> None:  # fmt: skip
    """Add Σ v tanh(q + k) to a tile of scores, as constant − 2 · power · Σ v'/a with the packed v' = v s / power."""
    lanes, padded = lanes_of(zero), call.padded
    s, factor, base = full(call.scale, zero), full(-2 * power, zero), full(constant, zero)
    for block in range(blocks):
        keys, j = at(key, block * padded * lanes), j0 + block * lanes
        i = 0
        while i < rows:
            index, row = i * width + block * lanes, at(query, i * padded)
            first_visible = _visible(scores, index, plain, zero)
            if first_visible and i + 1 < rows and _visible(scores, index + width, plain, zero):
                acc0, peak0, acc1, peak1 = _additive_rows(row, keys, weight, padded, s, zero)
                _add_additive(call, b, i0 + i, j, acc0, peak0, scores, index, weight, factor, base, plain, zero)
                index += width
                _add_additive(call, b, i0 + i + 1, j, acc1, peak1, scores, index, weight, factor, base, plain, zero)
                i += 2
                continue
            if first_visible:
                acc0, peak0 = _additive_row(row, keys, weight, padded, s, zero)
                _add_additive(call, b, i0 + i, j, acc0, peak0, scores, index, weight, factor, base, plain, zero)
            i += 1


@inlined
def squared_distance(query: Pointer, key: Pointer, size: int, zero: Any) -> Vector:
    """Return ‖q − k‖² of a row with a block of keys."""
    lanes = lanes_of(zero)
    acc = full(0, zero)
    for c in range(size):
        away = spread(query, c) - load(key, c * lanes)
        acc = fused(away, away, acc)
    return acc


@inlined
def _four_squares(query: Pointer, key: Pointer, size: int, zero: Any) -> tuple[Vector, Vector, Vector, Vector]:
    lanes = lanes_of(zero)
    step, acc0 = size * lanes, full(0, zero)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for c in range(size):
        q, index = spread(query, c), c * lanes
        away0, away1 = q - load(key, index), q - load(key, index + step)
        away2, away3 = q - load(key, index + 2 * step), q - load(key, index + 3 * step)
        acc0 = fused(away0, away0, acc0)
        acc1 = fused(away1, away1, acc1)
        acc2 = fused(away2, away2, acc2)
        acc3 = fused(away3, away3, acc3)
    return acc0, acc1, acc2, acc3


@inlined
def distance_scores(
    call: Call, rows: int, blocks: int, width: int, query: Pointer, key: Pointer, scores: Pointer, plain: bool,
    zero: Any,
) -> None:  # fmt: skip
    """Add g(‖q − k‖²) to a tile of scores."""
    lanes, size, profile = lanes_of(zero), call.features, call.profile
    for i in range(rows):
        row, block = at(query, i * size), 0
        while block < blocks:
            index, keys = i * width + block * lanes, at(key, block * size * lanes)
            if plain and block + 4 <= blocks:
                s0, s1, s2, s3 = _four_squares(row, keys, size, zero)
                s0, s1 = log_profile(profile, s0, zero), log_profile(profile, s1, zero)
                s2, s3 = log_profile(profile, s2, zero), log_profile(profile, s3, zero)
                store_four(scores, index, lanes, s0, s1, s2, s3)
                block += 4
                continue
            if _visible(scores, index, plain, zero):
                square = squared_distance(row, keys, size, zero)
                _add_scores(scores, index, log_profile(profile, square, zero), plain, zero)
            block += 1


@inlined
def inner_product(query: Pointer, key: Pointer, size: int, zero: Any) -> Vector:
    """Return ⟨q, k⟩ of a row with a block of keys."""
    lanes, acc = lanes_of(zero), full(0, zero)
    for c in range(size):
        acc = fused(spread(query, c), load(key, c * lanes), acc)
    return acc


@inlined
def _add_product(call: Call, scores: Pointer, index: int, product: Vector, plain: bool, zero: Any) -> None:
    """Add inner products, with the call's soft cap, to the visible scores of a block."""
    if call.softcap != 0:
        cap = full(call.softcap, zero)
        product = cap * tanh(product / cap, zero)
    _add_scores(scores, index, product, plain, zero)


@inlined
def inner_scores(
    call: Call, rows: int, blocks: int, width: int, query: Pointer, key: Pointer, scores: Pointer, plain: bool,
    zero: Any,
) -> None:  # fmt: skip
    """Add ⟨q, k⟩, with the call's soft cap, to a tile of scores."""
    lanes, size = lanes_of(zero), call.features
    for block in range(blocks):
        keys, i = at(key, block * size * lanes), 0
        while i < rows:
            row, index = at(query, i * size), i * width + block * lanes
            if i + 4 > rows:
                _add_product(call, scores, index, inner_product(row, keys, size, zero), plain, zero)
                i += 1
                continue
            acc0 = full(0, zero)
            acc1, acc2, acc3 = acc0, acc0, acc0
            for c in range(size):
                k = load(keys, c * lanes)
                acc0, acc1 = fused(spread(row, c), k, acc0), fused(spread(row, c + size), k, acc1)
                acc2, acc3 = fused(spread(row, c + 2 * size), k, acc2), fused(spread(row, c + 3 * size), k, acc3)
            _add_product(call, scores, index, acc0, plain, zero)
            _add_product(call, scores, index + width, acc1, plain, zero)
            _add_product(call, scores, index + 2 * width, acc2, plain, zero)
            _add_product(call, scores, index + 3 * width, acc3, plain, zero)
            i += 4


@inlined
def tile_scores(
    call: Call, work: Work, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, power: float,
    constant: float, zero: Any, inner: Any, additive: Any, distance: Any,
) -> None:  # fmt: skip
    """Write the scores of a tile (rows from i0, blocks of keys from j0), −∞ for hidden pairs.

    `power` and `constant` are the results of `pack_weight`. Two of `inner`, `additive` and `distance` are None.
    """
    query, weight, scores = work.query, work.weight, work.scores
    plain = begin_scores(call, b, i0, rows, j0, blocks, width, work.limits, scores, zero)
    key = packed_key(call, b, j0, zero)
    if additive is not None:
        _additive_scores(call, b, i0, rows, j0, blocks, width, query, key, weight, power, constant, scores, plain, zero)
    if distance is not None:
        distance_scores(call, rows, blocks, width, query, key, scores, plain, zero)
    if inner is not None:
        inner_scores(call, rows, blocks, width, query, key, scores, plain, zero)
