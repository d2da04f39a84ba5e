"""Triton kernels for tiles of pairs: the pass over the keys, the pairs' gradients, and what is summed of them.

Loaded when first used. With p = e^{2q} e^{2k} and r = 1/(1 + p), tanh(q + k) = 1 − 2r, and its derivative is 4 p r².
The exponentials are made once a query and once a key, so that a pair and feature costs multiplications and its share of
a reciprocal: on a GPU the unit that makes reciprocals is several times slower than the one that multiplies.

Which tiles that is safe for follows from `peaks`, the largest |q| or |k| of a block of rows (∞ beyond `REACH`, and
where something is NaN). With s = 2^-16, each denominator is s + (s e^{2q}) e^{2k}:

- The scaled exponentials are normal numbers while |q| and |k| are at most 38: s e^{-76} > 2^-126.
- Four reciprocals fold into one while a = max|q| + max|k| ≤ 19. The product of four denominators is at least
  s⁴ = 2^-64. It overflows only where that of the four 1 + p exceeds 2^192; the smallest of them is then above
  2^192 / e^{6a} ≥ 2^27, so the reciprocals that are lost are below 2^-27. Numerators stay below 4 s³ e^{6a} < 2^120.
- Two fold while a ≤ 46, likewise: a lost reciprocal is below e^{2a} / 2^160 ≤ 2^-27, numerators stay below 2^119.

Beyond, tanh is computed plainly, which is right for any number.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

FOURS, TWOS, REACH = tl.constexpr(19.0), tl.constexpr(46.0), tl.constexpr(38.0)
SCALE = tl.constexpr(2.0**-16)
# Gradients: up to where p and 1/p are normal numbers, and from where below 1 − 2r loses the digits of a small tanh.
SAFE, SMALL = tl.constexpr(43.0), tl.constexpr(1.0)
# The interpreter knows no instructions of a GPU.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


class Operand(NamedTuple):
    """A tensor as a kernel sees it.

    Attributes:
        data: The tensor, or None where the call has none.
        lead: Strides of the leading dimensions, the last one first; 0 where it is broadcast.
        row: Stride of the last dimension but one, or of the only one beside the leading.
        col: Stride of the last dimension.
    """

    data: Any = None
    lead: tuple[int, ...] = ()
    row: int = 0
    col: int = 0


class Limits(NamedTuple):
    """Who may see whom, and the seeds of each row's dropout."""

    lens: Operand
    mask: Operand
    key_bias: Operand
    exclude: Operand
    seeds: Operand


class Scored(NamedTuple):
    """What the scores of pairs are made of.

    Attributes:
        query: (..., n, h).
        key: (..., m, h).
        weight: v, (..., h).
        x: s e^{2q}, feature-major and padded; q itself for `distance`.
        y: e^{2k}, or k, likewise.
        v: v over its largest element, padded with 0.
        gain: (..., 2): Σ v, and what a sum of v r / s is multiplied by.
        query_peaks: (..., blocks).
        key_peaks: (..., blocks).
    """

    query: Operand
    key: Operand
    weight: Operand
    x: Operand
    y: Operand
    v: Operand
    gain: Operand
    query_peaks: Operand
    key_peaks: Operand


@triton.jit
def _at(operand, element, sizes):
    """Where a batch element begins, in an operand that may be broadcast over some leading dimensions."""
    offset = tl.zeros((), tl.int64)
    rest = element
    for d in tl.static_range(len(sizes)):
        offset += (rest % sizes[d]) * operand.lead[d]
        rest = rest // sizes[d]
    return operand.data + offset


# --- once a query and once a key


@triton.jit
def _exponential(z):
    """e^z to the last digit but one, for |z| ≤ 76; the hardware's own loses as many as z has."""
    power = tl.floor(z * 1.4426950408889634 + 0.5)
    rest = (z - power * 0.693359375) + power * 2.12194440e-4
    return tl.exp2(rest * 1.4426950408889634) * tl.exp2(power)


