"""The textbook's pictures of any framework's arrays, in notebooks and scripts.

matplotlib is imported at the first drawing. Only `set_figsize` changes its settings. In a notebook, training curves
are displayed and updated in place. In a script all figures are those of `plt`, to be shown with `plt.show()` or saved.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dikkat.show.heatmaps import draw_heatmaps, grid_of
from dikkat.textbook.tools import as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Animator", "ProgressBoard", "plot", "plt", "set_axes", "set_figsize", "show_heatmaps", "use_svg_display",
]  # fmt: skip

Size = tuple[float, float]
Limits = Sequence[float] | None

_FORMATS = ("-", "m--", "g-.", "r:")


class _Pyplot:
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("matplotlib.pyplot"), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module("matplotlib.pyplot"))


plt: Any = _Pyplot()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def use_svg_display() -> None:
    """In a notebook, show figures as sharp SVG; elsewhere do nothing."""
    if _in_notebook():
        importlib.import_module("matplotlib_inline.backend_inline").set_matplotlib_formats("svg")


def set_figsize(figsize: Size = (3.5, 2.5)) -> None:
    """Set the width and height of new figures, in inches."""
    use_svg_display()
    plt.rcParams["figure.figsize"] = figsize


def set_axes(
    axes: "Axes", xlabel: str | None, ylabel: str | None, xlim: Limits, ylim: Limits, xscale: str, yscale: str,
    legend: Sequence[str] | None,
) -> None:  # fmt: skip
    """Set labels, limits, scales, a grid, and a legend if it has names."""
    axes.set(xlabel=xlabel or "", ylabel=ylabel or "", xscale=xscale, yscale=yscale)
    for limits, set_limits in ((xlim, axes.set_xlim), (ylim, axes.set_ylim)):
        if limits is not None and limits[0] != limits[1]:  # one epoch has no width
            set_limits(*limits)
    if legend:
        axes.legend(legend)
    axes.grid(True)


def plot(
    X: Any, Y: Any = None, xlabel: str | None = None, ylabel: str | None = None, legend: Sequence[str] | None = None,
    xlim: Limits = None, ylim: Limits = None, xscale: str = "linear", yscale: str = "linear",
    fmts: Sequence[str] = _FORMATS, figsize: Size = (3.5, 2.5), axes: "Axes | None" = None,
) -> None:  # fmt: skip
    """Draw curves.

    Args:
        X: One sequence of x values, or one for each curve; without Y, the y values themselves.
        Y: One sequence of y values, or one for each curve.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
        legend: Names of the curves.
        xlim: Left and right end of the x axis.
        ylim: Lower and upper end of the y axis.
        xscale: `"linear"`, `"log"` ...
        yscale: As `xscale`, for y.
        fmts: matplotlib's formats of the curves, repeated if there are more curves.
        figsize: Width and height of a new figure, in inches.
        axes: Where to draw; they are cleared first. None: a new figure, or the current axes if they are empty.

    Raises:
        ValueError: X has several sequences, but not one for each of Y's.
    """
    use_svg_display()
    xs, ys = ([], _curves(X)) if Y is None else (_curves(X), _curves(Y))
    if len(xs) not in (0, 1, len(ys)):
        raise ValueError(f"X: got {len(xs)} sequences; expected 1, or one for each of Y's {len(ys)}")
    if axes is None:
        empty = bool(plt.get_fignums()) and not plt.gca().has_data()
        axes = plt.gca() if empty else plt.figure(figsize=figsize, layout="constrained").gca()
    axes.cla()
    for index, y in enumerate(ys):
        x = [xs[index if len(xs) > 1 else 0]] if xs else []
        axes.plot(*x, y, fmts[index % len(fmts)])
    set_axes(axes, xlabel, ylabel, xlim, ylim, xscale, yscale, legend)


def _curves(data: Any) -> list[Any]:
    """Return a list of curves, from one curve, a list of curves, or the rows of a matrix."""
    if isinstance(data, list | tuple):
        curves = [as_array(curve) for curve in data]
        return [np.array(curves)] if all(curve.ndim == 0 for curve in curves) else curves
    array = as_array(data)
    return [array] if array.ndim == 1 else list(array)


def show_heatmaps(
    matrices: Any, xlabel: str, ylabel: str, titles: Sequence[str] | None = None, figsize: Size = (2.5, 2.5),
    cmap: str = "Reds",
) -> None:  # fmt: skip
    """Draw a grid of matrices with one colour scale for all: `dikkat.show.heatmaps` on a figure of `plt`.

    Args:
        matrices: (rows of panels, columns of panels, queries, keys).
        xlabel: Label of the keys.
        ylabel: Label of the queries.
        titles: One for each column of panels.
        figsize: Width and height, in inches.
        cmap: The name of a colour map.

    Raises:
        ValueError: Not four dimensions.
    """
    use_svg_display()
    panels = as_array(matrices)
    if panels.ndim != 4:
        raise ValueError(f"matrices: got shape {panels.shape}; expected (rows, columns, queries, keys)")
    draw_heatmaps(plt.figure, grid_of(panels, xlabel=xlabel, ylabel=ylabel, titles=titles), figsize, cmap)


class _LiveAxes:
    """Axes with growing curves; in a notebook the displayed figure is updated in place."""

    def __init__(self, axes: "Axes") -> None:
        self.axes, self.handle = axes, None
        if _in_notebook():  # else pyplot shows it again at the end of the cell
            plt.close(axes.figure)

    def show(self) -> None:
        self.axes.relim()
        self.axes.autoscale_view()
        if not _in_notebook():
            return
        if self.handle is None:
            self.handle = importlib.import_module("IPython.display").display(self.axes.figure, display_id=True)
        else:
            self.handle.update(self.axes.figure)


def _set_points(line: Any, x: Sequence[float], y: Sequence[float]) -> None:
    """Set a curve's points; a single point, which has no line, becomes a dot."""
    if len(x) == 1 and line.get_marker() == "None":
        line.set(marker="o", gid="alone")
    elif line.get_gid() == "alone":
        line.set(marker="None", gid=None)
    line.set_data(x, y)


