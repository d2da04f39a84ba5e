"""Attention in tiles, compiled by Numba: forward and backward for the three pair functions.

The lanes of a vector are keys. Keys and values are packed into blocks of as many keys as a vector has lanes, feature by
feature: `key[block][feature][lane]`. A task is some rows of one batch element; it walks over the tiles of keys that its
rows may see, and threads claim tasks one after the other.

Additive scores come from Σ v tanh(q + k) = Σ v − 2 Σ v r with r = 1/(1 + p), p = e^{2q} e^{2k}. Eight features share
one division: with a_c = s(1 + p_c),

    Σ_c v_c / a_c = numerator / denominator,  u/a + v/b = (u b + v a)/(a b).

s is small, so that the product of eight a's has the whole range of exponents and not its upper half alone. Whether it
left that range is looked at afterwards, for the largest denominator, and what did is done again with plain
exponentials. Those of features beyond ±`highest`, with which that test could be fooled, are NaN, and fail it.

Which pair function it is, is said by type: of `additive`, `distance` and `inner` two are None, and what belongs to them
is not compiled.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.attention.launch import FOLD
from dikkat.cpu.engine.compile import Kernel, inlined, source_digest
from dikkat.cpu.engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    exp,
    full,
    fused,
    gather,
    lane_numbers,
    lanes_of,
    largest,
    load,
    log,
    maximum,
    pointer,
    some,
    spread,
    square_root,
    store,
    total,
    where,
    whole_numbers,
)

GAUSSIAN, BOXCAR, EPANECHNIKOV, TRIANGULAR = range(4)

# Blocks of keys in a tile, forward and backward; rows that go through a tile of the backward together.
TILE, TILE_BACK, GROUP = 16, 2, 4

# Operands that may be shared among batch elements: where they are, and whose are whose.
SHARED = ("query", "key", "weight", "value", "lens", "mask", "bias", "exclude", "seeds")
WHOLE = (
    "counters", "tasks", "parts", "part_rows", "rows", "group", "scratch", "scratch_size",
    "profile", "queries", "keys", "features", "padded", "values", "value_stride", "blocks", "bias_stride",
    "causal", "lens_row", "mask_row", "mask_col", "exclude_row", "dropout", "exact", "narrow",
    "packed_key", "packed_value", "key_astray", "key_peak", "key_owners",
    "mean", "peak", "total", "weights", "mean_grad", "weights_grad", "total_grad", "drift",
    "query_grad", "key_grad", "weight_grad", "value_grad", "bias_grad",
)  # fmt: skip
REAL = ("kept_scale", "scale", "limit", "highest")
CALL = np.dtype(
    [(name, np.int64) for name in WHOLE]
    + [(f"{name}{part}", np.int64) for name in SHARED for part in ("", "_step", "_table")]
    + [(name, np.float64) for name in REAL]
    # A kernel closes over this type, which makes the state of the sources part of what is looked for on disk.
    + [(f"source_{source_digest()}", np.int64)]
)
Call = Any


@inlined
def owner(step: int, table: int, b: int) -> int:
    """Which of an operand's batch elements is b's."""
    if table != 0:
        return pointer(table, np.int64(0))[b]
    return step * b


# --- who sees whom


@inlined
def _limit(call: Call, b: int, i: int) -> int:
    """Row i sees keys below it, as lengths and causality have it."""
    limit = call.keys
    if call.causal:
        limit = min(limit, max(0, i + 1 + call.keys - call.queries))
    if call.lens != 0:
        own = owner(call.lens_step, call.lens_table, b)
        place = own * (call.queries if call.lens_row else 1) + i * call.lens_row
        limit = min(limit, max(0, pointer(call.lens, np.int64(0))[place]))
    return limit


@inlined
def limits_of(call: Call, b: int, i0: int, rows: int, limits: Pointer) -> int:
    """Each row's limit; and one past the last key that any of them may see."""
    reach = 0
    for i in range(rows):
        limit = _limit(call, b, i0 + i)
        limits[i] = limit
        reach = max(reach, limit)
    return reach


@inlined
def _restrict(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, limits: Pointer, scores: Pointer,
    zero: Any,
) -> bool:  # fmt: skip
    """Begin a tile of scores: the key's bias where a pair is visible, −∞ where it is not."""
    lanes = lanes_of(zero)
    number, nothing, hidden = lane_numbers(zero), full(0, zero), full(-np.inf, zero)
    has_bias, has_mask, has_exclude = call.bias != 0, call.mask != 0, call.exclude != 0
    least = limits[0]
    for i in range(1, rows):
        least = min(least, limits[i])
    if least >= j0 + blocks * lanes and not (has_bias or has_mask or has_exclude):
        return True
    bias = pointer(call.bias, zero)
    if has_bias:
        bias = at(bias, owner(call.bias_step, call.bias_table, b) * call.bias_stride + j0)
    for i in range(rows):
        limit, begin, row = limits[i] - j0, nothing, at(scores, i * width)
        for block in range(blocks):
            if has_bias:
                begin = load(bias, block * lanes)
            left = limit - block * lanes
            if left >= lanes:
                store(row, block * lanes, begin)
            else:
                store(row, block * lanes, where(number < full(left, zero), begin, hidden))
        if has_mask:
            own = owner(call.mask_step, call.mask_table, b)
            rows_of, cols_of = (call.queries if call.mask_row else 1), (call.keys if call.mask_col else 1)
            mask = at(pointer(call.mask, np.uint8(0)), (own * rows_of + (i0 + i) * call.mask_row) * cols_of)
            for j in range(min(blocks * lanes, call.keys - j0)):
                if mask[(j0 + j) * call.mask_col] == 0:
                    row[j] = -np.inf
        if has_exclude:
            own = owner(call.exclude_step, call.exclude_table, b)
            place = own * (call.queries if call.exclude_row else 1) + (i0 + i) * call.exclude_row
            j = pointer(call.exclude, np.int64(0))[place] - j0
            if 0 <= j < blocks * lanes:
                row[j] = -np.inf
    return False


