import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest

from dikkat.regression import experiment, pictures
from dikkat.regression.columns import Column
from dikkat.regression.diagnostics import Among, Curve
from dikkat.show import save

SVG = "{http://www.w3.org/2000/svg}"


def curve(name="area", count=7, at=None):
    at = np.linspace(1.0, 4.0, 13) if at is None else at
    random = np.random.default_rng(0)
    return Curve(name, at, at**2, at**2 - 1, at**2 + 1, random.uniform(1, 4, count))


def texts(figure, path):
    save(figure, path)
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text")]


def test_a_curve_has_the_points_the_estimate_and_its_band(tmp_path):
    shown, observed = curve(), np.arange(7.0) * 3
    figure = pictures.draw_curve(shown, observed, "price")
    (axes,) = figure.axes
    points, line = axes.lines
    np.testing.assert_array_equal(points.get_xydata(), np.column_stack([shown.data, observed]))
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([shown.at, shown.estimate]))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {tuple(corner) for corner in corners} >= set(zip(shown.at, shown.upper, strict=True))
    assert {"price", "area", "data", "95 % confidence", "estimate"} <= set(texts(figure, tmp_path / "fit.svg"))


def test_a_wide_band_does_not_flatten_the_curve():
    wide = curve()
    wide.upper[3] = 1e9
    low, high = pictures.draw_curve(wide, np.arange(7.0), "price").axes[0].get_ylim()
    assert low < 0
    assert 16 < high < 20


@pytest.mark.parametrize("count", [2_000, 2_003])
def test_more_points_than_can_be_seen_are_not_all_drawn_and_that_is_said(count):
    figure = pictures.draw_curve(curve(count=count), np.arange(float(count)), "y")
    points = figure.axes[0].lines[0]
    assert len(points.get_xdata()) == 2_000
    assert points.get_label() == ("data" if count == 2_000 else "2,000 of 2,003 data points")


@pytest.mark.parametrize(("features", "panels"), [(0, 1), (2, 3), (5, 6)])
def test_several_features_have_a_panel_each(features, panels):
    observed = np.arange(11.0)
    figure = pictures.draw_fit(observed + 1, observed, [curve(f"x{i}", 11) for i in range(features)], "y")
    assert len(figure.axes) == panels
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), np.column_stack([observed + 1, observed]))
    assert [axes.get_xlabel() for axes in figure.axes] == ["y, predicted", *(f"x{i}" for i in range(features))]
    assert len({axes.get_ylim() for axes in figure.axes[1:]}) <= 1
    figure.draw_without_rendering()


def test_categories_are_lines_of_text_the_most_frequent_of_many():
    levels = tuple(f"Agent {each} and Partners" for each in "ABCDEFGHIJKLMNOPQ")
    estimate = np.arange(17) * 7.0 % 17
    data = np.repeat(np.arange(17.0), np.append(np.arange(2, 18), 1))  # of A and Q there are fewest
    shown = Curve("agent", np.arange(17.0), estimate, estimate - 1, estimate + 2, data, Column("category", levels))
    figure = pictures.draw_effects(np.arange(17.0), [[shown], [curve()]], "price")
    axes = figure.axes[0]
    figure.draw_without_rendering()
    named = [label.get_text() for label in axes.get_yticklabels()]
    assert [each[6] for each in named] == sorted("DEFGHIJKLMNOP" + "C", key=lambda each: 7 * (ord(each) - 65) % 17)
    assert axes.get_ylabel() == "agent\n14 most frequent of 17"
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert (np.diff(axes.lines[-1].get_xdata()) > 0).all()
    assert axes.get_xlim() == figure.axes[1].get_ylim()


LONG = "municipal spending"


@pytest.mark.parametrize(
    ("at", "column", "label"),
    [
        ([0, 1993], Column("date", origin="2015-03-06"), LONG),
        ([0, 1642], Column("date", origin="2006-01-01"), LONG),
        ([0, 119], Column("date", origin="2021-01-01"), LONG),  # January has the year
        ([3, 33], Column("date", origin="2020-12-13"), f"{LONG}, 2020 to 2021"),
        ([0, 1.7], Column("date", origin="2021-01-01T05:00"), f"{LONG}, 2021"),
        ([0, 400], Column("date", origin="2020-10-01"), LONG),
        ([101_691, 8_958_168], Column(), LONG),
        ([2e-7, 1.1e-5], Column(), LONG),
        ([1990, 2023], Column(), LONG),
    ],
)
def test_labels_do_not_overlap(at, column, label):
    at = np.linspace(*at, 13)
    shown = Curve(LONG, at, at, at, at, at, column)
    figure = pictures.draw_fit(at, at, [shown, curve(), curve()], "y")  # in four panels, the narrowest
    figure.draw_without_rendering()
    axes = figure.axes[1]
    ticks = [text for text in axes.get_xticklabels() if at[0] <= text.get_position()[0] <= at[-1]]
    boxes = [text.get_window_extent() for text in ticks]
    assert 2 <= len(boxes) <= 10
    assert all(low.x1 < high.x0 for low, high in pairwise(boxes))
    assert len({text.get_text() for text in ticks}) > 1
    assert axes.xaxis.get_offset_text().get_text() == axes.yaxis.get_offset_text().get_text() == ""
    assert axes.get_xlabel() == label
    (legend,) = figure.legends
    assert legend.get_window_extent().y0 > max(axes.get_window_extent().y1 for axes in figure.axes)


