"""Slopes, minima and differences of curves: by weighted least squares of polynomials, and where they are known."""

import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.figure import Figure
from scipy.stats import t as student

from dikkat.regression import KernelClassifier, KernelRegressor
from dikkat.regression.shapes import _Cubic

COUNT, SIGMA = 67, 0.7
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 5, (COUNT, 2)) * [1, 3]
Y = np.sin(X[:, 0]) + 0.2 * X[:, 1] + 0.1 * RANDOM.normal(size=COUNT)
AT = np.array([[0.7, 3.0], [2.9, 11.0]])


def cubic_rows(x, at, sigma, feature, weight=1.0):
    """The rows of the height and of the slope of a local cubic, by least squares on 1, x − at, and its powers."""
    away = x - at
    kernel = weight * np.exp(-((away / sigma) ** 2).sum(1) / 2)
    design = np.column_stack([np.ones(len(x)), away, away[:, feature] ** 2, away[:, feature] ** 3])
    root = np.sqrt(kernel)[:, None]
    inverse = np.linalg.pinv(root * design)
    return inverse[0] * root[:, 0], inverse[1 + feature] * root[:, 0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("order", ["constant", "linear"])
def test_the_slope_of_a_local_cubic(order, weighted):
    weight = np.arange(COUNT) % 3 + 1.0 if weighted else np.ones(COUNT)
    model = KernelRegressor(bandwidth=[SIGMA, 4.0], order=order, ridge=0).fit(X, Y, weight)
    for feature in (0, 1):
        slope, lower, upper = model.derivative(AT, f"x{feature}", level=0.8)
        noise, freedom = model._smoother.noise(AT)
        for k, place in enumerate(AT):
            _, row = cubic_rows(X, place, [SIGMA, 4.0], feature, weight)
            assert slope[k] == pytest.approx(row @ Y, rel=1e-5)
            half = student.ppf(0.9, freedom[k, 0]) * np.sqrt(noise[k, 0] * (row**2 / weight).sum())
            np.testing.assert_allclose([lower[k], upper[k]], row @ Y + [-half, half], rtol=1e-5)


def test_the_ridge_shrinks_the_slopes_of_other_features_to_the_plane():
    """The rows are the derivatives of the answers by y, at a fixed ridge of the plane."""
    model = KernelRegressor(bandwidth=[0.2, 0.3], ridge=50.0).fit(X, Y)
    found = _Cubic.at(model, AT, 0)
    rows = found.row / np.sqrt(model._smoother.noise(AT)[0])
    assert rows.sum(1) == pytest.approx(1)
    height = rows @ model._smoother.joined.y[:, 0] + model._smoother.joined.origin
    np.testing.assert_allclose(found.height.center[:, 0], height)
    plane = 3 + X @ [2.0, 0.7]
    exact = KernelRegressor(bandwidth=[0.2, 0.3], ridge=50.0).fit(X, plane)
    np.testing.assert_allclose(exact.derivative(AT, 0).value, 2, atol=1e-4)


def test_slopes_at_many_queries_need_little_memory():
    x = np.linspace(0, 5, 1009)[:, None]
    model = KernelRegressor(bandwidth=0.3).fit(x, np.sin(x[:, 0]))
    model.derivative(x[:3])  # loads and compiles
    tracemalloc.start()
    slope = model.derivative(x).value
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(slope[100:-100], np.cos(x[100:-100, 0]), atol=0.01)
    assert peak < 8 * len(x) ** 2  # a float64 for each pair


def test_a_cubic_has_no_bias():
    x = np.linspace(-1, 1, 41)[:, None]
    found = KernelRegressor(bandwidth=0.4).fit(x, x[:, 0] ** 3 - x[:, 0]).derivative([[-1.0], [0.2], [1.0]])
    np.testing.assert_allclose(found.value, [2, 3 * 0.04 - 1, 2], atol=1e-6)


def test_days_are_the_unit_of_dates():
    days = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=41)})
    y = (np.arange(41) - 17.0) ** 2 / 40 + 0.1 * np.cos(9 * np.arange(41))
    model, plain = (KernelRegressor(bandwidth=9.0).fit(x, y) for x in (days, np.arange(41)[:, None]))
    np.testing.assert_allclose(model.derivative(days.iloc[[5]]), plain.derivative([[5.0]]), rtol=1e-9)
    day, low, high = model.argmin()
    expected = pd.Timestamp("2024-01-01") + pd.to_timedelta(plain.argmin(), "D")
    assert abs(pd.DatetimeIndex([day, low, high]) - expected).max() < pd.Timedelta("1s")
    assert low < np.datetime64("2024-01-18") < high


