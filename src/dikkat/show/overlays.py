"""Figures of weights on the image of a grid, and below a time series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dikkat.show.arrays import Weights, as_array
from dikkat.show.fonts import families_for
from dikkat.show.heatmaps import figure_class, scale_of
from dikkat.show.positions import Grid, Times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["on_image"]

Panel = Sequence[tuple[Grid | Times, NDArray[np.float64]]]  # (grid or times, its weights)

_ACROSS = 6  # panels in a row
_SIDE = 2.2  # inches of the longer side of a panel
_OPACITY = 0.85  # of the largest weight
SIGNED_COLOURS = "tab:blue", "tab:orange"  # of weights above and below 0


def on_image(weights: Weights, grid: Grid | Times, *, titles: Sequence[str] | None = None) -> Figure:
    """Draw weights on the image of a grid, or below a time series, with a common colour scale.

    The image is grey under the colours. Colours are more opaque for larger weights. If there are negative numbers, as
    in a difference, blue is more weight and orange is less.

    Args:
        weights: (p,) numbers for the p positions of the grid, (k, p) for k panels, or (a, b, p) for a × b panels, such
            as `trace[3].weights[0, :, 0, 1:]` for each head, `trace.rollout()[0, 0, 1:]`, or results of
            `dikkat.relevance`. For a grid also (..., rows, columns).
        grid: The grid or times. A grid without an image is drawn as an empty one.
        titles: A title for each panel.

    Returns:
        A `matplotlib.figure.Figure`, which `dikkat.show.save` writes.

    Raises:
        TypeError: The weights are not real numbers, or `grid` is neither a grid nor times.
        ValueError: A shape or the number of titles does not fit, or a weight is not finite.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> import dikkat
        >>> figure = on_image([[0.1, 0.2, 0.3, 0.4]], dikkat.Grid(2, 2, image=np.zeros((8, 8))))
        >>> figure.axes[0].images[1].get_array().shape  # colours of 2 × 2 patches
        (2, 2, 4)
    """
    if not isinstance(grid, Grid | Times):
        raise TypeError(f"grid: got {type(grid).__name__}; expected dikkat.Grid or dikkat.Times")
    rows = _arrange(as_array(weights, "weights"), grid)
    count = sum(map(len, rows))
    if titles is not None and (isinstance(titles, str) or len(titles) != count):
        raise ValueError(f"titles: got {titles!r}; expected {count} strings, one for each panel")
    return draw_panels([[[(grid, values)] for values in row] for row in rows], titles or [""] * count)


def draw_panels(rows: Sequence[Sequence[Panel]], titles: Sequence[str]) -> Figure:
    """Draw rows of panels, of which the last may be shorter.

    A panel is one time axis, or all grids that share an image, with their weights.
    """
    sizes = [[_panel_size(panel[0][0]) for panel in row] for row in rows]
    size = (sum(width for width, _ in sizes[0]) + 0.8, sum(row[0][1] + 0.3 for row in sizes))
    figure, columns = figure_class()(figsize=size, layout="constrained"), len(rows[0])
    ratios = [width for width, _ in sizes[0]]
    cells = figure.subplots(len(rows), columns, squeeze=False, width_ratios=ratios)
    all_axes = [axes for axes_of_row, row in zip(cells, rows, strict=True) for axes in axes_of_row[: len(row)]]
    for empty in cells[-1][len(rows[-1]) :]:
        empty.remove()
    panels, families = [panel for row in rows for panel in row], families_for(titles)
    colours = _find_colours(np.concatenate([values for panel in panels for _, values in panel]))
    for axes, panel, title in zip(all_axes, panels, titles, strict=True):
        for layout, values in panel:
            if isinstance(layout, Times):
                _draw_times(axes, values, layout)
            else:
                _draw_grid(axes, values, layout, colours)
        axes.set_title(title, fontsize=9, fontfamily=families, parse_math=False)
    if any(isinstance(layout, Grid) for panel in panels for layout, _ in panel):
        bar = figure.colorbar(colours, ax=all_axes, shrink=0.8, aspect=24, pad=0.02)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
    return figure


def _arrange(array: NDArray[np.float64], layout: Grid | Times) -> Sequence[NDArray[np.float64]]:
    """Return rows of panels (panels, positions), with a grid's positions row by row."""
    count, shape = len(layout), array.shape
    if isinstance(layout, Grid) and shape[-1:] == (count,):
        array = layout.in_reading_order(array)
    elif isinstance(layout, Grid) and shape[-2:] == (layout.rows, layout.columns):
        array = array.reshape(*shape[:-2], count)
    if array.shape[-1:] != (count,) or array.ndim > 3 or 0 in array.shape:
        also = f", or (..., {layout.rows}, {layout.columns})" if isinstance(layout, Grid) else ""
        raise ValueError(f"weights: got shape {shape}; expected ({count},), (k, {count}) or (a, b, {count}){also}")
    if not np.isfinite(array).all():
        raise ValueError("weights: got numbers that are not finite; expected finite numbers")
    if array.ndim == 3:
        return list(array)
    panels = array.reshape(-1, count)
    fewest = -(-len(panels) // _ACROSS)  # rows
    across = next((k for k in range(_ACROSS, 3, -1) if len(panels) % k == 0), -(-len(panels) // fewest))
    return [panels[start : start + across] for start in range(0, len(panels), across)]


def _panel_size(layout: Grid | Times) -> tuple[float, float]:
    if isinstance(layout, Times):
        return 2 * _SIDE, _SIDE
    width, height = (layout.columns, layout.rows) if layout.image is None else layout.image.size
    longest = max(width, height)
    return max(_SIDE * width / longest, 0.6), max(_SIDE * height / longest, 0.6)


def difference_colours() -> Colormap:
    """Return the colour map of a difference: orange for less weight, white, blue for more."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("difference", [SIGNED_COLOURS[1], "white", SIGNED_COLOURS[0]])


def _find_colours(values: NDArray[np.float64]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    low, high = scale_of([values])
    if low < 0:
        return ScalarMappable(Normalize(-max(-low, high), max(-low, high)), difference_colours())
    return ScalarMappable(Normalize(0, high), "inferno")


def _draw_grid(axes: Axes, values: NDArray[np.float64], grid: Grid, colours: Any) -> None:
    pixels = colours.to_rgba(values.reshape(grid.rows, grid.columns))
    box = grid.box or (0, 0, grid.columns, grid.rows)
    if grid.image is not None:
        width, height = grid.image.size
        if not axes.images:
            grey = np.asarray(grid.image.convert("L"))
            axes.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0))
        strengths = np.abs(values) / np.abs(colours.get_clim()).max()
        pixels[..., 3] = _OPACITY * np.sqrt(strengths).reshape(grid.rows, grid.columns)
    axes.imshow(pixels, extent=(box[0], box[2], box[3], box[1]), interpolation="nearest")
    if grid.image is not None:
        axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set(xticks=[], yticks=[])


def _draw_times(axes: Axes, values: NDArray[np.float64], times: Times) -> None:
    """Draw the series in the upper half and the weights in the lower half of a panel."""
    axes.fill_between(times.values, values, step="mid", color="tab:blue", linewidth=0)
    axes.set(xlabel="Time", ylabel="Weight")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if times.series is None:
        return
    span = np.ptp(values) or 1.0
    axes.set_ylim(min(0.0, float(values.min())), float(values.max()) + 1.1 * span)
    above = axes.twinx()
    evenly = np.linspace(times.values[0], times.values[-1], len(times.series))
    above.plot(times.values if len(times.series) == len(times) else evenly, times.series, color="0.3", linewidth=0.8)
    low, high = min(times.series), max(times.series)
    above.set(ylim=(low - 1.2 * ((high - low) or 1.0), high), yticks=[])
    above.spines[:].set_visible(False)
