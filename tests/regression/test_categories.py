import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.optimize import minimize

from crossings.slow_regression import Slow
from dikkat.regression import KernelRegressor, NadarayaWatson
from dikkat.regression.columns import Column
from dikkat.regression.criterion import Criterion
from dikkat.regression.diagnostics import leave_out
from dikkat.regression.joined import Coding

ROWS = 61
BANDWIDTH = np.array([0.31, 0.4, 0.45, 0.2])
MIXED = {"categorical_features": ["town", "pool"], "ordered_features": ["rooms"]}


def _table(seed=0, rows=ROWS):
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "town": np.resize(["Lyon", "Bursa", "Ulm"], rows)[random.permutation(rows)],
            "area": random.uniform(0, 3, rows),
            "rooms": np.resize([1, 2, 3, 5, 9], rows)[random.permutation(rows)],
            "pool": np.resize([True, False], rows)[random.permutation(rows)],
        }
    )
    y = np.sin(2 * frame["area"]) + frame["town"].map({"Lyon": 0, "Bursa": 1, "Ulm": -1}) + 0.2 * frame["rooms"]
    return frame, (y + 0.2 * random.normal(size=rows)).to_numpy()


def _places(frame):
    """As a person would number the levels."""
    return np.column_stack(
        [
            frame["town"].map({"Bursa": 0, "Lyon": 1, "Ulm": 2}),
            frame["area"],
            frame["rooms"].map({1: 0, 2: 1, 3: 2, 5: 3, 9: 4}),
            frame["pool"].astype(float),
        ]
    )


def _kernel(x, place):
    """The product of the columns' kernels, at a place that may lie between two ordered levels."""
    town, area, rooms, pool = (x - place).T
    of_categories = np.where(town == 0, 0.69, 0.31 / 2) * np.where(pool == 0, 0.8, 0.2)
    return of_categories * np.exp(-((area / 0.4) ** 2) / 2) * 0.45 ** np.abs(rooms)


def _left_out_error(frame, y, bandwidth, order):
    model = NadarayaWatson(bandwidth=bandwidth, order=order, ridge=0, **MIXED).fit(frame, y)
    return np.mean(Slow(model).left_out[0] ** 2)


@pytest.mark.parametrize("order", ["constant", "linear"])
def test_the_error_and_its_gradient(order):
    frame, y = _table()
    model = NadarayaWatson(bandwidth=BANDWIDTH, order=order, ridge=0, **MIXED).fit(frame, y)
    np.testing.assert_allclose(leave_out(model).error, _left_out_error(frame, y, BANDWIDTH, order), rtol=1e-7)
    criterion = Criterion(model._rows.joined(), "gaussian", int(order == "linear"))
    coding = model._rows.coding
    t = np.log(coding.to_sigma(BANDWIDTH))
    slope, _ = criterion.gradient(criterion(t))
    for c in range(4):
        step = 1e-5 * np.eye(4)[c]
        low, high = (_left_out_error(frame, y, coding.to_bandwidth(np.exp(t + sign * step)), order) for sign in (-1, 1))
        np.testing.assert_allclose(slope[c], (high - low) / 2e-5, rtol=1e-4, atol=1e-8)


def test_the_search_finds_what_a_general_minimiser_finds():
    frame, y = _table(3)
    model = NadarayaWatson(bandwidth="loo", **MIXED).fit(frame, y)

    def error(t):  # λ between its ends, σ above 0
        share = 1 / (1 + np.exp(-t))
        bandwidth = np.array([2 / 3 * share[0], np.exp(t[1]), share[2], share[3] / 2])
        return _left_out_error(frame, y, bandwidth, "constant")

    found = min(
        (minimize(error, start, method="L-BFGS-B") for start in ([-2, -1.5, 0, 0], [-2, -1.5, 0, 4])),
        key=lambda each: each.fun,
    )
    assert model.history_[-1]["error"] <= found.fun * (1 + 1e-5)
    expected = _left_out_error(frame, y, model.bandwidth_, "constant")
    assert model.history_[-1]["error"] == pytest.approx(expected, rel=1e-7)


