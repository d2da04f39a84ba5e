"""Additive scores as products on a GPU: what the kernels around the products are launched with.

The functions are those of `implementations.products.Plain`, so that one forward and one backward serve both.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core.arithmetic import dropout_numbers
from dikkat._core.implementations.launcher import launch, power_of_two

# Rows of a block, and the features of it that a program has at a time.
_ROWS, _COLS = 32, 64
# Rows of a block whose largest norm is taken, and the longest row that a program keeps in registers.
_NORMED, _LONGEST = 128, 8192
_PROGRAMS = 1024


class Plan(NamedTuple):
    """The numbers that a call's kernels read, on the device, without a synchronisation."""

    numbers: Tensor  # see `kernel`
    terms: int  # R
    query_peaks: Tensor  # (elements, blocks)
    key_peaks: Tensor  # (elements, blocks)

    def part(self, elements: slice, rows: slice, cols: slice) -> "Plan":
        query = self.query_peaks[elements, rows.start // _ROWS : _blocks(rows.stop)]
        key = self.key_peaks[elements, cols.start // _ROWS : _blocks(cols.stop)]
        return Plan(self.numbers, self.terms, query.contiguous(), key.contiguous())


def _blocks(length: int, rows: int | None = None) -> int:
    return -(-length // (rows or _ROWS))


def _cols(features: int) -> int:
    return min(_COLS, max(4, power_of_two(features)))


def plan(query: Tensor, key: Tensor, weight: Tensor, table: Tensor) -> Plan:
    """The plan of a call: query (elements, n, h), key (elements, m, h), weight (elements or 1, h); two launches."""
    elements, n, features = query.shape
    down, across = _blocks(n), _blocks(key.shape[1])
    queries, keys = elements * down, elements * across
    found = query.new_empty(queries + keys + 1, dtype=torch.float32)
    terms = table.shape[1] - 2
    numbers = found.new_empty(4 + terms)
    launch(
        "products.kernel.peaks", (queries + keys + 1,),
        query, key, weight, found, queries, n, keys, key.shape[1], features,
        weight.shape[0], NORM=False, ROWS=_ROWS, COLS=_cols(features),
    )  # fmt: skip
    launch(
        "products.kernel.resolve", (1,), found, table, numbers, queries, keys, table.shape[0],
        R=terms, RP=power_of_two(terms), TP=power_of_two(table.shape[0]),
    )  # fmt: skip
    peaks = found[:queries].view(elements, down), found[queries : queries + keys].view(elements, across)
    return Plan(numbers, terms, *peaks)


def factors(query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    elements, n, features = query.shape
    m, blocks = key.shape[1], elements * _blocks(n)
    phi = query.new_empty((elements, n, 2 * plan.terms * features), dtype=torch.float16)
    psi = phi.new_empty((elements, m, phi.shape[2]))
    launch(
        "products.kernel.factors", (blocks + elements * _blocks(m), _blocks(features, _cols(features))),
        query, key, weight, phi, psi,
        plan.numbers, plan.query_peaks, plan.key_peaks, blocks, n, m, features, _step(weight),
        R=plan.terms, ROWS=_ROWS, COLS=_cols(features),
    )  # fmt: skip
    return phi, psi


def _step(weight: Tensor) -> int:
    return weight.shape[1] if weight.shape[0] > 1 else 0


def far_scores(scores: Tensor, query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> None:
    """Write the scores that no sines reach over those of the product."""
    elements, n, features = query.shape
    m = key.shape[1]
    tiles = elements * _blocks(n) * _blocks(m)
    launch(
        "products.kernel.far_scores", (min(tiles, _PROGRAMS),),
        query, key, weight, scores, plan.numbers, plan.query_peaks,
        plan.key_peaks, tiles, n, m, features, _step(weight), scores.stride(1), ROWS=_ROWS,
    )  # fmt: skip


class Seen(NamedTuple):
    """The visibility in a tile, and its dropout."""

    lens: Tensor | None  # (elements or 1, rows or 1), or None
    causal: bool  # whether query i sees keys j ≤ i + shift
    shift: int  # m − n of the whole call
    visible: Tensor | None  # (elements, rows, columns), from other restrictions, or None
    seeds: Tensor | None  # (elements, rows), or None
    dropout: float
    first: int  # the tile's first row
    start: int  # its first column


def _by_row(cols: int) -> dict[str, Any]:
    block = min(_LONGEST, max(16, power_of_two(cols)))
    return {"WHOLE": cols <= block, "BLOCK": block, "num_warps": min(8, max(1, block // 256))}


def weigh(
    scores: Tensor, plan: Plan | None, seen: Seen, kind: torch.dtype, known: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights of a tile before and after dropout, its rows' peaks and totals; exact without a plan."""
    elements, n, m = scores.shape
    weights = _padded(scores, kind)
    kept = weights if seen.seeds is None else _padded(scores, kind)
    peak, total = known or (scores.new_empty((elements, n)), scores.new_empty((elements, n)))
    lens, visible = seen.lens, None if seen.visible is None else seen.visible.view(torch.uint8)
    steps = (0, 0) if lens is None else tuple(0 if lens.shape[i] == 1 else lens.stride(i) for i in (0, 1))
    launch(
        "products.kernel.weigh", (elements * n,),
        scores, None if plan is None else plan.numbers, lens, visible, seen.seeds,
        weights, kept, peak, total, n, m, scores.stride(1), weights.stride(1), *steps, seen.first, seen.shift,
        seen.start, *dropout_numbers(seen.dropout), KNOWN=known is not None, CAUSAL=seen.causal, **_by_row(m),
    )  # fmt: skip
    return weights, kept, peak, total


def _padded(like: Tensor, kind: torch.dtype) -> Tensor:
    """A tile in `kind` with rows aligned for fast matrix products."""
    elements, n, m = like.shape
    return like.new_empty((elements, n, -(-m // 8) * 8), dtype=kind)[..., :m]


def by_score(
    weights: Tensor, wanted: Tensor, grad: Tensor, value: Tensor, seen: Seen, by_weight: Tensor | None,
    drift: Tensor | None, sums: bool, more: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of a tile's scores in float16, times a power of two; and that.

    `weights` are those before dropout, `wanted` in float32 the inner products of gradients and values, and `by_weight`
    the gradients of the weights, (elements, n, m) each. `drift` (elements, n) is subtracted from each gradient, and
    with `sums` Σ weight · gradient too; `more` bounds what `by_weight` and `drift` add to a gradient.
    """
    elements, n, m = weights.shape
    queries, keys = elements * _blocks(n, _NORMED), elements * _blocks(m, _NORMED)
    norms = wanted.new_empty(queries + keys)
    launch(
        "products.kernel.peaks", (queries + keys,), grad, value, None, norms, queries, n, keys, m, grad.shape[2], 0,
        NORM=True, ROWS=_NORMED, COLS=min(32, _cols(grad.shape[2])),
    )  # fmt: skip
    found, size = _padded(weights, torch.float16), wanted.new_empty(1)
    launch(
        "products.kernel.by_score", (elements * n,),
        weights, wanted, by_weight, seen.seeds, drift, norms, more, found, size,
        m, queries, keys, weights.stride(1), wanted.stride(1), found.stride(1), seen.start,
        *dropout_numbers(seen.dropout), SUMS=sums, **_by_row(m),
    )  # fmt: skip
    return found, size


def sides(
    query: Tensor, key: Tensor, weight: Tensor, by_phi: Tensor, by_psi: Tensor, grads: Tensor, size: Tensor,
    plan: Plan, kinds: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and v, the latter in float32."""
    elements, n, features = query.shape
    m, blocks, across = key.shape[1], elements * _blocks(n), _blocks(key.shape[1])
    by_query, by_key = torch.empty_like(query, dtype=kinds[0]), torch.empty_like(key, dtype=kinds[1])
    by_weight = size.new_empty((elements, across, features))
    grid, options = (blocks + elements * across, _blocks(features, _cols(features))), {"ROWS": _ROWS}
    launch(
        "products.kernel.sides", grid,
        query, key, weight, by_phi, by_psi, plan.numbers, plan.query_peaks, plan.key_peaks, size,
        by_query, by_key, by_weight, blocks, n, m, features, _step(weight), R=plan.terms, COLS=_cols(features),
        **options,
    )  # fmt: skip
    launch(
        "products.kernel.far_sides", grid,
        query, key, weight, grads, plan.numbers, plan.query_peaks, plan.key_peaks, size,
        by_query, by_key, by_weight, blocks, n, m, features, _step(weight), grads.stride(1), COLS=_cols(features),
        **options,
    )  # fmt: skip
    return by_query, by_key, by_weight.sum(1) if weight.shape[0] > 1 else by_weight.sum((0, 1))[None]
