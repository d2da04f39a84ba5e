"""Packing of operands: keys and values in blocks, query rows and additive weights for one task."""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._core.implementations.numba.record import CALL
from dikkat._core.implementations.numba.visibility import owner
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, copy
from dikkat._engine.record import BYTES
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    full,
    gather,
    lane_numbers,
    lanes_of,
    load,
    pointer,
    store,
    where,
)


@inlined
def raw_row(call: Call, b: int, i: int, zero: Any) -> Pointer:
    """Return the address of a query row before packing."""
    element = owner(call.query_step, call.query_table, b)
    return at(pointer(call.query, zero), (element * call.queries + i) * call.features)


@inlined
def raw_keys(call: Call, b: int, j: int, zero: Any) -> Pointer:
    element = owner(call.key_step, call.key_table, b)
    return at(pointer(call.key, zero), (element * call.keys + j) * call.features)


@inlined
def packed_key(call: Call, b: int, j0: int, zero: Any) -> Pointer:
    element = owner(call.key_step, call.key_table, b)
    return at(pointer(call.packed_key, zero), (element * call.blocks * lanes_of(zero) + j0) * call.padded)


@inlined
def packed_value(call: Call, b: int, j0: int, zero: Any) -> Pointer:
    element = owner(call.value_step, call.value_table, b)
    return at(pointer(call.packed_value, zero), (element * call.blocks * lanes_of(zero) + j0) * call.values)


@inlined
def _pack_block(source: Pointer, block: int, count: int, size: int, padded: int, into: Pointer, zero: Any) -> None:
    """Write one block of keys feature by feature, with zeros beyond the last key and the last feature."""
    lanes = lanes_of(zero)
    number, nothing, remaining = lane_numbers(zero), full(0, zero), count - block * lanes
    inside = number < full(min(remaining, lanes), zero)
    source = at(source, block * lanes * size)
    for c in range(padded):
        values = nothing
        if c < size:
            values = where(inside, gather(source, c, size, remaining), nothing)
        store(into, c * lanes, values)


@inlined
def _exponential(x: Vector, highest: Vector, zero: Any) -> Vector:
    """Return e^{2x}, NaN beyond ±highest."""
    within = (x < highest) & (full(0, zero) - highest < x)
    return where(within, exp(x + x), full(np.nan, zero))


@inlined
def clip(x: Vector, highest: Vector, zero: Any) -> Vector:
    """Clip x to ±highest, like `arithmetic.clip`; NaN stays NaN."""
    lowest = full(0, zero) - highest
    return where(highest < x, highest, where(x < lowest, lowest, x))


@inlined
def _pack_task(call: Call, element: int, block: int, highest: Vector, zero: Any, additive: Any, distance: Any) -> None:
    """Pack a block of keys, or of values if `element` ≥ the number of key elements."""
    lanes, size, padded, blocks = lanes_of(zero), call.features, call.padded, call.blocks
    if element >= call.key_owners:  # `key_owners` is 0 if the keys are packed already
        element -= call.key_owners
        source = at(pointer(call.value, zero), element * call.keys * call.values)
        into = at(pointer(call.packed_value, zero), (element * blocks + block) * call.values * lanes)
        _pack_block(source, block, call.keys, call.values, call.values, into, zero)
        return
    source = at(pointer(call.key, zero), element * call.keys * size)
    into = at(pointer(call.packed_key, zero), (element * blocks + block) * padded * lanes)
    _pack_block(source, block, call.keys, size, padded, into, zero)
    for c in range(size):
        if additive is not None:
            store(into, c * lanes, _exponential(load(into, c * lanes), highest, zero))
        if distance is not None:
            store(into, c * lanes, clip(load(into, c * lanes), highest, zero))


@Kernel
def pack(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Pack keys and values in blocks: for additive scores the keys' exponentials, for distances the keys clipped."""
    layout = CALL.layout(__name__)

    def pack(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        highest = full(call.highest, zero)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            _pack_task(call, task // call.blocks, task % call.blocks, highest, zero, additive, distance)

    return pack


@inlined
def weight_at(call: Call, b: int, zero: Any) -> int:
    return call.weight + owner(call.weight_step, call.weight_table, b) * call.features * (BYTES // lanes_of(zero))


@inlined
def pack_weight(call: Call, address: int, into: Pointer, zero: Any) -> tuple[float, float]:
    """Write v s / 2^e of the weight at an address, with |v| ≤ 2^e; return 2^e and Σ v."""
    weight = pointer(address, zero)
    peak, weight_sum = zero, zero
    for c in range(call.features):
        peak = max(peak, abs(weight[c]))
        weight_sum += weight[c]
    power = 2.0 ** min(math.ceil(math.log2(peak)), 120) if 0 < peak < np.inf else 1.0
    for c in range(call.padded):
        into[c] = weight[c] * (call.scale / power) if c < call.features else zero
    return power, weight_sum


@inlined
def pack_rows(call: Call, b: int, i0: int, rows: int, into: Pointer, zero: Any, additive: Any, distance: Any) -> None:
    """Write a task's rows: for additive scores s e^{2q}, for distances q clipped, for inner products q."""
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
    for index in range(0, rows * padded, lanes):  # a region ends with a whole vector
        if additive is not None:
            store(into, index, scale * _exponential(load(into, index), highest, zero))
        if distance is not None:
            store(into, index, clip(load(into, index), highest, zero))
