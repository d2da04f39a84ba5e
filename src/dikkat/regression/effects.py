r"""The gradient of an estimate at a query, and its standard error.

The estimate is the first entry of $\theta = M^{-1} \sum_j w_j z_j y_j$, with $M = \sum_j w_j z_j z_j^\top + \Lambda$.
The plane to whose slopes b the ridge shrinks is subtracted from y before, and b is added at the end.
Let $u = M^{-1} e_1$, $a_{jc} = u^\top z_j\, \partial w_j/\partial x_c$ at a fixed sum of the weights, and $e_c$ the
unit vector of the slope along c. The derivative of the estimate by x_c is

$$ \frac{\partial \hat y}{\partial x_c} = \frac{\theta_c}{\sigma_c} + \sum_j a_{jc} (y_j - z_j^\top\theta)
= \sum_j l'_{jc} y_j , \qquad
l'_{jc} = a_{jc} + w_j z_j^\top M^{-1} \Big( \frac{e_c}{\sigma_c} - \sum_i a_{ic} z_i \Big) , $$

which for the constant order, without slopes, is only the change of the weights.

The derivative is linear in y, and so is b (`dikkat.regression.local`), which is multiplied by
$e_c - \sum_j l'_{jc} x_j$ at the end. With this term included in l', and with s² the variance of the noise at the
query (`dikkat.regression.smoother`), the standard error is $s\,(\sum_j l'^2_{jc}/W_j)^{1/2}$. It does not include the
bias of slopes that smoothing flattens.

Source: Li and Racine 2007, chapter 2; Fan and Gijbels 1996, section 3.2.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.regression.joined import Array, Coding
from dikkat.regression.local import (
    is_far,
    least_ridge,
    log_weight_lost_to_unseen,
    parts,
    ridge_at,
    ridge_of,
    widen_ridge,
)
from dikkat.regression.moments.launch import Profile
from dikkat.regression.moments.record import LARGEST
from dikkat.regression.smoother import Smoother

READS = 64
"""Reads and writes of each difference: so many times fewer queries at once stay in the cache."""


class Local(NamedTuple):
    """The local systems of n queries.

    Attributes:
        delta: (n, m, p), δ of the coordinates that have slopes: the numbers, or all.
        share: (n, m), w.
        pull: (n, m): times δ it is ∂w/∂x in units of σ at a fixed sum of the weights.
        bandwidth: (n, p).
        ridge: (n, p), Λ.
        target: (n, p, v), the slopes to which the ridge shrinks; 0 for the constant order.
        design: (n, m, k), z.
        inverse: (n, k, k), M⁻¹.
        reached: (n,), True if a row is in reach.
        value: (m, v), y.
        weight: (m,), W.
        lse: (n,), log Σ W K.
    """

    delta: Tensor
    share: Tensor
    pull: Tensor
    bandwidth: Tensor
    ridge: Tensor
    target: Tensor
    design: Tensor
    inverse: Tensor
    reached: Tensor
    value: Tensor
    weight: Tensor
    lse: Tensor


def locals_at(smoother: Smoother, query: Array) -> Iterator[tuple[slice, Local]]:
    """Yield slices of `query` (in coordinates), and the local least-squares systems at these queries in float64."""
    joined, numbers, slopes = smoother.joined, smoother.joined.num_numeric, len(smoother.trend.spread)
    key, value, weight, sigma, spread = (
        torch.tensor(array, dtype=torch.float64)
        for array in (joined.x, joined.y, joined.weight, smoother.bandwidth, joined.spread())
    )
    amount = torch.tensor(smoother.ridge, dtype=torch.float64)
    columns = key.mT.contiguous()  # sums along contiguous rows are fast
    for rows in parts(len(query), READS * key.numel()):
        points = torch.tensor(query[rows], dtype=torch.float64)
        bandwidth = sigma.expand(len(points), -1)
        delta = (columns - points[..., None]) / bandwidth[..., None]
        share, pull, lse = _weights(smoother.profile, delta.square().sum(1), weight)
        lse = lse + log_weight_lost_to_unseen(joined, points, bandwidth)
        delta, bandwidth = delta[:, :slopes].mT, bandwidth[:, :slopes]
        target = smoother.trend.over(bandwidth) * smoother.shrinks
        ridge = widen_ridge(ridge_of(amount, spread[:numbers], bandwidth[:, :numbers]), target)
        held = ridge_at(ridge, lse).clamp(max=LARGEST)
        design, inverse, reached = _system(share, delta, held, lse, smoother.degree)
        yield rows, Local(delta, share, pull, bandwidth, held, target, design, inverse, reached, value, weight, lse)


def gradient(smoother: Smoother, query: Array, jacobian: Array) -> tuple[Array, Array]:
    """Return the gradient (n, p, v) by the numeric coordinates at queries in coordinates, and ‖l'‖² (n, p).

    Both are NaN if no row is in reach. `jacobian` is that of `Coding`.
    """
    result = []
    trend, unit, numbers = smoother.trend, smoother.trend.spread, smoother.joined.num_numeric
    plane, plane_row = trend.slope * smoother.shrinks, trend.row * smoother.shrinks
    x = torch.tensor(smoother.joined.x[:, : len(unit)], dtype=torch.float64)
    scaled_x = (x - x[0]) / unit
    for chunk, local in locals_at(smoother, query):
        row = _rows(local, smoother.degree)[..., :numbers]
        moved = torch.tensor(jacobian[chunk, :, : len(unit)]) / unit
        change = row.mT @ (local.value - scaled_x @ plane) + moved @ plane
        row = row + plane_row @ (moved - row.mT @ scaled_x).mT
        result.append((change, (row.square() / local.weight[:, None]).sum(1)))
    slope, norm = (torch.cat(piece).numpy() for piece in zip(*result, strict=True))
    return slope, norm


def by_columns(model: Any, x: Array, return_std: bool) -> Array | tuple[Array, Array]:
    """Return the gradient by the columns of X, and with `return_std` its standard error, at rows like `X_train_`."""
    smoother, query = model._smoother, model._coordinates(x)
    slope, norm = gradient(smoother, query, model._rows.coding.jacobian(query))
    answers = [slope if model.metric_ is None else np.einsum("dk,nkv->ndv", model.metric_, slope)]
    if return_std:
        answers.append(np.sqrt(norm[:, :, None] * smoother.noise(query)[0][:, None]))
    coding = Coding(model.columns_, x.shape[1])
    order, result, by_cell = coding.order[: coding.num_numeric], list[Array](), coding.slopes(x)[..., None]
    for answer in answers:
        full = np.full((*x.shape, answer.shape[2]), np.nan)
        full[:, order] = np.where(np.isnan(answers[0]) | (by_cell == 0), np.nan, answer * by_cell)
        result.append((full[..., 0] if model.y_train_.ndim == 1 else full).astype(model.X_train_.dtype))
    return (result[0], result[1]) if return_std else result[0]


def _weights(profile: Profile, square: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return w (n, m), `Local.pull` (n, m), and log Σ W K (n,)."""
    if profile == "gaussian":
        scores = weight.log() - square / 2
        lse = scores.logsumexp(1)
        share = (scores - lse[:, None]).exp()
        return share, share, lse
    inside = ((square > 0) & (square < 1)).to(square)
    kernel = (1 - square).clamp(min=0)
    total = (weight * kernel).sum(1, keepdim=True)
    return weight * kernel / total, weight * 2 * inside / total, total[:, 0].log()