def test_a_category_without_a_say_has_the_largest_lambda():
    random = np.random.default_rng(0)
    x = np.column_stack([random.integers(0, 4, 150), random.uniform(0, 3, 150), random.integers(0, 3, 150)])
    y = np.sin(2 * x[:, 1]) + 0.3 * random.normal(size=150)
    model = NadarayaWatson(categorical_features=[0], ordered_features=[2]).fit(x, y)
    assert model.bandwidth_[[0, 2]].tolist() == [0.75, 1.0]
    alone = NadarayaWatson(bandwidth=model.bandwidth_[1]).fit(x[:, 1:2], y)
    np.testing.assert_allclose(model.predict(x), alone.predict(x[:, 1:2]), rtol=1e-9)


def test_lambda_0_looks_at_the_same_category_alone():
    x = np.array([[0, 0.0], [0, 1.0], [1, 0.0], [1, 2.0]])
    model = NadarayaWatson(bandwidth=[0, 1.0], categorical_features=[0]).fit(x, [1.0, 2.0, 30.0, 40.0])
    found = model.attention_weights([[1, 0.5]])
    assert found[0, :2].tolist() == [0, 0]
    assert model.bandwidth_.tolist() == [0, 1]


@pytest.mark.parametrize("order", ["constant", "linear"])
def test_categories_alone(order):
    x, y = np.array([[0], [0], [1], [2], [2]]), np.array([1.0, 3.0, 5.0, 7.0, 8.0])
    model = NadarayaWatson(bandwidth=[0.3], order=order, ridge=0, categorical_features=[0]).fit(x, y)
    share = np.where(x[:, 0] == np.arange(3)[:, None], 0.7, 0.15)
    np.testing.assert_allclose(model.predict([[0], [1], [2]]), share @ y / share.sum(1), rtol=1e-10)
    lower, upper = model.confidence_interval([[0], [1]])
    assert (lower < upper).all()


def _frames():
    frame, y = _table()
    frame["town"] = frame["town"].astype("category")
    frame["rooms"] = pd.Categorical(frame["rooms"], ordered=True)
    frame["pool"] = frame["pool"].astype("category")
    town = pl.Series("town", frame["town"].astype(str).tolist(), dtype=pl.Categorical)
    arrow = pa.table(
        {
            "town": pa.array(frame["town"].astype(str).tolist()).dictionary_encode(),
            "area": frame["area"].to_numpy(),
            "rooms": frame["rooms"].astype(int).to_numpy(),
            "pool": frame["pool"].astype(bool).to_numpy(),
        }
    )
    polars = pl.DataFrame(
        [town, *(pl.Series(name, arrow.column(name).to_pylist()) for name in ("area", "rooms", "pool"))]
    )
    plain = frame.astype({"town": str, "rooms": int, "pool": bool})
    some = {"categorical_features": ["pool"], "ordered_features": ["rooms"]}
    return y, {
        "pandas": (frame, {}),
        "polars": (polars, {"categorical_features": [0, 3], "ordered_features": [2]}),
        "arrow": (arrow, {"categorical_features": [0, 3], "ordered_features": [2]}),
        "named": (plain, MIXED),
        "mask": (plain, {"categorical_features": [True, False, False, True], "ordered_features": ["rooms"]}),
        "array": (plain.to_numpy(dtype=object), {"categorical_features": [0, 3], "ordered_features": [-2]}),
        "typed and named": (
            frame.astype({"rooms": int, "pool": bool}),
            {**some, "categorical_features": ["town", "pool"]},
        ),
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "named", "mask", "array", "typed and named"])
def test_the_same_rows_in_any_frame_and_any_way_of_saying(kind):
    y, frames = _frames()
    frame, settings = frames[kind]
    reference, named = frames["named"]
    expected = NadarayaWatson(bandwidth=BANDWIDTH, **named).fit(reference, y).predict(reference)
    np.testing.assert_array_equal(
        NadarayaWatson(bandwidth=BANDWIDTH, **settings).fit(frame, y).predict(frame), expected
    )


