r"""Whether errors of neighbouring rows are alike, as those of a series of time are, told without a fit.

With rows ordered by one feature, $e_{ik}$ is how far $y_i$ lies off the line between the k-th neighbours on either
side, in units in which independent errors of variance σ² give it the variance σ². A smooth mean adds terms of k⁴ and
k⁶ to that. So what $e_{i2}^2$ to $e_{i6}^2$ say, by least squares, of k = 1 is $e_{i1}^2$ in the mean where errors are
independent, and more where neighbours err alike. Means over blocks of rows say how exactly that is known. Where the
mean's bend is nearly all of $e_{i2}^2$, as of rows without errors, or where the squares grow as those of a mean do that
turns within a few rows, as seasons do, nothing is told. A season of a dozen rows under errors as large is taken for
dependence still, in one draw of seven.

Source: the variance from differences: Gasser, Sroka and Jennen-Steinmetz 1986; of dependent errors: Hall and Van
Keilegom 2003.
"""

import numpy as np

from dikkat.regression.joined import Array

_LAGS, _POWERS, _BLOCK = np.arange(1, 7), (0, 4, 6), 5
_LEAST = 60  # rows
_EXACT = 1e-24  # squares of errors, in units of y's, that are rounding
_FAR = 2.1  # deviations: of independent errors a few in a hundred are as far off


def errors_are_alike(x: Array, y: Array) -> bool:
    """True where rows (n,) that are neighbours in x have errors in y (n,) that are alike."""
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
    return bool(means.mean() > _FAR * means.std(ddof=1) / np.sqrt(len(means)))


def _squares(x: Array, y: Array, inner: Array, lag: int) -> Array:
    """e² of the inner rows."""
    before, after = x[inner] - x[inner - lag], x[inner + lag] - x[inner]
    share = np.divide(after, before + after, out=np.full(len(inner), 0.5), where=before + after > 0)
    off = y[inner] - share * y[inner - lag] - (1 - share) * y[inner + lag]
    result: Array = off**2 / (1 + share**2 + (1 - share) ** 2)
    return result
