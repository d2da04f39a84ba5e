"""Figures of weights on an image and below a time series: the numbers and the places of what is drawn."""

import numpy as np
import pytest
import torch
from PIL import Image

import dikkat
from dikkat import show
from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection

IMAGE = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) * 5)
GRID = dikkat.Grid(2, 3, image=IMAGE, box=(2, 0, 8, 4))
WEIGHTS = np.array([0.0, 0.1, 0.2, 0.3, 0.05, 0.35])


def drawn(axes):
    """The image, its extent, and the colours and the extent of each grid."""
    image, *overlays = axes.images
    return image.get_array(), image.get_extent(), [(each.get_array(), each.get_extent()) for each in overlays]


def test_colours_lie_on_the_box_of_the_image():
    figure = show.on_image(WEIGHTS, GRID, titles=["$5"])
    image, extent, [(colours, box)] = drawn(figure.axes[0])
    np.testing.assert_array_equal(image, np.asarray(IMAGE))
    assert (extent, box) == ([0, 8, 6, 0], [2, 8, 4, 0])
    assert figure.axes[0].get_title() == "$5"
    np.testing.assert_allclose(colours[..., 3], 0.85 * np.sqrt(WEIGHTS / 0.35).reshape(2, 3), atol=1e-6)
    brightness = colours[..., :3].sum(-1).ravel()
    assert np.argsort(brightness).tolist() == np.argsort(WEIGHTS).tolist()
    assert figure.axes[-1].get_ylim() == (0, 0.35)  # of the bar


def test_positions_in_another_order_are_drawn_in_their_cells():
    order = [5, 3, 1, 0, 2, 4]
    mixed = dikkat.Grid(2, 3, image=IMAGE, box=(2, 0, 8, 4), order=order)
    expected = drawn(show.on_image(WEIGHTS, GRID).axes[0])[2][0][0]
    for weights in (WEIGHTS[order], WEIGHTS.reshape(2, 3)):
        np.testing.assert_array_equal(drawn(show.on_image(weights, mixed).axes[0])[2][0][0], expected)


@pytest.mark.parametrize(
    ("shape", "panels", "count"),
    [
        ((6,), (1, 1), 1),
        ((2, 3), (1, 1), 1),
        ((5, 6), (1, 5), 5),
        ((8, 6), (2, 4), 8),
        ((7, 6), (2, 4), 7),
        ((13, 6), (3, 5), 13),
        ((4, 2, 6), (4, 2), 8),
    ],
)
def test_panels(shape, panels, count):
    weights = np.random.default_rng(1).random(shape)
    figure = show.on_image(weights, GRID)
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == panels
    *drawn_panels, _ = figure.axes  # the last one is the bar of colours
    largest = [np.argmax(axes.images[1].get_array()[..., 3]) for axes in drawn_panels]
    assert largest == [np.argmax(values) for values in weights.reshape(count, 6)]


def test_negative_weights_are_orange_and_positive_ones_blue():
    colours = drawn(show.on_image(WEIGHTS - 0.2, GRID).axes[0])[2][0][0].reshape(6, 4)
    assert colours[0, 0] > colours[0, 2]  # red > blue
    assert colours[5, 2] > colours[5, 0]
    assert colours[2, 3] < 0.01


def test_an_empty_grid_has_opaque_cells():
    (cells,) = show.on_image(torch.tensor(WEIGHTS), dikkat.Grid(2, 3)).axes[0].images
    assert cells.get_array()[..., 3].min() == 1


@pytest.mark.parametrize("series", [None, [1.0, 3.0, 2.0], np.sin(np.arange(100))])
def test_weights_below_a_series(series):
    figure = show.on_image([0.2, 0.5, 0.3], dikkat.Times([0, 1, 4], series=series))
    area = figure.axes[0].collections[0].get_paths()[0].vertices
    assert area[:, 1].max() == 0.5
    if series is None:
        assert len(figure.axes) == 1
        return
    (line,) = figure.axes[1].lines
    expected = [0, 1, 4] if len(series) == 3 else np.linspace(0, 4, 100)
    np.testing.assert_allclose(line.get_xdata(), expected)
    low, high = figure.axes[1].get_ylim()
    assert low < min(series) < max(series) <= high
    assert (min(series) - low) / (high - low) > 0.5 * figure.axes[0].get_ylim()[0] + 0.5  # in the upper half


