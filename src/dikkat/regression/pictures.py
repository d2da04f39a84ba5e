"""Pictures of a regression: the fit, the attention among training points, and the textbook's experiment."""

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

_MAX_POINTS = 2_000  # more points hide each other and make a large SVG
_MAX_TICKS = 200  # marks of data on the edge of a panel
_LOGARITHMIC = 20  # ratio of the ends of a column's range from which its axis is logarithmic
_NAME_LENGTH = 32  # characters of a column's name
_LABEL_LENGTH, _MAX_LABELS = 20, 14  # characters of a category's name; categories in a panel
_MAX_TICK_LABELS, _MAX_DATES = 28, 5  # categories beside the attention; dates below a panel
_MAX_MENTIONED = 10  # columns without a panel that are named


def draw_curve(curve: Curve, observed: Array, target: str) -> Figure:
    """Draw a regression on one feature: the points, the estimate, and its 95 % confidence intervals."""
    figure = _create_figure(6.4, 4.2)
    axes = figure.subplots()
    if not curve.column.is_category:
        _draw_points(axes, curve.data, observed)
    _draw_curve(axes, curve, target, _find_limits(observed, curve.estimate))
    axes.legend(frameon=False)
    return figure


def draw_fit(
    predicted: Array, observed: Array, curves: Sequence[Curve], target: str, unshown: Sequence[str] = ()
) -> Figure:
    """Draw predicted against observed values, and a curve for each shown feature; a note lists the `unshown` ones."""
    figure, grid = _create_panels(1 + len(curves))
    sample_note = _draw_points(grid[0], predicted, observed)
    middle = float(np.concatenate([predicted[np.isfinite(predicted)], observed]).mean())
    grid[0].axline((middle, middle), slope=1, color="0.2", linestyle="--", linewidth=1)
    grid[0].set_title(
        "each row predicted from the others" + (f"\n{sample_note} rows" if sample_note else ""), fontsize=10
    )
    _set_labels(grid[0], f"{_shorten(target)}, predicted", f"{_shorten(target)}, observed")
    _draw_effects(figure, grid[1:], observed, curves, target, unshown)
    return figure


def draw_effects(observed: Array, curves: Sequence[Curve], target: str, unshown: Sequence[str] = ()) -> Figure:
    """Draw a curve for each shown feature, with the others at their medians; a note lists the `unshown` features."""
    figure, grid = _create_panels(len(curves))
    _draw_effects(figure, grid, observed, curves, target, unshown)
    return figure


def draw_groups(
    observed: Array, panels: Sequence[Sequence[Curve]], groups: Sequence[str], target: str, unshown: Sequence[str] = ()
) -> Figure:
    """Draw a panel for each feature with a curve for each group, and their 95 % confidence intervals."""
    figure, grid = _create_panels(len(panels))
    if len(panels) == 1:
        figure.set_size_inches(6.4, 4.2)
    for axes, curves in zip(grid, panels, strict=True):
        label = _set_ticks(axes, curves[0])
        for number, (curve, group) in enumerate(zip(curves, groups, strict=True)):
            if curve.column.is_category:
                at = curve.at + 0.5 * ((number + 0.5) / len(groups) - 0.5)  # side by side
                half = (curve.upper - curve.lower) / 2
                axes.errorbar(at, (curve.lower + curve.upper) / 2, half, fmt="none", color=f"C{number}", alpha=0.5)
                axes.plot(at, curve.estimate, "o", color=f"C{number}", label=_shorten(group))
                continue
            axes.fill_between(curve.at, curve.lower, curve.upper, color=f"C{number}", alpha=0.2, linewidth=0)
            axes.plot(curve.at, curve.estimate, color=f"C{number}", linewidth=2, label=_shorten(group))
        if curves[0].column.is_category:
            levels = [_shorten(str(level), _LABEL_LENGTH) for level in curves[0].column.levels]
            axes.set_xticks(range(len(levels)), levels, rotation=30, ha="right", fontsize=8)
            _disable_math(axes.get_xticklabels())
        axes.set_ylim(_find_limits(observed, *(curve.estimate for curve in curves)))
        _set_labels(axes, label, target)
    lines, names = grid[0].get_legend_handles_labels()
    legend = figure.legend(lines, names, loc="outside upper center", ncols=min(len(names), 4), frameon=False)
    _disable_math(legend.get_texts())
    _note_unshown(figure, unshown)
    return figure


