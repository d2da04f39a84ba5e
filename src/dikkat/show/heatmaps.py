"""Attention weights as heat maps."""

from __future__ import annotations

import copy
import io
import math
import os
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import NDArray

from dikkat.extras import require_extra
from dikkat.show.arrays import Weights, as_array
from dikkat.show.document import encodable
from dikkat.show.fonts import families_for
from dikkat.show.positions import Grid, Times
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from dikkat.show.notebook import MapsWidget

__all__ = ["heatmaps", "save"]

Tokens = Sequence[str] | Sequence[Sequence[str]]

_CELL = 0.3  # inches of a token's row or column
_PANEL = 2.5  # inches of the longer side of a panel without tokens
_MAX_PANEL = 12.0  # inches
_MAX_FIGURE = 30.0  # inches of all panels together
_MAX_LABEL = 24  # characters
_METADATA = {
    ".png": {"Software": None}, ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # fmt: skip


@overload
def heatmaps(
    weights: Weights, *, queries: Tokens | None = ..., keys: Tokens | None = ..., xlabel: str = ..., ylabel: str = ...,
    titles: Sequence[str] | None = ..., figsize: tuple[float, float] | None = ..., cmap: str | None = ...,
    extent: tuple[int, int] | None = ..., interactive: Literal[False] = ...,
) -> Figure: ...  # fmt: skip


@overload
def heatmaps(
    weights: Weights, *, queries: Tokens | None = ..., keys: Tokens | None = ..., xlabel: str = ..., ylabel: str = ...,
    titles: Sequence[str] | None = ..., extent: tuple[int, int] | None = ..., interactive: Literal[True],
) -> MapsWidget: ...  # fmt: skip


def heatmaps(
    weights: Weights,
    *,
    queries: Tokens | None = None,
    keys: Tokens | None = None,
    xlabel: str = "Keys",
    ylabel: str = "Queries",
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] | None = None,
    cmap: str | None = None,
    extent: tuple[int, int] | None = None,
    interactive: bool = False,
) -> Figure | MapsWidget:
    """Draw a grid of attention weights with a common colour scale.

    The scale of all panels goes from 0, or the lowest weight if it is negative, to the highest finite weight. Weights
    that are not finite stay blank. dikkat changes neither the global style nor `pyplot`, and needs no display. In a
    notebook, the figure shows itself as the value of a cell. To draw weights on an image, use `on_image`.

    Args:
        weights: `(rows, columns, queries, keys)`, or `(queries, keys)` for one panel; real numbers of any type. Or a
            list of matrices whose shapes may differ: one row of panels, with cells of one size (if `figsize` has room).
        queries: Tokens that label the rows of the panels: a list with a string for each query, or such a list for each
            panel, in reading order.
        keys: Tokens that label the columns: one list, or one for each panel.
        xlabel: The name of the key axis, under the bottom panels.
        ylabel: The name of the query axis, to the left of the leftmost panels.
        titles: One for each column, above the top panels, or one for each panel, in reading order.
        figsize: Width and height in inches; by default, the size that panels and labels need.
        cmap: The name of a matplotlib colour map; "Reds" by default.
        extent: For overviews: the numbers of queries and keys of the map before pooling. The axes count these queries
            and keys, and the panels have the proportions of that map.
        interactive: Whether to return a notebook widget with zoom, for maps of any size, in float32. It uses the size
            and the colours of the notebook, so `figsize` and `cmap` are not allowed.

    Returns:
        A `matplotlib.figure.Figure`, which `save` writes to a file, or a `dikkat.show.notebook.MapsWidget`.

    Raises:
        ValueError: A shape or a number of labels does not fit, or a widget has `figsize` or `cmap`.
        TypeError: The weights are not real numbers, or tokens are not lists of strings.
        ModuleNotFoundError: matplotlib is not installed, or anywidget for a widget.

    Example:
        >>> figure = heatmaps(np.eye(2), queries=["the", "cat"], keys=["le", "chat"], titles=["alignment"])
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['le', 'chat']
    """
    if interactive and (figsize is not None or cmap is not None):
        argument = f"figsize={figsize!r}" if figsize is not None else f"cmap={cmap!r}"
        raise ValueError(f"{argument}: has no effect if interactive=True. Leave it out, or set interactive=False")
    grid = grid_of(weights, queries=queries, keys=keys, xlabel=xlabel, ylabel=ylabel, titles=titles, extent=extent)
    return _widget(grid) if interactive else draw_heatmaps(figure_class(), grid, figsize, cmap)


