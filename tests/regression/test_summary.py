"""What Python says of a fitted model: a summary, comparable rows, pictures of effects, a page."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dikkat.regression import KernelRegressor
from dikkat.regression.columns import format_number
from dikkat.regression.diagnostics import curve_along, hold_out, influence, leave_out
from dikkat.regression.report import choose_features, notes_of

ROWS = 61


@pytest.fixture(scope="module")
def homes():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({
        "area": random.uniform(20, 90, ROWS), "id": 1.5 * random.permutation(ROWS),
        "town": pd.Categorical(random.choice(["Ulm", "Bonn <&>"], ROWS)), "floor": np.full(ROWS, 2.0),
    })  # fmt: skip
    price = 3 * frame["area"] + 40 * (frame["town"] == "Ulm") + random.normal(size=ROWS)
    return frame, price.rename("price"), KernelRegressor().fit(frame, price.rename("price"))


def test_a_summary_has_each_feature_in_its_units_and_how_well_rows_are_predicted(homes):
    frame, _, model = homes
    found = model.summary(folds=3)
    assert model.bandwidth_names_ == list(frame)
    assert [row[0] for row in found.features] == list(frame)
    assert found.features[0][3] == "a straight line"
    assert found.features[1][1:3] == ("0", "90")
    assert found.features[2][:3] == ("town", "", "")
    assert found.features[2][3] == "steps"
    assert found.features[3][3] == "constant"
    assert found.held_out.error == hold_out(model, 3).error
    assert found.left_out.error == leave_out(model).error
    lines = str(found).splitlines()
    assert lines[0].split() == ["feature", "from", "to", "bandwidth", "moves", "y", "by"]
    area = frame.assign(area=frame["area"].median())
    moved = np.sqrt(np.mean((model.predict(area) - model.predict(frame)) ** 2))
    assert [found.features[0][4], found.features[3][4]] == [f"{moved:.3g}", "0"]
    assert "town: 2 categories, Bonn <&>, Ulm" in lines
    assert f"rows: {ROWS}" in lines
    assert f"held-out rows: R² {found.held_out.r2:.3f}, root mean" in str(found)
    assert "held-out" not in str(model.summary(folds=0))
    assert "Bonn &lt;&amp;&gt;" in found._repr_html_()


def test_the_rows_that_count_most_are_at_least_one(homes):
    with pytest.raises(ValueError, match="k: got 0; expected a whole number of at least 1"):
        homes[2].nearest(homes[0], 0)


def test_what_moves_the_estimate_most_comes_first(homes):
    frame, _, model = homes
    moved = influence(model)
    area = frame.assign(area=frame["area"].median())
    assert moved[0] == pytest.approx(np.sqrt(np.mean((model.predict(area) - model.predict(frame)) ** 2)))
    assert moved[3] == 0
    assert moved[0] > moved[2] > moved[1]
    assert choose_features(model) == ([0, 2, 1], [])
    assert choose_features(model, 1) == ([0], ["town", "id"])


def test_effects_of_several_features_are_drawn(homes):
    figure = homes[2].plot()
    assert isinstance(figure, Figure)
    area, town, number = figure.axes
    assert [area.get_xlabel(), town.get_ylabel(), number.get_xlabel()] == ["area", "town", "id"]
    with pytest.raises(ValueError, match=r"ax: got axes; expected None.*features: 4"):
        homes[2].plot(figure.axes[0])
    with pytest.raises(ValueError, match="X: got only constant features"):
        KernelRegressor(bandwidth=1.0).fit(np.ones((5, 2)), np.arange(5)).plot()


def test_rows_without_weight_are_not_drawn():
    x, y = np.append(np.linspace(0, 5, 23), 700.0), np.append(np.sin(np.linspace(0, 5, 23)), 900.0)
    model = KernelRegressor(bandwidth=0.8).fit(x[:, None], y, np.append(np.ones(23), 0))
    axes = model.plot(Figure().subplots())
    assert axes.get_xlim()[1] < 6
    assert axes.get_ylim()[1] < 3


def test_a_balanced_flag_is_false_in_curves_of_others():
    x, flag = np.linspace(0, 5, 34), np.arange(34) % 2 == 0
    model = KernelRegressor(bandwidth=[0.8, 0.5]).fit(pd.DataFrame({"x": x, "flag": flag}), np.sin(x) + flag)
    assert notes_of(model)[0].endswith("flag False")
    fitted = curve_along(model, 0, "x")
    expected = model.predict(pd.DataFrame({"x": fitted.at, "flag": False}))
    np.testing.assert_allclose(fitted.estimate, expected, rtol=1e-12)


def test_a_page_has_all_of_it_and_loads_nothing(homes, tmp_path):
    _, _, model = homes
    model.report(tmp_path / "page.html", folds=0)
    page = (tmp_path / "page.html").read_text()
    assert "a straight line" in page
    assert "Bonn &lt;&amp;&gt;" in page
    assert not [each for each in ("<script", "src=", "@import") if each in page]
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert "area" in "".join(ElementTree.fromstring(svg).itertext())
    worst = np.argmax(np.abs(model.y_train_ - leave_out(model).predicted))
    assert f"<h3>Row {worst}: observed {model.y_train_[worst]:.4g}, predicted" in page


@pytest.mark.parametrize("copies", [1, 2])
def test_the_worst_rows_have_their_labels_and_the_answers_without_them(tmp_path, copies):
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"area": random.uniform(0, 9, 40), "town": random.choice(["Bonn", "Ulm"], 40)})
    frame, y = (pd.concat([table] * copies) for table in (frame, np.sin(frame["area"]) + random.normal(size=40)))
    frame.index = [f"home <{row}>" for row in range(len(frame))]
    model = KernelRegressor(bandwidth=[1.3, 0.2], ridge=0.1).fit(frame, y.to_numpy())
    model.report(tmp_path / "page.html", folds=0, coverage=0.8)
    page = (tmp_path / "page.html").read_text()
    worst = int(np.argmax(np.abs(y.to_numpy() - leave_out(model).predicted)))
    others = np.arange(len(y)) % 40 != worst % 40
    without = KernelRegressor(bandwidth=[1.3, 0.2], ridge=0.1).fit(frame[others], y[others].to_numpy())
    (estimate,), (low,), (high,) = (
        without.predict(frame.iloc[[worst]]),
        *without.predict_interval(frame.iloc[[worst]], 0.8),
    )
    label = f"home &lt;{worst}&gt;"
    assert (
        f"<h3>Row {label}: observed {y.iloc[worst]:.4g}, predicted {estimate:.4g}, 80 % interval {low:.4g} … {high:.4g}"
        in page
    )
    table = page[page.index(f"<h3>Row {label}:") :]
    table = table[: table.index("</table>")]
    assert table.count("<tr>") == 6
    assert f"<td>{label}</td>" not in table
    similar = without.nearest(frame.iloc[[worst]], k=1)
    first = table.split("<tr>")[2]
    assert first.startswith(f"<td>home &lt;{similar['row'][0][6:-1]}&gt;</td>")
    assert f"<td>{similar['weight'][0]:.3f}</td>" in first


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.00012345, "0.0001234"), (1950.0, "1950"), (9999.4, "9999"), (12345.678, "12,350"), (157812.0, "157,812"),
        (-25000.4, "-25,000"), (1e12, "1e+12"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_write_them(value, wanted):
    assert format_number(value) == wanted


def test_large_amounts_have_no_powers_of_ten(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 9, 43)
    model = KernelRegressor().fit(x[:, None], 2.5e5 * x + rng.normal(0, 4e4, 43))
    model.report(tmp_path / "page.html")
    page = re.sub(r"<img[^>]*>", "", (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not re.search(r"\de[+-]\d", str(model.summary()) + page)