def _create_panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    columns = count if count < 4 else math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = _create_figure(0.4 + 3.2 * columns, 0.4 + 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count].tolist()


def _draw_effects(
    figure: Figure, grid: Sequence[Axes], observed: Array, curves: Sequence[Curve], target: str, unshown: Sequence[str]
) -> None:
    for axes, curve in zip(grid, curves, strict=True):
        _draw_curve(axes, curve, target, _find_limits(observed, *(shown.estimate for shown in curves)))
        if not curve.column.is_category:
            marks = np.sort(curve.data)[
                np.linspace(0, len(curve.data) - 1, min(len(curve.data), _MAX_TICKS)).astype(int)
            ]
            height, transform = np.full(len(marks), 0.02), axes.get_xaxis_transform()
            axes.plot(marks, height, "|", color="0.4", markersize=6, alpha=0.5, transform=transform)
    if curves:
        legend = grid[0].get_legend_handles_labels()
        figure.legend(*legend, loc="outside upper center", ncols=len(legend[0]), frameon=False)
        grid[0].set_title("the other features at their medians", fontsize=10)
    _note_unshown(figure, unshown)


def _note_unshown(figure: Figure, unshown: Sequence[str]) -> None:
    if unshown:
        rest = f" and {len(unshown) - _MAX_MENTIONED} more" if len(unshown) > _MAX_MENTIONED else ""
        note = f"not shown (smallest effects): {', '.join(map(_shorten, unshown[:_MAX_MENTIONED]))}{rest}"
        figure.supxlabel(note, fontsize=9, fontfamily=families_for([note]), parse_math=False)


def draw_attention(among: Among, order: str, column: Column = Column()) -> Figure:  # noqa: B008  # a constant
    """Draw the attention among points; the axes have their values of `column`."""
    count = len(among.weights)
    points = f"{among.total:,} points" + ("" if count == among.total else f", in {count:,} groups")
    figure = _create_figure(5.6, 4.9)
    axes = figure.subplots()
    # Isolated points have a weight near 1 on themselves, which would make all other weights pale.
    strongest = float(np.quantile(among.weights.max(1), 0.9))
    image = _draw_weights(axes, among.weights, strongest)
    axes.set_aspect("equal")
    axes.set(xlabel="points attended to", ylabel="points estimated")
    if among.by is not None:
        if column.is_category:  # in the middle of its points
            levels, starts, sizes = np.unique(among.by, return_index=True, return_counts=True)
            ticks, values = np.empty(0), np.empty(0)
            for level in np.argsort(-sizes, kind="stable"):
                middle = starts[level] + (sizes[level] - 1) / 2
                if (np.abs(ticks - middle) >= count / _MAX_TICK_LABELS).all():
                    ticks, values = np.append(ticks, middle), np.append(values, levels[level])
        else:
            ticks = np.unique(np.linspace(0, count - 1, 5).astype(int))
            values = among.by[ticks]
        names = [_shorten(column.cell_text(value), _LABEL_LENGTH) for value in values]
        axes.set_xticks(ticks, names, rotation=60, ha="right", fontsize=7, rotation_mode="anchor")
        axes.set_yticks(ticks, names, fontsize=7)
        _disable_math([*axes.get_xticklabels(), *axes.get_yticklabels()])
    title = f"attention among {points}\nsorted by {order}"
    axes.set_title(title, fontsize=10, fontfamily=families_for([title]), parse_math=False)
    _add_colour_bar(figure, image, [axes], extend="max" if among.weights.max() > strongest else "neither")
    return figure


