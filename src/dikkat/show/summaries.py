"""Pictures of summaries: the total weight of each key, and the entropy of each head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dikkat.show.arrays import Weights, as_array
from dikkat.show.heatmaps import figure_class, heatmaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["entropies", "key_sums"]

_MAX_LABELS = 60  # tokens under the axis
_LINE_COLORS = 10


def key_sums(
    sums: Weights, *, keys: Sequence[str] | None = None, labels: Sequence[str] | None = None, xlabel: str = "Keys",
    ylabel: str = "Sum of weights", figsize: tuple[float, float] = (8.0, 2.6),
) -> Figure:  # fmt: skip
    """Draw the total weight of each key, as a line for each head.

    Args:
        sums: (m,) or (lines, m), the sum of each key's weights, as from `dikkat.inspect(..., sums=True)`. Numbers that
            are not finite are gaps in the line.
        keys: Tokens that label the keys, at most 60; None for numbers.
        labels: A name for each line.
        xlabel: The name of the key axis.
        ylabel: The name of the axis of sums.
        figsize: Width and height in inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: A shape or a number of labels does not fit.
        TypeError: The sums are not real numbers.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> figure = key_sums([[3.0, 1.0, 1.0], [2.0, 2.0, 1.0]], labels=["head 0", "head 1"])
        >>> len(figure.axes[0].lines)
        2
    """
    array = as_array(sums, "sums")
    lines = array[None] if array.ndim == 1 else array
    if lines.ndim != 2 or 0 in lines.shape:
        raise ValueError(f"sums: got shape {array.shape}; expected (keys,) or (lines, keys), each size at least 1")
    count = lines.shape[1]
    if keys is not None and (isinstance(keys, str) or len(keys) != count or count > _MAX_LABELS):
        passed = "one string" if isinstance(keys, str) else f"{len(keys)} tokens"
        raise ValueError(f"keys: got {passed}; expected {count}, one for each key, and at most {_MAX_LABELS}")
    if labels is not None and len(labels) != len(lines):
        raise ValueError(f"labels: got {len(labels)}; expected {len(lines)}, one for each line")
    figure = figure_class()(figsize=figsize, layout="constrained")
    axes = figure.subplots()
    for index, line in enumerate(lines):
        axes.plot(line, linewidth=1, color=_color(index, len(lines)), label=None if labels is None else labels[index])
    axes.set_xlim(-0.5, max(count - 0.5, 0.5))
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(lines, initial=0.0))))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    if keys is not None:
        axes.set_xticks(range(count), keys, rotation=90 if count > 12 else 0, parse_math=False)
    if labels is not None:
        axes.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False, ncols=1 + (len(lines) - 1) // 8
        )
    return figure


def _color(index: int, lines: int) -> Any:
    """Return the colour of a line: one of matplotlib's ten, or of a ramp for more lines."""
    if lines <= _LINE_COLORS:
        return f"C{index}"
    from matplotlib import colormaps

    return colormaps["turbo"](0.05 + 0.9 * index / (lines - 1))


def entropies(
    by_layer: Mapping[str, Weights], *, figsize: tuple[float, float] | None = None, cmap: str = "viridis"
) -> Figure:
    """Draw the mean entropy of each layer's heads: 0 for a single key, high for uniform weights.

    Args:
        by_layer: The entropies of each layer by name, (heads, n) or (..., heads, n); (n,) counts as one head. Layers
            may have different numbers of heads. Entropies that are not finite do not count.
        figsize: Width and height in inches.
        cmap: The name of a matplotlib colour map.

    Returns:
        A `matplotlib.figure.Figure`: a row for each layer, a column for each head, in nats.

    Raises:
        ValueError: There is no layer, or a layer has no entropies.
        TypeError: The entropies are not real numbers.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> figure = entropies({"first": [[0.0, 0.0], [1.0, 2.0]], "second": [[0.5, 0.5]]})
        >>> figure.axes[0].images[0].get_array().tolist()
        [[0.0, 1.5], [0.5, None]]
    """
    table = mean_entropies(by_layer)
    heads = [str(head) for head in range(table.shape[1])]
    names = [name or "model" for name in by_layer]
    return heatmaps(table, queries=names, keys=heads, xlabel="Heads", ylabel="Layers", figsize=figsize, cmap=cmap)


def mean_entropies(by_layer: Mapping[str, Weights]) -> NDArray[np.float64]:
    """Return the table (layers, heads) of `entropies`, with NaN for missing heads."""
    if not by_layer:
        raise ValueError("by_layer: got no layer; expected at least one")
    means = []
    for name, entropies in by_layer.items():
        array = as_array(entropies, f"by_layer[{name!r}]")
        if not array.ndim or 0 in array.shape:
            raise ValueError(
                f"by_layer[{name!r}]: got shape {array.shape}; expected (..., heads, queries), each size at least 1"
            )
        heads = np.moveaxis(np.atleast_2d(array), -2, 0)
        finite = [head[np.isfinite(head)] for head in heads]
        means.append([float(head.mean()) if head.size else float("nan") for head in finite])
    table = np.full((len(means), max(map(len, means))), np.nan)
    for row, by_head in zip(table, means, strict=True):
        row[: len(by_head)] = by_head
    return table