def test_the_position_of_a_minimum():
    x = np.linspace(0, 5, 101)
    noise = 0.05 * np.random.default_rng(1).normal(size=101)
    found = KernelRegressor().fit(x[:, None], (x - 2) ** 2 + noise).argmin()
    assert found.lower < 2 < found.upper
    assert 0 < found.upper - found.lower < 0.25
    narrow = KernelRegressor().fit(x[:, None], (x - 2) ** 2).argmin()
    assert narrow.value == pytest.approx(2, abs=1e-3)
    falling = KernelRegressor().fit(x[:, None], -x + noise).argmin()
    assert (falling.value, falling.upper) == (5, 5)
    valleys = KernelRegressor().fit(x[:, None], np.cos(5 * x) + noise)  # four of one depth
    with pytest.warns(
        UserWarning, match="feature: got a curve that may be lowest at separate places along 'x'"
    ) as told:
        two = valleys.argmin()
    assert two.lower < np.pi / 5 < 19 / 5 * np.pi / 3 < two.upper
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="highest at separate places"):
        assert valleys.argmax().upper > 5 * np.pi / 4.5


def test_a_maximum_is_the_minimum_of_the_negative():
    model, negative = (KernelRegressor(bandwidth=[1.0, 4.0]).fit(X, sign * Y) for sign in (1, -1))
    found, expected = model.argmax("x0"), negative.argmin("x0")
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("peak", [0.5, 19.0])
def test_the_peak_of_a_season(peak):
    """The interval of a peak near midnight may begin below 0; with a shifted clock everything shifts."""
    random = np.random.default_rng(8)
    hour, z = random.uniform(0, 24, 211), random.normal(size=211)
    y = 3 * np.cos((hour - peak) * np.pi / 12) + z + 0.3 * random.normal(size=211)
    model = KernelRegressor(periodic_features={"hour": 24}).fit(pd.DataFrame({"hour": hour, "z": z}), y)
    found, low = model.argmax("hour"), model.argmin("hour", X=pd.DataFrame({"z": [0.0]}))
    assert 0 <= found.value < 24
    assert min(abs(found.lower - peak), abs(found.upper - peak)) < 1.5
    assert found.lower < peak < found.upper or found.lower < peak + 24 < found.upper
    assert low.lower < (peak + 12) % 24 < low.upper
    at = pd.DataFrame({"hour": [0.1, 7.0, 23.9], "z": 0.0})
    slope, lower, upper = model.derivative(at, "hour", level=0.999)
    expected = -np.pi / 4 * np.sin((at["hour"] - peak) * np.pi / 12)
    assert ((lower < expected) & (expected < upper)).all()
    np.testing.assert_allclose(slope, expected, atol=0.15)
    assert model.argmin().value == model.argmin("z").value  # the only number without a period


def test_a_periodic_cubic_by_least_squares():
    """The terms are sines and cosines of the angle to the query, and the kernel's distance is the chord."""
    random = np.random.default_rng(9)
    hour = random.uniform(0, 24, 61)
    y = np.sin(hour / 4) + 0.1 * random.normal(size=61)
    for width in (2.0, 50.0):
        model = KernelRegressor(periodic_features={0: 24}, bandwidth=[width], ridge=0).fit(hour[:, None], y)
        for at in (0.3, 13.0):
            angle = (hour - at) * np.pi / 12
            kernel = np.exp(-((24 / np.pi * np.sin(angle / 2) / width) ** 2) / 2)
            terms = np.column_stack([np.ones(61), np.sin(angle), np.cos(angle), np.sin(2 * angle) / 2 - np.sin(angle)])
            root = np.sqrt(kernel)
            coefficient = np.linalg.lstsq(terms * root[:, None], y * root)[0][1]
            assert model.derivative([[at]]).value[0] == pytest.approx(coefficient * np.pi / 12, rel=1e-4)


