"""Restrictions and dropout in compiled kernels: the visible keys of a row, biases and dropout factors."""

from typing import Any

import numpy as np

from dikkat._engine.compile import inlined
from dikkat._engine.memory import Call, flags_at, read_number
from dikkat._engine.vectors import Pointer, at, full, gather, lane_numbers, lanes_of, load, pointer, store, where


@inlined
def owner(step: int, table: int, b: int) -> int:
    """Return which element of an operand batch element b uses, since batch elements may share operands."""
    if table != 0:
        return read_number(table, b)
    return step * b


@inlined
def limit_of(call: Call, b: int, i: int) -> int:
    """Return one past the last key that row i sees by lengths and causality."""
    limit = call.keys
    if call.causal:
        limit = min(limit, max(0, i + 1 + call.keys - call.queries))
    if call.lens != 0:
        element = owner(call.lens_step, call.lens_table, b)
        element = element * (call.queries if call.lens_row else 1) + i * call.lens_row
        limit = min(limit, max(0, read_number(call.lens, element)))
    return limit


@inlined
def start_of(call: Call, b: int, i: int) -> int:
    if call.starts == 0:
        return 0
    element = owner(call.starts_step, call.starts_table, b)
    return read_number(call.starts, element * (call.queries if call.starts_row else 1) + i * call.starts_row)


@inlined
def first_of(call: Call, b: int, i0: int, rows: int, step: int) -> int:
    """Return the first key visible to any of these rows, rounded down to a multiple of `step`."""
    if call.starts == 0:
        return 0
    first = call.keys
    for i in range(rows):
        first = min(first, start_of(call, b, i0 + i))
    return first // step * step


@inlined
def excluded_of(call: Call, b: int, i: int) -> int:
    element = owner(call.exclude_step, call.exclude_table, b)
    return read_number(call.exclude, element * (call.queries if call.exclude_row else 1) + i * call.exclude_row)


@inlined
def mask_of(call: Call, b: int, i: int) -> Pointer:
    """Return row i's mask; key j's flag is at j · `mask_col`."""
    element = owner(call.mask_step, call.mask_table, b)
    rows, cols = (call.queries if call.mask_row else 1), (call.keys if call.mask_col else 1)
    return flags_at(call.mask, (element * rows + i * call.mask_row) * cols)


@inlined
def bias_of(call: Call, b: int, i: int, zero: Any) -> Pointer:
    """Return row i's bias; key j's number is at j · `bias_col`."""
    return at(pointer(call.bias, zero), read_number(call.bias_offsets, b) + i * call.bias_row)


@inlined
def turn_of(call: Call, task: int) -> int:
    """Return the task of a claimed number. Batch elements of one turn share no bias gradient."""
    if call.turns == 0:
        return task
    return read_number(call.turns, task // call.element_tasks) * call.element_tasks + task % call.element_tasks


@inlined
def bias_grad_of(call: Call, b: int, i: int, local_task: int, zero: Any) -> Pointer:
    """Return the gradient of row i's bias, or a task's gradient if all rows share the bias."""
    row = i if call.bias_row_apart else local_task
    return at(
        pointer(call.bias_grad, zero),
        (owner(call.bias_step, call.bias_table, b) * call.bias_rows + row) * call.bias_cols,
    )


@inlined
def limits_of(call: Call, b: int, i0: int, rows: int, limits: Pointer) -> int:
    """Write each row's limit; return the largest."""
    reach = 0
    for i in range(rows):
        limit = limit_of(call, b, i0 + i)
        limits[i] = limit
        reach = max(reach, limit)
    return reach


@inlined
def begin_scores(
    call: Call, b: int, i0: int, rows: int, j0: int, blocks: int, width: int, limits: Pointer, scores: Pointer,
    zero: Any,
) -> bool:  # fmt: skip
    """Initialise a tile of scores with the biases of visible pairs and −∞ for hidden pairs.

    If all pairs are visible and without bias, write nothing and return True; callers name this `plain`.
    """
    lanes = lanes_of(zero)
    number, nothing, hidden = lane_numbers(zero), full(0, zero), full(-np.inf, zero)
    has_key_bias, has_bias, has_mask, has_exclude = (
        call.key_bias != 0, call.bias != 0, call.mask != 0, call.exclude != 0,
    )  # fmt: skip
    has_starts, lowest_limit = call.starts != 0, limits[0]
    for i in range(1, rows):
        lowest_limit = min(lowest_limit, limits[i])
    if lowest_limit >= j0 + blocks * lanes and not (has_starts or has_key_bias or has_bias or has_mask or has_exclude):
        return True
    key_bias = pointer(call.key_bias, zero)
    if has_key_bias:
        key_bias = at(key_bias, owner(call.key_bias_step, call.key_bias_table, b) * call.key_bias_stride + j0)
    for i in range(rows):
        limit, begin, row = limits[i] - j0, nothing, at(scores, i * width)
        for block in range(blocks):
            if has_key_bias:
                begin = load(key_bias, block * lanes)
            if has_bias:
                j = j0 + block * lanes
                bias_row = at(bias_of(call, b, i0 + i, zero), j * call.bias_col)
                added = (
                    load(bias_row, 0)
                    if call.bias_col == 1 and j + lanes <= call.keys
                    else gather(bias_row, 0, call.bias_col, call.keys - j)
                )
                # A pair that either bias hides is hidden: −∞ + ∞ would be NaN.
                combined = where(begin == hidden, hidden, where(added == hidden, hidden, begin + added))
                begin = combined if has_key_bias else added
            visible_count = limit - block * lanes
            if visible_count >= lanes:
                store(row, block * lanes, begin)
            else:
                store(row, block * lanes, where(number < full(visible_count, zero), begin, hidden))
        if has_starts:
            start = start_of(call, b, i0 + i) - j0
            for block in range(min(blocks, (max(start, 0) + lanes - 1) // lanes)):
                outside = number < full(start - block * lanes, zero)
                store(row, block * lanes, where(outside, hidden, load(row, block * lanes)))
        if has_mask:
            mask = mask_of(call, b, i0 + i)
            for j in range(min(blocks * lanes, call.keys - j0)):
                if mask[(j0 + j) * call.mask_col] == 0:
                    row[j] = -np.inf
        if has_exclude:
            j = excluded_of(call, b, i0 + i) - j0
            if 0 <= j < blocks * lanes:
                row[j] = -np.inf
    return False


@inlined
def _random_bits(seed: Any, index: Any) -> Any:
    """Return 32 random bits for an index, like `arithmetic.random_bits`."""
    low = np.uint64(0xFFFFFFFF)
    bits = (index * np.uint64(0x9E3779B1) + seed) & low
    bits = ((bits ^ (bits >> np.uint64(16))) * np.uint64(0x7FEB352D)) & low
    bits = ((bits ^ (bits >> np.uint64(15))) * np.uint64(0x846CA68B) + (seed >> np.uint64(32))) & low
    return bits ^ (bits >> np.uint64(16))


@inlined
def drop(call: Call, b: int, i: int, j0: int, count: int, factors: Pointer) -> None:
    """Write the factors by which dropout multiplies a row's weights: 0 or 1/(1 − p)."""
    seed = pointer(call.seeds, np.uint64(0))[owner(call.seeds_step, call.seeds_table, b)]
    row = np.uint64(2 * i)
    seed = (_random_bits(seed, row) << np.uint64(31)) ^ _random_bits(seed, row + np.uint64(1))
    for j in range(count):
        bits = _random_bits(seed, np.uint64(j0 + j))
        factors[j] = call.kept_scale if bits >= np.uint64(call.dropout) else 0.0
