r"""Slopes, minima and differences of curves, with intervals.

**Rows.** A local cubic along one feature is fitted with the kernel's weights at the bandwidth of the fit: the design is
$z = (1, \delta, \delta_c^2, \delta_c^3)$, with no ridge on the terms of feature c, and the ridge of the fit on the
slopes of other features. Its height and slope are linear in y: $\sum_j l_j y_j$ and $\sum_j l'_j y_j$. Their biases
have the order of the fourth power of the bandwidth. They are small compared with the noise at this bandwidth, which is
chosen for local lines. The rows include the plane to which the ridge shrinks. With the noise s² and its
degrees of freedom ν (`dikkat.regression.smoother`), the slope has the standard error
$s\,(\sum_j l_j'^2/W_j)^{1/2}$ and Student's quantile of ν.

Along a periodic number the cubic has the terms s, k and s k with $s = \tfrac12 \sin\varphi$ and
$k = \tfrac12 (1 - \cos\varphi)$, where φ is the angle between a row and the query. Near the query they span the same
functions as the first three powers of φ, and they do not jump at the opposite side of the circle.

**Minimum.** The interval contains the middle of the positions of the minima of random curves: the heights plus
$\sum_j l_j s \varepsilon_j$ with independent $\varepsilon_j$ of Student's distribution with a common scale.

**Difference of two groups.** Each group has its own search and its own cubic. The band is simultaneous: with
$T(x)$ the normalised row of the difference and $\kappa_0 = \int \lVert T'(x) \rVert\,dx$ its half width is c standard
errors, where

$$ \frac{\kappa_0}{\pi} \Big(1 + \frac{c^2}{\nu}\Big)^{-\nu/2} + P(|t_\nu| > c) = 1 - \text{level} . $$

Source: Calonico, Cattaneo and Farrell 2018 (higher orders at the same bandwidth); Di Marzio, Panzera and Taylor 2009,
Local polynomial regression for circular predictors (sines as powers); Sun and Loader 1994, Simultaneous confidence
bands for linear regression and smoothing (the tube formula).
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import t as student

from dikkat.extras import require_extra
from dikkat.regression import pictures, validation
from dikkat.regression.columns import Level, columns_of, format_number, list_some, names_of
from dikkat.regression.diagnostics import influence, middles
from dikkat.regression.effects import locals_at
from dikkat.regression.frames import columns_of_frame
from dikkat.regression.joined import Array
from dikkat.regression.local import least_ridge
from dikkat.regression.smoother import Confidence, Smoother

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_POINTS = 201  # points of a band
_FINE = 2  # times as many for a minimum
_DRAWS = 2000  # curves of which the minimum is looked for
_SEPARATE = _FINE * _POINTS // 20  # neighbouring positions without a minimum, between separate places
_LEAST_ROWS = 0.1  # Σ W K below which a position is too far from all rows
_ROUNDING = 1e-12  # the half sine of an angle below which it is 0


class Estimate(NamedTuple):
    """A value and its confidence interval.

    Attributes:
        value: The estimate, inside the interval.
        lower: The lower end.
        upper: The upper end.
    """

    value: Any
    lower: Any
    upper: Any


@dataclass(frozen=True, repr=False)
class Band:
    """A curve with a confidence band.

    Attributes:
        x: (k,), the evaluated positions: ascending, or as they were passed; datetime64 for dates.
        y: (k,), the estimates.
        lower: (k,), the lower ends.
        upper: (k,), the upper ends.
        level: The level of confidence.
        names: The names of x and y, for the axes of a plot.
    """

    x: NDArray[Any]
    y: Array
    lower: Array
    upper: Array
    level: float
    names: tuple[str, str]

    _kind: ClassVar[str] = "simultaneous confidence"

    def __repr__(self) -> str:
        is_date = self.x.dtype.kind == "M"
        low, high = (str(end)[:10] if is_date else format_number(end) for end in (self.x.min(), self.x.max()))
        return f"{type(self).__name__}({len(self.x)} positions from {low} to {high}, level {self.level:g})"

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with the columns x, y, lower and upper.

        Raises:
            ImportError: pandas is not installed.
        """
        with require_extra("regression"):
            import pandas
        return pandas.DataFrame({"x": self.x, "y": self.y, "lower": self.lower, "upper": self.upper})

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the curve and its band, and a line at 0 for a difference or the data points of `smooth`.

        Args:
            ax: The axes; None for matplotlib's current axes.
            **style: Line style, passed to `Axes.plot`.

        Returns:
            The axes, with a legend.
        """
        ax = ax or pictures.current_axes()
        self._draw_background(ax)
        order = np.argsort(self.x)
        x, y, lower, upper = (values[order] for values in (self.x, self.y, self.lower, self.upper))
        (line,) = ax.plot(x, y, **{"label": "estimate"} | style)
        lower, upper = (np.where(np.isfinite(values), values, np.nan) for values in (lower, upper))
        band_name = f"{100 * self.level:g} % {self._kind}"
        ax.fill_between(x, lower, upper, color=line.get_color(), alpha=0.25, linewidth=0, label=band_name)
        pictures.set_labels(ax, *self.names)
        ax.legend(edgecolor="none")
        return ax

    def _draw_background(self, ax: Axes) -> None:
        ax.axhline(0, color="0.2", linestyle="--", linewidth=1)


class Shapes:
    """The methods of `KernelRegressor` for the shape of its curve along one feature."""

    def derivative(self, X: ArrayLike, feature: str | int | None = None, level: float = 0.95) -> Estimate:
        """Return the slope of the regression function along one feature, with pointwise confidence intervals.

        The slope is that of a local cubic, which has less bias than `gradient`, the derivative of `predict`.

        Args:
            X: (n, d).
            feature: The name or position of a number or date, or of a periodic number; None if there is only one.
            level: The probability, between 0 and 1, that an interval contains the slope.

        Returns:
            An `Estimate` of (n,) arrays, in units of y per unit of the feature (per day for dates). The ends are
            infinite if too few rows are near, as in a gap of several bandwidths.

        Raises:
            ValueError: As for `predict`; several targets, a learned metric, a category as the feature.

        Source: the formula is in `dikkat.regression.shapes`.

        Example:
            >>> from dikkat.regression import KernelRegressor
            >>> x = np.linspace(0, 5, 50)
            >>> model = KernelRegressor().fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> slope, lower, upper = model.derivative([[0.5], [3.0]])
            >>> bool((lower < np.cos([0.5, 3.0])).all() and (np.cos([0.5, 3.0]) < upper).all())
            True
        """
        model: Any = self
        x, share = model._query_cells(X, warns=True), validation.check_share("level", level, 0.95)
        slope = _Cubic.at(model, x, _number(model, feature), with_rows=False).slope
        center, half = slope.center[:, 0], np.nan_to_num(slope.half(share)[:, 0], nan=np.inf, posinf=np.inf)
        lower, upper = (np.where(np.isinf(end), end, center + end) for end in (-half, half))
        return Estimate(center, lower, upper)

    def argmin(self, feature: str | int | None = None, X: ArrayLike | None = None, level: float = 0.95) -> Estimate:
        """Return the position of the least expected value along one feature, with a confidence interval.

        The curve is a local cubic, which has less bias than `predict` where the function is curved. So the position can
        differ from the minimum of `predict`.

        Args:
            feature: The name or position of a number or date, or of a periodic number; None if there is only one.
            X: (1, d), the values of the other features, with or without this feature; None for their medians and most
                frequent categories.
            level: The probability, between 0 and 1, that the interval contains the position.

        Returns:
            An `Estimate` of numbers, or of datetime64 for dates, within the rows of `fit`. An end at the border of the
            data means that the function may be lower beyond. For a periodic number the value is at least 0 and below
            the period, and the ends may be outside this range: from −1 to 2 of 24 hours is from 23 to 2.

        Raises:
            ValueError: As for `derivative`.

        Warns:
            UserWarning: The interval contains separate places, such as two equally low minima.

        Source: the formula is in `dikkat.regression.shapes`.

        Example:
            >>> from dikkat.regression import KernelRegressor
            >>> x = np.linspace(0, 5, 50)
            >>> minimum = KernelRegressor().fit(x[:, None], (x - 2) ** 2 + 0.1 * np.cos(99 * x)).argmin()
            >>> round(minimum.value, 1), minimum.lower < 2 < minimum.upper
            (2.0, True)
        """
        return _extremum(self, feature, X, level, 1)

    def argmax(self, feature: str | int | None = None, X: ArrayLike | None = None, level: float = 0.95) -> Estimate:
        """Return the position of the greatest expected value along one feature; see `argmin`.

        Args:
            feature: As for `argmin`.
            X: As for `argmin`.
            level: As for `argmin`.

        Returns:
            As for `argmin`.

        Raises:
            ValueError: As for `argmin`.

        Warns:
            UserWarning: As for `argmin`.

        Example:
            >>> from dikkat.regression import KernelRegressor
            >>> hour = np.arange(96.0)[:, None] % 24
            >>> load = np.cos((hour[:, 0] - 19) * np.pi / 12) + 0.1 * np.cos(99 * np.arange(96))
            >>> peak = KernelRegressor(periodic_features={0: 24}).fit(hour, load).argmax()
            >>> round(peak.value), peak.lower < 19 < peak.upper
            (19, True)
        """
        return _extremum(self, feature, X, level, -1)

    def difference(
        self, by: str | int, levels: ArrayLike | None = None, feature: str | int | None = None, level: float = 0.95
    ) -> Band:
        """Return the difference of two groups' curves along one feature, with a simultaneous confidence band.

        Each group is fitted on its own rows, with its own search. Other features stay at their medians and most
        frequent categories.

        Args:
            by: The name or position of a category, or of a column of False and True.
            levels: Two of its levels; None if there are only two. The curve of the first is subtracted from the second.
            feature: The name or position of a number or date; None for the most influential one.
            level: The probability, between 0 and 1, that the band contains the difference at all positions.

        Returns:
            The `Band` over the range that both groups share. If it excludes 0 somewhere, the curves differ.

        Raises:
            ValueError: As for `derivative`; a `by` that is not a category, other than two levels, groups whose ranges
                do not overlap.

        Source: the formula is in `dikkat.regression.shapes`.

        Example:
            >>> import pandas as pd
            >>> from dikkat.regression import KernelRegressor
            >>> x, group = np.tile(np.linspace(0, 5, 50), 2), np.repeat(["a", "b"], 50)
            >>> y = np.sin(x) + (group == "b") * x / 5 + 0.1 * np.cos(99 * x)
            >>> band = KernelRegressor().fit(pd.DataFrame({"x": x, "group": group}), y).difference("group")
            >>> bool(((band.lower < band.x / 5) & (band.x / 5 < band.upper)).all())
            True
        """
        model: Any = self
        share, (by_column, known) = validation.check_share("level", level, 0.95), groups_of(model, by)
        codes = _two_levels(known, levels)
        j = _number(model, feature, is_needed=False)
        groups = [np.flatnonzero((model.X_train_[:, by_column] == code) & (model.sample_weight_ > 0)) for code in codes]
        if empty := [code for code, group in zip(codes, groups, strict=True) if len(group) < 2]:
            raise ValueError(
                f"levels: got fewer than two rows of {known[empty[0]]!r} with weight; expected at least two"
            )
        low, high = (end([pick(model.X_train_[rows, j]) for rows in groups]) for end, pick in ((max, min), (min, max)))
        if not low < high:
            raise ValueError(
                f"by: got groups with no common range of {names_of(model)[j]!r}; expected ranges that overlap"
            )
        column, curves = columns_of(model)[j], list[_Cubic]()
        at = column.grid(low, high, _POINTS)
        for code, rows in zip(codes, groups, strict=True):
            points = _along(middles(model), j, at)
            points[:, by_column] = code
            curves.append(_Cubic.at(model._refit(model._rows.take(rows)), points, j))
        center, half = _difference_band(curves, share)
        x = np.array([column.moment(end) for end in at]) if column.kind == "date" else at
        first, second = (known[code] for code in codes)
        names = names_of(model)[j], f"{model.target_name_ or 'y'}: {second} minus {first}"
        return Band(x, center, center - half, center + half, share, names)


class _Cubic(NamedTuple):
    """Heights and slopes of local cubics at k queries.

    Attributes:
        height: With `error` and `freedom`.
        slope: The same of the derivative.
        row: (k, m), l, each entry times the standard deviation of its row's mean; (k, 0) without rows.
        reached: (k,), True if rows are in reach.
    """

    height: Confidence
    slope: Confidence
    row: Array
    reached: NDArray[np.bool_]

    @classmethod
    def at(cls, model: Any, x: Array, feature: int, with_rows: bool = True) -> _Cubic:
        """Return the fits at rows like `X_train_`, along a numeric feature; `with_rows` needs memory of k × m."""
        smoother, query = model._smoother, model._coordinates(x).astype(np.float64)
        coding, column = model._rows.coding, columns_of(model)[feature]
        along = np.flatnonzero(coding.feature_of == coding.order.tolist().index(feature))
        if column.kind == "periodic":
            tangent = np.zeros(query.shape)
            tangent[:, along] = query[:, along[::-1]] * [-1, 1] * 2 * np.pi / float(column.levels[0])
        else:
            tangent = coding.slopes(x)[:, along] * coding.jacobian(query)[:, along[0]]
        joined, sums, rows = smoother.joined, list[Array](), list[Array]()
        for chunk, row, mass in _cubic_rows(smoother, query, along, tangent):
            scaled = row / np.sqrt(joined.weight)
            square = np.where(mass > _LEAST_ROWS, (scaled**2).sum(2), np.inf)
            row[~tangent[chunk].any(1), 1] = np.nan  # a number that counts as 0 in a column of logarithms
            sums.append(np.stack([row @ joined.y[:, 0], square], 2))
            rows.append(scaled[:, 0] if with_rows else np.empty((len(row), 0)))
        center, square = np.concatenate(sums).transpose(2, 0, 1)
        noise, freedom = smoother.noise(query)
        deviation = np.sqrt(noise[:, :1])
        with np.errstate(invalid="ignore"):  # an infinite deviation times 0
            error = np.where(np.isfinite(center), np.sqrt(square) * deviation, np.inf)
            row = np.concatenate(rows) * deviation
        height = Confidence(center[:, :1] + joined.origin[0], error[:, :1], freedom)
        slope = Confidence(center[:, 1:], error[:, 1:], freedom)
        return cls(height, slope, row, np.isfinite(square[:, 0]))


def _cubic_rows(
    smoother: Smoother, query: Array, feature: NDArray[np.intp], tangent: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield for some queries at a time the rows (k, 2, m) of height and slope along a feature, and Σ W K (k, 2).

    For a slope that no row determines Σ W K is 0.

    `feature` has the feature's coordinate, or the two coordinates of a periodic number, and `tangent` is the derivative
    of the queries (n, coordinates) by the feature's cells.
    """
    trend, joined = smoother.trend, smoother.joined
    unit = trend.spread
    origin = torch.tensor(joined.x[0, : len(unit)]).double()
    scaled_x = (torch.tensor(joined.x[:, : len(unit)]).double() - origin) / unit
    is_circle, count = len(feature) == 2, len(np.unique(joined.x[:, feature], axis=0))
    for chunk, local in locals_at(smoother, query):
        size = (local.share[:, None] @ local.delta.square())[:, 0].sqrt()
        size = torch.where(size > 0, size, 1.0)
        z = local.delta / size[:, None]
        if is_circle:
            along, bend = map(torch.tensor, _circle_terms(query[chunk][:, feature], joined.x[:, feature]))
            terms = [along, bend, along * bend][: (count + 1) // 2]  # as many as the values determine
            c, rate = z.shape[2], np.linalg.norm(tangent[chunk], axis=1)
        else:
            c = int(feature[0])
            terms = [z[..., c] ** power for power in range(2, min(4, count))]
            rate = tangent[chunk, c] / (size[:, c] * local.bandwidth[:, c]).numpy()
        constant, *powers = (term[..., None] for term in (torch.ones_like(local.share), *terms))
        design = torch.cat([constant, z, *powers], -1)
        ridge = torch.nn.functional.pad(local.ridge / size.square(), (1, len(terms)))
        ridge[:, 1 + c] = 0
        system = design.mT @ (local.share[..., None] * design)
        second = system.diagonal(dim1=1, dim2=2)
        ridge = ridge + torch.where(second > 0, least_ridge(torch.float64) * second, 1.0)
        ridge[:, 0] = 0  # rows of the height sum to 1
        conditions = torch.zeros(len(z), design.shape[2], 2, dtype=torch.float64)
        along_query = torch.tensor(tangent[chunk, : len(unit)])
        conditions[:, 0, 0], conditions[:, 1 + c, 1] = 1, torch.tensor(rate)
        scale = (second + ridge).sqrt()[..., None]  # a ridge may be 10³⁰
        system = (system + torch.diag_embed(ridge)) / scale / scale.mT
        system[~local.reached] = torch.eye(system.shape[1]).double()
        solved = torch.linalg.solve(system, conditions / scale) / scale
        rows = (local.share[..., None] * (design @ solved)).mT  # NaN if no row is in reach
        mass = local.lse.exp()[:, None].repeat(1, 2)
        mass[second[:, 1 + c] == 0, 1] = 0  # all rows are at the query, or opposite to it on the circle
        position = (torch.tensor(query[chunk, : len(unit)]) - origin) / unit
        target = torch.stack([position, along_query / unit], 1)
        rows = rows + smoother.shrinks * (target - rows @ scaled_x) @ trend.row.mT
        yield chunk, rows.numpy(), mass.numpy()


def _circle_terms(query: Array, x: Array) -> tuple[Array, Array]:
    """Return sin φ / 2 and (1 − cos φ) / 2, each (n, m), of the angles φ from queries (n, 2) to rows (m, 2)."""
    along = 2 * (query[:, :1] * x[:, 1] - query[:, 1:] * x[:, 0])  # the circle has the diameter 1
    return np.where(np.abs(along) < _ROUNDING, 0.0, along), np.asarray(0.5 - 2 * query @ x.T)


def _extremum(model: Any, feature: str | int | None, X: Any, level: float, sign: int) -> Estimate:
    """Return the position of the minimum for `sign` 1, or of the maximum for −1."""
    j, share = _number(model, feature), validation.check_share("level", level, 0.95)
    data, column, name = model.X_train_[model.sample_weight_ > 0, j], columns_of(model)[j], names_of(model)[j]
    if name in getattr(model, "feature_names_in_", ()) and (names := columns_of_frame(X)) and name not in names:
        add_column = X.assign if hasattr(X, "assign") else X.with_columns  # pandas, polars
        X = add_column(**{name: column.cell(float(data[0]))})
    row = middles(model) if X is None else model._query_cells(X)
    at, period = column.grid(data.min(), data.max(), _FINE * _POINTS), 0.0
    if column.kind == "periodic":  # one period around the minimum of the estimate
        period = float(column.levels[0])
        at = np.linspace(0, period, _FINE * _POINTS)
        at += at[(sign * np.asarray(model._estimate(_along(row, j, at))).ravel()).argmin()] - period / 2
    ends = _minimum(at, _Cubic.at(model, _along(row, j, at), j), share, sign, name)
    ends = ends - period * np.floor(ends[0] / period) if period else ends
    return Estimate(*(column.moment(end) if column.kind == "date" else float(end) for end in ends))


def _minimum(at: Array, curve: _Cubic, level: float, sign: int, name: str) -> Array:
    """Return the position of the minimum of `sign` times a curve at ascending positions, and the ends, (3,)."""
    is_near = np.isfinite(curve.height.error[:, 0])
    if not is_near.any():
        problem = "no position with rows in reach; expected a larger bandwidth, or values in X near the rows"
        if curve.reached.any():
            problem = "a curve through the rows, which shows no noise; expected a larger bandwidth, or more rows"
        raise ValueError(f"feature: got {problem}")
    index, row = np.flatnonzero(is_near), curve.row[is_near]
    middle = np.concatenate([at[:1], (at[1:] + at[:-1]) / 2, at[-1:]])  # between neighbouring positions
    at, height, slope = at[is_near], sign * curve.height.center[is_near, 0], sign * curve.slope.center[is_near, 0]
    best, freedom = int(height.argmin()), max(float(curve.height.freedom[is_near].mean()), 1.0)
    values, basis = np.linalg.eigh(row @ row.T)
    random = np.random.default_rng(0)
    draws = (basis * np.sqrt(values.clip(0))) @ random.normal(size=(len(at), _DRAWS))
    draws *= np.sqrt(freedom / random.chisquare(freedom, _DRAWS))
    outside = (1 - level) / 2
    minima = index[(height[:, None] + draws).argmin(0)]
    first, last = np.quantile(minima, [outside, 1 - outside], method="inverted_cdf")
    inside = np.unique(minima[(minima >= first) & (minima <= last)])
    if (np.diff(inside) > _SEPARATE).any():
        kind = "lowest" if sign == 1 else "highest"
        warnings.warn(
            f"feature: got a curve that may be {kind} at separate places along {name!r}. The interval contains "
            "these places and the positions between",
            UserWarning,
            stacklevel=4,
        )
    lower, upper = max(float(middle[first]), float(at[0])), min(float(middle[last + 1]), float(at[-1]))
    k = best if slope[best] >= 0 else best + 1  # the slope crosses 0 between k − 1 and k
    crosses = 0 < k < len(at) and slope[k - 1] < 0 <= slope[k] and index[k] == index[k - 1] + 1
    value = at[k - 1] - (at[k] - at[k - 1]) * slope[k - 1] / (slope[k] - slope[k - 1]) if crosses else at[best]
    return np.array([min(max(float(value), lower), upper), lower, upper])


def _difference_band(curves: list[_Cubic], level: float) -> tuple[Array, Array]:
    """Return the differences of two curves, the second minus the first, and half the width of their band."""
    rows = np.hstack([curves[1].row, -curves[0].row])
    squares = [(curve.row**2).sum(1) for curve in curves]
    error = np.sqrt(sum(squares))
    shares = [square**2 / curve.height.freedom[:, 0] for square, curve in zip(squares, curves, strict=True)]
    is_near = np.logical_and(*(np.isfinite(curve.height.error[:, 0]) for curve in curves))
    if not is_near.any():
        return (curves[1].height.center - curves[0].height.center)[:, 0], np.full(len(error), np.inf)
    freedom = float(np.mean((error**4 / sum(shares))[is_near]))  # Welch and Satterthwaite
    normal = rows[is_near] / error[is_near, None]
    chords = np.linalg.norm(np.diff(normal, axis=0), axis=1)
    length = 2 * np.arcsin(np.minimum(chords / 2, 1)).sum()

    def excess(width: float) -> float:
        tube = length / np.pi * (1 + width**2 / freedom) ** (-freedom / 2)
        return float(tube + 2 * student.sf(width, freedom) - (1 - level))

    width = brentq(excess, 0, 1e6) if np.isfinite(length) and excess(1e6) < 0 else np.inf
    return (curves[1].height.center - curves[0].height.center)[:, 0], np.where(is_near, width * error, np.inf)


def _along(row: Array, feature: int, at: Array) -> Array:
    """Return a row of the form of `X_train_` with each of the values of one feature, (k, d)."""
    rows = np.atleast_2d(np.asarray(row, np.float64))
    if len(rows) != 1:
        raise ValueError(f"X: got {len(rows)} rows; expected one, with the values of the other features")
    points = np.tile(rows, (len(at), 1))
    points[:, feature] = at
    return points


def feature_index(model: Any, argument: str, feature: str | int) -> int:
    """Return the position of a feature from its name or position."""
    names = names_of(model)[: model.n_features_in_]
    if feature in names:
        return names.index(str(feature))
    if isinstance(feature, numbers.Integral) and not isinstance(feature, bool) and -len(names) <= feature < len(names):
        return int(feature) % len(names)
    raise ValueError(f"{argument}: got {feature!r}; expected a name or position of {list_some(names)}")


def groups_of(model: Any, by: str | int) -> tuple[int, tuple[Level, ...]]:
    """Return the position and the levels of a category, or of a column of False and True."""
    column = columns_of(model)[k := feature_index(model, "by", by)]
    if not column.groups:
        raise ValueError(
            f"by: got {by!r}, which is {column.kind}; expected a category. For a number of few values, fit with the "
            "column in categorical_features"
        )
    return k, column.groups


def _number(model: Any, feature: str | int | None, is_needed: bool = True) -> int:
    """Return the position of a number or date; for None the only one, or the most influential one.

    A periodic number counts if it is named, or if X has no other numbers.
    """
    validation.check_one_target(model)
    if model.metric_ is not None:
        raise ValueError("metric: got 'linear'; expected 'diagonal', because a local cubic follows one column")
    kinds = [column.kind for column in columns_of(model)]
    periodic = [j for j, kind in enumerate(kinds) if kind == "periodic"]
    numbers = [j for j, kind in enumerate(kinds) if kind in ("number", "date")] or periodic
    names = [names_of(model)[j] for j in numbers]
    if feature is None and (not numbers or (is_needed and len(numbers) > 1)):
        raise ValueError(f"feature: got None; expected one of {list_some(names) or 'the numbers, but X has none'}")
    if feature is None:
        j = numbers[0] if len(numbers) == 1 else max(numbers, key=influence(model).__getitem__)
    elif (j := feature_index(model, "feature", feature)) not in numbers + periodic:
        raise ValueError(f"feature: got {feature!r}, which is {kinds[j]}; expected a number or a date")
    if np.ptp(model.X_train_[model.sample_weight_ > 0, j]) == 0:
        raise ValueError(f"feature: got {names_of(model)[j]!r}, which is constant in fit; expected one that varies")
    return j


def _two_levels(known: tuple[Level, ...], levels: ArrayLike | None) -> list[int]:
    """Return the indices of two of the levels of a category; None means both of two."""
    chosen: list[Any] = list(known) if levels is None else np.asarray(levels).tolist()
    if len(chosen) != 2 or not set(chosen) <= set(known) or chosen[0] == chosen[1]:
        got = f"None and {len(known)} levels" if levels is None else repr(chosen)
        raise ValueError(f"levels: got {got}; expected two of {list_some(known)}")
    return [known.index(level) for level in chosen]
