r"""Training rows for the computations: categories as coordinates, and rows with equal coordinates joined.

**Categories** become coordinates such that their kernels are factors of a Gaussian's weights. Relative to a row of the
same category, a row of another of c categories has the weight $\lambda/((c - 1)(1 - \lambda))$ (Aitchison and Aitken),
and a row k ordered levels away $\lambda^k$ (Li and Racine). Both are $e^{-\beta k}$, with k the number of steps (1
between any two unordered categories):

$$ e^{-\beta} = \frac{\lambda}{(c - 1)(1 - \lambda)} \quad\text{or}\quad e^{-\beta} = \lambda . $$

Points with these k as their squared distances are the corners of a regular simplex in c − 1 dimensions, and the
corners (0, 0, …), (1, 0, …), (1, 1, …), … of a cube. So the product of the kernels is a Gaussian of the numbers and
these coordinates, with the bandwidth $\sigma = (2\beta)^{-1/2}$ for a category: sums, criteria and gradients need no
other formula. λ = 0 becomes σ = 1/50, for which $e^{-\beta}$ is 0 in float64. The largest λ, (c − 1)/c or 1, becomes
σ = 10⁶: the category has no influence.

A **periodic** number x of the period p is a point on a circle of diameter 1, at the angle 2πx/p. Its bandwidth there is
$\sigma\pi/p$, so that distances of near numbers have the scale of x.

A category that was not in fit is the centre of the simplex, equally far from every row, so shares do not depend on it.
`dikkat.regression.local.without_unseen` corrects their sum for that distance. A number between two ordered levels is a
point on the edge between their corners.

**Joined** rows have equal coordinates, so a repeated row equals a row of weight two.

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
"""The σ at which a category has no influence, and the σ at which only rows of the same category count."""

_CELL = 5  # mean rows per unique X from which X is a table of cells and repeated rows are no copies


class Coding:
    """The coordinates of the `size` columns of X; `columns` and `metric` are fields of `Rows`."""

    def __init__(self, columns: Sequence[Column], size: int, metric: Array | None = None) -> None:
        self.coded = [j for j in range(len(columns)) if columns[j].coded]
        self._numeric, self._metric = [j for j in range(size) if j not in self.coded], metric
        self._columns = [columns[j] for j in self.coded]
        self._fill_values = [next(iter(column.levels), 0.0) if not column.coded else 0.0 for column in columns]
        self.numbers = len(self._numeric) if metric is None else metric.shape[1]  # numbers, or directions
        features = self.numbers + len(self.coded)
        # The columns in the order of the coordinates (numbers or directions first), and the feature of each coordinate.
        self.order = np.array(self._numeric + self.coded if metric is None else range(features), np.intp)
        sizes = [2 if column.kind == "periodic" else max(1, len(column.levels) - 1) for column in self._columns]
        self.feature: NDArray[np.intp] = np.repeat(np.arange(features), [1] * self.numbers + sizes)

    def coordinates(self, x: Array) -> Array:
        """Return the coordinates (n, coordinates) of rows (n, d) from `dikkat.regression.columns.encoded`."""
        if (missing_cells := np.isnan(x)).any():  # cells that were never missing in fit
            x = np.where(missing_cells, self._fill_values, x).astype(x.dtype)
        if not self._columns and self._metric is None:
            return x
        numbers = x[:, self._numeric] if self._metric is None else x[:, self._numeric].astype(np.float64) @ self._metric
        blocks = [_points(column, x[:, j]) for j, column in zip(self.coded, self._columns, strict=True)]
        return np.ascontiguousarray(np.hstack([numbers, *blocks]), x.dtype)

    def center(self) -> Array:
        """Return coordinates, (coordinates,), equally far from all known categories; NaN for columns of other kinds."""
        points = [np.full(self.numbers, np.nan)]
        for column in self._columns:
            point = _points(column, np.array([-1.0]))[0]
            points.append(point if column.kind == "category" else np.full_like(point, np.nan))
        return np.concatenate(points)

    def widths(self, bandwidth: Array) -> Array:
        """Return σ of each feature, in the order of the coordinates, from bandwidths (d,) (λ for categories)."""
        sigma = bandwidth[self.order].astype(np.float64)
        for c, column in enumerate(self._columns, start=self.numbers):
            if column.kind == "periodic":
                sigma[c] = np.clip(sigma[c] * np.pi / float(column.levels[0]), NARROWEST, WIDEST)
                continue
            weight_ratio, count = sigma[c], len(column.levels)
            with np.errstate(divide="ignore"):
                if column.kind == "category":
                    weight_ratio = np.divide(weight_ratio, (count - 1) * (1 - weight_ratio)) if count > 1 else 1.0
                beta = -np.log(weight_ratio)
                sigma[c] = np.clip(np.divide(1, np.sqrt(2 * abs(max(beta, 0.0)))), NARROWEST, WIDEST)
        return sigma

    def bandwidths(self, widths: Array) -> Array:
        """Return σ of numbers and λ of categories, (d,) in the order of X: the inverse of `widths`."""
        result = np.array(widths, np.float64)
        for c, column in enumerate(self._columns, start=self.numbers):
            if column.kind == "periodic":
                result[c] *= float(column.levels[0]) / np.pi
                continue
            weight, other_count = np.exp(-1 / (2 * result[c] ** 2)), len(column.levels) - 1
            if result[c] >= WIDEST * (1 - 1e-9):
                result[c] = largest(column)
            else:
                result[c] = other_count * weight / (1 + other_count * weight) if column.kind == "category" else weight
        bandwidth = np.empty_like(result)
        bandwidth[self.order] = result
        return bandwidth


def largest(column: Column) -> float:
    """Return the largest λ, at which a category has no influence."""
    return 1.0 if column.kind == "ordered" else (len(column.levels) - 1) / len(column.levels)


def _points(column: Column, levels: Array) -> Array:
    """Return the coordinates (n, coordinates) of a categorical or periodic column from its values (n,)."""
    count = max(1, len(column.levels) - 1)
    if column.kind == "periodic":
        angle = levels.astype(np.float64) * (2 * np.pi / float(column.levels[0]))
        return np.column_stack([np.cos(angle), np.sin(angle)]) / 2
    if column.kind == "ordered":
        return np.asarray(np.clip(levels[:, None] - np.arange(count), 0.0, 1.0))
    corners = np.zeros((count + 1, count))
    corners[1:] = np.linalg.cholesky((np.eye(count) + 1) / 2)  # products of a simplex's edges from its first corner
    center = corners[: len(column.levels)].mean(0) if len(column.levels) > 1 else corners[1]  # away from the only level
    return np.asarray(np.vstack([corners, center])[levels.astype(np.intp)])


class Rows(NamedTuple):
    """Checked training rows."""

    x: Array  # (n, d); a category is the index of its level
    y: Array  # (n,) or (n, outputs), float64
    weight: Array  # (n,)
    columns: tuple[Column, ...]  # empty if all columns are numbers
    metric: Array | None = None  # (numbers, k), the directions of a metric; None for the columns themselves
    folds: NDArray[np.int8] | None = None  # (folds, n): 1 for rows to learn from, 2 for tested rows
    weights: str = "repeats"  # or "precision": the variance of a row's error is one over its weight

    def take(self, chosen: NDArray[np.intp]) -> "Rows":
        """Return some of the rows."""
        folds = None if self.folds is None else self.folds[:, chosen]
        return self._replace(x=self.x[chosen], y=self.y[chosen], weight=self.weight[chosen], folds=folds)

    @property
    def unit(self) -> float:
        """The weight of a row that counts as one row: the mean precision, else 1."""
        precise = self.weights == "precision"
        return float(self.weight[self.weight > 0].mean(dtype=np.float64)) if precise else 1.0

    @property
    def coding(self) -> "Coding":
        """The coordinates of the columns."""
        return Coding(self.columns, self.x.shape[1], self.metric)

    def joined(self, unit: float | None = None) -> "Joined":
        """Join rows with equal coordinates; a row of weight `unit` (default: that of these rows) counts as one row."""
        coding, y = self.coding, self.y.reshape(len(self.y), -1)
        x = coding.coordinates(self.x)
        weight, precise = self.weight / (unit or self.unit), self.weights == "precision"
        return join(x, y, weight, coding.feature, coding.numbers, coding.center().astype(x.dtype), precise)


class Repeats(NamedTuple):
    """The k rows that share x with a row of another y; rows equal in x and y are one of them."""

    unique: NDArray[np.intp]  # (k,), ascending: the index of the unique row
    y: Array  # (k, v), as `Joined.y`
    weight: Array  # (k,)
    # (k,), the weight removed when this row is left out. Exact copies are removed together. Exception: if y is
    # discrete, or X a table of cells (`_CELL`), one row is removed.
    out: Array

    @property
    def times(self) -> Array:
        """(k,), the number of rows that are left out one by one in each of these."""
        return np.asarray(np.ceil(self.weight / self.out))


class Joined(NamedTuple):
    """The m unique rows of n, ordered so that neighbours in space are mostly neighbours in memory."""

    x: Array  # (m, d)
    y: Array  # (m, v), float64: the weighted mean of the rows' values, minus `origin`
    within: Array  # (m, v), float64: the rows' weighted variance about their mean
    weight: Array  # (m,), float64: the sum of the rows' weights, positive
    # (v,), float64, the offset subtracted from y: the mean nearest to 0 if all means have one sign, else 0. It never
    # makes a value larger, so no digits are lost.
    origin: Array
    inverse: NDArray[np.intp]  # (n,), the unique row of each row; −1 for a row of weight 0
    repeats: Repeats  # the rows of unique rows with several values
    repeat: NDArray[np.intp]  # (n,), the index in `repeats` of each row; −1 for other rows
    feature: NDArray[np.intp]  # (d,), ascending from 0: the feature of each coordinate (a category has several)
    numbers: int  # the number of features that are numbers; they are first, and only they have slopes
    center: Array  # (d,), the point of an unseen category; NaN for numbers and ordered categories
    precise: bool = False  # whether weights are precisions, so that each row counts once

    @property
    def features(self) -> int:
        """The number of features."""
        return int(self.feature[-1]) + 1

    def in_unit(self, unit: float) -> "Joined":
        """Return the rows with y divided by `unit`."""
        repeats = self.repeats._replace(y=self.repeats.y / unit)
        return self._replace(y=self.y / unit, within=self.within / unit**2, repeats=repeats)

    def variance(self) -> float:
        """Return the variance of all values, averaged over the outputs."""
        return float(self.variances().mean())

    def variances(self) -> Array:
        """Return the variance of all values for each output, (v,)."""
        deviations = self.y - np.average(self.y, axis=0, weights=self.weight)
        return np.asarray(np.average(deviations**2 + self.within, axis=0, weights=self.weight))

    def spread(self) -> Array:
        """Return the coordinates' standard deviations (d,), float64; exactly 0 for a constant one."""
        x = self.x.astype(np.float64)
        ranges = np.ptp(x, axis=0)
        scaled = (x - x[0]) / np.where(ranges > 0, ranges, 1)
        center = np.average(scaled, axis=0, weights=self.weight)
        return np.asarray(ranges * np.sqrt(np.average((scaled - center) ** 2, axis=0, weights=self.weight)))

    def take(self, chosen: NDArray[np.intp]) -> "Joined":
        """Return only some unique rows (ascending indices), without `inverse` and `repeat` of the original rows."""
        x, y, within, weight = (array[chosen] for array in self[:4])
        no_rows, repeat_mask = np.empty(0, np.intp), np.isin(self.repeats.unique, chosen)
        unique, *fields = self.repeats
        repeats = Repeats(np.searchsorted(chosen, unique[repeat_mask]), *(array[repeat_mask] for array in fields))
        return self._replace(x=x, y=y, within=within, weight=weight, inverse=no_rows, repeats=repeats, repeat=no_rows)

    def counts(self) -> Array:
        """Return the number of rows that are left out one by one in each unique row, (m,)."""
        return np.maximum(np.bincount(self.repeats.unique, self.repeats.times, len(self.x)), 1)

    def rows(self) -> Repeats:
        """Return all rows: first those whose x is unique, then the repeats."""
        single = np.setdiff1d(np.arange(len(self.x)), self.repeats.unique)
        single_rows = Repeats(single, self.y[single], self.weight[single], self.weight[single])
        fields: list[Any] = [np.concatenate(arrays) for arrays in zip(single_rows, self.repeats, strict=True)]
        return Repeats(*fields)

    def folds(self, count: int, random_state: object = 0) -> NDArray[np.intp]:
        """Return a random fold for each row, (n,), independent of y; −1 for a row of weight 0.

        Copies of a row, which a search leaves out together, are in one fold. With fewer rows than folds, each row is a
        fold.
        """
        counted_rows = np.flatnonzero(self.inverse >= 0)
        unique, repeat = self.inverse[counted_rows], self.repeat[counted_rows]
        copies = np.append(self.repeats.out == self.repeats.weight, True)[repeat]
        unit = np.where(repeat < 0, unique, len(self.x) + repeat)
        unit = np.where(copies, unit, len(self.x) + len(self.repeats.y) + np.arange(len(counted_rows)))
        _, first, unit_index = np.unique(unit, return_index=True, return_inverse=True)
        unit_index = np.argsort(np.argsort(first))[unit_index]  # in the order of the rows
        seed = int(check_random_state(random_state).randint(2**31))
        # Seeded by X too: rows may be sorted by y, and one fixed draw would always hold out the same ranks.
        random = np.random.default_rng([seed, zlib.crc32(np.sort(np.abs(self.x), axis=None).tobytes())])
        result = np.full(len(self.inverse), -1, np.intp)
        result[counted_rows] = (random.permutation(len(first)) % min(count, len(first)))[unit_index]
        return result


