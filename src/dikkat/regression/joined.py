r"""Training rows for the computations: categories as coordinates, and rows with equal coordinates joined.

**Categories** become coordinates such that their kernels are factors of a Gaussian's weights. Relative to a row of the
same category, a row of another of c categories has the weight $\lambda/((c - 1)(1 - \lambda))$ (Aitchison and Aitken),
and a row k ordered levels away $\lambda^k$ (Li and Racine). Both are $e^{-\beta k}$, with k the number of steps (1
between any two unordered categories):

$$ e^{-\beta} = \frac{\lambda}{(c - 1)(1 - \lambda)} \quad\text{or}\quad e^{-\beta} = \lambda . $$

These k are squared distances between points: for unordered categories between the corners of a regular simplex in
c − 1 dimensions, for ordered levels between the corners (0, 0, …), (1, 0, …), (1, 1, …), … of a cube. So the product
of the kernels is a Gaussian of the numbers and these coordinates, with the bandwidth $\sigma = (2\beta)^{-1/2}$ for a
category: sums, criteria and gradients need no other formula. λ = 0 becomes σ = 1/50, for which $e^{-\beta}$ is 0 in
float64. The largest λ, (c − 1)/c or 1, becomes σ = 10⁶: the category has no influence.

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
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dikkat.regression.columns import Column
from dikkat.regression.moments.launch import spatial_order

Array = NDArray[np.floating]

WIDEST, NARROWEST = 1e6, 1 / 50
"""The σ at which a category has no influence, and the σ at which only rows of the same category count."""

# With at least this many rows per unique X on average, X is a contingency table: equal rows are separate observations,
# not copies of one.
_ROWS_PER_CELL = 5


class Coding:
    """The coordinates of the `size` columns of X; `columns`, `metric` and `surface` are fields of `Rows`."""

    def __init__(
        self, columns: Sequence[Column], size: int, metric: Array | None = None, surface: Array | None = None
    ) -> None:
        self.coded = [j for j in range(len(columns)) if columns[j].coded]
        self._numeric_columns, self._metric = [j for j in range(size) if j not in self.coded], metric
        self._surface = surface
        numbers = [columns[j] if columns else Column() for j in self._numeric_columns]
        self._logs = {c: column for c, column in enumerate(numbers) if column.log}
        self._columns = [columns[j] for j in self.coded]
        # `levels` of a numeric column is the value for its missing cells.
        self._fill_values = [next(iter(column.levels), 0.0) if not column.coded else 0.0 for column in columns]
        # Numeric columns, or the directions of a metric.
        self.num_numeric = len(self._numeric_columns) if metric is None else metric.shape[1]
        features = self.num_numeric + len(self.coded)
        # The columns in the order of the coordinates (numbers or directions first), and the feature of each coordinate.
        self.order = np.array(self._numeric_columns + self.coded if metric is None else range(features), np.intp)
        sizes = [2 if column.kind == "periodic" else max(1, len(column.levels) - 1) for column in self._columns]
        self.pairs = np.nonzero(np.zeros((0, 0)) if surface is None else surface[4:])  # of numbers in a term
        self.num_terms = len(self.pairs[0])
        self.feature_of: NDArray[np.intp] = np.repeat(
            np.arange(features + self.num_terms), [1] * self.num_numeric + sizes + [1] * self.num_terms
        )

    def coordinates(self, x: Array) -> Array:
        """Return the coordinates (n, coordinates) of rows (n, d) from `dikkat.regression.columns.encode_cells`."""
        x = self._filled(x)
        if not self._columns and self._metric is None and self._surface is None:
            return self.numbers(x) if self._logs else x
        numbers = self.numbers(x)
        if self._metric is not None:
            numbers = numbers.astype(np.float64) @ self._metric
        blocks = [_points(column, x[:, j]) for j, column in zip(self.coded, self._columns, strict=True)]
        if self._surface is not None:
            blocks.append(self._terms(numbers))
        return np.ascontiguousarray(np.hstack([numbers, *blocks]), x.dtype)

    def numbers(self, x: Array) -> Array:
        """Return the numbers of rows (n, d), or their logarithms, (n, numbers)."""
        result = self._filled(x)[:, self._numeric_columns]
        for c, column in self._logs.items():
            result[:, c] = column.scaled(result[:, c])
        return result

    def slopes(self, x: Array) -> Array:
        """Return the derivatives (n, numbers) of `numbers` by the cells of rows (n, d); 0 if a number counts as 0."""
        cells = self._filled(x)[:, self._numeric_columns].astype(np.float64)
        result = np.ones_like(cells)
        for c, column in self._logs.items():
            result[:, c] = column.scale_slope(cells[:, c])
        return result

    def _filled(self, x: Array) -> Array:
        if (missing_cells := np.isnan(x)).any():  # cells that were never missing in fit
            return np.where(missing_cells, self._fill_values, x).astype(x.dtype)
        return x

    def jacobian(self, x: Array) -> Array:
        """Return the derivatives (n, numbers, coordinates) of coordinates by numbers or directions at coordinates x."""
        size = self.num_numeric
        result = np.tile(np.eye(size, len(self.feature_of)), (len(x), 1, 1))
        if self._surface is not None:
            z, inner, spread = *self._standardised(x[:, :size]), self._surface[1]
            for term, pair in enumerate(zip(*self.pairs, strict=True), len(self.feature_of) - self.num_terms):
                for a, b in (pair, pair[::-1]):
                    slope = np.where(z[:, a] == inner[:, a], z[:, b], inner[:, b])
                    result[:, a, term] += slope / spread[a]
        return result

    def _terms(self, numbers: Array) -> Array:
        """Return the squares and products (n, terms) of standardised numbers; beyond the data, their tangents."""
        z, inner = self._standardised(numbers)
        a, b = self.pairs
        terms = inner[:, a] * z[:, b] + z[:, a] * inner[:, b] - inner[:, a] * inner[:, b]
        return np.asarray(terms.round(12))  # the square of two levels is exactly constant

    def _standardised(self, numbers: Array) -> tuple[Array, Array]:
        """Return standardised numbers (n, numbers), as they are and clipped to their range in fit."""
        mean, spread, low, high = cast(Array, self._surface)[:4]
        numbers = numbers.astype(np.float64)
        return (numbers - mean) / spread, (np.clip(numbers, low, high) - mean) / spread

    def has_square(self, column: int) -> bool:
        """Return True if the surface has the square of a numeric column of X."""
        number = self._numeric_columns.index(column) if column in self._numeric_columns else -1
        return any(first == second == number for first, second in zip(*self.pairs, strict=True))

    def center(self) -> Array:
        """Return a point (coordinates,), equally far from all known categories; NaN for columns of other kinds."""
        points = [np.full(self.num_numeric, np.nan)]
        for column in self._columns:
            point = _points(column, np.array([-1.0]))[0]
            points.append(point if column.kind == "category" else np.full_like(point, np.nan))
        return np.concatenate([*points, np.full(self.num_terms, np.nan)])

    def to_sigma(self, bandwidth: Array) -> Array:
        """Convert bandwidths (d,), σ or for categories λ, to the σ of each feature in the order of the coordinates."""
        sigma = bandwidth[self.order].astype(np.float64)
        for c, column in enumerate(self._columns, start=self.num_numeric):
            if column.kind == "periodic":
                sigma[c] = np.clip(sigma[c] * np.pi / float(column.levels[0]), NARROWEST, WIDEST)
                continue
            rate, count = sigma[c], len(column.levels)  # λ
            weight_ratio = rate
            with np.errstate(divide="ignore"):
                if column.kind == "category":
                    weight_ratio = np.divide(rate, (count - 1) * (1 - rate)) if count > 1 else 1.0
                beta = abs(max(-np.log(weight_ratio), 0.0))  # abs: 1/√−0.0 is −∞
                sigma[c] = np.clip(np.divide(1, np.sqrt(2 * beta)), NARROWEST, WIDEST)
        return np.append(sigma, np.full(self.num_terms, WIDEST))

    def to_bandwidth(self, sigma: Array) -> Array:
        """Convert the σ of each feature to σ of numbers and λ of categories, (d,) in the order of X."""
        result = np.array(sigma[: len(self.order)], np.float64)
        for c, column in enumerate(self._columns, start=self.num_numeric):
            if column.kind == "periodic":
                result[c] *= float(column.levels[0]) / np.pi
                continue
            weight, other_count = np.exp(-1 / (2 * result[c] ** 2)), len(column.levels) - 1
            if result[c] >= WIDEST * (1 - 1e-9):
                result[c] = largest_rate(column)
            else:
                result[c] = other_count * weight / (1 + other_count * weight) if column.kind == "category" else weight
        bandwidth = np.empty_like(result)
        bandwidth[self.order] = result
        return bandwidth


def largest_rate(column: Column) -> float:
    """Return the largest λ of a categorical column: with it the column has no influence."""
    return 1.0 if column.kind == "ordered" else (len(column.levels) - 1) / len(column.levels)


def _points(column: Column, values: Array) -> Array:
    """Return the coordinates (n, coordinates) of a categorical or periodic column from its values (n,)."""
    count = max(1, len(column.levels) - 1)
    if column.kind == "periodic":
        angle = values.astype(np.float64) * (2 * np.pi / float(column.levels[0]))
        return np.column_stack([np.cos(angle), np.sin(angle)]) / 2
    if column.kind == "ordered":
        return np.asarray(np.clip(values[:, None] - np.arange(count), 0.0, 1.0))
    corners = np.zeros((count + 1, count))
    corners[1:] = np.linalg.cholesky((np.eye(count) + 1) / 2)  # products of a simplex's edges from its first corner
    # With a single level, another point than its corner.
    center = corners[: len(column.levels)].mean(0) if len(column.levels) > 1 else corners[1]
    return np.asarray(np.vstack([corners, center])[values.astype(np.intp)])


class Rows(NamedTuple):
    """Checked training rows."""

    x: Array  # (n, d); a category is the index of its level
    y: Array  # (n,) or (n, outputs), float64
    weight: Array  # (n,)
    columns: tuple[Column, ...]  # empty if all columns are numbers
    metric: Array | None = None  # (numeric columns, k), the directions of a metric; None without a metric
    folds: NDArray[np.int8] | None = None  # (folds, n): 1 for rows to learn from, 2 for tested rows
    weights: str = "repeats"  # or "precision": the variance of a row's error is one over its weight
    # (4 + p, p) for p numbers: mean, standard deviation and range of each number, and then 1 at (i, j) if the product
    # of the numbers i ≤ j is a term; None without a surface of second order
    surface: Array | None = None

    def take(self, chosen: NDArray[np.intp]) -> "Rows":
        """Return the rows at these indices."""
        folds = None if self.folds is None else self.folds[:, chosen]
        return self._replace(x=self.x[chosen], y=self.y[chosen], weight=self.weight[chosen], folds=folds)

    @property
    def unit_weight(self) -> float:
        """The weight that counts as one row: the mean weight if weights are precisions, else 1."""
        precise = self.weights == "precision"
        return float(self.weight[self.weight > 0].mean(dtype=np.float64)) if precise else 1.0

    @property
    def coding(self) -> "Coding":
        """The coordinates of the columns."""
        return Coding(self.columns, self.x.shape[1], self.metric, self.surface)

    def joined(self, unit_weight: float | None = None) -> "Joined":
        """Join rows with equal coordinates. A weight of `unit_weight` (by default `self.unit_weight`) is one row."""
        coding, y = self.coding, self.y.reshape(len(self.y), -1)
        x = coding.coordinates(self.x)
        weight, precise = self.weight / (unit_weight or self.unit_weight), self.weights == "precision"
        joined = join(x, y, weight, coding.feature_of, coding.num_numeric, coding.center().astype(x.dtype), precise)
        return joined._replace(num_terms=coding.num_terms)


class Repeats(NamedTuple):
    """Training rows with the same x and several y; in a table of cells, also equal rows whose y occurs elsewhere.

    The k entries are different: rows that are equal in x and y are one entry.
    """

    unique: NDArray[np.intp]  # (k,), ascending: the index of the unique row
    y: Array  # (k, v), as `Joined.y`
    weight: Array  # (k,)
    # (k,), the weight that leave-one-out removes for this entry: all its rows, because copies show each other's y. Only
    # one row if y is discrete, or X a table of cells (`_ROWS_PER_CELL`): there equal rows are separate observations.
    left_out_weight: Array

    def take(self, chosen: NDArray[np.intp]) -> "Repeats":
        """Return the entries at these indices."""
        fields: list[Any] = [field[chosen] for field in self]
        return Repeats(*fields)

    @property
    def left_out_count(self) -> Array:
        """(k,), the number of rows of each entry that leave-one-out removes separately."""
        return np.asarray(np.ceil(self.weight / self.left_out_weight))


class Joined(NamedTuple):
    """The m unique rows of n, ordered so that neighbours in space are mostly neighbours in memory."""

    x: Array  # (m, d)
    y: Array  # (m, v), float64: the weighted mean of the rows' values, minus `origin`
    variance_within: Array  # (m, v), float64: the weighted variance of the rows' values about their mean
    weight: Array  # (m,), float64: the sum of the rows' weights, positive
    # (v,), float64, the offset subtracted from y: the mean nearest to 0 if all means have one sign, else 0. With it no
    # value gets larger, so no digits are lost.
    origin: Array
    unique_index: NDArray[np.intp]  # (n,), the unique row of each row; −1 for a row of weight 0
    repeats: Repeats  # the rows of unique rows with several values
    repeat_index: NDArray[np.intp]  # (n,), the index in `repeats` of each row; −1 for other rows
    feature_of: NDArray[np.intp]  # (d,), ascending from 0: the feature of each coordinate (a category has several)
    num_numeric: int  # the number of numeric features (or directions); they are first, and only they have slopes
    center: Array  # (d,), the point of an unseen category; NaN for numbers and ordered categories
    precise: bool = False  # True if weights are precisions, so that each row counts once
    num_terms: int = 0  # the number of terms of second order, the last coordinates: they have no influence on weights

    @property
    def features(self) -> int:
        """The number of features, with the terms of second order."""
        return int(self.feature_of[-1]) + 1

    @property
    def compared_features(self) -> int:
        """The number of features that have influence on weights: without the terms of second order."""
        return self.features - self.num_terms

    def divide_y(self, divisor: float) -> "Joined":
        """Return the rows with y divided by `divisor`."""
        repeats, variance_within = self.repeats._replace(y=self.repeats.y / divisor), self.variance_within / divisor**2
        return self._replace(y=self.y / divisor, variance_within=variance_within, repeats=repeats)

    def variance(self) -> float:
        """Return the variance of all values, averaged over the outputs."""
        return float(self.variances().mean())

    def variances(self) -> Array:
        """Return the variance of all values for each output, (v,)."""
        deviations = self.y - np.average(self.y, axis=0, weights=self.weight)
        return np.asarray(np.average(deviations**2 + self.variance_within, axis=0, weights=self.weight))

    def spread(self) -> Array:
        """Return the coordinates' standard deviations (d,), float64; exactly 0 for a constant one."""
        x = self.x.astype(np.float64)
        ranges = np.ptp(x, axis=0)
        scaled = (x - x[0]) / np.where(ranges > 0, ranges, 1)
        center = np.average(scaled, axis=0, weights=self.weight)
        return np.asarray(ranges * np.sqrt(np.average((scaled - center) ** 2, axis=0, weights=self.weight)))

    def take(self, chosen: NDArray[np.intp]) -> "Joined":
        """Return some unique rows (ascending indices), with empty `unique_index` and `repeat_index`."""
        x, y, variance_within, weight = (array[chosen] for array in self[:4])
        no_rows, repeat_mask = np.empty(0, np.intp), np.isin(self.repeats.unique, chosen)
        unique, *fields = self.repeats
        repeats = Repeats(np.searchsorted(chosen, unique[repeat_mask]), *(array[repeat_mask] for array in fields))
        return self._replace(
            x=x, y=y, variance_within=variance_within, weight=weight, unique_index=no_rows, repeats=repeats,
            repeat_index=no_rows,
        )  # fmt: skip

    def left_out_counts(self) -> Array:
        """Return for each unique row how many of its training rows leave-one-out removes separately, (m,)."""
        return np.maximum(np.bincount(self.repeats.unique, self.repeats.left_out_count, len(self.x)), 1)

    def rows(self) -> Repeats:
        """Return all rows in the form of `repeats`: first the unique rows that have none, then the repeats."""
        single = np.setdiff1d(np.arange(len(self.x)), self.repeats.unique)
        single_rows = Repeats(single, self.y[single], self.weight[single], self.weight[single])
        fields: list[Any] = [np.concatenate(arrays) for arrays in zip(single_rows, self.repeats, strict=True)]
        return Repeats(*fields)

    def folds(self, count: int, random_state: object = 0) -> NDArray[np.intp]:
        """Return a random fold for each row, (n,), independent of y; −1 for a row of weight 0.

        Copies of a row, which a search leaves out together, are a block that stays in one fold. With fewer blocks than
        folds, each block is a fold.
        """
        counted_rows = np.flatnonzero(self.unique_index >= 0)
        unique, repeat = self.unique_index[counted_rows], self.repeat_index[counted_rows]
        # Index −1, of a row that is no repeat, reads the appended True.
        are_copies = np.append(self.repeats.left_out_weight == self.repeats.weight, True)[repeat]
        # Different ranges of numbers for the blocks of unique rows, of repeats, and of single rows.
        block = np.where(repeat < 0, unique, len(self.x) + repeat)
        block = np.where(are_copies, block, len(self.x) + len(self.repeats.y) + np.arange(len(counted_rows)))
        _, first, block_index = np.unique(block, return_index=True, return_inverse=True)
        block_index = np.argsort(np.argsort(first))[block_index]  # numbered in the order of the rows
        seed = int(check_random_state(random_state).randint(2**31))
        # Seeded by X too: rows may be sorted by y, and one fixed draw would always hold out the same ranks.
        random = np.random.default_rng([seed, zlib.crc32(np.sort(np.abs(self.x), axis=None).tobytes())])
        result = np.full(len(self.unique_index), -1, np.intp)
        result[counted_rows] = (random.permutation(len(first)) % min(count, len(first)))[block_index]
        return result


