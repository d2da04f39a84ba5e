r"""A learned metric: the directions along which an estimate changes.

Let $\nabla\hat y$ be the gradients of the estimate at the training rows, in units of the columns' standard deviations.
The eigenvectors of

$$ \sum_i w_i\, \nabla\hat y(x_i)\, \nabla\hat y(x_i)^\top $$

are the directions along which the estimate changes, in the order of the change. A search finds a bandwidth along each
direction, wide for directions without influence. The gradients of the new estimate give better directions, and so on,
as long as the leave-one-out criterion falls. The columns themselves are the first candidate, so that a metric is
learned only if it predicts left-out rows better.

Source: Samarov 1993 (the outer product of gradients); Xia, Tong, Li and Zhu 2002, section 3 (its refinement).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from dikkat.regression import effects
from dikkat.regression.joined import Array, Rows
from dikkat.regression.smoother import Smoother

Metric = Literal["diagonal", "linear"]

_MAX_ROWS, _MAX_ROUNDS = 2000, 6  # rows of a sample; updates of the directions
_IMPROVEMENT = 0.999  # relative criterion that allows another round


def sample_rows(rows: Rows) -> Rows:
    """Return a random sample that is large enough to learn directions or to choose logarithms, or all rows."""
    count = len(rows.x)
    if count <= _MAX_ROWS:
        return rows
    return rows.take(np.sort(np.random.default_rng(0).choice(count, _MAX_ROWS, replace=False)))


def directions(rows: Rows, count: int | None, fit: Callable[[Rows], tuple[Smoother, float]]) -> Array:
    """Return k directions in the units of the columns, (numeric columns, k), from fits and their criterion."""
    numbers = rows.coding.numbers(rows.x).astype(np.float64)
    spread = numbers.std(0)
    unit = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 0)
    basis, best_basis, least_error = np.eye(len(unit)), np.eye(len(unit)), np.inf
    for round_index in range(1 + _MAX_ROUNDS):
        smoother, error = fit(rows._replace(metric=unit[:, None] * basis))
        if round_index and not error < _IMPROVEMENT * least_error:
            break
        best_basis, least_error = basis, error
        slope, _ = effects.gradient(
            smoother, smoother.joined.x, rows._replace(metric=unit[:, None] * basis).coding.jacobian(smoother.joined.x)
        )
        slope = np.einsum("dk,nkv->nvd", basis, np.nan_to_num(slope, posinf=0.0, neginf=0.0))
        outer = np.einsum("n,nvd,nve->de", smoother.joined.weight, slope, slope)
        basis = np.linalg.eigh(outer)[1][:, ::-1]
    # Gradients of fewer directions would stay within these, so learn all directions and then select the first.
    return np.asarray(unit[:, None] * (best_basis if count is None else basis[:, :count]))
