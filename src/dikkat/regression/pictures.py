"""Pictures of a regression: the fit, the attention among its points, the search for a bandwidth, and the experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dikkat.show import heatmaps
from dikkat.show.fonts import families_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "Fit", "draw_attention", "draw_curve", "draw_experiment", "draw_fit", "draw_history"]

Array = NDArray[np.float64]

_POINTS = 2_000  # points that are drawn; more hide each other and make a large SVG
_TICKS = 200  # marks on the edge of a panel that show where the data are
_LONGEST = 32  # characters of a column's name
_COLUMNS = 4  # panels in a row, at most
_LEGEND = 10  # lines that a legend names


@dataclass(frozen=True)
class Curve:
    """Estimates along one feature, the others held where they are.

    Attributes:
        name: The feature.
        at: (k,), its values, ascending.
        estimate: (k,), NaN where there is none.
        lower: (k,), the lower end of the 95 % band.
        upper: (k,), the upper one.
        data: (n,), the feature's values in the training rows.
    """

    name: str
    at: Array
    estimate: Array
    lower: Array
    upper: Array
    data: Array


@dataclass(frozen=True)
class Fit:
    """A method's predictions in the experiment.

    Attributes:
        name: What stands above its panel.
        predicted: (n,), at the test points.
        weights: (n, m), of the test points on the training points.
    """

    name: str
    predicted: Array
    weights: Array


def draw_curve(curve: Curve, observed: Array, target: str) -> Figure:
    """A regression on one feature: the points, the estimate, and its 95 % band.

    Args:
        curve: The estimate along the feature.
        observed: (n,), the target in the training rows.
        target: Its name.
    """
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    shown = _some(len(observed), _POINTS)
    label = "data" if len(shown) == len(observed) else f"{len(shown):,} of {len(observed):,} data points"
    axes.plot(curve.data[shown], observed[shown], **_dots(len(shown)), label=label)
    _band(axes, curve)
    _name(axes, curve.name, target)
    axes.legend(frameon=False)
    return figure


def draw_fit(predicted: Array, observed: Array, curves: Sequence[Curve], target: str) -> Figure:
    """A regression on several features: predicted against observed values, and a curve for each feature.

    Args:
        predicted: (n,), each row's from the others.
        observed: (n,).
        curves: The estimate along some features, each with the others at their medians.
        target: The target's name.
    """
    panels = 1 + len(curves)
    columns = min(_COLUMNS, math.ceil(math.sqrt(panels)))
    rows = math.ceil(panels / columns)
    figure = _figure(0.4 + 3.2 * columns, 0.4 + 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[panels:]:
        axes.remove()
    _draw_agreement(grid[0], predicted, observed, target)
    for axes, curve in zip(grid[1:panels], curves, strict=True):
        axes.sharey(grid[1])
        _band(axes, curve)
        _mark(axes, curve.data)
        _name(axes, curve.name, target)
    if curves:
        grid[1].legend(frameon=False)
        grid[1].set_title("the other features at their medians", fontsize=10)
    return figure


def draw_attention(weights: Array, order: str, total: int) -> Figure:
    """How much the estimate at each point looks at the value of each.

    Args:
        weights: (k, k), both axes in the same order.
        order: The name of what they are sorted by.
        total: How many points there are; k of them are drawn.
    """
    count = len(weights)
    points = f"{count:,} points" if count == total else f"{count:,} of the {total:,} points"
    return heatmaps(
        weights,
        xlabel="point looked at",
        ylabel="point estimated",
        titles=[f"attention among {points}, sorted by {_short(order)}"],
        figsize=(5.6, 5.0),
    )


def draw_history(history: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """The leave-one-out error and the bandwidths by epoch.

    Args:
        history: The `history_` of an estimator: its first entry is the start, each other one a step that was taken.
        names: Of the features, in the order of the bandwidths.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    figure = _figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    left.plot([each["error"] for each in history], marker=".")
    _name(left, "epoch", "leave-one-out mean squared error")
    for index, path in enumerate(zip(*(each["bandwidth"] for each in history), strict=True)):
        named = index < _LEGEND and len(names) > 1
        right.plot(path, marker=".", label=_short(names[index]) if named else None)
    right.set_yscale("log")
    right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.yaxis.set_minor_formatter(NullFormatter())
    _name(right, "epoch", "bandwidth σ" if len(names) > 1 else f"bandwidth σ of {names[0]}")
    if len(names) > 1:
        _plain(right.legend(frameon=False, fontsize=8).get_texts())
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_experiment(train: tuple[Array, Array], test: tuple[Array, Array], fits: Sequence[Fit]) -> Figure:
    """Methods side by side: above, the truth, the points and the predictions; below, the attention weights.

    Args:
        train: x, ascending, and y of the training points, (m,) each.
        test: x, ascending, and the truth there, (n,) each.
        fits: The methods.
    """
    figure = _figure(0.8 + 3.4 * len(fits), 6.4)
    above, below = figure.subplots(2, len(fits), sharey="row", sharex="row", squeeze=False)
    highest = max(float(fit.weights.max()) for fit in fits)
    for fit, curves, weights in zip(fits, above, below, strict=True):
        curves.plot(*train, **_dots(len(train[0])), label="training points")
        curves.plot(*test, color="0.2", linestyle="--", label="truth")
        curves.plot(test[0], fit.predicted, color="C0", linewidth=2, label="prediction")
        curves.set_title(fit.name, fontsize=10)
        _name(curves, "x", "y" if fit is fits[0] else "")
        image = weights.imshow(fit.weights, cmap="Reds", vmin=0.0, vmax=highest, aspect="auto", interpolation="nearest")
        weights.set(xlabel="training points, sorted", ylabel="test points, sorted" if fit is fits[0] else "")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    bar = figure.colorbar(image, ax=list(below), aspect=24, pad=0.02, label="attention weight")
    bar.outline.set_visible(False)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_agreement(axes: Axes, predicted: Array, observed: Array, target: str) -> None:
    shown = _some(len(observed), _POINTS)
    axes.plot(predicted[shown], observed[shown], **_dots(len(shown)))
    both = np.concatenate([predicted[np.isfinite(predicted)], observed])
    axes.axline((float(both.mean()), float(both.mean())), slope=1, color="0.2", linestyle="--", linewidth=1)
    few = "" if len(shown) == len(observed) else f", {len(shown):,} of {len(observed):,} rows"
    axes.set_title(f"each row predicted from the others{few}", fontsize=10)
    _name(axes, f"{_short(target)}, predicted", f"{_short(target)}, observed")


