"""Local moments by pairs of queries and keys, compiled by Numba, with Gaussian or Epanechnikov weights.

The lanes of a vector are keys, in blocks. A tile is `TILE` blocks with a box around its keys. A task is some queries
that are neighbours in space, also with a box. Tiles beyond Epanechnikov's reach are skipped. The Gaussian reaches
everywhere: its near tiles are visited first, and the rest is skipped once its total possible weight is at most the
tolerance times the weight that a query has accumulated.

Points are subtracted before the division by the bandwidth, so that no digit is lost to an origin far from both. The
Gaussian's weights are powers of 2. Exponents may exceed 0: a row's base is raised only if one exceeds it by more than
`MAX_EXCESS`, which is rare, so that a tile takes one pass.
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

MAX_EXCESS = 16
# Relative slack, because distances of boxes and of pairs are rounded differently.
SLACK = 1e-3
# Squared distance, in bandwidths, up to which tiles are visited first.
NEAR_SQUARE = 1.0

_workplace = workplace_of(CALL)


# --- distances of tiles


@inlined
def _distances(
    call: Call, query: Pointer, scale: Pointer, rows: int, low: Pointer, high: Pointer, boxes: int, begin: int,
    end: int, distances: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Write the squared distances, in the rows' widest bandwidths, from the rows' box to the boxes `begin` to `end`."""
    lanes, size, zeros = lanes_of(zero), call.features, full(0, zero)
    for t in range(begin, end, lanes):
        store(distances, t - begin, zeros)
    for c in range(size):
        lowest, highest, factor = query[c], query[c], scale[c]
        for i in range(1, rows):
            lowest, highest = min(lowest, query[i * size + c]), max(highest, query[i * size + c])
            factor = min(factor, scale[i * call.stride + c])
        lowest_lanes, highest_lanes, factors = full(lowest, zero), full(highest, zero), full(factor, zero)
        for t in range(begin, end, lanes):
            below, above = load(low, c * boxes + t) - highest_lanes, lowest_lanes - load(high, c * boxes + t)
            gap = maximum(maximum(below, above), zeros) * factors
            store(distances, t - begin, load(distances, t - begin) + gap * gap)


@inlined
def _padded(call: Call, zero: Any) -> int:
    """Return the rows of a task, rounded up to whole vectors."""
    lanes = lanes_of(zero)
    return (call.rows + lanes - 1) // lanes * lanes


@inlined
def _transpose(call: Call, rows: Pointer, stride: int, count: int, transposed: Pointer, zero: Any) -> None:
    """Transpose `count` rows, so that the lanes are rows; the last row fills the remaining lanes."""
    padded = _padded(call, zero)
    for c in range(call.features):
        for i in range(padded):
            transposed[c * padded + i] = rows[min(i, count - 1) * stride + c]


@inlined
def _row_distances(call: Call, transposed: Pointer, scales: Pointer, t: int, distances: Pointer, zero: Any) -> None:
    """Write each row's squared distance, in its bandwidths, to a tile's box."""
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    lanes, padded, zeros = lanes_of(zero), _padded(call, zero), full(0, zero)
    for i in range(0, padded, lanes):
        square = zeros
        for c in range(call.features):
            box, q = c * call.boxes + t, load(transposed, c * padded + i)
            gap = maximum(maximum(spread(low, box) - q, q - spread(high, box)), zeros)
            gap = gap * load(scales, c * padded + i)
            square += gap * gap
        store(distances, i, square)


@inlined
def _bin_width(call: Call) -> float:
    """Return the width of a bin of squared distances; beyond the last bin every tile is negligible."""
    return (64 - call.tolerance) / BINS


@inlined
def _bin_masses(call: Call, distances: Pointer, tails: Pointer, zero: Any) -> None:
    """Write each bin's tail mass: the sum of mass · 2^−(distance − the bin's distance) over the bin and all farther."""
    mass, width = pointer(call.mass, zero), _bin_width(call)
    for b in range(BINS):
        tails[b] = zero
    for t in range(call.tiles):
        tails[int(min(distances[t] / width, BINS - 1.0))] += mass[t]
    shrink = 2.0**-width
    for b in range(BINS - 2, -1, -1):
        tails[b] += shrink * tails[b + 1]


