r"""How an estimate changes with each number: its gradient at a query, and how far that may be off.

The estimate is the first of $\theta = M^{-1} \sum_j w_j z_j y_j$, with $M = \sum_j w_j z_j z_j^\top + \Lambda$.
With $u = M^{-1} e_1$, the share $a_{jc} = u^\top z_j\, \partial w_j/\partial x_c$ at a total of the weights that is
held, and $e_c$ that picks the slope along c, its derivative with respect to x_c is

$$ \frac{\partial \hat y}{\partial x_c} = \frac{\theta_c}{\sigma_c} + \sum_j a_{jc} (y_j - z_j^\top\theta)
= \sum_j l'_{jc} y_j , \qquad
l'_{jc} = a_{jc} + w_j z_j^\top M^{-1} \Big( \frac{e_c}{\sigma_c} - \sum_i a_{ic} z_i \Big) , $$

which of the constant order, without slopes, is the change of the weights alone. It is linear in y: with s² the variance
of the noise there (`dikkat.regression.uncertainty`) its standard error is $s\,(\sum_j l'^2_{jc}/W_j)^{1/2}$. That is
about the derivative's own mean, as a smoothed function has it; what smoothing takes from a slope is not in it.

Source: Li and Racine 2007, chapter 2; Fan and Gijbels 1996, section 3.2.
"""

import math

import numpy as np
import torch
from torch import Tensor

from dikkat.regression.joined import Array
from dikkat.regression.local import LARGEST, is_far, least_of, lost_to_unseen, ridge_at, ridge_of
from dikkat.regression.moments import Profile, parts
from dikkat.regression.smoother import Smoother


def gradient(smoother: Smoother, query: Array) -> tuple[Array, Array]:
    """Of queries in coordinates, with respect to the numbers: the gradient (n, p, v) and ‖l'‖² (n, p).

    NaN where no row is in reach.
    """
    joined, slopes = smoother.joined, smoother.joined.numbers
    key, value, weight, sigma, spread = (
        torch.tensor(each, dtype=torch.float64, device=smoother.device)
        for each in (joined.x, joined.y, joined.weight, smoother.bandwidth, joined.spread())
    )
    ridge = ridge_of(torch.tensor(smoother.ridge, dtype=torch.float64), spread[:slopes], sigma[:slopes])
    found = []
    for rows in parts(len(query), key.numel() + 4 * len(key) * (1 + slopes)):
        at = torch.tensor(query[rows], dtype=torch.float64, device=smoother.device)
        delta = (key - at[:, None]) / sigma
        share, pull, lse = _weights(smoother.profile, delta, weight)
        lse = lse + lost_to_unseen(joined, at, sigma)
        row = _rows(share, pull[..., :slopes] / sigma[:slopes], delta, sigma, ridge, lse, smoother.degree)
        found.append(((row.mT @ value).cpu(), (row.square() / weight[:, None]).sum(1).cpu()))
    slope, norm = (torch.cat(each).numpy() for each in zip(*found, strict=True))
    return slope, norm


def _weights(profile: Profile, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """w (n, m), ∂w/∂x in units of σ at a total that is held (n, m, d), and log Σ W K (n,)."""
    square = delta.square().sum(-1)
    if profile == "gaussian":
        scores = weight.log() - square / 2
        lse = scores.logsumexp(1)
        share = (scores - lse[:, None]).exp()
        return share, share[..., None] * delta, lse
    distance = square.sqrt()
    inside = ((distance > 0) & (distance < 1)).to(delta)
    kernel, fall = {
        "epanechnikov": ((1 - square).clamp(min=0), 2 * inside),
        "triangular": ((1 - distance).clamp(min=0), inside / distance.clamp(min=math.ulp(0))),
        "average": (torch.ones_like(square), 0 * inside),
    }[profile]
    total = (weight * kernel).sum(1)
    return (
        weight * kernel / total[:, None],
        (weight * fall)[..., None] * delta / total[:, None, None],
        total.log(),
    )


def _rows(share: Tensor, pull: Tensor, delta: Tensor, sigma: Tensor, ridge: Tensor, lse: Tensor, degree: int) -> Tensor:
    """l', (n, m, p)."""
    slopes = len(ridge)
    ones = torch.ones_like(share)[..., None]
    design = torch.cat([ones, delta[..., :slopes]], 2) if degree else ones
    system = design.mT @ (share[..., None] * design)
    unit = torch.zeros(slopes, design.shape[2], dtype=share.dtype, device=share.device)
    if degree:
        second = system.diagonal(dim1=1, dim2=2)[:, 1:]
        added = ridge_at(ridge, lse).clamp(max=LARGEST) + least_of(lse.dtype) * second
        added = torch.where(is_far(lse)[:, None] | (second == 0), LARGEST, added)
        system = system + torch.diag_embed(torch.nn.functional.pad(added, (1, 0)))
        unit[:, 1:] = torch.diag(1 / sigma[:slopes])
    reached = torch.isfinite(system).all(2).all(1)
    system = torch.where(reached[:, None, None], system, torch.eye(system.shape[1]).to(system))
    inverse = torch.linalg.inv(system)
    lever = pull * (design @ inverse[:, :1].mT)
    left = (unit - lever.mT @ design) @ inverse
    found: Tensor = lever + share[..., None] * (design @ left.mT)
    return found.masked_fill(~reached[:, None, None], math.nan)


def standard_error(smoother: Smoother, query: Array, norm: Array) -> Array:
    """Of the gradient, (n, p, v)."""
    noise = smoother.uncertainty.noise(query)
    found: Array = np.sqrt(norm[:, :, None] * noise[:, None])
    return found
