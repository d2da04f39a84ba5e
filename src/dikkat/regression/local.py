r"""The local estimate, from the moments about a query.

With $z = (1)$ for the constant order and $z = (1, \delta)$ for the linear one, of the δ of numbers, it minimises
$\sum_j w_j (y_j - z_j^\top\theta)^2 + \beta^\top \Lambda \beta$, with β the slopes in θ, and takes the first of θ: the
line's height at the query, where δ = 0.

The linear order is solved about the mean offset $o$, where $S = \operatorname{E}\delta\delta^\top - oo^\top$ and
$c = \operatorname{E}\delta y^\top - oy^\top$:

$$ \beta = (S + \Lambda)^{-1} c, \qquad \hat y = \bar y - \beta^\top o . $$

The ridge draws the line toward the local constant where few points have a say, or lie too near each other to tell a
slope:

$$ \Lambda_c = \frac{\rho}{S_0} \frac{s_c^2}{s_c^2 + \sigma_c^2}, \qquad S_0 = \sum_j W_j K(\delta_j) , $$

with $s_c$ the standard deviation of the feature over all rows. It is as if ρ more points, one bandwidth off, or one
standard deviation where that is shorter, had said that the slope is 0. Beyond the data and in gaps $S_0$ goes to 0, and
the slope with it; where σ is far beyond a feature's range, it is ridge regression on standardised features. As Seifert
and Gasser do, the line is shrunk about the mean offset, and ρ is their ridge parameter over the bandwidth; theirs
grows with |o|, which changes little where points are many and nothing far away.

A second ridge, $\varepsilon \operatorname{diag}(\operatorname{E}\delta\delta^\top)$, has no unit and is far below
what data say, where they say anything. So far from all data that every weight is 0 in the dtype, which is 37 bandwidths
in float64 and 13 in float32, there is no line to see: there β = 0, and the answer is the mean under what the weights
are to each other. That goes to the nearest point's value.

Source: Seifert and Gasser 1996, Finite-sample variance of local polynomials; 2000, Data adaptive ridging in local
polynomial regression.
"""

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat.regression.factors import Factors
from dikkat.regression.joined import Array, Joined
from dikkat.regression.moments import LineMoments, Moments, Profile

RIDGE = 0.25
"""ρ where nothing is searched for: about Seifert and Gasser's rule, half a bandwidth from the mean offset."""
LARGEST = 1e30
"""A ridge that leaves nothing of a slope, and can be added and divided by in float32."""
_Found = TypeVar("_Found", Moments, LineMoments, Moments | LineMoments)


class Setting(NamedTuple):
    """A fit: the rows, the kernel and the settings.

    Attributes:
        joined: The training rows.
        profile: The kernel.
        degree: 0 for the constant order, 1 for the linear one.
        bandwidth: (d,), one for each coordinate.
        ridge: ρ of the linear order.
        device: Where to compute.
        factors: What bandwidths are multiplied with from place to place; None where they are everywhere the same.
    """

    joined: Joined
    profile: Profile
    degree: int
    bandwidth: Array
    ridge: float
    device: torch.device
    factors: Factors | None = None


class LocalFit(NamedTuple):
    """The local fits at n queries, with k = 1 for the constant order and 1 + d for the linear one.

    Attributes:
        row: (n, k), u: the estimate is Σ_j w_j (u·z_j) y_j.
        theta: (n, k, v), θ; the first is the estimate.
    """

    row: Tensor
    theta: Tensor

    @property
    def estimate(self) -> Tensor:
        """(n, v)."""
        return self.theta[:, 0]


class _Centred(NamedTuple):
    """Moments about the mean offset instead of the query.

    Attributes:
        offset: (n, d), o.
        second: (n, d), the diagonal of E δδᵀ, about the query.
        spread: (n, d, d), S.
        cross: (n, d, v), c.
        lse: (n,), log S_0.
    """

    offset: Tensor
    second: Tensor
    spread: Tensor
    cross: Tensor
    lse: Tensor

    @property
    def far(self) -> Tensor:
        """(n,), whether all weights are 0 in the dtype."""
        return is_far(self.lse)


def local_fit(found: Moments | LineMoments, ridge: Tensor) -> LocalFit:
    """The local constant from moments of degree 0, the local line from those of degree 1.

    Args:
        found: The moments.
        ridge: (p,) or (n, p), Λ S_0 of the first p of d coordinates, which have slopes; the constant needs none.
    """
    if isinstance(found, Moments):
        return LocalFit(torch.ones_like(found.lse)[:, None], found.value[:, None])
    slopes = ridge.shape[-1]
    centred = _centred(found, slopes)
    offset = centred.offset[..., None]
    solved = _solve(centred, torch.cat([centred.cross, offset], -1), ridge)
    slope, lean = solved[..., :-1], solved[..., -1]
    height = found.value - (slope * offset).sum(1)
    first = 1 + (centred.offset * lean).sum(1, keepdim=True)
    flat = found.spread.shape[1] - slopes
    row, theta = torch.cat([first, -lean], 1), torch.cat([height[:, None], slope], 1)
    return LocalFit(pad(row, (0, flat)), pad(theta, (0, 0, 0, flat)))