@triton.jit
def prepare(
    source, sizes, made, peaks, count, features, padded_count, padded_features, factor, highest,
    ADDITIVE: tl.constexpr, BLOCK: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Queries or keys feature-major, as exponentials times `factor` for `additive`; and the peak of each block.

    Coordinates are brought to ±`highest`, up to where they have squares.
    """
    blocks = padded_count // BLOCK
    element = tl.program_id(0).to(tl.int64) // blocks
    block = tl.program_id(0) % blocks
    rows = block * BLOCK + tl.arange(0, BLOCK)
    origin = _at(source, element, sizes) + rows.to(tl.int64)[:, None] * source.row
    into = made + element * padded_features * padded_count + rows[:, None]
    peak = tl.zeros([BLOCK], tl.float32)
    for first in range(0, padded_features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        inside = (rows < count)[:, None] & (cols < features)[None, :]
        t = tl.load(origin + cols[None, :] * source.col, inside, 0.0)
        if ADDITIVE:
            size = tl.where(t == t, tl.abs(t), float("inf"))
            peak = tl.maximum(peak, tl.max(size, 1))
            t = tl.where(size <= REACH, t, 0.0)
            t = _exponential(2 * t) * factor
        else:
            t = tl.where(t > highest, highest, tl.where(t < -highest, -highest, t))
        tl.store(into + cols.to(tl.int64)[None, :] * padded_count, t, (cols < padded_features)[None, :])
    if ADDITIVE:
        largest = tl.max(peak, 0)
        tl.store(peaks + element * blocks + block, tl.where(largest <= REACH, largest, float("inf")))


@triton.jit
def prepare_weight(weight, sizes, v, gain, features, padded_features, FEATURES: tl.constexpr):
    """v over its largest element, and what takes that back."""
    element = tl.program_id(0).to(tl.int64)
    origin = _at(weight, element, sizes)
    total = tl.zeros([FEATURES], tl.float32)
    largest = tl.zeros([FEATURES], tl.float32)
    for first in range(0, features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        t = tl.load(origin + cols * weight.col, cols < features, 0.0)
        total += t
        largest = tl.maximum(largest, tl.abs(t))
    top = tl.max(largest, 0)
    top = tl.where(top == 0, 1.0, top)
    for first in range(0, padded_features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        t = tl.load(origin + cols * weight.col, cols < features, 0.0)
        tl.store(v + element * padded_features + cols, t / top, cols < padded_features)
    tl.store(gain + element * 2, tl.sum(total, 0))
    tl.store(gain + element * 2 + 1, top * (-2 * SCALE))


# --- scores


@triton.jit
def _reciprocal(x):
    """To the last digit, without the care for subnormal numbers that plain division takes."""
    if INTERPRETED:
        return 1 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _tanh(x):
    """tanh and its derivative, for any x: neither loses the digits that it has."""
    small = tl.abs(x) < 0.25
    e = tl.exp(-2 * tl.abs(x))
    r = 1 / (1 + e)
    large = (1 - e) * r
    s = tl.where(small, x * x, 0.0)
    series = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(small, series, tl.where(x < 0, -large, large)), 4 * e * r * r


# A tile of BM × BN pairs is computed as [BM / W, BN / L, W, L] for W warps of L lanes. Triton then gives a thread
# BM / W rows by BN / L columns, so that it loads few queries and keys for many pairs; left alone it deals out all of
# its pairs along one column, and the loads are the bound.


@triton.jit
def _spread_rows(x, BM: tl.constexpr, W: tl.constexpr):
    rows = tl.arange(0, BM // W)[:, None] * W + tl.arange(0, W)[None, :]
    return (x + rows)[:, None, :, None]


@triton.jit
def _spread_cols(y, BN: tl.constexpr, L: tl.constexpr):
    cols = tl.arange(0, BN // L)[:, None] * L + tl.arange(0, L)[None, :]
    return (y + cols)[None, :, None, :]


@triton.jit
def _gathered(tile, BM: tl.constexpr, BN: tl.constexpr):
    return tl.reshape(tl.permute(tile, (0, 2, 1, 3)), (BM, BN))


@triton.jit
def _fold_four(x, y, v, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """Σ v r / s, with one reciprocal for four features."""
    L: tl.constexpr = min(32, BN)
    x, y = _spread_rows(x, BM, W), _spread_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features, 4):
        a0 = tl.load(x) * tl.load(y) + SCALE
        a1 = tl.load(x + x_step) * tl.load(y + y_step) + SCALE
        a2 = tl.load(x + 2 * x_step) * tl.load(y + 2 * y_step) + SCALE
        a3 = tl.load(x + 3 * x_step) * tl.load(y + 3 * y_step) + SCALE
        n01 = tl.load(v) * a1 + tl.load(v + 1) * a0
        n23 = tl.load(v + 2) * a3 + tl.load(v + 3) * a2
        d01, d23 = a0 * a1, a2 * a3
        total += (n01 * d23 + n23 * d01) * _reciprocal(d01 * d23)
        x += 4 * x_step
        y += 4 * y_step
        v += 4
    return _gathered(total, BM, BN)


@triton.jit
def _fold_two(x, y, v, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """Σ v r / s, with one reciprocal for two features."""
    L: tl.constexpr = min(32, BN)
    x, y = _spread_rows(x, BM, W), _spread_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features, 2):
        a0 = tl.load(x) * tl.load(y) + SCALE
        a1 = tl.load(x + x_step) * tl.load(y + y_step) + SCALE
        total += (tl.load(v) * a1 + tl.load(v + 1) * a0) * _reciprocal(a0 * a1)
        x += 2 * x_step
        y += 2 * y_step
        v += 2
    return _gathered(total, BM, BN)


@triton.jit
def _plain(q, k, v, features, q_step, k_step, v_step, BM: tl.constexpr, BN: tl.constexpr):
    """Σ v tanh(q + k)."""
    total = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, features):
        tanh, _slope = _tanh(tl.load(q)[:, None] + tl.load(k)[None, :])
        total += tl.load(v) * tanh
        q += q_step
        k += k_step
        v += v_step
    return total


@triton.jit
def _square(x, y, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """‖q − k‖², from differences: the expansion into products loses digits."""
    L: tl.constexpr = min(32, BN)
    x, y = _spread_rows(x, BM, W), _spread_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features):
        d = tl.load(x) - tl.load(y)
        total += d * d
        x += x_step
        y += y_step
    return _gathered(total, BM, BN)


@triton.jit
def _log_profile(square, PROFILE: tl.constexpr):
    """g(s); comparisons are so that NaN stays NaN."""
    if PROFILE == "gaussian":
        return -0.5 * square
    elif PROFILE == "boxcar":
        return tl.where(square > 1, float("-inf"), 0 * square)
    elif PROFILE == "triangular":
        return _log_of_rest(tl.sqrt(square))
    else:
        return _log_of_rest(square)


@triton.jit
def _log_of_rest(t):
    outside = t >= 1
    return tl.where(outside, float("-inf"), tl.log(1 - tl.where(outside, 0.0, t)))


@triton.jit
def _profile_slope(square, PROFILE: tl.constexpr):
    """dg/ds; 0 outside the support, and at s = 0 for the triangular kernel, whose tip has no slope."""
    if PROFILE == "gaussian":
        return tl.full(square.shape, -0.5, tl.float32)
    elif PROFILE == "boxcar":
        return tl.zeros(square.shape, tl.float32)
    elif PROFILE == "epanechnikov":
        return tl.where(square >= 1, 0.0, -1 / tl.where(square >= 1, 1.0, 1 - square))
    else:
        flat = (square == 0) | (square >= 1)
        radius = tl.sqrt(tl.where(flat, 0.25, square))
        return tl.where(flat, 0.0, -0.5 / (radius * (1 - radius)))


@triton.jit
def _score(
    scored, element, sizes, row_block, key_block, n, m, features,
    PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The scores of a tile, and for `distance` the squares that they were made of."""
    rows, cols = row_block * BM + tl.arange(0, BM), key_block * BN + tl.arange(0, BN)
    x = _at(scored.x, element, sizes) + row_block * BM
    y = _at(scored.y, element, sizes) + key_block * BN
    if PROFILE != "":
        square = _square(x, y, features, scored.x.row, scored.y.row, BM, BN, W)
        return _log_profile(square, PROFILE), square
    else:
        gain = _at(scored.gain, element, sizes)
        v = _at(scored.v, element, sizes)
        reach = tl.load(_at(scored.query_peaks, element, sizes) + row_block)
        reach += tl.load(_at(scored.key_peaks, element, sizes) + key_block)
        if reach <= FOURS:
            total = _fold_four(x, y, v, features, scored.x.row, scored.y.row, BM, BN, W)
            score = tl.load(gain) + tl.load(gain + 1) * total
        elif reach <= TWOS:
            total = _fold_two(x, y, v, features, scored.x.row, scored.y.row, BM, BN, W)
            score = tl.load(gain) + tl.load(gain + 1) * total
        else:
            q = _at(scored.query, element, sizes) + tl.minimum(rows, n - 1).to(tl.int64) * scored.query.row
            k = _at(scored.key, element, sizes) + tl.minimum(cols, m - 1).to(tl.int64) * scored.key.row
            w = _at(scored.weight, element, sizes)
            score = _plain(q, k, w, features, scored.query.col, scored.key.col, scored.weight.col, BM, BN)
        return score, score


# --- who sees whom


@triton.jit
def _limit(limits, element, sizes, rows, n, m, shift, CAUSAL: tl.constexpr):
    """Row i sees keys below limit_i, as lengths and causality have it."""
    limit = tl.where(rows < n, m, 0)
    if CAUSAL:
        limit = tl.minimum(limit, rows + shift + 1)
    if limits.lens.data is not None:
        lens = _at(limits.lens, element, sizes) + tl.minimum(rows, n - 1) * limits.lens.row
        limit = tl.minimum(limit, tl.maximum(tl.minimum(tl.load(lens), m), 0).to(tl.int32))
    return limit


@triton.jit
def _restrict(score, limits, element, sizes, rows, cols, limit, n, m):
    """The scores with their bias, −∞ where hidden; and who sees whom."""
    inside_rows, inside_cols = tl.minimum(rows, n - 1).to(tl.int64), tl.minimum(cols, m - 1).to(tl.int64)
    visible = cols[None, :] < limit[:, None]
    if limits.mask.data is not None:
        mask = _at(limits.mask, element, sizes) + inside_rows[:, None] * limits.mask.row
        visible = visible & (tl.load(mask + inside_cols[None, :] * limits.mask.col) != 0)
    if limits.exclude.data is not None:
        left_out = tl.load(_at(limits.exclude, element, sizes) + inside_rows * limits.exclude.row)
        visible = visible & (cols[None, :] != left_out[:, None])
    if limits.key_bias.data is not None:
        bias = tl.load(_at(limits.key_bias, element, sizes) + inside_cols * limits.key_bias.row)
        visible = visible & (bias != float("-inf"))[None, :]
        score = score + bias[None, :]
    visible = visible & (score != float("-inf"))
    return tl.where(visible, score, float("-inf")), visible


@triton.jit
def _kept(limits, element, sizes, rows, cols, n, threshold, scale):
    """What dropout multiplies each weight by: the bits of `common.random_bits`, in 32-bit arithmetic."""
    seeds = tl.load(_at(limits.seeds, element, sizes) + tl.minimum(rows, n - 1) * limits.seeds.row)
    low, high = seeds.to(tl.uint32)[:, None], (seeds >> 32).to(tl.uint32)[:, None]
    bits = (cols.to(tl.uint32) * 0x9E3779B1)[None, :] + low
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B + high
    bits = bits ^ (bits >> 16)
    return tl.where(bits.to(tl.int64) >= threshold, scale, 0.0)


# --- forward


@triton.jit
def _pool(weights, seen, value, EXACT: tl.constexpr):
    """Σ_j w_ij v_j; where EXACT, a value that is not finite is NaN to the rows that see it, and nothing to others."""
    if not EXACT:
        return tl.dot(weights, value, input_precision="ieee")
    else:
        broken = (value - value) != 0
        pooled = tl.dot(weights, tl.where(broken, 0.0, value), input_precision="ieee")
        if tl.max(broken.to(tl.int32)) > 0:
            met = tl.dot(seen.to(tl.float16), broken.to(tl.float16))
            pooled = tl.where(met > 0, float("nan"), pooled)
        return pooled


@triton.jit
def attend(
    scored, limits, value, mean, peaks, totals, sizes, n, m, features, size, shift, threshold, scale,
    CAUSAL: tl.constexpr, EXACT: tl.constexpr, PROFILE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One block of rows over all of its keys: softmax with a running peak and total."""
    blocks = tl.cdiv(n, BM)
    element = tl.program_id(0).to(tl.int64) // blocks
    row_block = tl.program_id(0) % blocks
    rows, features_out = row_block * BM + tl.arange(0, BM), tl.program_id(1) * BD + tl.arange(0, BD)
    limit = _limit(limits, element, sizes, rows, n, m, shift, CAUSAL)
    values = _at(value, element, sizes) + features_out[None, :].to(tl.int64) * value.col

    peak = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BD], tl.float32)
    for key_block in range(0, tl.cdiv(tl.max(limit, 0), BN)):
        cols = key_block * BN + tl.arange(0, BN)
        score, _made = _score(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
        score, visible = _restrict(score, limits, element, sizes, rows, cols, limit, n, m)
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        share = tl.where(visible, tl.exp(score - base[:, None]), 0.0)
        fade = tl.exp(peak - base)
        total = total * fade + tl.sum(share, 1)
        if limits.seeds.data is not None:
            share *= _kept(limits, element, sizes, rows, cols, n, threshold, scale)
        inside = (cols < m)[:, None] & (features_out < size)[None, :]
        v = tl.load(values + cols[:, None].to(tl.int64) * value.row, inside, 0.0)
        pooled = pooled * fade[:, None] + _pool(share, visible, v, EXACT)
        peak = higher

    into = mean + (element * n + rows)[:, None] * size + features_out[None, :]
    inside = (rows < n)[:, None] & (features_out < size)[None, :]
    tl.store(into, pooled / tl.where(total == 0, 1.0, total)[:, None], inside)
    if tl.program_id(1) == 0:
        tl.store(peaks + element * n + rows, peak, rows < n)
        tl.store(totals + element * n + rows, total, rows < n)


# --- tiles of weights and of gradients


@triton.jit
def weigh(
    scored, limits, value, weights, peaks, totals, by_mean, drift, by_weight, by_score, by_bias, live,
    sizes, first, n, m, features, size, shift, threshold, scale,
    CAUSAL: tl.constexpr, PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One tile of weights, from the rows' peaks and totals; with `by_score`, of the gradients of its scores too.

    For the gradients, `weights` are those after dropout and not yet divided by the totals, `by_score` is of the squares
    for `distance`, and `live` says whether anything in the tile is not 0. `by_bias` gets the sums over the tile's rows.
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
    limit = _limit(limits, element, sizes, rows, n, m, shift, CAUSAL)
    share = tl.zeros([BM, BN], tl.float32)
    found = tl.zeros([BM, BN], tl.float32)
    bias = tl.zeros([BN], tl.float32)
    if tl.max(limit, 0) > key_block * BN:
        score, square = _score(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
        score, visible = _restrict(score, limits, element, sizes, rows, cols, limit, n, m)
        inside_rows = tl.minimum(rows, n - 1).to(tl.int64)
        peak = tl.load(_at(peaks, element, sizes) + inside_rows * peaks.row)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        share = tl.where(visible, tl.exp(score - base[:, None]), 0.0)
        if totals.data is not None:
            total = tl.load(_at(totals, element, sizes) + inside_rows * totals.row)
            share /= tl.where(total == 0, 1.0, total)[:, None]
        if by_score is not None:
            wanted = tl.zeros([BM, BN], tl.float32)
            grads = _at(by_mean, element, sizes) + inside_rows[:, None] * by_mean.row
            values = _at(value, element, sizes) + tl.minimum(cols, m - 1).to(tl.int64)[None, :] * value.row
            for start in range(0, size, BD):
                d = start + tl.arange(0, BD)
                g = tl.load(grads + d[None, :] * by_mean.col, (d < size)[None, :], 0.0)
                v = tl.load(values + d[:, None].to(tl.int64) * value.col, (d < size)[:, None], 0.0)
                wanted += tl.dot(g, v, input_precision="ieee")
            kept = share
            if limits.seeds.data is not None:
                factor = _kept(limits, element, sizes, rows, cols, n, threshold, scale)
                wanted *= factor
                kept = share * factor
            if by_weight.data is not None:
                own = _at(by_weight, element, sizes) + inside_rows[:, None] * by_weight.row
                wanted += tl.load(own + tl.minimum(cols, m - 1).to(tl.int64)[None, :] * by_weight.col)
            row_drift = tl.load(_at(drift, element, sizes) + inside_rows * drift.row)
            found = tl.where(visible, share * (wanted - row_drift[:, None]), 0.0)
            share = kept
            bias = tl.sum(found, 0)
            if PROFILE != "":
                found = tl.where(visible, found * 2 * _profile_slope(square, PROFILE), 0.0)
    tl.store(weights + pairs, share, inside)
    if by_score is not None:
        tl.store(by_score + pairs, found, inside)
        some = ((share != 0) | (found != 0)).to(tl.int32)
        tl.store(live + (local * row_blocks + row_block) * key_blocks + key_block, tl.max(some))
        if by_bias is not None:
            tl.store(by_bias + (local * row_blocks + row_block) * m + cols, bias, cols < m)


@triton.jit
def value_gradient(
    weights, live, by_mean, into, sizes, first, n, m, size,
    EXACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Adds Σ_i w_ij g_i to the gradient of a block of values."""
    key_blocks, row_blocks = tl.cdiv(m, BN), tl.cdiv(n, BM)
    key_block = tl.program_id(0) % key_blocks
    local = tl.program_id(0).to(tl.int64) // key_blocks
    element = local + first
    cols, d = key_block * BN + tl.arange(0, BN), tl.program_id(1) * BD + tl.arange(0, BD)
    grads = _at(by_mean, element, sizes) + d[None, :] * by_mean.col
    inside = (cols < m)[:, None] & (d < size)[None, :]
    to = into + (element * m + cols)[:, None] * size + d[None, :]
    total = tl.load(to, inside, 0.0)
    for row_block in range(0, row_blocks):
        if tl.load(live + (local * row_blocks + row_block) * key_blocks + key_block) != 0:
            rows = row_block * BM + tl.arange(0, BM)
            pairs = (local * n + rows)[None, :] * m + cols[:, None]
            w = tl.load(weights + pairs, (rows < n)[None, :] & (cols < m)[:, None], 0.0)
            g = tl.load(
                grads + rows[:, None].to(tl.int64) * by_mean.row, (rows < n)[:, None] & (d < size)[None, :], 0.0
            )
            total += _pool(w, w != 0, g, EXACT)
    tl.store(to, total, inside)


# --- gradients of queries, keys and v: one side of the pairs keeps still, the other goes by


@triton.jit
def _pull_additive(x, inverse, e, inverse_e, pairs, pairs_step, e_step, count, slopes):
    """Adds Σ_j g_ij p r², where p r² is one reciprocal too: 1 / (2 + p + 1/p)."""
    for _ in range(0, count):
        y, z = tl.load(e), tl.load(inverse_e)
        slopes += tl.load(pairs) * _reciprocal(inverse * z + (x * y + 2))
        pairs += pairs_step
        e += e_step
        inverse_e += e_step
    return slopes


@triton.jit
def _pull_weighted(x, centred, e, centred_e, pairs, pairs_step, e_step, count, slopes, tanhs, NEAR: tl.constexpr):
    """The same, and adds Σ_j g_ij tanh to `tanhs`; near 0 from p − 1 = (e^{2q} − 1) e^{2k} + (e^{2k} − 1)."""
    for _ in range(0, count):
        g, y = tl.load(pairs), tl.load(e)
        p = x * y
        r = _reciprocal(p + 1)
        tanh = (centred * y + tl.load(centred_e)) * r if NEAR else 1 - 2 * r
        tanhs += g * tanh
        slopes += g * (p * r * r)
        pairs += pairs_step
        e += e_step
        centred_e += e_step
    return slopes, tanhs


@triton.jit
def _pull_plain(q, k, pairs, pairs_step, k_step, count, slopes, tanhs, WITH_WEIGHT: tl.constexpr):
    """The same for any numbers: what is not finite counts for the pairs that it has a part in."""
    for _ in range(0, count):
        g = tl.load(pairs)
        tanh, slope = _tanh(q + tl.load(k))
        slopes += tl.where(g == 0, 0.0, g * (0.25 * slope))
        if WITH_WEIGHT:
            tanhs += tl.where(g == 0, 0.0, g * tanh)
        pairs += pairs_step
        k += k_step
    return slopes, tanhs


@triton.jit
def _pull_distance(q, k, pairs, pairs_step, k_step, count, total):
    """Adds Σ_j g_ij (q_i − k_j)."""
    for _ in range(0, count):
        g = tl.load(pairs)
        total += g * tl.where(g == 0, 0.0, q - tl.load(k))
        pairs += pairs_step
        k += k_step
    return total


@triton.jit
def side_gradient(
    side, other, e, twin, weight, side_peaks, other_peaks, by_score, live, into, by_weight,
    sizes, first, side_count, other_count, features,
    PROFILE: tl.constexpr, SIDE: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr, FEATURES: tl.constexpr,
    W: tl.constexpr,
):  # fmt: skip
    """Adds to the gradients of a block of queries (or keys), which stays in registers while the keys (queries) go by.

    Each thread keeps rows and features of its own, so that no sum crosses threads: `by_score` is read column by column.
    `e` is e^{2k}; `twin` e^{2k} − 1 where the gradient of v is wanted, and e^{-2k} elsewhere.
    """
    blocks = tl.cdiv(side_count, BLOCK)
    block = tl.program_id(0) % blocks
    local = tl.program_id(0).to(tl.int64) // blocks
    element = local + first
    L: tl.constexpr = min(32, FEATURES)
    R: tl.constexpr = min(BLOCK, 32 * W // L)
    rows = _spread_rows(block * BLOCK, BLOCK, R)
    cols = _spread_cols(tl.program_id(1) * FEATURES, FEATURES, L)
    inside_rows = tl.minimum(rows, side_count - 1).to(tl.int64)
    inside_cols = tl.minimum(cols, features - 1)
    inside = (rows < side_count) & (cols < features)
    side_block = block * BLOCK // SIDE

    q = tl.load(_at(side, element, sizes) + inside_rows * side.row + cols * side.col, inside, 0.0)
    others = _at(other, element, sizes) + inside_cols * other.col
    pairs = by_score.data + local * by_score.lead[0] + inside_rows * by_score.row
    lives = live.data + local * live.lead[0] + side_block * live.row
    to = _at(into, element, sizes) + inside_rows * into.row + cols
    slopes = tl.zeros([BLOCK // R, FEATURES // L, R, L], tl.float32)
    tanhs = tl.zeros([BLOCK // R, FEATURES // L, R, L], tl.float32)
    WITH_WEIGHT: tl.constexpr = by_weight.data is not None
    if PROFILE == "":
        exponentials = _at(e, element, sizes) + inside_cols
        twins = _at(twin, element, sizes) + inside_cols
        reach = tl.load(_at(side_peaks, element, sizes) + side_block)
        reaches = _at(other_peaks, element, sizes)
        near = tl.where(tl.abs(q) <= REACH, q, 0.0)  # beyond, the exponentials are not used
        x = _exponential(2 * near)
        if WITH_WEIGHT:
            half = _tanh(near)[0]
            own_twin = 2 * half / (1 - half)  # e^{2q} − 1, with the digits of a small q
        else:
            own_twin = _exponential(-2 * near)
    for other_block in range(0, tl.cdiv(other_count, OTHER)):
        if tl.load(lives + other_block * live.col) != 0:
            start = tl.full((), other_block * OTHER, tl.int64)
            count = tl.minimum(OTHER, other_count - other_block * OTHER)
            g = pairs + start * by_score.col
            k = others + start * other.row
            if PROFILE != "":
                slopes = _pull_distance(q, k, g, by_score.col, other.row, count, slopes)
            else:
                far = reach + tl.load(reaches + other_block)
                y, t = exponentials + start * e.row, twins + start * e.row
                if far > SAFE:
                    slopes, tanhs = _pull_plain(q, k, g, by_score.col, other.row, count, slopes, tanhs, WITH_WEIGHT)
                elif not WITH_WEIGHT:
                    slopes = _pull_additive(x, own_twin, y, t, g, by_score.col, e.row, count, slopes)
                elif far > SMALL:
                    slopes, tanhs = _pull_weighted(
                        x, own_twin, y, t, g, by_score.col, e.row, count, slopes, tanhs, False
                    )
                else:
                    slopes, tanhs = _pull_weighted(
                        x, own_twin, y, t, g, by_score.col, e.row, count, slopes, tanhs, True
                    )
    if PROFILE == "":
        v = tl.load(_at(weight, element, sizes) + inside_cols * weight.col)
        slopes *= 4 * v
    tl.store(to, tl.load(to, inside, 0.0) + slopes, inside)
    if WITH_WEIGHT:
        total = tl.sum(tl.sum(tl.where(inside, tanhs, 0.0), 2), 0)[None, :, None, :]
        tl.store(_at(by_weight, element, sizes) + block * by_weight.row + cols, total, cols < features)