def _system(share: Tensor, delta: Tensor, ridge: Tensor, lse: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return z (n, m, k), M⁻¹ (n, k, k), and flags (n,), True if a row is in reach."""
    ones = torch.ones_like(share)[:, None]
    design = (torch.cat([ones, delta.mT], 1) if degree else ones).mT
    system = design.mT @ (share[..., None] * design)
    if degree:
        second = system.diagonal(dim1=1, dim2=2)[:, 1:]
        diagonal = ridge + least_ridge(lse.dtype) * second
        diagonal = torch.where(is_far(lse)[:, None] | (second == 0), LARGEST, diagonal)
        system = system + torch.diag_embed(torch.nn.functional.pad(diagonal, (1, 0)))
    reached = torch.isfinite(system).all(2).all(1)
    system = torch.where(reached[:, None, None], system, torch.eye(system.shape[1]).to(system))
    return design, torch.linalg.inv(system), reached


def _rows(local: Local, degree: int) -> Tensor:
    """Return l', (n, m, p)."""
    pull = local.pull[..., None] * local.delta / local.bandwidth[:, None]
    design, inverse = local.design, local.inverse
    lever = pull * (design @ inverse[:, :1].mT)
    change = torch.zeros(*pull.shape[::2], design.shape[2]).to(pull)
    if degree:
        change[..., 1:] = torch.diag_embed(1 / local.bandwidth)
    correction = (change - lever.mT @ design) @ inverse
    result: Tensor = lever + local.share[..., None] * (design @ correction.mT)
    return result.masked_fill(~local.reached[:, None, None], math.nan)
