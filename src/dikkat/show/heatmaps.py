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

from dikkat.extras import needing
from dikkat.show.arrays import Weights, as_array
from dikkat.show.document import encodable
from dikkat.show.fonts import families_for
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from dikkat.show.notebook import MapsWidget

__all__ = ["heatmaps", "save"]

Tokens = Sequence[str] | Sequence[Sequence[str]]

_CELL = 0.3  # inches for a token's row or column
_PANEL = 2.5  # inches for the longer side of a panel without tokens
_LARGEST = 12.0  # inches for a panel
_SHEET = 30.0  # inches for all panels together
_LONGEST = 24  # characters of a token that are shown
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
    """Draw a grid of attention weights, one colour scale for all, on a figure of its own.

    Every panel uses the scale from 0 (or the lowest weight, if it is negative) to the highest finite weight of all
    panels. Weights that are not finite stay blank. Neither the global style nor `pyplot` is touched, and no display
    is needed; in a notebook the figure shows itself as the value of a cell.

    Args:
        weights: `(rows, columns, queries, keys)`, or `(queries, keys)` for one panel; real numbers of any type. Or a
            list of matrices, tensors or arrays, whose shapes may differ: one row of panels, each as large as its own
            matrix, with cells of one size (as far as `figsize`, if given, has room for it).
        queries: Tokens that label the rows of the panels: one list of as many strings as there are queries, or one such
            list for each panel, in reading order.
        keys: Tokens that label the columns: one list, or one for each panel.
        xlabel: What the keys are; stands under the bottom panels.
        ylabel: What the queries are; stands left of the leftmost panels.
        titles: One for each column, above the top panels; or one for each panel, in reading order.
        figsize: Width and height in inches; by default, what the panels and their labels need.
        cmap: The name of a matplotlib colour map; by default, "Reds".
        extent: For overviews, whose cells stand for many weights: how many queries and keys the map has that they were
            pooled from. The axes count those, and the panels have that map's proportions.
        interactive: Whether to make a widget for a notebook instead, to move about in: maps of any size, from all of
            it down to single cells with their numbers, in float32. It takes the room and the colours of the notebook,
            so that it has neither `figsize` nor `cmap`.

    Returns:
        A `matplotlib.figure.Figure`, which `save` writes to a file; or a `dikkat.show.notebook.MapsWidget`.

    Raises:
        ValueError: A shape or a number of labels does not fit, or a widget is to have a size or a colour map.
        TypeError: The weights are not real numbers, or tokens are not lists of strings.
        ModuleNotFoundError: matplotlib, or for a widget anywidget, is not installed.

    Example:
        >>> figure = heatmaps(np.eye(2), queries=["the", "cat"], keys=["le", "chat"], titles=["alignment"])
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['le', 'chat']
    """
    if interactive and (figsize is not None or cmap is not None):
        given = f"figsize={figsize!r}" if figsize is not None else f"cmap={cmap!r}"
        raise ValueError(f"interactive: got True beside {given}; expected neither figsize nor cmap: leave it out")
    grid = grid_of(weights, queries=queries, keys=keys, xlabel=xlabel, ylabel=ylabel, titles=titles, extent=extent)
    return _widget(grid) if interactive else draw_heatmaps(figure_class(), grid, figsize, cmap)