@pytest.mark.parametrize("width", [2.0, 7.0, 1e3])
def test_a_periodic_slope_does_not_jump(width):
    """Opposite to a row, on the other side of the circle, the slope is continuous as elsewhere."""
    random = np.random.default_rng(3)
    hour = random.uniform(8, 18, 97)
    y = np.cos((hour - 12) * np.pi / 12) + 0.1 * random.normal(size=97)
    model = KernelRegressor(periodic_features={0: 24}, bandwidth=[width]).fit(hour[:, None], y)
    slopes = [np.abs(np.diff(model.derivative(np.linspace(0, 24, n)[:, None]).value)).max() for n in (241, 2401)]
    assert slopes[1] < 0.15 * slopes[0]


def test_a_periodic_slope_of_a_wave_at_any_bandwidth():
    """Waves of one and two periods are reproduced by equal weights, from evenly spread hours."""
    hour = np.arange(0, 24, 24 / 53)
    y = 2 * np.cos((hour - 5) * np.pi / 12) + np.sin((hour - 2) * np.pi / 6)
    model = KernelRegressor(periodic_features={0: 24}, bandwidth=[1e6]).fit(hour[:, None], y)
    at = np.array([1.0, 4.5, 17.0, 23.9])
    slope = -np.pi / 6 * np.sin((at - 5) * np.pi / 12) + np.pi / 6 * np.cos((at - 2) * np.pi / 6)
    np.testing.assert_allclose(model.derivative(at[:, None]).value, slope, atol=1e-6)


def test_a_periodic_slope_of_two_opposite_hours():
    """Rows at the query and opposite to it determine no slope; between them they do."""
    hour = np.repeat([0.0, 12.0], 7)
    y = (hour == 12) + np.tile(np.linspace(-0.1, 0.1, 7), 2)
    model = KernelRegressor(periodic_features={0: 24}, bandwidth=[9.0], ridge=0).fit(hour[:, None], y)
    _, lower, upper = model.derivative([[0.0], [12.0], [6.0]])
    assert np.isinf([lower[:2], upper[:2]]).all()
    assert 0 < lower[2] < upper[2]


def test_a_minimum_at_other_values_of_the_other_feature():
    x = np.random.default_rng(2).uniform(0, 1, (211, 2))
    y = (x[:, 0] - 0.2 - 0.6 * x[:, 1]) ** 2 + 0.01 * np.random.default_rng(3).normal(size=211)
    model = KernelRegressor().fit(x, y)
    for value in (0.1, 0.9):
        found = model.argmin("x0", [[0.5, value]])
        assert found.lower < 0.2 + 0.6 * value < found.upper
        assert found.value == pytest.approx(0.2 + 0.6 * value, abs=0.06)


def groups_of(seed=4, rows=80):
    random = np.random.default_rng(seed)
    table = pd.DataFrame({"x": random.uniform(0, 5, 2 * rows), "group": np.repeat(["old", "new"], rows)})
    y = np.sin(table["x"]) + (table["group"] == "new") * table["x"] / 5 + 0.2 * random.normal(size=2 * rows)
    return table, y.rename("dose"), KernelRegressor(bandwidth=[0.8, 0.2], ridge=0.01).fit(table, y.rename("dose"))


def test_two_groups_and_their_band():
    table, y, model = groups_of()
    band = model.difference("group", ["old", "new"], "x")
    assert np.ptp(band.x) < 5
    rows, scale = [], []
    for group in ("new", "old"):
        own = table["group"] == group
        x = table.loc[own, ["x"]].to_numpy()
        alone = KernelRegressor(bandwidth=0.8, ridge=0.01).fit(x, y[own])
        scale.append(np.sqrt(alone._smoother.noise(band.x[:, None])[0]))
        rows.append(np.array([cubic_rows(x, place, [0.8], 0)[0] for place in band.x]))
    difference = rows[0] @ y[table["group"] == "new"] - rows[1] @ y[table["group"] == "old"]
    np.testing.assert_allclose(band.y, difference, atol=1e-6)
    np.testing.assert_allclose(model.difference("group", ["new", "old"]).y, -difference, atol=1e-6)
    row = np.hstack([rows[0] * scale[0], rows[1] * scale[1]])
    error = np.linalg.norm(row, axis=1)
    width = (band.upper - band.lower) / 2 / error
    np.testing.assert_allclose(width, width[0], rtol=1e-5)
    draws = np.abs(row / error[:, None] @ np.random.default_rng(5).normal(size=(row.shape[1], 4000))).max(0)
    assert 0.94 < np.mean(draws < width[0]) < 0.985  # Student's quantile is wider than that of the normal noise here
    wider = model.difference("group", ["old", "new"], level=0.99)
    assert (wider.upper > band.upper).all()