def test_types_say_what_columns_are():
    y, frames = _frames()
    model = NadarayaWatson(bandwidth=BANDWIDTH).fit(frames["pandas"][0], y)
    assert [column.kind for column in model.columns_] == ["category", "number", "ordered", "category"]
    assert model.columns_[2].levels == (1, 2, 3, 5, 9)
    model = NadarayaWatson(bandwidth="scott").fit(frames["arrow"][0], y)
    assert [column.kind for column in model.columns_] == ["category", "number", "number", "number"]
    model = NadarayaWatson(bandwidth="scott", ordered_features=None).fit(frames["pandas"][0], y)
    assert [column.kind for column in model.columns_] == ["category", "number", "category", "category"]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([np.float32, bool], np.float32), ([np.float32, "category"], np.float32), ([np.float32, np.int8], np.float32),
        ([np.float32, np.int32, bool], np.float64), ([np.float32, np.float64, "category"], np.float64),
        ([np.float32, "datetime64[us]"], np.float64), ([bool, "category"], np.float64), ([np.int8, bool], np.float64),
    ],
)  # fmt: skip
def test_bools_and_categories_do_not_change_the_float_type(dtypes, expected):
    """Only numbers and dates decide: `np.result_type` of their dtypes, and float64 without a float column."""
    frame = pd.DataFrame({f"c{j}": pd.Series(np.arange(ROWS) % 2).astype(each) for j, each in enumerate(dtypes)})
    model = NadarayaWatson(bandwidth="scott").fit(frame, np.arange(float(ROWS)))
    assert {each.dtype for each in (model.X_train_, model.predict(frame))} == {np.dtype(expected)}


def test_a_category_that_was_not_there_says_nothing():
    frame, y = _table()
    model = NadarayaWatson(bandwidth=BANDWIDTH, **MIXED).fit(frame, y)
    query, rest = frame.iloc[:3].assign(town="Izmir"), frame.drop(columns="town")
    settings = {"categorical_features": ["pool"], "ordered_features": ["rooms"]}
    expected = NadarayaWatson(bandwidth=BANDWIDTH[1:], **settings).fit(rest, y).predict(rest[:3])
    with pytest.warns(UserWarning, match="3 of 3 rows with a category in column 'town' that was not in fit"):
        found = model.predict(query)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*that was not in fit")
