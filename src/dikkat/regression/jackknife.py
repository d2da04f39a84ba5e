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
from torch import Tensor
from torch.nn.functional import pad

from dikkat.regression.effects import READS
from dikkat.regression.joined import Array, Repeats
from dikkat.regression.local import (
    Points,
    is_far,
    least_ridge,
    local_fit,
    moments,
    parts,
    pick_points,
    ridge_at,
    scores,
    without_unseen,
)  # fmt: skip
from dikkat.regression.moments.record import LARGEST
from dikkat.regression.smoother import Smoother


class _System(NamedTuple):
    """The local fits at n queries, and the weights of m unique rows.

    Attributes:
        theta: (n, 1 + q), θ of the first output.
        inverse: (n, k, k), M⁻¹.
        product: (n, k, q), A.
        delta: (n, m, d), δ.
        share: (n, m), w.
        reached: (n,), True if a row is in reach.
        bandwidth: (d,).
    """

    theta: Tensor
    inverse: Tensor
    product: Tensor
    delta: Tensor
    share: Tensor
    reached: Tensor
    bandwidth: Tensor


def estimates_without(model: Any, rows: Repeats, x: Array) -> Iterator[tuple[slice, Array]]:
    """Yield for some queries x (as in `X_train_`) at a time the estimates without each of the rows, (n, m)."""
    smoother, joined, query = model._smoother, model._smoother.joined, model._coordinates(x)
    unique, index = np.unique(rows.unique, return_inverse=True)
    points = pick_points(smoother._double, unique)
    weight_share, y = rows.left_out_weight / joined.weight[rows.unique], rows.y[:, 0]
    other_weight = joined.weight.sum() - rows.left_out_weight
    other_total = joined.weight @ joined.y[:, 0] - rows.left_out_weight * y
    other_mean = other_total / np.where(other_weight > 0, other_weight, 1)
    estimates = np.asarray(model._estimate(x), np.float64).ravel()
    for chunk in parts(len(query), READS * points.key.numel()):
        system = _system(smoother, torch.tensor(query[chunk], dtype=torch.float64), points)
        theta, inverse, product, delta, share = (tensor.numpy() for tensor in system[:5])
        size, slopes = theta.shape[1] - 1, inverse.shape[1] - 1
        across, share = delta.transpose(0, 2, 1)[..., index], share[:, index] * weight_share
        inverse_z = inverse[:, :, :1] + inverse[:, :, 1:] @ across[:, :slopes]
        residual = y - theta[:, :1] - (theta[:, None, 1:] @ across[:, :size])[:, 0]
        remaining = 1 - share * (inverse_z[:, 0] + (inverse_z[:, 1:] * across[:, :slopes]).sum(1))
        with np.errstate(divide="ignore", invalid="ignore"):
            pull = share * inverse_z[:, 0] / remaining
            without = theta[:, :1] - pull * residual
            if smoother.shrinks:
                plane = smoother.trend.without[rows.unique, :, 0] - smoother.trend.slope[:, 0]
                change = plane.numpy().T * (system.bandwidth[:size] / smoother.trend.spread).numpy()[:, None]
                without -= (inverse[:, :1] @ product @ change)[:, 0]
                without += pull * ((across[:, :size] - product.transpose(0, 2, 1) @ inverse_z) * change).sum(1)
        if (dominates := remaining <= 1e-9).any():  # a row with all of the weight is left out as in a search
            query_of, row_of = np.nonzero(dominates)
            without[dominates] = smoother.without(query[chunk][query_of], rows.unique[row_of], other_mean[row_of])
        shifted = without + joined.origin[0]
        yield chunk, np.where(system.reached.numpy()[:, None], shifted, estimates[chunk, None])


def _system(smoother: Smoother, query: Tensor, points: Points) -> _System:
    """Return the local systems of all rows at queries, and the differences and weights of some rows."""
    window, slopes = smoother._window(query), smoother.joined.num_numeric * smoother.degree
    delta, score = scores(query, points, window, slice(None), None)
    state = moments(query, smoother._double, window, degree=smoother.degree, slopes=slopes)
    share = (score - state.lse[:, None]).exp().nan_to_num(0.0)
    state = without_unseen(state, smoother.joined, query, window.bandwidth)
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
    return _System(theta, torch.linalg.inv(system), product, delta, share, reached, window.bandwidth)
