r"""Training rows as they are computed with: categories as coordinates, and rows with equal coordinates joined.

**Categories** become coordinates such that their kernels are factors of a Gaussian's weights. With Aitchison and
Aitken's kernel a row of another of c categories weighs $\lambda/((c - 1)(1 - \lambda))$ of what one of the same does,
with Li and Racine's for ordered ones a row k steps off $\lambda^k$. Both are $e^{-\beta k}$, with k the number of
steps, which is 1 between any two categories without order:

$$ e^{-\beta} = \frac{\lambda}{(c - 1)(1 - \lambda)} \quad\text{or}\quad e^{-\beta} = \lambda . $$

Points with these k as their squared distances are the corners of a regular simplex in c − 1 dimensions, and the
corners (0, 0, …), (1, 0, …), (1, 1, …), … of a cube. So the product of the kernels is a Gaussian of the numbers and
these coordinates, all of one category with the bandwidth $\sigma = (2\beta)^{-1/2}$: every sum, criterion and gradient
is that of numbers. λ = 0 is taken as $e^{-\beta}$ = 0 in float64, and the largest λ, (c − 1)/c or 1, as σ = 10⁶, where
a category counts for nothing.

A **periodic** number x of the period p lies on a circle of the diameter 1, at the angle 2πx/p: there a bandwidth σ is
$\sigma\pi/p$, so that near numbers are as far apart as they are in the units of x.

A category that was not there is the centre of the simplex: as far from every row, so it says nothing of the shares; how
far that is is given back to their sum (`dikkat.regression.local.without_unseen`). A number between two ordered levels
lies on the edge between their corners, and weighs both by its share of the step.

**Joined** rows have equal coordinates: so a repeated row and a weight of two are the same.

Source: Aitchison and Aitken 1976; Racine and Li 2004; Li and Racine 2007, chapter 4.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dikkat.regression.columns import Column
from dikkat.regression.moments.launch import spatial_order

Array = NDArray[np.floating]

WIDEST, NARROWEST = 1e6, 1 / 50
"""σ over the distance of two categories at which they count alike, and at which the other one does not count."""

_CELL = 5  # rows at a place, on average, from which they are cells of a table and no copies


class Coding:
    """The coordinates of the columns of X, of which there are `size`; `columns` and `metric` are as of `Rows`."""

    def __init__(self, columns: Sequence[Column], size: int, metric: Array | None = None) -> None:
        self.coded = [j for j in range(len(columns)) if columns[j].coded]
        self._plain, self._metric = [j for j in range(size) if j not in self.coded], metric
        self._columns = [columns[j] for j in self.coded]
        self._standing = [next(iter(each.levels), 0.0) if not each.coded else 0.0 for each in columns]
        self.numbers = len(self._plain) if metric is None else metric.shape[1]  # numbers, or directions
        features = self.numbers + len(self.coded)
        # The columns in the order of their coordinates, numbers or directions first; and of each coordinate its place.
        self.order = np.array(self._plain + self.coded if metric is None else range(features), np.intp)
        sizes = [2 if each.kind == "periodic" else max(1, len(each.levels) - 1) for each in self._columns]
        self.feature: NDArray[np.intp] = np.repeat(np.arange(features), [1] * self.numbers + sizes)

    def coordinates(self, x: Array) -> Array:
        """The coordinates of rows (n, d), from `dikkat.regression.columns.encoded`."""
        if (lost := np.isnan(x)).any():  # cells that were never missing in fit
            x = np.where(lost, self._standing, x).astype(x.dtype)
        if not self._columns and self._metric is None:
            return x
        numbers = x[:, self._plain] if self._metric is None else x[:, self._plain].astype(np.float64) @ self._metric
        parts = [_points(column, x[:, j]) for j, column in zip(self.coded, self._columns, strict=True)]
        return np.ascontiguousarray(np.hstack([numbers, *parts]), x.dtype)

    def center(self) -> Array:
        """(coordinates,), where a category is that was not there; NaN of numbers and of categories with an order."""
        parts = [np.full(self.numbers, np.nan)]
        for column in self._columns:
            point = _points(column, np.array([-1.0]))[0]
            parts.append(point if column.kind == "category" else np.full_like(point, np.nan))
        return np.concatenate(parts)

    def widths(self, bandwidth: Array) -> Array:
        """σ of each feature, in the order of the coordinates, from bandwidths (d,), of categories λ."""
        sigma = bandwidth[self.order].astype(np.float64)
        for c, column in enumerate(self._columns, start=self.numbers):
            if column.kind == "periodic":
                sigma[c] = np.clip(sigma[c] * np.pi / float(column.levels[0]), NARROWEST, WIDEST)
                continue
            least, count = sigma[c], len(column.levels)
            with np.errstate(divide="ignore"):
                if column.kind == "category":
                    least = np.divide(least, (count - 1) * (1 - least)) if count > 1 else 1.0
                beta = -np.log(least)
                sigma[c] = np.clip(np.divide(1, np.sqrt(2 * abs(max(beta, 0.0)))), NARROWEST, WIDEST)
        return sigma

    def bandwidths(self, widths: Array) -> Array:
        """(d,), in the order of X: σ of numbers and λ of categories, from what `widths` gives."""
        result = np.array(widths, np.float64)
        for c, column in enumerate(self._columns, start=self.numbers):
            if column.kind == "periodic":
                result[c] *= float(column.levels[0]) / np.pi
                continue
            weight, others = np.exp(-1 / (2 * result[c] ** 2)), len(column.levels) - 1
            if result[c] >= WIDEST * (1 - 1e-9):
                result[c] = largest(column)
            else:
                result[c] = others * weight / (1 + others * weight) if column.kind == "category" else weight
        bandwidth = np.empty_like(result)
        bandwidth[self.order] = result
        return bandwidth


def largest(column: Column) -> float:
    """The largest λ, where a category counts for nothing."""
    return 1.0 if column.kind == "ordered" else (len(column.levels) - 1) / len(column.levels)


def _points(column: Column, levels: Array) -> Array:
    """(n, coordinates) of one category, from the indices of its levels."""
    count = max(1, len(column.levels) - 1)
    if column.kind == "periodic":
        angle = levels.astype(np.float64) * (2 * np.pi / float(column.levels[0]))
        return np.column_stack([np.cos(angle), np.sin(angle)]) / 2
    if column.kind == "ordered":
        return np.asarray(np.clip(levels[:, None] - np.arange(count), 0.0, 1.0))
    corners = np.zeros((count + 1, count))
    corners[1:] = np.linalg.cholesky((np.eye(count) + 1) / 2)  # whose products are those of a simplex about its first
    center = corners[: len(column.levels)].mean(0) if len(column.levels) > 1 else corners[1]  # unlike the only one
    return np.asarray(np.vstack([corners, center])[levels.astype(np.intp)])


class Rows(NamedTuple):
    """Training rows, checked."""

    x: Array  # (n, d), numbers; of a category the indices of its levels
    y: Array  # (n,) or (n, outputs), float64
    weight: Array  # (n,)
    columns: tuple[Column, ...]  # what each column is; nothing where all are numbers
    metric: Array | None = None  # (numbers, k), along which numbers are compared; None for the columns themselves
    folds: NDArray[np.int8] | None = None  # (folds, n), whether a row is learned from or tested (`folds`)
    weights: str = "repeats"  # or "precision": the variance of a row's error is one over its weight

    def take(self, chosen: NDArray[np.intp]) -> "Rows":
        """Some of the rows, with all that is known of them."""
        folds = None if self.folds is None else self.folds[:, chosen]
        return self._replace(x=self.x[chosen], y=self.y[chosen], weight=self.weight[chosen], folds=folds)

    @property
    def unit(self) -> float:
        """The weight of a row that counts as one: the mean of precisions, else 1."""
        precise = self.weights == "precision"
        return float(self.weight[self.weight > 0].mean(dtype=np.float64)) if precise else 1.0

    @property
    def coding(self) -> "Coding":
        """The coordinates of the columns."""
        return Coding(self.columns, self.x.shape[1], self.metric)

    def joined(self, unit: float | None = None) -> "Joined":
        """Join rows with equal coordinates; a row of weight `unit`, by default that of these rows, counts as one."""
        coding, y = self.coding, self.y.reshape(len(self.y), -1)
        x = coding.coordinates(self.x)
        weight, precise = self.weight / (unit or self.unit), self.weights == "precision"
        return join(x, y, weight, coding.feature, coding.numbers, coding.center().astype(x.dtype), precise)


class Repeats(NamedTuple):
    """The k rows that share their coordinates with rows that are others; rows equal in x and y are one of them."""

    unique: NDArray[np.intp]  # (k,), ascending: the unique row that each belongs to
    y: Array  # (k, v), as `Joined.y`
    weight: Array  # (k,)
    # (k,), how much of the weight is left out at a time: all of it, since copies of a row tell nothing new; but where
    # its value occurs elsewhere too, as those of a discrete y do, the 1 of a single row. So it is as well of a place
    # with one value, where rows are in cells: five and more at a place, on average.
    out: Array

    @property
    def times(self) -> Array:
        """(k,), how many rows each stands for that are left out one by one."""
        return np.asarray(np.ceil(self.weight / self.out))


class Joined(NamedTuple):
    """The m unique rows of n, in an order in which neighbours in space are mostly neighbours in memory."""

    x: Array  # (m, d), as given
    y: Array  # (m, v), float64: the weighted mean of their values, less `origin`
    within: Array  # (m, v), float64: their weighted variance about that mean
    weight: Array  # (m,), float64: the sum of the rows' weights, positive
    # (v,), float64: the mean nearest to 0 where all means have one sign, and 0 otherwise. Less it no value is larger
    # than it was given, so a large one elsewhere costs the small ones no digits; and what is common to all is gone.
    origin: Array
    inverse: NDArray[np.intp]  # (n,), the unique row of each row; −1 for a row of weight 0
    repeats: Repeats  # the rows of unique rows with several values
    repeat: NDArray[np.intp]  # (n,), which of `repeats` each row is; −1 for a row that is none
    feature: NDArray[np.intp]  # (d,), ascending from 0: the feature of each coordinate; a category has several
    numbers: int  # how many features are numbers; they come first, and only they have slopes
    center: Array  # (d,), where a category is that was not there; NaN of numbers and of categories with an order
    precise: bool = False  # whether weights are precisions, of rows that count once each

    @property
    def features(self) -> int:
        """The number of features."""
        return int(self.feature[-1]) + 1

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
        return np.asarray(np.average(about**2 + self.within, axis=0, weights=self.weight))

    def spread(self) -> Array:
        """(d,), the coordinates' standard deviations, float64; of a constant one exactly 0."""
        x = self.x.astype(np.float64)
        unit = np.ptp(x, axis=0)
        about = (x - x[0]) / np.where(unit > 0, unit, 1)
        center = np.average(about, axis=0, weights=self.weight)
        return np.asarray(unit * np.sqrt(np.average((about - center) ** 2, axis=0, weights=self.weight)))

    def take(self, chosen: NDArray[np.intp]) -> "Joined":
        """Some of the unique rows alone, ascending, without the rows that they were made of."""
        x, y, within, weight = (array[chosen] for array in self[:4])
        none, kept = np.empty(0, np.intp), np.isin(self.repeats.unique, chosen)
        own, *others = self.repeats
        repeats = Repeats(np.searchsorted(chosen, own[kept]), *(array[kept] for array in others))
        return self._replace(x=x, y=y, within=within, weight=weight, inverse=none, repeats=repeats, repeat=none)

    def counts(self) -> Array:
        """(m,), how many rows each stands for that are left out one by one."""
        return np.maximum(np.bincount(self.repeats.unique, self.repeats.times, len(self.x)), 1)

    def rows(self) -> Repeats:
        """All rows: those with coordinates of their own, and then those that share them."""
        alone = np.setdiff1d(np.arange(len(self.x)), self.repeats.unique)
        own = Repeats(alone, self.y[alone], self.weight[alone], self.weight[alone])
        both: list[Any] = [np.concatenate(each) for each in zip(own, self.repeats, strict=True)]
        return Repeats(*both)

    def folds(self, count: int, random_state: object = 0) -> NDArray[np.intp]:
        """The fold of each row, (n,), at random, in an order that does not look at y; −1 for a row of weight 0.

        Copies of a row, which a search leaves out together, are in one fold. Of fewer rows than folds each is one.
        """
        there = np.flatnonzero(self.inverse >= 0)
        unique, repeat = self.inverse[there], self.repeat[there]
        copies = np.append(self.repeats.out == self.repeats.weight, True)[repeat]
        own = np.where(repeat < 0, unique, len(self.x) + repeat)
        own = np.where(copies, own, len(self.x) + len(self.repeats.y) + np.arange(len(there)))
        _, first, label = np.unique(own, return_index=True, return_inverse=True)
        label = np.argsort(np.argsort(first))[label]  # in the order of the rows
        seed = int(check_random_state(random_state).randint(2**31))
        # By X too: rows may be sorted by y, and one draw for all would always hold out the same ranks.
        random = np.random.default_rng([seed, zlib.crc32(np.sort(np.abs(self.x), axis=None).tobytes())])
        result = np.full(len(self.inverse), -1, np.intp)
        result[there] = (random.permutation(len(first)) % min(count, len(first)))[label]
        return result