@pytest.mark.parametrize("share", [0.31, 1e-4, 0.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_line_is_not_flatter_for_a_category_that_was_not_there(share, dtype):
    random = np.random.default_rng(0)
    x = np.column_stack([random.integers(0, 3, ROWS), random.uniform(0, 3, ROWS), random.integers(0, 2, ROWS)])
    x, y = x.astype(dtype), (3 * x[:, 1]).astype(dtype)
    settings = {"order": "linear", "ridge": 0.5}
    model = NadarayaWatson(bandwidth=[share, 0.4, share], categorical_features=[0, 2], **settings).fit(x, y)
    town = NadarayaWatson(bandwidth=[share, 0.4], categorical_features=[0], **settings).fit(x[:, :2], y)
    pool = NadarayaWatson(bandwidth=[0.4, share], categorical_features=[1], **settings).fit(x[:, 1:], y)
    alone = NadarayaWatson(bandwidth=0.4, **settings).fit(x[:, 1:2], y)
    within = {"rtol": 1e-5 if dtype == np.float64 else 1e-3, "atol": 1e-5 if dtype == np.float64 else 1e-3}
    for there, query, columns in (
        (alone, [[7, 0.1, 7], [7, 2.9, 7]], [1]),
        (town, [[1, 0.1, 7], [2, 2.9, 7]], [0, 1]),
        (pool, [[7, 0.1, 1], [7, 2.9, 0]], [1, 2]),
    ):
        at = np.array(query, dtype)
        np.testing.assert_allclose(model.predict(at), there.predict(at[:, columns]), **within)
        slope = there.gradient(at[:, columns])[:, columns.index(1)]
        np.testing.assert_allclose(model.gradient(at)[:, 1], slope, **within)
    lower, upper = model.confidence_interval(at)
    _, deviation = model.predict(at, return_std=True)
    assert np.isfinite([lower, upper, deviation]).all()


def test_a_number_between_ordered_levels_has_a_place_between_them():
    frame, y = _table()
    model = NadarayaWatson(bandwidth=BANDWIDTH, **MIXED).fit(frame, y)
    place = _places(frame)[0]
    x = _places(frame)
    for rooms, step in ((4, 2.5), (-7, 0), (99, 4)):
        place[2] = step
        share = _kernel(x, place)
        found = model.predict(frame.iloc[:1].assign(rooms=rooms))
        np.testing.assert_allclose(found, share @ y / share.sum(), rtol=1e-9)


def test_rules_of_thumb():
    frame, y = _table()
    model = NadarayaWatson(bandwidth="scott", **MIXED).fit(frame, y)
    share = ROWS ** (-2 / 5)
    expected = [2 * share / (1 + 2 * share), frame["area"].std() * ROWS ** (-1 / 5), share, share / (1 + share)]
    np.testing.assert_allclose(model.bandwidth_, expected, rtol=0.1)
    np.testing.assert_allclose(model.bandwidth_[[0, 2, 3]], np.array(expected)[[0, 2, 3]], rtol=1e-12)


def test_density_times_probability():
    frame, y = _table()
    settings = {"bandwidth": BANDWIDTH[:2], "categorical_features": ["town"]}
    model = NadarayaWatson(**settings).fit(frame[["town", "area"]], y)
    x = _places(frame)
    at = np.linspace(-3, 6, 901)
    total = 0
    for level, town in enumerate(["Bursa", "Lyon", "Ulm"]):
        found = np.exp(model.log_density(pd.DataFrame({"town": town, "area": at})))
        kernel = np.where(x[:, 0] == level, 0.69, 0.31 / 2) * np.exp(-(((x[:, 1] - at[300]) / 0.4) ** 2) / 2)
        np.testing.assert_allclose(found[300], kernel.mean() / (BANDWIDTH[1] * np.sqrt(2 * np.pi)), rtol=1e-9)
        total += found.sum() * (at[1] - at[0])
    assert total == pytest.approx(1, abs=1e-6)
    model = NadarayaWatson(bandwidth=BANDWIDTH, **MIXED).fit(frame, y)
    with pytest.raises(ValueError, match="got ordered or periodic features"):
        model.log_density(frame)


@pytest.mark.filterwarnings("ignore:.*that was not in fit")
def test_a_category_that_was_not_there_has_no_density():
    frame, y = _table()
    settings = {"bandwidth": BANDWIDTH[:2], "categorical_features": ["town"]}
    model = NadarayaWatson(**settings).fit(frame[["town", "area"]], y)
    query = pd.DataFrame({"town": ["Ulm", "Izmir"], "area": [1.0, 1.0]})
    assert np.isfinite(model.log_density(query)).tolist() == [True, False]
    assert model.log_density(query)[1] == -np.inf
    one = NadarayaWatson(**settings | {"bandwidth": [0.0, 0.4]}).fit(frame[["town", "area"]].assign(town="Ulm"), y)
    numbers = NadarayaWatson(bandwidth=0.4).fit(frame[["area"]], y)
    expected = [*numbers.log_density(query[["area"]])[:1], -np.inf]
    np.testing.assert_allclose(one.log_density(query), expected, rtol=1e-9)
    np.testing.assert_allclose(one.predict(query), numbers.predict(query[["area"]]), rtol=1e-9)


@pytest.mark.parametrize("levels", [[3, 10, 20], ["3", "10", "20"], [3.0, 10.0, 20.0], ["3", "10", "c"]])
def test_numbers_and_texts_of_them_are_the_same_category(levels):
    """As a column is read of another file, where one cell is no number."""
    frame, y = _table()
    names = dict(zip(["Lyon", "Bursa", "Ulm"], levels, strict=True))
    settings = {"bandwidth": BANDWIDTH[:2], "categorical_features": ["town"]}
    frame = frame[["town", "area"]]
    model = NadarayaWatson(**settings).fit(frame.assign(town=frame["town"].map(names)), y)
    expected = NadarayaWatson(**settings).fit(frame, y).predict(frame)
    texts = frame["town"].map({town: str(level).removesuffix(".0") for town, level in names.items()})
    np.testing.assert_allclose(model.predict(frame.assign(town=texts)), expected, rtol=1e-12)
    if levels[2] != "c":
        for kind in (int, float):
            found = model.predict(frame.assign(town=texts.astype(kind)))
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_texts_that_are_one_number_are_told_apart():
    frame, y = _table()
    codes = frame["town"].map({"Lyon": "1", "Bursa": "01", "Ulm": "2"})
    model = NadarayaWatson(bandwidth=[0.2, 0.4], categorical_features=[0]).fit(
        pd.DataFrame({"a": codes, "b": frame["area"]}), y
    )
    assert model.columns_[0].levels == ("01", "1", "2")
    with pytest.warns(UserWarning, match="1 of 2 rows with a category in column 'a' that was not in fit"):
        model.predict(pd.DataFrame({"a": [1, 2], "b": [0.0, 0.0]}))


def test_dates_are_days():
    days = pd.date_range("2021-03-01", periods=40, freq="12h")
    y = np.sin(np.arange(40) / 9)
    expected = NadarayaWatson(bandwidth=3.0).fit(np.arange(40)[:, None] / 2, y).predict([[1.25], [30.0]])
    at = pd.to_datetime(["2021-03-02 06:00", "2021-03-31 00:00"])
    for make in (
        lambda days: pd.DataFrame({"day": days}),
        lambda days: pd.DataFrame({"day": days.tz_localize("UTC").tz_convert("Asia/Tokyo")}),
        lambda days: pl.DataFrame({"day": days.to_list()}),
        lambda days: pa.table({"day": pa.array(days.to_list(), pa.timestamp("ms"))}),
    ):
        model = NadarayaWatson(bandwidth=3.0).fit(make(days), y)
        np.testing.assert_allclose(model.predict(make(at)), expected, rtol=1e-12)
        assert model.columns_[0] == Column("date", (), "2021-03-01T00:00:00.000000")
    texts = [model.columns_[0].cell_text(day) for day in (0, 31, 0.25)]
    assert texts == ["2021-03-01", "2021-04-01", "2021-03-01T06:00"]
    with pytest.raises(ValueError, match=r"X: got .* in row 0 of column 'day'; expected dates, as in fit"):
        model.predict(pd.DataFrame({"day": [1.0]}))
    with pytest.raises(ValueError, match="X: got '31/1/2020' in row 2 of column 'day'; expected dates, as in fit"):
        model.predict(pd.DataFrame({"day": [None, "2020-01-31", "31/1/2020"]}))
    with pytest.raises(ValueError, match="X: got '2024-02-30' in column 'day', text that looks like a date"):
        NadarayaWatson(bandwidth=3.0).fit(pd.DataFrame({"day": ["2024-01-31", "2024-02-30"] * 20}), np.arange(40))


@pytest.mark.parametrize("form", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_texts_are_dates_only_if_each_is_a_full_date(form):
    days = pd.date_range("2021-03-01", periods=40, freq="12h")
    y, texts = np.sin(np.arange(40) / 9), days.strftime("%Y-%m-%d %H:%M").tolist()
    model, expected = (KernelRegressor(bandwidth=3.0).fit(form({"day": cells}), y) for cells in (texts, list(days)))
    assert model.columns_ == expected.columns_
    np.testing.assert_array_equal(model.predict(form({"day": texts[:3]})), expected.predict(form({"day": texts[:3]})))
    for codes in (["1.2.34", "1.2.35"], ["10.5", "1.2.34"], ["1.2.2021-b", "1.2.2021-c"]):
        model = KernelRegressor(bandwidth=[0.3]).fit(form({"code": codes * 20}), y)
        assert model.columns_ == (Column("category", tuple(sorted(codes))),)
    declared = KernelRegressor(bandwidth=[0.3], categorical_features=["day"]).fit(form({"day": texts[:2] * 20}), y)
    assert declared.columns_ == (Column("category", tuple(texts[:2])),)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "epanechnikov", "bandwidth": 1.0}, "kernel: got 'epanechnikov' with categories; expected"),
        ({"bandwidth": 1.0}, r"bandwidth: got shape \(\); expected \(4,\), a number for each column"),
        ({"bandwidth": [1.1, 1, 0.5, 0.5]}, "got 1.1 for a column of categories; expected λ of at most 1. From 0.6667"),
        ({"bandwidth": [0.5, 0, 0.5, 0.5]}, r"bandwidth: got \[0.5, 0, 0.5, 0.5\]; expected a positive number"),
        ({"categorical_features": ["twon"]}, "categorical_features: got 'twon'; expected a column of X"),
        ({"categorical_features": [4]}, r"categorical_features: got 4; expected a name, or a position below 4"),
        ({"categorical_features": [True]}, r"categorical_features: got a mask of 1; expected 4"),
        ({"categorical_features": "town"}, "categorical_features: got 'town'; expected 'from_dtype'"),
        ({"categorical_features": ["rooms"]}, "ordered_features: got column 'rooms', which is in cat"),
        ({"ordered_features": ["town"]}, r"got column 'town', which holds text \('Bursa', 'Lyon'"),
        ({"categorical_features": ["pool"]}, r"X: got '\w+' in column 'town'; expected numbers"),
    ],
)  # fmt: skip
def test_what_is_refused(settings, message):
    frame, y = _table()
    if settings.get("ordered_features") == ["town"]:
        settings = {**settings, "categorical_features": None}
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(**{**MIXED, **settings}).fit(frame, y)


