"""Training rows with the rows at the same place joined, so that a repeated row and a weight of two are the same."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

_FEW = 64  # points, which are near each other anyway


class Repeats(NamedTuple):
    """The k rows that share their places with rows of other values; rows equal in x and y are one of them.

    Attributes:
        place: (k,) integers, ascending.
        y: (k, v), as `Joined.y`.
        weight: (k,).
        out: (k,), how much of the weight is left out at a time: all of it, since copies of a row tell nothing new; but
            where its value occurs at other places too, as those of a discrete y do, the 1 of a single row.
    """

    place: NDArray[np.intp]
    y: Array
    weight: Array
    out: Array

    @property
    def times(self) -> Array:
        """(k,), how many rows each is, which are left out one by one."""
        found: Array = np.ceil(self.weight / self.out)
        return found

    def some(self, chosen: NDArray[np.bool_]) -> "Repeats":
        """Some of them."""
        return Repeats(self.place[chosen], self.y[chosen], self.weight[chosen], self.out[chosen])


class Joined(NamedTuple):
    """The m distinct places of n rows, in an order in which neighbours in space are mostly neighbours in memory.

    Attributes:
        x: (m, d), as given.
        y: (m, v), float64: the weighted mean of the values there, less `origin`.
        within: (m, v), float64: their weighted variance about that mean.
        weight: (m,), float64: the sum of the rows' weights, positive.
        origin: (v,), float64: the mean of a place that is nearest to 0 where all have one sign, and 0 otherwise. From
            there no value is larger than it was given, so a large one elsewhere costs the small ones no digits; and
            what is common to all of them is gone.
        place: (n,) integers: where each row went; −1 for a row of weight 0.
        repeats: The rows at places with several values.
        repeat: (n,) integers: which of `repeats` each row is; −1 for a row that is none.
        feature: (d,) integers, ascending from 0: the feature that each coordinate is of. A number is one coordinate; a
            category is several, which have one bandwidth (`dikkat.regression.coding`).
        numbers: How many features are numbers; they come first, and only they have slopes.
        center: (d,), where a category is that was not there; NaN of numbers and of categories with an order.
    """

    x: Array
    y: Array
    within: Array
    weight: Array
    origin: Array
    place: NDArray[np.intp]
    repeats: Repeats
    repeat: NDArray[np.intp]
    feature: NDArray[np.intp]
    numbers: int
    center: Array

    @property
    def features(self) -> int:
        """The number of features."""
        return int(self.feature[-1]) + 1

    @property
    def different(self) -> int:
        """The number of places that differ in their numbers."""
        return len(np.unique(self.x[:, : self.numbers], axis=0))

    def in_unit(self, unit: float) -> "Joined":
        """With values in another unit."""
        repeats = self.repeats._replace(y=self.repeats.y / unit)
        return self._replace(y=self.y / unit, within=self.within / unit**2, repeats=repeats)

    def variance(self) -> float:
        """The variance of all values, the mean over the outputs."""
        return float(self.variances().mean())

    def variances(self) -> Array:
        """(v,), of all values."""
        about = self.y - np.average(self.y, axis=0, weights=self.weight)
        found: Array = np.average(about**2 + self.within, axis=0, weights=self.weight)
        return found

    def spread(self) -> Array:
        """(d,), the coordinates' standard deviations, float64; of a constant one exactly 0."""
        x = self.x.astype(np.float64)
        unit = np.ptp(x, axis=0)
        about = (x - x[0]) / np.where(unit > 0, unit, 1)
        center = np.average(about, axis=0, weights=self.weight)
        found: Array = unit * np.sqrt(np.average((about - center) ** 2, axis=0, weights=self.weight))
        return found

    def some(self, chosen: NDArray[np.intp]) -> "Joined":
        """Some of the places alone, ascending, without the rows that went there."""
        x, y, within, weight = (array[chosen] for array in self[:4])
        none, kept = np.empty(0, np.intp), np.isin(self.repeats.place, chosen)
        repeats = self.repeats.some(kept)
        repeats = repeats._replace(place=np.searchsorted(chosen, repeats.place))
        return self._replace(x=x, y=y, within=within, weight=weight, place=none, repeats=repeats, repeat=none)

    def counts(self) -> Array:
        """(m,), how many rows there are at each place that are left out one by one."""
        found = np.bincount(self.repeats.place, self.repeats.times, len(self.x))
        return np.maximum(found, 1)

    def rows(self) -> Repeats:
        """All rows: those that are alone at their places, and then those that share them."""
        alone = np.setdiff1d(np.arange(len(self.x)), self.repeats.place)
        weight, shared = self.weight[alone], self.repeats
        return Repeats(
            np.concatenate([alone, shared.place]),
            np.concatenate([self.y[alone], shared.y]),
            np.concatenate([weight, shared.weight]),
            np.concatenate([weight, shared.out]),
        )

    def of(self, place: NDArray[np.intp], y: Array, weight: Array) -> "Joined":
        """Rows at some of the places, of values less `origin`, from which theirs are taken too."""
        made = join(self.x[place], y, weight, self.feature, self.numbers, self.center)
        return made._replace(origin=made.origin + self.origin)


