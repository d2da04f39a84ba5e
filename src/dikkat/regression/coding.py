r"""Categories as coordinates, so that their kernels are factors of a Gaussian's weights.

With Aitchison and Aitken's kernel a row of another of c categories weighs $\lambda/((c - 1)(1 - \lambda))$ of what one
of the same does, with Li and Racine's for ordered ones a row k steps off $\lambda^k$. Both are $e^{-\beta k}$, with k
the number of steps, which is 1 between any two categories without order:

$$ e^{-\beta} = \frac{\lambda}{(c - 1)(1 - \lambda)} \quad\text{or}\quad e^{-\beta} = \lambda . $$

Points with these k as their squared distances are the corners of a regular simplex in c − 1 dimensions, and the
corners (0, 0, …), (1, 0, …), (1, 1, …), … of a cube. So the product of the kernels is a Gaussian of the numbers and
these coordinates, all of one category with the bandwidth $\sigma = (2\beta)^{-1/2}$: every sum, criterion and gradient
is that of numbers. λ = 0 is taken as $e^{-\beta}$ = 0 in float64, and the largest λ, (c − 1)/c or 1, as σ = 10⁶, where
a category counts for nothing.

A category that was not there is the centre of the simplex: as far from every row, so it says nothing of the shares; how
far that is is given back to their sum (`dikkat.regression.local.without_unseen`). A number between
two ordered levels lies on the edge between their corners, from which the weights of both follow by its share of the
step.

Source: Aitchison and Aitken 1976; Racine and Li 2004; Li and Racine 2007, chapter 4.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dikkat.regression.columns import Column
from dikkat.regression.joined import Array

WIDEST, NARROWEST = 1e6, 1 / 50
"""σ over the distance of two categories at which they count alike, and at which the other one does not count."""


class Coding:
    """Which coordinates the columns of X are.

    Args:
        columns: What they are; nothing where all are numbers.
        size: How many there are.

    Attributes:
        order: (d,), the columns in the order of their coordinates: numbers first.
        numbers: How many are numbers.
        feature: (coordinates,), the place in `order` that each one is of.
    """

    def __init__(self, columns: Sequence[Column], size: int) -> None:
        coded = [j for j in range(len(columns)) if columns[j].coded]
        plain = [j for j in range(size) if j not in coded]
        self.order, self.numbers = np.array(plain + coded, np.intp), len(plain)
        self._columns = [columns[j] for j in coded]
        counts = [1] * len(plain) + [max(1, len(each.levels) - 1) for each in self._columns]
        self.feature: NDArray[np.intp] = np.repeat(np.arange(size), counts)

    def coordinates(self, x: Array) -> Array:
        """The coordinates of rows (n, d), as `dikkat.regression.columns.encoded` makes them."""
        if not self._columns:
            return x
        coded = self.order[self.numbers :]
        parts = [_points(column, x[:, j]) for j, column in zip(coded, self._columns, strict=True)]
        return np.hstack([x[:, self.order[: self.numbers]], *parts]).astype(x.dtype)

    def center(self) -> Array:
        """(coordinates,), where a category is that was not there; NaN of numbers and of categories with an order."""
        parts = [np.full(self.numbers, np.nan)]
        for column in self._columns:
            place = _points(column, np.array([-1.0]))[0]
            parts.append(place if column.kind == "category" else np.full_like(place, np.nan))
        return np.concatenate(parts)

    def widths(self, bandwidth: Array) -> Array:
        """σ of each feature, in the order of the coordinates, from bandwidths (d,), of categories λ."""
        sigma = bandwidth[self.order].astype(np.float64)
        for place, column in enumerate(self._columns, start=self.numbers):
            least, count = sigma[place], len(column.levels)
            with np.errstate(divide="ignore"):
                if column.kind == "category":
                    least = np.divide(least, (count - 1) * (1 - least)) if count > 1 else 1.0
                beta = -np.log(least)
                sigma[place] = np.clip(np.divide(1, np.sqrt(2 * abs(max(beta, 0.0)))), NARROWEST, WIDEST)
        return sigma

    def bandwidths(self, widths: Array) -> Array:
        """(d,), in the order of X: σ of numbers and λ of categories, from what `widths` gives."""
        found = np.array(widths, np.float64)
        for place, column in enumerate(self._columns, start=self.numbers):
            weight, others = np.exp(-1 / (2 * found[place] ** 2)), len(column.levels) - 1
            if found[place] >= WIDEST * (1 - 1e-9):
                found[place] = largest(column)
            else:
                found[place] = others * weight / (1 + others * weight) if column.kind == "category" else weight
        bandwidth = np.empty_like(found)
        bandwidth[self.order] = found
        return bandwidth


def largest(column: Column) -> float:
    """The largest λ, where a category counts for nothing."""
    return 1.0 if column.kind == "ordered" else (len(column.levels) - 1) / len(column.levels)


def _points(column: Column, places: Array) -> Array:
    """(n, coordinates) of one category, from the places of the levels."""
    count = max(1, len(column.levels) - 1)
    if column.kind == "ordered":
        return np.asarray(np.clip(places[:, None] - np.arange(count), 0.0, 1.0))
    corners = np.zeros((count + 1, count))
    corners[1:] = np.linalg.cholesky((np.eye(count) + 1) / 2)  # whose products are those of a simplex about its first
    center = corners[: len(column.levels)].mean(0) if len(column.levels) > 1 else corners[1]  # unlike the only one
    found: Array = np.vstack([corners, center])[places.astype(np.intp)]
    return found
