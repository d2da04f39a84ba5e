"""Summaries of the weights in tiles, for the three pair functions, compiled by Numba: no row of weights is kept.

A task is some successive rows of one batch element. Unless each row's log-sum-exp is known, a first walk over the tiles
of keys finds its peak and total; a second one makes each tile's weights, and takes from them what is asked for: each
row's entropy and largest weights, and, over all rows of the task, the sums by key and by cell of a coarse map. Those
sums are in float64: tens of thousands of rows are added up.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.attention.kernel import base_of, by_total, normalise
from dikkat.cpu.attention.packing import pack_rows, pack_weight
from dikkat.cpu.attention.record import CALL, TILE
from dikkat.cpu.attention.scores import tile_scores
from dikkat.cpu.attention.visibility import limits_of, owner
from dikkat.cpu.engine.compile import Kernel, inlined
from dikkat.cpu.engine.elementary import exp
from dikkat.cpu.engine.memory import Call, Work, workplace_of
from dikkat.cpu.engine.vectors import Pointer, at, claim, full, lanes_of, load, pointer, some, store, total, where


@inlined
def _weigh(scores: Pointer, weights: Pointer, blocks: int, peak: float, whole: float, zero: Any) -> float:
    """Write a row's weights in a tile; return Σ weight · (score − peak), of which the entropy is made."""
    lanes, hidden, nothing = lanes_of(zero), full(-np.inf, zero), full(0, zero)
    base, by, acc = full(base_of(peak, zero), zero), full(by_total(whole, zero), zero), full(0, zero)
    for block in range(blocks):
        score = load(scores, block * lanes)
        share = where(score == hidden, nothing, exp(score - base) * by)
        store(weights, block * lanes, share)
        acc += where(score == hidden, nothing, share * (score - base))
    return total(acc)


@inlined
def _keep_largest(scores: Pointer, blocks: int, j0: int, top: int, kept: Pointer, places: Pointer, zero: Any) -> None:
    """Insert a tile's scores into a row's largest ones; of equal ones the first key stays before the others."""
    lanes, least = lanes_of(zero), kept[top - 1]
    for block in range(blocks):
        if some(full(least, zero) < load(scores, block * lanes)):
            for j in range(block * lanes, (block + 1) * lanes):
                score = scores[j]
                if score > least:
                    place = top - 1
                    while place > 0 and kept[place - 1] < score:
                        kept[place], places[place] = kept[place - 1], places[place - 1]
                        place -= 1
                    kept[place], places[place] = score, j0 + j
                    least = kept[top - 1]


@inlined
def _add_to_keys(call: Call, task: int, rows: int, j0: int, blocks: int, width: int, work: Work, zero: Any) -> None:
    """Add a tile's weights to the sums of its keys."""
    lanes = lanes_of(zero)
    for block in range(blocks):
        acc = load(work.weights, block * lanes)
        for i in range(1, rows):
            acc += load(work.weights, i * width + block * lanes)
        store(work.kept, block * lanes, acc)
    sums = at(pointer(call.key_sums_of_task, np.float64(0)), task * call.keys + j0)
    for j in range(min(blocks * lanes, call.keys - j0)):
        sums[j] += work.kept[j]


@inlined
def _add_to_cells(call: Call, task: int, i: int, j0: int, count: int, weights: Pointer, zero: Any) -> None:
    """Add a row's weights in a tile to the cells of the map, or put the largest there."""
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
                acc = max(acc, weights[k - j0])
            cells[col] = max(cells[col], acc)
        else:
            for k in range(j, stop):
                acc += weights[k - j0]
            cells[col] += acc
        j = stop


@inlined
def _finish_row(call: Call, row: int, i: int, peak: float, whole: float, mean: float, work: Work, zero: Any) -> None:
    """Write a row's entropy, and its largest weights."""
    if call.entropy != 0:
        pointer(call.entropy, zero)[row] = math.log(whole) - mean if whole != 0 else zero
    base, by = base_of(peak, zero), by_total(whole, zero)
    for place in range(call.top):
        score = work.top_scores[i * call.top + place]
        share = by * zero  # NaN in a row of NaN
        if score > -np.inf:
            share = math.exp(score - base) * by
        pointer(call.top_weights, zero)[row * call.top + place] = share
        pointer(call.top_keys, np.int64(0))[row * call.top + place] = work.top_places[i * call.top + place]


_workplace = workplace_of(CALL)


@Kernel
def summarise(zero: Any, inner: Any, additive: Any, distance: Any) -> Any:
    """Compute each row's peak and total unless they are known, and what else is asked for."""
    layout = CALL.dtype

    def summarise(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes = lanes_of(zero)
        width, work = TILE * lanes, _workplace(call, zero)
        scores, weights, peaks, sums, means = work.scores, work.weights, work.peaks, work.sums, work.mean
        packed_weight, power, constant = -1, 1.0, zero
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            b, first = task // call.parts, (task % call.parts) * call.part_rows
            if additive is not None and owner(call.weight_step, call.weight_table, b) != packed_weight:
                packed_weight = owner(call.weight_step, call.weight_table, b)
                power, constant = pack_weight(call, packed_weight, work.weight, zero)
            end = min(first + call.part_rows, call.queries)
            for i0 in range(first, end, call.rows):
                rows, row = min(call.rows, end - i0), b * call.queries + i0
                pack_rows(call, b, i0, rows, work.query, zero, additive, distance)
                reach = limits_of(call, b, i0, rows, work.limits)
                out_peak, out_total = at(pointer(call.peak, zero), row), at(pointer(call.total, zero), row)
                for i in range(rows):
                    peaks[i], sums[i], means[i] = -np.inf, zero, zero
                    if call.known:
                        peaks[i], sums[i] = out_peak[i], out_total[i]
                    for place in range(i * call.top, (i + 1) * call.top):
                        work.top_scores[place], work.top_places[place] = -np.inf, -1
                if not call.known:
                    for j0 in range(0, reach, width):
                        blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                        tile_scores(
                            call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance
                        )
                        for i in range(rows):
                            before = peaks[i]
                            peaks[i], added = normalise(
                                at(scores, i * width), at(weights, i * width), blocks, before, zero
                            )
                            if peaks[i] > before > -np.inf:
                                sums[i] *= math.exp(before - peaks[i])
                            sums[i] += added
                    for i in range(rows):
                        out_peak[i], out_total[i] = peaks[i], sums[i]
                if not call.walks:
                    continue
                for j0 in range(0, reach, width):
                    blocks = min(TILE, (reach - j0 + lanes - 1) // lanes)
                    if call.known or reach > width:  # else the one tile's scores are there
                        tile_scores(
                            call, work, b, i0, rows, j0, blocks, width, power, constant, zero, inner, additive, distance
                        )
                    for i in range(rows):
                        own = at(weights, i * width)
                        means[i] += _weigh(at(scores, i * width), own, blocks, peaks[i], sums[i], zero)
                        if call.top != 0:
                            kept, places = at(work.top_scores, i * call.top), at(work.top_places, i * call.top)
                            _keep_largest(at(scores, i * width), blocks, j0, call.top, kept, places, zero)
                        if call.cells_of_task != 0:
                            _add_to_cells(call, task, i0 + i, j0, blocks * lanes, own, zero)
                    if call.key_sums_of_task != 0:
                        _add_to_keys(call, task, rows, j0, blocks, width, work, zero)
                for i in range(rows):
                    _finish_row(call, row + i, i, peaks[i], sums[i], means[i], work, zero)

    return summarise