def join(
    x: Array, y: Array, weight: Array, feature_of: NDArray[np.intp] | None = None, num_numeric: int | None = None,
    center: Array | None = None, precise: bool = False,
) -> Joined:  # fmt: skip
    """Join rows x (n, d) with values y (n, v) and weights (n,), not all 0; by default all features are numbers."""
    if feature_of is None:
        feature_of = np.arange(x.shape[1])
    kept_rows = np.flatnonzero(weight > 0)
    kept_rows = kept_rows[np.lexsort(x[kept_rows].T[::-1])]
    new_x = _differs(x[kept_rows])
    if not new_x.all():
        kept_rows = kept_rows[np.lexsort(np.hstack([x[kept_rows], y[kept_rows]]).T[::-1])]
    ordered, values, row_weights = x[kept_rows], y[kept_rows].astype(np.float64), weight[kept_rows].astype(np.float64)
    starts, group = np.flatnonzero(new_x), np.cumsum(new_x) - 1
    total = np.add.reduceat(row_weights, starts)

    def mean(row_values: Array) -> Array:
        return np.add.reduceat(row_weights[:, None] * row_values, starts) / total[:, None]

    first = values[starts]  # subtracted, so that the mean of equal values is exact
    means = first + mean(values - first[group])
    variance_within = mean((values - means[group]) ** 2)
    origin = np.where(means.min(0) > 0, means.min(0), np.where(means.max(0) < 0, means.max(0), 0.0))
    order = spatial_order(ordered[starts])
    unique_index, repeat_index = np.full(len(x), -1, np.intp), np.full(len(x), -1, np.intp)
    unique_index[kept_rows] = unique = np.argsort(order)[group]
    repeats, repeat_index[kept_rows] = _find_repeats(unique, values - origin, row_weights, new_x, precise)
    num_numeric = len(feature_of) if num_numeric is None else num_numeric
    center = np.full(x.shape[1], np.nan, x.dtype) if center is None else center
    return Joined(
        ordered[starts[order]], means[order] - origin, variance_within[order], total[order], origin, unique_index,
        repeats, repeat_index, feature_of, num_numeric, center, precise,
    )  # fmt: skip


