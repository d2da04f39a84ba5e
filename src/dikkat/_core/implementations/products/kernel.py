"""The kernels around the matrix products: factors, weights and gradients by rows, and the pairs that no series reaches.

For |q| + |k| ≤ A the additive score is approximated by a product of factors of the query and of the key,

    Σ_h v_h tanh(q_h + k_h) ≈ Σ_h Σ_r v_h b_r (sin ω_r q_h cos ω_r k_h + cos ω_r q_h sin ω_r k_h),   ω_r = (2r + 1) ω.

Queries and keys (element, row, feature) are contiguous and processed in blocks of `ROWS` rows. The *peak* of a block is
its largest |x|. If the data exceed the reach A of all series, a block with a peak above A/2 is *far*. The factors of a
far block are 0. `far_scores` and `far_input_grads` compute the pairs of a far block, on either side, directly.

`plan` has the numbers of `launch.Plan.numbers`. This module imports Triton, so it is loaded when first used.
"""

import triton
import triton.language as tl

from dikkat._core.implementations.products import launch
from dikkat._core.implementations.triton.kernel import dropped
from dikkat._core.implementations.triton.pairs import tanh_and_slope

# Positions in `plan`.
LIMIT, FREQUENCY = tl.constexpr(launch.LIMIT), tl.constexpr(launch.FREQUENCY)
SINE_UNIT, V_UNIT = tl.constexpr(launch.SINE_UNIT), tl.constexpr(launch.V_UNIT)
COEFFICIENTS = tl.constexpr(launch.COEFFICIENTS)

# --- the reach