@dataclass(frozen=True)
class PanelGrid:
    """Checked panels of weights, row by row, with their labels."""

    rows: list[list[NDArray[np.float64]]]
    queries: list[list[str]] | None
    keys: list[list[str]] | None
    xlabel: str
    ylabel: str
    titles: Sequence[str]
    extent: tuple[int, int] | None

    @property
    def panels(self) -> list[NDArray[np.float64]]:
        return [panel for row in self.rows for panel in row]

    @property
    def is_ragged(self) -> bool:
        """True for a row of panels with different shapes."""
        return len({panel.shape for panel in self.panels}) > 1

    @property
    def query_count(self) -> int:
        """The number of queries of the tallest panel."""
        return self.extent[0] if self.extent else max(len(panel) for panel in self.panels)

    @property
    def key_counts(self) -> list[int]:
        """The number of keys of each column of panels."""
        return [self.extent[1] if self.extent else panel.shape[1] for panel in self.rows[0]]

    @property
    def cell_size(self) -> float:
        """Inches of a square cell."""
        labelled = self.is_ragged or bool(self.queries or self.keys)
        cell_size = _CELL if labelled else _PANEL / max(self.query_count, *self.key_counts)
        max_width = min(_MAX_PANEL / max(self.key_counts), _MAX_FIGURE / sum(self.key_counts))
        return min(cell_size, max_width, min(_MAX_PANEL, _MAX_FIGURE / len(self.rows)) / self.query_count)

    @property
    def x_pad(self) -> float:
        """Inches for the labels of all rows and the name of the axis."""
        return _label_space(self.queries, len(self.rows[0]))

    @property
    def y_pad(self) -> float:
        """Inches for the labels of all columns and the name of the axis."""
        return _label_space(self.keys, len(self.rows))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches of all panels and labels."""
        min_side = 0.0 if self.is_ragged else _PANEL / 2
        width = sum(max(self.cell_size * count, min_side) for count in self.key_counts)
        height = max(self.cell_size * self.query_count, min_side)
        return width + 0.1 * len(self.rows[0]) + self.x_pad + 0.7, len(self.rows) * (height + 0.2) + self.y_pad + 0.3


def grid_of(
    weights: Weights, *, queries: Tokens | None = None, keys: Tokens | None = None, xlabel: str, ylabel: str,
    titles: Sequence[str] | None = None, extent: tuple[int, int] | None = None,
) -> PanelGrid:  # fmt: skip
    """Check the arguments of `heatmaps`."""
    rows = _as_panels(weights)
    panels = [panel for row in rows for panel in row]
    if extent is not None:
        largest = tuple(max(panel.shape[axis] for panel in panels) for axis in (0, 1))
        if len(extent) != 2 or extent[0] < largest[0] or extent[1] < largest[1]:
            raise ValueError(f"extent: got {extent}; expected the map's queries and keys, at least {largest}")
        if queries is not None or keys is not None:
            raise ValueError("extent: got an extent and tokens; expected only one of them, as a cell has many tokens")
    query_labels = _labels_per_panel(queries, [panel.shape[0] for panel in panels], "queries")
    key_labels = _labels_per_panel(keys, [panel.shape[1] for panel in panels], "keys")
    if isinstance(titles, str):
        raise TypeError(f"titles: got one string, {titles!r}; expected a list of strings")
    columns = len(rows[0])
    if titles is not None and len(titles) not in (columns, len(panels)):
        raise ValueError(
            f"titles: got {len(titles)}; expected {columns}, one for each column, or {len(panels)}, one for each panel"
        )
    return PanelGrid(rows, query_labels, key_labels, xlabel, ylabel, titles or (), extent)


def draw_heatmaps(
    new_figure: Callable[..., Figure], grid: PanelGrid, figsize: tuple[float, float] | None, cmap: str | None
) -> Figure:
    """Draw a grid on the figure that `new_figure(figsize=..., layout=...)` makes, such as pyplot's."""
    rows, columns, panels = len(grid.rows), len(grid.rows[0]), grid.panels
    scale = scale_of(panels)
    labels = [label for lists in (grid.queries, grid.keys) for panel in lists or () for label in panel]
    families = families_for([grid.xlabel, grid.ylabel, *grid.titles, *labels])
    size = figsize or grid.size
    figure = new_figure(figsize=size, layout="constrained")
    shared_x, shared_y = (not grid.is_ragged and _is_shared(labels) for labels in (grid.keys, grid.queries))
    all_axes = figure.subplots(  # shared axes have only outer labels
        rows, columns, sharex=shared_x, sharey=shared_y, squeeze=False, width_ratios=grid.key_counts
    )
    panel_width = max((size[0] - grid.x_pad - 0.7) / columns - 0.1, 0.5)
    panel_height = max((size[1] - grid.y_pad - 0.3) / rows - 0.2, 0.5)
    key_layout = _label_layout(columns * panel_width, sum(grid.key_counts), grid.keys, turn=True)
    query_layout = _label_layout(panel_height, grid.query_count, grid.queries, turn=False)
    for index, axes in enumerate(all_axes.flat):
        row, column = divmod(index, columns)
        queries, keys = grid.extent or panels[index].shape
        image = axes.imshow(
            np.ma.masked_invalid(panels[index]), cmap=cmap or "Reds", vmin=scale[0], vmax=scale[1], origin="upper",
            interpolation="nearest" if max(panels[index].shape) <= 256 else "auto",
            aspect="equal" if grid.is_ragged or 1 / 4 <= queries / keys <= 4 else "auto",
            extent=(-0.5, keys - 0.5, queries - 0.5, -0.5),
        )  # fmt: skip
        _label_axis(axes.xaxis, grid.keys[index] if grid.keys else None, key_layout, families)
        _label_axis(axes.yaxis, grid.queries[index] if grid.queries else None, query_layout, families)
        if row == rows - 1:
            axes.set_xlabel(grid.xlabel, fontfamily=families)
        if column == 0:
            axes.set_ylabel(grid.ylabel, fontfamily=families, loc="top" if grid.is_ragged else None)
        if index < len(grid.titles):
            axes.set_title(grid.titles[index], fontsize=10, fontfamily=families)
    bar = figure.colorbar(image, ax=list(all_axes.flat), shrink=0.7, aspect=24, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if grid.is_ragged:
        _align_panels(figure, list(all_axes.flat), None if figsize else grid.cell_size)
    return figure


def _widget(grid: PanelGrid) -> MapsWidget:
    with require_extra("notebook"):
        from dikkat.show.notebook import MapsWidget
    titles = [*grid.titles, *[""] * len(grid.panels)]
    panels = [
        {
            "title": encodable(titles[index]), "shape": panel.shape, "extent": grid.extent or panel.shape,
            "queries": grid.queries and grid.queries[index], "keys": grid.keys and grid.keys[index],
            "xlabel": encodable(grid.xlabel), "ylabel": encodable(grid.ylabel),
        }
        for index, panel in enumerate(grid.panels)
    ]  # fmt: skip
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and stay blank
        values = b"".join(panel.astype("<f4").tobytes() for panel in grid.panels)
    return MapsWidget(panels=panels, across=len(grid.rows[0]), scale=list(scale_of(grid.panels)), values=values)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as a PNG, SVG or PDF file.

    Equal figures give equal files, without date, version or random names. An SVG keeps its text as text, which you can
    search and edit. A PDF has fonts.

    Args:
        figure: Any matplotlib figure.
        path: The file to write, ending in `.png`, `.svg` or `.pdf`; its folder must exist.

    Raises:
        ValueError: `path` has another ending.
        OSError: The system could not write; an existing file is unchanged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "weights.svg"
        >>> save(heatmaps([[0.9, 0.1], [0.2, 0.8]]), path)
        >>> path.read_bytes()[:5]
        b'<?xml'
    """
    ending = Path(path).suffix.lower()
    if ending not in _METADATA:
        raise ValueError(f"path: got {os.fspath(path)!r}; expected an ending of .png, .svg or .pdf")
    write_whole(path, encode_figure(copy.deepcopy(figure), ending))  # drawing changes the layout slightly


def encode_figure(figure: Figure, ending: str) -> bytes:
    """Return the content of a figure's file with an ending of `_METADATA`; the figure's layout may change slightly."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dikkat", "pdf.fonttype": 42}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # heatmaps warned already
        figure.savefig(content, format=ending[1:], dpi=200, metadata=_METADATA[ending])
    return content.getvalue()


