r"""A learned metric: the directions along which an estimate changes.

With $\nabla\hat y$ the gradients of the estimate at the training rows, in units of the columns' standard deviations,
the eigenvectors of

$$ \sum_i w_i\, \nabla\hat y(x_i)\, \nabla\hat y(x_i)^\top $$

are the directions along which it changes most, and then the next most. Along each of them a bandwidth is found, which
makes those that say nothing wide; the gradients of that estimate say the directions better, and so on, as long as
the leave-one-out criterion falls. The columns themselves are the first candidate, so that a metric is learned only
where rows are predicted the better from each other.

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

_MOST, _ROUNDS = 2000, 6  # rows from which directions are learned at most, and times that they are found anew
_BETTER = 0.999  # of the criterion, for another round


def some(rows: Rows) -> Rows:
    """Rows enough to learn directions from, at random; or all."""
    count = len(rows.x)
    if count <= _MOST:
        return rows
    return rows.take(np.sort(np.random.default_rng(0).choice(count, _MOST, replace=False)))


def directions(rows: Rows, count: int | None, fit: Callable[[Rows], tuple[Smoother, float]]) -> Array:
    """(numbers, k): k directions in the units of the columns, from fits to the rows and their criterion."""
    numbers = rows.x[:, rows.coding.order[: rows.coding.numbers]].astype(np.float64)
    spread = numbers.std(0)
    unit = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 0)
    basis, best, least = np.eye(len(unit)), np.eye(len(unit)), np.inf
    for turn in range(1 + _ROUNDS):
        smoother, error = fit(rows._replace(metric=unit[:, None] * basis))
        if turn and not error < _BETTER * least:
            break
        best, least = basis, error
        slope, _ = effects.gradient(smoother, smoother.joined.x)
        slope = np.einsum("dk,nkv->nvd", basis, np.nan_to_num(slope, posinf=0.0, neginf=0.0))
        outer = np.einsum("n,nvd,nve->de", smoother.joined.weight, slope, slope)
        basis = np.linalg.eigh(outer)[1][:, ::-1]
    # The gradients of fewer directions would lie among these: so all are learned, and then the first are taken.
    return np.asarray(unit[:, None] * (best if count is None else basis[:, :count]))