def test_a_picture_of_a_difference():
    axes = Figure().subplots()
    band = groups_of()[2].difference("group", ["old", "new"])
    assert band.plot(axes, label="effect") is axes
    zero, line = axes.lines
    assert set(zero.get_ydata()) == {0}
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([band.x, band.y]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "dose: new minus old")
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["effect", "95 % simultaneous confidence"]


def test_a_curve_for_each_group():
    _, _, model = groups_of()
    figure = model.plot(by="group")
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    new, old = (line.get_xydata() for line in axes.lines)
    for line, group in ((new, "new"), (old, "old")):
        expected = model.predict(pd.DataFrame({"x": line[:, 0], "group": group}))
        np.testing.assert_allclose(line[:, 1], expected)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "group: new",
        "group: old",
        "95 % confidence",
    ]


def test_a_group_of_one_row_raises_a_warning():
    table, y, _ = groups_of()
    table.loc[len(table)] = [2.0, "solo"]
    model = KernelRegressor(bandwidth=[0.8, 0.2]).fit(table, [*y, 9.0])
    with pytest.warns(UserWarning, match="by: got fewer than 3 rows of 'solo'; expected more. The"):
        model.plot(by="group")


def test_a_panel_for_each_other_category():
    table, y, _ = groups_of()
    table["site"] = np.tile(["Bonn", "Ulm"], 80)
    model = KernelRegressor(bandwidth=[0.8, 0.2, 0.3]).fit(table, y + (table["site"] == "Ulm"))
    figure = model.plot(by="group")
    (along_site,) = (axes for axes in figure.axes if axes.get_ylabel() == "site")
    assert {axes.get_xlabel() for axes in figure.axes} == {"x", "y"}
    assert [tick.get_text() for tick in along_site.get_yticklabels()] == ["Bonn", "Ulm"]
    new, old = (line.get_xdata() for line in along_site.lines)
    for estimates, group in ((new, "new"), (old, "old")):
        query = pd.DataFrame({"x": table["x"].median(), "group": group, "site": ["Bonn", "Ulm"]})
        np.testing.assert_allclose(estimates, model.predict(query))
    assert figure.get_supxlabel() == f"other features at: x {table['x'].median():.4g}, site Bonn"