@pytest.mark.parametrize(
    ("weights", "part", "error", "message"),
    [
        (np.ones(5), GRID, ValueError, r"weights: got shape \(5,\); expected \(6,\), \(k, 6\) .*\(..., 2, 3\)"),
        (np.ones((2, 2, 2, 6)), GRID, ValueError, r"weights: got shape \(2, 2, 2, 6\)"),
        (np.ones(0), GRID, ValueError, r"weights: got shape \(0,\)"),
        (np.full(6, np.nan), GRID, ValueError, "weights: got numbers that are not finite"),
        (np.ones(6), "photo.png", TypeError, "grid: got str; expected dikkat.Grid or dikkat.Times"),
        (["a"], GRID, TypeError, "weights: got"),
    ],
)
def test_weights_that_do_not_fit(weights, part, error, message):
    with pytest.raises(error, match=message):
        show.on_image(weights, part)
    with pytest.raises(ValueError, match="titles: got 'ab'; expected 1 strings"):
        show.on_image(WEIGHTS, GRID, titles="ab")


def test_a_figure_of_a_trace(tmp_path):
    """Two tiles of an image in one panel, and another image in a second panel."""
    tiles = [dikkat.Grid(1, 2, image=IMAGE, box=box, order=[1, 0]) for box in ((0, 0, 4, 6), (4, 0, 8, 6))]
    parts = ["[CLS]", *tiles, dikkat.Grid(2, 1, image=IMAGE.rotate(180))]
    weights = torch.rand(1, 2, 7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    trace = dikkat.Trace()
    trace.add(Inspection(weights=weights, shape=(1, 2, 7, 7)), Call("attention", 0, 0))
    trace.tokens = parts
    for query, row in ((0, weights[0, 1, 0]), (None, weights[0, 1].mean(0))):
        figure = trace.figure(0, 1, kind="image", query=query)
        assert figure.axes[0].get_title() == ("[CLS]" if query == 0 else "mean of all queries")
        strengths = np.sqrt(row[1:].numpy() / row[1:].max().item()) * 0.85
        (_, _, overlays), (_, _, [other]) = map(drawn, figure.axes[:2])
        assert [extent for _, extent in overlays] == [[0, 4, 6, 0], [4, 8, 6, 0]]
        found = np.concatenate([colours[..., 3].ravel() for colours, _ in [*overlays, other]])
        np.testing.assert_allclose(found, strengths[[1, 0, 3, 2, 4, 5]], atol=1e-6)
    show.save(figure, tmp_path / "figure.png")
    for arguments, error, message in (
        ({"query": 7}, IndexError, "query: got 7; expected 0 to 6"),
        ({"query": 0, "kind": "map"}, ValueError, "query: got 0 with kind='map'; expected kind='image'"),
    ):
        with pytest.raises(error, match=message):
            trace.figure(0, 1, **{"kind": "image"} | arguments)
    trace.tokens = list("abcdefg")
    with pytest.raises(ValueError, match="figure: got no grid or times among the keys"):
        trace.figure(0, 1, kind="image")


def test_a_row_of_patches_in_another_order():
    grid = dikkat.Grid(1, 3, image=np.zeros((1, 3)), order=[2, 0, 1])
    drawn = [
        show.on_image(weights, grid).axes[0].images[1].get_array()[0, :, 3] for weights in ([1, 2, 3], [[1, 2, 3]])
    ]
    for opacities in drawn:
        np.testing.assert_allclose(opacities, 0.85 * np.sqrt(np.array([2, 3, 1]) / 3), atol=1e-3)