@inlined
def _random_bits(seed: Any, index: Any) -> Any:
    """`common.random_bits`."""
    low = np.uint64(0xFFFFFFFF)
    bits = (index * np.uint64(0x9E3779B1) + seed) & low
    bits = ((bits ^ (bits >> np.uint64(16))) * np.uint64(0x7FEB352D)) & low
    bits = ((bits ^ (bits >> np.uint64(15))) * np.uint64(0x846CA68B) + (seed >> np.uint64(32))) & low
    return bits ^ (bits >> np.uint64(16))


@inlined
def drop(call: Call, b: int, i: int, j0: int, count: int, kept: Pointer) -> None:
    """What dropout multiplies a row's weights by: 0 or 1/(1 − p)."""
    seed = pointer(call.seeds, np.uint64(0))[owner(call.seeds_step, call.seeds_table, b)]
    row = np.uint64(2 * i)
    seed = (_random_bits(seed, row) << np.uint64(31)) ^ _random_bits(seed, row + np.uint64(1))
    for j in range(count):
        bits = _random_bits(seed, np.uint64(j0 + j))
        kept[j] = call.kept_scale if bits >= np.uint64(call.dropout) else 0.0


# --- packing


@inlined
def _pack_block(source: Pointer, block: int, count: int, size: int, padded: int, into: Pointer, zero: Any) -> None:
    """A block of keys, feature by feature; zeros beyond the last key and the last feature."""
    lanes = lanes_of(zero)
    number, nothing, left = lane_numbers(zero), full(0, zero), count - block * lanes
    inside = number < full(min(left, lanes), zero)
    source = at(source, block * lanes * size)
    for c in range(padded):
        values = nothing
        if c < size:
            values = where(inside, gather(source, c, size, left), nothing)
        store(into, c * lanes, values)


@inlined
def _exponential(x: Vector, highest: Vector, zero: Any) -> Vector:
    """e^{2x}; NaN beyond ±highest."""
    within = (x < highest) & (full(0, zero) - highest < x)
    return where(within, exp(x + x), full(np.nan, zero))


@inlined
def _clip(x: Vector, highest: Vector, zero: Any) -> Vector:
    """`common.clip`: within ±highest, and NaN as it is."""
    lowest = full(0, zero) - highest
    return where(highest < x, highest, where(x < lowest, lowest, x))


