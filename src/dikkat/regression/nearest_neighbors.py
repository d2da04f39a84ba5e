r"""Nearest-neighbour bandwidths: windows that are wider where rows are sparse.

With $r_k(x)$ the distance of x from its k-th nearest row, in standard deviations of the numbers, the bandwidths at x
are σ times

$$ f(x) = \min(r_k(x), \max_j r_k(x_j)) / g, \quad \log g = \frac{1}{\sum_j w_j} \sum_j w_j \log r_k(x_j) , $$

so that σ is that of a typical row, in the units of X, and no window is wider than the widest at a row: what is far
beyond the data stays far. Rows with the same numbers count as one. A row that is left out is no neighbour of its own;
g and the maximum are made of such distances. Widths of categories stay as they are.

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

_FAR = 1e150  # standard deviations, whose squares are numbers, as are those of its inverse
_AT_ONCE = 2**20  # neighbours that a tree looks for before Ctrl-C is heard, within a second


class Factors:
    """Multipliers of the bandwidths, from distances to nearest neighbours."""

    def __init__(self, joined: Joined, count: int) -> None:
        self.count, self._joined = count, joined
        self._spread = joined.spread()[: joined.numbers]
        self._origin = joined.x[0, : joined.numbers].astype(np.float64)
        self._rows = np.unique(self._scaled(joined.x), axis=0)

    def at(self, query: Array) -> Array:
        """The factors at queries (n, d), one for each coordinate: (n, d)."""
        return self._each(self._near(query, 0)[0].clip(max=self._widest) / self._typical)

    def left_out(self, joined: Joined) -> Array:
        """The factors at the rows, (m, d): without the row itself, where it alone has its numbers."""
        _, same = np.unique(joined.x[:, : joined.numbers], axis=0, return_inverse=True)
        alone = np.bincount(same.ravel(), joined.counts())[same.ravel()] == 1
        return np.where(alone[:, None], self._each(self._near(joined.x, 1)[0] / self._typical), self.at(joined.x))

    def slope(self, query: Array) -> Array:
        """∂ log f/∂x of the numbers, (n, p)."""
        distance, nearest = self._near(query, 0)
        away = (self._scaled(query) - self._rows[nearest]) / distance[:, None] / distance[:, None]
        away[distance >= self._widest] = 0.0
        return self._over_spread(away)

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self._rows)

    @cached_property
    def _typical(self) -> float:
        """g, the geometric mean of the distances of rows."""
        return float(np.exp(np.average(np.log(self._between), weights=self._joined.weight)))

    @cached_property
    def _widest(self) -> float:
        return float(self._between.max())

    @cached_property
    def _between(self) -> Array:
        return self._near(self._joined.x, 1)[0]

    def _near(self, query: Array, skipped: int) -> tuple[Array, NDArray[np.intp]]:
        """Distance and index of the k-th nearest row, after `skipped` ones, (n,) each; 1 where there is but one row."""
        if len(self._rows) == 1:
            return np.ones(len(query)), np.zeros(len(query), np.intp)
        scaled, count = self._scaled(query), min(self.count + skipped, len(self._rows))
        if scaled.shape[1] == 1:
            return _near_on_line(scaled[:, 0], self._rows[:, 0], count)
        distance, index = np.empty(len(query)), np.empty(len(query), np.intp)
        size = max(1, _AT_ONCE // count)
        for start in range(0, len(query), size):
            part = slice(start, start + size)
            result = self._tree.query(scaled[part], [count], workers=-1)
            distance[part], index[part] = (each[:, 0] for each in result)
        return distance.clip(1 / _FAR), index

    def _scaled(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            result = self._over_spread(x[:, : self._joined.numbers].astype(np.float64) - self._origin)
        return np.clip(result, -_FAR, _FAR)

    def _over_spread(self, x: Array) -> Array:
        """Numbers in standard deviations; 0 of a constant column."""
        return np.divide(x, self._spread, out=np.zeros_like(x), where=self._spread > 0)

    def _each(self, factor: Array) -> Array:
        result = np.ones((len(factor), self._joined.x.shape[1]))
        result[:, : self._joined.numbers] = factor[:, None]
        return result


def _near_on_line(query: Array, rows: Array, count: int) -> tuple[Array, NDArray[np.intp]]:
    """Distance and index of the k-th nearest of sorted rows: in the run of k whose farther end is nearest."""
    last = len(rows) - count
    middle = (rows[: last + 1] + rows[count - 1 :]) / 2
    after = np.searchsorted(middle, query)
    starts = np.stack([after - 1, after]).clip(0, last)
    ends = np.stack([starts, starts + count - 1])  # (left or right, window, query)
    distance = np.abs(rows[ends] - query)
    window, each = distance.max(0).argmin(0), np.arange(len(query))
    side = distance[:, window, each].argmax(0)
    return distance[side, window, each], ends[side, window, each]


def local_bandwidth(bandwidth: Tensor, factors: Factors, query: Tensor) -> Tensor:
    """The bandwidths at each query (n, d), positive and finite in their dtype."""
    limits = torch.finfo(bandwidth.dtype)
    return (bandwidth * torch.from_numpy(factors.at(query.numpy())).to(bandwidth)).clamp(limits.tiny, limits.max)
