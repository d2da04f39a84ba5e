"""A curve through points in one call, with where the expected value is; and LOWESS as Cleveland has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.regression.estimator import KernelRegressor
from dikkat.regression.joined import Array
from dikkat.regression.validation import check_count, unmasked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLACES = 201  # of a curve
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class Smooth:
    """A curve.

    Attributes:
        x: (k,), where it is evaluated: ascending, or `at` in its order; datetime64 if the points' x are dates.
        y: (k,), the estimate.
        lower: (k,), the lower ends of the confidence intervals.
        upper: (k,), the upper ends.
        bandwidth: σ, in units of x; of dates in days.
        level: The chance with which an interval holds the expected value at its place.
    """

    x: NDArray[Any]
    y: Array
    lower: Array
    upper: Array
    bandwidth: float
    level: float

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the curve and its intervals.

        Args:
            ax: Where to; None for matplotlib's current axes.
            **style: For the line, as `Axes.plot` takes it.

        Returns:
            The axes.
        """
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        order = np.argsort(self.x)
        x, y, lower, upper = (each[order] for each in (self.x, self.y, self.lower, self.upper))
        (line,) = ax.plot(x, y, **style)
        lower, upper = (np.where(np.isfinite(each), each, np.nan) for each in (lower, upper))
        ax.fill_between(x, lower, upper, color=line.get_color(), alpha=0.25, linewidth=0)
        return ax


def smooth(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, *, at: ArrayLike | None = None, robust: int = 0,
    sample_weight: ArrayLike | None = None, **settings: Any,
) -> Smooth:  # fmt: skip
    """A curve through points, with a bandwidth that is found, and pointwise confidence intervals.

    Args:
        x: (n,), finite numbers, or dates (datetime64, or a series of pandas').
        y: (n,), finite numbers.
        level: The chance, between 0 and 1, that an interval holds the expected value at its place, where rows do not
            depend on each other; all intervals at once hold it less often.
        at: (k,), where to evaluate, in any order, like x; None for 201 places from the least to the greatest x.
        robust: So many times the fit is made again with bisquare weights, in which a point that is six times as far
            off as the median one counts for nothing.
        sample_weight: (n,), how often each point counts, or with weights="precision" 1/σ² of each y.
        **settings: Of `KernelRegressor`.

    Returns:
        The curve.

    Raises:
        ValueError: Arrays that do not fit or are not finite; a level or a number of passes that is none.

    Source: Cleveland 1979, Robust locally weighted regression and smoothing scatterplots (the weights).

    Example:
        >>> x = np.linspace(0, 5, 50)
        >>> curve = smooth(x, np.sin(x) + 0.1 * np.cos(99 * x))
        >>> len(curve.x), bool(np.all(curve.lower < curve.upper))
        (201, True)
    """
    check_count("robust", robust, minimum=0)
    values, origin = _column("y", y), _first_date(x)
    points = _column("x", x, origin)
    model = KernelRegressor(**settings).fit(points[:, None], values, sample_weight)
    weights = np.ones(len(points)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    for _ in range(robust):
        weight = weights * _bisquare(values - np.asarray(model.predict(points[:, None])))
        model._learn(points[:, None], values, weight, warns=False)
    places = np.linspace(points.min(), points.max(), _PLACES) if at is None else _column("at", at, origin)
    query = places[:, None]
    lower, upper = model.confidence_interval(query, level)
    shown = places if origin is None else origin + (places * _DAY).round().astype("timedelta64[us]")
    return Smooth(shown, np.asarray(model.predict(query)), lower, upper, float(model.bandwidth_[0]), float(level))


def lowess(y: ArrayLike, x: ArrayLike, frac: float = 2 / 3, it: int = 3) -> Array:
    """Robust local lines through the nearest points, with the numbers of statsmodels' `lowess`.

    At each point a line is fitted to the share `frac` of the points that are nearest to it along x, with tricube
    weights; then again with bisquare weights of the residuals. Where all of these points are in one place, the mean of
    the points there is the answer, so that nothing hangs on the order of the points. Of statsmodels' arguments it has
    these four alone: not `delta`, `xvals`, `missing`, `is_sorted` and `return_sorted`.

    Args:
        y: (n,), finite numbers.
        x: (n,), finite numbers.
        frac: The share of the points that each line is fitted to, between 0 and 1.
        it: How often to fit again, by the residuals.

    Returns:
        (n, 2): x in ascending order, and the fitted values.

    Raises:
        ValueError: Arrays that do not fit or are not finite; a `frac` or `it` that is none.

    Source: Cleveland 1979, Robust locally weighted regression and smoothing scatterplots.

    Example:
        >>> x = np.arange(5.0)
        >>> lowess(2 * x, x, frac=0.8)[:, 1].round(6)
        array([0., 2., 4., 6., 8.])
    """
    check_count("it", it, minimum=0)
    if not (isinstance(frac, Real) and 0 <= frac <= 1):
        raise ValueError(f"frac: got {frac!r}; expected a number from 0 to 1, such as 0.67")
    points, values = _column("x", x), _column("y", y)
    if len(points) != len(values):
        raise ValueError(f"y: got {len(values)} numbers; expected {len(points)}, one for each of x")
    order = np.argsort(points)
    points, values = points[order], values[order]
    count = min(max(2, int(frac * len(points) + 1e-10)), len(points))
    # The window of each point: the first whose middle, with the next point, it is not beyond.
    start = np.searchsorted((points[: len(points) - count] + points[count:]) / 2, points)
    weight, fitted = np.ones(len(points)), np.empty(len(points))
    for _ in range(it + 1):
        _compiled()(points, values, weight, start, count, fitted)
        weight = _bisquare(values - fitted)
    return np.column_stack([points, fitted])


def _lines(x: Array, y: Array, weight: Array, start: Any, count: int, fitted: Array) -> None:
    """The heights at x of the lines through the windows that start there."""
    for i in range(len(x)):
        first, at = start[i], x[i]
        if i and at == x[i - 1]:
            fitted[i] = fitted[i - 1]
            continue
        radius = max(at - x[first], x[first + count - 1] - at)
        total = offset = square = value = cross = 0.0
        seen = 0.0
        by = 1 / radius if radius > 0 else 0.0
        for j in range(first, first + count):
            away = (x[j] - at) * by
            near = 1 - abs(away) * away * away
            share = near * near * near * weight[j]
            seen += 1.0 if share > 1e-12 else 0.0
            total += share
            offset += share * away
            square += share * away * away
            value += share * y[j]
            cross += share * away * y[j]
        if seen < 2 or radius == 0:
            total = value = middle = 0.0
            last = i
            while last < len(x) and x[last] == at:
                total, value, middle = total + weight[last], value + weight[last] * y[last], middle + y[last]
                last += 1
            fitted[i] = value / total if total > 0 else middle / (last - i)
            continue
        offset, value = offset / total, value / total
        spread = max(square / total - offset * offset, 1e-12 * by * by)  # as statsmodels has it, in units of x
        fitted[i] = value - offset * (cross / total - offset * value) / spread


@cache
def _compiled() -> Any:
    from numba import njit

    return njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "nnan", "ninf"}, nogil=True)(_lines)


