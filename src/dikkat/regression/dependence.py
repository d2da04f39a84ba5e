r"""Whether errors of neighbouring rows are alike, as those of a series of time are, told without a fit.

With rows ordered by one feature, $e_{ik}$ is how far $y_i$ lies off the line between the k-th neighbours on either
side, in units in which independent errors of variance σ² give it the variance σ². A smooth mean adds terms of k⁴ and
k⁶ to that. So what $e_{i2}^2$ to $e_{i6}^2$ say, by least squares, of k = 1 is $e_{i1}^2$ in the mean where errors are
independent, and more where neighbours err alike. Means over blocks of rows say how exactly that is known. Where the
mean's bend is nearly all of $e_{i2}^2$, as of rows without errors, or where the squares grow as those of a mean do that
turns within a few rows, as seasons do, nothing is told. A season of a dozen rows under errors as large is taken for
dependence still, in one draw of seven.

**Near repeats.** Among rows that are spread evenly in d dimensions, with $r_{ik}$ the distance from row i to its k-th
neighbour, $k\,d \log(r_{i,k+1}/r_{ik})$ are independent and exponential. Rows in places have one such step that is far
larger: from the last row of the place to the first one of another.

Source: the variance from differences: Gasser, Sroka and Jennen-Steinmetz 1986; of dependent errors: Hall and Van
Keilegom 2003; distances to neighbours: Levina and Bickel 2004.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.special import stdtrit

from dikkat.regression.joined import Array

_LAGS, _POWERS, _BLOCK = np.arange(1, 7), (0, 4, 6), 5
_LEAST = 60  # rows
_EXACT = 1e-24  # squares of errors, in units of y's, that are rounding
_RARE = 0.01  # the chance of a false alarm if the means of blocks are normal
_NEIGHBORS, _STEP, _PLACES = 25, 5.5, 5  # most rows at a place; least median of the largest steps; least places
_APART = 8.0  # least distance between places over that of neighbours at one, to the power of the dimensions
_SMALL = 0.15  # the quantile of rows' radii that separates places: larger ones join places


def places_of(x: Array, dimensions: int) -> NDArray[np.intp] | None:
    """The place of each row of x (n, d), (n,), if rows are equal or nearly equal in groups; else None.

    The rows are spread in at most so many dimensions.
    """
    most = min(_NEIGHBORS, len(x) - 2)
    if len(x) < _LEAST // 2:
        return None
    tree = cKDTree(x)
    apart = tree.query(x, most + 2)[0][:, 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.nan_to_num(np.log(apart[:, 1:] / apart[:, :-1]), posinf=np.inf) * np.arange(1, most + 1)
        steps *= min(dimensions, np.log(2) / np.median(steps))  # fewer if rows lie near a line or a plane
    row, last = np.arange(len(x)), steps.argmax(1)
    if np.median(steps[row, last]) < _STEP:
        return None
    inside = apart[row, last]
    radius = np.quantile((inside + apart[row, last + 1]) / 2, _SMALL) if np.median(inside) > 0 else 0.0
    pairs = tree.query_pairs(radius, output_type="ndarray")
    count, place = connected_components(coo_array((np.ones(len(pairs)), pairs.T), (len(x), len(x))))
    sizes, between = np.bincount(place), np.full(count, np.inf)
    np.minimum.at(between, place, np.where(apart > radius, apart, np.inf).min(1))
    if count < _PLACES or sizes.max() > len(x) / 2 or (sizes[place] > 1).mean() < 0.5:
        return None
    return place if np.median(between) > _APART ** (1 / dimensions) * np.median(apart[:, 0]) else None


def errors_are_alike(x: Array, y: Array, tests: int = 1) -> bool:
    """True where rows (n,) that are neighbours in x have errors in y (n,) that are alike, in one of so many tests."""
    order = np.argsort(x, kind="stable")
    x, y = x[order].astype(np.float64), y[order]
    inner = np.arange(_LAGS[-1], len(x) - _LAGS[-1])
    if len(x) < _LEAST or x[0] == x[-1]:
        return False
    squares = np.array([_squares(x, y / max(np.abs(y).max(), 1e-300), inner, int(lag)) for lag in _LAGS])
    one, two, three, *more = squares.mean(1)
    if one <= max(two / 4, _EXACT) or three - two > 2 * (two - one) or more[-1] < max(two, three, *more) / 2:
        return False
    terms = (_LAGS[:, None] / _LAGS[-1]) ** np.array(_POWERS)
    excess = terms[0] @ np.linalg.pinv(terms[1:]) @ squares[1:] - squares[0]
    means = excess[: len(excess) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).mean(1)
    limit = -stdtrit(len(means) - 1, _RARE / tests)
    return bool(means.mean() > limit * means.std(ddof=1) / np.sqrt(len(means)))


def _squares(x: Array, y: Array, inner: Array, lag: int) -> Array:
    """e² of the inner rows."""
    before, after = x[inner] - x[inner - lag], x[inner + lag] - x[inner]
    share = np.divide(after, before + after, out=np.full(len(inner), 0.5), where=before + after > 0)
    off = y[inner] - share * y[inner - lag] - (1 - share) * y[inner + lag]
    result: Array = off**2 / (1 + share**2 + (1 - share) ** 2)
    return result
