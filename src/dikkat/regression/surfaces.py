"""The second-order surface that a kernel smooths the residual of, in a designed experiment.

In a design, such as a factorial, a Box–Behnken or a central composite design, each number has at most five different
values. Squares and products of the standardised numbers are then further coordinates, without influence on the
weights, if a surface of second order has an error at least a tenth smaller than the plane to whose slopes the ridge
shrinks (`dikkat.regression.local`). Errors are of rows that are left out, or with folds of tested rows. The line at a
query follows the surface, and leave-one-out errors, degrees of freedom and intervals include its terms. Constant
products, and those that equal a number, such as a confounded interaction, are no terms.

Beyond the range of a number a term continues as its tangent: with z a standardised number and c the nearest number in
its range, $z_a z_b$ becomes $c_a z_b + z_a c_b - c_a c_b$. So the surface continues linearly with its slopes at the
border, as a line continues with those of the plane.

Source: Box and Wilson 1951, On the experimental attainment of optimum conditions.
"""

from __future__ import annotations

import numpy as np

from dikkat.regression.criterion import MANY_ROWS, folds_of
from dikkat.regression.joined import Array, Rows
from dikkat.regression.local import trend

_MOST_VALUES, _MOST_NUMBERS = 5, 8  # different values of each number in a design; numbers
_LARGEST_ERROR = 0.9  # the largest squared error of a surface, over that of the plane, at which it replaces the plane
_CONFOUNDED = 1 - 1e-9  # the correlation of a term with a number from which they are equal


def second_order(rows: Rows) -> Array | None:
    """Return `Rows.surface` if the rows are a design and a surface of second order has a smaller error, else None."""
    coding, has_weight = rows.coding, rows.weight > 0
    numbers = rows.x[has_weight][:, coding.order[: coding.num_numeric]].astype(np.float64)
    if not 0 < numbers.shape[1] <= _MOST_NUMBERS or any(len(np.unique(c)) > _MOST_VALUES for c in numbers.T):
        return None
    plane = rows.joined()
    if len(plane.x) > MANY_ROWS:
        return None
    weight = rows.weight[has_weight].astype(np.float64)
    mean = np.average(numbers, axis=0, weights=weight)
    spread = np.sqrt(np.average((numbers - mean) ** 2, axis=0, weights=weight))
    spread = np.where(spread > 0, spread, 1.0)
    surface = np.vstack([mean, spread, numbers.min(0), numbers.max(0), _terms((numbers - mean) / spread)])
    if not surface[4:].any():
        return None
    return surface if _error(rows._replace(surface=surface)) <= _LARGEST_ERROR * _error(rows) else None


def _terms(z: Array) -> Array:
    """Return (p, p): 1 at (i, j) if the product of the standardised numbers i ≤ j is a term."""
    result = np.triu(np.ones((z.shape[1], z.shape[1])))
    for a, b in zip(*np.nonzero(result), strict=True):
        product = z[:, a] * z[:, b]
        product = product - product.mean()
        sizes = np.linalg.norm(product) * np.linalg.norm(z - z.mean(0), axis=0)
        is_constant = np.linalg.norm(product) <= 1e-9 * np.sqrt(len(z))
        result[a, b] = not (is_constant or (np.abs(product @ (z - z.mean(0))) > _CONFOUNDED * sizes).any())
    return result


def _error(rows: Rows) -> float:
    """Return the mean squared error of the plane at rows that are left out, or with folds at tested rows."""
    joined = rows.joined()
    folds = folds_of(rows, joined)
    if folds is None:
        return float(trend(joined).error)
    total = weight = 0.0
    for fold in folds:
        plane, learned = trend(fold.learned), fold.learned
        scaled = (fold.x[:, : len(plane.spread)] - plane.center.numpy()) / plane.spread.numpy()
        height = learned.weight @ learned.y / learned.weight.sum()
        total += float(fold.weight @ ((fold.y - height - scaled @ plane.slope.numpy()) ** 2).mean(1))
        weight += float(fold.weight.sum())
    return total / weight
