"""Training rows with the rows at the same place joined, so that a repeated row and a weight of two are the same."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class Joined(NamedTuple):
    """The m distinct places of n rows, in the order of their coordinates.

    Attributes:
        x: (m, d), as given.
        y: (m, v), float64: the weighted mean of the values there, less `origin`.
        within: (m, v), float64: their weighted variance about that mean.
        weight: (m,), float64: the sum of the rows' weights, positive.
        origin: (v,), float64: the mean of a place that is nearest to 0 where all have one sign, and 0 otherwise. From
            there no value is larger than it came, so a large one elsewhere costs the small ones no digits; and what
            is common to all of them is gone.
        place: (n,) integers: where each row went; −1 for a row of weight 0.
    """

    x: Array
    y: Array
    within: Array
    weight: Array
    origin: Array
    place: NDArray[np.intp]

    def variance(self) -> float:
        """Of all values, the mean over the outputs."""
        about = self.y - np.average(self.y, axis=0, weights=self.weight)
        return float(np.average((about**2 + self.within).mean(1), weights=self.weight))


def join(x: Array, y: Array, weight: Array) -> Joined:
    """Rows x (n, d), values y (n, v) and weights (n,), at least one of them positive."""
    kept = np.flatnonzero(weight > 0)
    kept = kept[np.lexsort(x[kept].T[::-1])]
    ordered, values, counts = x[kept], y[kept].astype(np.float64), weight[kept].astype(np.float64)
    new = np.ones(len(kept), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    starts, label = np.flatnonzero(new), np.cumsum(new) - 1
    total = np.add.reduceat(counts, starts)

    def mean(of_rows: Array) -> Array:
        return np.add.reduceat(counts[:, None] * of_rows, starts) / total[:, None]

    first = values[starts]  # as the origin, so that equal values have that very mean
    means = first + mean(values - first[label])
    within = mean((values - means[label]) ** 2)
    origin = np.where(means.min(0) > 0, means.min(0), np.where(means.max(0) < 0, means.max(0), 0.0))
    place = np.full(len(x), -1, dtype=np.intp)
    place[kept] = label
    return Joined(ordered[starts], means - origin, within, total, origin, place)
