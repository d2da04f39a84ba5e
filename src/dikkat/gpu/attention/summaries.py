"""The launched kernels that tell of the weights without keeping them: row by row, and key by key.

Loaded when first used.
"""

import triton
import triton.language as tl

from dikkat.gpu.attention.kernel import limit_of, restrict
from dikkat.gpu.attention.pairs import score_tile


@triton.jit
def by_query(
    scored, limits, peaks, totals, entropies, places, sizes, n, m, features, shift,
    CAUSAL: tl.constexpr, PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One block of rows over all of its keys: peak and total, entropy, and the first key with the largest weight.

    The drift, Σ share · (score − peak), shrinks with a growing peak as the total does, less the step times that total.
    """
    row_block = tl.program_id(0) % tl.cdiv(n, BM)
    element = tl.program_id(0).to(tl.int64) // tl.cdiv(n, BM)
    rows = row_block * BM + tl.arange(0, BM)
    limit = limit_of(limits, element, sizes, rows, n, m, shift, CAUSAL)
    peak = tl.full([BM], float("-inf"), tl.float32)
    total, drift = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    place = tl.full([BM], -1, tl.int32)
    for key_block in range(0, tl.cdiv(tl.max(limit, 0), BN)):
        cols = key_block * BN + tl.arange(0, BN)
        score, _made = score_tile(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
        score, visible = restrict(score, limits, element, sizes, rows, cols, limit, n, m)
        top = tl.max(score, 1)
        first = tl.min(tl.where(score == top[:, None], cols[None, :], m), 1)
        place = tl.where(top > peak, first, place)
        higher = tl.maximum(peak, top)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        away = tl.where(visible, score - base[:, None], 0.0)
        share = tl.where(visible, tl.exp(away), 0.0)
        fade = tl.exp(peak - base)
        before = tl.where(fade > 0, drift + (peak - base) * total, 0.0)
        drift = fade * before + tl.sum(share * away, 1)
        total = total * fade + tl.sum(share, 1)
        peak = higher
    into = element * n + rows
    entropy = tl.log(tl.where(total == 0, 1.0, total)) - drift / tl.where(total == 0, 1.0, total)
    tl.store(peaks + into, peak, rows < n)
    tl.store(totals + into, total, rows < n)
    tl.store(entropies + into, entropy, rows < n)
    tl.store(places + into, place, rows < n)


@triton.jit
def by_key(
    scored, limits, peaks, totals, sums, sizes, n, m, features, shift,
    CAUSAL: tl.constexpr, PROFILE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One block of keys over all rows: the sums of its weights, in an order that is the same each time."""
    key_block = tl.program_id(0) % tl.cdiv(m, BN)
    element = tl.program_id(0).to(tl.int64) // tl.cdiv(m, BN)
    cols = key_block * BN + tl.arange(0, BN)
    whole = tl.zeros([BN], tl.float32)
    for row_block in range(0, tl.cdiv(n, BM)):
        rows = row_block * BM + tl.arange(0, BM)
        limit = limit_of(limits, element, sizes, rows, n, m, shift, CAUSAL)
        if tl.max(limit, 0) > key_block * BN:
            score, _made = score_tile(scored, element, sizes, row_block, key_block, n, m, features, PROFILE, BM, BN, W)
            score, visible = restrict(score, limits, element, sizes, rows, cols, limit, n, m)
            own = element * n + tl.minimum(rows, n - 1)
            peak, total = tl.load(peaks + own), tl.load(totals + own)
            base = tl.where(peak == float("-inf"), 0.0, peak)
            share = tl.exp(score - base[:, None]) / tl.where(total == 0, 1.0, total)[:, None]
            whole += tl.sum(tl.where(visible, share, 0.0), 0)
    tl.store(sums + element * m + cols, whole, cols < m)