def test_dates_are_at_their_days():
    at = np.linspace(0, 119, 13)
    shown = Curve("day", at, at, at, at, at, Column("date", origin="2021-01-01"))
    axes = pictures.draw_curve(shown, at, "y").axes[0]
    days = {text.get_text(): text.get_position()[0] for text in axes.get_xticklabels()}
    assert (days["Feb"], days["Mar"], days["Apr"]) == (31, 59, 90)


def test_rows_without_a_prediction_are_not_drawn():
    figure = pictures.draw_fit(np.array([np.nan, 2.0, 3.0]), np.array([1.0, 2.0, 9.0]), [], "y")
    figure.draw_without_rendering()
    assert all(np.isfinite(figure.axes[0].get_xlim()))


def test_names_are_shown_as_they_are(tmp_path):
    name = "cost in $ of 2 $ <& a name that is far too long to stand at an axis"
    shown = texts(pictures.draw_curve(curve(name), np.arange(7.0), "α_$x$"), tmp_path / "fit.svg")
    assert "α_$x$" in shown
    assert "cost in $ of 2 $…tand at an axis" in shown


def test_attention_is_drawn_on_a_scale_that_single_points_do_not_spoil(tmp_path):
    weights = np.full((20, 20), 0.01)
    weights[3, 3] = 0.9
    figure = pictures.draw_attention(Among(weights, 57), "x")
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), weights)
    assert image.get_clim() == (0, pytest.approx(0.01))
    assert "attention among 57 points, in 20 groups" in "".join(texts(figure, tmp_path / "a.svg"))
    figure = pictures.draw_attention(Among(np.eye(3), 3), "x")
    assert figure.axes[0].images[0].get_clim() == (0, 1)
    assert figure.axes[0].get_title() == "attention among 3 points\nsorted by x"


def test_categories_at_the_attention_do_not_overlap():
    sizes = [29, 3, 1, 1, 1, 23, 5, 1, 1, 17, 2, 2, 37]
    levels = tuple(f"Agent {letter}" for letter in "ABCDEFGHIJKLM")
    by = np.repeat(np.arange(13.0), sizes)
    attention = Among(np.eye(len(by)), len(by), by)
    axes = pictures.draw_attention(attention, "agent", Column("category", levels)).axes[0]
    axes.figure.draw_without_rendering()
    labels = sorted(axes.get_yticklabels(), key=lambda label: -label.get_position()[1])
    boxes = [label.get_window_extent() for label in labels]
    assert all(low.y1 < high.y0 for low, high in pairwise(boxes))
    assert {"Agent A", "Agent F", "Agent J", "Agent M"} < {label.get_text() for label in labels}
    assert axes.get_yticks()[0] == len(by) - 37 + 18


def test_the_experiment_has_three_columns_and_one_scale_of_colours():
    done = experiment.run_experiment(1)
    *panels, bar = pictures.draw_experiment(done).axes
    above, below = panels[:3], panels[3:]
    for axes, pooling in zip(above, done.poolings, strict=True):
        points, truth, predicted = (line.get_ydata() for line in axes.lines)
        np.testing.assert_array_equal(points, done.y)
        np.testing.assert_array_equal(truth, done.truth)
        np.testing.assert_array_equal(predicted, pooling.predicted)
    highest = max(pooling.weights.max() for pooling in done.poolings)
    assert {axes.images[0].get_clim() for axes in below} == {(0, highest)}
    assert bar.get_ylabel() == "attention weight"


def test_the_experiment_is_the_textbooks():
    done, other = experiment.run_experiment(5), experiment.run_experiment(6)
    assert done.x.shape == done.y.shape == done.at.shape == (50,)
    assert (np.diff(done.x) >= 0).all()
    assert 0 <= done.x[0] < done.x[-1] < 5
    np.testing.assert_allclose(done.at, [i / 10 for i in range(50)])
    np.testing.assert_allclose(done.truth, 2 * np.sin(done.at) + done.at**0.8)
    noise = np.concatenate(
        [each.y - 2 * np.sin(each.x) - each.x**0.8 for each in map(experiment.run_experiment, range(20))]
    )
    assert noise.std() == pytest.approx(0.5, abs=0.03)  # nearly three standard errors of it
    assert not np.array_equal(done.y, other.y)
    np.testing.assert_array_equal(done.y, experiment.run_experiment(5).y)


def test_the_three_ways_are_what_they_say():
    done = experiment.run_experiment(2)
    average, fixed, learned = done.poolings
    np.testing.assert_allclose(average.predicted, done.y.mean())
    np.testing.assert_allclose(average.weights, 1 / 50)
    kernel = np.exp(-((done.at[:, None] - done.x) ** 2) / 2)
    np.testing.assert_allclose(fixed.predicted, kernel @ done.y / kernel.sum(1))
    np.testing.assert_allclose(learned.weights @ done.y, learned.predicted)
    assert learned.model.history_[-1]["error"] < learned.model.history_[0]["error"]
    for pooling in done.poolings:
        assert pooling.error == pytest.approx(np.mean((pooling.predicted - done.truth) ** 2))
