"""The kernels around the matrix products: factors, weights and gradients by rows, and the pairs that no sines reach.

A side is queries or keys (element, row, feature), contiguous, in blocks of `ROWS` rows. `plan` holds the peak beyond
which a block is far, the first frequency, the units of small sines and of v, and the coefficients b. Loaded when first
used.
"""

import triton
import triton.language as tl

from dikkat._core.implementations.triton.kernel import dropped
from dikkat._core.implementations.triton.pairs import tanh_and_slope

# --- the reach


@triton.jit
def _peak(x, block, length, features, NORM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the largest |x| of a block of rows, ∞ with a NaN; if NORM, the largest finite squared norm."""
    blocks = tl.cdiv(length, ROWS)
    rows = (block % blocks) * ROWS + tl.arange(0, ROWS)
    origin = x + ((block // blocks).to(tl.int64) * length + rows)[:, None] * features
    largest = tl.zeros([ROWS], tl.float32)
    for first in range(0, features, COLS):
        cols = first + tl.arange(0, COLS)
        t = tl.load(origin + cols[None, :], (rows < length)[:, None] & (cols < features)[None, :], 0.0).to(tl.float32)
        if NORM:
            largest += tl.sum(t * t, 1)
        else:
            largest = tl.maximum(largest, tl.max(tl.where(t == t, tl.abs(t), float("inf")), 1))
    if NORM:
        largest = tl.where(largest < float("inf"), largest, 0.0)
    return tl.max(largest, 0)


@triton.jit
def peaks(
    x, y, v, into, x_count, x_length, y_count, y_length, features, v_length,
    NORM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the peaks of the blocks of two sides, and of v unless it is None."""
    block = tl.program_id(0)
    if block < x_count:
        peak = _peak(x, block, x_length, features, NORM, ROWS, COLS)
    elif block < x_count + y_count:
        peak = _peak(y, block - x_count, y_length, features, NORM, ROWS, COLS)
    else:
        peak = tl.zeros((), tl.float32)
        if v is not None:
            for row in range(0, tl.cdiv(v_length, ROWS)):
                peak = tl.maximum(peak, _peak(v, row, v_length, features, NORM, ROWS, COLS))
    tl.store(into + block, peak)


@triton.jit
def _largest(numbers, count):
    largest = tl.zeros([1024], tl.float32)
    for first in range(0, count, 1024):
        index = first + tl.arange(0, 1024)
        largest = tl.maximum(largest, tl.load(numbers + index, index < count, 0.0))
    return tl.max(largest, 0)


@triton.jit
def _power(x, min_exponent, max_exponent):
    """Return the largest power of two ≤ x, with a clamped exponent; that of 1 for 0, ∞ and NaN."""
    usual = (x > 0) & (x < float("inf"))
    power = tl.floor(tl.log2(tl.where(usual, x, 1.0)))
    return tl.exp2(tl.minimum(tl.maximum(power, min_exponent), max_exponent))


@triton.jit
def resolve(all_peaks, table, plan, x_count, y_count, reaches, R: tl.constexpr, RP: tl.constexpr, TP: tl.constexpr):
    """Write the plan of a call from its peaks, with the first series that reaches far enough."""
    reach = _largest(all_peaks, x_count) + _largest(all_peaks + x_count, y_count)
    lines = tl.arange(0, TP)
    reaches_of_lines = tl.load(table + lines * (R + 2), lines < reaches, 0.0)
    last = tl.max(reaches_of_lines, 0)
    far = (reach <= last) == 0
    short = (lines < reaches) & (reaches_of_lines < tl.where(far, last, reach))
    line = table + tl.sum(short.to(tl.int32), 0) * (R + 2)
    tl.store(plan, tl.where(far, last / 2, float("inf")))
    tl.store(plan + 1, tl.load(line + 1))
    tl.store(plan + 2, _power(reach, -60.0, 0.0))
    tl.store(plan + 3, _power(tl.load(all_peaks + x_count + y_count), -60.0, 60.0))
    terms = tl.arange(0, RP)
    tl.store(plan + 4 + terms, tl.load(line + 2 + terms, terms < R, 0.0), terms < R)


# --- factors


@triton.jit
def _waves(angle):
    """Return sin and cos from those of half the angle, for |angle| ≤ π, as near blocks have at the first frequency."""
    half = 0.5 * angle
    s = half * half
    sin = 1 + s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s * (1 / 362880 - s * (1 / 39916800)))))
    cos = -0.5 + s * (1 / 24 + s * (-1 / 720 + s * (1 / 40320 + s * (-1 / 3628800 + s * (1 / 479001600)))))
    sin *= half
    return 2 * sin * (1 + s * cos), 1 - 2 * sin * sin


