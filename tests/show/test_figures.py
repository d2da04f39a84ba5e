"""Figures of one head for papers: their tokens, lines and cells beside the weights."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dikkat
import kit

HEADS, QUERIES, KEYS = 3, 5, 7
SOURCE, TARGET = [f"source{k}" for k in range(KEYS)], [f"target{k}" for k in range(QUERIES)]


def made(seed: int = 1) -> tuple[torch.Tensor, dikkat.Trace]:
    weights = (2 * torch.randn(2, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(seed))).softmax(-1)
    return weights, dikkat.show.weights(list(weights), tokens=(SOURCE, TARGET))


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def lines(figure: Any) -> dict[tuple[int, int], Any]:
    """The colour and opacity of the line of each query and key."""
    (collection,) = figure.axes[0].collections
    ends = [tuple(segment[:, 1].astype(int).tolist()) for segment in collection.get_segments()]
    assert all(segment[:, 0].tolist() == [0, 1] for segment in collection.get_segments())
    return dict(zip(ends, collection.get_colors(), strict=True))


def test_lines_are_as_opaque_as_weights_are_large() -> None:
    weights, trace = made()
    figure = trace.figure(1, 2)
    assert [labels(axes.yaxis) for axes in figure.axes] == [TARGET, SOURCE]
    drawn = lines(figure)
    expected = weights[1, 2].double().numpy()
    assert set(drawn) == {(i, j) for i in range(QUERIES) for j in range(KEYS) if expected[i, j] >= 0.01}
    for pair, colour in drawn.items():
        assert np.isclose(colour[3], expected[pair], atol=1e-6)
    for axes in figure.axes:  # tokens of both columns start at the top, in rows of one height
        assert axes.get_ylim() == (KEYS - 0.5, -0.5)
        assert all(label.get_fontsize() >= 8 for label in axes.get_yticklabels())


def test_a_map_has_the_cells_and_tokens() -> None:
    weights, trace = made()
    figure = trace.figure(0, -1, kind="map")
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), weights[0, 2].numpy(), rtol=1e-6)
    assert [labels(figure.axes[0].yaxis), labels(figure.axes[0].xaxis)] == [TARGET, SOURCE]
    assert figure.get_size_inches()[0] == 3.4


@kit.each("kind", ["lines", "map"])
def test_a_column_is_wide_enough_for_labels(kind: str, tmp_path: Path) -> None:
    figure = made()[1].figure(0, 0, kind=kind)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for axes in figure.axes[:1] for label in axes.get_yticklabels()]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(above.y0 > below.y0 for above, below in pairwise(boxes))
    dikkat.show.save(figure, tmp_path / "head.pdf")


def test_a_difference_has_two_colours() -> None:
    (first, one), (second, other) = made(1), made(2)
    expected = (first - second)[0, 1].double().numpy()
    difference = one - other
    drawn = lines(difference.figure(0, 1))
    blue, orange = (drawn[next(pair for pair in drawn if expected[pair] * sign > 0)][:3] for sign in (1, -1))
    assert not np.array_equal(blue, orange)
    for pair, colour in drawn.items():
        np.testing.assert_array_equal(colour[:3], blue if expected[pair] > 0 else orange)
        assert np.isclose(colour[3], abs(expected[pair]) / np.abs(expected).max(), atol=1e-6)
    image = difference.figure(0, 1, kind="map").axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), expected, rtol=1e-5, atol=1e-7)
    assert image.get_clim() == (-image.get_clim()[1], pytest.approx(np.abs(expected).max()))
    np.testing.assert_allclose(image.cmap(0.5)[:3], [1, 1, 1], atol=0.01)


def test_recorded_heads_and_largest_weights() -> None:
    layer, x = torch.nn.MultiheadAttention(6, 3, batch_first=True), torch.randn(2, QUERIES, 6)
    with torch.no_grad(), dikkat.record(layer, heads=[2, 0], top_k=2) as trace:
        layer(x, x, x)
    found = trace.figure(0, 0, kind="map", element=1).axes[0].images[0].get_array()
    weights = layer(x, x, x, average_attn_weights=False)[1][1, 0].detach()
    largest = weights.topk(2, -1)
    expected = torch.zeros(QUERIES, QUERIES).scatter(1, largest.indices, largest.values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert labels(trace.figure(0, 2).axes[0].yaxis) == list("01234")
    for arguments, error, message in (
        ((0, 1), IndexError, "head: got 1; expected one of 2, 0"),
        ((3, 0), IndexError, r"trace\[3\]: got an unknown layer"),
    ):
        with pytest.raises(error, match=message):
            trace.figure(*arguments)
    for named, message in (({"kind": "bars"}, "kind: got 'bars'; expected 'lines', 'map' or 'image'"),
                           ({"element": 2}, "element: got 2; expected -2 to 1")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            trace.figure(0, 0, **named)
    with torch.no_grad(), dikkat.record(layer, sums=True) as trace:
        layer(x, x, x)
    with pytest.raises(ValueError, match=r"trace\[''\]: got .*sums; expected a recording with weights=True or top_k"):
        trace.figure(0, 0)
    with pytest.raises(ValueError, match="figure: got 101 tokens; expected at most 100 for kind='lines'"):
        dikkat.show.weights(torch.eye(101)).figure(0, 0)
