"""Local moments by pairs of queries and keys, compiled by Numba: the Gaussian's or Epanechnikov's weights, and means.

The lanes of a vector are keys, in blocks; a tile is `TILE` blocks with a box around its keys. A
task is some queries, neighbours in space, with a box around them too. Tiles whose box is out of Epanechnikov's reach
are skipped. The Gaussian reaches everywhere: its tiles are visited near ones first, and skipped where all that they
could weigh together is at most the tolerance's part of what a query has met before.

Differences are of the points as they came, before they are divided by the bandwidth: no digit is lost to an origin far
from both. The Gaussian's exponents are those of 2. They are not kept below 0: a row's base is raised only where one
exceeds it by more than `MARGIN`, which is rare, so that a tile is one pass.
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp2
from dikkat._engine.memory import Call, Work, clear, workplace_of
from dikkat._engine.vectors import (
    Pointer,
    Vector,
    at,
    claim,
    full,
    lanes_of,
    largest_lane,
    load,
    maximum,
    pointer,
    some,
    spread,
    store,
    total,
)  # fmt: skip
from dikkat.regression.moments.record import BINS, CALL, GROUP, LARGEST, PRICES, TILE

MARGIN = 16
# Relative slack: the distances of boxes and of pairs are rounded differently.
SLACK = 1e-3
# Squared distance, in bandwidths, up to which a query visits tiles first.
NEAR = 1.0

_workplace = workplace_of(CALL)


# --- distances of tiles


@inlined
def _distances(
    call: Call, query: Pointer, scale: Pointer, rows: int, low: Pointer, high: Pointer, boxes: int, begin: int,
    end: int, near: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Write the squared distances, in the rows' widest bandwidths, of their box from some boxes, of `boxes` in all."""
    lanes, size, nothing = lanes_of(zero), call.features, full(0, zero)
    for t in range(begin, end, lanes):
        store(near, t - begin, nothing)
    for c in range(size):
        least, most, factor = query[c], query[c], scale[c]
        for i in range(1, rows):
            least, most = min(least, query[i * size + c]), max(most, query[i * size + c])
            factor = min(factor, scale[i * call.stride + c])
        least_of, most_of, by = full(least, zero), full(most, zero), full(factor, zero)
        for t in range(begin, end, lanes):
            below, above = load(low, c * boxes + t) - most_of, least_of - load(high, c * boxes + t)
            gap = maximum(maximum(below, above), nothing) * by
            store(near, t - begin, load(near, t - begin) + gap * gap)


@inlined
def _padded(call: Call, zero: Any) -> int:
    """The rows of a task, rounded up to whole vectors."""
    lanes = lanes_of(zero)
    return (call.rows + lanes - 1) // lanes * lanes


@inlined
def _turn(call: Call, rows: Pointer, stride: int, count: int, across: Pointer, zero: Any) -> None:
    """Transpose so many rows, so that the lanes are rows; the last row fills the remaining lanes."""
    padded = _padded(call, zero)
    for c in range(call.features):
        for i in range(padded):
            across[c * padded + i] = rows[min(i, count - 1) * stride + c]


@inlined
def _apart(call: Call, across: Pointer, scales: Pointer, t: int, apart: Pointer, zero: Any) -> None:
    """Write the squared distance, in its bandwidths, of a tile's box from each row."""
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    lanes, padded, nothing = lanes_of(zero), _padded(call, zero), full(0, zero)
    for i in range(0, padded, lanes):
        square = nothing
        for c in range(call.features):
            box, q = c * call.boxes + t, load(across, c * padded + i)
            gap = maximum(maximum(spread(low, box) - q, q - spread(high, box)), nothing)
            gap = gap * load(scales, c * padded + i)
            square += gap * gap
        store(apart, i, square)


@inlined
def _width(call: Call) -> float:
    """The width of a bin of squared distances; beyond the last bin no tile counts, whatever its mass."""
    return (64 - call.tolerance) / BINS