@Kernel
def pack(zero: Any, additive: Any, distance: Any, inner: Any) -> Any:
    """Keys and values in blocks; of additive scores the keys' exponentials, of distances keys that have squares."""
    layout = CALL

    def pack(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, padded, blocks = lanes_of(zero), call.features, call.padded, call.blocks
        highest = full(call.highest, zero)
        keys = call.key_owners * blocks  # none, where they have been packed before
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            if task >= keys:
                own, block = (task - keys) // blocks, (task - keys) % blocks
                source = at(pointer(call.value, zero), own * call.keys * call.values)
                into = at(pointer(call.packed_value, zero), (task - keys) * call.values * lanes)
                _pack_block(source, block, call.keys, call.values, call.values, into, zero)
                continue
            own, block = task // blocks, task % blocks
            source = at(pointer(call.key, zero), own * call.keys * size)
            into = at(pointer(call.packed_key, zero), task * padded * lanes)
            _pack_block(source, block, call.keys, size, padded, into, zero)
            for c in range(size):
                if additive is not None:
                    store(into, c * lanes, _exponential(load(into, c * lanes), highest, zero))
                if distance is not None:
                    store(into, c * lanes, _clip(load(into, c * lanes), highest, zero))

    return pack


@inlined
def pack_weight(call: Call, own: int, into: Pointer, zero: Any) -> tuple[float, float]:
    """v s / 2^e with |v| ≤ 2^e; and 2^e, and Σ v."""
    weight = at(pointer(call.weight, zero), own * call.features)
    peak, whole = zero, zero
    for c in range(call.features):
        peak = max(peak, abs(weight[c]))
        whole += weight[c]
    power = 2.0 ** min(math.ceil(math.log2(peak)), 120) if 0 < peak < np.inf else 1.0
    for c in range(call.padded):
        into[c] = weight[c] * (call.scale / power) if c < call.features else zero
    return power, whole


@inlined
def _pack_rows(call: Call, b: int, i0: int, rows: int, into: Pointer, zero: Any, additive: Any, distance: Any) -> None:
    """The rows' exponentials times s, for additive scores; the rows as they are for the others."""
    lanes, size, padded = lanes_of(zero), call.features, call.padded
    source = raw_row(call, b, i0, zero)
    if size == padded:
        copy(source, into, rows * size, zero)
    else:
        for i in range(rows):
            copy(at(source, i * size), at(into, i * padded), size, zero)
            for c in range(size, padded):
                into[i * padded + c] = zero
    scale, highest = full(call.scale, zero), full(call.highest, zero)
    for place in range(0, rows * padded, lanes):  # the scratch goes on behind the last row
        if additive is not None:
            store(into, place, scale * _exponential(load(into, place), highest, zero))
        if distance is not None:
            store(into, place, _clip(load(into, place), highest, zero))


@inlined
def copy(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    """Copy so many numbers."""
    lanes = lanes_of(zero)
    whole = count - count % lanes
    for place in range(0, whole, lanes):
        store(into, place, load(source, place))
    for place in range(whole, count):
        into[place] = source[place]


@inlined
def raw_row(call: Call, b: int, i: int, zero: Any) -> Pointer:
    """A query as it came."""
    own = owner(call.query_step, call.query_table, b)
    return at(pointer(call.query, zero), (own * call.queries + i) * call.features)


# --- scores


@inlined
def _eight(
    query: Pointer, c: int, k0: Vector, k1: Vector, k2: Vector, k3: Vector, k4: Vector, k5: Vector, k6: Vector,
    k7: Vector, weight: Pointer, s: Vector,
) -> tuple[Vector, Vector]:  # fmt: skip
    """Numerator and denominator of Σ v/a over eight features."""
    a0, a1 = s + spread(query, c) * k0, s + spread(query, c + 1) * k1
    a2, a3 = s + spread(query, c + 2) * k2, s + spread(query, c + 3) * k3
    a4, a5 = s + spread(query, c + 4) * k4, s + spread(query, c + 5) * k5
    a6, a7 = s + spread(query, c + 6) * k6, s + spread(query, c + 7) * k7
    n01, d01 = spread(weight, c) * a1 + spread(weight, c + 1) * a0, a0 * a1
    n23, d23 = spread(weight, c + 2) * a3 + spread(weight, c + 3) * a2, a2 * a3
    n45, d45 = spread(weight, c + 4) * a5 + spread(weight, c + 5) * a4, a4 * a5
    n67, d67 = spread(weight, c + 6) * a7 + spread(weight, c + 7) * a6, a6 * a7
    n03, d03 = n01 * d23 + n23 * d01, d01 * d23
    n47, d47 = n45 * d67 + n67 * d45, d45 * d67
    return n03 * d47 + n47 * d03, d03 * d47


@inlined
def in_range(acc: Vector, peak: Vector, limit: Vector, zero: Any) -> Any:
    """Where neither a denominator nor a numerator left the range, nor a NaN came."""
    return (peak < limit) & (acc < limit) & (full(0, zero) - limit < acc)


@inlined
def _additive_row(
    query: Pointer, key: Pointer, weight: Pointer, padded: int, s: Vector, zero: Any
) -> tuple[Vector, Vector]:
    """Σ v/a of a row with a block of keys, and the largest denominator."""
    lanes = lanes_of(zero)
    acc = full(0, zero)
    peak = acc
    for c in range(0, padded, FOLD):
        k = at(key, c * lanes)
        numerator, denominator = _eight(
            query, c, load(k, 0), load(k, lanes), load(k, 2 * lanes), load(k, 3 * lanes), load(k, 4 * lanes),
            load(k, 5 * lanes), load(k, 6 * lanes), load(k, 7 * lanes), weight, s,
        )  # fmt: skip
        acc += numerator / denominator
        peak = maximum(peak, denominator)
    return acc, peak


@inlined
def _additive_rows(
    query: Pointer, key: Pointer, weight: Pointer, padded: int, s: Vector, zero: Any,
) -> tuple[Vector, Vector, Vector, Vector]:  # fmt: skip
    """Of two rows: what they share is loaded once."""
    lanes = lanes_of(zero)
    acc0 = full(0, zero)
    acc1, peak0, peak1 = acc0, acc0, acc0
    for c in range(0, padded, FOLD):
        k = at(key, c * lanes)
        k0, k1, k2, k3 = load(k, 0), load(k, lanes), load(k, 2 * lanes), load(k, 3 * lanes)
        k4, k5, k6, k7 = load(k, 4 * lanes), load(k, 5 * lanes), load(k, 6 * lanes), load(k, 7 * lanes)
        numerator, denominator = _eight(query, c, k0, k1, k2, k3, k4, k5, k6, k7, weight, s)
        acc0 += numerator / denominator
        peak0 = maximum(peak0, denominator)
        numerator, denominator = _eight(at(query, padded), c, k0, k1, k2, k3, k4, k5, k6, k7, weight, s)
        acc1 += numerator / denominator
        peak1 = maximum(peak1, denominator)
    return acc0, peak0, acc1, peak1


@inlined
def raw_keys(call: Call, b: int, j: int, zero: Any) -> Pointer:
    """Keys from the j-th on, as they came."""
    own = owner(call.key_step, call.key_table, b)
    return at(pointer(call.key, zero), (own * call.keys + j) * call.features)


@inlined
def _additive_exact(call: Call, b: int, i: int, j: int, weight: Pointer, zero: Any) -> Vector:
    """Σ v/a of a row with a block of keys, for finite numbers of any size."""
    query, key = raw_row(call, b, i, zero), raw_keys(call, b, j, zero)
    one, acc = full(1, zero), full(0, zero)
    for c in range(call.features):
        x = spread(query, c) + gather(key, c, call.features, call.keys - j)
        acc += spread(weight, c) / (one + exp(x + x))
    return acc * full(1 / call.scale, zero)


@inlined
def _add_scores(scores: Pointer, place: int, share: Vector, whole: bool, zero: Any) -> None:
    """Add to what a tile begins with, where it is visible; write, where it is whole and begins with nothing."""
    if whole:
        store(scores, place, share)
    else:
        begin, hidden = load(scores, place), full(-np.inf, zero)
        store(scores, place, where(begin == hidden, begin, begin + share))


@inlined
def _visible(scores: Pointer, place: int, whole: bool, zero: Any) -> bool:
    """Whether any lane is."""
    return whole or some(load(scores, place) != full(-np.inf, zero))


@inlined
def _add_additive(
    call: Call, b: int, i: int, j: int, acc: Vector, peak: Vector, scores: Pointer, place: int, weight: Pointer,
    factor: Vector, constant: Vector, whole: bool, zero: Any,
) -> None:  # fmt: skip
    """Add a row's scores with a block of keys; once more and plainly, where a visible one was out of range."""
    hidden, begin = full(-np.inf, zero), full(0, zero)
    if not whole:
        begin = load(scores, place)
    astray = where(in_range(acc, peak, full(call.limit, zero), zero), hidden, begin)
    if some(astray != hidden):
        acc = _additive_exact(call, b, i, j, weight, zero)
    _add_scores(scores, place, constant + factor * acc, whole, zero)


@inlined
def _additive_scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, query: Pointer, key: Pointer,
    weight: Pointer, power: float, constant: float, scores: Pointer, whole: bool, zero: Any,
) -> None:  # fmt: skip
    """Σ v − 2 Σ v r."""
    lanes, padded = lanes_of(zero), call.padded
    s, factor, base = full(call.scale, zero), full(-2 * power, zero), full(constant, zero)
    for block in range(blocks):
        keys, j = at(key, block * padded * lanes), j0 + block * lanes
        i = 0
        while i < rows:
            place, row = i * width + block * lanes, at(query, i * padded)
            first = _visible(scores, place, whole, zero)
            if first and i + 1 < rows and _visible(scores, place + width, whole, zero):
                acc0, peak0, acc1, peak1 = _additive_rows(row, keys, weight, padded, s, zero)
                _add_additive(call, b, i0 + i, j, acc0, peak0, scores, place, weight, factor, base, whole, zero)
                place += width
                _add_additive(call, b, i0 + i + 1, j, acc1, peak1, scores, place, weight, factor, base, whole, zero)
                i += 2
                continue
            if first:
                acc0, peak0 = _additive_row(row, keys, weight, padded, s, zero)
                _add_additive(call, b, i0 + i, j, acc0, peak0, scores, place, weight, factor, base, whole, zero)
            i += 1


@inlined
def log_profile(profile: int, square: Vector, zero: Any) -> Vector:
    """`common.log_profile`."""
    if profile == GAUSSIAN:
        return full(-0.5, zero) * square
    one, outside = full(1, zero), full(-np.inf, zero)
    if profile == BOXCAR:
        return where(square > one, outside, full(0, zero) * square)
    if profile == TRIANGULAR:
        square = square_root(square)
    left = one - square
    # Not by `left > 0`: NaN is not outside.
    return where((one < square) | (one == square), outside, where(left > full(0, zero), log(left), left))


@inlined
def profile_slope(profile: int, square: Vector, zero: Any) -> Vector:
    """`common.profile_slope`."""
    one, nothing = full(1, zero), full(0, zero)
    if profile == GAUSSIAN:
        return full(-0.5, zero)
    if profile == BOXCAR:
        return nothing
    outside = (one < square) | (one == square)
    if profile == EPANECHNIKOV:
        return where(outside, nothing, (nothing - one) / (one - square))
    flat = outside | (square == nothing)
    radius = square_root(where(flat, full(0.25, zero), square))
    return where(flat, nothing, full(-0.5, zero) / (radius * (one - radius)))


@inlined
def _square(query: Pointer, key: Pointer, size: int, zero: Any) -> Vector:
    """‖q − k‖² of a row with a block of keys."""
    lanes = lanes_of(zero)
    acc = full(0, zero)
    for c in range(size):
        away = spread(query, c) - load(key, c * lanes)
        acc = fused(away, away, acc)
    return acc


@inlined
def _four_squares(query: Pointer, key: Pointer, size: int, zero: Any) -> tuple[Vector, Vector, Vector, Vector]:
    """‖q − k‖² of a row with four blocks of keys."""
    lanes = lanes_of(zero)
    step, acc0 = size * lanes, full(0, zero)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for c in range(size):
        q, place = spread(query, c), c * lanes
        away0, away1 = q - load(key, place), q - load(key, place + step)
        away2, away3 = q - load(key, place + 2 * step), q - load(key, place + 3 * step)
        acc0 = fused(away0, away0, acc0)
        acc1 = fused(away1, away1, acc1)
        acc2 = fused(away2, away2, acc2)
        acc3 = fused(away3, away3, acc3)
    return acc0, acc1, acc2, acc3


@inlined
def _distance_scores(
    call: Call, rows: int, blocks: int, width: int, query: Pointer, key: Pointer, scores: Pointer, whole: bool,
    zero: Any,
) -> None:  # fmt: skip
    lanes, size, profile = lanes_of(zero), call.features, call.profile
    for i in range(rows):
        row, block = at(query, i * size), 0
        while block < blocks:
            place, keys = i * width + block * lanes, at(key, block * size * lanes)
            if whole and block + 4 <= blocks:
                s0, s1, s2, s3 = _four_squares(row, keys, size, zero)
                store(scores, place, log_profile(profile, s0, zero))
                store(scores, place + lanes, log_profile(profile, s1, zero))
                store(scores, place + 2 * lanes, log_profile(profile, s2, zero))
                store(scores, place + 3 * lanes, log_profile(profile, s3, zero))
                block += 4
                continue
            if _visible(scores, place, whole, zero):
                square = _square(row, keys, size, zero)
                _add_scores(scores, place, log_profile(profile, square, zero), whole, zero)
            block += 1


@inlined
def _inner_scores(
    call: Call, rows: int, blocks: int, width: int, query: Pointer, key: Pointer, scores: Pointer, whole: bool,
    zero: Any,
) -> None:  # fmt: skip
    lanes, size = lanes_of(zero), call.features
    for block in range(blocks):
        keys, i = at(key, block * size * lanes), 0
        while i < rows:
            row, place = at(query, i * size), i * width + block * lanes
            acc0 = full(0, zero)
            if i + 4 > rows:
                for c in range(size):
                    acc0 = fused(spread(row, c), load(keys, c * lanes), acc0)
                _add_scores(scores, place, acc0, whole, zero)
                i += 1
                continue
            acc1, acc2, acc3 = acc0, acc0, acc0
            for c in range(size):
                k = load(keys, c * lanes)
                acc0, acc1 = fused(spread(row, c), k, acc0), fused(spread(row, c + size), k, acc1)
                acc2, acc3 = fused(spread(row, c + 2 * size), k, acc2), fused(spread(row, c + 3 * size), k, acc3)
            _add_scores(scores, place, acc0, whole, zero)
            _add_scores(scores, place + width, acc1, whole, zero)
            _add_scores(scores, place + 2 * width, acc2, whole, zero)
            _add_scores(scores, place + 3 * width, acc3, whole, zero)
            i += 4


@inlined
def _scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, query: Pointer, weight: Pointer,
    power: float, constant: float, limits: Pointer, scores: Pointer, zero: Any, additive: Any, distance: Any,
    inner: Any,
) -> None:  # fmt: skip
    """A tile's scores, −∞ where hidden: some rows from i0 on, blocks of keys from j0 on."""
    whole = _restrict(call, b, i0, rows, j0, blocks, width, limits, scores, zero)
    key = _packed_key(call, b, j0, zero)
    if additive is not None:
        _additive_scores(call, b, i0, rows, j0, blocks, width, query, key, weight, power, constant, scores, whole, zero)
    if distance is not None:
        _distance_scores(call, rows, blocks, width, query, key, scores, whole, zero)
    if inner is not None:
        _inner_scores(call, rows, blocks, width, query, key, scores, whole, zero)


