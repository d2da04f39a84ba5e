r"""Estimates at queries without one training row each, for the jackknife+.

No model is fitted again. With $z_i = (1, \delta_i)$ of the coordinates that have slopes, θ and M as in
`dikkat.regression.effects` and $u = M^{-1} e_1$,

$$ \hat y_{-i}(x) = \hat y(x) - \frac{w_i\, u^\top z_i\, (y_i - z_i^\top\theta)}{1 - w_i\, z_i^\top M^{-1} z_i} . $$

Without row i the slopes b of the plane to which the ridge shrinks change by $\Delta_i$ too. With
$A = \sum_j w_j z_j \delta_j^\top$ this adds

$$ -u^\top A \Delta_i
+ \frac{w_i\, u^\top z_i}{1 - w_i\, z_i^\top M^{-1} z_i} (\delta_i - A^\top M^{-1} z_i)^\top \Delta_i . $$

Source: Barber, Candès, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.arithmetic import log_profile
from dikkat.regression.effects import READS
from dikkat.regression.joined import Array, Repeats
from dikkat.regression.local import is_far, least_ridge, local_fit, moments, parts, ridge_at, without_unseen
from dikkat.regression.moments.record import LARGEST
from dikkat.regression.smoother import Smoother


class _Systems(NamedTuple):
    """The local fits at n queries.

    Attributes:
        theta: (n, 1 + q), θ of the first output.
        inverse: (n, k, k), M⁻¹.
        product: (n, k, q), A.
        lse: (n, 1), log Σ W K.
        reached: (n, 1), True if a row is in reach.
    """

    theta: Array
    inverse: Array
    product: Array
    lse: Array
    reached: NDArray[np.bool_]


def estimates_without(model: Any, rows: Repeats, x: Array) -> Iterator[tuple[slice, Array]]:
    """Yield for some queries x (as in `X_train_`) at a time the estimates without each of the rows, (n, m)."""
    smoother, joined, y = model._smoother, model._smoother.joined, rows.y[:, 0]
    query = model._coordinates(x).astype(np.float64)
    columns = joined.x[rows.unique].T.astype(np.float64, order="C")  # sums along contiguous rows are fast
    other_weight = joined.weight.sum() - rows.left_out_weight
    other_total = joined.weight @ joined.y[:, 0] - rows.left_out_weight * y
    other_mean = other_total / np.where(other_weight > 0, other_weight, 1)
    estimates = np.asarray(model._estimate(x), np.float64).ravel()
    if smoother.shrinks:
        plane = (smoother.trend.without[rows.unique, :, 0] - smoother.trend.slope[:, 0]) / smoother.trend.spread
        change = plane.numpy().T * smoother.bandwidth[: plane.shape[1], None]
    for block in parts(len(query), smoother._double.columns(1)):
        systems = _systems(smoother, torch.tensor(query[block]))
        for chunk in parts(len(systems.lse), READS * columns.size):
            theta, inverse, product, lse, reached = (array[chunk] for array in systems)
            size, slopes = theta.shape[1] - 1, inverse.shape[1] - 1
            queries = slice(block.start + chunk.start, block.start + chunk.stop)
            delta = (columns - query[queries, :, None]) * (1 / smoother.bandwidth)[:, None]
            score = log_profile(smoother.profile, torch.from_numpy((delta**2).sum(1))).numpy()
            share = np.nan_to_num(np.exp(score + np.log(rows.left_out_weight) - lse))
            inverse_z = inverse[:, :, :1] + inverse[:, :, 1:] @ delta[:, :slopes]
            residual = y - theta[:, :1] - (theta[:, None, 1:] @ delta[:, :size])[:, 0]
            remaining = 1 - share * (inverse_z[:, 0] + (inverse_z[:, 1:] * delta[:, :slopes]).sum(1))
            with np.errstate(divide="ignore", invalid="ignore"):
                pull = share * inverse_z[:, 0] / remaining
                without = theta[:, :1] - pull * residual
                if smoother.shrinks:
                    moved = product @ change
                    without -= (inverse[:, :1] @ moved)[:, 0]
                    without += pull * ((delta[:, :size] * change).sum(1) - (inverse_z * moved).sum(1))
            if (dominates := remaining <= 1e-9).any():  # a row with all of the weight is left out as in a search
                query_of, row_of = np.nonzero(dominates)
                without[dominates] = smoother.without(query[queries][query_of], rows.unique[row_of], other_mean[row_of])
            yield queries, np.where(reached, without + joined.origin[0], estimates[queries, None])


def _systems(smoother: Smoother, query: Tensor) -> _Systems:
    """Return the local systems of all rows at queries."""
    window, slopes = smoother._window(query), smoother.joined.num_numeric * smoother.degree
    state = moments(query, smoother._double, window, degree=smoother.degree, slopes=slopes)
    lse, state = state.lse, without_unseen(state, smoother.joined, query, window.bandwidth)
    ridge, target = smoother._ridge_and_slopes(window)
    theta = local_fit(state, ridge, target).theta[..., 0]
    offset, spread = state.offset[:, : theta.shape[1] - 1], state.spread[..., : theta.shape[1] - 1]
    product = torch.cat([offset[:, None], spread], 1)
    first = pad(offset[:, :slopes], (1, 0), value=1.0)  # the first row and column of M
    system = torch.cat([first[:, :, None], product[:, :, :slopes]], 2)
    if ridge is not None:
        second = spread.diagonal(dim1=1, dim2=2)[:, :slopes]
        diagonal = ridge_at(ridge, state.lse).clamp(max=LARGEST) + least_ridge(query.dtype) * second
        diagonal = torch.where(is_far(state.lse)[:, None] | (second == 0), LARGEST, diagonal)
        system = system + torch.diag_embed(pad(diagonal, (1, 0)))
    reached = torch.isfinite(state.lse) & torch.isfinite(system).all(2).all(1)
    system = torch.where(reached[:, None, None], system, torch.eye(1 + slopes).to(system))
    inverse = torch.linalg.inv(system)
    return _Systems(*(tensor.numpy() for tensor in (theta, inverse, product, lse[:, None], reached[:, None])))
