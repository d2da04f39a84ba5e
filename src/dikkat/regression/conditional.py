r"""Prediction intervals whose coverage holds in each level of some categories.

Let $\Phi(x)$ be the indicators of the levels, $S_i$ the absolute errors of the rows that are left out, relative to the
growth beyond the data, and $1 - \alpha$ the coverage. The interval is $\hat y(x) \pm c(x)\,S^*$, where $S^*$ is the
largest error of a new row at x that lies at most on the regression of the $1 - \alpha$ quantile of all errors,
including its own, on $\Phi$. By duality it is the slope, at $u = 1 - \alpha$, of the linear program

$$ -\max_\eta \sum_i \eta_i S_i \quad\text{with}\quad \sum_i \eta_i \Phi(x_i) = -u\,\Phi(x), \quad
-\alpha w_i \le \eta_i \le (1 - \alpha) w_i . $$

With one category it is the conformal quantile of the errors in the level of x. With several, levels overlap, and each
has its coverage.

Of more than 10,000 errors, each combination of levels keeps a random sample of the same size, or all of its errors if
they are fewer. An error and the new row count as the number of rows for which an error of their combination stands.

Source: Gibbs, Cherian and Candès 2023, Conformal prediction with conditional guarantees, sections 2.2 and 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from dikkat.regression import intervals
from dikkat.regression.columns import columns_of
from dikkat.regression.joined import Array
from dikkat.regression.shapes import groups_of

_STEP = 1e-9  # below 1 − α, because the program has a corner there


def interval(
    model: Any, x: Array, coverage: float, method: str, by: ArrayLike | str, weight: Array | None = None
) -> tuple[Array, Array]:
    """Return the lower and upper ends, (n,) each, at queries x (as in `X_train_`), by the levels of categories."""
    if method != "jackknife+":
        raise ValueError(f"method: got {method!r} with by; expected 'jackknife+'")
    names = np.asarray(by, object).reshape(-1).tolist()
    groups = [groups_of(model, name) for name in names]
    columns, sizes = [j for j, _ in groups], [len(levels) for _, levels in groups]
    if not columns:
        raise ValueError("by: got no category; expected names or positions of categories")
    rows, errors = intervals.left_out_errors(model)
    if rows.left_out_count.sum() == 1:
        return intervals.widen(model, x, coverage, *np.full((2, len(x)), np.inf) * [[-1], [1]])
    unique_index = model._smoother.joined.unique_index
    first = np.zeros(unique_index.max() + 1, np.intp)
    first[unique_index[unique_index >= 0]] = np.flatnonzero(unique_index >= 0)
    levels = _levels(model, model.X_train_[first[rows.unique]], columns)
    combinations, combination_index = np.unique(levels, axis=0, return_inverse=True)
    chosen, scale = _sampled(combination_index.ravel())
    features, errors = _indicators(levels[chosen], sizes), np.abs(errors[chosen])
    row_weight = rows.weight[chosen] * scale[combination_index.ravel()[chosen]]
    growth, kappa = intervals.growth_at(model, x, weight), model._smoother.design_effect
    center, reach = np.asarray(model._estimate(x), np.float64).ravel(), np.empty(len(x))
    all_levels = _levels(model, x, columns)
    for query_levels in np.unique(all_levels, axis=0):
        same_levels, threshold = (all_levels == query_levels).all(1), np.inf
        if (query_levels == query_levels.round()).all() and (query_levels >= 0).all():  # an unseen level has no errors
            new_weight = kappa * max(scale[(combinations == query_levels).all(1)], default=1.0)
            at = _indicators(query_levels[None], sizes)[0]
            threshold = _threshold(features, errors, row_weight, at, coverage, new_weight)
        reach[same_levels] = growth[same_levels] * threshold if np.isfinite(threshold) else np.inf
    return intervals.widen(model, x, coverage, center - reach, center + reach)


def _levels(model: Any, x: Array, columns: list[int]) -> Array:
    """Return the levels (n, categories) of rows as in `X_train_`: a cell of a flag is rounded, −1 beyond 0 to 1."""
    is_flag = np.array([columns_of(model)[j].is_flag for j in columns])
    levels = x[:, columns]
    return np.where(is_flag, np.where((levels >= 0) & (levels <= 1), levels.round(), -1), levels)


def _sampled(combination: NDArray[np.intp]) -> tuple[NDArray[np.intp], Array]:
    """Return indices of at most about 10,000 errors, and for each combination of levels (c,) the rows of an error."""
    count = np.bincount(combination)
    if len(combination) <= intervals.MOST_ERRORS:
        return np.arange(len(combination)), np.ones(len(count))
    limit = -(-intervals.MOST_ERRORS // len(count))
    order = np.lexsort([np.random.default_rng(0).random(len(combination)), combination])
    rank = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    return np.sort(order[rank < limit]), np.maximum(count / limit, 1.0)


def _indicators(levels: Array, sizes: list[int]) -> Array:
    """Return the indicators (n, p) of levels (n, categories), without the first level of later categories."""
    blocks = [np.eye(size)[levels[:, k].astype(int)][:, min(k, 1) :] for k, size in enumerate(sizes)]
    return np.hstack(blocks)


def _threshold(features: Array, errors: Array, weight: Array, at: Array, coverage: float, kappa: float) -> float:
    """Return S* for a new row with the indicators `at`, which counts as κ rows; ∞ if its levels have too few rows."""
    bounds = np.outer(weight, [coverage - 1, coverage])
    equal = {"A_eq": features.T, "b_eq": -kappa * (coverage - _STEP) * at}
    solved = linprog(-errors, **equal, bounds=bounds, options={"presolve": False})  # it takes a third of the time
    return float(-solved.eqlin.marginals @ at) if solved.status == 0 else np.inf
