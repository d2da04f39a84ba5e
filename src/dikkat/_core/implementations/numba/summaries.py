"""Summaries of the weights in tiles, for the three pair functions, compiled by Numba, without the map in memory.

A pair's share is e^(score − peak): its weight before the division by the row's total.

A task is every `element_tasks`-th group of rows of one batch element, so that tasks are equally long even if later rows
see more keys. One pass over the tiles of keys finds each row's peak, total, largest scores and the sum behind its
entropy; and with values their mean, so that the pass is also the forward. When a running peak p grows to p', earlier
sums shrink by e^(p − p'), and

    Σ e^(s − p') (s − p') = e^(p − p') (Σ e^(s − p) (s − p) + (p − p') Σ e^(s − p)).

Sums over rows, by key and by cell of a coarse map, need each row's final total. If the shares e^(score − peak so far)
of a group's rows with all keys fit into the scratch, they are kept and multiplied by each row's factor at the end. If
not, a second pass recomputes the scores. These sums are float64, because they add up tens of thousands of rows.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._core.compiled.softmax import base_of, by_total, largest_of, rescale, write_shares
from dikkat._core.implementations.numba.kernel import average, finish_row
from dikkat._core.implementations.numba.packing import pack_rows, pack_weight, weight_at
from dikkat._core.implementations.numba.record import CALL, TILE
from dikkat._core.implementations.numba.scores import tile_scores
from dikkat._core.implementations.numba.visibility import first_of, limits_of
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, Work, clear, workplace_of
from dikkat._engine.vectors import (
    Pointer,
    at,
    claim,
    full,
    lanes_of,
    load,
    maximum,
    pointer,
    some,
    spread,
    store,
    total,
    where,
)


@inlined
def _share_and_drift(
    scores: Pointer, shares: Pointer, blocks: int, peak: float, lowest: float, zero: Any
) -> tuple[float, float]:
    """Write a row's shares in a tile; return their sum and Σ share · (score − peak)."""
    lanes, base, acc = lanes_of(zero), full(base_of(peak, zero), zero), full(0, zero)
    floor, drift = full(lowest, zero), full(0, zero)  # a hidden key adds 0 times the lowest number
    for block in range(blocks):
        away = load(scores, block * lanes) - base
        share = exp(away)
        store(shares, block * lanes, share)
        acc += share
        drift += share * maximum(away, floor)
    return total(acc), total(drift)


@inlined
def _weigh(scores: Pointer, weights: Pointer, blocks: int, peak: float, inverse_total: float, zero: Any) -> float:
    """Write a row's weights e^(score − peak) / total in a tile; return Σ weight · (score − peak)."""
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    base, factor, drift = full(base_of(peak, zero), zero), full(inverse_total, zero), full(0, zero)
    for block in range(blocks):
        away = load(scores, block * lanes) - base
        visible = away != hidden  # in a row of NaN, too, a hidden key weighs nothing
        weight = where(visible, exp(away) * factor, nothing)
        store(weights, block * lanes, weight)
        drift += weight * where(visible, away, nothing)
    return total(drift)


@inlined
def _keep_largest(scores: Pointer, blocks: int, j0: int, top: int, largest: Pointer, keys: Pointer, zero: Any) -> None:
    """Insert a tile's scores into a row's largest scores; equal scores stay in the order of their keys."""
    lanes, threshold = lanes_of(zero), largest[top - 1]
    for block in range(blocks):
        if some(full(threshold, zero) < load(scores, block * lanes)):
            for j in range(block * lanes, (block + 1) * lanes):
                score = scores[j]
                if score > threshold:
                    rank = top - 1
                    while rank > 0 and largest[rank - 1] < score:
                        largest[rank], keys[rank] = largest[rank - 1], keys[rank - 1]
                        rank -= 1
                    largest[rank], keys[rank] = score, j0 + j
                    threshold = largest[top - 1]