@inlined
def _bin_masses(call: Call, near: Pointer, tails: Pointer, zero: Any) -> None:
    """Write the tail mass of each bin: Σ mass · 2^−(distance − the bin's) over the tiles from it on."""
    mass, width = pointer(call.mass, zero), _width(call)
    for b in range(BINS):
        tails[b] = zero
    for t in range(call.tiles):
        tails[int(min(near[t] / width, BINS - 1.0))] += mass[t]
    shrink = 2.0**-width
    for b in range(BINS - 2, -1, -1):
        tails[b] += shrink * tails[b + 1]


@inlined
def _reach(call: Call, rows: int, peaks: Pointer, sums: Pointer, tails: Pointer, prices: Pointer, zero: Any) -> float:
    """The squared distance beyond which tiles may be skipped, from each row's sum so far.

    Half of the skipping budget is shared by all rows; the other half is each row's own, for tiles that are nearer to
    other rows. A price is the fraction of a row's budget that a unit of mass spends, by whole steps beyond the reach.
    """
    for b in range(PRICES):
        prices[b] = zero
    least = np.inf
    for i in range(rows):
        met = total(load(sums, i * call.columns * lanes_of(zero))) if call.lse == 0 else 1.0
        least = min(least, peaks[i] + math.log2(met) if peaks[i] > -np.inf else -np.inf)
    allowed, width = least + call.tolerance - 1, _width(call)
    low, high = 0, BINS  # the first bin from which on they weigh no more than is allowed
    while low < high:
        middle = (low + high) // 2
        if tails[middle] == 0 or math.log2(tails[middle]) - middle * width <= allowed:
            high = middle
        else:
            low = middle + 1
    if low == BINS:
        return np.inf
    reach = low * width * (1 + SLACK)
    prices[0] = 2.0 ** min(-low * width - allowed, 100.0)
    for b in range(1, PRICES):
        prices[b] = prices[b - 1] / 2
    return reach


# --- weights


@inlined
def _four(
    query: Pointer, key: Pointer, scale: Pointer, size: int, delta: Pointer, keep: bool, zero: Any
) -> tuple[Vector, Vector, Vector, Vector]:
    """‖(k − q)/σ‖² of a row from a tile's keys; with `keep` the differences are written to `delta`."""
    lanes = lanes_of(zero)
    acc0 = full(0, zero)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for c in range(size):
        q, by, first = spread(query, c), spread(scale, c), c * TILE * lanes
        away0, away1 = (load(key, first) - q) * by, (load(key, first + lanes) - q) * by
        away2, away3 = (load(key, first + 2 * lanes) - q) * by, (load(key, first + 3 * lanes) - q) * by
        acc0 += away0 * away0
        acc1 += away1 * away1
        acc2 += away2 * away2
        acc3 += away3 * away3
        if keep:
            store(delta, first, away0)
            store(delta, first + lanes, away1)
            store(delta, first + 2 * lanes, away2)
            store(delta, first + 3 * lanes, away3)
    return acc0, acc1, acc2, acc3


@inlined
def _epanechnikov(call: Call, square: Vector, weight: Vector, zero: Any) -> Vector:
    """Weight times the kernel, or its square."""
    left = maximum(full(1, zero) - square, full(0, zero))
    return weight * left * left if call.squared else weight * left


@inlined
def _raise(peak: float, top: float, row: Pointer, columns: int, zero: Any) -> None:
    """Rescale the sums of a row to another base."""
    lanes = lanes_of(zero)
    by = full(2.0 ** (peak - top) if peak > -np.inf else 0.0, zero)
    for c in range(columns):
        store(row, c * lanes, load(row, c * lanes) * by)


