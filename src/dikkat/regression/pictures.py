"""Pictures of a regression: the fit, the attention among training points, and the textbook's experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
_REACH = 0.3  # of the range of y, by which intervals widen the limits
_SINGLE = (6.4, 4.2)  # inches of a figure with one panel
_ENTRY_WIDTH, _LETTER_WIDTH = 0.6, 0.08  # inches of a legend's entry without its text, and of a letter
_CONFIDENCE, _VALUES = "95 % confidence", "{:g} % of new values"


def draw_curve(curve: Curve, observed: Array, target: str) -> Figure:
    """Draw a regression on one feature: the points, the estimate, and its 95 % confidence intervals."""
    figure = _create_figure(*_SINGLE)
    draw_on(figure.subplots(), curve, observed, target)
    return figure


def draw_on(axes: Axes, curve: Curve, observed: Array, target: str) -> None:
    """Draw a regression on one feature on axes."""
    if not curve.column.is_category:
        draw_points(axes, curve.data, observed)
    _draw_panel(axes, [curve], (), target, _find_limits(observed, [curve]))
    axes.legend(edgecolor="none")


def draw_fit(
    predicted: Array, observed: Array, curves: Sequence[Curve], target: str, notes: Sequence[str] = ()
) -> Figure:
    """Draw predicted against observed values, and a panel for each curve; `notes` are lines below the panels."""
    figure, grid = _create_panels(1 + len(curves))
    sample_note = draw_points(grid[0], predicted, observed)
    middle = float(np.concatenate([predicted[np.isfinite(predicted)], observed]).mean())
    grid[0].axline((middle, middle), slope=1, color="0.2", linestyle="--", linewidth=1)
    grid[0].set_title(
        "each row predicted from the others" + (f"\n{sample_note} rows" if sample_note else ""), fontsize=10
    )
    set_labels(grid[0], f"{_shorten(target)}, predicted", f"{_shorten(target)}, observed")
    _draw_panels(figure, grid[1:], observed, [[curve] for curve in curves], (), target, notes)
    return figure


def draw_effects(
    observed: Array, panels: Sequence[Sequence[Curve]], target: str, groups: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """Draw a panel for each feature, with one curve or a curve for each group; `notes` are lines below the panels."""
    figure, grid = _create_panels(len(panels))
    _draw_panels(figure, grid, observed, panels, groups, target, notes)
    return figure


def _create_panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    columns = count if count < 4 else math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = _create_figure(*(_SINGLE if count == 1 else (0.4 + 3.2 * columns, 0.4 + 2.9 * rows)))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count].tolist()


def _draw_panels(
    figure: Figure, grid: Sequence[Axes], observed: Array, panels: Sequence[Sequence[Curve]], groups: Sequence[str],
    target: str, notes: Sequence[str],
) -> None:  # fmt: skip
    limits = _find_limits(observed, [curve for curves in panels for curve in curves])
    for axes, curves in zip(grid, panels, strict=True):
        _draw_panel(axes, curves, groups, target, limits)
        if not (groups or curves[0].column.is_category):
            marks = np.sort(curves[0].data)[
                np.linspace(0, len(curves[0].data) - 1, min(len(curves[0].data), _MAX_TICKS)).astype(int)
            ]
            height, transform = np.full(len(marks), 0.02), axes.get_xaxis_transform()
            axes.plot(marks, height, "|", color="0.4", markersize=6, alpha=0.5, transform=transform)
    handles, names = grid[0].get_legend_handles_labels() if panels else ([], [])
    if groups and any(np.isfinite(curve.upper).any() for curve in panels[0]):
        from matplotlib.patches import Patch

        handles, names = [*handles, Patch(color="0.4", alpha=0.25, linewidth=0)], [*names, _CONFIDENCE]
    if len(names) > 1:
        widths = [_ENTRY_WIDTH + _LETTER_WIDTH * len(name) for name in names]
        space = figure.get_figwidth()
        columns = len(names) if sum(widths) < space else max(int(space / max(widths)), 1)
        legend = figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False)
        _disable_math(legend.get_texts())
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=9, fontfamily=families_for(notes), parse_math=False)


def note_unshown(names: Sequence[str]) -> str:
    """Return a note of features without a panel."""
    rest = f" and {len(names) - _MAX_MENTIONED} more" if len(names) > _MAX_MENTIONED else ""
    return f"not shown (smallest effects): {', '.join(map(_shorten, names[:_MAX_MENTIONED]))}{rest}"


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
        draw_points(axes, experiment.x, experiment.y, "training points")
        axes.plot(experiment.at, experiment.truth, color="0.2", linestyle="--", label="truth")
        axes.plot(experiment.at, pooling.predicted, color="C0", linewidth=2, label="prediction")
        axes.set_title(f"{pooling.name}\nmean squared error {pooling.error:.3f}", fontsize=10)
        set_labels(axes, "x", "y" if is_first else "")
        image = _draw_weights(heat, pooling.weights, highest)
        heat.set(xlabel="training points, sorted", ylabel="test points, sorted" if is_first else "")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    _add_colour_bar(figure, image, list(below))
    return figure


def current_axes() -> Axes:
    """Return matplotlib's current axes; in a new figure, labels take the space that they need."""
    from matplotlib import pyplot

    if not (figure := pyplot.gcf()).axes:
        figure.set_layout_engine("constrained")
    return figure.gca()


def _create_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_weights(axes: Axes, weights: Array, strongest: float) -> AxesImage:
    return axes.imshow(weights, cmap="Reds", vmin=0.0, vmax=strongest, aspect="auto", interpolation="nearest")


def _add_colour_bar(figure: Figure, image: AxesImage, axes: list[Axes], extend: str = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, aspect=24, pad=0.02, label="attention weight", extend=extend)
    bar.outline.set_visible(False)