@inlined
def _add_to_keys(
    call: Call, task: int, rows: int, j0: int, blocks: int, width: int, shares: Pointer, work: Work, zero: Any
) -> None:
    """Add a tile's weights, `shares` · the rows' factors, to the sums of its keys, four rows at a time."""
    lanes, factors, sums = lanes_of(zero), work.factors, work.key_sums
    clear(sums, blocks * lanes, zero)
    i = 0
    while i < rows:
        r0, f0 = at(shares, i * width), spread(factors, i)
        if i + 4 > rows:
            for index in range(0, blocks * lanes, lanes):
                store(sums, index, load(sums, index) + f0 * load(r0, index))
            i += 1
            continue
        r1, r2, r3 = at(r0, width), at(r0, 2 * width), at(r0, 3 * width)
        f1, f2, f3 = spread(factors, i + 1), spread(factors, i + 2), spread(factors, i + 3)
        for index in range(0, blocks * lanes, lanes):
            rows01, rows23 = f0 * load(r0, index) + f1 * load(r1, index), f2 * load(r2, index) + f3 * load(r3, index)
            store(sums, index, load(sums, index) + (rows01 + rows23))
        i += 4
    task_sums = at(pointer(call.key_sums_of_task, np.float64(0)), task * call.keys + j0)
    for j in range(min(blocks * lanes, call.keys - j0)):
        task_sums[j] += sums[j]