@triton.jit
def _factors(
    x, v, into, plan, peak, block, length, features,
    KEY: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write [sin ω_r x / small, cos ω_r x] of queries or [cos, sin / small] · b_r v of keys; 0 for a far block."""
    blocks = tl.cdiv(length, ROWS)
    element = (block // blocks).to(tl.int64)
    rows, cols = (block % blocks) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    row = (element * length + rows)[:, None]
    near = (rows < tl.where(tl.load(peak) <= tl.load(plan), length, 0))[:, None] & inside
    t = tl.load(x + row * features + cols[None, :], near, 0.0).to(tl.float32)
    unit = 1 / tl.load(plan + 2)
    angle = t * tl.load(plan + 1)
    s, c = _waves(angle)
    s2, c2 = 2 * s * c, c * c - s * s  # each frequency adds twice the first angle
    out = into + row * (2 * R * features) + cols[None, :]
    if KEY:
        gain = (tl.load(v + cols, cols < features, 0.0).to(tl.float32) / tl.load(plan + 3))[None, :]
    for r in range(0, R):
        if KEY:
            gained = gain * tl.load(plan + 4 + r)
            first, second = c * gained, s * gained * unit
        else:
            first, second = s * unit, c
        tl.store(out, tl.where(near, first, 0.0), inside)
        tl.store(out + features, tl.where(near, second, 0.0), inside)
        out += 2 * features
        s, c = s * c2 + c * s2, c * c2 - s * s2


@triton.jit
def factors(
    x, y, v, phi, psi, plan, x_peaks, y_peaks, x_count, x_length, y_length, features, v_step,
    R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if block < x_count:
        _factors(x, v, phi, plan, x_peaks + block, block, x_length, features, False, R, ROWS, COLS)
    else:
        block -= x_count
        w = v + (block // tl.cdiv(y_length, ROWS)).to(tl.int64) * v_step
        _factors(y, w, psi, plan, y_peaks + block, block, y_length, features, True, R, ROWS, COLS)


@triton.jit
def far_scores(
    x, y, v, scores, plan, x_peaks, y_peaks, tiles, n, m, features, v_step, step,
    ROWS: tl.constexpr,
):  # fmt: skip
    limit = tl.load(plan)
    if limit < float("inf"):
        unit = 1 / (tl.load(plan + 2) * tl.load(plan + 3))
        across, down = tl.cdiv(m, ROWS), tl.cdiv(n, ROWS)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            element = (tile // (across * down)).to(tl.int64)
            i, j = (tile // across) % down, tile % across
            farthest = tl.maximum(tl.load(x_peaks + element * down + i), tl.load(y_peaks + element * across + j))
            if farthest > limit:
                rows, cols = i * ROWS + tl.arange(0, ROWS), j * ROWS + tl.arange(0, ROWS)
                q = x + (element * n + tl.minimum(rows, n - 1)) * features
                k = y + (element * m + tl.minimum(cols, m - 1)) * features
                w = v + element * v_step
                total = tl.zeros([ROWS, ROWS], tl.float32)
                for h in range(0, features):
                    pair = tl.load(q + h).to(tl.float32)[:, None] + tl.load(k + h).to(tl.float32)[None, :]
                    tanh, _slope = tanh_and_slope(pair)
                    total += tl.load(w + h).to(tl.float32) * tanh
                into = scores + (element * n + rows)[:, None] * step + cols[None, :]
                tl.store(into, total * unit, (rows < n)[:, None] & (cols < m)[None, :])


# --- weights


@triton.jit
def _visible_scores(scores, gain, limit, visible, cols, m):
    """Return scores of a row, −∞ for hidden keys, and the mask."""
    score = tl.load(scores + cols, cols < m, 0.0) * gain
    inside = cols < limit
    if visible is not None:
        inside = inside & (tl.load(visible + cols, cols < m, 0) != 0)
    return tl.where(inside, score, float("-inf")), inside & (score != float("-inf"))


@triton.jit
def weigh(
    scores, plan, lens, visible, seeds, weights, dropped_weights, peaks, totals,
    n, m, step, weights_step, lens_element, lens_row, first, shift, start, threshold, scale,
    KNOWN: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a row's weights before and after dropout, and its peak and total unless KNOWN."""
    index = tl.program_id(0).to(tl.int64)
    element, row = index // n, (index % n).to(tl.int32)
    gain = 1.0
    if plan is not None:
        gain = tl.load(plan + 2) * tl.load(plan + 3)
    limit = m
    if CAUSAL:
        limit = tl.minimum(limit, row + first + shift + 1 - start)
    if lens is not None:
        length = tl.load(lens + element * lens_element + row * lens_row).to(tl.int64)
        limit = tl.minimum(limit, tl.maximum(length - start, 0).to(tl.int32))
    scores += index * step
    row_visible = visible
    if visible is not None:
        row_visible = visible + index * m
    lane = tl.arange(0, BLOCK)
    score, inside = _visible_scores(scores, gain, limit, row_visible, lane, m)
    if KNOWN:
        peak, total = tl.load(peaks + index), tl.load(totals + index)
    elif WHOLE:
        peak = tl.max(score, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        total = tl.sum(tl.where(inside, tl.exp(score - base), 0.0), 0)
    else:
        peak, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
        for begin in range(0, m, BLOCK):
            score, inside = _visible_scores(scores, gain, limit, row_visible, begin + lane, m)
            higher = tl.maximum(peak, tl.max(score, 0))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(peak - base) + tl.sum(tl.where(inside, tl.exp(score - base), 0.0), 0)
            peak = higher
    if not KNOWN:
        tl.store(peaks + index, peak)
        tl.store(totals + index, total)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    divisor = tl.where(total == 0, 1.0, total)
    for begin in range(0, m, BLOCK):
        cols = begin + lane
        if not WHOLE:
            score, inside = _visible_scores(scores, gain, limit, row_visible, cols, m)
        weight = tl.where(inside, tl.exp(score - base) / divisor, 0.0)
        tl.store(weights + index * weights_step + cols, weight, cols < m)
        if seeds is not None:
            weight *= dropped(tl.load(seeds + index), start + cols, threshold, scale)
            tl.store(dropped_weights + index * weights_step + cols, weight, cols < m)


@triton.jit
def _load(weights, weight_grad, by_weight, seed, cols, start, m, threshold, scale, DROPS: tl.constexpr):
    """Return weights of a row and their gradients, 0 if the weight is 0."""
    weight = tl.load(weights + cols, cols < m, 0.0).to(tl.float32)
    grad = tl.load(weight_grad + cols, cols < m, 0.0)
    if DROPS:
        factor = dropped(seed, start + cols, threshold, scale)
        grad = tl.where(factor == 0, 0.0, grad * factor)
    if by_weight is not None:
        grad += tl.load(by_weight + cols, cols < m, 0.0).to(tl.float32)
    return weight, tl.where(weight == 0, 0.0, grad)


@triton.jit
def by_score(
    weights, weight_grad, by_weight, seeds, drift, norms, extra_bound, into, scale_out,
    m, x_count, y_count, weights_step, step, into_step, start, threshold, scale,
    SUMS: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a row of scores times a power of two for float16's range, and that power.

    SUMS subtracts Σ weight · gradient; `drift` is subtracted unless it is None.
    """
    index = tl.program_id(0).to(tl.int64)
    bound = tl.sqrt(_largest(norms, x_count)) * tl.sqrt(_largest(norms + x_count, y_count)) * tl.maximum(scale, 1.0)
    if extra_bound is not None:
        bound += tl.load(extra_bound)
    grad_scale = tl.exp2(13.0) / _power(bound, -100.0, 100.0)
    if tl.program_id(0) == 0:
        tl.store(scale_out, grad_scale)
    weights += index * weights_step
    weight_grad += index * step
    grads = by_weight
    if by_weight is not None:
        grads = by_weight + index * m
    seed = tl.zeros((), tl.int64)
    if seeds is not None:
        seed = tl.load(seeds + index)
    DROPS: tl.constexpr = seeds is not None
    lane = tl.arange(0, BLOCK)
    weight, grad = _load(weights, weight_grad, grads, seed, lane, start, m, threshold, scale, DROPS)
    offset = tl.zeros((), tl.float32)
    if drift is not None:
        offset = tl.load(drift + index)
    if SUMS:
        if WHOLE:
            offset += tl.sum(weight * grad, 0)
        else:
            for begin in range(0, m, BLOCK):
                weight, grad = _load(weights, weight_grad, grads, seed, begin + lane, start, m, threshold, scale, DROPS)
                offset += tl.sum(weight * grad, 0)
    for begin in range(0, m, BLOCK):
        cols = begin + lane
        if not WHOLE:
            weight, grad = _load(weights, weight_grad, grads, seed, cols, start, m, threshold, scale, DROPS)
        score_grad = tl.where(weight == 0, 0.0, weight * ((grad - offset) * grad_scale))
        tl.store(into + index * into_step + cols, score_grad, cols < m)


# --- gradients of queries, keys and v


@triton.jit
def _side(
    x, v, by_factor, plan, peak, scale, into, by_v, block, length, features,
    KEY: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of rows from those of its factors; 0 for a far block."""
    blocks = tl.cdiv(length, ROWS)
    element = (block // blocks).to(tl.int64)
    rows, cols = (block % blocks) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    row = (element * length + rows)[:, None]
    near = (rows < tl.where(tl.load(peak) <= tl.load(plan), length, 0))[:, None] & inside
    t = tl.load(x + row * features + cols[None, :], near, 0.0).to(tl.float32)
    first, small = tl.load(plan + 1), tl.load(plan + 2)
    angle = t * first
    s, c = _waves(angle)
    s2, c2 = 2 * s * c, c * c - s * s
    source = by_factor + row * (2 * R * features) + cols[None, :]
    slopes = tl.zeros([ROWS, COLS], tl.float32)
    tanhs = tl.zeros([ROWS, COLS], tl.float32)
    for r in range(0, R):
        frequency = first * (2 * r + 1)
        a, b = tl.load(source, near, 0.0), tl.load(source + features, near, 0.0)
        if KEY:
            gain = tl.load(plan + 4 + r)
            slopes += (b * c - small * a * s) * (frequency * gain)
            tanhs += (small * a * c + b * s) * gain
        else:
            slopes += (a * c - small * b * s) * frequency
        source += 2 * features
        s, c = s * c2 + c * s2, c * c2 - s * s2
    unit = 1 / tl.load(scale)
    if KEY:
        slopes *= (tl.load(v + cols, cols < features, 0.0).to(tl.float32) / tl.load(plan + 3))[None, :]
        tl.store(by_v + block.to(tl.int64) * features + cols, tl.sum(tanhs, 0) * unit, cols < features)
    tl.store(into + row * features + cols[None, :], slopes * (unit * tl.load(plan + 3)), inside)


@triton.jit
def sides(
    x, y, v, by_phi, by_psi, plan, x_peaks, y_peaks, scale, by_x, by_y, by_v, x_count, x_length, y_length, features,
    v_step, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of queries and keys, and each key block's share of v's gradient."""
    block = tl.program_id(0)
    if block < x_count:
        _side(x, v, by_phi, plan, x_peaks + block, scale, by_x, by_v, block, x_length, features, False, R, ROWS, COLS)
    else:
        block -= x_count
        w = v + (block // tl.cdiv(y_length, ROWS)).to(tl.int64) * v_step
        _side(y, w, by_psi, plan, y_peaks + block, scale, by_y, by_v, block, y_length, features, True, R, ROWS, COLS)


@triton.jit
def _far_side(
    x, y, v, grads, row_step, col_step, limit, x_peaks, y_peaks, unit, into, by_v, element, i, length, y_rows, features,
    KEY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Add Σ_j g_ij v (1 − tanh²) over pairs with a far block to a block of rows; and Σ g tanh to v's gradient."""
    rows, cols = i * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    index = (element * length + rows)[:, None] * features + cols[None, :]
    in_features = cols < features
    t = tl.load(x + index, inside, 0.0).to(tl.float32)
    side_peak = tl.load(x_peaks)
    slopes = tl.zeros([ROWS, COLS], tl.float32)
    tanhs = tl.zeros([ROWS, COLS], tl.float32)
    for j in range(0, tl.cdiv(y_rows, ROWS)):
        if tl.maximum(side_peak, tl.load(y_peaks + j)) > limit:
            start = tl.full((), j * ROWS, tl.int64)
            k_at = y + (element * y_rows + start) * features + cols
            g_at = grads + rows.to(tl.int64) * row_step + start * col_step
            for _ in range(0, tl.minimum(ROWS, y_rows - j * ROWS)):
                k = tl.load(k_at, in_features, 0.0).to(tl.float32)
                g = tl.load(g_at, rows < length, 0.0).to(tl.float32)[:, None]
                k_at += features
                g_at += col_step
                tanh, slope = tanh_and_slope(t + k[None, :])
                slopes += tl.where(g == 0, 0.0, g * slope)
                tanhs += tl.where(g == 0, 0.0, g * tanh)
    w = tl.load(v + cols, in_features, 0.0).to(tl.float32)
    tl.store(into + index, tl.load(into + index, inside, 0.0).to(tl.float32) + slopes * (w * unit)[None, :], inside)
    if KEY:
        by_v += cols
        share = tl.sum(tl.where(inside, tanhs, 0.0), 0) * unit
        tl.store(by_v, tl.load(by_v, in_features, 0.0) + share, in_features)


@triton.jit
def far_sides(
    x, y, v, grads, plan, x_peaks, y_peaks, scale, by_x, by_y, by_v,
    x_count, n, m, features, v_step, step, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of pairs with a far block."""
    limit = tl.load(plan)
    if limit < float("inf"):
        unit = 1 / tl.load(scale)
        block = tl.program_id(0)
        down, across = tl.cdiv(n, ROWS), tl.cdiv(m, ROWS)
        if block < x_count:
            element = (block // down).to(tl.int64)
            _far_side(
                x, y, v + element * v_step, grads + element * n * step, step, 1, limit, x_peaks + block,
                y_peaks + element * across, unit, by_x, by_v, element, block % down, n, m, features, False, ROWS, COLS,
            )  # fmt: skip
        else:
            block -= x_count
            element = (block // across).to(tl.int64)
            _far_side(
                y, x, v + element * v_step, grads + element * n * step, 1, step, limit, y_peaks + block,
                x_peaks + element * down, unit, by_y, by_v + block.to(tl.int64) * features, element, block % across,
                m, n, features, True, ROWS, COLS,
            )  # fmt: skip
