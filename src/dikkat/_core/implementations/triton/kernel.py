"""The launched kernels of a tile: the pass over the keys, and tiles of weights and of the scores' gradients.

Loaded when first used.
"""

import triton
import triton.language as tl

from dikkat._core.implementations.triton.pairs import at, profile_slope, score_tile

# --- the mask


@triton.jit
def limit_of(restrictions, element, sizes, rows, n, m, shift, CAUSAL: tl.constexpr):
    """Return each row's limit: row i sees keys below it by lengths and causality."""
    limit = tl.where(rows < n, m, 0)
    if CAUSAL:
        limit = tl.minimum(limit, rows + shift + 1)
    if restrictions.lens.data is not None:
        lens = at(restrictions.lens, element, sizes) + tl.minimum(rows, n - 1) * restrictions.lens.row
        limit = tl.minimum(limit, tl.maximum(tl.minimum(tl.load(lens), m), 0).to(tl.int32))
    return limit


@triton.jit
def restricted_scores(score, restrictions, element, sizes, rows, cols, limit, n, m):
    """Return the scores with their bias, −∞ for hidden pairs; and the mask."""
    inside_rows, inside_cols = tl.minimum(rows, n - 1).to(tl.int64), tl.minimum(cols, m - 1).to(tl.int64)
    visible = cols[None, :] < limit[:, None]
    if restrictions.mask.data is not None:
        mask = at(restrictions.mask, element, sizes) + inside_rows[:, None] * restrictions.mask.row
        visible = visible & (tl.load(mask + inside_cols[None, :] * restrictions.mask.col) != 0)
    if restrictions.exclude.data is not None:
        excluded = tl.load(at(restrictions.exclude, element, sizes) + inside_rows * restrictions.exclude.row)
        visible = visible & (cols[None, :] != excluded[:, None])
    if restrictions.key_bias.data is not None:
        bias = tl.load(at(restrictions.key_bias, element, sizes) + inside_cols * restrictions.key_bias.row)
        visible = visible & (bias != float("-inf"))[None, :]
        score = score + bias[None, :]
    visible = visible & (score != float("-inf"))
    return tl.where(visible, score, float("-inf")), visible


@triton.jit
def _dropout_factors(restrictions, element, sizes, rows, cols, n, threshold, scale):
    seeds = tl.load(at(restrictions.seeds, element, sizes) + tl.minimum(rows, n - 1) * restrictions.seeds.row)
    return dropped(seeds[:, None], cols[None, :], threshold, scale)


@triton.jit
def dropped(seeds, cols, threshold, scale):
    """Return the pairs' dropout factors, from the bits of `arithmetic.random_bits` in 32-bit arithmetic."""
    low, high = seeds.to(tl.uint32), (seeds >> 32).to(tl.uint32)
    bits = cols.to(tl.uint32) * 0x9E3779B1 + low
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B + high
    bits = bits ^ (bits >> 16)
    return tl.where(bits.to(tl.int64) >= threshold, scale, 0.0)


# --- forward


@triton.jit
def pool(weights, visible, value, EXACT: tl.constexpr):
    """Return Σ_j w_ij v_j; if EXACT, ∞ or NaN in a value gives NaN in rows that see it, and 0 in other rows."""
    if not EXACT:
        return tl.dot(weights, value, input_precision="ieee")
    else:
        non_finite = (value - value) != 0
        pooled = tl.dot(weights, tl.where(non_finite, 0.0, value), input_precision="ieee")
        if tl.max(non_finite.to(tl.int32)) > 0:
            sees_non_finite = tl.dot(visible.to(tl.float16), non_finite.to(tl.float16))
            pooled = tl.where(sees_non_finite > 0, float("nan"), pooled)
        return pooled