@inlined
def _packed_key(call: Call, b: int, j0: int, zero: Any) -> Pointer:
    own = owner(call.key_step, call.key_table, b)
    return at(pointer(call.packed_key, zero), (own * call.blocks * lanes_of(zero) + j0) * call.padded)


@inlined
def _packed_value(call: Call, b: int, j0: int, zero: Any) -> Pointer:
    own = owner(call.value_step, call.value_table, b)
    return at(pointer(call.packed_value, zero), (own * call.blocks * lanes_of(zero) + j0) * call.values)


# --- forward: normalise and average


@inlined
def _normalise(scores: Pointer, weights: Pointer, blocks: int, before: float, zero: Any) -> tuple[float, float]:
    """A row's weights e^(score − peak); the peak over these keys and those before, and the weights' sum."""
    lanes = lanes_of(zero)
    top = load(scores, 0)
    for block in range(1, blocks):
        top = maximum(load(scores, block * lanes), top)
    # A row of NaN has no peak: 0 is subtracted, and NaN remains.
    peak = max(before, largest(top))
    base = full(_base(peak, zero), zero)
    acc = full(0, zero)
    for block in range(blocks):
        share = exp(load(scores, block * lanes) - base)
        store(weights, block * lanes, share)
        acc += share
    return peak, total(acc)