def _bisquare(residual: Array) -> Array:
    """(n,), by their size over six times the median one's; where that is 0, by whether they are 0."""
    size = np.abs(residual)
    middle = float(np.median(size))
    scaled = size / (6 * middle) if middle > 0 else (size > 0).astype(np.float64)
    return np.asarray((1 - np.minimum(scaled, 1) ** 2) ** 2)


def _first_date(given: ArrayLike) -> np.datetime64 | None:
    """The first of dates, from which days are counted; None of numbers."""
    array = np.asarray(given)
    return np.fmin.reduce(array.astype("datetime64[us]")) if array.dtype.kind == "M" and array.size else None


def _column(name: str, given: ArrayLike, origin: np.datetime64 | None = None) -> Array:
    array = np.asarray(given)
    if (array.dtype.kind == "M") != (origin is not None):
        expected = "numbers" if origin is None else "dates (datetime64), as x has them"
        raise ValueError(f"{name}: got {array.dtype}; expected {expected}")
    if origin is not None:
        days = (array.astype("datetime64[us]") - origin).astype(np.float64) / _DAY
        array = np.where(np.isnat(array), np.nan, days)
    array = np.asarray(unmasked(given) if origin is None else array, np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name}: got shape {array.shape}; expected (n,) numbers, at least one")
    if lost := int((~np.isfinite(array)).sum()):
        raise ValueError(f"{name}: got {lost} of {len(array)} cells missing or infinite; expected finite numbers")
    return array