def join(
    x: Array, y: Array, weight: Array, feature: NDArray[np.intp] | None = None, numbers: int | None = None,
    center: Array | None = None, precise: bool = False,
) -> Joined:  # fmt: skip
    """Join rows x (n, d) with values y (n, v) and weights (n,), not all 0; by default all features are numbers."""
    if feature is None:
        feature = np.arange(x.shape[1])
    kept_rows = np.flatnonzero(weight > 0)
    kept_rows = kept_rows[np.lexsort(x[kept_rows].T[::-1])]
    new_x = _differs(x[kept_rows])
    if not new_x.all():
        kept_rows = kept_rows[np.lexsort(np.hstack([x[kept_rows], y[kept_rows]]).T[::-1])]
    ordered, values, counts = x[kept_rows], y[kept_rows].astype(np.float64), weight[kept_rows].astype(np.float64)
    starts, group = np.flatnonzero(new_x), np.cumsum(new_x) - 1
    total = np.add.reduceat(counts, starts)

    def mean(row_values: Array) -> Array:
        return np.add.reduceat(counts[:, None] * row_values, starts) / total[:, None]

    first = values[starts]  # subtracted, so that the mean of equal values is exact
    means = first + mean(values - first[group])
    within = mean((values - means[group]) ** 2)
    origin = np.where(means.min(0) > 0, means.min(0), np.where(means.max(0) < 0, means.max(0), 0.0))
    order = spatial_order(ordered[starts])
    inverse, repeat, unique = np.full(len(x), -1, np.intp), np.full(len(x), -1, np.intp), np.argsort(order)[group]
    inverse[kept_rows] = unique
    repeats, repeat[kept_rows] = _repeats(unique, values - origin, counts, new_x, precise)
    numbers = len(feature) if numbers is None else numbers
    center = np.full(x.shape[1], np.nan, x.dtype) if center is None else center
    means, within = means[order] - origin, within[order]
    return Joined(
        ordered[starts[order]], means, within, total[order], origin, inverse, repeats, repeat, feature, numbers, center,
        precise,
    )  # fmt: skip