@inlined
def _add_to_cells(
    call: Call, task: int, i: int, j0: int, count: int, shares: Pointer, factor: float, zero: Any
) -> None:
    """Add a row's weights in a tile to the cells of the map, or write the largest weight."""
    keys, cols = call.keys, call.cell_cols
    row = task * call.cell_rows + i * call.cell_rows // call.queries
    cells = at(pointer(call.cells_of_task, np.float64(0)), row * cols)
    j, end = j0, min(j0 + count, keys)
    while j < end:
        col = j * cols // keys
        stop = min(end, ((col + 1) * keys + cols - 1) // cols)
        acc = zero
        if call.by_largest:
            for k in range(j, stop):
                acc = max(acc, shares[k - j0])
            cells[col] = max(cells[col], acc * factor)
        else:
            for k in range(j, stop):
                acc += shares[k - j0]
            cells[col] += acc * factor
        j = stop


@inlined
def _add_tile(
    call: Call, task: int, i0: int, rows: int, j0: int, blocks: int, width: int, shares: Pointer, work: Work, zero: Any
) -> None:
    """Add a tile's weights, its shares times each row's factor, to the sums over rows."""
    if call.cells_of_task != 0:
        for i in range(rows):
            row_shares, factor = at(shares, i * width), work.factors[i]
            _add_to_cells(call, task, i0 + i, j0, blocks * lanes_of(zero), row_shares, factor, zero)
    if call.key_sums_of_task != 0:
        _add_to_keys(call, task, rows, j0, blocks, width, shares, work, zero)


@inlined
def _begin_row(call: Call, i: int, work: Work, zero: Any) -> None:
    work.peaks[i], work.sums[i], work.drifts[i], work.factors[i] = -np.inf, zero, zero, 1.0
    for rank in range(i * call.top, (i + 1) * call.top):
        work.top_scores[rank], work.top_indices[rank] = -np.inf, -1


@inlined
def _grow(call: Call, i: int, higher: float, work: Work, zero: Any) -> None:
    """Raise a row's peak and shrink its sums."""
    old_peak = work.peaks[i]
    work.peaks[i] = higher
    if higher > old_peak > -np.inf:
        away = old_peak - higher
        shrink = math.exp(away)
        # At 0, the difference of scores times the total could overflow.
        work.drifts[i] = shrink * (work.drifts[i] + away * work.sums[i]) if shrink > 0 else zero
        work.sums[i] *= shrink
        if call.mean != 0:
            rescale(at(work.mean, i * call.value_stride), call.value_stride, shrink, zero)


@inlined
def _add_to_row(
    call: Call, i: int, j0: int, blocks: int, scores: Pointer, shares: Pointer, lowest: float, work: Work, zero: Any
) -> None:
    """Write a row's shares of one tile; update the row's peak, total, largest scores, and the sum for its entropy."""
    highest = largest_of(scores, blocks, zero)
    _grow(call, i, max(work.peaks[i], highest), work, zero)
    if call.entropy != 0:
        added, drift = _share_and_drift(scores, shares, blocks, work.peaks[i], lowest, zero)
        work.drifts[i] += drift
    else:
        added = write_shares(scores, shares, blocks, work.peaks[i], zero)
    work.sums[i] += added
    if call.top != 0 and highest > work.top_scores[(i + 1) * call.top - 1]:
        top_scores, top_indices = at(work.top_scores, i * call.top), at(work.top_indices, i * call.top)
        _keep_largest(scores, blocks, j0, call.top, top_scores, top_indices, zero)


@inlined
def _find_factors(call: Call, tile: int, rows: int, work: Work, zero: Any) -> None:
    """Write the factors that turn a tile's kept shares into weights."""
    for i in range(rows):
        tile_peak, factor = work.tile_peaks[tile * call.rows + i], zero
        if tile_peak > -np.inf:
            factor = math.exp(tile_peak - work.peaks[i]) * by_total(work.sums[i], zero)
        work.factors[i] = factor


@inlined
def _finish_row(call: Call, row: int, i: int, work: Work, zero: Any) -> None:
    peak, row_total = work.peaks[i], work.sums[i]
    base, inverse_total = base_of(peak, zero), by_total(row_total, zero)
    if call.mean != 0:
        finish_row(call, row, at(work.mean, i * call.value_stride), peak, row_total, zero)
    else:
        pointer(call.peak, zero)[row], pointer(call.total, zero)[row] = peak, row_total
    if call.entropy != 0:
        pointer(call.entropy, zero)[row] = zero
        if row_total != 0:
            pointer(call.entropy, zero)[row] = math.log(row_total) - work.drifts[i] * inverse_total
    for rank in range(call.top):
        score = work.top_scores[i * call.top + rank]
        share = inverse_total * zero  # NaN in a row of NaN
        if score > -np.inf:
            share = math.exp(score - base) * inverse_total
        pointer(call.top_weights, zero)[row * call.top + rank] = share
        pointer(call.top_keys, np.int64(0))[row * call.top + rank] = work.top_indices[i * call.top + rank]


_workplace = workplace_of(CALL)


@Kernel
def summarise(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute each row's peak and total, and the requested summaries."""
    layout, lowest = CALL.layout(__name__), np.finfo(type(zero)).min

    def summarise(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes = lanes_of(zero)
        width, work = TILE * lanes, _workplace(call, zero)
        scores, size = work.scores, call.rows * width
        adds = call.key_sums_of_task != 0 or call.cells_of_task != 0
        packed_weight, power, constant = 0, 1.0, zero
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b, first = task // call.element_tasks, (task % call.element_tasks) * call.rows
            if additive is not None and weight_at(call, b, zero) != packed_weight:
                packed_weight = weight_at(call, b, zero)
                power, constant = pack_weight(call, packed_weight, work.weight, zero)
            for i0 in range(first, call.queries, call.element_tasks * call.rows):
                rows, row = min(call.rows, call.queries - i0), b * call.queries + i0
                pack_rows(call, b, i0, rows, work.query, zero, additive, distance)
                begin, reach = first_of(call, b, i0, rows, width), limits_of(call, b, i0, rows, work.limits)
                for i in range(rows):
                    _begin_row(call, i, work, zero)
                if call.mean != 0:
                    clear(work.mean, rows * call.value_stride, zero)
                for j0 in range(begin, reach, width):
                    blocks, tile = min(TILE, (reach - j0 + lanes - 1) // lanes), j0 // width
                    shares = at(work.weights, tile * size * call.keeps)
                    tile_scores(
                        call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance
                    )
                    for i in range(rows):
                        _add_to_row(
                            call, i, j0, blocks, at(scores, i * width), at(shares, i * width), lowest, work, zero
                        )
                        if call.keeps:
                            work.tile_peaks[tile * call.rows + i] = work.peaks[i]
                    if call.mean != 0:
                        average(call, b, rows, j0, blocks, width, scores, shares, work.mean, zero)
                if adds:
                    reuses_shares = call.keeps != 0
                    for i in range(rows):  # 0 · NaN is NaN: a hidden key must not have a row's NaN
                        reuses_shares = reuses_shares and work.sums[i] == work.sums[i]
                    for j0 in range(begin, reach, width):
                        blocks, tile = min(TILE, (reach - j0 + lanes - 1) // lanes), j0 // width
                        shares = at(work.weights, tile * size * call.keeps)
                        if reuses_shares:
                            _find_factors(call, tile, rows, work, zero)
                        else:
                            tile_scores(
                                call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive,
                                distance,
                            )  # fmt: skip
                            for i in range(rows):
                                inverse_total, row_weights = by_total(work.sums[i], zero), at(shares, i * width)
                                _weigh(at(scores, i * width), row_weights, blocks, work.peaks[i], inverse_total, zero)
                        _add_tile(call, task, i0, rows, j0, blocks, width, shares, work, zero)
                for i in range(rows):
                    _finish_row(call, row + i, i, work, zero)

    return summarise