@triton.jit
def attend(
    scored, restrictions, value, mean, peaks, totals, sizes, n, m, features, size, shift, threshold, scale,
    CAUSAL: tl.constexpr, EXACT: tl.constexpr, PROFILE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Attend a block of rows to all of its keys: softmax with a running peak and total."""
    blocks = tl.cdiv(n, BM)
    element = tl.program_id(0).to(tl.int64) // blocks
    row_block = tl.program_id(0) % blocks
    rows, features_out = row_block * BM + tl.arange(0, BM), tl.program_id(1) * BD + tl.arange(0, BD)
    limit = limit_of(restrictions, element, sizes, rows, n, m, shift, CAUSAL)
    values = at(value, element, sizes) + features_out[None, :].to(tl.int64) * value.col

    peak = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BD], tl.float32)
    for key_block in range(0, tl.cdiv(tl.max(limit, 0), BN)):
        cols = key_block * BN + tl.arange(0, BN)
        score, _square = score_tile(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
        score, visible = restricted_scores(score, restrictions, element, sizes, rows, cols, limit, n, m)
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.where(visible, tl.exp(score - base[:, None]), 0.0)
        fade = tl.exp(peak - base)
        total = total * fade + tl.sum(share, 1)
        if restrictions.seeds.data is not None:
            share *= _dropout_factors(restrictions, element, sizes, rows, cols, n, threshold, scale)
        inside = (cols < m)[:, None] & (features_out < size)[None, :]
        v = tl.load(values + cols[:, None].to(tl.int64) * value.row, inside, 0.0)
        pooled = pooled * fade[:, None] + pool(share, visible, v, EXACT)
        peak = higher

    into = mean + (element * n + rows)[:, None] * size + features_out[None, :]
    inside = (rows < n)[:, None] & (features_out < size)[None, :]
    tl.store(into, pooled / tl.where(total == 0, 1.0, total)[:, None], inside)
    if tl.program_id(1) == 0:
        tl.store(peaks + element * n + rows, peak, rows < n)
        tl.store(totals + element * n + rows, total, rows < n)


# --- tiles of weights and of gradients


@triton.jit
def weights_tile(
    scored, restrictions, value, weights, peaks, totals, by_mean, drift, by_weight, by_score, by_bias, live,
    sizes, first, n, m, features, size, shift, threshold, scale,
    CAUSAL: tl.constexpr, PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Write a tile of weights from the rows' peaks and totals; with `by_score`, also the gradients of its scores.

    For gradients, `weights` are after dropout and not divided by the totals, `by_score` is that of the squares for
    `distance`, `live` is 1 if the tile has a nonzero number, and `by_bias` gets the sums over rows.
    """
    key_blocks = tl.cdiv(m, BN)
    row_blocks = tl.cdiv(n, BM)
    key_block = tl.program_id(0) % key_blocks
    row_block = (tl.program_id(0) // key_blocks) % row_blocks
    local = tl.program_id(0).to(tl.int64) // (key_blocks * row_blocks)
    element = local + first
    rows, cols = row_block * BM + tl.arange(0, BM), key_block * BN + tl.arange(0, BN)
    inside = (rows < n)[:, None] & (cols < m)[None, :]
    pairs = (local * n + rows)[:, None] * m + cols[None, :]
    limit = limit_of(restrictions, element, sizes, rows, n, m, shift, CAUSAL)
    share = tl.zeros([BM, BN], tl.float32)
    score_grad = tl.zeros([BM, BN], tl.float32)
    bias = tl.zeros([BN], tl.float32)
    if tl.max(limit, 0) > key_block * BN:
        score, square = score_tile(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
        score, visible = restricted_scores(score, restrictions, element, sizes, rows, cols, limit, n, m)
        inside_rows = tl.minimum(rows, n - 1).to(tl.int64)
        peak = tl.load(at(peaks, element, sizes) + inside_rows * peaks.row)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        share = tl.where(visible, tl.exp(score - base[:, None]), 0.0)
        if totals.data is not None:
            total = tl.load(at(totals, element, sizes) + inside_rows * totals.row)
            share /= tl.where(total == 0, 1.0, total)[:, None]
        if by_score is not None:
            weight_grad = tl.zeros([BM, BN], tl.float32)
            grads = at(by_mean, element, sizes) + inside_rows[:, None] * by_mean.row
            values = at(value, element, sizes) + tl.minimum(cols, m - 1).to(tl.int64)[None, :] * value.row
            for start in range(0, size, BD):
                d = start + tl.arange(0, BD)
                g = tl.load(grads + d[None, :] * by_mean.col, (d < size)[None, :], 0.0)
                v = tl.load(values + d[:, None].to(tl.int64) * value.col, (d < size)[:, None], 0.0)
                weight_grad += tl.dot(g, v, input_precision="ieee")
            dropped_share = share
            if restrictions.seeds.data is not None:
                factor = _dropout_factors(restrictions, element, sizes, rows, cols, n, threshold, scale)
                weight_grad *= factor
                dropped_share = share * factor
            if by_weight.data is not None:
                incoming = at(by_weight, element, sizes) + inside_rows[:, None] * by_weight.row
                weight_grad += tl.load(incoming + tl.minimum(cols, m - 1).to(tl.int64)[None, :] * by_weight.col)
            row_drift = tl.load(at(drift, element, sizes) + inside_rows * drift.row)
            score_grad = tl.where(visible, share * (weight_grad - row_drift[:, None]), 0.0)
            share = dropped_share
            bias = tl.sum(score_grad, 0)
            if PROFILE != "":
                score_grad = tl.where(visible, score_grad * 2 * profile_slope(square, PROFILE), 0.0)
    tl.store(weights + pairs, share, inside)
    if by_score is not None:
        tl.store(by_score + pairs, score_grad, inside)
        nonzero = ((share != 0) | (score_grad != 0)).to(tl.int32)
        tl.store(live + (local * row_blocks + row_block) * key_blocks + key_block, tl.max(nonzero))
        if by_bias is not None:
            tl.store(by_bias + (local * row_blocks + row_block) * m + cols, bias, cols < m)