def test_an_order_that_was_declared_is_kept_and_others_are_refused():
    size = pd.Categorical(["low", "high", "medium", "low"], ["low", "medium", "high"], ordered=True)
    frame, y = pd.DataFrame({"size": size}), [1.0, 9.0, 5.0, 2.0]
    model = NadarayaWatson(bandwidth=[0.5]).fit(frame, y)
    found = model.predict(pd.DataFrame({"size": ["medium"]}))
    np.testing.assert_allclose(found, (0.5 * 1 + 0.5 * 9 + 5 + 0.5 * 2) / 2.5)
    with pytest.raises(ValueError, match="X: got 'huge' in column 'size'; expected one of 'low', 'medium', 'high'"):
        model.predict(pd.DataFrame({"size": ["huge"]}))


def test_levels_of_a_type_without_order_are_not_one():
    cells = ["low", "high", "medium", "low"]
    for frame in (
        pd.DataFrame({"size": pd.Categorical(cells)}),
        pl.DataFrame({"size": pl.Series(cells, dtype=pl.Categorical)}),
        pa.table({"size": pa.array(cells).dictionary_encode()}),
    ):
        with pytest.raises(ValueError, match="ordered_features: got column 'size', which holds text"):
            NadarayaWatson(bandwidth=[0.5], ordered_features=["size"]).fit(frame, [1.0, 9.0, 5.0, 2.0])
    frame = pl.DataFrame({"size": pl.Series(cells, dtype=pl.Enum(["low", "medium", "high"]))})
    model = NadarayaWatson(bandwidth=[0.5]).fit(frame, [1.0, 9.0, 5.0, 2.0])
    assert model.columns_ == (Column("ordered", ("low", "medium", "high")),)


