"""Reliability diagrams: the confidence of predictions, and the share of them that is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dikkat.show.heatmaps import figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALLEST, _LARGEST = 12.0, 220.0  # areas of marks in square points
_LAST, _LOW = 0.88, 0.06  # from this x, a label is on the left of its mark; below this y, above its middle


def draw_reliability(confidence: Sequence[float], right: Sequence[float], counts: Sequence[int], title: str) -> Figure:
    """Draw the share of right predictions over the mean confidence of bins. Calibrated bins are on the diagonal.

    The area of a mark is proportional to the number of predictions, which its label gives.

    Example:
        >>> draw_reliability([0.1, 0.8], [0.2, 0.7], [30, 10], "two bins").axes[0].get_title()
        'two bins'
    """
    figure = figure_class()(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--", label="calibrated")
    axes.plot(confidence, right, color="C0", linewidth=1)
    areas = [max(_SMALLEST, _LARGEST * count / max(counts)) for count in counts]
    axes.scatter(confidence, right, s=areas, color="C0", zorder=3, label="translations")
    for x, y, count, area in zip(confidence, right, counts, areas, strict=True):
        is_last, distance = x > _LAST, area**0.5 / 2 + 2
        axes.annotate(
            f"{count:,}", (x, y), xytext=(-distance if is_last else distance, distance / 2 if is_last else 0),
            textcoords="offset points", ha="right" if is_last else "left",
            va="bottom" if is_last or y < _LOW else "top", fontsize="small", color="0.3",
        )  # fmt: skip
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="confidence (labels: translations)",
        ylabel="share of right translations",
    )
    for artist in axes.collections:
        artist.set_clip_on(False)
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
