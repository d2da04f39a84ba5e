"""The scores of a tile of pairs, from numbers computed once for each query and key."""

import triton
import triton.language as tl

from dikkat._core.implementations.triton import ranges

FOURS, TWOS = tl.constexpr(ranges.FOURS), tl.constexpr(ranges.TWOS)
REACH, SCALE = tl.constexpr(ranges.REACH), tl.constexpr(ranges.SCALE)
# The interpreter has no GPU instructions.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def at(operand, element, sizes):
    """Return a pointer to a batch element of an operand, which may be broadcast over leading dimensions."""
    offset = tl.zeros((), tl.int64)
    index = element
    for d in tl.static_range(len(sizes)):
        offset += (index % sizes[d]) * operand.lead[d]
        index = index // sizes[d]
    return operand.data + offset


# --- computed once for each query and key


@triton.jit
def exponential(z):
    """Return e^z for |z| ≤ 76 with all digits except one; the GPU's instruction loses as many digits as z has."""
    power = tl.floor(z * 1.4426950408889634 + 0.5)
    remainder = (z - power * 0.693359375) + power * 2.12194440e-4
    return tl.exp2(remainder * 1.4426950408889634) * tl.exp2(power)


@triton.jit
def lay_out(
    source, sizes, padded, peaks, count, features, padded_count, padded_features, factor, highest,
    ADDITIVE: tl.constexpr, BLOCK: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Write queries or keys feature-major, clamped to ±`highest` or as exponentials if ADDITIVE; and block peaks."""
    blocks = padded_count // BLOCK
    element = tl.program_id(0).to(tl.int64) // blocks
    block = tl.program_id(0) % blocks
    rows = block * BLOCK + tl.arange(0, BLOCK)
    origin = at(source, element, sizes) + rows.to(tl.int64)[:, None] * source.row
    into = padded + element * padded_features * padded_count + rows[:, None]
    peak = tl.zeros([BLOCK], tl.float32)
    for first in range(0, padded_features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        inside = (rows < count)[:, None] & (cols < features)[None, :]
        t = tl.load(origin + cols[None, :] * source.col, inside, 0.0)
        if ADDITIVE:
            size = tl.where(t == t, tl.abs(t), float("inf"))
            peak = tl.maximum(peak, tl.max(size, 1))
            t = tl.where(size <= REACH, t, 0.0)
            t = exponential(2 * t) * factor
        else:
            t = tl.where(t > highest, highest, tl.where(t < -highest, -highest, t))
        tl.store(into + cols.to(tl.int64)[None, :] * padded_count, t, (cols < padded_features)[None, :])
    if ADDITIVE:
        largest = tl.max(peak, 0)
        tl.store(peaks + element * blocks + block, tl.where(largest <= REACH, largest, float("inf")))


@triton.jit
def scale_weight(weight, sizes, v, gain, features, padded_features, FEATURES: tl.constexpr):
    """Write v divided by its largest magnitude; and to `gain` Σ v and the factor that undoes the division."""
    element = tl.program_id(0).to(tl.int64)
    origin = at(weight, element, sizes)
    total = tl.zeros([FEATURES], tl.float32)
    largest = tl.zeros([FEATURES], tl.float32)
    for first in range(0, features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        t = tl.load(origin + cols * weight.col, cols < features, 0.0)
        total += t
        largest = tl.maximum(largest, tl.abs(t))
    max_weight = tl.max(largest, 0)
    max_weight = tl.where(max_weight == 0, 1.0, max_weight)
    for first in range(0, padded_features, FEATURES):
        cols = first + tl.arange(0, FEATURES)
        t = tl.load(origin + cols * weight.col, cols < features, 0.0)
        tl.store(v + element * padded_features + cols, t / max_weight, cols < padded_features)
    tl.store(gain + element * 2, tl.sum(total, 0))
    tl.store(gain + element * 2 + 1, max_weight * (-2 * SCALE))


# --- scores


@triton.jit
def reciprocal(x):
    """Return 1 / x without the slow handling of subnormal numbers."""
    if INTERPRETED:
        return 1 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def tanh_and_slope(x):
    """Return tanh and its derivative with full relative precision, for any x."""
    small = tl.abs(x) < 0.25
    e = tl.exp(-2 * tl.abs(x))
    r = 1 / (1 + e)
    large = (1 - e) * r
    s = tl.where(small, x * x, 0.0)
    series = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(small, series, tl.where(x < 0, -large, large)), 4 * e * r * r


@triton.jit
def tile_rows(x, BM: tl.constexpr, W: tl.constexpr):
    """Return x + the rows of a tile, distributed over W warps of L lanes.

    A tile of BM × BN pairs is [BM / W, BN / L, W, L], so that a thread has BM / W rows by BN / L columns and loads few
    queries and keys. Triton's own layout gives a thread one column, and loads would limit the speed.
    """
    rows = tl.arange(0, BM // W)[:, None] * W + tl.arange(0, W)[None, :]
    return (x + rows)[:, None, :, None]


@triton.jit
def tile_cols(y, BN: tl.constexpr, L: tl.constexpr):
    """Return y + the columns of a tile, distributed over the lanes."""
    cols = tl.arange(0, BN // L)[:, None] * L + tl.arange(0, L)[None, :]
    return (y + cols)[None, :, None, :]


@triton.jit
def _flatten_tile(tile, BM: tl.constexpr, BN: tl.constexpr):
    return tl.reshape(tl.permute(tile, (0, 2, 1, 3)), (BM, BN))


@triton.jit
def _fold_four(x, y, v, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """Return Σ v r / s, with one reciprocal for four features."""
    L: tl.constexpr = min(32, BN)
    x, y = tile_rows(x, BM, W), tile_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features, 4):
        a0 = tl.load(x) * tl.load(y) + SCALE
        a1 = tl.load(x + x_step) * tl.load(y + y_step) + SCALE
        a2 = tl.load(x + 2 * x_step) * tl.load(y + 2 * y_step) + SCALE
        a3 = tl.load(x + 3 * x_step) * tl.load(y + 3 * y_step) + SCALE
        n01 = tl.load(v) * a1 + tl.load(v + 1) * a0
        n23 = tl.load(v + 2) * a3 + tl.load(v + 3) * a2
        d01, d23 = a0 * a1, a2 * a3
        total += (n01 * d23 + n23 * d01) * reciprocal(d01 * d23)
        x += 4 * x_step
        y += 4 * y_step
        v += 4
    return _flatten_tile(total, BM, BN)


@triton.jit
def _fold_two(x, y, v, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """Return Σ v r / s, with one reciprocal for two features."""
    L: tl.constexpr = min(32, BN)
    x, y = tile_rows(x, BM, W), tile_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features, 2):
        a0 = tl.load(x) * tl.load(y) + SCALE
        a1 = tl.load(x + x_step) * tl.load(y + y_step) + SCALE
        total += (tl.load(v) * a1 + tl.load(v + 1) * a0) * reciprocal(a0 * a1)
        x += 2 * x_step
        y += 2 * y_step
        v += 2
    return _flatten_tile(total, BM, BN)


@triton.jit
def _sum_of_tanh(q, k, v, features, q_step, k_step, v_step, BM: tl.constexpr, BN: tl.constexpr):
    total = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, features):
        tanh, _slope = tanh_and_slope(tl.load(q)[:, None] + tl.load(k)[None, :])
        total += tl.load(v) * tanh
        q += q_step
        k += k_step
        v += v_step
    return total


@triton.jit
def _square(x, y, features, x_step, y_step, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    L: tl.constexpr = min(32, BN)
    x, y = tile_rows(x, BM, W), tile_cols(y, BN, L)
    total = tl.zeros([BM // W, BN // L, W, L], tl.float32)
    for _ in range(0, features):
        d = tl.load(x) - tl.load(y)
        total += d * d
        x += x_step
        y += y_step
    return _flatten_tile(total, BM, BN)


@triton.jit
def _log_profile(square, PROFILE: tl.constexpr):
    """Return g(s); comparisons let NaN stay NaN."""
    if PROFILE == "gaussian":
        return -0.5 * square
    elif PROFILE == "boxcar":
        return tl.where(square > 1, float("-inf"), 0 * square)
    elif PROFILE == "triangular":
        return _log_one_minus(tl.sqrt(square))
    else:
        return _log_one_minus(square)


@triton.jit
def _log_one_minus(t):
    outside = t >= 1
    return tl.where(outside, float("-inf"), tl.log(1 - tl.where(outside, 0.0, t)))


@triton.jit
def profile_slope(square, PROFILE: tl.constexpr):
    """Return dg/ds; 0 outside the support, and at the tip of the triangular kernel (s = 0)."""
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
def score_tile(
    scored, element, sizes, row_block, key_block, n, m, features,
    PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Return the scores of a tile, and for `distance` the squared distances."""
    rows, cols = row_block * BM + tl.arange(0, BM), key_block * BN + tl.arange(0, BN)
    x = at(scored.x, element, sizes) + row_block * BM
    y = at(scored.y, element, sizes) + key_block * BN
    if PROFILE != "":
        square = _square(x, y, features, scored.x.row, scored.y.row, BM, BN, W)
        return _log_profile(square, PROFILE), square
    else:
        gain = at(scored.gain, element, sizes)
        v = at(scored.v, element, sizes)
        reach = tl.load(at(scored.query_peaks, element, sizes) + row_block)
        reach += tl.load(at(scored.key_peaks, element, sizes) + key_block)
        if reach <= FOURS:
            total = _fold_four(x, y, v, features, scored.x.row, scored.y.row, BM, BN, W)
            score = tl.load(gain) + tl.load(gain + 1) * total
        elif reach <= TWOS:
            total = _fold_two(x, y, v, features, scored.x.row, scored.y.row, BM, BN, W)
            score = tl.load(gain) + tl.load(gain + 1) * total
        else:
            q = at(scored.query, element, sizes) + tl.minimum(rows, n - 1).to(tl.int64) * scored.query.row
            k = at(scored.key, element, sizes) + tl.minimum(cols, m - 1).to(tl.int64) * scored.key.row
            w = at(scored.weight, element, sizes)
            score = _sum_of_tanh(q, k, w, features, scored.query.col, scored.key.col, scored.weight.col, BM, BN)
        return score, score
