"""Tables as people have them: one column alone, more columns than needed, rows or columns in another order."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, permutation_test_score
from sklearn.pipeline import make_pipeline

from dikkat.regression import KernelClassifier, KernelDensity, KernelRegressor, lowess, smooth

ROWS = 23
AREA = np.random.default_rng(0).uniform(20, 90, ROWS)
HOMES = pd.DataFrame({
    "area": AREA, "town": np.where(np.arange(ROWS) % 3, "Ulm", "Bonn"),
    "day": pd.date_range("2024-01-01", periods=ROWS),
})  # fmt: skip
PRICE = pd.Series(3 * AREA + 40 * (HOMES["town"] == "Ulm"), name="price")
SIGMA = [9.0, 0.2, 7.0]


@pytest.mark.parametrize(
    "form", [pd.DataFrame, pl.DataFrame, pyarrow.Table.from_pandas], ids=["pandas", "polars", "arrow"]
)
def test_columns_are_selected_by_name(form):
    model = KernelRegressor(bandwidth=SIGMA).fit(HOMES, PRICE)
    found = model.predict(form(HOMES.assign(id=7.0, price=PRICE)[["id", "day", "price", "town", "area"]]))
    np.testing.assert_allclose(found, model.predict(HOMES), rtol=1e-12)
    with pytest.raises(ValueError, match=r"X: got no column 'town', 'day'; expected 'area', 'town', 'day'"):
        model.predict(form(HOMES[["area"]]))


@pytest.mark.parametrize("column", [
    HOMES["area"], pl.Series("area", AREA), AREA.tolist(), HOMES["day"], HOMES["day"].tolist(),
    HOMES["day"].to_numpy("datetime64[s]")[:, None], HOMES["day"].dt.tz_localize("UTC"), AREA,
    HOMES["day"].to_numpy(),
], ids=["series", "polars", "list", "dates", "list of dates", "array of dates",
    "dates with a zone", "array", "one dimension of dates"])  # fmt: skip
def test_one_column_alone(column):
    """A date counts in days, whatever the unit of its array."""
    is_date = getattr(np.asarray(column), "dtype", None).kind in "MO"
    x = np.arange(ROWS)[:, None] if is_date else AREA[:, None]
    found, expected = (KernelRegressor(bandwidth=5.0).fit(each, PRICE) for each in (column, x))
    np.testing.assert_allclose(found.predict(column[:4]), expected.predict(x[:4]), rtol=1e-9)
    assert found.gradient(column)[2, 0] == pytest.approx(expected.gradient(x)[2, 0])


@pytest.mark.parametrize(("query", "message"), [
    (HOMES.iloc[0], r"X: got a Series of one dimension, which is one column; .* such as X.iloc\[\[0\]\]"),
    (AREA[:3], r"X: got a ndarray of one dimension, .*; expected 3 columns\. Reshape .* X.reshape\(1, -1\)"),
    ([{"area": 50.0}], r"X: got a list of dicts; expected a frame, such as pandas.DataFrame\(X\)"),
    ({"area": [50.0]}, "X: got a dict; expected a frame"),
])  # fmt: skip
def test_a_row_that_is_no_table(query, message):
    model = KernelRegressor(bandwidth=SIGMA).fit(HOMES, PRICE)
    with pytest.raises(ValueError, match=message):
        model.predict(query)


@pytest.mark.parametrize(("settings", "arguments", "message"), [
    ({}, {"groups": HOMES["town"]}, r"groups: got groups and cv=None; .* such as KernelRegressor\(cv=GroupKFold\(10\)"),
    ({"cv": GroupKFold(2)}, {"groups": "town"}, r"groups: got 'town'; expected the group of each row, \(23,\)"),
    ({"cv": GroupKFold(2)}, {"groups": [1, 2]}, r"groups: got shape \(2,\); expected the group of each row"),
    ({}, {"y": PRICE.where(PRICE > 100)}, r"y: got missing values \(NaN\); .* missing=.indicator., which leaves"),
])  # fmt: skip
def test_messages_name_the_setting_to_change(settings, arguments, message):
    with pytest.raises(ValueError, match=message):
        KernelRegressor(bandwidth=SIGMA, **settings).fit(HOMES, **{"y": PRICE} | arguments)


def test_labels_of_rows_in_another_order_are_an_error():
    turned = PRICE.iloc[::-1]
    with pytest.raises(ValueError, match=r"y: got labels of X in another order; .* y.loc\[X.index\]"):
        KernelRegressor(bandwidth=SIGMA).fit(HOMES, turned)
    with pytest.raises(ValueError, match="sample_weight: got labels of X in another order"):
        KernelClassifier(bandwidth=SIGMA).fit(HOMES, PRICE > 200, sample_weight=turned)
    with pytest.raises(ValueError, match="groups: got labels of X in another order"):
        KernelRegressor(bandwidth=SIGMA, cv=2).fit(HOMES, PRICE, groups=turned)
    by_position = KernelRegressor(bandwidth=SIGMA).fit(HOMES, turned.to_numpy())
    np.testing.assert_array_equal(by_position.y_train_, turned)
    aligned = KernelRegressor(bandwidth=SIGMA).fit(HOMES, turned.loc[HOMES.index])
    np.testing.assert_array_equal(aligned.y_train_, PRICE)
    other = KernelRegressor(bandwidth=SIGMA).fit(
        HOMES, PRICE.set_axis(range(50, 50 + ROWS))
    )  # other labels: by position
    np.testing.assert_array_equal(other.y_train_, PRICE)


def test_labels_that_differ_in_part_or_repeat():
    moved = PRICE.set_axis(range(3, 3 + ROWS))
    with pytest.raises(ValueError, match=r"y: got labels of X among 3 other labels; expected the rows of X, or y.to_n"):
        KernelRegressor(bandwidth=SIGMA).fit(HOMES, moved)
    twice, prices = pd.concat([HOMES, HOMES]), pd.concat([PRICE, PRICE])
    with pytest.raises(ValueError, match=r"y: got labels of X in another order; expected the rows of X, or y.to_numpy"):
        KernelRegressor(bandwidth=SIGMA).fit(twice, prices.sort_index())
    np.testing.assert_array_equal(KernelRegressor(bandwidth=SIGMA).fit(twice, prices).y_train_, prices)


def test_labels_of_points_in_another_order():
    x, turned = HOMES["area"], PRICE.iloc[::-1]
    message = r"got labels of x in another order; expected the rows of x, as in y.loc\[x.index\]"
    for curve in (lambda: smooth(x, turned), lambda: lowess(turned, x)):
        with pytest.raises(ValueError, match=f"y: {message}"):
            curve()
    with pytest.raises(ValueError, match="sample_weight: got labels of x in another order"):
        smooth(x, PRICE, sample_weight=turned)
    np.testing.assert_array_equal(smooth(x, turned.to_numpy()).y, smooth(x.to_numpy(), turned).y)


@pytest.mark.parametrize("columns", [["area"], ["area", "town"], ["area", "town", "day"]])
@pytest.mark.parametrize("form", [pd.Series.to_frame, lambda y: y.to_numpy()[:, None]])
def test_a_target_of_one_column(columns, form):
    table = pd.concat([HOMES] * 3, ignore_index=True)[columns]
    random = np.random.default_rng(1)
    table["area"] = random.uniform(20, 90, len(table))
    y = (np.sin(table["area"] / 9) + 0.2 * random.normal(size=len(table))).rename("price")
    plain, column = (KernelRegressor().fit(table, target) for target in (y, form(y)))
    np.testing.assert_allclose(column.predict(table)[:, 0], plain.predict(table), rtol=1e-9)
    np.testing.assert_allclose(column.predict_interval(table), plain.predict_interval(table), rtol=1e-9)
    assert column.target_name_ == ("price" if form is pd.Series.to_frame else None)


def test_classes_of_one_column():
    flags = (PRICE > 200).to_frame()
    with pytest.warns(UserWarning, match="column-vector y"):
        model = KernelClassifier(bandwidth=SIGMA).fit(HOMES, flags)
    expected = KernelClassifier(bandwidth=SIGMA).fit(HOMES, PRICE > 200)
    np.testing.assert_array_equal(model.predict_proba(HOMES), expected.predict_proba(HOMES))
    assert model.target_name_ == "price"


@pytest.mark.parametrize("estimator", [KernelRegressor(), KernelClassifier(), KernelDensity()])
def test_columns_of_one_name(estimator):
    twice = pd.concat([HOMES[["area"]], HOMES[["area"]]], axis=1)
    with pytest.raises(ValueError, match="X: got 2 columns 'area'; expected different names"):
        estimator.fit(twice, PRICE > 200)


@pytest.mark.parametrize("form", [pd.DataFrame, pl.DataFrame])
def test_the_target_among_the_features(form):
    table = form(HOMES.assign(price=PRICE))
    with pytest.raises(ValueError, match=r"X: got the column 'price', which is y; .*drop\(columns='price'\)"):
        KernelRegressor().fit(table, table["price"])
    doubled = KernelRegressor(bandwidth=[9.0, 0.2, 7.0, 30.0]).fit(
        table, 2 * table["price"]
    )  # another column, of its name
    assert doubled.n_features_in_ == 4
    array = np.asarray(PRICE)
    for unnamed in (array, array[:, None], PRICE.rename(None), list(PRICE), PRICE.rename("paid")):
        message = rf"the column 'price' equals y in all {ROWS} rows.*X.drop\(columns='price'\)"
        with pytest.warns(UserWarning, match=message) as caught:  # equal by chance in the training rows of a fold
            KernelRegressor(bandwidth=[9.0, 0.2, 7.0, 30.0]).fit(table, unnamed)
        assert caught[0].filename == __file__
    flags = form({"area": AREA, "large": AREA > 60})  # two values may be equal by chance
    assert KernelRegressor(bandwidth=[9.0, 0.2]).fit(flags, AREA > 60).n_features_in_ == 2
    gaps = pd.DataFrame({"area": AREA, "floor": pd.array([None, *range(ROWS - 1)], "Int64")})
    assert KernelRegressor(missing="indicator", bandwidth=[9.0, 7.0, 0.2]).fit(gaps, AREA / 7).n_features_in_ == 2
    two = form({"price": PRICE, "paid": 2 * PRICE})
    for X in (table, table[["price"]]):
        with pytest.raises(ValueError, match="X: got the column 'price', which is y"):
            KernelRegressor().fit(X, two)
    one_column = form({"area": AREA})  # the line y = x
    assert KernelRegressor(bandwidth=9.0).fit(one_column, AREA).n_features_in_ == 1


def test_labels_that_a_permutation_moves():
    """scikit-learn moves the labels of y with its values, so that y is passed as an array."""
    arguments = {"groups": np.arange(ROWS) % 3, "cv": LeaveOneGroupOut(), "n_permutations": 3}
    model = KernelRegressor(bandwidth=[9.0])
    with pytest.raises(ValueError, match=r"or y.to_numpy\(\) if the rows match by position"):
        permutation_test_score(model, HOMES[["area"]], PRICE, **arguments)
    score, permuted, _ = permutation_test_score(model, HOMES[["area"]], PRICE.to_numpy(), **arguments)
    assert score > permuted.max()


def test_a_pipeline_with_names():
    scale = make_column_transformer(("passthrough", make_column_selector()), verbose_feature_names_out=False)
    with pytest.raises(ValueError, match=r"got 'Bonn' in column 1; .* set_output\(transform='pandas'\)"):
        make_pipeline(scale, KernelRegressor()).fit(HOMES[["area", "town"]], PRICE)
    found = make_pipeline(scale.set_output(transform="pandas"), KernelRegressor(bandwidth=SIGMA)).fit(HOMES, PRICE)
    np.testing.assert_array_equal(
        found.predict(HOMES), KernelRegressor(bandwidth=SIGMA).fit(HOMES, PRICE).predict(HOMES)
    )


def test_a_column_that_numbers_the_rows_raises_a_warning():
    numbered = HOMES[["area"]].assign(home_id=np.random.default_rng(0).permutation(ROWS))
    for table in (numbered, pl.from_pandas(numbered)):
        with pytest.warns(UserWarning, match=r"X: got 'home_id', different integers .* X.drop\(columns='home_id'\)"):
            KernelRegressor(bandwidth=9.0).fit(table, PRICE)
    for other in ({"home_id": numbered["home_id"] // 2}, {"home_id": numbered["home_id"] + 0.5}, {"width": 1 + AREA}):
        KernelRegressor(bandwidth=9.0).fit(
            HOMES[["area"]].assign(**other), PRICE
        )  # no warning, which would be an error
    for setting in ({"categorical_features": ["home_id"]}, {"periodic_features": {"home_id": 24}}):
        KernelRegressor(bandwidth=[9.0, 0.5], **setting).fit(numbered, PRICE)
    KernelRegressor(bandwidth=9.0).fit(pd.Series(range(ROWS), name="index"), PRICE)