def without_unseen(found: _Found, joined: Joined, query: Tensor, bandwidth: Tensor, squared: bool = False) -> _Found:
    r"""Moments with S_0 as it is without those columns of which a query has a category that was not there.

    Such a category is at the same distance r from every row. That leaves the weights' shares as they are, but takes
    $r^2/2\sigma^2$ from log S_0, which is added to it again: otherwise the ridge would take the slopes for it.

    Args:
        found: The moments about the queries.
        joined: The rows.
        query: (n, d).
        bandwidth: (d,) or (n, d).
        squared: Whether they are under K².
    """
    return found._replace(lse=found.lse + (1 + squared) * lost_to_unseen(joined, query, bandwidth))


def lost_to_unseen(joined: Joined, query: Tensor, bandwidth: Tensor) -> Tensor:
    """The part of log S_0 that categories that were not there take, (n,)."""
    center, lost = torch.tensor(joined.center).to(query), query.new_zeros(len(query))
    for feature in range(joined.numbers, joined.features):
        own = torch.tensor(joined.feature == feature, device=query.device)
        far = (center[own] / bandwidth[..., own]).square().sum(-1) / 2  # from 0, which is the first category
        lost += torch.where(_at_center(query, center, own), far, 0.0)
    return lost


def has_unseen(joined: Joined, query: Tensor) -> Tensor:
    """True for queries with a category that was not there, (n,)."""
    center, found = torch.tensor(joined.center).to(query), query.new_zeros(len(query), dtype=torch.bool)
    for feature in range(joined.numbers, joined.features):
        found |= _at_center(query, center, torch.tensor(joined.feature == feature, device=query.device))
    return found


def _at_center(query: Tensor, center: Tensor, own: Tensor) -> Tensor:
    """True for queries whose category, with these coordinates, was not there, (n,)."""
    return (query[:, own] == center[own]).all(1)


def noise_share(found: LineMoments, squared: LineMoments, ridge: Tensor) -> Tensor:
    """The share of the noise of each y in the height of a local line: of variance s², its variance is s² ‖l‖².

    Args:
        found: The moments under K.
        squared: Those under K².
        ridge: (p,) or (n, p), Λ S_0.

    Returns:
        ‖l‖², (n,), with l the line's row of the smoother matrix.
    """
    share = (squared.lse - 2 * found.lse).exp()  # Σ_j w_j²
    centred, about = (_centred(each, ridge.shape[-1]) for each in (found, squared))
    lean = _solve(centred, centred.offset[..., None], ridge)
    shift = (about.offset - centred.offset)[..., None]  # the mean of δ − o under w², and next that of its square
    spread = about.spread + shift @ shift.mT
    return share * (1 + (lean * (spread @ lean - 2 * shift)).sum((1, 2)))


def _centred(found: LineMoments, slopes: int) -> _Centred:
    """The moments of the coordinates that have slopes, about their mean."""
    spread, offset = found.spread[:, :slopes, :slopes], found.offset[:, :slopes, None]
    return _Centred(
        offset[..., 0],
        spread.diagonal(dim1=1, dim2=2),
        spread - offset @ offset.mT,
        found.cross[:, :slopes] - offset * found.value[:, None],
        found.lse,
    )


def is_far(lse: Tensor) -> Tensor:
    """True where all weights are 0 in the dtype, and no slope is seen."""
    return lse < math.log(torch.finfo(lse.dtype).tiny)


def least_of(dtype: torch.dtype) -> float:
    """ε, the second ridge."""
    return 1e-10 if dtype == torch.float64 else 1e-5


def ridge_at(ridge: Tensor, lse: Tensor) -> Tensor:
    """Λ (n, p) from Λ S_0, (p,) or (n, p), and log S_0 (n,)."""
    return ridge * (-lse[:, None]).clamp(max=math.log(LARGEST)).exp()


def ridge_of(amount: Tensor, spread: Tensor, bandwidth: Tensor) -> Tensor:
    """Λ S_0, of the bandwidths' shape.

    Args:
        amount: ρ.
        spread: (p,), the numbers' standard deviations over all rows.
        bandwidth: (p,) or (n, p).
    """
    return amount / (1 + (bandwidth / spread).square())  # 0 of a constant feature, which has no slope


def _solve(centred: _Centred, right: Tensor, ridge: Tensor) -> Tensor:
    """(S + Λ)⁻¹ times (n, d, k), by features of second moment 1. There is no slope without spread, nor far away."""
    rounding = 32 * torch.finfo(right.dtype).eps * centred.second  # of a difference of squares, which S is
    flat = centred.spread.diagonal(dim1=1, dim2=2) <= rounding
    size = centred.second.masked_fill(flat, math.inf).sqrt()[..., None]
    added = ridge_at(ridge, centred.lse) / size[..., 0].square()
    system = centred.spread / size / size.mT + torch.diag_embed(least_of(right.dtype) + added.clamp(max=LARGEST))
    if system.shape[1] == 1:  # a call of LAPACK's for each query takes longer than all else
        return (right / size / system / size).masked_fill(centred.far[:, None, None], 0.0)
    factor = torch.linalg.cholesky_ex(system).L
    return (torch.cholesky_solve(right / size, factor) / size).masked_fill(centred.far[:, None, None], 0.0)
