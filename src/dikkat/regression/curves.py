"""A smooth curve with confidence intervals in one call, and Cleveland's LOWESS."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.regression import pictures
from dikkat.regression.columns import columns_of, is_iso_date, is_missing, is_number, text_dates
from dikkat.regression.estimator import KernelRegressor
from dikkat.regression.frames import check_labels, dates_in
from dikkat.regression.joined import Array
from dikkat.regression.shapes import Band
from dikkat.regression.validation import check_count, fill_masked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 201  # points of a curve by default
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True, repr=False)
class Smooth(Band):
    """A curve with pointwise confidence intervals: a `Band`, and its bandwidth.

    Attributes:
        bandwidth: σ, in units of x; in days for dates.
        data: The x and the y of the points, each (n,).
    """

    bandwidth: float
    data: tuple[NDArray[Any], Array] = field(repr=False)

    _kind: ClassVar[str] = "confidence"

    def _draw_background(self, ax: Axes) -> None:
        pictures.draw_points(ax, *self.data)


def smooth(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, *, at: ArrayLike | None = None, robust: int = 0,
    sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None, **settings: Any,
) -> Smooth:  # fmt: skip
    """Fit a curve through points, with a bandwidth from a search, and pointwise confidence intervals.

    Args:
        x: (n,), numbers, or dates, also as texts such as "2024-01-31". Points that lack x, y or a weight (NaN, NaT,
            None) are left out with a warning.
        y: (n,), numbers.
        level: The probability, between 0 and 1, that an interval contains the expected value at its position, if rows
            are independent. The probability that all intervals do is smaller.
        at: (k,), the positions to evaluate, in any order, like x; None for 201 positions from the least to the
            greatest x.
        robust: The number of refits with bisquare weights, which are 0 for residuals of six times the median or more.
        sample_weight: (n,), the count of each point, or with weights="precision" 1/σ² of each y.
        groups: (n,), the group of each point, for a setting `cv` that splits by groups.
        **settings: Settings of `KernelRegressor`.

    Returns:
        The curve.

    Raises:
        ValueError: If arrays or their labels do not match, numbers are infinite, no point is complete, or `level` or
            `robust` is invalid.

    Source: Cleveland 1979, Robust locally weighted regression and smoothing scatterplots (the weights).

    Example:
        >>> x = np.linspace(0, 5, 50)
        >>> curve = smooth(x, np.sin(x) + 0.1 * np.cos(99 * x))
        >>> len(curve.x), bool(np.all(curve.lower < curve.upper))
        (201, True)
    """
    check_count("robust", robust, minimum=0)
    check_labels(x=x, y=y, sample_weight=sample_weight, groups=groups)
    origin, by_row = _first_date(x), dict[str, ArrayLike]()
    if sample_weight is not None:
        by_row["sample_weight"] = sample_weight
    if groups is not None:
        by_row["groups"] = np.unique(np.asarray(groups).astype(str), return_inverse=True)[1]
    points, values, *_ = complete = _complete({"x": x, "y": y, **by_row}, origin)
    fitted_by_row = dict(zip(by_row, complete[2:], strict=True))
    model = KernelRegressor(**{"logarithms": None} | settings).fit(points[:, None], values, **fitted_by_row)
    for _ in range(robust):
        weight = _bisquare(values - np.asarray(model.predict(points[:, None])))
        weight *= fitted_by_row.get("sample_weight", 1.0)
        model._fit_in_place(points[:, None], values, weight, fitted_by_row.get("groups"), warns=False)
    grid = columns_of(model)[0].grid(points.min(), points.max(), _POINTS)
    positions = grid if at is None else _complete({"at": at}, origin)[0]
    query = positions[:, None]
    lower, upper = model.confidence_interval(query, level)
    curve_x, data_x = (
        days if origin is None else origin + (days * _DAY).round().astype("timedelta64[us]")
        for days in (positions, points)
    )
    names = getattr(x, "name", None) or "x", getattr(y, "name", None) or "y"
    return Smooth(
        curve_x, np.asarray(model.predict(query)), lower, upper, float(level), (str(names[0]), str(names[1])),
        float(model.bandwidth_[0]), (data_x, values),
    )  # fmt: skip


def lowess(y: ArrayLike, x: ArrayLike, frac: float = 2 / 3, it: int = 3, xvals: ArrayLike | None = None) -> Array:
    """Fit robust local lines through the nearest points, with the results of statsmodels' `lowess`.

    At each point a line is fitted with tricube weights to the share `frac` of the points that are nearest along x. Then
    the lines are refitted with bisquare weights of the residuals. If all nearest points have the same x, the result is
    the mean of the points at that x, which does not depend on their order. The arguments `delta`, `missing`,
    `is_sorted` and `return_sorted` of statsmodels are not supported.

    Args:
        y: (n,), numbers.
        x: (n,), numbers or dates, as for `smooth`. Points that lack x or y are left out with a warning.
        frac: The share of the points for each line, between 0 and 1.
        it: The number of refits with weights from the residuals.
        xvals: (k,), positions to evaluate instead of x, like x.

    Returns:
        (n, 2): x in ascending order (dates in days since the first), and the fitted values. With `xvals` (k,), the
        values in their order.

    Raises:
        ValueError: If arrays or their labels do not match, numbers are infinite, or `frac` or `it` is invalid.

    Source: Cleveland 1979, Robust locally weighted regression and smoothing scatterplots.

    Example:
        >>> x = np.arange(5.0)
        >>> lowess(2 * x, x, frac=0.8)[:, 1].round(6)
        array([0., 2., 4., 6., 8.])
    """
    check_count("it", it, minimum=0)
    if not (isinstance(frac, Real) and 0 <= frac <= 1):
        raise ValueError(f"frac: got {frac!r}; expected a number from 0 to 1, such as 0.67")
    check_labels(x=x, y=y)
    origin = _first_date(x)
    points, values = _complete({"x": x, "y": y}, origin)
    order = np.argsort(points)
    points, values = points[order], values[order]
    count = min(max(2, int(frac * len(points) + 1e-10)), len(points))
    weight = np.ones(len(points))

    def fit(at: Array) -> Array:
        # Each position's window: the first one whose midpoint, with the next point included, is not below the position.
        start, fitted = np.searchsorted((points[: len(points) - count] + points[count:]) / 2, at), np.empty(len(at))
        _compiled()(at, points, values, weight, start, count, fitted)
        return fitted

    for _ in range(it):
        weight = _bisquare(values - fit(points))
    if xvals is None:
        return np.column_stack([points, fit(points)])
    positions, index = np.unique(_complete({"xvals": xvals}, origin)[0], return_inverse=True)
    return fit(positions)[index]


def _lines(at: Array, x: Array, y: Array, weight: Array, start: Any, count: int, fitted: Array) -> None:
    """Write the heights at sorted positions of the lines through the windows of `count` points from `start`."""
    for i in range(len(at)):
        first, center = start[i], at[i]
        if i and center == at[i - 1]:
            fitted[i] = fitted[i - 1]
            continue
        radius = max(center - x[first], x[first + count - 1] - center)
        total = offset = square = value = cross = 0.0
        seen_points = 0.0
        scale = 1 / radius if radius > 0 else 0.0
        for j in range(first, first + count):
            delta = (x[j] - center) * scale
            profile = 1 - abs(delta) * delta * delta
            share = profile * profile * profile * weight[j]
            seen_points += 1.0 if share > 1e-12 else 0.0
            total += share
            offset += share * delta
            square += share * delta * delta
            value += share * y[j]
            cross += share * delta * y[j]
        if seen_points < 2 or radius == 0:
            same_x = np.searchsorted(x, center)
            end = np.searchsorted(x, center, side="right")
            if same_x < end:
                total, value = weight[same_x:end].sum(), (weight[same_x:end] * y[same_x:end]).sum()
            fitted[i] = value / total if total > 0 else y[same_x:end].mean() if same_x < end else np.nan
            continue
        offset, value = offset / total, value / total
        variance = max(square / total - offset * offset, 1e-12 * scale * scale)  # as in statsmodels, in units of x
        fitted[i] = value - offset * (cross / total - offset * value) / variance


@cache
def _compiled() -> Any:
    from numba import njit

    return njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "nnan", "ninf"}, nogil=True)(_lines)


def _bisquare(residual: Array) -> Array:
    """Return bisquare weights (n,) of residuals over six medians; if the median is 0, weight 1 for residuals of 0."""
    size = np.abs(residual)
    middle = float(np.median(size))
    scaled = size / (6 * middle) if middle > 0 else (size > 0).astype(np.float64)
    return np.asarray((1 - np.minimum(scaled, 1) ** 2) ** 2)


def _first_date(values: ArrayLike) -> np.datetime64 | None:
    """Return the first date, from which days are counted; None for numbers."""
    dates = _dates(values)
    return None if dates is None or not dates.size else np.fmin.reduce(dates.ravel())


def _dates(values: ArrayLike) -> NDArray[np.datetime64] | None:
    """Return dates, or texts that are dates; None for other values."""
    dates, cells = dates_in(values), np.asarray(values)
    return text_dates(cells) if dates is None and cells.ndim == 1 else dates


def _complete(columns: dict[str, ArrayLike], origin: np.datetime64 | None) -> list[Array]:
    """Return the columns without the rows in which one of them is missing; the first has days since `origin`."""
    arrays = [_numbers(name, values, None if k else origin) for k, (name, values) in enumerate(columns.items())]
    names, shape = ", ".join(columns), arrays[0].shape
    for name, array in zip(columns, arrays, strict=True):
        if array.ndim != 1 or array.shape != shape or not array.size:
            expected = f"({shape[0]},), one for each x" if array is not arrays[0] else "(n,) numbers, at least one"
            raise ValueError(f"{name}: got shape {array.shape}; expected {expected}")
    is_complete = np.asarray(~np.isnan(arrays).any(0))
    lost = f"{(~is_complete).sum()} of {len(is_complete)} rows with a missing cell"
    if not is_complete.any() or (len(arrays) == 1 and not is_complete.all()):
        raise ValueError(f"{names}: got {lost}; expected complete rows")
    if not is_complete.all():
        warnings.warn(f"{names}: got {lost}, which are left out", UserWarning, stacklevel=3)
    return [array[is_complete] for array in arrays]


def _numbers(name: str, values: ArrayLike, origin: np.datetime64 | None) -> Array:
    """Return a column as numbers, with NaN for missing cells; dates are days since `origin`."""
    dates = _dates(fill_masked(values))
    if dates is not None and origin is not None:
        return np.where(np.isnat(dates), np.nan, (dates - origin).astype(np.float64) / _DAY)
    if dates is not None or origin is not None:
        expected = "numbers" if origin is None else "dates like x, such as '2024-01-31'"
        is_text = np.asarray(values).dtype.kind in "OU"
        got = (
            repr(_first_unreadable(np.ravel(np.asarray(values, object)).tolist()))
            if is_text
            else np.asarray(values).dtype
        )
        raise ValueError(f"{name}: got {got}; expected {expected}")
    try:
        array = np.asarray(fill_masked(values), np.float64)
    except (TypeError, ValueError):
        bad = [cell for cell in np.ravel(np.asarray(values, object)).tolist() if not is_number(cell)]
        expected = "numbers"
        if name == "x":
            expected += ", or dates such as '2024-01-31' (pandas.to_datetime(x, format='%d/%m/%Y') reads other forms)"
        raise ValueError(f"{name}: got {_first_unreadable(bad)!r}; expected {expected}") from None
    if np.isinf(array).any():
        raise ValueError(f"{name}: got {np.isinf(array).sum()} of {array.size} cells infinite; expected finite numbers")
    return array


def _first_unreadable(cells: list[Any]) -> Any:
    """Return the first cell that is neither missing nor a date, else the first cell."""
    return next((cell for cell in cells if not (is_missing(cell) or is_iso_date(cell))), cells[0])