def _differs(rows: Array) -> NDArray[np.bool_]:
    """Return which of the sorted rows differ from the row before, (n,)."""
    return np.append(True, (rows[1:] != rows[:-1]).any(1))


def _repeats(
    unique: NDArray[np.intp], y: Array, weight: Array, new_x: NDArray[np.bool_], precise: bool
) -> tuple[Repeats, NDArray[np.intp]]:
    """Return the repeats, and the index of each sorted row among them (−1: none), (n,)."""
    new_xy = new_x | _differs(y)
    starts = np.flatnonzero(new_xy)
    unique_rows, total = unique[starts], np.add.reduceat(weight, starts)
    shared, out, counts = (np.bincount(unique_rows) > 1)[unique_rows], total, np.diff(np.append(starts, len(y)))
    same_y, in_cells = bool((y == y[0]).all()), len(y) >= _CELL * np.count_nonzero(new_x)
    if not precise and (shared.any() or same_y or in_cells):
        _, value, occurrences = np.unique(y[starts], axis=0, return_inverse=True, return_counts=True)
        discrete = occurrences[value.ravel()] > 1
        out = np.where(discrete, np.minimum(total, 1), total)
        if same_y or in_cells:  # a row of large weight is one row
            out, shared = np.where(discrete & ~shared, total / counts, out), shared | (discrete & (counts > 1))
    order = np.flatnonzero(shared)[np.argsort(unique_rows[shared], kind="stable")]
    result = np.full(len(starts), -1, np.intp)
    result[order] = np.arange(len(order))
    return Repeats(unique_rows[order], y[starts[order]], total[order], out[order]), result[np.cumsum(new_xy) - 1]
