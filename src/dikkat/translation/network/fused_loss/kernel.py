"""Cross-entropy of rows of scores, compiled by Numba; each row is read once and replaced by its gradient.

A task's rows depend only on the number of threads, so that sums are reproducible.
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
def _read(call: Call, row_start: int, c: int, tail: v.Pointer, half: bool, zero: Any) -> v.Vector:
    """Return a vector of a row's scores plus bias, from column `c` on; −∞ beyond the row's end."""
    lanes, count = v.lanes_of(zero), call.size - c
    if count >= lanes:
        if half:
            x = v.load_bfloat16(v.pointer(call.scores, np.uint16(0)), row_start + c, zero)
        else:
            x = v.load(v.pointer(call.scores, zero), row_start + c)
        if call.bias != 0:
            x = x + v.load(v.pointer(call.bias, zero), c)
        return x
    if half:
        halves = v.bits_of(tail)
        for k in range(count):
            halves[k] = v.pointer(call.scores, np.uint16(0))[row_start + c + k]
        x = v.load_bfloat16(halves, 0, zero)
    else:
        for k in range(count):
            tail[k] = v.pointer(call.scores, zero)[row_start + c + k]
        x = v.load(tail, 0)
    if call.bias != 0:
        for k in range(count):
            tail[k] = v.pointer(call.bias, zero)[c + k]
        x = x + v.load(tail, 0)
    return v.where(v.lane_numbers(zero) < v.full(count, zero), x, v.full(-np.inf, zero))


@inlined
def _row(call: Call, row: int, shares: v.Pointer, sums: v.Pointer, tail: v.Pointer, half: bool, zero: Any) -> float:
    """Store e^(score − peak) in `shares`, their sum W and peak + log W in `sums`, and return the row's loss."""
    lanes, row_start, zeros = v.lanes_of(zero), row * call.size, v.full(0, zero)
    lane_peaks, scores = v.full(-np.inf, zero), zeros
    for c in range(0, call.size, lanes):
        x = _read(call, row_start, c, tail, half, zero)
        v.store(shares, c, x)
        lane_peaks = v.maximum(x, lane_peaks)
        scores += v.where(v.lane_numbers(zero) < v.full(call.size - c, zero), x, zeros)
    peak = v.largest_lane(lane_peaks)
    label = shares[v.pointer(call.target, np.int64(0))[row]] - peak
    peaks, share_sums = v.full(peak, zero), zeros
    for c in range(0, call.size, lanes):
        share = exp(v.load(shares, c) - peaks)
        v.store(shares, c, share)
        share_sums += share
    weight = v.total(share_sums)
    log = math.log(weight)
    sums[0], sums[1] = weight, peak + log
    loss = log - (1 - call.smoothing) * label
    if call.smoothing != 0:  # else a score of −∞ that is not the target's has no effect
        loss -= call.smoothing * (v.total(scores) / call.size - peak)
    return loss


@inlined
def _divergence(
    call: Call, row: int, shares: v.Pointer, ratios: v.Pointer, sums: v.Pointer, width: int, tail: v.Pointer,
    half: bool, zero: Any,
) -> float:  # fmt: skip
    """Return (p − q) · (log p − log q) of a row and the next one, and add its scaled gradient to their shares.

    With u = log p − log q, the gradient of the first row's scores is p ⊙ (u − p · u) + p − q. p are the shares over W.
    """
    zeros, offset = v.full(0, zero), v.full(sums[1] - sums[3], zero)
    scale, other_scale = v.full(1 / sums[0], zero), v.full(1 / sums[2], zero)
    dots, other_dots = zeros, zeros
    for c in range(0, call.size, v.lanes_of(zero)):
        p, q = v.load(shares, c) * scale, v.load(shares, width + c) * other_scale
        first, second = (
            _read(call, row * call.size, c, tail, half, zero),
            _read(call, (row + 1) * call.size, c, tail, half, zero),
        )
        ratio = v.where(zeros < p + q, first - second - offset, zeros)  # no effect if p = q = 0
        v.store(ratios, c, ratio)
        dots, other_dots = dots + p * ratio, other_dots + q * ratio
    mean, other_mean = v.full(v.total(dots), zero), v.full(v.total(other_dots), zero)
    factor, other_factor = v.full(call.divergence * sums[0], zero), v.full(call.divergence * sums[2], zero)
    for c in range(0, call.size, v.lanes_of(zero)):
        p, q, ratio = v.load(shares, c) * scale, v.load(shares, width + c) * other_scale, v.load(ratios, c)
        v.store(shares, c, v.load(shares, c) + factor * (p * (ratio - mean) + p - q))
        v.store(shares, width + c, v.load(shares, width + c) + other_factor * (q * (other_mean - ratio) + q - p))
    return v.total(dots) - v.total(other_dots)


@inlined
def _write(
    call: Call, row: int, shares: v.Pointer, weight: float, sums: v.Pointer, tail: v.Pointer, half: bool, zero: Any
) -> None:
    lanes, size, row_start = v.lanes_of(zero), call.size, row * call.size
    shares[v.pointer(call.target, np.int64(0))[row]] -= (1 - call.smoothing) * weight
    factor, spread = v.full(call.scale / weight, zero), v.full(call.scale * call.smoothing / size, zero)
    for c in range(0, size, lanes):
        gradient, count = v.load(shares, c) * factor - spread, size - c
        v.store(sums, c, v.load(sums, c) + gradient)
        if half:
            scores, halves = v.pointer(call.scores, np.uint16(0)), v.bits_of(tail)
            if count >= lanes:
                v.store_bfloat16(scores, row_start + c, gradient)
            else:
                v.store_bfloat16(halves, 0, gradient)
                for k in range(count):
                    scores[row_start + c + k] = halves[k]
        elif count >= lanes:
            v.store(v.pointer(call.scores, zero), row_start + c, gradient)
        else:
            v.store(tail, 0, gradient)
            for k in range(count):
                v.pointer(call.scores, zero)[row_start + c + k] = tail[k]


@Kernel
def cross_entropy(zero: Any) -> Any:
    """Return the kernel that sums each task's loss, and writes the gradients of its rows and of the bias if needed."""
    layout = CALL.layout(__name__)

    def cross_entropy(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes = v.lanes_of(zero)
        work, width = _workplace(call, zero), (call.size + lanes - 1) // lanes * lanes
        while True:
            task = v.claim(call.counters)
            if task >= call.tasks:
                return
            bias_sums, half = v.at(v.pointer(call.bias_sums, zero), task * width), call.half != 0
            passes = 2 if call.divergence != 0 else 1
            count, loss = call.rows // passes, 0.0
            for pair in range(count * task // call.tasks, count * (task + 1) // call.tasks):
                for k in range(passes):
                    shares, sums = v.at(work.shares, k * width), v.at(work.sums, 2 * k)
                    loss += _row(call, passes * pair + k, shares, sums, work.tail, half, zero)
                if passes == 2:
                    loss += call.divergence * _divergence(
                        call, 2 * pair, work.shares, work.ratios, work.sums, width, work.tail, half, zero
                    )
                if call.gradients:
                    for k in range(passes):
                        shares, weight = v.at(work.shares, k * width), work.sums[2 * k]
                        _write(call, passes * pair + k, shares, weight, bias_sums, work.tail, half, zero)
            v.pointer(call.losses, 0.0)[task] += loss

    return cross_entropy
