"""Summaries of the weights in tiles, for the three pair functions, compiled by Numba, without the map in memory.

A pair's *share* is e^(score − peak), and its *weight* is the share divided by the row's total, the sum of its shares.

A task is every `element_tasks`-th group of rows of one batch element, so that tasks are equally long even if later rows
see more keys. The first pass over the tiles of keys finds each row's peak, total, largest scores, and for its entropy
the `drift` Σ e^(s − p) (s − p); and with values their weighted mean, the forward's output. When a running peak p grows
to p', earlier sums shrink by e^(p − p'), and

    Σ e^(s − p') (s − p') = e^(p − p') (Σ e^(s − p) (s − p) + (p − p') Σ e^(s − p)).

Sums over rows, by key and by cell of a coarse map, need each row's final total, so they have a second pass. If a
group's shares fit into the scratch, the first pass keeps them, relative to the peaks so far, and the second multiplies
them by factors. If not, the second recomputes the scores, and writes weights. The sums over rows are float64, because
they add up tens of thousands of rows. Two of `inner`, `additive` and `distance` are None, as in `kernel`.
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
def _write_weights(scores: Pointer, terms: Pointer, blocks: int, peak: float, inverse_total: float, zero: Any) -> None:
    """Write a row's weights e^(score − peak) / total in a tile; 0 for a hidden key, also in a row of NaN."""
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    base, factor = full(base_of(peak, zero), zero), full(inverse_total, zero)
    for block in range(blocks):
        away = load(scores, block * lanes) - base
        store(terms, block * lanes, where(away != hidden, exp(away) * factor, nothing))


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
    call: Call, task: int, rows: int, j0: int, blocks: int, width: int, terms: Pointer, work: Work, zero: Any
) -> None:
    """Add a tile's weights, `terms` times each row's factor, to the sums of its keys, four rows at a time."""
    lanes, factors, sums = lanes_of(zero), work.factors, work.key_sums
    clear(sums, blocks * lanes, zero)
    i = 0
    while i < rows:
        r0, f0 = at(terms, i * width), spread(factors, i)
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
def _add_to_cells(call: Call, task: int, i: int, j0: int, count: int, terms: Pointer, factor: float, zero: Any) -> None:
    """Add a row's weights in a tile, `terms` times `factor`, to the cells of the map, or keep their largest."""
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
                acc = max(acc, terms[k - j0])
            cells[col] = max(cells[col], acc * factor)
        else:
            for k in range(j, stop):
                acc += terms[k - j0]
            cells[col] += acc * factor
        j = stop


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
    """Write a row's shares in a tile; update the row's peak, total, drift and largest scores."""
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
    """Write the rows' factors, which turn a tile's kept shares into weights."""
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
        weight = inverse_total * zero  # NaN in a row of NaN
        if score > -np.inf:
            weight = math.exp(score - base) * inverse_total
        pointer(call.top_weights, zero)[row * call.top + rank] = weight
        pointer(call.top_keys, np.int64(0))[row * call.top + rank] = work.top_indices[i * call.top + rank]


@inlined
def _first_pass(
    call: Call, b: int, i0: int, rows: int, begin: int, end: int, width: int, power: float, constant: float,
    lowest: float, work: Work, zero: Any, inner: Any, additive: Any, distance: Any,
) -> None:  # fmt: skip
    """Find the peaks, totals, drifts, largest scores and means of rows from i0 on."""
    lanes = lanes_of(zero)
    for j0 in range(begin, end, width):
        blocks, tile = min(TILE, (end - j0 + lanes - 1) // lanes), j0 // width
        shares = at(work.shares, tile * call.rows * width * call.keeps)  # without `keeps` all tiles use the same memory
        tile_scores(call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance)
        for i in range(rows):
            _add_to_row(call, i, j0, blocks, at(work.scores, i * width), at(shares, i * width), lowest, work, zero)
            if call.keeps:
                work.tile_peaks[tile * call.rows + i] = work.peaks[i]
        if call.mean != 0:
            average(call, b, rows, j0, blocks, width, work.scores, shares, work.mean, zero)


@inlined
def _second_pass(
    call: Call, task: int, b: int, i0: int, rows: int, begin: int, end: int, width: int, power: float, constant: float,
    work: Work, zero: Any, inner: Any, additive: Any, distance: Any,
) -> None:  # fmt: skip
    """Add the weights of rows from i0 on to the sums over rows, from kept shares if possible."""
    lanes, reuses_shares = lanes_of(zero), call.keeps != 0
    for i in range(rows):  # a row of NaN has the factor NaN, and NaN · 0 would be a hidden key's weight
        reuses_shares = reuses_shares and work.sums[i] == work.sums[i]
    for j0 in range(begin, end, width):
        blocks, tile = min(TILE, (end - j0 + lanes - 1) // lanes), j0 // width
        terms = at(work.shares, tile * call.rows * width * call.keeps)
        if reuses_shares:
            _find_factors(call, tile, rows, work, zero)
        else:
            tile_scores(call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance)
            for i in range(rows):  # these terms are weights, so the factors stay 1, as in `_begin_row`
                row_scores, inverse_total = at(work.scores, i * width), by_total(work.sums[i], zero)
                _write_weights(row_scores, at(terms, i * width), blocks, work.peaks[i], inverse_total, zero)
        if call.cells_of_task != 0:
            for i in range(rows):
                _add_to_cells(call, task, i0 + i, j0, blocks * lanes, at(terms, i * width), work.factors[i], zero)
        if call.key_sums_of_task != 0:
            _add_to_keys(call, task, rows, j0, blocks, width, terms, work, zero)


_workplace = workplace_of(CALL)


@Kernel
def summarise(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute each row's peak and total, and the requested summaries."""
    layout, lowest = CALL.layout(__name__), np.finfo(type(zero)).min

    def summarise(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        width, work = TILE * lanes_of(zero), _workplace(call, zero)
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
                begin, end = first_of(call, b, i0, rows, width), limits_of(call, b, i0, rows, work.limits)
                for i in range(rows):
                    _begin_row(call, i, work, zero)
                if call.mean != 0:
                    clear(work.mean, rows * call.value_stride, zero)
                _first_pass(
                    call, b, i0, rows, begin, end, width, power, constant, lowest, work, zero, inner, additive, distance
                )
                if call.key_sums_of_task != 0 or call.cells_of_task != 0:
                    _second_pass(
                        call, task, b, i0, rows, begin, end, width, power, constant, work, zero, inner, additive,
                        distance,
                    )  # fmt: skip
                for i in range(rows):
                    _finish_row(call, row + i, i, work, zero)

    return summarise