def test_levels_are_texts_or_numbers():
    area = np.arange(8.0)
    for cells in (pd.cut(area, 3), pd.Categorical(pd.to_datetime("2020-01-01") + pd.to_timedelta(area, "D"))):
        for ordered in (True, False):
            frame = pd.DataFrame({"part": pd.Series(cells).cat.set_categories(cells.categories, ordered=ordered)})
            with pytest.raises(ValueError, match="in column 'part'; expected texts or numbers as categories"):
                NadarayaWatson(bandwidth=[0.5]).fit(frame, area)
    with pytest.raises(ValueError, match=r"got \[1\] in column '0'; expected texts or numbers"):
        NadarayaWatson(bandwidth=[0.5], categorical_features=[0]).fit(pa.table({"0": [[1], [2]]}), [1.0, 2.0])


def test_coding_there_and_back():
    columns = (Column("category", tuple("abcd")), Column(), Column("ordered", (1, 2, 3)), Column("category", ("a",)))
    coding = Coding(columns, 4)
    for bandwidth in ([0.3, 7.0, 0.2, 0.0], [0, 1e-3, 0, 0], [0.75, 1e9, 1, 0]):
        sigma = coding.to_sigma(np.array(bandwidth, float))
        np.testing.assert_allclose(coding.to_bandwidth(sigma), bandwidth, rtol=1e-12)
    rows = coding.coordinates(np.array([[0, 5, 0, 0], [3, 5, 2, 0], [-1, 5, 1, 0.0]]))
    between = ((rows[:, None] - rows) ** 2).sum(2)
    assert rows.shape == (3, 1 + 3 + 2 + 1)
    np.testing.assert_allclose(between[0, 1], 1 + 2, rtol=1e-14)
    center = ((coding.coordinates(np.array([[k, 5, 1, 0] for k in range(4)], float)) - rows[2]) ** 2).sum(1)
    np.testing.assert_allclose(center, 3 / 8, rtol=1e-14)