def figure_class() -> type[Figure]:
    """Import and return matplotlib's class."""
    with require_extra("show"):
        from matplotlib.figure import Figure
    return Figure


def _as_panels(weights: Weights) -> list[list[NDArray[np.float64]]]:
    if isinstance(weights, (list, tuple)) and weights and all(getattr(panel, "ndim", 0) == 2 for panel in weights):
        row = [as_array(panel, f"weights[{index}]") for index, panel in enumerate(weights)]
        for index, panel in enumerate(row):
            if 0 in panel.shape:
                raise ValueError(f"weights[{index}]: got shape {panel.shape}; expected (queries, keys), both above 0")
        return [row]
    array = as_array(weights, "weights")
    panels = array[None, None] if array.ndim == 2 else array
    if panels.ndim != 4 or 0 in panels.shape:
        raise ValueError(
            f"weights: got shape {array.shape}; expected (rows, columns, queries, keys) or (queries, keys), "
            "each size at least 1, or a list of matrices; for a batch of matrices use weights[None]"
        )
    return [list(row) for row in panels]


def _labels_per_panel(tokens: Tokens | None, counts: list[int], name: str) -> list[list[str]] | None:
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name}: got one string, {tokens!r}; expected a list of tokens, as in {name}=text.split()")
    lists = [tokens] if isinstance(tokens, Grid | Times) else list(tokens)
    for layout in lists:
        if isinstance(layout, Grid | Times):
            raise TypeError(f"{name}: got {type(layout).__name__}; expected strings. dikkat.show.on_image(weights, "
                            "grid) draws the weights of a query on an image, or below a series")  # fmt: skip
    if all(isinstance(token, str) for token in lists):
        if len(set(counts)) > 1:
            raise ValueError(f"{name}: got one list of tokens; expected one for each panel, of {counts} tokens")
        return [_labels(lists, counts[0], name)] * len(counts)
    if len(lists) != len(counts):
        raise ValueError(
            f"{name}: got {len(lists)} lists; expected one list of tokens, or {len(counts)}, one for each panel"
        )
    return [_labels(panel, counts[index], f"{name}[{index}]") for index, panel in enumerate(lists)]