def _differs(rows: Array) -> NDArray[np.bool_]:
    """Return flags (n,), True for a sorted row that differs from the row before."""
    return np.append(True, (rows[1:] != rows[:-1]).any(1))


def _find_repeats(
    unique: NDArray[np.intp], y: Array, weight: Array, new_x: NDArray[np.bool_], precise: bool
) -> tuple[Repeats, NDArray[np.intp]]:
    """Return the `Repeats`, and the index (n,) of each sorted row in them; −1 for other rows."""
    new_xy = new_x | _differs(y)
    starts = np.flatnonzero(new_xy)
    unique_rows, total = unique[starts], np.add.reduceat(weight, starts)
    counts = np.diff(np.append(starts, len(y)))  # rows of each (x, y)
    has_repeats = (np.bincount(unique_rows) > 1)[unique_rows]  # an x with several y
    left_out_weight = total
    same_y, in_cells = bool((y == y[0]).all()), len(y) >= _ROWS_PER_CELL * np.count_nonzero(new_x)
    if not precise and (has_repeats.any() or same_y or in_cells):
        _, value, occurrences = np.unique(y[starts], axis=0, return_inverse=True, return_counts=True)
        discrete = occurrences[value.ravel()] > 1
        left_out_weight = np.where(discrete, np.minimum(total, 1), total)
        if same_y or in_cells:  # a row of large weight is one row
            left_out_weight = np.where(discrete & ~has_repeats, total / counts, left_out_weight)
            has_repeats = has_repeats | (discrete & (counts > 1))
    order = np.flatnonzero(has_repeats)[np.argsort(unique_rows[has_repeats], kind="stable")]
    result = np.full(len(starts), -1, np.intp)
    result[order] = np.arange(len(order))
    repeats = Repeats(unique_rows[order], y[starts[order]], total[order], left_out_weight[order])
    return repeats, result[np.cumsum(new_xy) - 1]