def test_levels_may_be_numpys_numbers(tmp_path):
    codes = [0, 1, 1, 0, 1, 0, 1]
    y = np.arange(7.0)
    expected = NadarayaWatson(categorical_features=[0], bandwidth=[0.2]).fit(np.array(codes)[:, None], y)
    for kind in (np.int64, np.bool_):
        x = np.array([[kind(code)] for code in codes], object)
        model = NadarayaWatson(categorical_features=[0], bandwidth=[0.2]).fit(x, y)
        np.testing.assert_array_equal(model.predict(x), expected.predict(np.array(codes)[:, None]))
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(NadarayaWatson.load(tmp_path / "model").predict(x), model.predict(x))


def test_deviations_are_of_the_widths_of_each_category():
    """Of two categories with several coordinates each: σ of a feature is not taken for that of another."""
    random = np.random.default_rng(0)
    x = random.integers(0, 4, (80, 2))
    y = x[:, 0] + random.normal(size=80)
    settings = {"categorical_features": [0, 1]}
    one = NadarayaWatson(bandwidth=[0.1, 0.7], **settings).fit(x, y)
    other = NadarayaWatson(bandwidth=[0.7, 0.1], **settings).fit(x[:, ::-1], y)
    for mine, theirs in zip(one.predict(x, return_std=True), other.predict(x[:, ::-1], return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.parametrize("period", [24.0, 360.0])
def test_a_number_that_comes_round(period, tmp_path):
    """The kernel is a Gaussian of the chord: by a plain formula, and the same at both ends of the period."""
    random = np.random.default_rng(12)
    x, y = random.uniform(0, period, (61, 1)), random.normal(size=61)
    sigma = 0.07 * period
    model = NadarayaWatson(bandwidth=[sigma], periodic_features={0: period}).fit(x, y)
    at = np.array([0.0, 0.3 * period, 0.99 * period])
    chord = period / np.pi * np.sin(np.pi * (at[:, None] - x[:, 0]) / period)
    share = np.exp(-((chord / sigma) ** 2) / 2)
    np.testing.assert_allclose(model.predict(at[:, None]), share @ y / share.sum(1), rtol=1e-9)
    np.testing.assert_allclose(model.predict(at[:, None] + 3 * period), model.predict(at[:, None]), rtol=1e-6)
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        NadarayaWatson.load(tmp_path / "model.safetensors").predict(at[:, None]), model.predict(at[:, None])
    )


def test_lines_are_drawn_to_a_plane_with_steps_beside_least_squares():
    random = np.random.default_rng(7)
    area, town = random.uniform(0, 4, 97), random.integers(0, 3, 97)
    y = 3 * area + np.array([0.0, 5.0, -2.0])[town] + 0.1 * random.normal(size=97)
    design = np.column_stack([area, np.eye(3)[town]])
    model = KernelRegressor(bandwidth=[1e6, 2 / 3], categorical_features=[1])
    model.fit(np.column_stack([area, town]), y)
    at = np.array([[1.5, 0], [9.0, 1], [-3.0, 2]])
    expected = np.column_stack([at[:, 0], np.eye(3)[at[:, 1].astype(int)]]) @ np.linalg.lstsq(design, y)[0]
    np.testing.assert_allclose(model.predict(at), expected, atol=0.01)


def test_a_wave_over_midnight_is_learned():
    random = np.random.default_rng(13)
    hour, other = random.uniform(0, 24, 211), random.normal(size=211)
    frame = pd.DataFrame({"hour": hour, "other": other})
    y = np.cos(4 * np.pi * hour / 24) + 2 * other + 0.1 * random.normal(size=211)
    model = KernelRegressor(periodic_features={"hour": 24}).fit(frame, y)
    assert 0.2 < model.bandwidth_[0] < 6
    near = model.predict(pd.DataFrame({"hour": [23.9, 0.1], "other": [0.0, 0.0]}))
    np.testing.assert_allclose(near, 1, atol=0.2)
    with pytest.raises(ValueError, match="ordered or periodic"):
        model.log_density(frame)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"hour": 0}, "the period 0 of 'hour'; expected a positive number"),
        ({"minute": 60}, "got 'minute'; expected a column of X"),
        ({"town": 3}, "column 'town', which is a category too"),
        ({"day": 12}, "column 'day', which holds dates; expected numbers, such as the day of the year"),
        ({"text": 12}, "column 'text', which holds dates; expected numbers"),
    ],
)
def test_periods_that_are_none(given, expected):
    frame = pd.DataFrame(
        {"hour": [1.0, 2.0, 3.0], "town": ["a", "b", "a"], "day": pd.date_range("2024-01-30", periods=3)}
    )
    frame["text"] = frame["day"].astype(str)
    with pytest.raises(ValueError, match=expected):
        KernelRegressor(periodic_features=given, categorical_features=["town"]).fit(frame, [1.0, 2.0, 3.0])