@triton.jit
def _peak(x, block, length, features, NORM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the largest |x| of a block of rows, ∞ if it has a NaN; if NORM, the largest finite squared norm."""
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
    query, key, v, result, query_blocks, n, key_blocks, m, features, v_length,
    NORM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the `_peak` of each block of queries, then of keys, then of v; 0 if v is None."""
    block = tl.program_id(0)
    if block < query_blocks:
        peak = _peak(query, block, n, features, NORM, ROWS, COLS)
    elif block < query_blocks + key_blocks:
        peak = _peak(key, block - query_blocks, m, features, NORM, ROWS, COLS)
    else:
        peak = tl.zeros((), tl.float32)
        if v is not None:
            for row in range(0, tl.cdiv(v_length, ROWS)):
                peak = tl.maximum(peak, _peak(v, row, v_length, features, NORM, ROWS, COLS))
    tl.store(result + block, peak)


@triton.jit
def _largest(numbers, count):
    largest = tl.zeros([1024], tl.float32)
    for first in range(0, count, 1024):
        index = first + tl.arange(0, 1024)
        largest = tl.maximum(largest, tl.load(numbers + index, index < count, 0.0))
    return tl.max(largest, 0)


@triton.jit
def _power_of_two_below(x, min_exponent, max_exponent):
    """Return the largest power of two ≤ x, with a clamped exponent; for 0, ∞ and NaN as for 1."""
    usual = (x > 0) & (x < float("inf"))
    power = tl.floor(tl.log2(tl.where(usual, x, 1.0)))
    return tl.exp2(tl.minimum(tl.maximum(power, min_exponent), max_exponent))


@triton.jit
def choose_series(
    all_peaks, table, plan, query_blocks, key_blocks, num_lines, R: tl.constexpr, RP: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """Write the plan of a call from its peaks, with the first series of sufficient reach, or the last one.

    A line of the table is a series: its reach, its first frequency, and R coefficients. Lines are sorted by reach. RP
    and TP are R and the number of lines, padded to powers of two.
    """
    reach = _largest(all_peaks, query_blocks) + _largest(all_peaks + query_blocks, key_blocks)
    lines = tl.arange(0, TP)
    line_reaches = tl.load(table + lines * (R + 2), lines < num_lines, 0.0)
    longest = tl.max(line_reaches, 0)
    has_far = (reach <= longest) == 0  # also for NaN
    is_short = (lines < num_lines) & (line_reaches < tl.where(has_far, longest, reach))
    line = table + tl.sum(is_short.to(tl.int32), 0) * (R + 2)
    tl.store(plan + LIMIT, tl.where(has_far, longest / 2, float("inf")))
    tl.store(plan + FREQUENCY, tl.load(line + 1))
    tl.store(plan + SINE_UNIT, _power_of_two_below(reach, -60.0, 0.0))
    tl.store(plan + V_UNIT, _power_of_two_below(tl.load(all_peaks + query_blocks + key_blocks), -60.0, 60.0))
    terms = tl.arange(0, RP)
    tl.store(plan + COEFFICIENTS + terms, tl.load(line + 2 + terms, terms < R, 0.0), terms < R)


# --- factors


@triton.jit
def _waves(angle):
    """Return sin and cos for |angle| ≤ π, from Taylor series at half the angle.

    At the first frequency all angles of near blocks are in this range.
    """
    half = 0.5 * angle
    s = half * half
    sin = 1 + s * (-1 / 6 + s * (1 / 120 + s * (-1 / 5040 + s * (1 / 362880 - s * (1 / 39916800)))))
    cos = -0.5 + s * (1 / 24 + s * (-1 / 720 + s * (1 / 40320 + s * (-1 / 3628800 + s * (1 / 479001600)))))
    sin *= half
    return 2 * sin * (1 + s * cos), 1 - 2 * sin * sin


@triton.jit
def _factors(
    x, v, result, plan, peak, block, length, features,
    KEY: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write for each r the factors [sin ω_r x / unit, cos ω_r x] of queries, or [cos, sin / unit] · b_r v of keys.

    The unit is SINE_UNIT, so that sines of small arguments keep their digits in float16, and v is divided by V_UNIT.
    The factors of a far block are 0.
    """
    blocks = tl.cdiv(length, ROWS)
    element = (block // blocks).to(tl.int64)
    rows, cols = (block % blocks) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    row = (element * length + rows)[:, None]
    near = (rows < tl.where(tl.load(peak) <= tl.load(plan + LIMIT), length, 0))[:, None] & inside
    values = tl.load(x + row * features + cols[None, :], near, 0.0).to(tl.float32)
    sine_scale = 1 / tl.load(plan + SINE_UNIT)
    angle = values * tl.load(plan + FREQUENCY)
    sin, cos = _waves(angle)
    sin2, cos2 = 2 * sin * cos, cos * cos - sin * sin  # ω_{r+1} = ω_r + 2 ω
    out = result + row * (2 * R * features) + cols[None, :]
    if KEY:
        scaled_v = (tl.load(v + cols, cols < features, 0.0).to(tl.float32) / tl.load(plan + V_UNIT))[None, :]
    for r in range(0, R):
        if KEY:
            coefficient_v = scaled_v * tl.load(plan + COEFFICIENTS + r)
            first, second = cos * coefficient_v, sin * coefficient_v * sine_scale
        else:
            first, second = sin * sine_scale, cos
        tl.store(out, tl.where(near, first, 0.0), inside)
        tl.store(out + features, tl.where(near, second, 0.0), inside)
        out += 2 * features
        sin, cos = sin * cos2 + cos * sin2, cos * cos2 - sin * sin2


@triton.jit
def factors(
    query, key, v, phi, psi, plan, query_peaks, key_peaks, query_blocks, n, m, features, v_step,
    R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the factors phi of queries and psi of keys."""
    block = tl.program_id(0)
    if block < query_blocks:
        _factors(query, v, phi, plan, query_peaks + block, block, n, features, False, R, ROWS, COLS)
    else:
        block -= query_blocks
        element_v = v + (block // tl.cdiv(m, ROWS)).to(tl.int64) * v_step
        _factors(key, element_v, psi, plan, key_peaks + block, block, m, features, True, R, ROWS, COLS)


@triton.jit
def far_scores(
    query, key, v, scores, plan, query_peaks, key_peaks, tiles, n, m, features, v_step, step,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Overwrite the scores of pairs of blocks of which at least one is far; the product of factors is 0 there."""
    limit = tl.load(plan + LIMIT)
    if limit < float("inf"):
        unit = 1 / (tl.load(plan + SINE_UNIT) * tl.load(plan + V_UNIT))
        across, down = tl.cdiv(m, ROWS), tl.cdiv(n, ROWS)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            element = (tile // (across * down)).to(tl.int64)
            i, j = (tile // across) % down, tile % across
            farthest = tl.maximum(tl.load(query_peaks + element * down + i), tl.load(key_peaks + element * across + j))
            if farthest > limit:
                rows, cols = i * ROWS + tl.arange(0, ROWS), j * ROWS + tl.arange(0, ROWS)
                q_rows = query + (element * n + tl.minimum(rows, n - 1)) * features
                k_rows = key + (element * m + tl.minimum(cols, m - 1)) * features
                element_v = v + element * v_step
                total = tl.zeros([ROWS, ROWS], tl.float32)
                for feature in range(0, features):
                    q, k = tl.load(q_rows + feature).to(tl.float32), tl.load(k_rows + feature).to(tl.float32)
                    tanh, _slope = tanh_and_slope(q[:, None] + k[None, :])
                    total += tl.load(element_v + feature).to(tl.float32) * tanh
                result = scores + (element * n + rows)[:, None] * step + cols[None, :]
                tl.store(result, total * unit, (rows < n)[:, None] & (cols < m)[None, :])


# --- weights


@triton.jit
def _visible_scores(scores, score_unit, limit, visible, cols, m):
    """Return scores of a row, −∞ for hidden keys, and a mask, True if the key is visible and the score is not −∞."""
    score = tl.load(scores + cols, cols < m, 0.0) * score_unit
    inside = cols < limit
    if visible is not None:
        inside = inside & (tl.load(visible + cols, cols < m, 0) != 0)
    return tl.where(inside, score, float("-inf")), inside & (score != float("-inf"))


@triton.jit
def weigh(
    scores, plan, lens, visible, seeds, weights, dropped_weights, row_peaks, row_totals,
    n, m, step, weights_step, lens_element_step, lens_row_step, first_row, shift, first_col, threshold, scale,
    KNOWN: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a row's weights before and after dropout, and unless KNOWN its largest score and its total.

    The scores are a tile of the call's: `first_row` and `first_col` are its first query and key, and query i sees keys
    j ≤ i + `shift` if CAUSAL. The row fits in one block if WHOLE.
    """
    index = tl.program_id(0).to(tl.int64)
    element, row = index // n, (index % n).to(tl.int32)
    score_unit = 1.0
    if plan is not None:
        score_unit = tl.load(plan + SINE_UNIT) * tl.load(plan + V_UNIT)
    limit = m
    if CAUSAL:
        limit = tl.minimum(limit, row + first_row + shift + 1 - first_col)
    if lens is not None:
        length = tl.load(lens + element * lens_element_step + row * lens_row_step).to(tl.int64)
        limit = tl.minimum(limit, tl.maximum(length - first_col, 0).to(tl.int32))
    scores += index * step
    row_visible = visible
    if visible is not None:
        row_visible = visible + index * m
    lane = tl.arange(0, BLOCK)
    score, inside = _visible_scores(scores, score_unit, limit, row_visible, lane, m)  # all scores if WHOLE
    if KNOWN:
        peak, total = tl.load(row_peaks + index), tl.load(row_totals + index)
    elif WHOLE:
        peak = tl.max(score, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        total = tl.sum(tl.where(inside, tl.exp(score - base), 0.0), 0)
    else:
        peak, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
        for begin in range(0, m, BLOCK):
            score, inside = _visible_scores(scores, score_unit, limit, row_visible, begin + lane, m)
            higher = tl.maximum(peak, tl.max(score, 0))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(peak - base) + tl.sum(tl.where(inside, tl.exp(score - base), 0.0), 0)
            peak = higher
    if not KNOWN:
        tl.store(row_peaks + index, peak)
        tl.store(row_totals + index, total)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    divisor = tl.where(total == 0, 1.0, total)
    for begin in range(0, m, BLOCK):
        cols = begin + lane
        if not WHOLE:
            score, inside = _visible_scores(scores, score_unit, limit, row_visible, cols, m)
        weight = tl.where(inside, tl.exp(score - base) / divisor, 0.0)
        tl.store(weights + index * weights_step + cols, weight, cols < m)
        if seeds is not None:
            weight *= dropped(tl.load(seeds + index), first_col + cols, threshold, scale)
            tl.store(dropped_weights + index * weights_step + cols, weight, cols < m)


@triton.jit
def _load_weights_and_grads(
    weights, weight_grad, incoming, seed, cols, first_col, m, threshold, scale, DROPS: tl.constexpr,
):  # fmt: skip
    """Return weights of a row and their gradients before dropout; a weight of 0 has the gradient 0."""
    weight = tl.load(weights + cols, cols < m, 0.0).to(tl.float32)
    grad = tl.load(weight_grad + cols, cols < m, 0.0)
    if DROPS:
        factor = dropped(seed, first_col + cols, threshold, scale)
        grad = tl.where(factor == 0, 0.0, grad * factor)
    if incoming is not None:
        grad += tl.load(incoming + cols, cols < m, 0.0).to(tl.float32)
    return weight, tl.where(weight == 0, 0.0, grad)


@triton.jit
def score_grads(
    weights, weight_grad, incoming, seeds, offsets, squared_norms, extra_bound, result, scale_out,
    m, query_blocks, key_blocks, weights_step, step, result_step, first_col, threshold, scale,
    SUBTRACT_MEAN: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a row of scores, scaled by a power of two to fit float16, and the scale itself.

    The gradient of a score is weight · (gradient of the weight − offset). The offset is the row's entry of `offsets`,
    if it is not None, and with SUBTRACT_MEAN also Σ weight · gradient. `scale` is that of dropout. The product of the
    largest norms of mean gradients and values bounds the gradients, and `extra_bound` bounds `incoming` and `offsets`.
    The bound is scaled to about 2¹³, so that float16 does not overflow.
    """
    index = tl.program_id(0).to(tl.int64)
    grad_norm = tl.sqrt(_largest(squared_norms, query_blocks))
    bound = grad_norm * tl.sqrt(_largest(squared_norms + query_blocks, key_blocks)) * tl.maximum(scale, 1.0)
    if extra_bound is not None:
        bound += tl.load(extra_bound)
    grad_scale = tl.exp2(13.0) / _power_of_two_below(bound, -100.0, 100.0)
    if tl.program_id(0) == 0:
        tl.store(scale_out, grad_scale)
    weights += index * weights_step
    weight_grad += index * step
    row_incoming = incoming
    if incoming is not None:
        row_incoming = incoming + index * m
    seed = tl.zeros((), tl.int64)
    if seeds is not None:
        seed = tl.load(seeds + index)
    DROPS: tl.constexpr = seeds is not None
    lane = tl.arange(0, BLOCK)
    weight, grad = _load_weights_and_grads(
        weights, weight_grad, row_incoming, seed, lane, first_col, m, threshold, scale, DROPS
    )
    offset = tl.zeros((), tl.float32)
    if offsets is not None:
        offset = tl.load(offsets + index)
    if SUBTRACT_MEAN:
        if WHOLE:
            offset += tl.sum(weight * grad, 0)
        else:
            for begin in range(0, m, BLOCK):
                weight, grad = _load_weights_and_grads(
                    weights, weight_grad, row_incoming, seed, begin + lane, first_col, m, threshold, scale, DROPS
                )
                offset += tl.sum(weight * grad, 0)
    for begin in range(0, m, BLOCK):
        cols = begin + lane
        if not WHOLE:
            weight, grad = _load_weights_and_grads(
                weights, weight_grad, row_incoming, seed, cols, first_col, m, threshold, scale, DROPS
            )
        score_grad = tl.where(weight == 0, 0.0, weight * ((grad - offset) * grad_scale))
        tl.store(result + index * result_step + cols, score_grad, cols < m)


# --- gradients of the inputs: queries, keys and v


@triton.jit
def _input_grads(
    x, v, factor_grad, plan, peak, scale, result, v_grad, block, length, features,
    KEY: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of queries or keys from the gradients of its factors; 0 for a far block."""
    blocks = tl.cdiv(length, ROWS)
    element = (block // blocks).to(tl.int64)
    rows, cols = (block % blocks) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    row = (element * length + rows)[:, None]
    near = (rows < tl.where(tl.load(peak) <= tl.load(plan + LIMIT), length, 0))[:, None] & inside
    values = tl.load(x + row * features + cols[None, :], near, 0.0).to(tl.float32)
    frequency, small = tl.load(plan + FREQUENCY), tl.load(plan + SINE_UNIT)
    angle = values * frequency
    sin, cos = _waves(angle)
    sin2, cos2 = 2 * sin * cos, cos * cos - sin * sin
    source = factor_grad + row * (2 * R * features) + cols[None, :]
    slopes = tl.zeros([ROWS, COLS], tl.float32)
    tanhs = tl.zeros([ROWS, COLS], tl.float32)
    for r in range(0, R):
        omega = frequency * (2 * r + 1)
        first_grad, second_grad = tl.load(source, near, 0.0), tl.load(source + features, near, 0.0)
        if KEY:
            coefficient = tl.load(plan + COEFFICIENTS + r)
            slopes += (second_grad * cos - small * first_grad * sin) * (omega * coefficient)
            tanhs += (small * first_grad * cos + second_grad * sin) * coefficient
        else:
            slopes += (first_grad * cos - small * second_grad * sin) * omega
        source += 2 * features
        sin, cos = sin * cos2 + cos * sin2, cos * cos2 - sin * sin2
    unit = 1 / tl.load(scale)
    if KEY:
        slopes *= (tl.load(v + cols, cols < features, 0.0).to(tl.float32) / tl.load(plan + V_UNIT))[None, :]
        tl.store(v_grad + block.to(tl.int64) * features + cols, tl.sum(tanhs, 0) * unit, cols < features)
    tl.store(result + row * features + cols[None, :], slopes * (unit * tl.load(plan + V_UNIT)), inside)


@triton.jit
def input_grads(
    query, key, v, phi_grad, psi_grad, plan, query_peaks, key_peaks, scale, query_grad, key_grad, v_grad, query_blocks,
    n, m, features, v_step, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of queries and keys from those of phi and psi, and each key block's share of v's gradient."""
    block = tl.program_id(0)
    if block < query_blocks:
        _input_grads(
            query, v, phi_grad, plan, query_peaks + block, scale, query_grad, v_grad, block, n, features, False,
            R, ROWS, COLS,
        )  # fmt: skip
    else:
        block -= query_blocks
        element_v = v + (block // tl.cdiv(m, ROWS)).to(tl.int64) * v_step
        _input_grads(
            key, element_v, psi_grad, plan, key_peaks + block, scale, key_grad, v_grad, block, m, features, True,
            R, ROWS, COLS,
        )  # fmt: skip


@triton.jit
def _far_input_grads(
    side, opposite, v, grads, row_step, col_step, limit, side_peak, opposite_peaks, unit, result, v_grad, element, i,
    length, opposite_length, features,
    KEY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of a block of rows Σ_j g_ij v (1 − tanh²) over its pairs in which a block is far.

    `grads` has the gradients g of the scores. If KEY, also add Σ g tanh to v's gradient.
    """
    rows, cols = i * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < length)[:, None] & (cols < features)[None, :]
    index = (element * length + rows)[:, None] * features + cols[None, :]
    in_features = cols < features
    values = tl.load(side + index, inside, 0.0).to(tl.float32)
    peak = tl.load(side_peak)
    slopes = tl.zeros([ROWS, COLS], tl.float32)
    tanhs = tl.zeros([ROWS, COLS], tl.float32)
    for j in range(0, tl.cdiv(opposite_length, ROWS)):
        if tl.maximum(peak, tl.load(opposite_peaks + j)) > limit:
            start = tl.full((), j * ROWS, tl.int64)
            opposite_at = opposite + (element * opposite_length + start) * features + cols
            grad_at = grads + rows.to(tl.int64) * row_step + start * col_step
            for _ in range(0, tl.minimum(ROWS, opposite_length - j * ROWS)):
                opposite_row = tl.load(opposite_at, in_features, 0.0).to(tl.float32)
                grad = tl.load(grad_at, rows < length, 0.0).to(tl.float32)[:, None]
                opposite_at += features
                grad_at += col_step
                tanh, slope = tanh_and_slope(values + opposite_row[None, :])
                slopes += tl.where(grad == 0, 0.0, grad * slope)
                tanhs += tl.where(grad == 0, 0.0, grad * tanh)
    element_v = tl.load(v + cols, in_features, 0.0).to(tl.float32)
    sums = tl.load(result + index, inside, 0.0).to(tl.float32) + slopes * (element_v * unit)[None, :]
    tl.store(result + index, sums, inside)
    if KEY:
        v_grad += cols
        v_share = tl.sum(tl.where(inside, tanhs, 0.0), 0) * unit
        tl.store(v_grad, tl.load(v_grad, in_features, 0.0) + v_share, in_features)


@triton.jit
def far_input_grads(
    query, key, v, grads, plan, query_peaks, key_peaks, scale, query_grad, key_grad, v_grad,
    query_blocks, n, m, features, v_step, step, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of queries, keys and v from pairs in which a block is far."""
    limit = tl.load(plan + LIMIT)
    if limit < float("inf"):
        unit = 1 / tl.load(scale)
        block = tl.program_id(0)
        down, across = tl.cdiv(n, ROWS), tl.cdiv(m, ROWS)
        if block < query_blocks:
            element = (block // down).to(tl.int64)
            _far_input_grads(
                query, key, v + element * v_step, grads + element * n * step, step, 1, limit, query_peaks + block,
                key_peaks + element * across, unit, query_grad, v_grad, element, block % down, n, m, features, False,
                ROWS, COLS,
            )  # fmt: skip
        else:
            block -= query_blocks
            element = (block // across).to(tl.int64)
            _far_input_grads(
                key, query, v + element * v_step, grads + element * n * step, 1, step, limit, key_peaks + block,
                query_peaks + element * down, unit, key_grad, v_grad + block.to(tl.int64) * features, element,
                block % across, m, n, features, True, ROWS, COLS,
            )  # fmt: skip