def draw_experiment(experiment: Experiment) -> Figure:
    """Draw the three poolings side by side: predictions above, attention weights below."""
    poolings = experiment.poolings
    figure = _create_figure(0.8 + 3.4 * len(poolings), 6.4)
    above, below = figure.subplots(2, len(poolings), sharey="row", sharex="row")
    highest = max(float(pooling.weights.max()) for pooling in poolings)
    for pooling, axes, heat in zip(poolings, above, below, strict=True):
        is_first = pooling is poolings[0]
        _draw_points(axes, experiment.x, experiment.y, "training points")
        axes.plot(experiment.at, experiment.truth, color="0.2", linestyle="--", label="truth")
        axes.plot(experiment.at, pooling.predicted, color="C0", linewidth=2, label="prediction")
        axes.set_title(f"{pooling.name}\nmean squared error {pooling.error:.3f}", fontsize=10)
        _set_labels(axes, "x", "y" if is_first else "")
        image = _draw_weights(heat, pooling.weights, highest)
        heat.set(xlabel="training points, sorted", ylabel="test points, sorted" if is_first else "")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    _add_colour_bar(figure, image, list(below))
    return figure


def _create_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_weights(axes: Axes, weights: Array, strongest: float) -> AxesImage:
    return axes.imshow(weights, cmap="Reds", vmin=0.0, vmax=strongest, aspect="auto", interpolation="nearest")


def _add_colour_bar(figure: Figure, image: AxesImage, axes: list[Axes], extend: str = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, aspect=24, pad=0.02, label="attention weight", extend=extend)
    bar.outline.set_visible(False)


def _find_limits(*values: Array) -> tuple[float, float]:
    finite = np.concatenate([array[np.isfinite(array)] for array in values])
    low, high = float(finite.min()), float(finite.max())
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _draw_curve(axes: Axes, curve: Curve, target: str, limits: tuple[float, float]) -> None:
    """Draw the estimate and its intervals over numbers, dates or categories; `limits` are those of y."""
    if curve.column.is_category:
        _draw_categories(axes, curve, target, limits)
        return
    label = _set_ticks(axes, curve)
    if curve.column.is_flag:
        axes.set_xticks([0, 1], ["False", "True"])
    if curve.values is not None:
        low, high, coverage = curve.values
        coverage_label = f"{100 * coverage:g} % of new values"
        axes.fill_between(curve.at, low, high, color="C0", alpha=0.12, linewidth=0, label=coverage_label)
    axes.fill_between(curve.at, curve.lower, curve.upper, color="C0", alpha=0.25, linewidth=0, label="95 % confidence")
    axes.plot(curve.at, curve.estimate, color="C0", linewidth=2, label="estimate")
    axes.set_ylim(limits)
    _set_labels(axes, label, target)


