"""Pictures of a regression: the fit, the attention among its points, and the experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dikkat.regression.columns import Column
from dikkat.show.fonts import families_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from dikkat.regression.diagnostics import Among, Curve
    from dikkat.regression.experiment import Experiment
    from dikkat.regression.joined import Array

_POINTS = 2_000  # most points drawn; more hide each other and make a large SVG
_TICKS = 200  # most marks on the edge of a panel that show where the data are
_LONGEST = 32  # most characters of a column's name
_SHORTER, _LABELS = 20, 14  # most characters of a category's name; most categories that are shown
_MENTIONED = 10  # most columns without a panel that are named


def draw_curve(curve: Curve, observed: Array, target: str) -> Figure:
    """A regression on one feature: the points, the estimate, and its 95 % confidence intervals."""
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    if not curve.column.is_category:
        _draw_points(axes, curve.data, observed)
    _draw(axes, curve, target, _limits(observed, curve.estimate))
    axes.legend(frameon=False)
    return figure


def draw_fit(
    predicted: Array, observed: Array, curves: Sequence[Curve], target: str, others: Sequence[str] = ()
) -> Figure:
    """A regression on several features: predicted against observed values, and a curve for each; others are named."""
    figure, grid = _panels(1 + len(curves))
    some = _draw_points(grid[0], predicted, observed)
    middle = float(np.concatenate([predicted[np.isfinite(predicted)], observed]).mean())
    grid[0].axline((middle, middle), slope=1, color="0.2", linestyle="--", linewidth=1)
    grid[0].set_title("each row predicted from the others" + (f"\n{some} rows" if some else ""), fontsize=10)
    _name(grid[0], f"{_short(target)}, predicted", f"{_short(target)}, observed")
    _effects(figure, grid[1:], observed, curves, target, others)
    return figure


def draw_effects(observed: Array, curves: Sequence[Curve], target: str, others: Sequence[str] = ()) -> Figure:
    """A curve for each feature, the others at their medians; features without one are named."""
    figure, grid = _panels(len(curves))
    _effects(figure, grid, observed, curves, target, others)
    return figure


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure with so many panels."""
    columns = count if count < 4 else math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = _figure(0.4 + 3.2 * columns, 0.4 + 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count].tolist()


def _effects(
    figure: Figure, grid: Sequence[Axes], observed: Array, curves: Sequence[Curve], target: str, others: Sequence[str]
) -> None:
    for axes, curve in zip(grid, curves, strict=True):
        _draw(axes, curve, target, _limits(observed, *(each.estimate for each in curves)))
        if not curve.column.is_category:
            marks = np.sort(curve.data)[np.linspace(0, len(curve.data) - 1, min(len(curve.data), _TICKS)).astype(int)]
            height, transform = np.full(len(marks), 0.02), axes.get_xaxis_transform()
            axes.plot(marks, height, "|", color="0.4", markersize=6, alpha=0.5, transform=transform)
    if curves:
        grid[0].legend(frameon=False)
        grid[0].set_title("the other features at their medians", fontsize=10)
    if others:
        more = f" and {len(others) - _MENTIONED} more" if len(others) > _MENTIONED else ""
        named = f"not shown, since they move the estimate least: {', '.join(map(_short, others[:_MENTIONED]))}{more}"
        figure.supxlabel(named, fontsize=9, fontfamily=families_for([named]), parse_math=False)


def draw_attention(found: Among, order: str, column: Column = Column()) -> Figure:  # noqa: B008  # a constant
    """A picture of the attention among points, with what the column says of them along the axes."""
    count = len(found.weights)
    points = f"{found.total:,} points" + ("" if count == found.total else f", in {count:,} groups")
    figure = _figure(5.6, 4.9)
    axes = figure.subplots()
    # Points with hardly a neighbour look at themselves alone: they must not make all others pale.
    strongest = float(np.quantile(found.weights.max(1), 0.9))
    image = _heat(axes, found.weights, strongest)
    axes.set_aspect("equal")
    axes.set(xlabel="points looked at", ylabel="points estimated")
    if found.by is not None:
        if column.is_category:  # at the middle of its points
            levels, starts, sizes = np.unique(found.by, return_index=True, return_counts=True)
            some = np.argsort(-sizes, kind="stable")[:_LABELS]
            places, values = (starts + (sizes - 1) / 2)[some], levels[some]
        else:
            places = np.unique(np.linspace(0, count - 1, 5).astype(int))
            values = found.by[places]
        names = [_short(column.shown(each), _SHORTER) for each in values]
        axes.set_xticks(places, names, rotation=60, ha="right", fontsize=7, rotation_mode="anchor")
        axes.set_yticks(places, names, fontsize=7)
        _literal_label([*axes.get_xticklabels(), *axes.get_yticklabels()])
    title = f"attention among {points}\nsorted by {order}"
    axes.set_title(title, fontsize=10, fontfamily=families_for([title]), parse_math=False)
    _colour_bar(figure, image, [axes], extend="max" if found.weights.max() > strongest else "neither")
    return figure


