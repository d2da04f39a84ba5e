"""Additive scores as products on a GPU: launches of the kernels around the products.

`implementations.products.Plain` has the same functions, so that both share one forward and one backward.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core.arithmetic import dropout_numbers
from dikkat._core.implementations.launcher import launch, power_of_two

# Rows of a block, and its features that a program processes at a time.
_ROWS, _COLS = 32, 64
# Rows of a block of norms, and the longest row that a program holds in registers.
_NORMED, _LONGEST = 128, 8192
_PROGRAMS = 1024


# Positions in `Plan.numbers`: the peak from which a block is far; the first frequency ω; the powers of two by which
# sines and v are divided, for float16's range; and the first of the R coefficients b.
LIMIT, FREQUENCY, SINE_UNIT, V_UNIT, COEFFICIENTS = range(5)


class Plan(NamedTuple):
    """The numbers with which a call's kernels compute. They stay on the device, so that the host does not wait."""

    numbers: Tensor  # (4 + R,), by position: LIMIT, FREQUENCY, SINE_UNIT, V_UNIT, COEFFICIENTS
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


def plan_series(query: Tensor, key: Tensor, weight: Tensor, table: Tensor) -> Plan:
    """Choose the sine series for the scores of query (elements, n, h), key (elements, m, h), v (elements or 1, h).

    It takes two kernel launches. `table` has a series in each line: its reach, first frequency and coefficients.
    """
    elements, n, features = query.shape
    down, across = _blocks(n), _blocks(key.shape[1])
    queries, keys = elements * down, elements * across
    all_peaks = query.new_empty(queries + keys + 1, dtype=torch.float32)
    terms = table.shape[1] - 2
    numbers = all_peaks.new_empty(COEFFICIENTS + terms)
    launch(
        "products.kernel.peaks", (queries + keys + 1,),
        query, key, weight, all_peaks, queries, n, keys, key.shape[1], features,
        weight.shape[0], NORM=False, ROWS=_ROWS, COLS=_cols(features),
    )  # fmt: skip
    launch(
        "products.kernel.choose_series", (1,), all_peaks, table, numbers, queries, keys, table.shape[0],
        R=terms, RP=power_of_two(terms), TP=power_of_two(table.shape[0]),
    )  # fmt: skip
    peaks = all_peaks[:queries].view(elements, down), all_peaks[queries : queries + keys].view(elements, across)
    return Plan(numbers, terms, *peaks)