@inlined
def _average_narrow(
    scores: Pointer, weights: Pointer, value: Pointer, blocks: int, size: int, exact: bool, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a row's weighted values, few features: the lanes are keys."""
    lanes = lanes_of(zero)
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for c in range(size):
        acc = load(mean, c * lanes)
        for block in range(blocks):
            share = load(weights, block * lanes) * load(value, (block * size + c) * lanes)
            if exact:
                share = where(load(scores, block * lanes) == hidden, nothing, share)
            acc += share
        store(mean, c * lanes, acc)


@inlined
def _average_exact(
    scores: Pointer, weights: Pointer, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a row's weighted values, of the visible keys alone: 0 · NaN is NaN."""
    for j in range(keys):
        if scores[j] != -np.inf:
            weight = spread(weights, j)
            for c in range(0, stride, lanes_of(zero)):
                store(mean, c, load(mean, c) + weight * load(value, j * stride + c))


@inlined
def _average_row(weights: Pointer, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any) -> None:
    """Add a row's weighted values, many features: the lanes are features."""
    lanes = lanes_of(zero)
    for c in range(0, stride, lanes):
        acc = load(mean, c)
        for j in range(keys):
            acc += spread(weights, j) * load(value, j * stride + c)
        store(mean, c, acc)


@inlined
def _average_rows(
    weights: Pointer, width: int, value: Pointer, keys: int, stride: int, mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Of four rows, for two vectors of features at a time: each load serves several products."""
    lanes = lanes_of(zero)
    w0, w1, w2, w3 = weights, at(weights, width), at(weights, 2 * width), at(weights, 3 * width)
    m0, m1, m2, m3 = mean, at(mean, stride), at(mean, 2 * stride), at(mean, 3 * stride)
    for c in range(0, stride, 2 * lanes):
        d = min(c + lanes, stride - lanes)  # the last one again, where their number is odd
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
def _average(
    call: Call, b: int, rows: int, j0: int, blocks: int, width: int, scores: Pointer, weights: Pointer,
    mean: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add the rows' weighted values of a tile to their means."""
    stride = call.value_stride
    if call.narrow:
        value = _packed_value(call, b, j0, zero)
        for i in range(rows):
            own = at(mean, i * stride)
            _average_narrow(
                at(scores, i * width), at(weights, i * width), value, blocks, call.values, call.exact != 0, own, zero
            )
        return
    keys = min(blocks * lanes_of(zero), call.keys - j0)
    value = at(pointer(call.value, zero), (owner(call.value_step, call.value_table, b) * call.keys + j0) * stride)
    i = 0
    while i < rows:
        own = at(mean, i * stride)
        if call.exact:
            _average_exact(at(scores, i * width), at(weights, i * width), value, keys, stride, own, zero)
            i += 1
        elif i + 4 <= rows:
            _average_rows(at(weights, i * width), width, value, keys, stride, own, zero)
            i += 4
        else:
            _average_row(at(weights, i * width), value, keys, stride, own, zero)
            i += 1


@inlined
def _rescale(mean: Pointer, count: int, factor: float, zero: Any) -> None:
    by = full(factor, zero)
    for c in range(0, count, lanes_of(zero)):
        store(mean, c, load(mean, c) * by)


@inlined
def _drop_tile(
    call: Call, b: int, i0: int, rows: int, j0: int, count: int, width: int, weights: Pointer, kept: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    for i in range(rows):
        drop(call, b, i0 + i, j0, count, kept)
        for place in range(0, count, lanes_of(zero)):
            store(weights, i * width + place, load(weights, i * width + place) * load(kept, place))


@Kernel
def forward(zero: Any, additive: Any, distance: Any, inner: Any) -> Any:
    """Means, peaks, totals, and weights where they are wanted."""
    layout = CALL

    def forward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes = lanes_of(zero)
        width = TILE * lanes
        worker = claim(call.counters + 8)
        if worker >= call.tasks:  # more threads than tasks, and than scratch
            return
        scratch = at(pointer(call.scratch, zero), worker * call.scratch_size)
        scores, weights = scratch, at(scratch, call.rows * width)
        kept = at(weights, call.rows * width)
        weight = at(kept, width)
        query = at(weight, call.padded)
        # A whole number of vectors on, so that what follows is aligned.
        mean = at(weight, (call.padded * (1 + call.rows) + lanes - 1) // lanes * lanes)
        peaks = at(mean, call.rows * call.value_stride)
        sums = at(peaks, call.rows)
        # As many bytes as a wide integer takes, whatever the type.
        limits = whole_numbers(at(sums, call.rows))
        packed_weight, power, constant = -1, 1.0, zero
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b, i0 = task // call.parts, (task % call.parts) * call.rows
            rows = min(call.rows, call.queries - i0)
            if additive is not None and owner(call.weight_step, call.weight_table, b) != packed_weight:
                packed_weight = owner(call.weight_step, call.weight_table, b)
                power, constant = pack_weight(call, packed_weight, weight, zero)
            _pack_rows(call, b, i0, rows, query, zero, additive, distance)
            for i in range(rows):
                peaks[i], sums[i] = -np.inf, zero
            for place in range(0, rows * call.value_stride, lanes):
                store(mean, place, full(0, zero))
            reach = limits_of(call, b, i0, rows, limits)
            for j0 in range(0, reach, width):
                blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                _scores(
                    call, b, i0, rows, j0, blocks, width, query, weight, power, constant, limits, scores, zero,
                    additive, distance, inner,
                )  # fmt: skip
                for i in range(rows):
                    before = peaks[i]
                    peaks[i], added = _normalise(at(scores, i * width), at(weights, i * width), blocks, before, zero)
                    if peaks[i] > before > -np.inf:
                        shrink = math.exp(before - peaks[i])
                        sums[i] *= shrink
                        _rescale(at(mean, i * call.value_stride), call.value_stride, shrink, zero)
                    sums[i] += added
                if call.seeds != 0:
                    _drop_tile(call, b, i0, rows, j0, blocks * lanes, width, weights, kept, zero)
                _average(call, b, rows, j0, blocks, width, scores, weights, mean, zero)
            for i in range(rows):
                _finish_row(call, b * call.queries + i0 + i, at(mean, i * call.value_stride), peaks[i], sums[i], zero)
            if call.weights == 0:
                continue
            for j0 in range(0, reach, width):
                blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                _scores(
                    call, b, i0, rows, j0, blocks, width, query, weight, power, constant, limits, scores, zero,
                    additive, distance, inner,
                )  # fmt: skip
                for i in range(rows):
                    row = b * call.queries + i0 + i
                    _write_weights(call, row, j0, blocks, peaks[i], sums[i], at(scores, i * width), zero)

    return forward


@inlined
def _finish_row(call: Call, row: int, mean: Pointer, peak: float, whole: float, zero: Any) -> None:
    """Write a row's mean, peak and total: 0, −∞ and 0 where no key was visible."""
    lanes = lanes_of(zero)
    out = at(pointer(call.mean, zero), row * call.values)
    by = _by_total(whole, zero)
    if call.narrow:
        for c in range(call.values):
            out[c] = by * total(load(mean, c * lanes))
    else:
        _rescale(mean, call.value_stride, by, zero)
        copy(mean, out, call.values, zero)
    pointer(call.peak, zero)[row], pointer(call.total, zero)[row] = peak, whole


@inlined
def _by_total(whole: float, zero: Any) -> float:
    """What makes weights of e^(score − peak); 0 where there are none."""
    return zero if whole == 0 else 1 / whole


@inlined
def _base(peak: float, zero: Any) -> float:
    """What is subtracted from a row's scores: one of −∞ or NaN alone has no peak, and keeps them."""
    return peak if peak > -np.inf else zero


@inlined
def _write_weights(
    call: Call, row: int, j0: int, blocks: int, peak: float, whole: float, scores: Pointer, zero: Any
) -> None:
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    base, by = full(_base(peak, zero), zero), full(_by_total(whole, zero), zero)
    out = at(pointer(call.weights, zero), row * call.keys + j0)
    for block in range(blocks):
        score = load(scores, block * lanes)
        # In a row of NaN, what is hidden still weighs nothing.
        share = where(score == hidden, nothing, exp(score - base) * by)
        if j0 + (block + 1) * lanes <= call.keys:
            store(out, block * lanes, share)
        else:
            store(scores, block * lanes, share)
            for j in range(block * lanes, call.keys - j0):
                out[j] = scores[j]


# --- backward


@inlined
def _distance_gradients(
    call: Call, rows: int, query: Pointer, key: Pointer, scores: Pointer, by_score: Pointer, width: int,
    query_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a block's share to Σ_j 2 g slope (q − k), and to the same over the rows with the other sign."""
    lanes, size = lanes_of(zero), call.features
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for i in range(rows):
        row, begin = at(query, i * size), load(scores, i * width)
        by_square = load(by_score, i * width) * full(2, zero)
        square = nothing
        if call.profile != GAUSSIAN:
            square = _square(row, key, size, zero)
        by_square = by_square * profile_slope(call.profile, square, zero)
        for c in range(size):
            share = by_square * (spread(row, c) - load(key, c * lanes))
            if call.exact:
                share = where(begin == hidden, nothing, share)
            place = (c * GROUP + i) * lanes
            store(query_sums, place, load(query_sums, place) + share)
            store(key_grad, c * lanes, load(key_grad, c * lanes) - share)


@inlined
def _inner_gradients(
    call: Call, rows: int, query: Pointer, key: Pointer, scores: Pointer, by_score: Pointer, width: int,
    query_sums: Pointer, key_grad: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Add a block's share to Σ_j g k and Σ_i g q."""
    lanes, size = lanes_of(zero), call.features
    hidden, nothing = full(-np.inf, zero), full(0, zero)
    for c in range(size):
        k, key_sum = load(key, c * lanes), load(key_grad, c * lanes)
        for i in range(rows):
            g, place = load(by_score, i * width), (c * GROUP + i) * lanes
            by_query, by_key = g * k, g * spread(query, i * size + c)
            if call.exact:
                outside = load(scores, i * width) == hidden
                by_query, by_key = where(outside, nothing, by_query), where(outside, nothing, by_key)
            store(query_sums, place, load(query_sums, place) + by_query)
            key_sum += by_key
        store(key_grad, c * lanes, key_sum)


@inlined
def _by_weights(
    call: Call, rows: int, mean_grad: Pointer, value: Pointer, into: Pointer, width: int, zero: Any
) -> None:
    """⟨gradient of a row's mean, value⟩ for a block of values."""
    lanes, size = lanes_of(zero), call.values
    i = 0
    while i < rows:
        own, acc0 = at(mean_grad, i * size), full(0, zero)
        if i + 4 > rows:
            for c in range(size):
                acc0 += spread(own, c) * load(value, c * lanes)
            store(into, i * width, acc0)
            i += 1
            continue
        acc1, acc2, acc3 = acc0, acc0, acc0
        for c in range(size):
            v = load(value, c * lanes)
            acc0 += spread(own, c) * v
            acc1 += spread(own, c + size) * v
            acc2 += spread(own, c + 2 * size) * v
            acc3 += spread(own, c + 3 * size) * v
        store(into, i * width, acc0)
        store(into, (i + 1) * width, acc1)
        store(into, (i + 2) * width, acc2)
        store(into, (i + 3) * width, acc3)
        i += 4


@inlined
def _value_gradients(
    call: Call, rows: int, mean_grad: Pointer, weights: Pointer, scores: Pointer, width: int, value_grad: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """Add Σ_i of weight times gradient of the row's mean, for a block of values."""
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
def clear(memory: Pointer, count: int, zero: Any) -> None:
    """Set so many numbers to 0, and perhaps some more, less than a vector."""
    for place in range(0, count, lanes_of(zero)):
        store(memory, place, full(0, zero))


@inlined
def _by_scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, scores: Pointer, weights: Pointer,
    by_score: Pointer, kept: Pointer, zero: Any,
) -> None:  # fmt: skip
    """From a tile's scores the shares e^(score − peak) after dropout, and their gradients; `by_score` has the values'.

    What comes from above has been divided by the rows' totals, and so do shares for weights.
    """
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    for i in range(rows):
        row = b * call.queries + i0 + i
        drift, base = spread(pointer(call.drift, zero), row), full(_base(pointer(call.peak, zero)[row], zero), zero)
        if call.seeds != 0:
            drop(call, b, i0 + i, j0, blocks * lanes, kept)
        for block in range(blocks):
            place = i * width + block * lanes
            score, by_weight = load(scores, place), load(by_score, place)
            share = exp(score - base)
            dropped = share
            if call.seeds != 0:
                dropped, by_weight = share * load(kept, block * lanes), by_weight * load(kept, block * lanes)
            if call.weights_grad != 0:
                j = j0 + block * lanes
                own = at(pointer(call.weights_grad, zero), row * call.keys + j)
                by_weight = by_weight + gather(own, 0, 1, call.keys - j)
            store(weights, place, dropped)
            store(by_score, place, where(score == hidden, nothing, share * (by_weight - drift)))


@Kernel
def backward(zero: Any, additive: Any, distance: Any, inner: Any) -> Any:
    """The gradients of everything but additive scores, those over keys in blocks and for each task."""
    layout = CALL

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size = lanes_of(zero), call.features
        width, groups = TILE_BACK * lanes, (call.rows + GROUP - 1) // GROUP
        worker = claim(call.counters + 8)
        if worker >= call.tasks:  # more threads than tasks, and than scratch
            return
        scratch = at(pointer(call.scratch, zero), worker * call.scratch_size)
        scores, weights = scratch, at(scratch, GROUP * width)
        by_score, dropped = at(scratch, 2 * GROUP * width), at(scratch, 3 * GROUP * width)
        query = at(dropped, width)
        query_sums = at(query, call.rows * size + lanes)
        limits = whole_numbers(at(query_sums, groups * GROUP * size * lanes))
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b = task // call.parts
            first = (task % call.parts) * call.part_rows
            last = min(first + call.part_rows, call.queries)
            key_grad = at(pointer(call.key_grad, zero), task * call.blocks * size * lanes)
            value_grad = at(pointer(call.value_grad, zero), task * call.blocks * call.values * lanes)
            bias_grad = at(pointer(call.bias_grad, zero), task * call.blocks * lanes)
            for i0 in range(first, last, call.rows):
                rows = min(call.rows, last - i0)
                _pack_rows(call, b, i0, rows, query, zero, additive, distance)
                clear(query_sums, groups * GROUP * size * lanes, zero)
                reach = limits_of(call, b, i0, rows, limits)
                for j0 in range(0, reach, width):
                    blocks = min(TILE_BACK, (reach - j0 + lanes - 1) // lanes)
                    key, value = _packed_key(call, b, j0, zero), _packed_value(call, b, j0, zero)
                    for g in range(0, rows, GROUP):
                        count, i = min(GROUP, rows - g), i0 + g
                        seen = 0
                        for k in range(g, g + count):
                            seen = max(seen, limits[k])
                        if seen <= j0:
                            continue
                        row, sums = at(query, g * size), at(query_sums, g * size * lanes)
                        mean_grad = at(pointer(call.mean_grad, zero), (b * call.queries + i) * call.values)
                        whole = _restrict(call, b, i, count, j0, blocks, width, at(limits, g), scores, zero)
                        if distance is not None:
                            _distance_scores(call, count, blocks, width, row, key, scores, whole, zero)
                        if inner is not None:
                            _inner_scores(call, count, blocks, width, row, key, scores, whole, zero)
                        for block in range(blocks):
                            own_value = at(value, block * call.values * lanes)
                            _by_weights(call, count, mean_grad, own_value, at(by_score, block * lanes), width, zero)
                        _by_scores(call, b, i, count, j0, blocks, width, scores, weights, by_score, dropped, zero)
                        for block in range(blocks):
                            place, j = block * lanes, j0 + block * lanes
                            begin, grad = at(scores, place), at(by_score, place)
                            own_key, own_grad = at(key, place * size), at(key_grad, j * size)
                            _value_gradients(
                                call, count, mean_grad, at(weights, place), begin, width,
                                at(value_grad, j * call.values), zero,
                            )  # fmt: skip
                            if call.bias_grad != 0:
                                acc = load(bias_grad, j)
                                for k in range(count):
                                    acc += load(grad, k * width)
                                store(bias_grad, j, acc)
                            if distance is not None:
                                _distance_gradients(call, count, row, own_key, begin, grad, width, sums, own_grad, zero)
                            if inner is not None:
                                _inner_gradients(call, count, row, own_key, begin, grad, width, sums, own_grad, zero)
                for k in range(rows):
                    out = at(pointer(call.query_grad, zero), (b * call.queries + i0 + k) * size)
                    for c in range(size):
                        out[c] = total(load(query_sums, ((k // GROUP * size + c) * GROUP + k % GROUP) * lanes))

    return backward