def draw_experiment(experiment: Experiment) -> Figure:
    """The three ways side by side: above, the truth, the points and the predictions; below, the attention weights."""
    poolings = experiment.poolings
    figure = _figure(0.8 + 3.4 * len(poolings), 6.4)
    above, below = figure.subplots(2, len(poolings), sharey="row", sharex="row")
    highest = max(float(pooling.weights.max()) for pooling in poolings)
    for pooling, axes, heat in zip(poolings, above, below, strict=True):
        first = pooling is poolings[0]
        _draw_points(axes, experiment.x, experiment.y, "training points")
        axes.plot(experiment.at, experiment.truth, color="0.2", linestyle="--", label="truth")
        axes.plot(experiment.at, pooling.predicted, color="C0", linewidth=2, label="prediction")
        axes.set_title(f"{pooling.name}\nmean squared error {pooling.error:.3f}", fontsize=10)
        _name(axes, "x", "y" if first else "")
        image = _heat(heat, pooling.weights, highest)
        heat.set(xlabel="training points, sorted", ylabel="test points, sorted" if first else "")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    _colour_bar(figure, image, list(below))
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _heat(axes: Axes, weights: Array, strongest: float) -> AxesImage:
    """Weights as colours; the frame stays, since most of them are pale."""
    return axes.imshow(weights, cmap="Reds", vmin=0.0, vmax=strongest, aspect="auto", interpolation="nearest")


def _colour_bar(figure: Figure, image: AxesImage, axes: list[Axes], extend: str = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, aspect=24, pad=0.02, label="attention weight", extend=extend)
    bar.outline.set_visible(False)


def _limits(*values: Array) -> tuple[float, float]:
    """The range of these values: an interval may be far wider where there are few data."""
    finite = np.concatenate([each[np.isfinite(each)] for each in values])
    low, high = float(finite.min()), float(finite.max())
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _draw(axes: Axes, curve: Curve, target: str, limits: tuple[float, float]) -> None:
    """The estimate and its intervals, of which these are the limits, over numbers, dates or categories."""
    if curve.column.is_category:
        _draw_categories(axes, curve, target, limits)
        return
    if curve.column.kind == "date":
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: str(curve.column.moment(value))[:10]))
    if curve.column.is_flag:
        axes.set_xticks([0, 1], ["False", "True"])
    if curve.values is not None:
        low, high, coverage = curve.values
        label = f"{100 * coverage:g} % of new values"
        axes.fill_between(curve.at, low, high, color="C0", alpha=0.12, linewidth=0, label=label)
    axes.fill_between(curve.at, curve.lower, curve.upper, color="C0", alpha=0.25, linewidth=0, label="95 % confidence")
    axes.plot(curve.at, curve.estimate, color="C0", linewidth=2, label="estimate")
    axes.set_ylim(limits)
    _name(axes, curve.name, target)


def _draw_categories(axes: Axes, curve: Curve, target: str, limits: tuple[float, float]) -> None:
    """A line of text for each category, so that names are read as they are written; of many the most frequent.

    The highest estimate is above the others; categories that have an order keep it.
    """
    counts = np.bincount(curve.data.astype(int), minlength=len(curve.at))
    shown = np.sort(np.argsort(-counts, kind="stable")[:_LABELS])
    if curve.column.kind == "category":
        shown = shown[np.argsort(curve.estimate[shown], kind="stable")]
    places, estimate = np.arange(len(shown)), curve.estimate[shown]
    if curve.values is not None:
        *ends, coverage = curve.values
        low, high = (each[shown].clip(*limits) for each in ends)  # which may be infinite
        label = f"{100 * coverage:g} % of new values"
        axes.barh(places, high - low, 0.6, low, color="C0", alpha=0.12, linewidth=0, label=label)
    center, half = (curve.upper + curve.lower)[shown] / 2, (curve.upper - curve.lower)[shown] / 2
    axes.errorbar(center, places, xerr=half, fmt="none", color="C0", alpha=0.5, label="95 % confidence")
    axes.plot(estimate, places, "o", color="C0", markersize=4, label="estimate")
    axes.set_yticks(places, [_short(str(curve.column.levels[each]), _SHORTER) for each in shown], fontsize=8)
    axes.set(xlim=limits, ylim=(-0.7, len(shown) - 0.3))
    some = f", {len(shown)} of {len(counts)}" if len(shown) < len(counts) else ""
    _name(axes, target, f"{_short(curve.name)}{some}")
    _literal_label(axes.get_yticklabels())


def _draw_points(axes: Axes, x: Array, y: Array, label: str = "data") -> str:
    """Draw points, of very many a random sample that is always the same; and say how many of how many that is."""
    shown, some = np.arange(len(x)), ""
    if len(x) > _POINTS:
        shown = np.sort(np.random.default_rng(0).choice(len(x), _POINTS, replace=False))
        some = f"{_POINTS:,} of {len(x):,}"
    size, alpha = (2.5, 0.35) if len(shown) > 300 else (4, 0.7)
    axes.plot(
        x[shown], y[shown], "o", markersize=size, color="0.45", alpha=alpha, markeredgewidth=0,
        label=f"{some} {label} points" if some else label,
    )  # fmt: skip
    return some


def _name(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Labels as they are, whatever script they are in, and no box around the panel."""
    families = families_for([xlabel, ylabel])
    axes.set_xlabel(_short(xlabel), fontfamily=families, parse_math=False)  # a column "$5" is no formula
    axes.set_ylabel(_short(ylabel), fontfamily=families, parse_math=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _literal_label(texts: Sequence[Any]) -> None:
    families = families_for([text.get_text() for text in texts])
    for text in texts:
        text.set(fontfamily=families, parse_math=False)


def _short(name: str, longest: int = _LONGEST) -> str:
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half + 1 :]}"