def join(
    x: Array, y: Array, weight: Array, feature: NDArray[np.intp] | None = None, numbers: int | None = None,
    center: Array | None = None, precise: bool = False,
) -> Joined:  # fmt: skip
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
    inverse, repeat, unique = np.full(len(x), -1, np.intp), np.full(len(x), -1, np.intp), np.argsort(order)[label]
    inverse[kept] = unique
    repeats, repeat[kept] = _repeats(unique, values - origin, counts, new, precise)
    numbers = len(feature) if numbers is None else numbers
    center = np.full(x.shape[1], np.nan, x.dtype) if center is None else center
    means, within = means[order] - origin, within[order]
    return Joined(
        ordered[starts[order]], means, within, total[order], origin, inverse, repeats, repeat, feature, numbers, center,
        precise,
    )  # fmt: skip


def _differs(rows: Array) -> NDArray[np.bool_]:
    """(n,): which of ordered rows differ from the one before."""
    return np.append(True, (rows[1:] != rows[:-1]).any(1))


def _repeats(
    unique: NDArray[np.intp], y: Array, weight: Array, new: NDArray[np.bool_], precise: bool
) -> tuple[Repeats, NDArray[np.intp]]:
    """The repeats, and which of these each of the ordered rows is, (n,)."""
    first = new | _differs(y)
    starts = np.flatnonzero(first)
    own, total = unique[starts], np.add.reduceat(weight, starts)
    shared, out, counts = (np.bincount(own) > 1)[own], total, np.diff(np.append(starts, len(y)))
    alike, in_cells = bool((y == y[0]).all()), len(y) >= _CELL * np.count_nonzero(new)
    if not precise and (shared.any() or alike or in_cells):
        _, value, times = np.unique(y[starts], axis=0, return_inverse=True, return_counts=True)
        discrete = times[value.ravel()] > 1
        out = np.where(discrete, np.minimum(total, 1), total)
        if alike or in_cells:  # a row of a large weight is one row
            out, shared = np.where(discrete & ~shared, total / counts, out), shared | (discrete & (counts > 1))
    order = np.flatnonzero(shared)[np.argsort(own[shared], kind="stable")]
    result = np.full(len(starts), -1, np.intp)
    result[order] = np.arange(len(order))
    return Repeats(own[order], y[starts[order]], total[order], out[order]), result[np.cumsum(first) - 1]