@dataclass(frozen=True)
class Grid:
    """Panels of weights, row by row, with all their labels, checked."""

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
    def ragged(self) -> bool:
        """True of one row of panels that differ in shape."""
        return len({panel.shape for panel in self.panels}) > 1

    @property
    def query_count(self) -> int:
        """The queries of the tallest panel."""
        return self.extent[0] if self.extent else max(len(panel) for panel in self.panels)

    @property
    def key_counts(self) -> list[int]:
        """The keys of each column of panels."""
        return [self.extent[1] if self.extent else panel.shape[1] for panel in self.rows[0]]

    @property
    def unit(self) -> float:
        """Inches for a square cell."""
        labelled = self.ragged or bool(self.queries or self.keys)
        unit = _CELL if labelled else _PANEL / max(self.query_count, *self.key_counts)
        across = min(_LARGEST / max(self.key_counts), _SHEET / sum(self.key_counts))
        return min(unit, across, min(_LARGEST, _SHEET / len(self.rows)) / self.query_count)

    @property
    def beside(self) -> float:
        """Inches for the labels of all rows, with the name of the axis."""
        return _label_room(self.queries, len(self.rows[0]))

    @property
    def below(self) -> float:
        """Inches for the labels of all columns, with the name of the axis."""
        return _label_room(self.keys, len(self.rows))

    @property
    def size(self) -> tuple[float, float]:
        """Inches for all panels and their labels."""
        least = 0.0 if self.ragged else _PANEL / 2
        width = sum(max(self.unit * count, least) for count in self.key_counts)
        height = max(self.unit * self.query_count, least)
        return width + 0.1 * len(self.rows[0]) + self.beside + 0.7, len(self.rows) * (height + 0.2) + self.below + 0.3


def grid_of(
    weights: Weights, *, queries: Tokens | None = None, keys: Tokens | None = None, xlabel: str, ylabel: str,
    titles: Sequence[str] | None = None, extent: tuple[int, int] | None = None,
) -> Grid:  # fmt: skip
    """The arguments of `heatmaps`, checked."""
    rows = _as_panels(weights)
    panels = [panel for row in rows for panel in row]
    if extent is not None:
        most = tuple(max(panel.shape[axis] for panel in panels) for axis in (0, 1))
        if len(extent) != 2 or extent[0] < most[0] or extent[1] < most[1]:
            raise ValueError(f"extent: got {extent}; expected the queries and keys of the whole map, at least {most}")
        if queries is not None or keys is not None:
            raise ValueError("extent: got one beside tokens; expected either: a cell of an overview has many tokens")
    query_labels = _labels_per_panel(queries, [panel.shape[0] for panel in panels], "queries")
    key_labels = _labels_per_panel(keys, [panel.shape[1] for panel in panels], "keys")
    if isinstance(titles, str):
        raise TypeError(f"titles: got one string, {titles!r}; expected a list of strings")
    columns = len(rows[0])
    if titles is not None and len(titles) not in (columns, len(panels)):
        raise ValueError(
            f"titles: got {len(titles)}; expected {columns}, one for each column, or {len(panels)}, one a panel"
        )
    return Grid(rows, query_labels, key_labels, xlabel, ylabel, titles or (), extent)


