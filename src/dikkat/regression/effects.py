r"""The gradient of an estimate at a query, and its standard error.

The estimate is the first of $\theta = M^{-1} \sum_j w_j z_j y_j$, with $M = \sum_j w_j z_j z_j^\top + \Lambda$.
The slopes b of the plane to which lines are drawn are taken from y before, and added at the end.
With $u = M^{-1} e_1$, the share $a_{jc} = u^\top z_j\, \partial w_j/\partial x_c$ at a total of the weights that is
held, and $e_c$ that picks the slope along c, its derivative with respect to x_c is

$$ \frac{\partial \hat y}{\partial x_c} = \frac{\theta_c}{\sigma_c} + \sum_j a_{jc} (y_j - z_j^\top\theta)
= \sum_j l'_{jc} y_j , \qquad
l'_{jc} = a_{jc} + w_j z_j^\top M^{-1} \Big( \frac{e_c}{\sigma_c} - \sum_i a_{ic} z_i \Big) , $$

which of the constant order, without slopes, is the change of the weights alone.

The derivative is linear in y, as b is (`dikkat.regression.local`), by which $e_c - \sum_j l'_{jc} x_j$ is multiplied in
the end. With that in l' and with s² the variance of the noise there (`dikkat.regression.smoother`) its standard error
is $s\,(\sum_j l'^2_{jc}/W_j)^{1/2}$. That is about the derivative's own mean: the bias by which smoothing flattens
slopes is not in it.

Source: Li and Racine 2007, chapter 2; Fan and Gijbels 1996, section 3.2.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.regression.joined import Array, Coding
from dikkat.regression.local import as_wide, is_far, least_of, lost_to_unseen, parts, ridge_at, ridge_of
from dikkat.regression.moments.launch import Profile
from dikkat.regression.moments.record import LARGEST
from dikkat.regression.smoother import Smoother

_AGAIN = 64  # times each difference is read and written: with so many fewer queries at once it stays in the cache


class Local(NamedTuple):
    """The local systems of n queries.

    Attributes:
        delta: (n, m, p), δ of the coordinates that have slopes: the numbers, or all.
        share: (n, m), w.
        pull: (n, m): times δ it is ∂w/∂x in units of σ at a total that is held.
        wide: (n, p), the bandwidths.
        held: (n, p), Λ.
        toward: (n, p, v), the slopes to which lines are drawn; 0 of the constant order.
        design: (n, m, k), z.
        inverse: (n, k, k), M⁻¹.
        reached: (n,), True where a row is in reach.
        value: (m, v), y.
        weight: (m,), W.
    """

    delta: Tensor
    share: Tensor
    pull: Tensor
    wide: Tensor
    held: Tensor
    toward: Tensor
    design: Tensor
    inverse: Tensor
    reached: Tensor
    value: Tensor
    weight: Tensor


def locals_at(smoother: Smoother, query: Array) -> Iterator[tuple[slice, Local]]:
    """The local systems at queries in coordinates, in float64, some queries at a time."""
    joined, numbers, slopes = smoother.joined, smoother.joined.numbers, len(smoother.trend.spread)
    key, value, weight, sigma, spread = (
        torch.tensor(each, dtype=torch.float64)
        for each in (joined.x, joined.y, joined.weight, smoother.bandwidth, joined.spread())
    )
    amount = torch.tensor(smoother.ridge, dtype=torch.float64)
    across = key.mT.contiguous()  # sums along rows are quick
    for rows in parts(len(query), _AGAIN * key.numel()):
        at = torch.tensor(query[rows], dtype=torch.float64)
        wide = sigma.expand(len(at), -1)
        delta = (across - at[..., None]) / wide[..., None]
        share, pull, lse = _weights(smoother.profile, delta.square().sum(1), weight)
        lse = lse + lost_to_unseen(joined, at, wide)
        delta, wide = delta[:, :slopes].mT, wide[:, :slopes]
        toward = smoother.trend.over(wide) * smoother.drawn
        ridge = as_wide(ridge_of(amount, spread[:numbers], wide[:, :numbers]), toward)
        held = ridge_at(ridge, lse).clamp(max=LARGEST)
        design, inverse, reached = _system(share, delta, held, lse, smoother.degree)
        yield rows, Local(delta, share, pull, wide, held, toward, design, inverse, reached, value, weight)


def gradient(smoother: Smoother, query: Array) -> tuple[Array, Array]:
    """The gradient (n, p, v) with respect to the numbers at queries in coordinates, and ‖l'‖² (n, p).

    NaN where no row is in reach.
    """
    result = []
    trend, unit, numbers = smoother.trend, smoother.trend.spread, smoother.joined.numbers
    plane, by = trend.slope * smoother.drawn, trend.row * smoother.drawn
    x = torch.tensor(smoother.joined.x[:, : len(unit)], dtype=torch.float64)
    along = (x - x[0]) / unit
    for _, local in locals_at(smoother, query):
        row = _rows(local, smoother.degree)[..., :numbers]
        change = row.mT @ (local.value - along @ plane) + (plane / unit[:, None])[:numbers]
        row = row + by @ (torch.diag(1 / unit)[:numbers] - row.mT @ along).mT
        result.append((change, (row.square() / local.weight[:, None]).sum(1)))
    slope, norm = (torch.cat(each).numpy() for each in zip(*result, strict=True))
    return slope, norm


def by_columns(model: Any, x: Array, return_std: bool) -> Array | tuple[Array, Array]:
    """Return the gradient with respect to the columns of X, and perhaps its standard error, at rows like `X_train_`."""
    smoother, query = model._smoother, model._coordinates(x)
    slope, norm = gradient(smoother, query)
    answers = [slope if model.metric_ is None else np.einsum("dk,nkv->ndv", model.metric_, slope)]
    if return_std:
        answers.append(np.sqrt(norm[:, :, None] * smoother.noise(query)[:, None]))
    coding = Coding(model.columns_, x.shape[1])
    order, result = coding.order[: coding.numbers], list[Array]()
    for answer in answers:
        full = np.full((*x.shape, answer.shape[2]), np.nan)
        full[:, order] = np.where(np.isnan(answers[0]), np.nan, answer)
        result.append((full[..., 0] if model.y_train_.ndim == 1 else full).astype(model.X_train_.dtype))
    return (result[0], result[1]) if return_std else result[0]


def _weights(profile: Profile, square: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """w (n, m), what times δ is ∂w/∂x in units of σ at a total that is held (n, m), and log Σ W K (n,)."""
    if profile == "gaussian":
        scores = weight.log() - square / 2
        lse = scores.logsumexp(1)
        share = (scores - lse[:, None]).exp()
        return share, share, lse
    inside = ((square > 0) & (square < 1)).to(square)
    kernel = (1 - square).clamp(min=0)
    total = (weight * kernel).sum(1, keepdim=True)
    return weight * kernel / total, weight * 2 * inside / total, total[:, 0].log()


def _system(share: Tensor, delta: Tensor, held: Tensor, lse: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """z (n, m, k), M⁻¹ (n, k, k), and who has a row in reach (n,)."""
    ones = torch.ones_like(share)[:, None]
    design = (torch.cat([ones, delta.mT], 1) if degree else ones).mT
    system = design.mT @ (share[..., None] * design)
    if degree:
        second = system.diagonal(dim1=1, dim2=2)[:, 1:]
        added = held + least_of(lse.dtype) * second
        added = torch.where(is_far(lse)[:, None] | (second == 0), LARGEST, added)
        system = system + torch.diag_embed(torch.nn.functional.pad(added, (1, 0)))
    reached = torch.isfinite(system).all(2).all(1)
    system = torch.where(reached[:, None, None], system, torch.eye(system.shape[1]).to(system))
    return design, torch.linalg.inv(system), reached


def _rows(local: Local, degree: int) -> Tensor:
    """l', (n, m, p)."""
    pull = local.pull[..., None] * local.delta / local.wide[:, None]
    design, inverse = local.design, local.inverse
    lever = pull * (design @ inverse[:, :1].mT)
    change = torch.zeros(*pull.shape[::2], design.shape[2]).to(pull)
    if degree:
        change[..., 1:] = torch.diag_embed(1 / local.wide)
    left = (change - lever.mT @ design) @ inverse
    result: Tensor = lever + local.share[..., None] * (design @ left.mT)
    return result.masked_fill(~local.reached[:, None, None], math.nan)