@pytest.mark.parametrize(("call", "message"), [
    (lambda m: m.derivative(AT), "feature: got None; expected one of 'x0', 'x1'"),
    (lambda m: m.derivative(AT, "y"), "feature: got 'y'; expected a name or position of 'x0', 'x1'"),
    (lambda m: m.derivative(AT, 2), "feature: got 2"),
    (lambda m: KernelRegressor().fit(X * [1, 0], Y).argmin(1), "feature: got 'x1', which is constant in fit; expected"),
    (lambda m: KernelRegressor().fit(X[:, :1] * 0, Y).derivative([[0]]), "feature: got 'x', which is constant in fit"),
    (lambda m: m.argmin(0, level=2), "level: got 2"),
    (lambda m: m.difference("x0"), "by: got 'x0', which is number; expected a category"),
    (lambda m: m.plot(by="x0"), "by: got 'x0', which is number; expected a category"),
    (lambda m: groups_of()[2].difference("group", ["old", "older"]), r"levels: got \['old', 'older'\]"),
    (lambda m: towns_of(3).difference("town"), "levels: got None and 3 levels; expected two of 't0', 't1', 't2'"),
    (lambda m: towns_of(11).plot(by="town"), "by: got 'town' with 11 levels; expected at most 10"),
    (lambda m: groups_of()[2].derivative(groups_of()[0], "group"), "feature: got 'group', which is category"),
    (lambda m: groups_of()[2].plot(by="group", coverage=0.8), "coverage: got 0.8; expected None, because curves of gr"),
    (lambda m: KernelRegressor(bandwidth=1.0).fit(X, X).plot(), "y: got 2 targets in fit; expected one"),
    (lambda m: KernelRegressor(bandwidth=1.0).fit(X, X).report("x.html"), "y: got 2 targets in fit; expected one"),
    (lambda m: KernelRegressor().fit(X[:, :1], Y).plot(by=0), "by: got 0, but X has a single column"),
    (lambda m: KernelRegressor(bandwidth=1.0).fit(X, X).derivative(X, 0), "y: got 2 targets in fit; expected one"),
    (lambda m: KernelRegressor(metric="linear").fit(X, Y).argmin(0), "metric: got 'linear'; expected 'diagonal'"),
])  # fmt: skip
def test_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(KernelRegressor(bandwidth=1.0).fit(X, Y))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_why_a_minimum_is_unknown(kernel):
    """Either no residual shows the noise, or no row is near the other features."""
    x = np.arange(11.0)
    with pytest.raises(ValueError, match="feature: got a curve through the rows, which shows no noise; expected"):
        KernelRegressor(kernel, bandwidth=0.1).fit(x[:, None], x).argmin()
    model = KernelRegressor(kernel, bandwidth=2.0).fit(np.column_stack([x, x % 3]), (x - 5) ** 2)
    with pytest.raises(ValueError, match=r"feature: got no position with rows in reach; expected .* or values in X"):
        model.argmax(0, [[0.0, 99.0]])


def test_gaps_and_borders():
    """In a gap wider than the kernel reaches an interval is infinite, or wide, and never false."""
    x = np.concatenate([np.linspace(0, 1, 31), np.linspace(4, 5, 31)])[:, None]
    y = x[:, 0] ** 2 + 0.05 * np.random.default_rng(6).normal(size=62)
    for kernel, sigma in (("gaussian", 0.2), ("epanechnikov", 0.5)):
        _, lower, upper = KernelRegressor(kernel, bandwidth=sigma).fit(x, y).derivative([[0.0], [2.5], [5.0]])
        assert (lower <= [0, 5, 10]).all()
        assert (upper >= [0, 5, 10]).all()
        assert np.isinf(upper - lower).tolist() == [False, True, False]
    assert not hasattr(KernelClassifier, "derivative")


def gapped(groups=("a",), kernel="gaussian", bandwidth=0.2):
    """Rows in 0 … 2 and 8 … 10, with a bandwidth that reaches none of the positions between them."""
    x = np.tile(np.r_[np.linspace(0, 2, 31), np.linspace(8, 10, 31)], len(groups))
    group = np.repeat(groups, 62)
    y = (x - 1) ** 2 + (group == "b") + 0.01 * np.cos(99 * x)
    table = pd.DataFrame({"x": x, "group": group}) if len(groups) > 1 else x[:, None]
    return KernelRegressor(kernel=kernel, bandwidth=[bandwidth, 1.0][: table.shape[1]]).fit(table, y)


@pytest.mark.parametrize(("kernel", "bandwidth"), [("gaussian", 0.2), ("epanechnikov", 0.5)])
def test_the_minimum_of_a_curve_with_a_gap(kernel, bandwidth):
    with pytest.warns(UserWarning, match="separate places"):
        minimum = gapped(kernel=kernel, bandwidth=bandwidth).argmin()
    assert minimum.value == pytest.approx(1, abs=0.1)
    assert 0 < minimum.lower < 1 < minimum.upper < 8  # just beyond the rows, the curve may be lower


def test_a_band_with_a_gap():
    band = gapped(("a", "b")).difference("group")
    inside = (band.x > 0.2) & (band.x < 1.8)
    assert np.isfinite(band.lower[inside]).all()
    assert np.isinf(band.upper[(band.x > 4) & (band.x < 6)]).all()


