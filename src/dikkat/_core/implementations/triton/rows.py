"""Triton's kernel for summaries of the rows of a tile of scores."""

import triton
import triton.language as tl


@triton.jit
def summarise(
    scores, lens, lse, top_weights, top_keys, sums,
    rows, n, m, first, shift, lens_element, lens_row,
    CAUSAL: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the log-sum-exp and the largest weights of some rows, and the sums of their weights by key."""
    blocks = tl.cdiv(rows, ROWS)
    element, begin = tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * ROWS
    cols = tl.arange(0, BLOCK)
    by_key = tl.zeros((BLOCK,), tl.float32)
    for row in range(begin, tl.minimum(begin + ROWS, rows)):
        limit = m
        if CAUSAL:
            limit = tl.minimum(limit, row + first + shift + 1)
        if lens is not None:
            length = tl.load(lens + element * lens_element + (row + first) * lens_row)
            limit = tl.minimum(limit, tl.minimum(length, m).to(tl.int32))
        offset = (element.to(tl.int64) * rows + row) * m
        score = tl.load(scores + offset + cols, cols < limit, float("-inf"))
        peak = tl.max(score, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp(score - base)
        total = tl.sum(weight, 0)
        weight = weight / tl.where(total == 0, 1.0, total)
        by_key += weight
        row_index = element.to(tl.int64) * n + first + row
        log = tl.log(tl.where(total == 0, 1.0, total))
        tl.store(lse + row_index, tl.where(total == 0, float("-inf"), base + log))
        for i in tl.static_range(TOP):
            largest, key = tl.max(weight, 0, return_indices=True)
            tl.store(top_weights + row_index * TOP + i, tl.where(total > 0, largest, total))  # NaN in a row of NaN
            tl.store(top_keys + row_index * TOP + i, key.to(tl.int64))
            weight = tl.where(cols == key, -1.0, weight)
    if sums is not None:
        tl.store(sums + tl.program_id(0).to(tl.int64) * m + cols, by_key, cols < m)
