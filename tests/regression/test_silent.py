"""Data for which intervals or answers were false without a word: each is right now, or warned of, or an error."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from dikkat.regression import KernelRegressor, smooth
from dikkat.regression.bandwidth import Path, _Box, _descend, _updated_curve
from dikkat.regression.criterion import Trial
from dikkat.regression.diagnostics import curve_along, hold_out

METHODS = ("jackknife+", "local", "split")


def known_errors(seed, count=60):
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, 10, count))
    error = 0.05 + 0.06 * x
    return x[:, None], np.sin(x), error, np.sin(x) + error * random.normal(size=count), random


def ends_of(model, x, weight=None):
    yield model.confidence_interval(x)
    for method in METHODS:
        yield model.predict_interval(x, 0.9, method, sample_weight=weight)


def test_precisions_have_no_scale():
    x, _, error, y, _ = known_errors(0)
    one, other = (KernelRegressor(weights="precision").fit(x, y, w / error**2) for w in (1, 700))
    for scale, model in ((1, one), (700, other)):
        for weight in (None, scale / error**2):
            pairs = zip(
                ends_of(model, x, weight), ends_of(one, x, None if weight is None else weight / scale), strict=True
            )
            for found, expected in pairs:
                np.testing.assert_allclose(found, expected, rtol=1e-5)
    ends = dict(zip((1, 4), (one.predict_interval([[5.0]], sample_weight=w / 0.35**2) for w in (1, 4)), strict=True))
    widths = {weight: float(np.diff(np.ravel(each))[0]) for weight, each in ends.items()}
    assert 1.7 < widths[1] / widths[4] <= 2  # σ²/w, and what is not known of the curve


def test_precisions_that_are_equal_are_no_weights():
    x, _, _, y, _ = known_errors(1)
    plain, equal = KernelRegressor().fit(x, y), KernelRegressor(weights="precision").fit(x, y, np.full(60, 100.0))
    np.testing.assert_allclose(equal.bandwidth_, plain.bandwidth_, rtol=1e-5)
    for found, expected in zip(ends_of(equal, x), ends_of(plain, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:X. got rows at")  # a draw whose rows are in heaps
def test_intervals_of_precisions_hold_as_often_as_they_say():
    held = {name: [] for name in ("confidence", *METHODS)}
    for seed in range(8):
        x, mean, error, y, random = known_errors(seed)
        new = mean + error * random.normal(size=60)
        model = KernelRegressor(weights="precision").fit(x, y, 1 / error**2)
        for name, (lower, upper) in zip(held, ends_of(model, x, 1 / error**2), strict=True):
            values = mean if name == "confidence" else new
            held[name].append(np.reshape((lower <= values) & (values <= upper), (3, 20)).mean(1))
    assert np.mean(held["confidence"]) >= 0.93
    for method in METHODS:  # as often at the exact end as at the noisy one
        np.testing.assert_allclose(np.mean(held[method], 0), 0.9, atol=0.08)


@pytest.mark.parametrize("weight", [np.full(60, 100.0), np.linspace(0.4, 1.5, 60), np.full(60, 3)])
def test_weights_that_are_no_counts_are_warned_of(weight):
    x, _, _, y, _ = known_errors(2)
    with pytest.warns(UserWarning, match=r"sample_weight: got weights that sum to .* weights='precision'") as told:
        KernelRegressor(bandwidth=1.0).fit(x, y, weight)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRegressor(bandwidth=1.0, weights="precision").fit(x, y, weight)
        KernelRegressor(bandwidth=1.0).fit(x, y, np.arange(60) % 3)
        smooth(x[:, 0], y, robust=1, bandwidth=1.0)


def test_settings_of_weights_are_checked():
    x, _, _, y, _ = known_errors(2)
    with pytest.raises(ValueError, match="weights: got 'errors'; expected 'repeats', 'precision'"):
        KernelRegressor(weights="errors").fit(x, y)
    with pytest.raises(
        ValueError, match=r"sample_weight: got weights of new values and weights='repeats' in fit; expected None"
    ):
        KernelRegressor(bandwidth=1.0).fit(x, y).predict_interval(x, sample_weight=2)
    model = KernelRegressor(bandwidth=1.0, weights="precision").fit(x, y)
    for method in METHODS:
        for weight, message in (
            (np.ones(3), r"got shape \(3,\); expected \(60,\), one for each row of X"),
            (np.ones((60, 1)), r"got shape \(60, 1\); expected \(60,\)"),
            (np.arange(60), "got 0.0; expected positive precisions of the new values"),
        ):
            with pytest.raises(ValueError, match=f"sample_weight: {message}"):
                model.predict_interval(x, method=method, sample_weight=weight)


def test_beyond_the_data_every_answer_widens_and_warns():
    random = np.random.default_rng(0)
    x = random.uniform(0, 10, 80)
    model = KernelRegressor().fit(x[:, None], (x - 6) ** 2 / 8 + 0.2 * random.normal(size=80))
    asks = [lambda at, m=m: np.diff(model.predict_interval(at, 0.9, m), axis=0)[0] for m in METHODS]
    asks += [lambda at: np.diff(model.predict_quantiles(at, [0.05, 0.95]))[:, 0]]
    asks += [lambda at: 3.3 * model.predict(at, return_std=True)[1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = [ask([[5.0], [10.5]])[0] for ask in asks]
        model.predict([[15.0]])
    beyond = []
    for ask in asks:
        with pytest.warns(UserWarning, match=r"X: got 2 of 3 rows beyond the rows in fit, in x \(.* to .*\)") as told:
            beyond.append(ask([[5.0], [15.0], [30.0]]))
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"X: got 1 of 1 rows beyond the rows in fit") as told:
        model.gradient([[15.0]], return_std=True)
    assert told[0].filename == __file__
    for near, (_, far, farther) in zip(inside, beyond, strict=True):
        assert 5 * near < far < farther
    assert np.ptp([np.log(far) for _, far, _ in beyond]) < np.log(3)  # they do not contradict each other


def test_weights_are_repeats_where_cells_are_missing():
    for seed in range(3):
        random = np.random.default_rng(seed)
        a = np.where(random.random(15) < 0.35, np.nan, np.exp(random.normal(size=15)))
        X = pd.DataFrame({"a": a, "b": random.normal(size=15)})
        y = np.nan_to_num(a) * 3 + random.normal(size=15)
        weight = random.integers(1, 6, 15)
        rows = np.repeat(np.arange(15), weight)
        weighted = KernelRegressor(missing="indicator").fit(X, y, weight)
        repeated = KernelRegressor(missing="indicator").fit(X.iloc[rows], y[rows])
        assert weighted.columns_[0].levels[0] == np.median(np.repeat(a, weight)[~np.isnan(np.repeat(a, weight))])
        np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-4 * np.ptp(y))


def test_rows_held_out_do_not_say_what_stands_in_gaps():
    x = np.column_stack([[0.0, 1, 2, 3, 4, np.nan, 500, 600], np.arange(8.0)])
    model = KernelRegressor(bandwidth=[1.0, 3.0, 0.3], missing="indicator").fit(x, np.arange(8.0) ** 2)
    fit = model._refit(model._rows.take(np.arange(6)))
    assert model.columns_[0].levels == (3.0,)
    assert fit.columns_[0].levels == (2.0,)
    assert fit.X_train_[5, 0] == 2.0
    assert np.isfinite(hold_out(model, 2).error)


def test_extreme_weights_give_no_nan():
    model = KernelRegressor(bandwidth=0.02, order="constant")
    model.fit([[0.0], [1.0], [2.0], [3.0]], [1, 0, 1, 1], [1e-9, 1, 1, 1e9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in METHODS:
            lower, upper = model.predict_interval([[0.5]], method=method)
            assert lower[0] < upper[0]
    assert not np.isnan(model.predict_quantiles([[0.5]], [0.1, 0.5, 0.9])).any()
    assert not np.isnan(model.sample([[0.5]], 20, random_state=0)).any()
    assert not np.isnan(model.confidence_interval([[0.5]])).any()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_split_intervals_far_from_learned_rows_are_infinite():
    x = np.cumsum(np.random.default_rng(0).uniform(1, 2, 40))[:, None]
    # Each held row is at least 50 bandwidths from all learned rows, so no error is known.
    ends = KernelRegressor(bandwidth=0.02, order="constant").fit(x, x[:, 0] % 1).predict_interval(x, 0.5, "split")
    np.testing.assert_array_equal(ends, np.full((2, 40), np.inf) * [[-1], [1]])


def test_smooth_takes_dates_and_weights_and_keeps_the_order():
    date = pd.Series(pd.date_range("2024-01-01", periods=60))
    y = np.sin(np.arange(60) / 9) + 0.1 * np.random.default_rng(0).normal(size=60)
    days, dated = smooth(np.arange(60.0), y), smooth(date, y)
    assert dated.x.dtype.kind == "M"
    assert (dated.x[0], dated.x[-1]) == (np.datetime64("2024-01-01"), np.datetime64("2024-02-29"))
    np.testing.assert_allclose(dated.y, days.y)
    assert dated.bandwidth == pytest.approx(days.bandwidth)
    at = smooth(np.arange(60.0), y, at=[9, 6, 12])
    assert at.x.tolist() == [9, 6, 12]
    np.testing.assert_allclose(at.y, smooth(np.arange(60.0), y, at=[6, 9, 12]).y[[1, 0, 2]])
    assert smooth(date, y, at=date[[5, 2]]).x.tolist() == date[[5, 2]].tolist()
    with pytest.raises(ValueError, match=r"y: got datetime64.*; expected numbers"):
        smooth(y, date)
    with pytest.raises(ValueError, match="at: got float64; expected dates like x"):
        smooth(date, y, at=[3.0])
    weight = 1 / np.linspace(0.05, 0.5, 60) ** 2
    model = KernelRegressor(weights="precision").fit(np.arange(60.0)[:, None], y, weight)
    curve = smooth(np.arange(60.0), y, at=[3.0], sample_weight=weight, weights="precision")
    np.testing.assert_allclose(curve.y, model.predict([[3.0]]))


MIXED = np.array([[1.0, "a"], [2.0, "b"], [3.0, "a"]], object)


@pytest.mark.parametrize(("X", "message"), [
    ({"t": pd.to_timedelta([1, 2, 3], "D")}, r"got Timedelta\(.*column 't'; expected numbers, by .dt.total_seconds"),
    ({"t": pd.period_range("2024-01", periods=3, freq="M")}, r"column 't'; expected numbers, dates, by .dt"),
    ({"t": pd.Series([1, "a", 2.5], dtype=object)}, "got 'a' in column 't'; expected numbers"),
    ({"t": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}, r"got \[1.0, 2.0\] in column 't'; expected numbers"),
    ({"t": [1.0, [3.0, 4.0], 2.0]}, r"got \[3.0, 4.0\] in column 't'; expected numbers"),
    ({"t": [np.ones(2), np.ones(2), np.ones(2)]}, r"got array\(\[1., 1.\]\) in column 't'; expected numbers"),
    (MIXED, r"got 'a' in column 1; expected numbers, or .* set_output\(transform='pandas'\)"),
    ({"t": ["31.01.2024", "29.02.2024"] * 5}, "got '31.01.2024' in column 't', text that looks like a date"),
    ({"t": ["2024-02-31", "2024-02-29"] * 5}, "got .2024-02-31. in column .t., text that looks like a date"),
    ({"u": [1.0, 2, 3], "t": [1.0, np.inf, 2]}, "got an infinite number in column 't'"),
    (np.array([[1.0, 2], [3, -np.inf], [4, 5]]), "got an infinite number in column 1"),
    ({"t": ["1.0", "?", "3"]}, r"got '\?' in row 1 of column 't', where 2 of 3 texts are numbers; .*pandas.to_numeric"),
    ({"t": [str(k % 9) for k in range(99)] + ["?"]}, r"got '\?' in row 99 of column 't', where 99 of 100 texts"),
    ({"t": ["2024-01-31", "2024-02-29", "unknown", None] * 5 + ["2024-03-31"]},
     r"got 'unknown' in row 2 of column 't', where 11 of 16 texts are dates; .*pandas.to_datetime\(column, errors="),
    ({"t": ["2007-09", "2007-10"] * 9 + ["?"]}, r"got '\?' in row 18 of column 't', where 18 of 19 texts are dates"),
    ({"t": ["31.01.2024", "29.02.2024"] * 5 + ["-"]}, "got '-' in row 10 of column 't', where 10 of 11 texts"),
    ({"t": ["2024-02-29", "2024-03-01"] * 5 + ["2024-02-31"]},
     r"got '2024-02-31' in row 10 of column 't', where 10 of 11 texts are dates; .*pandas.to_datetime\("),
    ({"t": ["2024-02-29", "2024-03-01"] * 5 + ["1.3.2024"]}, "got '1.3.2024' in row 10 of column 't', where 10 of 11"),
    ({"t": ["2007-09", "2007-10"] * 9}, "got '2007-09' in column 't', text that looks like a date"),
    ({"t": [f"{k / 7}" for k in range(99)] + ["n/a"]}, r"got 'n/a' in row 99 of column 't', where 99 of 100 texts"),
])  # fmt: skip
def test_messages_name_the_column(X, message):
    X = X if isinstance(X, np.ndarray) else pd.DataFrame({"z": np.arange(float(len(X["t"])))} | X)
    with pytest.raises(ValueError, match=message):
        KernelRegressor().fit(X, np.arange(float(len(X))) + 0.5)


def test_nearest_has_the_index_of_the_frame_and_no_columns_of_gaps():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"a": random.normal(size=40), "b": random.normal(size=40)}, index=[f"home {k}" for k in range(40)])
    X.loc["home 3", "a"] = np.nan
    y = (2 * X["a"].fillna(0) + 0.01 * X["b"]).rename("a")
    found = KernelRegressor(missing="indicator").fit(X, y).nearest(X.iloc[[7]], k=4)
    assert found.columns.tolist() == ["query", "row", "weight", "differs by", "a", "b", "a (y)"]
    assert found["row"][0] == "home 7"
    np.testing.assert_allclose(found["a (y)"], y[found["row"]])


@pytest.mark.parametrize("form", [pd.DataFrame.to_numpy, lambda X: X.set_axis(X.index + 100)])
def test_nearest_has_the_positions_of_fit_if_rows_lack_y(form):
    X = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) % 7})
    y = np.where(np.arange(30) % 5 == 1, np.nan, np.sin(X["a"]))
    with pytest.warns(UserWarning, match="6 of 30 rows have no y"):
        model = KernelRegressor(bandwidth=[2.0, 3.0], missing="indicator").fit(form(X), y)
    found = model.nearest(form(X)[20:21], k=3)
    row, a = found["row"][0], found.iloc[0, 4]
    assert a == 20
    assert row == (20 if form is pd.DataFrame.to_numpy else 120)


def test_nearest_has_columns_of_different_names():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"weight": random.normal(size=40), "row": random.normal(size=40), "b": random.normal(size=40)})
    y = (X["weight"] + X["b"]).rename("query")
    found = KernelRegressor(bandwidth=[1.0, 1.0, 1.0]).fit(X, y).nearest(X[:2], k=3)
    assert found.columns.tolist() == [
        "query", "row", "weight", "differs by", "weight (X)", "row (X)", "b", "query (y)"
    ]  # fmt: skip
    np.testing.assert_array_equal(found["weight (X)"], X["weight"][found["row"]])
    np.testing.assert_array_equal(found["query (y)"], y[found["row"]])


@pytest.mark.parametrize("columns", [1, 4])
def test_a_plane_has_as_many_degrees_of_freedom_as_parameters(columns):
    random = np.random.default_rng(0)
    x = random.normal(size=(80, columns))
    model = KernelRegressor().fit(x, x.sum(1) + 0.01 * random.normal(size=80))
    assert model.effective_degrees_of_freedom() == pytest.approx(1 + columns, abs=0.05)


@pytest.mark.filterwarnings("error")
def test_columns_of_huge_numbers_give_the_same_model_without_warnings():
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 2))
    y = np.sin(x[:, 0]) + 0.1 * random.normal(size=30)
    unit = np.array([2.0**660, 1.0])  # 10¹⁹⁸
    plain, huge = KernelRegressor().fit(x, y), KernelRegressor().fit(x * unit, y)
    np.testing.assert_allclose(huge.bandwidth_ / unit, plain.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(huge.predict(x * unit), plain.predict(x), rtol=1e-6)
    np.testing.assert_allclose(huge.predict_interval(x * unit), plain.predict_interval(x), rtol=1e-6)


def test_a_curvature_that_is_no_number_is_left_as_it_was():
    curve = np.eye(2)
    assert _updated_curve(curve, np.zeros(2), np.array([1.0, 0.0])) is curve
    assert _updated_curve(curve, np.array([1e-300, 0.0]), np.array([1e300, 0.0])) is curve


@pytest.mark.filterwarnings("error")
def test_a_curvature_too_large_for_lapack_ends_the_descent():
    """The trace is infinite: LAPACK would print a message and raise "SVD did not converge"."""

    class Steep:
        variance = 1.0

        def gradient(self, trial):
            return np.ones(2), np.full((2, 2), 1e308)

    box = _Box(np.full(2, -5.0), np.full(2, 4.0), np.full(2, 5.0), np.ones(2))
    start = Trial(np.zeros(2), 1.0, *[torch.zeros(1)] * 6)
    assert _descend(Steep(), Path.at(start), box, 1e-5).last is start


def test_flags_are_shown_as_false_and_true():
    random = np.random.default_rng(0)
    x = pd.DataFrame({"size": random.normal(size=40), "garden": random.random(40) < 0.5})
    y = x["size"] + x["garden"] + 0.1 * random.normal(size=40)
    model, plain = KernelRegressor(bandwidth=[1.0, 0.7]).fit(x, y), KernelRegressor(bandwidth=[1.0, 0.7])
    np.testing.assert_array_equal(model.predict(x), plain.fit(x.astype(float), y).predict(x.astype(float)))
    assert model.summary(folds=0).features[1][:3] == ("garden", "False", "True")
    assert model.nearest(x.iloc[[3]], k=2)["garden"].dtype == bool
    panels = {axes.get_xlabel(): axes for axes in model.plot().axes}
    assert [label.get_text() for label in panels["garden"].get_xticklabels()] == ["False", "True"]


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore:X. got rows at")
def test_bars_of_infinite_intervals_end_at_the_panel():
    x = pd.DataFrame({"town": pd.Categorical(list("abcab"))})
    model = KernelRegressor().fit(x, np.arange(5.0))
    low, high, _ = curve_along(model, 0, "town", 0.9).values
    assert np.isinf(high - low).any()
    figure = model.plot()
    figure.canvas.draw()
    widths = [bar.get_width() for axes in figure.axes for bar in axes.patches]
    assert widths
    assert np.isfinite(widths).all()
