"""Missing cells, masked ones and NaT; columns of text."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold

from dikkat.regression import KernelClassifier, KernelDensity, KernelRegressor, lowess, smooth

ROWS = 61


def _homes(seed=0, count=ROWS):
    random = np.random.default_rng(seed)
    x = pd.DataFrame({"area": random.uniform(2, 9, count), "age": random.uniform(0, 5, count)})
    x["town"] = random.choice(["Ulm", "Bonn"], count)
    y = 3 * x["area"] + 4 * (x["town"] == "Ulm") + 0.1 * random.normal(size=count)
    for name, share in (("area", 0.2), ("town", 0.1)):
        x.loc[random.random(count) < share, name] = None
    return x, y


@pytest.mark.filterwarnings("ignore:.* rows with a missing cell")
def test_gaps_are_a_category_beside_the_number(tmp_path):
    x, y = _homes()
    model = KernelRegressor(missing="indicator").fit(x, y)
    assert model.bandwidth_names_ == ["area", "age", "town", "area is missing"]
    lost = x["area"].isna().to_numpy()
    np.testing.assert_array_equal(model.X_train_[:, 3], lost)
    assert (model.X_train_[lost, 0] == x["area"].median()).all()
    assert model.columns_[2].levels == ("Bonn", "Ulm", "(missing)")
    known = x.notna().all(axis=1)
    assert model.score(x[known], y[known]) > 0.99
    assert model.score(x, y) > 0.8
    new, _ = _homes(1, 7)
    new.iloc[0] = None
    new.loc[1, "age"] = None
    with pytest.warns(UserWarning, match="2 of 7 rows with a missing cell in column 'age', which had none in fit"):
        answer = model.predict(new)
    assert np.isfinite(answer).all()
    assert np.isfinite(model.gradient(new)[:, :2]).all()
    model.save(tmp_path / "model")
    other = KernelRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(other.predict(new), answer)
    np.testing.assert_array_equal(KernelRegressor(**other.get_params()).fit(x, y).predict(new), answer)


def test_a_category_that_is_missing_in_queries_alone_is_one_that_was_not_there():
    x, y = _homes()
    x = x.ffill().bfill()
    model = KernelRegressor(bandwidth="scott", missing="indicator").fit(x[:20], y[:20])
    with pytest.warns(UserWarning, match="1 of 61 rows with a missing cell in column 'town', which had none in fit"):
        model.predict(x.assign(town=["Ulm"] * 60 + [None]))


@pytest.mark.filterwarnings("ignore:.* rows with a missing cell")
@pytest.mark.parametrize("method", ["jackknife+", "local", "split"])
def test_intervals_hold_what_a_missing_cell_could_have_said(method):
    """They are wider by how far the column moves the estimate, whether it had gaps in fit or not."""
    random, count = np.random.default_rng(7), 211
    x, new = (pd.DataFrame(random.uniform(0, 9, (count, 3)), columns=["often", "never", "idle"]) for _ in range(2))
    x["kind"], new["kind"] = (random.choice(["a", "b", "c"], count) for _ in range(2))

    def target(x):
        noise = 0.5 * random.normal(size=count)
        return 2 * x["often"] + 4 * np.sin(x["never"]) + x["kind"].map({"a": 0, "b": 3, "c": 6}) + noise

    y, wanted = target(x), target(new).to_numpy()
    for name in ("often", "kind"):
        x.loc[random.random(count) < 0.05, name] = None
    model = KernelRegressor(missing="indicator").fit(x, y)
    for gone in (["often"], ["never"], ["kind"], ["often", "never"]):
        lower, upper = model.predict_interval(new.assign(**dict.fromkeys(gone)).astype({"kind": object}), 0.9, method)
        assert np.mean((lower <= wanted) & (wanted <= upper)) > 0.82, gone
    known = np.ptp(model.predict_interval(new, 0.9, method), axis=0)
    idle = np.ptp(model.predict_interval(new.assign(idle=np.nan), 0.9, method), axis=0)
    np.testing.assert_allclose(idle, known, rtol=0.2)  # of a column that moves nothing


def test_columns_that_are_missing_everywhere_and_rows_of_gaps_alone():
    x, y = _homes()
    x["area"] = np.nan
    model = KernelRegressor(missing="indicator").fit(x, y)
    assert np.isfinite(model.predict(x)).all()
    x.iloc[3] = None
    assert np.isfinite(KernelRegressor(missing="indicator").fit(x, y).predict(x)).all()


def test_rows_without_y_are_left_out_with_their_weights_and_groups():
    x, y = _homes()
    x.loc[5:8, "area"] = 900.0
    lost, y[5:9] = np.isin(np.arange(ROWS), range(5, 9)), np.nan
    groups, weight = np.arange(ROWS) % 7, np.arange(ROWS) % 3 + 1
    model = KernelRegressor(missing="indicator", cv=GroupKFold(3))
    with pytest.warns(UserWarning, match="y: 4 of 61 rows have no y and are left out"):
        found = clone(model).fit(x, y, weight, groups).predict(x)
    expected = model.fit(x[~lost], y[~lost], weight[~lost], groups[~lost]).predict(x)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="cv: got pairs of indices, and 4 of 61 rows have no y"):
        model.set_params(cv=list(KFold(3).split(x))).fit(x, y)


def test_gaps_are_refused_where_none_are_allowed():
    x, y = _homes()
    wanted = r"X: got missing cells \(NaN\) in the columns area, town; expected a value in each, or a model with"
    with pytest.raises(ValueError, match=wanted):
        KernelRegressor().fit(x, y)
    with pytest.raises(ValueError, match="X: got missing cells"):
        KernelRegressor(bandwidth="scott").fit(x.ffill().bfill()[["area", "age"]], y).predict(x[["area", "age"]])
    with pytest.raises(ValueError, match=r"X: got missing cells \(NaN\); expected"):
        KernelRegressor().fit(x[["area"]].to_numpy(), y)
    with pytest.raises(ValueError, match="missing: got 'drop'; expected 'refuse', 'indicator'"):
        KernelRegressor(missing="drop").fit(x, y)
    for kind, setting in (
        ("ordered", {"ordered_features": ["area"]}),
        ("periodic", {"periodic_features": {"area": 9}}),
    ):
        with pytest.raises(ValueError, match=f"X: got 12 missing cells in column 'area', which is {kind}"):
            KernelRegressor(missing="indicator", **setting).fit(x, y)


@pytest.mark.parametrize("given", [
    np.array(["2024-01-01", "NaT", "2024-01-05"], "datetime64[D]"), np.ma.array([1.0, 1e6, 2.0], mask=[0, 1, 0]),
    np.ma.array([1, 999, 2], mask=[0, 1, 0]),
], ids=["NaT", "masked", "masked integers"])  # fmt: skip
def test_masked_cells_and_no_time_are_missing(given):
    for fit in (lambda v: smooth(v, [1.0, 2, 3]), lambda v: lowess([1.0, 2, 3], v)):
        with pytest.warns(UserWarning, match="x, y: got 1 of 3 rows with a missing cell, which are left out"):
            fit(given)
    for estimator in (KernelRegressor(), KernelClassifier()):
        with pytest.raises(ValueError, match="NaN"):
            estimator.fit(given[:, None], [1, 2, 1])
    with pytest.raises(ValueError, match="NaN"):
        KernelDensity().fit(given[:, None])
    with pytest.raises(ValueError, match=r"NaN|y: got datetime64.* numbers"):
        KernelRegressor().fit(np.ones((3, 1)), given)
    assert np.isfinite(
        KernelRegressor(missing="indicator").fit(given[:, None], [1.0, 2, 3]).predict(given[:, None])
    ).all()


def test_columns_of_few_texts_are_categories():
    x, y = _homes()
    x = x.dropna()
    y = y[x.index]
    expected = KernelRegressor().fit(x.astype({"town": "category"}), y)
    found = KernelRegressor().fit(x, y)
    np.testing.assert_array_equal(found.predict(x), expected.predict(x))
    assert found.columns_[2].levels == ("Bonn", "Ulm")
    x["name"] = [f"home {row}" for row in range(len(x))]
    with pytest.raises(
        ValueError, match=r"different texts in .* rows of column 'name', such as 'home 0'; expected few"
    ):
        KernelRegressor().fit(x, y)


def test_what_stands_in_gaps_is_of_rows_that_count_and_dates_may_lack_everywhere():
    random = np.random.default_rng(3)
    x = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=ROWS), "a": random.normal(size=ROWS)})
    x.loc[::5, ["a", "when"]] = None
    y, weight = random.normal(size=ROWS), np.arange(ROWS) < 41
    x.loc[~weight, "a"] = 1000.0
    one = KernelRegressor(missing="indicator").fit(x, y, weight)
    other = KernelRegressor(missing="indicator").fit(x[weight], y[weight])
    new = pd.DataFrame({"when": [None, None], "a": [0.1, np.nan]})
    for found, wanted in zip(one.predict(new, return_std=True), other.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_query_with_a_gap_is_near_what_is_alike_in_the_rest_and_refused_where_fit_refused_gaps():
    random = np.random.default_rng(2)
    x = pd.DataFrame(random.uniform(0, 9, (ROWS, 2)), columns=["a", "b"])
    y = 3 * x["a"] + x["b"]
    model = KernelRegressor(missing="indicator", bandwidth=[1e8, 1e8]).fit(x, y)
    with pytest.warns(UserWarning, match="with a missing cell in column 'b'"):
        rows = model.nearest(pd.DataFrame({"a": [5.0], "b": [np.nan]}), 4)["row"]
    assert set(rows) == set(np.argsort(np.abs(x["a"] - 5).to_numpy())[:4])
    town = x.assign(town=["Ulm", "(missing)"] * 30 + ["Ulm"])  # a name that somebody gave
    plain = KernelRegressor().fit(town, y)
    renamed = town.replace({"town": {"(missing)": "Aalen"}})
    for one, other in zip(
        plain.predict(town, True), KernelRegressor().fit(renamed, y).predict(renamed, True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    with pytest.raises(ValueError, match="got missing cells"):
        plain.set_params(missing="indicator").predict(town.assign(a=np.nan))
