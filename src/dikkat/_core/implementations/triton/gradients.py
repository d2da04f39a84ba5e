"""Kernels that sum the gradients of pairs into the gradients of values, queries, keys and v."""

import triton
import triton.language as tl

from dikkat._core.implementations.triton import ranges
from dikkat._core.implementations.triton.kernel import pool
from dikkat._core.implementations.triton.pairs import at, exponential, reciprocal, tanh_and_slope, tile_cols, tile_rows

REACH, SAFE, SMALL = tl.constexpr(ranges.REACH), tl.constexpr(ranges.SAFE), tl.constexpr(ranges.SMALL)


@triton.jit
def value_gradient(
    weights, live, by_mean, into, sizes, first, n, m, size,
    EXACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    key_blocks, row_blocks = tl.cdiv(m, BN), tl.cdiv(n, BM)
    key_block = tl.program_id(0) % key_blocks
    local = tl.program_id(0).to(tl.int64) // key_blocks
    element = local + first
    cols, d = key_block * BN + tl.arange(0, BN), tl.program_id(1) * BD + tl.arange(0, BD)
    grads = at(by_mean, element, sizes) + d[None, :] * by_mean.col
    inside = (cols < m)[:, None] & (d < size)[None, :]
    out = into + (element * m + cols)[:, None] * size + d[None, :]
    total = tl.load(out, inside, 0.0)
    for row_block in range(0, row_blocks):
        if tl.load(live + (local * row_blocks + row_block) * key_blocks + key_block) != 0:
            rows = row_block * BM + tl.arange(0, BM)
            pairs = (local * n + rows)[None, :] * m + cols[:, None]
            w = tl.load(weights + pairs, (rows < n)[None, :] & (cols < m)[:, None], 0.0)
            g = tl.load(
                grads + rows[:, None].to(tl.int64) * by_mean.row, (rows < n)[:, None] & (d < size)[None, :], 0.0
            )
            total += pool(w, w != 0, g, EXACT)
    tl.store(out, total, inside)


# --- gradients of queries, keys and v: one side stays in registers, a loop reads the opposite side


@triton.jit
def _pull_additive(x, inverse, e, inverse_e, pairs, pairs_step, e_step, count, slopes):
    """Add Σ_j g_ij p r², with p r² = 1 / (2 + p + 1/p)."""
    for _ in range(0, count):
        y, z = tl.load(e), tl.load(inverse_e)
        slopes += tl.load(pairs) * reciprocal(inverse * z + (x * y + 2))
        pairs += pairs_step
        e += e_step
        inverse_e += e_step
    return slopes


@triton.jit
def _pull_weighted(x, centred, e, centred_e, pairs, pairs_step, e_step, count, slopes, tanhs, NEAR: tl.constexpr):
    """Add Σ_j g_ij p r² and Σ_j g_ij tanh; NEAR 0, tanh from p − 1 = (e^{2q} − 1) e^{2k} + (e^{2k} − 1)."""
    for _ in range(0, count):
        g, y = tl.load(pairs), tl.load(e)
        p = x * y
        r = reciprocal(p + 1)
        tanh = (centred * y + tl.load(centred_e)) * r if NEAR else 1 - 2 * r
        tanhs += g * tanh
        slopes += g * (p * r * r)
        pairs += pairs_step
        e += e_step
        centred_e += e_step
    return slopes, tanhs


@triton.jit
def _pull_plain(q, k, pairs, pairs_step, k_step, count, slopes, tanhs, WITH_WEIGHT: tl.constexpr):
    """`_pull_weighted` for any numbers; ∞ and NaN affect only pairs whose gradient is not 0."""
    for _ in range(0, count):
        g = tl.load(pairs)
        tanh, slope = tanh_and_slope(q + tl.load(k))
        slopes += tl.where(g == 0, 0.0, g * (0.25 * slope))
        if WITH_WEIGHT:
            tanhs += tl.where(g == 0, 0.0, g * tanh)
        pairs += pairs_step
        k += k_step
    return slopes, tanhs


@triton.jit
def _pull_distance(q, k, pairs, pairs_step, k_step, count, total):
    """Add Σ_j g_ij (q_i − k_j)."""
    for _ in range(0, count):
        g = tl.load(pairs)
        total += g * tl.where(g == 0, 0.0, q - tl.load(k))
        pairs += pairs_step
        k += k_step
    return total


@triton.jit
def side_gradient(
    side, opposite, e, twin, weight, side_peaks, opposite_peaks, by_score, live, into, by_weight,
    sizes, first, side_count, opposite_count, features,
    PROFILE: tl.constexpr, SIDE: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr, FEATURES: tl.constexpr,
    W: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of a block of queries (or keys), in registers, over all keys (queries).

    Threads do not share rows and features, so no sum crosses threads. `e` is e^{2k}; `twin` is e^{2k} − 1 if v's
    gradient is requested, else e^{-2k}.
    """
    blocks = tl.cdiv(side_count, BLOCK)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0).to(tl.int64) // blocks
    element = local + first
    L: tl.constexpr = min(32, FEATURES)
    R: tl.constexpr = min(BLOCK, 32 * W // L)
    rows = tile_rows(block * BLOCK, BLOCK, R)
    cols = tile_cols(tl.program_id(1) * FEATURES, FEATURES, L)
    inside_rows = tl.minimum(rows, side_count - 1).to(tl.int64)
    inside_cols = tl.minimum(cols, features - 1)
    inside = (rows < side_count) & (cols < features)
    side_block = block * BLOCK // SIDE

    q = tl.load(at(side, element, sizes) + inside_rows * side.row + cols * side.col, inside, 0.0)
    opposite_rows = at(opposite, element, sizes) + inside_cols * opposite.col
    pairs = by_score.data + local * by_score.lead[0] + inside_rows * by_score.row
    live_row = live.data + local * live.lead[0] + side_block * live.row
    out = at(into, element, sizes) + inside_rows * into.row + cols
    slopes = tl.zeros([BLOCK // R, FEATURES // L, R, L], tl.float32)
    tanhs = tl.zeros([BLOCK // R, FEATURES // L, R, L], tl.float32)
    WITH_WEIGHT: tl.constexpr = by_weight.data is not None
    if PROFILE == "":
        e_cols = at(e, element, sizes) + inside_cols
        twin_cols = at(twin, element, sizes) + inside_cols
        reach = tl.load(at(side_peaks, element, sizes) + side_block)
        opposite_reach = at(opposite_peaks, element, sizes)
        in_reach = tl.where(tl.abs(q) <= REACH, q, 0.0)  # beyond REACH the exponentials are not used
        x = exponential(2 * in_reach)
        if WITH_WEIGHT:
            half = tanh_and_slope(in_reach)[0]
            twin_of_side = 2 * half / (1 - half)  # e^{2q} − 1, with the digits of a small q
        else:
            twin_of_side = exponential(-2 * in_reach)
    for opposite_block in range(0, tl.cdiv(opposite_count, OTHER)):
        if tl.load(live_row + opposite_block * live.col) != 0:
            start = tl.full((), opposite_block * OTHER, tl.int64)
            count = tl.minimum(OTHER, opposite_count - opposite_block * OTHER)
            g = pairs + start * by_score.col
            k = opposite_rows + start * opposite.row
            if PROFILE != "":
                slopes = _pull_distance(q, k, g, by_score.col, opposite.row, count, slopes)
            else:
                peak_sum = reach + tl.load(opposite_reach + opposite_block)
                y, t = e_cols + start * e.row, twin_cols + start * e.row
                if peak_sum > SAFE:
                    slopes, tanhs = _pull_plain(q, k, g, by_score.col, opposite.row, count, slopes, tanhs, WITH_WEIGHT)
                elif not WITH_WEIGHT:
                    slopes = _pull_additive(x, twin_of_side, y, t, g, by_score.col, e.row, count, slopes)
                elif peak_sum > SMALL:
                    slopes, tanhs = _pull_weighted(
                        x, twin_of_side, y, t, g, by_score.col, e.row, count, slopes, tanhs, False
                    )
                else:
                    slopes, tanhs = _pull_weighted(
                        x, twin_of_side, y, t, g, by_score.col, e.row, count, slopes, tanhs, True
                    )
    if PROFILE == "":
        v = tl.load(at(weight, element, sizes) + inside_cols * weight.col)
        slopes *= 4 * v
    tl.store(out, tl.load(out, inside, 0.0) + slopes, inside)
    if WITH_WEIGHT:
        total = tl.sum(tl.sum(tl.where(inside, tanhs, 0.0), 2), 0)[None, :, None, :]
        tl.store(at(by_weight, element, sizes) + block * by_weight.row + cols, total, cols < features)