def test_a_lambda_that_was_found_elsewhere_holds_where_fewer_categories_are():
    """As a resample of rows may lack some: from (c − 1)/c on, a category counts for nothing."""
    frame = pd.DataFrame({"town": ["a", "a", "b", "a"], "area": [1.0, 2.0, 3.0, 4.0]})
    for few in (frame, frame.iloc[[0, 1, 3]]):
        model = NadarayaWatson(bandwidth=[0.6, 1.0], categorical_features=["town"]).fit(few, np.arange(len(few)))
        plain = NadarayaWatson(bandwidth=1.0).fit(few[["area"]], np.arange(len(few)))
        np.testing.assert_allclose(model.predict(few), plain.predict(few[["area"]]), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:y. got rows whose errors")  # a draw in which they are alike by chance
def test_intervals_of_a_category_that_was_not_there_hold_its_rows():
    """Seven towns that are ten apart, one of which is left out."""
    held = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        effects, towns = random.normal(0, 10, 7), random.integers(0, 7, 83)
        x = pd.DataFrame({"town": pd.Categorical(towns), "size": random.uniform(0, 3, 83)})
        y = effects[towns] + x["size"].to_numpy() + 0.5 * random.normal(size=83)
        there = towns != 0
        model = KernelRegressor().fit(x[there], y[there])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for method in ("jackknife+", "local", "split"):
                lower, upper = model.predict_interval(x[~there], 0.9, method)
                held.append(np.mean((lower <= y[~there]) & (y[~there] <= upper)))
            lower, upper = model.confidence_interval(x[~there], 0.9)
            expected = effects[0] + x["size"][~there]
            held.append(np.mean((lower <= expected) & (expected <= upper)))
            assert model.predict(x[~there], return_std=True)[1].min() > 4
        lower, upper = model.predict_interval(x[there], 0.9)
        assert (upper - lower).max() < 4
    assert np.mean(held) > 0.6  # of four draws, whose towns left out are far off or not


@pytest.mark.filterwarnings("ignore:y. got rows whose errors")  # a draw in which they are alike by chance
@pytest.mark.parametrize(("levels", "each"), [(20, 4), (4, 20)])
def test_confidence_intervals_count_that_steps_are_learned(levels, each):
    held = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        effect, level = 2 * random.normal(size=levels), np.repeat(np.arange(levels), each)
        x = np.column_stack([random.uniform(size=len(level)), level])
        y = effect[level] + 2 * x[:, 0] + random.normal(size=len(level))
        model = KernelRegressor(categorical_features=[1]).fit(x, y)
        lower, upper = model.confidence_interval(np.column_stack([np.full(levels, 0.5), np.arange(levels)]))
        held.append(np.mean((lower <= effect + 1) & (effect + 1 <= upper)))
    assert np.mean(held) > 0.9