def draw_heatmaps(
    new_figure: Callable[..., Figure], grid: Grid, figsize: tuple[float, float] | None, cmap: str | None
) -> Figure:
    """Draw a grid on the figure that `new_figure(figsize=..., layout=...)` makes, such as pyplot's."""
    rows, columns, panels = len(grid.rows), len(grid.rows[0]), grid.panels
    scale = scale_of(panels)
    labels = [label for lists in (grid.queries, grid.keys) for panel in lists or () for label in panel]
    families = families_for([grid.xlabel, grid.ylabel, *grid.titles, *labels])
    size = figsize or grid.size
    figure = new_figure(figsize=size, layout="constrained")
    shared_x, shared_y = (not grid.ragged and _is_shared(labels) for labels in (grid.keys, grid.queries))
    all_axes = figure.subplots(  # where axes are shared, only the outer labels show
        rows, columns, sharex=shared_x, sharey=shared_y, squeeze=False, width_ratios=grid.key_counts
    )
    wide = max((size[0] - grid.beside - 0.7) / columns - 0.1, 0.5)
    high = max((size[1] - grid.below - 0.3) / rows - 0.2, 0.5)
    key_pitch = _pitch(columns * wide, sum(grid.key_counts), grid.keys, turn=True)
    query_pitch = _pitch(high, grid.query_count, grid.queries, turn=False)
    for index, axes in enumerate(all_axes.flat):
        row, column = divmod(index, columns)
        queries, keys = grid.extent or panels[index].shape
        image = axes.imshow(
            np.ma.masked_invalid(panels[index]), cmap=cmap or "Reds", vmin=scale[0], vmax=scale[1], origin="upper",
            interpolation="nearest" if max(panels[index].shape) <= 256 else "auto",
            aspect="equal" if grid.ragged or 1 / 4 <= queries / keys <= 4 else "auto",
            extent=(-0.5, keys - 0.5, queries - 0.5, -0.5),
        )  # fmt: skip
        _label_axis(axes.xaxis, grid.keys[index] if grid.keys else None, key_pitch, families)
        _label_axis(axes.yaxis, grid.queries[index] if grid.queries else None, query_pitch, families)
        if row == rows - 1:
            axes.set_xlabel(grid.xlabel, fontfamily=families)
        if column == 0:
            axes.set_ylabel(grid.ylabel, fontfamily=families, loc="top" if grid.ragged else None)
        if index < len(grid.titles):
            axes.set_title(grid.titles[index], fontsize=10, fontfamily=families)
    bar = figure.colorbar(image, ax=list(all_axes.flat), shrink=0.7, aspect=24, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if grid.ragged:
        _line_up(figure, list(all_axes.flat), None if figsize else grid.unit)
    return figure


def _widget(grid: Grid) -> MapsWidget:
    with needing("notebook"):
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
    """Write a figure as a PNG, SVG or PDF file, whole or not at all.

    The same figure gives the same bytes every time: no date, no version, no random names. An SVG keeps its text as
    text, so that it can be searched, read aloud and edited; a PDF has its letters as fonts.

    Args:
        figure: Any matplotlib figure.
        path: The file to write, ending in `.png`, `.svg` or `.pdf`; its folder must exist.

    Raises:
        ValueError: `path` ends in something else.
        OSError: The system could not write; an existing file is left as it was.

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
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dikkat", "pdf.fonttype": 42}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # heatmaps has warned, in one line
        drawn = copy.deepcopy(figure)  # drawing moves the layout by a hair; the caller's figure stays as it is
        drawn.savefig(content, format=ending[1:], dpi=200, metadata=_METADATA[ending])
    write_whole(path, content.getvalue())


def figure_class() -> type[Figure]:
    """matplotlib's class, imported on first use."""
    with needing("show"):
        from matplotlib.figure import Figure
    return Figure


def _as_panels(weights: Weights) -> list[list[NDArray[np.float64]]]:
    if isinstance(weights, (list, tuple)) and weights and all(getattr(panel, "ndim", 0) == 2 for panel in weights):
        row = [as_array(panel, f"weights[{index}]") for index, panel in enumerate(weights)]
        for index, panel in enumerate(row):
            if 0 in panel.shape:
                raise ValueError(f"weights[{index}]: got shape {panel.shape}; expected (queries, keys), neither 0")
        return [row]
    given = as_array(weights, "weights")
    panels = given[None, None] if given.ndim == 2 else given
    if panels.ndim != 4 or 0 in panels.shape:
        raise ValueError(
            f"weights: got shape {given.shape}; expected (rows, columns, queries, keys) or (queries, keys), "
            "none of them 0, or a list of matrices; for a batch of matrices use weights[None]"
        )
    return [list(row) for row in panels]


def _labels_per_panel(tokens: Tokens | None, counts: list[int], name: str) -> list[list[str]] | None:
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name}: got one string, {tokens!r}; expected a list of tokens, as in {name}=text.split()")
    lists = list(tokens)
    if all(isinstance(token, str) for token in lists):
        if len(set(counts)) > 1:
            raise ValueError(f"{name}: got one list of tokens; expected one a panel, of {counts} tokens")
        return [_labels(lists, counts[0], name)] * len(counts)
    if len(lists) != len(counts):
        raise ValueError(f"{name}: got {len(lists)} lists; expected one list of tokens, or {len(counts)}, one a panel")
    return [_labels(panel, counts[index], f"{name}[{index}]") for index, panel in enumerate(lists)]