def _set_ticks(axes: Axes, curve: Curve) -> str:
    """Set the ticks of dates, or a logarithmic axis, and return the axis label."""
    if curve.column.kind == "date":
        return _set_date_ticks(axes, curve)
    if curve.column.log and curve.at[-1] > _LOGARITHMIC * curve.at[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    return curve.name


def _set_date_ticks(axes: Axes, curve: Curve) -> str:
    """Set short labels for dates, and return the axis label: the name, and the years if no tick shows a year."""
    from matplotlib import dates

    library: Any = dates  # has no types
    first, last = (library.num2date(library.date2num(curve.column.moment(end))) for end in (curve.at[0], curve.at[-1]))
    locator = library.AutoDateLocator(maxticks=_MAX_DATES)
    ticks = np.asarray(locator.tick_values(first, last))
    ticks = ticks[(ticks >= library.date2num(first)) & (ticks <= library.date2num(last))]
    labels = library.ConciseDateFormatter(locator).format_ticks(ticks)
    axes.set_xticks(ticks - library.date2num(curve.column.moment(0)), labels)
    if {str(year) for year in range(first.year, last.year + 1)} & set(labels):
        return curve.name
    return f"{curve.name}, {' to '.join(dict.fromkeys([str(first.year), str(last.year)]))}"


def _draw_categories(axes: Axes, curve: Curve, target: str, limits: tuple[float, float]) -> None:
    """Draw a horizontal line for each of the most frequent categories, sorted by estimate (ordered ones by level)."""
    counts = np.bincount(curve.data.astype(int), minlength=len(curve.at))
    shown = np.sort(np.argsort(-counts, kind="stable")[:_MAX_LABELS])
    if curve.column.kind == "category":
        shown = shown[np.argsort(curve.estimate[shown], kind="stable")]
    heights, estimate = np.arange(len(shown)), curve.estimate[shown]
    if curve.values is not None:
        *ends, coverage = curve.values
        low, high = (level[shown].clip(*limits) for level in ends)  # ends may be infinite
        label = f"{100 * coverage:g} % of new values"
        axes.barh(heights, high - low, 0.6, low, color="C0", alpha=0.12, linewidth=0, label=label)
    center, half = (curve.upper + curve.lower)[shown] / 2, (curve.upper - curve.lower)[shown] / 2
    axes.errorbar(center, heights, xerr=half, fmt="none", color="C0", alpha=0.5, label="95 % confidence")
    axes.plot(estimate, heights, "o", color="C0", markersize=4, label="estimate")
    axes.set_yticks(heights, [_shorten(str(curve.column.levels[level]), _LABEL_LENGTH) for level in shown], fontsize=8)
    axes.set(xlim=limits, ylim=(-0.7, len(shown) - 0.3))
    count = f", {len(shown)} of {len(counts)}" if len(shown) < len(counts) else ""
    _set_labels(axes, target, f"{_shorten(curve.name)}{count}")
    _disable_math(axes.get_yticklabels())


def _draw_points(axes: Axes, x: Array, y: Array, label: str = "data") -> str:
    """Draw points, or a fixed random sample of many; return "2,000 of N" for a sample, else ""."""
    shown, sample_note = np.arange(len(x)), ""
    if len(x) > _MAX_POINTS:
        shown = np.sort(np.random.default_rng(0).choice(len(x), _MAX_POINTS, replace=False))
        sample_note = f"{_MAX_POINTS:,} of {len(x):,}"
    size, alpha = (2.5, 0.35) if len(shown) > 300 else (4, 0.7)
    axes.plot(
        x[shown], y[shown], "o", markersize=size, color="0.45", alpha=alpha, markeredgewidth=0,
        label=f"{sample_note} {label} points" if sample_note else label,
    )  # fmt: skip
    return sample_note


def _set_labels(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Set the labels, in fonts for their script and without math; write 200k for 200,000; remove the panel's box."""
    from matplotlib.ticker import EngFormatter, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        largest = max(abs(low), abs(high))
        # By default, a power of ten at the end of the axis covers its label.
        if isinstance(axis.get_major_formatter(), ScalarFormatter) and (largest >= 1e5 or largest < 1e-4):
            axis.set_major_formatter(EngFormatter(sep=""))
    families = families_for([xlabel, ylabel])
    axes.set_xlabel(_shorten(xlabel), fontfamily=families, parse_math=False)  # a column "$5" is not a formula
    axes.set_ylabel(_shorten(ylabel), fontfamily=families, parse_math=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _disable_math(texts: Sequence[Any]) -> None:
    families = families_for([text.get_text() for text in texts])
    for text in texts:
        text.set(fontfamily=families, parse_math=False)


def _shorten(name: str, length: int = _NAME_LENGTH) -> str:
    half = length // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half + 1 :]}"
