r"""The plane through all rows, to whose slopes local lines are drawn.

With z the coordinates less their means, in standard deviations (those of a category over the root of the sum of their
variances), $v_g$ the shares of unique rows in the weight and $C = \sum_g v_g z_g z_g^\top$, the slopes are those of
ridge regression,

$$ b = (C + \lambda)^{-1} \sum_g v_g z_g (\bar y_g - \bar y), \qquad
b_{-g} = b - (C + \lambda)^{-1} z_g\, v_g\, e_g, \qquad
e_g = \frac{\bar y_g - \bar y - z_g^\top b}{1 - v_g (1 + z_g^\top (C + \lambda)^{-1} z_g)} , $$

the latter without the rows at g, whose error is then $e_g$; λ is the power of ten from −6 to 3, or ∞, of which the mean
square of these is least. The plane is that of the numbers, or where the least is smaller that of all coordinates, in
which a category has a step for each of its levels.

Source: Hastie, Tibshirani and Friedman 2009, sections 3.4.1 and 7.10.
"""

from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.regression.joined import Array, Joined

AMOUNTS = (np.inf, *10.0 ** np.arange(3, -7, -1))  # the first of equals, where there is nothing to tell


class Trend(NamedTuple):
    """The slopes of a plane, by p coordinates: the numbers, or all.

    Attributes:
        slope: (p, v), over a standard deviation.
        row: (m, p), how each unique row's y goes into them, λ held.
        without: (m, p, v), those without each unique row.
        spread: (p,), the standard deviations; 1 of a constant.
        center: (p,), the means.
        gain: (p, p), (C + λ)⁻¹ over the sum of the weights.
    """

    slope: Tensor
    row: Tensor
    without: Tensor
    spread: Tensor
    center: Tensor
    gain: Tensor

    def over(self, bandwidth: Tensor, slope: Tensor | None = None) -> Tensor:
        """The slopes over bandwidths (d,) or (n, d): (p, v) or (n, p, v)."""
        slope = self.slope if slope is None else slope
        return slope.to(bandwidth) * (bandwidth[..., : len(self.spread)] / self.spread.to(bandwidth))[..., None]


def trend(joined: Joined) -> Trend:
    """The plane through joined rows."""
    # A category has one unit: the plane hangs on how far its levels are apart, and not on their order.
    spread, largest = joined.spread(), np.zeros(joined.feature.max() + 1)
    np.maximum.at(largest, joined.feature, spread)
    largest = np.where(largest > 0, largest, 1.0)[joined.feature]  # whose square may be no number
    unit = largest * np.sqrt(np.bincount(joined.feature, (spread / largest) ** 2))[joined.feature]
    unit, share = np.where(unit > 0, unit, 1.0), joined.weight / joined.weight.sum()
    scaled = (joined.x.astype(np.float64) - joined.x[0]) / unit
    scaled, about = scaled - share @ scaled, joined.y - share @ joined.y
    planes = [_plane(scaled[:, :size], about, share) for size in dict.fromkeys([joined.numbers, len(unit)])]
    _, slope, row, without, inverse = min(planes, key=itemgetter(0))
    size, center = len(slope), share @ joined.x.astype(np.float64)
    gain = inverse / joined.weight.sum()
    return Trend(*map(torch.from_numpy, (slope, row, without, unit[:size], center[:size], gain)))


def _plane(scaled: Array, about: Array, share: Array) -> tuple[float, Array, Array, Array, Array]:
    """The least mean square; its plane's slopes, what each row has in them, those without each row, and (C + λ)⁻¹."""
    values, basis = np.linalg.eigh((share[:, None] * scaled).T @ scaled)
    turned, cross = scaled @ basis, basis.T @ (scaled.T @ (share[:, None] * about))
    best, by, left = np.inf, np.zeros_like(values), about
    for amount in AMOUNTS if len(about) > 1 else ():
        held = 1 / (values.clip(0) + amount)
        own = 1 - share * (1 + turned**2 @ held)
        errors = (about - turned @ (held[:, None] * cross)) / own.clip(1e-9)[:, None]
        if (error := float(share @ (errors**2).mean(1))) < best:
            best, by, left = error, held, errors
    slope, row = (basis * by) @ cross, share[:, None] * ((turned * by) @ basis.T)
    return best, slope, row, slope - row[..., None] * left[:, None], (basis * by) @ basis.T