def _find_limits(observed: Array, curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the limits of y: those of the data and the estimates, and of intervals for new values that end near."""
    numbers = np.concatenate([observed, *(curve.estimate for curve in curves)])
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    reach = _REACH * (high - low)
    ends = [end.clip(low - reach, high + reach) for curve in curves if curve.values for end in curve.values[:2]]
    numbers = np.concatenate([numbers, *ends])
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _draw_panel(
    axes: Axes, curves: Sequence[Curve], groups: Sequence[str], target: str, limits: tuple[float, float]
) -> None:
    """Draw curves and their intervals over numbers, dates or categories; `limits` are those of y."""
    column = curves[0].column
    if column.is_category:
        _draw_categories(axes, curves, groups, target, limits)
        return
    label = _set_ticks(axes, curves[0])
    if column.is_flag:
        axes.set_xticks([0, 1], ["False", "True"])
    for color, name, band_name, curve in _styles(curves, groups):
        if curve.values is not None:
            low, high, coverage = curve.values
            axes.fill_between(
                curve.at, low, high, color=color, alpha=0.12, linewidth=0, label=_VALUES.format(100 * coverage)
            )
        if np.isfinite(curve.upper).any():
            axes.fill_between(curve.at, curve.lower, curve.upper, color=color, alpha=0.25, linewidth=0, label=band_name)
        axes.plot(curve.at, curve.estimate, color=color, linewidth=2, label=name)
    axes.set_ylim(limits)
    set_labels(axes, label, target)


def _styles(curves: Sequence[Curve], groups: Sequence[str]) -> Iterator[tuple[str, str, str, Curve]]:
    """Yield for each curve its colour, its name, the name of its band, and the curve."""
    names = [_shorten(group) for group in groups] or ["estimate"]
    for number, (name, curve) in enumerate(zip(names, curves, strict=True)):
        yield f"C{number}", name, "_" if groups else _CONFIDENCE, curve


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
    locator = library.AutoDateLocator(minticks=2, maxticks=_MAX_DATES)
    ticks = np.asarray(locator.tick_values(first, last))
    ticks = ticks[(ticks >= library.date2num(first)) & (ticks <= library.date2num(last))]
    labels = library.ConciseDateFormatter(locator).format_ticks(ticks)
    axes.set_xticks(ticks - library.date2num(curve.column.moment(0)), labels)
    if {str(year) for year in range(first.year, last.year + 1)} & set(labels):
        return curve.name
    return f"{curve.name}, {' to '.join(dict.fromkeys([str(first.year), str(last.year)]))}"


def _draw_categories(
    axes: Axes, curves: Sequence[Curve], groups: Sequence[str], target: str, limits: tuple[float, float]
) -> None:
    """Draw a horizontal line for each of the most frequent categories, sorted by estimate (ordered ones by level)."""
    first, last = curves[0], curves[-1]
    counts = np.bincount(first.data.astype(int), minlength=len(first.at))
    shown = np.sort(np.argsort(-counts, kind="stable")[:_MAX_LABELS])
    if first.column.kind == "category":
        shown = shown[np.argsort(last.estimate[shown], kind="stable")]
    middles = np.arange(len(shown))
    for number, (color, name, band_name, curve) in enumerate(_styles(curves, groups)):
        heights = middles + 0.6 * ((number + 0.5) / len(curves) - 0.5)  # one above the other
        if curve.values is not None:
            *ends, coverage = curve.values
            low, high = (level[shown].clip(*limits) for level in ends)  # ends may be infinite
            label = _VALUES.format(100 * coverage)
            axes.barh(heights, high - low, 0.6, low, color=color, alpha=0.12, linewidth=0, label=label)
        center, half = (curve.upper + curve.lower)[shown] / 2, (curve.upper - curve.lower)[shown] / 2
        if np.isfinite(half).any():
            axes.errorbar(center, heights, xerr=half, fmt="none", color=color, alpha=0.5, label=band_name)
        axes.plot(curve.estimate[shown], heights, "o", color=color, markersize=4, label=name)
    levels = first.column.levels
    axes.set_yticks(middles, [_shorten(str(levels[level]), _LABEL_LENGTH) for level in shown], fontsize=8)
    axes.set(xlim=limits, ylim=(-0.7, len(shown) - 0.3))
    count = f"\n{len(shown)} most frequent of {len(counts)}" if len(shown) < len(counts) else ""
    set_labels(axes, target, f"{_shorten(first.name)}{count}")
    _disable_math(axes.get_yticklabels())


def draw_points(axes: Axes, x: Array, y: Array, label: str = "data") -> str:
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


def set_labels(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Set the labels, in fonts for their script and without math; write 200k for 200,000; remove the panel's box."""
    from matplotlib.ticker import EngFormatter, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        largest = max(abs(low), abs(high))
        # By default, a power of ten at the end of the axis covers its label.
        if isinstance(axis.get_major_formatter(), ScalarFormatter) and (largest >= 1e5 or largest < 1e-4):
            axis.set_major_formatter(EngFormatter(sep=""))
    xlabel, ylabel = ("\n".join(map(_shorten, label.split("\n"))) for label in (xlabel, ylabel))
    families = families_for([xlabel, ylabel])
    axes.set_xlabel(xlabel, fontfamily=families, parse_math=False)  # a column "$5" is not a formula
    axes.set_ylabel(ylabel, fontfamily=families, parse_math=False, multialignment="center")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _disable_math(texts: Sequence[Any]) -> None:
    families = families_for([text.get_text() for text in texts])
    for text in texts:
        text.set(fontfamily=families, parse_math=False)


def _shorten(name: str, length: int = _NAME_LENGTH) -> str:
    half = length // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half + 1 :]}"