def factors(query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    elements, n, features = query.shape
    m, blocks = key.shape[1], elements * _blocks(n)
    phi = query.new_empty((elements, n, 2 * plan.terms * features), dtype=torch.float16)
    psi = phi.new_empty((elements, m, phi.shape[2]))
    launch(
        "products.kernel.factors", (blocks + elements * _blocks(m), _blocks(features, _cols(features))),
        query, key, weight, phi, psi,
        plan.numbers, plan.query_peaks, plan.key_peaks, blocks, n, m, features, _v_step(weight),
        R=plan.terms, ROWS=_ROWS, COLS=_cols(features),
    )  # fmt: skip
    return phi, psi


def _v_step(weight: Tensor) -> int:
    return weight.shape[1] if weight.shape[0] > 1 else 0


def far_scores(scores: Tensor, query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> None:
    """Overwrite the scores of pairs beyond the reach of the series with directly computed scores."""
    elements, n, features = query.shape
    m = key.shape[1]
    tiles = elements * _blocks(n) * _blocks(m)
    launch(
        "products.kernel.far_scores", (min(tiles, _PROGRAMS),),
        query, key, weight, scores, plan.numbers, plan.query_peaks,
        plan.key_peaks, tiles, n, m, features, _v_step(weight), scores.stride(1), ROWS=_ROWS,
    )  # fmt: skip


class TileMask(NamedTuple):
    """The restrictions and the dropout of a tile."""

    lens: Tensor | None  # (elements or 1, rows or 1), or None
    causal: bool  # whether query i sees keys j ≤ i + shift
    shift: int  # m − n of the whole call
    visible: Tensor | None  # (elements, rows, columns), from other restrictions, or None
    seeds: Tensor | None  # (elements, rows), or None
    dropout: float
    first: int  # the tile's first row
    start: int  # its first column


def _row_options(cols: int) -> dict[str, Any]:
    block = min(_LONGEST, max(16, power_of_two(cols)))
    return {"WHOLE": cols <= block, "BLOCK": block, "num_warps": min(8, max(1, block // 256))}


def weigh(
    scores: Tensor, plan: Plan | None, mask: TileMask, kind: torch.dtype, known: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a tile's weights before and after dropout, and its rows' peaks and totals.

    With a plan, the scores are divided by its SINE_UNIT and V_UNIT.
    """
    elements, n, m = scores.shape
    weights = _padded(scores, kind)
    dropped = weights if mask.seeds is None else _padded(scores, kind)
    peak, total = known or (scores.new_empty((elements, n)), scores.new_empty((elements, n)))
    lens, visible = mask.lens, None if mask.visible is None else mask.visible.view(torch.uint8)
    steps = (0, 0) if lens is None else tuple(0 if lens.shape[i] == 1 else lens.stride(i) for i in (0, 1))
    launch(
        "products.kernel.weigh", (elements * n,),
        scores, None if plan is None else plan.numbers, lens, visible, mask.seeds,
        weights, dropped, peak, total, n, m, scores.stride(1), weights.stride(1), *steps, mask.first, mask.shift,
        mask.start, *dropout_numbers(mask.dropout), KNOWN=known is not None, CAUSAL=mask.causal, **_row_options(m),
    )  # fmt: skip
    return weights, dropped, peak, total


def _padded(like: Tensor, kind: torch.dtype) -> Tensor:
    """Allocate a tile in `kind` with rows aligned for fast matrix products."""
    elements, n, m = like.shape
    return like.new_empty((elements, n, -(-m // 8) * 8), dtype=kind)[..., :m]


def score_grads(
    weights: Tensor, weight_grad: Tensor, grad: Tensor, value: Tensor, mask: TileMask, incoming: Tensor | None,
    offsets: Tensor | None, subtract_mean: bool, extra_bound: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of a tile's scores in float16, times a power of two, and that power (1,).

    Args (elements, n, m): `weights` before dropout, `weight_grad` the float32 inner products of mean gradients and
    values, `incoming` the incoming gradients of weights. `offsets` (elements, n) are subtracted from each gradient of a
    weight, with `subtract_mean` also Σ weight · gradient. `extra_bound` bounds the part of a gradient from `incoming`
    and `offsets`.
    """
    elements, n, m = weights.shape
    queries, keys = elements * _blocks(n, _NORMED), elements * _blocks(m, _NORMED)
    squared_norms = weight_grad.new_empty(queries + keys)
    launch(
        "products.kernel.peaks", (queries + keys,),
        grad, value, None, squared_norms, queries, n, keys, m, grad.shape[2], 0,
        NORM=True, ROWS=_NORMED, COLS=min(32, _cols(grad.shape[2])),
    )  # fmt: skip
    score_grad, scale = _padded(weights, torch.float16), weight_grad.new_empty(1)
    launch(
        "products.kernel.score_grads", (elements * n,),
        weights, weight_grad, incoming, mask.seeds, offsets, squared_norms, extra_bound, score_grad, scale,
        m, queries, keys, weights.stride(1), weight_grad.stride(1), score_grad.stride(1), mask.start,
        *dropout_numbers(mask.dropout), SUBTRACT_MEAN=subtract_mean, **_row_options(m),
    )  # fmt: skip
    return score_grad, scale


def input_grads(
    query: Tensor, key: Tensor, weight: Tensor, phi_grad: Tensor, psi_grad: Tensor, grads: Tensor, scale: Tensor,
    plan: Plan, kinds: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys and v; v's gradient is float32."""
    elements, n, features = query.shape
    m, blocks, across = key.shape[1], elements * _blocks(n), _blocks(key.shape[1])
    query_grad, key_grad = torch.empty_like(query, dtype=kinds[0]), torch.empty_like(key, dtype=kinds[1])
    v_grad = scale.new_empty((elements, across, features))
    grid, options = (blocks + elements * across, _blocks(features, _cols(features))), {"ROWS": _ROWS}
    launch(
        "products.kernel.input_grads", grid,
        query, key, weight, phi_grad, psi_grad, plan.numbers, plan.query_peaks, plan.key_peaks, scale,
        query_grad, key_grad, v_grad, blocks, n, m, features, _v_step(weight), R=plan.terms, COLS=_cols(features),
        **options,
    )  # fmt: skip
    launch(
        "products.kernel.far_input_grads", grid,
        query, key, weight, grads, plan.numbers, plan.query_peaks, plan.key_peaks, scale,
        query_grad, key_grad, v_grad, blocks, n, m, features, _v_step(weight), grads.stride(1), COLS=_cols(features),
        **options,
    )  # fmt: skip
    return query_grad, key_grad, v_grad.sum(1) if weight.shape[0] > 1 else v_grad.sum((0, 1))[None]