@inlined
def _reach(call: Call, rows: int, peaks: Pointer, sums: Pointer, tails: Pointer, prices: Pointer, zero: Any) -> float:
    """Return the squared distance beyond which tiles may be skipped, from each row's sum so far.

    All rows share half of the error budget. The other half is separate for each row, for tiles that are nearer to other
    rows. A price is the fraction of a row's budget that a unit of mass spends, by whole steps beyond the reach.
    """
    for b in range(PRICES):
        prices[b] = zero
    smallest = np.inf
    for i in range(rows):
        weight = total(load(sums, i * call.columns * lanes_of(zero))) if call.lse == 0 else 1.0
        smallest = min(smallest, peaks[i] + math.log2(weight) if peaks[i] > -np.inf else -np.inf)
    allowed, width = smallest + call.tolerance - 1, _bin_width(call)
    low, high = 0, BINS  # find the first bin whose tail weighs no more than allowed
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
def _square_distances(
    query: Pointer, key: Pointer, scale: Pointer, size: int, delta: Pointer, keeps_delta: bool, zero: Any
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return ‖(k − q)/σ‖² of a row to a tile's keys; with `keeps_delta` write the differences to `delta`."""
    lanes = lanes_of(zero)
    acc0 = full(0, zero)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for c in range(size):
        q, factor, first = spread(query, c), spread(scale, c), c * TILE * lanes
        delta0, delta1 = (load(key, first) - q) * factor, (load(key, first + lanes) - q) * factor
        delta2, delta3 = (load(key, first + 2 * lanes) - q) * factor, (load(key, first + 3 * lanes) - q) * factor
        acc0 += delta0 * delta0
        acc1 += delta1 * delta1
        acc2 += delta2 * delta2
        acc3 += delta3 * delta3
        if keeps_delta:
            store(delta, first, delta0)
            store(delta, first + lanes, delta1)
            store(delta, first + 2 * lanes, delta2)
            store(delta, first + 3 * lanes, delta3)
    return acc0, acc1, acc2, acc3


@inlined
def _epanechnikov(call: Call, square: Vector, weight: Vector, zero: Any) -> Vector:
    """Return the weight times the kernel, or times its square."""
    profile = maximum(full(1, zero) - square, full(0, zero))
    return weight * profile * profile if call.squared else weight * profile


@inlined
def _rescale(peak: float, new_peak: float, row: Pointer, columns: int, zero: Any) -> None:
    lanes = lanes_of(zero)
    factor = full(2.0 ** (peak - new_peak) if peak > -np.inf else 0.0, zero)
    for c in range(columns):
        store(row, c * lanes, load(row, c * lanes) * factor)


@inlined
def _weights(
    call: Call, query: Pointer, scale: Pointer, key: Pointer, weight: Pointer, excluded: int, fixed: bool, peak: float,
    row: Pointer, delta: Pointer, scratch: Pointer, zero: Any,
) -> tuple[float, Vector, Vector, Vector, Vector]:  # fmt: skip
    """Return a row's base and its weights for a tile; `excluded` is a key's position in the tile, or outside it."""
    lanes = lanes_of(zero)
    keeps_delta = call.degree != 0 or fixed
    s0, s1, s2, s3 = _square_distances(query, key, scale, call.features, delta, keeps_delta, zero)
    w0, w1, w2, w3 = load(weight, 0), load(weight, lanes), load(weight, 2 * lanes), load(weight, 3 * lanes)
    gaussian = call.gaussian != 0
    if gaussian:
        w0, w1, w2, w3 = w0 - s0, w1 - s1, w2 - s2, w3 - s3
    else:
        w0, w1 = _epanechnikov(call, s0, w0, zero), _epanechnikov(call, s1, w1, zero)
        w2, w3 = _epanechnikov(call, s2, w2, zero), _epanechnikov(call, s3, w3, zero)
    if 0 <= excluded < TILE * lanes:
        store(scratch, 0, w0)
        store(scratch, lanes, w1)
        store(scratch, 2 * lanes, w2)
        store(scratch, 3 * lanes, w3)
        scratch[excluded] = -np.inf if gaussian else 0.0
        w0, w1 = load(scratch, 0), load(scratch, lanes)
        w2, w3 = load(scratch, 2 * lanes), load(scratch, 3 * lanes)
    if not gaussian:
        return peak, w0, w1, w2, w3
    if not fixed:
        largest = maximum(maximum(w0, w1), maximum(w2, w3))
        if some(largest > full(peak + MAX_EXCESS, zero)):
            old_peak, peak = peak, largest_lane(largest)
            _rescale(old_peak, peak, row, call.columns, zero)
    base = full(peak if peak > -np.inf else zero, zero)
    return peak, exp2(w0 - base), exp2(w1 - base), exp2(w2 - base), exp2(w3 - base)


# --- means


@inlined
def _add(row: Pointer, column: int, weights: Pointer, factor: Pointer, zero: Any) -> None:
    lanes = lanes_of(zero)
    first = load(weights, 0) * load(factor, 0) + load(weights, lanes) * load(factor, lanes)
    second = load(weights, 2 * lanes) * load(factor, 2 * lanes) + load(weights, 3 * lanes) * load(factor, 3 * lanes)
    store(row, column * lanes, load(row, column * lanes) + (first + second))


@inlined
def _times(weights: Pointer, factor: Pointer, products: Pointer, zero: Any) -> None:
    lanes = lanes_of(zero)
    for offset in range(0, TILE * lanes, lanes):
        store(products, offset, load(weights, offset) * load(factor, offset))


@inlined
def _add_means(
    call: Call, row: Pointer, value: Pointer, w0: Vector, w1: Vector, w2: Vector, w3: Vector, zero: Any
) -> None:
    """Add to the columns Σ w and Σ w y."""
    lanes = lanes_of(zero)
    store(row, 0, load(row, 0) + ((w0 + w1) + (w2 + w3)))
    for k in range(call.values):
        offset, slot = k * TILE * lanes, (1 + k) * lanes
        first = w0 * load(value, offset) + w1 * load(value, offset + lanes)
        second = w2 * load(value, offset + 2 * lanes) + w3 * load(value, offset + 3 * lanes)
        store(row, slot, load(row, slot) + (first + second))


@inlined
def _add_lines(
    call: Call, row: Pointer, value: Pointer, delta: Pointer, weights: Pointer, weighted: Pointer, zero: Any
) -> None:
    """Add, after the means, Σ w δ, Σ w δ δᵀ on and above the diagonal, and Σ w δ y for each of the first `slopes`.

    The columns of the coordinates from `slopes` to `held` are Σ w δ.
    """
    lanes, held, values = lanes_of(zero), call.held, call.values
    tile_keys = TILE * lanes
    column = 1 + values
    for c in range(call.slopes):
        delta_c = at(delta, c * tile_keys)
        _times(weights, delta_c, weighted, zero)
        tile = (load(weighted, 0) + load(weighted, lanes)) + (load(weighted, 2 * lanes) + load(weighted, 3 * lanes))
        store(row, column * lanes, load(row, column * lanes) + tile)
        column += 1
        for e in range(c, held):
            _add(row, column, weighted, at(delta, e * tile_keys), zero)
            column += 1
        for k in range(values):
            _add(row, column, weighted, at(value, k * tile_keys), zero)
            column += 1
    for c in range(call.slopes, held):
        _add(row, column, weights, at(delta, c * tile_keys), zero)
        column += 1


@inlined
def _add_sensitivity(
    call: Call, i: int, row: Pointer, value: Pointer, delta: Pointer, weights: Pointer, weighted: Pointer, zero: Any
) -> None:
    """Add to the columns Σ w δ² (u·z)(y − zᵀθ), with δ² the sum over the coordinates of a feature."""
    lanes, size, values, slopes, held = lanes_of(zero), call.features, call.values, call.slopes, call.held
    tile_keys, feature = TILE * lanes, pointer(call.feature, np.int64(0))
    lever, fit = at(pointer(call.row, zero), i * (1 + slopes)), at(pointer(call.fit, zero), i * (1 + held) * values)
    for offset in range(0, tile_keys, lanes):
        u = spread(lever, 0)
        for c in range(slopes):
            u += spread(lever, 1 + c) * load(delta, c * tile_keys + offset)
        u = u * load(weights, offset)
        for k in range(values):
            residual = load(value, k * tile_keys + offset) - spread(fit, k)
            for c in range(held):
                residual = residual - spread(fit, (1 + c) * values + k) * load(delta, c * tile_keys + offset)
            store(weighted, k * tile_keys + offset, u * residual)
    for c in range(size):
        delta_c = at(delta, c * tile_keys)
        _times(delta_c, delta_c, delta_c, zero)
        if c > 0 and feature[c] == feature[c - 1]:
            for offset in range(0, tile_keys, lanes):
                store(delta_c, offset, load(delta_c, offset) + load(delta, (c - 1) * tile_keys + offset))
        if c == size - 1 or feature[c] != feature[c + 1]:
            for k in range(values):
                _add(row, feature[c] * values + k, delta_c, at(weighted, k * tile_keys), zero)


# --- tasks


@inlined
def _add_tile(
    call: Call, work: Work, t: int, i0: int, rows: int, fixed: bool, reach: float, query: Pointer, scale: Pointer,
    zero: Any,
) -> None:  # fmt: skip
    """Add a tile to the sums of some rows; a row out of reach skips the tile while its error budget allows."""
    peaks, sums, spent, distances, delta = work.peaks, work.sums, work.spent, work.row_distances, work.delta
    weights, weighted = work.weights, work.weighted
    lanes = lanes_of(zero)
    keys = TILE * lanes
    key = at(pointer(call.key, zero), t * keys * call.features)
    value, weight = at(pointer(call.value, zero), t * keys * call.values), at(pointer(call.weight, zero), t * keys)
    mass = pointer(call.mass, zero)[t]
    if reach < np.inf:
        _row_distances(call, work.transposed, work.scales, t, distances, zero)
    for i in range(rows):
        excluded, row = -1, at(sums, i * call.columns * lanes)
        if reach < np.inf:
            beyond = distances[i] - reach
            if not beyond < 0:
                price = mass * work.prices[int(min(beyond, PRICES - 1.0))]
                if spent[i] + price <= 1:
                    spent[i] += price
                    continue
        if call.exclude != 0:
            excluded = pointer(call.exclude, np.int64(0))[i0 + i] - t * keys
        peaks[i], w0, w1, w2, w3 = _weights(
            call, at(query, i * call.features), at(scale, i * call.stride), key, weight, excluded, fixed, peaks[i], row,
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
def _add_gaussian_tiles(
    call: Call, work: Work, i0: int, rows: int, fixed: bool, query: Pointer, scale: Pointer, zero: Any
) -> None:
    """Add the Gaussian's tiles, near tiles first, until the remaining tiles are negligible."""
    distances, tails, prices = work.distances, work.tails, work.prices
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    _distances(call, query, scale, rows, low, high, call.boxes, 0, call.boxes, distances, zero)
    nearest, farthest = distances[0], distances[0]
    for t in range(1, call.tiles):
        nearest, farthest = min(nearest, distances[t]), max(farthest, distances[t])
    _bin_masses(call, distances, tails, zero)
    visited, limit, reach = 0, max(NEAR_SQUARE, nearest), np.inf
    for phase in range(2):
        for t in range(call.tiles):
            if not distances[t] < reach or (distances[t] > limit) != (phase == 1):
                continue
            # If every tile is within reach, skip the test of each row.
            tile_reach = reach if farthest > reach else np.inf
            _add_tile(call, work, t, i0, rows, fixed, tile_reach, query, scale, zero)
            visited += 1
            if phase == 1 and visited & (visited - 1) == 0 and not fixed:
                reach = _reach(call, rows, work.peaks, work.sums, tails, prices, zero)
        reach = _reach(call, rows, work.peaks, work.sums, tails, prices, zero)


@inlined
def _add_near_tiles(
    call: Call, work: Work, i0: int, rows: int, fixed: bool, query: Pointer, scale: Pointer, zero: Any
) -> None:
    """Add the tiles that Epanechnikov's kernel reaches, and skip groups of tiles beyond its reach."""
    distances, reach = work.distances, 1 + SLACK
    tile_distances = at(distances, call.groups)
    for b in range(PRICES):
        work.prices[b] = zero
    low, high = pointer(call.group_low, zero), pointer(call.group_high, zero)
    _distances(call, query, scale, rows, low, high, call.groups, 0, call.groups, distances, zero)
    low, high = pointer(call.low, zero), pointer(call.high, zero)
    for g in range(call.groups):
        if distances[g] < reach:
            begin, end = g * GROUP, min(call.boxes, (g + 1) * GROUP)
            _distances(call, query, scale, rows, low, high, call.boxes, begin, end, tile_distances, zero)
            for t in range(begin, end):
                if tile_distances[t - begin] < reach:
                    _add_tile(call, work, t, i0, rows, fixed, reach, query, scale, zero)


@inlined
def _finish(call: Call, out: Pointer, peak: float, row: Pointer, fixed: bool, zero: Any) -> None:
    """Write a row's log-sum-exp of base 2 and its means; −∞ and 0 if no key was in reach."""
    lanes = lanes_of(zero)
    if fixed:
        for c in range(call.columns):
            out[c] = total(load(row, c * lanes))
        return
    weight = total(load(row, 0))
    empty = weight == 0 or peak == -np.inf
    inverse = zero if empty else 1 / weight
    out[0] = -np.inf if empty else peak + math.log2(weight)
    for c in range(1, call.columns):
        out[c] = inverse * total(load(row, c * lanes))


# --- lines


@inlined
def _column(call: Call, c: int) -> int:
    """Return the index of the first mean of coordinate `c` in a row of moments."""
    full = min(c, call.slopes)
    return 1 + call.values + full * (1 + call.values + call.held) - full * (full - 1) // 2 + c - full


@inlined
def _is_flat(call: Call, means: Pointer, c: int) -> bool:
    """Return True if a feature's spread is only the rounding error of a difference of squares."""
    column = _column(call, c)
    offset, second = means[column] / call.unit, means[column + 1] / call.unit**2
    return second - offset * offset <= call.rounding * second


@inlined
def _fit(call: Call, work: Work, i: int, zero: Any) -> None:
    """Write the log-sum-exp, u and θ of a row's local line (`dikkat.regression.local`), from its means."""
    means, right, values, slopes, held = work.means, work.right, call.values, call.slopes, call.held
    width, outputs = 1 + call.values, 2 + call.slopes + (1 + call.held) * call.values
    out = at(pointer(call.moments, zero), i * outputs)
    for c in range(outputs):
        out[c] = zero
    lse = means[0] * math.log(2.0)
    row, theta = at(out, 1), at(out, 2 + slopes)
    out[0], row[0] = lse, 1
    for k in range(values):
        theta[k] = means[1 + k]
    is_far, target = lse < call.far_lse, at(pointer(call.target, zero), i * held * values)
    if is_far and call.target == 0:
        return
    if not is_far:
        _centre(call, work, i, math.exp(min(-lse, math.log(LARGEST))), zero)
        _solve(work.system, right, slopes, width)
    for c in range(slopes):
        offset, scaling = means[_column(call, c)] / call.unit, zero if is_far else work.scaling[c]
        for k in range(values):
            slope = zero if is_far else right[c * width + k] * scaling
            if call.target != 0:
                slope += target[c * values + k]
            theta[(1 + c) * values + k] = slope
            theta[k] -= slope * offset
        lean = zero if is_far else right[c * width + values] * scaling
        row[1 + c] = -lean
        row[0] += lean * offset
    for c in range(slopes, held):
        for k in range(values):
            theta[(1 + c) * values + k] = target[c * values + k]
            theta[k] -= target[c * values + k] * (means[_column(call, c)] / call.unit)


@inlined
def _centre(call: Call, work: Work, i: int, inverse_mass: float, zero: Any) -> None:
    """Write the system of a line about its mean offset, in units of second moment 1, and its right sides."""
    means, system, right, scaling, unit = work.means, work.system, work.right, work.scaling, call.unit
    values, slopes, held, width = call.values, call.slopes, call.held, 1 + call.values
    ridge, target = at(pointer(call.ridge, zero), i * slopes), at(pointer(call.target, zero), i * held * values)
    for c in range(slopes):
        column = _column(call, c)
        offset, second = means[column] / unit, means[column + 1] / unit**2
        flat = _is_flat(call, means, c)
        scaling[c] = zero if second == 0 or (flat and ridge[c] == 0) else 1 / math.sqrt(second)
        cross = column + 1 + held - c
        for k in range(values):
            right[c * width + k] = zero if flat else (means[cross + k] / unit - offset * means[1 + k]) * scaling[c]
        right[c * width + values] = offset * scaling[c]
        for e in range(c + 1):
            other_column = _column(call, e)
            spread = means[other_column + 1 + c - e] / unit**2 - offset * (means[other_column] / unit)
            spread = zero if flat or _is_flat(call, means, e) else spread
            system[c * slopes + e] = spread * scaling[c] * scaling[e]
            if call.target != 0:  # solve for the difference from these slopes
                for k in range(values):
                    right[c * width + k] -= spread * target[e * values + k] * scaling[c]
                    if e < c:
                        right[e * width + k] -= spread * target[c * values + k] * scaling[e]
        for e in range(slopes, held):  # their slopes are the target
            spread = means[column + 1 + e - c] / unit**2 - offset * (means[_column(call, e)] / unit)
            for k in range(values):
                right[c * width + k] -= zero if flat else spread * target[e * values + k] * scaling[c]
        system[c * slopes + c] += call.second_ridge + min(ridge[c] * inverse_mass * scaling[c] * scaling[c], LARGEST)


@inlined
def _solve(system: Pointer, right: Pointer, size: int, width: int) -> None:
    """Solve for each right side in place by Cholesky's method; `system` holds the lower triangle."""
    for c in range(size):
        for e in range(c + 1):
            entry = system[c * size + e]
            for b in range(e):
                entry -= system[c * size + b] * system[e * size + b]
            system[c * size + e] = math.sqrt(entry) if c == e else entry / system[e * size + e]
        for k in range(width):
            for b in range(c):
                right[c * width + k] -= system[c * size + b] * right[b * width + k]
            right[c * width + k] /= system[c * size + c]
    for c in range(size - 1, -1, -1):
        for k in range(width):
            for b in range(c + 1, size):
                right[c * width + k] -= system[b * size + c] * right[b * width + k]
            right[c * width + k] /= system[c * size + c]


@Kernel
def windows(zero: Any) -> Any:
    """Write each query's moments, with `lines` its local line instead, or with `lse` its sensitivities."""
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
            _transpose(call, query, size, rows, work.transposed, zero)
            _transpose(call, scale, call.stride, rows, work.scales, zero)
            if call.gaussian != 0:
                _add_gaussian_tiles(call, work, i0, rows, fixed, query, scale, zero)
            else:
                _add_near_tiles(call, work, i0, rows, fixed, query, scale, zero)
            for i in range(rows):
                fit = call.lines != 0
                out = work.means if fit else at(pointer(call.moments, zero), (i0 + i) * call.columns)
                _finish(call, out, peaks[i], at(sums, i * call.columns * lanes), fixed, zero)
                if fit:
                    _fit(call, work, i0 + i, zero)

    return windows