def _labels(tokens: Sequence[object], count: int, name: str) -> list[str]:
    """Return the tokens as labels: visible control characters, and long tokens without their middle."""
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"{name}: got {type(tokens).__name__}; expected a list of tokens, each a str")
    if len(tokens) != count:
        raise ValueError(f"{name}: got {len(tokens)} tokens; expected {count}, as in the weights")
    labels, half = [], _MAX_LABEL // 2
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"{name}[{index}]: got {type(token).__name__}; expected str")
        text = "".join(map(_visible, token))
        labels.append(text if len(text) <= _MAX_LABEL else f"{text[:half]}…{text[-half + 1 :]}")
    return labels


def _visible(character: str) -> str:
    if unicodedata.category(character) not in {"Cc", "Cs"}:
        return character
    return {"\n": "↵", "\t": "⇥"}.get(character, "\N{REPLACEMENT CHARACTER}")


def _is_shared(labels: list[list[str]] | None) -> bool:
    """Return whether only the outer panels need labels: all panels have equal labels or none."""
    return labels is None or all(panel is labels[0] for panel in labels)


def scale_of(panels: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the lower and upper limit of the colour scale."""
    weights = np.concatenate([panel.ravel() for panel in panels])
    finite = weights[np.isfinite(weights)]
    low, high = min(0.0, finite.min(initial=0.0)), finite.max(initial=-math.inf)
    return float(low), float(high) if high > low else float(low) + 1.0


def _longest_width(labels: list[list[str]] | None) -> float:
    """Return the width of the longest label in letters; a Chinese character counts as 1.7 letters."""
    widths = (
        sum(1.7 if unicodedata.east_asian_width(character) in "WF" else 1.0 for character in label)
        for panel in labels or ()
        for label in panel
    )
    return max(widths, default=3.0)


def _label_space(labels: list[list[str]] | None, count: int) -> float:
    """Return the inches for the labels of `count` neighbouring panels and the axis's name."""
    return (0.07 * _longest_width(labels) + 0.35) * (1 if _is_shared(labels) else count)


def _label_layout(inches: float, count: int, labels: list[list[str]] | None, *, turn: bool) -> tuple[float, int, int]:
    """Return size, step and rotation of labels. Labels below 5 points are thinned instead of shrunk."""
    cell = inches * 72 / count
    size = min(max(cell * 0.75, 5.0), 9.0)
    step = max(1, math.ceil(size * 1.1 / cell))
    if not turn or _longest_width(labels) * size * 0.62 + 4 <= cell * step:
        return size, step, 0
    return size, step, 45 if cell * step >= 1.7 * size else 90


def _label_axis(axis: Axis, labels: list[str] | None, layout: tuple[float, int, int], families: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    if labels is None:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axis.set_tick_params(labelsize=8)
        return
    size, step, rotation = layout
    axis.set_ticks(
        range(0, len(labels), step),
        labels[::step],
        parse_math=False,  # "$5" is no formula
        fontsize=size,
        fontfamily=families,
        rotation=rotation,
    )
    if rotation == 45:
        for label in axis.get_ticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axis.set_tick_params(length=0 if step == 1 else 2)


def _align_panels(figure: Figure, axes: list[Axes], cell_size: float | None) -> None:
    """Align panels of different heights at the top, and resize the figure until cells have `cell_size` inches."""
    for panel in axes:
        panel.set_anchor("N")
    if cell_size is None:
        return
    shapes = [panel.images[0].get_size() for panel in axes]
    for _ in range(2):  # the space of labels is known after their layout, and depends on the size
        figure.draw_without_rendering()
        boxes = [panel.get_position(original=True) for panel in axes]
        width, height = (float(inches) for inches in figure.get_size_inches())
        extra_width = cell_size * sum(keys for _, keys in shapes) - width * sum(box.width for box in boxes)
        extra_height = cell_size * max(queries for queries, _ in shapes) - height * min(box.height for box in boxes)
        figure.set_size_inches(width + extra_width, height + extra_height + 0.02)
