r"""Nearest-neighbour bandwidths: windows that are wider where rows are sparse.

With $r_k(x)$ the distance of x from its k-th nearest place, in standard deviations of the numbers, the bandwidths at x
are σ times

$$ f(x) = r_k(x) / g, \qquad \log g = \frac{1}{\sum_j w_j} \sum_j w_j \log r_k(x_j) , $$

so that σ is that of a typical row, in the units of X. Rows with the same numbers are one place. A row that is left out
is no neighbour of its own; g is made of such distances. Widths of categories stay as they are.

Source: Loftsgaarden and Quesenberry 1965; Mack and Rosenblatt 1979, Multivariate k-nearest neighbor density estimates;
the geometric mean: Silverman 1986, section 5.3, of local bandwidth factors.
"""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from dikkat.regression.joined import Array, Joined

_FAR = 1e150  # standard deviations, whose squares are numbers


class Factors:
    """What bandwidths are multiplied with.

    Args:
        joined: The training rows.
        count: k, at least 2, since a query may be where a row is; of fewer places the farthest counts.
    """

    def __init__(self, joined: Joined, count: int) -> None:
        self.count, self._joined = count, joined
        spread, self._origin = (each[: joined.numbers] for each in (joined.spread(), joined.first))
        self._scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        self._places = np.unique(self._scaled(joined.x), axis=0)
        self._tree = cKDTree(self._places)

    def at(self, query: Array) -> Array:
        """Of queries (n, d), for each coordinate: (n, d)."""
        return self._each(self._near(query, 0)[0] / self._typical)

    def left_out(self, query: Array) -> Array:
        """Likewise at places of the rows, without themselves."""
        return self._each(self._near(query, 1)[0] / self._typical)

    def slope(self, query: Array) -> Array:
        """∂ log f/∂x of the numbers, (n, p)."""
        distance, place = self._near(query, 0)
        away: Array = (self._scaled(query) - self._places[place]) / distance[:, None]
        return away / distance[:, None] * self._scale

    @cached_property
    def _typical(self) -> float:
        """g."""
        apart, _ = self._near(self._joined.x, 1)
        return float(np.exp(np.average(np.log(apart), weights=self._joined.weight)))

    def _near(self, query: Array, skipped: int) -> tuple[Array, NDArray[np.intp]]:
        """How far the k-th nearest is, but for so many, and which it is, (n,) each; of one place alone 1."""
        if len(self._places) == 1:
            return np.ones(len(query)), np.zeros(len(query), np.intp)
        distance, place = self._tree.query(self._scaled(query), [min(self.count + skipped, len(self._places))])
        return distance[:, 0], place[:, 0]

    def _scaled(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            found: Array = (x[:, : self._joined.numbers].astype(np.float64) - self._origin) * self._scale
        return np.clip(found, -_FAR, _FAR)

    def _each(self, factor: Array) -> Array:
        found = np.ones((len(factor), self._joined.x.shape[1]))
        found[:, : self._joined.numbers] = factor[:, None]
        return found


def factors_of(joined: Joined, count: int | None) -> Factors | None:
    """Those of k neighbours; None for bandwidths that are everywhere the same."""
    return None if count is None else Factors(joined, count)


def local_bandwidth(bandwidth: Tensor, factors: Factors | None, query: Tensor) -> Tensor:
    """The bandwidths (d,), or with factors those at each query (n, d), positive and finite in their dtype."""
    if factors is None:
        return bandwidth
    limits = torch.finfo(bandwidth.dtype)
    return (bandwidth * torch.from_numpy(factors.at(query.cpu().numpy())).to(bandwidth)).clamp(limits.tiny, limits.max)
