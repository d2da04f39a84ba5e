"""The second-order surface that a kernel smooths the residual of, in a designed experiment.

In a design whose numbers have at most five different values each, such as a factorial, a Box–Behnken or a central
composite design, squares and products of the standardised numbers are further coordinates. They have no influence on
the weights. The plane to whose slopes the ridge shrinks (`dikkat.regression.local`) includes them if that lowers its
leave-one-out error by a tenth: then the line at a query follows a surface of second order, and leave-one-out errors,
degrees of freedom and intervals include its terms. Beyond the range of a number its terms are those at the range's end.

Source: Box and Wilson 1951, On the experimental attainment of optimum conditions.
"""

from __future__ import annotations

import numpy as np

from dikkat.regression.joined import Array, Rows
from dikkat.regression.local import trend

_MOST_VALUES, _MOST_NUMBERS = 5, 8  # different values of each number in a design; numbers


def second_order(rows: Rows) -> Array | None:
    """Return `Rows.surface` if the rows are a design and a surface of second order has a smaller error, else None."""
    coding, has_weight = rows.coding, rows.weight > 0
    numbers = rows.x[has_weight][:, coding.order[: coding.num_numeric]].astype(np.float64)
    if not 0 < numbers.shape[1] <= _MOST_NUMBERS or any(len(np.unique(c)) > _MOST_VALUES for c in numbers.T):
        return None
    weight = rows.weight[has_weight].astype(np.float64)
    mean = np.average(numbers, axis=0, weights=weight)
    spread = np.sqrt(np.average((numbers - mean) ** 2, axis=0, weights=weight))
    surface = np.stack([mean, np.where(spread > 0, spread, 1.0), numbers.min(0), numbers.max(0)])
    joined = rows._replace(surface=surface).joined()
    return surface if len(trend(joined).spread) == len(joined.feature_of) else None