def _labels(tokens: Sequence[object], count: int, name: str) -> list[str]:
    """Tokens on one line each, with control characters visible and the middle of a long one elided."""
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"{name}: got {type(tokens).__name__}; expected a list of tokens, each a str")
    if len(tokens) != count:
        raise ValueError(f"{name}: got {len(tokens)} tokens; expected {count}, as the weights have")
    labels, half = [], _LONGEST // 2
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"{name}[{index}]: got {type(token).__name__}; expected str")
        text = "".join(map(_visible, token))
        labels.append(text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half + 1 :]}")
    return labels


def _visible(character: str) -> str:
    if unicodedata.category(character) not in {"Cc", "Cs"}:
        return character
    return {"\n": "↵", "\t": "⇥"}.get(character, "\N{REPLACEMENT CHARACTER}")


def _is_shared(labels: list[list[str]] | None) -> bool:
    """True if all panels have the same labels or none, so that only the outer panels show them."""
    return labels is None or all(panel is labels[0] for panel in labels)


def scale_of(panels: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Limits of the colour scale."""
    weights = np.concatenate([panel.ravel() for panel in panels])
    finite = weights[np.isfinite(weights)]
    low, high = min(0.0, finite.min(initial=0.0)), finite.max(initial=-math.inf)
    return float(low), float(high) if high > low else float(low) + 1.0


def _longest(labels: list[list[str]] | None) -> float:
    """Width of the longest label in letters, of which a Chinese character counts 1.7."""
    widths = (
        sum(1.7 if unicodedata.east_asian_width(character) in "WF" else 1.0 for character in label)
        for panel in labels or ()
        for label in panel
    )
    return max(widths, default=3.0)


def _label_room(labels: list[list[str]] | None, count: int) -> float:
    """Inches for the labels of `count` neighbouring panels, with the axis's name."""
    return (0.07 * _longest(labels) + 0.35) * (1 if _is_shared(labels) else count)


def _pitch(inches: float, count: int, labels: list[list[str]] | None, *, turn: bool) -> tuple[float, int, int]:
    """Size, step and rotation of labels: as large as fits, every second or third one where 5 points do not fit."""
    cell = inches * 72 / count
    size = min(max(cell * 0.75, 5.0), 9.0)
    step = max(1, math.ceil(size * 1.1 / cell))
    if not turn or _longest(labels) * size * 0.62 + 4 <= cell * step:
        return size, step, 0
    return size, step, 45 if cell * step >= 1.7 * size else 90


def _label_axis(axis: Axis, labels: list[str] | None, pitch: tuple[float, int, int], families: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    if labels is None:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axis.set_tick_params(labelsize=8)
        return
    size, step, rotation = pitch
    axis.set_ticks(
        range(0, len(labels), step),
        labels[::step],
        parse_math=False,  # a token "$5" is no formula
        fontsize=size,
        fontfamily=families,
        rotation=rotation,
    )
    if rotation == 45:
        for label in axis.get_ticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axis.set_tick_params(length=0 if step == 1 else 2)


def _line_up(figure: Figure, axes: list[Axes], unit: float | None) -> None:
    """Align panels of different heights at the top; resize the figure until cells have `unit` inches."""
    for each in axes:
        each.set_anchor("N")
    if unit is None:
        return
    shapes = [each.images[0].get_size() for each in axes]
    for _ in range(2):  # the room that labels take is known once they are laid out, and changes a little with the size
        figure.draw_without_rendering()
        boxes = [each.get_position(original=True) for each in axes]
        width, height = (float(inches) for inches in figure.get_size_inches())
        wide = unit * sum(keys for _, keys in shapes) - width * sum(box.width for box in boxes)
        high = unit * max(queries for queries, _ in shapes) - height * min(box.height for box in boxes)
        figure.set_size_inches(width + wide, height + high + 0.02)