@inlined
def _weights(
    call: Call, query: Pointer, scale: Pointer, key: Pointer, weight: Pointer, hidden: int, fixed: bool, peak: float,
    row: Pointer, delta: Pointer, scratch: Pointer, zero: Any,
) -> tuple[float, Vector, Vector, Vector, Vector]:  # fmt: skip
    """A row's new base, and its weights for a tile; `hidden` is the excluded key's position in it, or outside."""
    lanes = lanes_of(zero)
    keep = call.degree != 0 or fixed
    s0, s1, s2, s3 = _four(query, key, scale, call.features, delta, keep, zero)
    w0, w1, w2, w3 = load(weight, 0), load(weight, lanes), load(weight, 2 * lanes), load(weight, 3 * lanes)
    gaussian = call.gaussian != 0
    if gaussian:
        w0, w1, w2, w3 = w0 - s0, w1 - s1, w2 - s2, w3 - s3
    else:
        w0, w1 = _epanechnikov(call, s0, w0, zero), _epanechnikov(call, s1, w1, zero)
        w2, w3 = _epanechnikov(call, s2, w2, zero), _epanechnikov(call, s3, w3, zero)
    if 0 <= hidden < TILE * lanes:
        store(scratch, 0, w0)
        store(scratch, lanes, w1)
        store(scratch, 2 * lanes, w2)
        store(scratch, 3 * lanes, w3)
        scratch[hidden] = -np.inf if gaussian else 0.0
        w0, w1 = load(scratch, 0), load(scratch, lanes)
        w2, w3 = load(scratch, 2 * lanes), load(scratch, 3 * lanes)
    if not gaussian:
        return peak, w0, w1, w2, w3
    if not fixed:
        top = maximum(maximum(w0, w1), maximum(w2, w3))
        if some(top > full(peak + MARGIN, zero)):
            before, peak = peak, largest_lane(top)
            _raise(before, peak, row, call.columns, zero)
    base = full(peak if peak > -np.inf else zero, zero)
    return peak, exp2(w0 - base), exp2(w1 - base), exp2(w2 - base), exp2(w3 - base)


# --- means


@inlined
def _add(row: Pointer, column: int, weights: Pointer, factor: Pointer, zero: Any) -> None:
    """Add a tile's weighted sum to a column."""
    lanes = lanes_of(zero)
    first = load(weights, 0) * load(factor, 0) + load(weights, lanes) * load(factor, lanes)
    second = load(weights, 2 * lanes) * load(factor, 2 * lanes) + load(weights, 3 * lanes) * load(factor, 3 * lanes)
    store(row, column * lanes, load(row, column * lanes) + (first + second))


@inlined
def _times(weights: Pointer, factor: Pointer, into: Pointer, zero: Any) -> None:
    lanes = lanes_of(zero)
    for offset in range(0, TILE * lanes, lanes):
        store(into, offset, load(weights, offset) * load(factor, offset))


@inlined
def _add_means(
    call: Call, row: Pointer, value: Pointer, w0: Vector, w1: Vector, w2: Vector, w3: Vector, zero: Any
) -> None:
    """The columns Σ w and Σ w y."""
    lanes = lanes_of(zero)
    store(row, 0, load(row, 0) + ((w0 + w1) + (w2 + w3)))
    for k in range(call.values):
        offset, own = k * TILE * lanes, (1 + k) * lanes
        first = w0 * load(value, offset) + w1 * load(value, offset + lanes)
        second = w2 * load(value, offset + 2 * lanes) + w3 * load(value, offset + 3 * lanes)
        store(row, own, load(row, own) + (first + second))


@inlined
def _add_lines(
    call: Call, row: Pointer, value: Pointer, delta: Pointer, weights: Pointer, weighted: Pointer, zero: Any
) -> None:
    """The columns Σ w δ, Σ w δ δᵀ on and above the diagonal, Σ w δ y, feature by feature, behind those of the means."""
    lanes, size, values = lanes_of(zero), call.features, call.values
    wide = TILE * lanes
    column = 1 + values
    for c in range(size):
        own = at(delta, c * wide)
        _times(weights, own, weighted, zero)
        tile = (load(weighted, 0) + load(weighted, lanes)) + (load(weighted, 2 * lanes) + load(weighted, 3 * lanes))
        store(row, column * lanes, load(row, column * lanes) + tile)
        column += 1
        for e in range(c, size):
            _add(row, column, weighted, at(delta, e * wide), zero)
            column += 1
        for k in range(values):
            _add(row, column, weighted, at(value, k * wide), zero)
            column += 1


