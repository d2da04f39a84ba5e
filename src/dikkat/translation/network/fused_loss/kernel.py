"""Cross-entropy of rows of scores, compiled by Numba: a row is read once from memory, and its gradient written there.

A task is some rows or pairs of them, the same for the same number of threads, so that sums come out the same.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._engine import vectors as v
from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, workplace_of
from dikkat.translation.network.fused_loss.record import CALL

_workplace = workplace_of(CALL)


@inlined
def _read(call: Call, place: int, c: int, tail: v.Pointer, half: bool, zero: Any) -> v.Vector:
    """A vector of a row's scores plus bias; −∞ beyond the row's end."""
    lanes, count = v.lanes_of(zero), call.size - c
    if count >= lanes:
        if half:
            x = v.load_bfloat16(v.pointer(call.scores, np.uint16(0)), place + c, zero)
        else:
            x = v.load(v.pointer(call.scores, zero), place + c)
        if call.bias != 0:
            x = x + v.load(v.pointer(call.bias, zero), c)
        return x
    if half:
        halves = v.bits_of(tail)
        for k in range(count):
            halves[k] = v.pointer(call.scores, np.uint16(0))[place + c + k]
        x = v.load_bfloat16(halves, 0, zero)
    else:
        for k in range(count):
            tail[k] = v.pointer(call.scores, zero)[place + c + k]
        x = v.load(tail, 0)
    if call.bias != 0:
        for k in range(count):
            tail[k] = v.pointer(call.bias, zero)[c + k]
        x = x + v.load(tail, 0)
    return v.where(v.lane_numbers(zero) < v.full(count, zero), x, v.full(-np.inf, zero))


@inlined
def _row(call: Call, row: int, shares: v.Pointer, sums: v.Pointer, tail: v.Pointer, half: bool, zero: Any) -> float:
    """Put e^(score − peak) into `shares`, their sum W and peak + log W into `sums`; returns the row's loss."""
    lanes, place, nothing = v.lanes_of(zero), row * call.size, v.full(0, zero)
    top, scores = v.full(-np.inf, zero), nothing
    for c in range(0, call.size, lanes):
        x = _read(call, place, c, tail, half, zero)
        v.store(shares, c, x)
        top = v.maximum(x, top)
        scores += v.where(v.lane_numbers(zero) < v.full(call.size - c, zero), x, nothing)
    peak = v.largest_lane(top)
    label = shares[v.pointer(call.target, np.int64(0))[row]] - peak
    base, shared = v.full(peak, zero), nothing
    for c in range(0, call.size, lanes):
        share = exp(v.load(shares, c) - base)
        v.store(shares, c, share)
        shared += share
    weight = v.total(shared)
    log = math.log(weight)
    sums[0], sums[1] = weight, peak + log
    loss = log - (1 - call.smoothing) * label
    if call.smoothing != 0:  # a score of −∞ has an infinite loss only where it counts
        loss -= call.smoothing * (v.total(scores) / call.size - peak)
    return loss


@inlined
def _divergence(
    call: Call, row: int, shares: v.Pointer, ratios: v.Pointer, sums: v.Pointer, wide: int, tail: v.Pointer, half: bool,
    zero: Any,
) -> float:  # fmt: skip
    """Return (p − q) · (log p − log q) of a row and the next, and add the gradient, a multiple of it, to their shares.

    With u = log p − log q it is p ⊙ (u − p · u) + p − q for the first row's scores; p are its shares over their sum.
    """
    nothing, apart = v.full(0, zero), v.full(sums[1] - sums[3], zero)
    by, other_by = v.full(1 / sums[0], zero), v.full(1 / sums[2], zero)
    along, other_along = nothing, nothing
    for c in range(0, call.size, v.lanes_of(zero)):
        p, q = v.load(shares, c) * by, v.load(shares, wide + c) * other_by
        first, second = (
            _read(call, row * call.size, c, tail, half, zero),
            _read(call, (row + 1) * call.size, c, tail, half, zero),
        )
        ratio = v.where(nothing < p + q, first - second - apart, nothing)  # 0 in both rows, it counts in neither
        v.store(ratios, c, ratio)
        along, other_along = along + p * ratio, other_along + q * ratio
    mean, other_mean = v.full(v.total(along), zero), v.full(v.total(other_along), zero)
    factor, other_factor = v.full(call.divergence * sums[0], zero), v.full(call.divergence * sums[2], zero)
    for c in range(0, call.size, v.lanes_of(zero)):
        p, q, ratio = v.load(shares, c) * by, v.load(shares, wide + c) * other_by, v.load(ratios, c)
        v.store(shares, c, v.load(shares, c) + factor * (p * (ratio - mean) + p - q))
        v.store(shares, wide + c, v.load(shares, wide + c) + other_factor * (q * (other_mean - ratio) + q - p))
    return v.total(along) - v.total(other_along)


@inlined
def _write(
    call: Call, row: int, shares: v.Pointer, weight: float, sums: v.Pointer, tail: v.Pointer, half: bool, zero: Any
) -> None:
    lanes, size, place = v.lanes_of(zero), call.size, row * call.size
    shares[v.pointer(call.target, np.int64(0))[row]] -= (1 - call.smoothing) * weight
    by, spread = v.full(call.scale / weight, zero), v.full(call.scale * call.smoothing / size, zero)
    for c in range(0, size, lanes):
        gradient, count = v.load(shares, c) * by - spread, size - c
        v.store(sums, c, v.load(sums, c) + gradient)
        if half:
            into, halves = v.pointer(call.scores, np.uint16(0)), v.bits_of(tail)
            if count >= lanes:
                v.store_bfloat16(into, place + c, gradient)
            else:
                v.store_bfloat16(halves, 0, gradient)
                for k in range(count):
                    into[place + c + k] = halves[k]
        elif count >= lanes:
            v.store(v.pointer(call.scores, zero), place + c, gradient)
        else:
            v.store(tail, 0, gradient)
            for k in range(count):
                v.pointer(call.scores, zero)[place + c + k] = tail[k]


@Kernel
def cross_entropy(zero: Any) -> Any:
    """Add up each task's loss, and write the gradients of its rows and of the bias where they are requested."""
    layout = CALL.layout(__name__)

    def cross_entropy(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes = v.lanes_of(zero)
        work, wide = _workplace(call, zero), (call.size + lanes - 1) // lanes * lanes
        while True:
            task = v.claim(call.counters)
            if task >= call.tasks:
                return
            bias_sums, half = v.at(v.pointer(call.bias_sums, zero), task * wide), call.half != 0
            together = 2 if call.divergence != 0 else 1
            count, loss = call.rows // together, 0.0
            for pair in range(count * task // call.tasks, count * (task + 1) // call.tasks):
                for k in range(together):
                    shares, sums = v.at(work.shares, k * wide), v.at(work.sums, 2 * k)
                    loss += _row(call, together * pair + k, shares, sums, work.tail, half, zero)
                if together == 2:
                    loss += call.divergence * _divergence(
                        call, 2 * pair, work.shares, work.ratios, work.sums, wide, work.tail, half, zero
                    )
                if call.gradients:
                    for k in range(together):
                        shares, weight = v.at(work.shares, k * wide), work.sums[2 * k]
                        _write(call, together * pair + k, shares, weight, bias_sums, work.tail, half, zero)
            v.pointer(call.losses, 0.0)[task] += loss

    return cross_entropy