class Animator:
    """Curves that are updated during training.

    Attributes:
        X: The curves' x values so far, a list for each curve; None before the first.
        Y: Their y values.
    """

    def __init__(
        self, xlabel: str | None = None, ylabel: str | None = None, legend: Sequence[str] | None = None,
        xlim: Limits = None, ylim: Limits = None, xscale: str = "linear", yscale: str = "linear",
        fmts: Sequence[str] = _FORMATS, nrows: int = 1, ncols: int = 1, figsize: Size = (3.5, 2.5),
    ) -> None:  # fmt: skip
        use_svg_display()
        self.fig, axes = plt.subplots(nrows, ncols, figsize=figsize, squeeze=False, layout="constrained")
        self.axes = list(axes.flat)
        self.X: list[list[float]] | None = None
        self.Y: list[list[float]] | None = None
        self.fmts, self.legend = fmts, legend or []
        set_axes(self.axes[0], xlabel, ylabel, xlim, ylim, xscale, yscale, None)
        self._lines: list[Any] = []
        self._live_axes = _LiveAxes(self.axes[0])

    def add(self, x: Any, y: Any) -> None:
        """Add a point to each curve."""
        ys = list(y) if isinstance(y, list | tuple) else [y]
        xs = list(x) if isinstance(x, list | tuple) else [x] * len(ys)
        if self.X is None or self.Y is None:
            self.X, self.Y = [[] for _ in ys], [[] for _ in ys]
            for index in range(len(ys)):
                self._lines += self.axes[0].plot([], [], self.fmts[index % len(self.fmts)])
            if self.legend:
                self.axes[0].legend(self.legend)
        for new_x, new_y, all_x, all_y, line in zip(xs, ys, self.X, self.Y, self._lines, strict=True):
            if new_x is not None and new_y is not None:
                all_x.append(float(as_array(new_x)))
                all_y.append(float(as_array(new_y)))
                _set_points(line, all_x, all_y)
        self._live_axes.show()


class ProgressBoard:
    """Training curves of the models of edition 1.0, one for each label.

    Attributes:
        data: {label: [(x, y), …]}, the drawn points.
    """

    def __init__(
        self, xlabel: str | None = None, ylabel: str | None = None, xlim: Limits = None, ylim: Limits = None,
        xscale: str = "linear", yscale: str = "linear", ls: Sequence[str] = ("-", "--", "-.", ":"),
        colors: Sequence[str] = ("C0", "C1", "C2", "C3"), fig: Any = None, axes: Any = None, figsize: Size = (3.5, 2.5),
        display: bool = True,
    ) -> None:  # fmt: skip
        self.xlabel, self.ylabel, self.xlim, self.ylim = xlabel, ylabel, xlim, ylim
        self.xscale, self.yscale, self.ls, self.colors = xscale, yscale, ls, colors
        self.fig, self.axes, self.figsize, self.display = fig, axes, figsize, display
        self.data: dict[str, list[tuple[float, float]]] = {}
        self._pending: dict[str, list[tuple[float, float]]] = {}
        self._lines: dict[str, Any] = {}
        self._live_axes: _LiveAxes | None = None

    def draw(self, x: Any, y: Any, label: str, every_n: int = 1) -> None:
        """Add a point to a label's curve: the mean of every `every_n` points."""
        pending = self._pending.setdefault(label, [])
        pending.append((float(as_array(x)), float(as_array(y))))
        if len(pending) < every_n:
            return
        points = self.data.setdefault(label, [])
        points.append(tuple(np.mean(pending, axis=0).tolist()))
        pending.clear()
        if not self.display:
            return
        if self._live_axes is None:
            self._live_axes = self._create_axes()
        if label not in self._lines:
            index = len(self._lines)
            style, color = self.ls[index % len(self.ls)], self.colors[index % len(self.colors)]
            (self._lines[label],) = self.axes.plot([], [], linestyle=style, color=color, label=label)
            self.axes.legend()
        _set_points(self._lines[label], *zip(*points, strict=True))
        self._live_axes.show()

    def _create_axes(self) -> _LiveAxes:
        use_svg_display()
        if self.axes is None:
            self.axes = (plt.figure(figsize=self.figsize, layout="constrained") if self.fig is None else self.fig).gca()
        self.fig = self.axes.figure
        set_axes(self.axes, self.xlabel, self.ylabel, self.xlim, self.ylim, self.xscale, self.yscale, legend=None)
        return _LiveAxes(self.axes)