@inlined
def _add_sensitivity(
    call: Call, i: int, row: Pointer, value: Pointer, delta: Pointer, weights: Pointer, weighted: Pointer, zero: Any
) -> None:
    """The columns: Σ w δ_c² (u·z)(y − zᵀθ), feature by feature."""
    lanes, size, values = lanes_of(zero), call.features, call.values
    wide = TILE * lanes
    terms = 1 + size if call.degree != 0 else 1
    lever, fit = at(pointer(call.row, zero), i * terms), at(pointer(call.fit, zero), i * terms * values)
    for offset in range(0, wide, lanes):
        u = spread(lever, 0)
        for c in range(terms - 1):
            u += spread(lever, 1 + c) * load(delta, c * wide + offset)
        u = u * load(weights, offset)
        for k in range(values):
            left = load(value, k * wide + offset) - spread(fit, k)
            for c in range(terms - 1):
                left = left - spread(fit, (1 + c) * values + k) * load(delta, c * wide + offset)
            store(weighted, k * wide + offset, u * left)
    for c in range(size):
        own = at(delta, c * wide)
        _times(own, own, own, zero)
        for k in range(values):
            _add(row, c * values + k, own, at(weighted, k * wide), zero)


# --- tasks


@inlined
def _tile(
    call: Call, work: Work, t: int, i0: int, rows: int, fixed: bool, reach: float, query: Pointer, scale: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """Add a tile's share to some rows; a row out of reach skips it while its error budget allows."""
    peaks, sums, spent, apart, delta = work.peaks, work.sums, work.spent, work.apart, work.delta
    weights, weighted = work.weights, work.weighted
    lanes = lanes_of(zero)
    wide = TILE * lanes
    key = at(pointer(call.key, zero), t * wide * call.features)
    value, weight = at(pointer(call.value, zero), t * wide * call.values), at(pointer(call.weight, zero), t * wide)
    mass = pointer(call.mass, zero)[t]
    if reach < np.inf:
        _apart(call, work.across, work.scales, t, apart, zero)
    for i in range(rows):
        hidden, row = -1, at(sums, i * call.columns * lanes)
        if reach < np.inf:
            beyond = apart[i] - reach
            if not beyond < 0:
                price = mass * work.prices[int(min(beyond, PRICES - 1.0))]
                if spent[i] + price <= 1:
                    spent[i] += price
                    continue
        if call.exclude != 0:
            hidden = pointer(call.exclude, np.int64(0))[i0 + i] - t * wide
        peaks[i], w0, w1, w2, w3 = _weights(
            call, at(query, i * call.features), at(scale, i * call.stride), key, weight, hidden, fixed, peaks[i], row,
            delta, weights, zero,
        )  # fmt: skip
        if not fixed:
            _add_means(call, row, value, w0, w1, w2, w3, zero)
            if call.degree == 0:
                continue
        store(weights, 0, w0)
        store(weights, lanes, w1)
        store(weights, 2 * lanes, w2)
        store(weights, 3 * lanes, w3)
        if fixed:
            _add_sensitivity(call, i0 + i, row, value, delta, weights, weighted, zero)
        else:
            _add_lines(call, row, value, delta, weights, weighted, zero)


@inlined
def _look_around(
    call: Call, work: Work, i0: int, rows: int, fixed: bool, query: Pointer, scale: Pointer, zero: Any
) -> None:
    """Add the Gaussian's tiles, the near ones first, until the others weigh nothing."""
    near, tails, prices = work.near, work.tails, work.prices
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    _distances(call, query, scale, rows, low, high, call.boxes, 0, call.boxes, near, zero)
    nearest, farthest = near[0], near[0]
    for t in range(1, call.tiles):
        nearest, farthest = min(nearest, near[t]), max(farthest, near[t])
    _bin_masses(call, near, tails, zero)
    met, limit, reach = 0, max(NEAR, nearest), np.inf
    for far in range(2):
        for t in range(call.tiles):
            if not near[t] < reach or (near[t] > limit) != (far == 1):
                continue
            # If every tile is within reach, rows need not be tested one by one.
            within = reach if farthest > reach else np.inf
            _tile(call, work, t, i0, rows, fixed, within, query, scale, zero)
            met += 1
            if far == 1 and met & (met - 1) == 0 and not fixed:
                reach = _reach(call, rows, work.peaks, work.sums, tails, prices, zero)
        reach = _reach(call, rows, work.peaks, work.sums, tails, prices, zero)


@inlined
def _look_near(
    call: Call, work: Work, i0: int, rows: int, fixed: bool, query: Pointer, scale: Pointer, zero: Any
) -> None:
    """Add the tiles within Epanechnikov's reach: only groups within reach are searched for them."""
    near, reach = work.near, 1 + SLACK
    inner = at(near, call.groups)
    for b in range(PRICES):
        work.prices[b] = zero
    low, high = pointer(call.group_low, zero), pointer(call.group_high, zero)
    _distances(call, query, scale, rows, low, high, call.groups, 0, call.groups, near, zero)
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    for g in range(call.groups):
        if near[g] < reach:
            begin, end = g * GROUP, min(call.boxes, (g + 1) * GROUP)
            _distances(call, query, scale, rows, low, high, call.boxes, begin, end, inner, zero)
            for t in range(begin, end):
                if inner[t - begin] < reach:
                    _tile(call, work, t, i0, rows, fixed, reach, query, scale, zero)


@inlined
def _finish(call: Call, out: Pointer, peak: float, row: Pointer, fixed: bool, zero: Any) -> None:
    """Write a row's means, and its log-sum-exp of base 2; 0 and −∞ where no key was in reach."""
    lanes = lanes_of(zero)
    if fixed:
        for c in range(call.columns):
            out[c] = total(load(row, c * lanes))
        return
    whole = total(load(row, 0))
    empty = whole == 0 or peak == -np.inf
    by = zero if empty else 1 / whole
    out[0] = -np.inf if empty else peak + math.log2(whole)
    for c in range(1, call.columns):
        out[c] = by * total(load(row, c * lanes))


# --- lines


@inlined
def _column(call: Call, c: int) -> int:
    """Where the means of a feature begin."""
    return 1 + call.values + c * (1 + call.values + call.features) - c * (c - 1) // 2


@inlined
def _is_flat(call: Call, means: Pointer, c: int) -> bool:
    """True for a feature whose spread is the rounding of a difference of squares."""
    column = _column(call, c)
    offset, second = means[column] / call.unit, means[column + 1] / call.unit**2
    return second - offset * offset <= call.rounding * second


@inlined
def _fit(call: Call, work: Work, i: int, zero: Any) -> None:
    """Write a row's log-sum-exp, u and θ of its local line (`dikkat.regression.local`), from its means."""
    means, right, values, slopes = work.means, work.right, call.values, call.slopes
    terms, wide = 1 + call.features, 1 + call.values
    out = at(pointer(call.moments, zero), i * (1 + terms * wide))
    for c in range(1 + terms * wide):
        out[c] = zero
    lse = means[0] * math.log(2.0)
    row, theta = at(out, 1), at(out, 1 + terms)
    out[0], row[0] = lse, 1
    for k in range(values):
        theta[k] = means[1 + k]
    far, toward = lse < call.far, at(pointer(call.toward, zero), i * slopes * values)
    if far and call.toward == 0:
        return
    if not far:
        _centre(call, work, i, math.exp(min(-lse, math.log(LARGEST))), zero)
        _solve(work.system, right, slopes, wide)
    for c in range(slopes):
        offset, by = means[_column(call, c)] / call.unit, zero if far else work.by[c]
        for k in range(values):
            slope = zero if far else right[c * wide + k] * by
            if call.toward != 0:
                slope += toward[c * values + k]
            theta[(1 + c) * values + k] = slope
            theta[k] -= slope * offset
        lean = zero if far else right[c * wide + values] * by
        row[1 + c] = -lean
        row[0] += lean * offset


@inlined
def _centre(call: Call, work: Work, i: int, rest: float, zero: Any) -> None:
    """Write the system of a line about its mean offset, by features of second moment 1, and its right sides."""
    means, system, right, by, unit = work.means, work.system, work.right, work.by, call.unit
    values, slopes, wide = call.values, call.slopes, 1 + call.values
    ridge, toward = at(pointer(call.ridge, zero), i * slopes), at(pointer(call.toward, zero), i * slopes * values)
    for c in range(slopes):
        column = _column(call, c)
        offset, second = means[column] / unit, means[column + 1] / unit**2
        flat = _is_flat(call, means, c)
        by[c] = zero if second == 0 or (flat and ridge[c] == 0) else 1 / math.sqrt(second)
        behind = column + 1 + call.features - c
        for k in range(values):
            right[c * wide + k] = zero if flat else (means[behind + k] / unit - offset * means[1 + k]) * by[c]
        right[c * wide + values] = offset * by[c]
        for e in range(c + 1):
            other = _column(call, e)
            spread = means[other + 1 + c - e] / unit**2 - offset * (means[other] / unit)
            spread = zero if flat or _is_flat(call, means, e) else spread
            system[c * slopes + e] = spread * by[c] * by[e]
            if call.toward != 0:  # what the rows say of slopes beyond those
                for k in range(values):
                    right[c * wide + k] -= spread * toward[e * values + k] * by[c]
                    if e < c:
                        right[e * wide + k] -= spread * toward[c * values + k] * by[e]
        system[c * slopes + c] += call.least + min(ridge[c] * rest * by[c] * by[c], LARGEST)


@inlined
def _solve(system: Pointer, right: Pointer, size: int, wide: int) -> None:
    """Solve for each column on the right, in place, by Cholesky's factors of a matrix of which half is given."""
    for c in range(size):
        for e in range(c + 1):
            left = system[c * size + e]
            for b in range(e):
                left -= system[c * size + b] * system[e * size + b]
            system[c * size + e] = math.sqrt(left) if c == e else left / system[e * size + e]
        for k in range(wide):
            for b in range(c):
                right[c * wide + k] -= system[c * size + b] * right[b * wide + k]
            right[c * wide + k] /= system[c * size + c]
    for c in range(size - 1, -1, -1):
        for k in range(wide):
            for b in range(c + 1, size):
                right[c * wide + k] -= system[b * size + c] * right[b * wide + k]
            right[c * wide + k] /= system[c * size + c]


@Kernel
def windows(zero: Any) -> Any:
    """Each query's moments; with `lines` its local line; where `lse` is given, its sensitivities."""
    layout = CALL.layout(__name__)

    def windows(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, fixed = lanes_of(zero), call.features, call.lse != 0
        work = _workplace(call, zero)
        sums, peaks = work.sums, work.peaks
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            i0 = task * call.rows
            rows = min(call.rows, call.queries - i0)
            query, scale = at(pointer(call.query, zero), i0 * size), at(pointer(call.scale, zero), i0 * call.stride)
            clear(sums, rows * call.columns * lanes, zero)
            for i in range(rows):
                peaks[i] = pointer(call.lse, zero)[i0 + i] if fixed else (-np.inf if call.gaussian != 0 else zero)
                work.spent[i] = zero
            _turn(call, query, size, rows, work.across, zero)
            _turn(call, scale, call.stride, rows, work.scales, zero)
            if call.gaussian != 0:
                _look_around(call, work, i0, rows, fixed, query, scale, zero)
            else:
                _look_near(call, work, i0, rows, fixed, query, scale, zero)
            for i in range(rows):
                fit = call.lines != 0
                out = work.means if fit else at(pointer(call.moments, zero), (i0 + i) * call.columns)
                _finish(call, out, peaks[i], at(sums, i * call.columns * lanes), fixed, zero)
                if fit:
                    _fit(call, work, i0 + i, zero)

    return windows