def join(
    x: Array,
    y: Array,
    weight: Array,
    feature: NDArray[np.intp] | None = None,
    numbers: int | None = None,
    center: Array | None = None,
) -> Joined:
    """Rows x (n, d), values y (n, v) and weights (n,), at least one of them positive; all numbers by default."""
    if feature is None:
        feature = np.arange(x.shape[1])
    kept = np.flatnonzero(weight > 0)
    kept = kept[np.lexsort(x[kept].T[::-1])]
    new = _differs(x[kept])
    if not new.all():
        kept = kept[np.lexsort(np.hstack([x[kept], y[kept]]).T[::-1])]
    ordered, values, counts = x[kept], y[kept].astype(np.float64), weight[kept].astype(np.float64)
    starts, label = np.flatnonzero(new), np.cumsum(new) - 1
    total = np.add.reduceat(counts, starts)

    def mean(of_rows: Array) -> Array:
        return np.add.reduceat(counts[:, None] * of_rows, starts) / total[:, None]

    first = values[starts]  # as the origin, so that equal values have that very mean
    means = first + mean(values - first[label])
    within = mean((values - means[label]) ** 2)
    origin = np.where(means.min(0) > 0, means.min(0), np.where(means.max(0) < 0, means.max(0), 0.0))
    order = spatial_order(ordered[starts])
    place, repeat, places = np.full(len(x), -1, np.intp), np.full(len(x), -1, np.intp), np.argsort(order)[label]
    place[kept] = places
    repeats, repeat[kept] = _repeats(places, values - origin, counts, new)
    return Joined(
        ordered[starts[order]],
        means[order] - origin,
        within[order],
        total[order],
        origin,
        place,
        repeats,
        repeat,
        feature,
        len(feature) if numbers is None else numbers,
        np.full(x.shape[1], np.nan, x.dtype) if center is None else center,
    )


def _differs(rows: Array) -> NDArray[np.bool_]:
    """(n,): which of ordered rows differ from the one before."""
    found = np.ones(len(rows), bool)
    found[1:] = (rows[1:] != rows[:-1]).any(1)
    return found


def _repeats(
    place: NDArray[np.intp], y: Array, weight: Array, new: NDArray[np.bool_]
) -> tuple[Repeats, NDArray[np.intp]]:
    """The rows at places with several values, and which of these each of the ordered rows is, (n,)."""
    first = new | _differs(y)
    starts = np.flatnonzero(first)
    own, total = place[starts], np.add.reduceat(weight, starts)
    shared, out = (np.bincount(own) > 1)[own], total
    if shared.any():
        _, value, times = np.unique(y[starts], axis=0, return_inverse=True, return_counts=True)
        out = np.where(times[value.ravel()] > 1, np.minimum(total, 1), total)
    order = np.flatnonzero(shared)[np.argsort(own[shared], kind="stable")]
    found = np.full(len(starts), -1, np.intp)
    found[order] = np.arange(len(order))
    return Repeats(own[order], y[starts[order]], total[order], out[order]), found[np.cumsum(first) - 1]


def spatial_order(points: Array) -> NDArray[np.intp]:
    """An order of points (m, d) in which neighbours are mostly near each other: that of a k-d tree's leaves.

    Along one feature they are sorted.
    """
    from scipy.spatial import cKDTree

    if points.shape[1] == 1:
        return points[:, 0].argsort(kind="stable")
    if len(points) <= _FEW:
        return np.arange(len(points))
    size = points.std(0)
    scaled = points / np.where(size > 0, size, 1)
    return np.asarray(cKDTree(scaled, leafsize=_FEW, compact_nodes=False).indices)