def _band(axes: Axes, curve: Curve) -> None:
    axes.fill_between(curve.at, curve.lower, curve.upper, color="C0", alpha=0.25, linewidth=0, label="95 % band")
    axes.plot(curve.at, curve.estimate, color="C0", linewidth=2, label="estimate")


def _mark(axes: Axes, data: Array) -> None:
    """Ticks on the lower edge where the data are."""
    shown = np.sort(data)[np.linspace(0, len(data) - 1, min(len(data), _TICKS)).astype(int)]
    height = np.full(len(shown), 0.02)
    axes.plot(shown, height, "|", color="0.4", markersize=6, alpha=0.5, transform=axes.get_xaxis_transform())


def _dots(count: int) -> dict[str, Any]:
    """The style of so many points."""
    crowded = count > 300
    return {
        "linestyle": "none",
        "marker": "o",
        "markersize": 2.5 if crowded else 4,
        "color": "0.45",
        "alpha": 0.35 if crowded else 0.7,
        "markeredgewidth": 0,
    }


def _name(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Labels as they are, whatever script they are in, and no box around the panel."""
    families = families_for([xlabel, ylabel])
    axes.set_xlabel(_short(xlabel), fontfamily=families, parse_math=False)  # a column "$5" is no formula
    axes.set_ylabel(_short(ylabel), fontfamily=families, parse_math=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(texts: Sequence[Any]) -> None:
    families = families_for([text.get_text() for text in texts])
    for text in texts:
        text.set(fontfamily=families, parse_math=False)


def _short(name: str) -> str:
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half + 1 :]}"


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Which of so many points are drawn: all, or some at random, always the same."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
