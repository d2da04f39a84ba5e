"""Figures of one head in the width of a column of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dikkat.show.blocks import Layouts
from dikkat.show.fonts import families_for
from dikkat.show.heatmaps import PanelGrid, draw_heatmaps, figure_class, grid_of
from dikkat.show.overlays import SIGNED_COLOURS, difference_colours, draw_panels
from dikkat.show.positions import Grid, Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 3.4  # inches
_ROW = 0.16  # inches of a token next to lines
_MAX_ROWS = 100
_FAINTEST = 0.01  # smallest weight with a line


def draw_head(
    weights: NDArray[np.float64], queries: Sequence[str], keys: Sequence[str], *, kind: str, title: str
) -> Figure:
    """Return the figure of `Trace.figure` for weights (n, m), which are signed in a difference."""
    figure = _draw_weights(weights, queries, keys, kind)
    if title:
        figure.suptitle(title, fontsize=8, fontfamily=families_for([title]), parse_math=False, wrap=True)
    return figure


def _draw_weights(weights: NDArray[np.float64], queries: Sequence[str], keys: Sequence[str], kind: str) -> Figure:
    if kind not in ("lines", "map"):
        raise ValueError(f"kind: got {kind!r}; expected 'lines', 'map' or 'image'")
    grid = grid_of(weights, queries=queries, keys=keys, xlabel="Keys", ylabel="Queries")
    if kind == "lines":
        return _draw_lines(grid, weights)
    ratio = min(max(len(queries) / len(keys), 1 / 4), 4)
    figure = draw_heatmaps(
        figure_class(), grid, (_WIDTH, (_WIDTH - grid.x_pad - 0.7) * ratio + grid.y_pad + 0.3), cmap=None
    )
    if weights.min() < 0:
        largest = np.abs(weights).max()
        figure.axes[0].images[0].set(cmap=difference_colours(), clim=(-largest, largest))
    return figure


def draw_layouts(row: NDArray[np.float64], title: str, layouts: Layouts) -> Figure:
    """Return the figure of `Trace.figure` with kind="image" for the weights (m,) of a query."""
    if not layouts:
        raise ValueError("figure: got no grid or times among the keys; expected trace.tokens = [..., dikkat.Grid(...)]")
    panels: dict[int, list[tuple[Grid | Times, NDArray[np.float64]]]] = {}
    for number, (first, layout) in enumerate(layouts.items()):
        values, image = row[first : first + len(layout)], None
        if isinstance(layout, Grid):
            values, image = layout.in_reading_order(values), layout.image
        panels.setdefault(number if image is None else id(image) + len(layouts), []).append((layout, values))
    return draw_panels([[*panels.values()]], [title] * len(panels))


def _draw_lines(grid: PanelGrid, weights: NDArray[np.float64]) -> Figure:
    rows = max(weights.shape)
    if rows > _MAX_ROWS:
        raise ValueError(f"figure: got {rows} tokens; expected at most {_MAX_ROWS} for kind='lines'; use kind='map'")
    figure = figure_class()(figsize=(max(_WIDTH, grid.x_pad + grid.y_pad + 1), _ROW * rows + 0.2), layout="constrained")
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    axes = figure.subplots()
    opaque = float(np.abs(weights).max()) if weights.min() < 0 else 1.0
    pairs = np.argwhere(np.abs(weights) >= _FAINTEST)
    axes.add_collection(LineCollection(
        [[(0, query), (1, key)] for query, key in pairs], linewidths=1.2,
        colors=[to_rgba(SIGNED_COLOURS[int(value < 0)], min(abs(value) / opaque, 1))
                for value in weights[tuple(pairs.T)]],
    ))  # fmt: skip
    texts = [labels[0] for labels in (grid.queries, grid.keys) if labels is not None]
    families = families_for(texts[0] + texts[1])
    for side, name, labels in zip((axes, axes.twinx()), ("Queries", "Keys"), texts, strict=True):
        side.set(xlim=(0, 1), ylim=(rows - 0.5, -0.5), xticks=[])
        side.set_ylabel(name, fontsize=8)
        side.set_yticks(range(len(labels)), labels, fontsize=8, fontfamily=families, parse_math=False)
        side.tick_params(length=0)
        side.spines[:].set_visible(False)
    return figure