def test_the_other_features_of_a_minimum_are_one_row():
    model = KernelRegressor(bandwidth=[1.0, 4.0]).fit(X, Y)
    with pytest.raises(ValueError, match="X: got 2 rows; expected one, with the values of the other features"):
        model.argmin("x0", X=X[:2])
    assert model.argmin(np.int64(0), X=X[:1]).value == model.argmin("x0", X=X[:1]).value
    table, _, grouped = groups_of()
    expected = grouped.argmin("x", table[:1])
    for form in (table, pl.from_pandas(table)):
        assert grouped.argmin("x", form[["group"]][:1]) == grouped.argmin("x", form[:1]) == expected
    numbered = KernelRegressor(bandwidth=[1.0, 4.0]).fit(pd.DataFrame(X), Y)
    assert numbered.argmin(0, X=pd.DataFrame(X[:1])) == model.argmin(0, X=X[:1])


def towns_of(count):
    table = pd.DataFrame({"x": np.linspace(0, 5, 6 * count), "town": [f"t{k}" for k in range(count)] * 6})
    return KernelRegressor(bandwidth=[1.0, 0.3]).fit(table, np.sin(table["x"]))


def test_false_and_true_are_groups():
    table, y, model = groups_of()
    is_new = table.assign(group=table["group"] == "new")
    flags = KernelRegressor(bandwidth=[0.8, 0.2], ridge=0.01).fit(is_new, y)
    bands = model.difference("group", ["old", "new"]), flags.difference("group")
    np.testing.assert_allclose(bands[1].lower, bands[0].lower, rtol=1e-6)
    old, new = (line.get_ydata() for line in flags.plot(by="group").axes[0].lines)
    at = pd.DataFrame({"x": [is_new["x"].min(), is_new["x"].max()], "group": True})
    np.testing.assert_allclose(new[[0, -1]], flags.predict(at))
    np.testing.assert_allclose(old[[0, -1]], flags.predict(at.assign(group=False)))
    lower, upper = flags.predict_interval(is_new, by="group")
    categories = KernelRegressor(bandwidth=[0.8, 0.2], ridge=0.01, categorical_features=["group"]).fit(is_new, y)
    expected = categories.predict_interval(is_new, by="group")
    assert 0.85 < ((lower < y) & (y < upper))[is_new["group"]].mean() < 0.97
    assert (expected[1] - expected[0]).mean() == pytest.approx((upper - lower).mean(), rel=0.3)


@pytest.mark.parametrize("levels", [2, 3, 4, 11])
@pytest.mark.parametrize("bandwidth", ["auto", [0.4, 2.0, 0.1], [30.0, 0.7, 0.3]], ids=str)
def test_rows_of_heights_sum_to_one_on_designs(levels, bandwidth):
    random = np.random.default_rng(7)
    frame = pd.DataFrame({"x": random.integers(0, levels, 131) * 1.0, "z": random.integers(0, 3, 131) * 1.0})
    frame["town"] = random.choice(["a", "b"], len(frame))
    noise = random.normal(0, 0.1, len(frame))
    model = KernelRegressor(bandwidth=bandwidth).fit(frame, frame.x * (2 - frame.z) + 5 + noise)
    query = np.column_stack([np.linspace(0, levels - 1, 17), np.full(17, 1.0), np.full(17, model.X_train_[0, 2])])
    deviation = np.sqrt(model._smoother.noise(model._coordinates(query))[0][:, :1])
    cubic = _Cubic.at(model, query, 0)
    is_near = np.isfinite(cubic.height.error[:, 0])
    assert is_near.any()
    weight = np.sqrt(model._smoother.joined.weight)
    np.testing.assert_allclose((cubic.row / deviation)[is_near] @ weight, 1, atol=1e-6)


def test_the_difference_of_groups_on_a_design():
    random, covered = np.random.default_rng(11), 0
    for _ in range(12):
        frame = pd.DataFrame({"x": random.integers(0, 3, 151) * 1.0, "z": random.integers(0, 3, 151) * 1.0})
        frame["town"] = random.choice(["a", "b"], len(frame))
        y = frame.x**2 - frame.x * frame.z + (frame.town == "b") + random.normal(0, 0.1, len(frame))
        band = KernelRegressor().fit(frame, y).difference("town", feature="x")
        covered += bool(((band.lower < 1) & (band.upper > 1)).all())
    assert covered >= 9  # P = 0.0002 for intervals of 95 %
