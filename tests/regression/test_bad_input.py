import re

import dense
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from dikkat.errors import InputError
from dikkat.regression import KernelRegressor, NadarayaWatson

X, Y = np.linspace(0, 4, 23)[:, None], np.sin(np.linspace(0, 4, 23))
BOTH = pytest.mark.parametrize("order", dense.ORDERS)
EVERY = pytest.mark.parametrize("kernel", dense.KERNELS)
METHODS = ["predict", "confidence_interval", "attention_weights", "effective_neighbors", "log_density"]


def _assert_sensible(model, query, low, high):
    """Predictions that are finite and in or near the range of what there was."""
    found = model.predict(query)
    assert np.isfinite(found).all()
    assert (found >= low - 1e-9).all()
    assert (found <= high + 1e-9).all()
    assert (model.bandwidth_ > 0).all()
    assert np.isfinite(model.bandwidth_).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad):
    x, y = X.copy(), Y.copy()
    x[3], y[5] = bad, bad
    with pytest.raises(ValueError, match=r"X: got an infinite number in column 0|X: got missing cells \(NaN\)"):
        NadarayaWatson(bandwidth="loo").fit(x, Y)
    with pytest.raises(ValueError, match=r"y: got missing values \(NaN\)|Input y contains infinity"):
        NadarayaWatson(bandwidth="loo").fit(X, y)
    with pytest.raises(ValueError, match=r"Input sample_weight contains (NaN|infinity)"):
        NadarayaWatson(bandwidth="loo").fit(X, Y, sample_weight=y)
    with pytest.raises(ValueError, match=r"X: got an infinite number in column 0|X: got missing cells \(NaN\)"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).predict(x)


@EVERY
@BOTH
def test_one_point(kernel, order):
    model = NadarayaWatson(kernel, order=order, bandwidth="loo").fit([[2.0, 3.0]], [7.0])
    _assert_sensible(model, [[2.0, 3.0], [2.5, 3.0], [9.0, -9.0]], 7, 7)
    assert model.predict([[2.0, 3.0]], return_std=True)[1] == 0
    assert np.isinf(model.confidence_interval([[2.0, 3.0]])).all()
    assert model.effective_degrees_of_freedom() == pytest.approx(1)


@EVERY
@BOTH
def test_fewer_points_than_features(kernel, order):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 11)), random.normal(size=5)
    model = NadarayaWatson(kernel, order=order, bandwidth="loo").fit(x, y)
    span = np.ptp(y)
    _assert_sensible(model, np.vstack([x, random.normal(size=(7, 11))]), y.min() - 2 * span, y.max() + 2 * span)


@EVERY
@BOTH
def test_all_y_equal(kernel, order):
    model = NadarayaWatson(kernel, order=order, bandwidth="loo").fit(X, np.full(23, 0.1))
    _assert_sensible(model, [[-1.0], [1.1], [7.0]], 0.1, 0.1)


@EVERY
@BOTH
def test_all_x_equal(kernel, order):
    y = np.arange(5.0)
    model = NadarayaWatson(kernel, order=order, bandwidth="loo").fit(np.full((5, 2), 0.1), y)
    _assert_sensible(model, [[0.1, 0.1], [0.2, 0.1], [50.0, 1.0]], 2, 2)
    left_out = y - (y.sum() - y) / 4
    np.testing.assert_allclose(model.predict([[0.1, 0.1]], return_std=True)[1], np.sqrt(np.mean(left_out**2)))


@EVERY
@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("constant", [0.0, -0.1, 1e6])
@pytest.mark.parametrize("rule", ["scott", "loo"])
def test_another_number_in_a_constant_column(kernel, order, dtype, constant, rule):
    """It has no influence."""
    both = np.hstack([X, np.full_like(X, constant)]).astype(dtype)
    model = NadarayaWatson(kernel, bandwidth=rule, order=order).fit(both, Y)
    expected = model.predict(both)
    both[:, 1] += 7 * max(abs(constant), 1)
    np.testing.assert_allclose(model.predict(both), expected, atol=1e-6 if dtype == np.float64 else 1e-4)


@EVERY
@BOTH
@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_numbers_of_any_size(kernel, order, scale):
    """Units change nothing."""
    expected = NadarayaWatson(kernel, bandwidth="scott", order=order).fit(X, Y)
    found = NadarayaWatson(kernel, bandwidth="scott", order=order).fit(scale * X, Y)
    np.testing.assert_allclose(found.predict(scale * X), expected.predict(X), rtol=1e-6, atol=1e-9)


@EVERY
@BOTH
@pytest.mark.parametrize("scale", [2.0**-300, 2.0**450])
def test_values_of_any_size(kernel, order, scale):
    """The search too: its slopes are squared, and those are of squares."""
    settings = {"kernel": kernel, "order": order}
    expected, found = NadarayaWatson(**settings).fit(X, Y), NadarayaWatson(**settings).fit(X, scale * Y)
    np.testing.assert_array_equal(found.bandwidth_, expected.bandwidth_)
    for one, other in zip(found.predict(X, return_std=True), expected.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(one, scale * other, rtol=1e-12)


@EVERY
@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["X", "y", "sample_weight"])
def test_numbers_whose_sums_or_squares_would_be_infinite(kernel, order, dtype, name):
    """One clear error before the work, and no warning of overflow."""
    huge = float(np.finfo(dtype).max) / 2
    given = {"X": X.astype(dtype), "y": Y, "sample_weight": np.ones(23)}
    given[name] = given[name].copy()
    given[name][3:5] = huge
    if name != "sample_weight":
        given[name][5] = -huge
    with pytest.raises(ValueError, match=rf"^{name}: got .*; expected .*, the limit of {np.dtype(dtype)}"):
        NadarayaWatson(kernel, order=order, bandwidth="loo").fit(**given)


@EVERY
@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_query_at_the_end_of_all_numbers(kernel, order, dtype):
    """All rows are as near to it as the dtype can tell; what float32 cannot hold is refused."""
    huge = float(np.finfo(dtype).max)
    model = NadarayaWatson(kernel, order=order, bandwidth=1.0).fit(X.astype(dtype), Y)
    np.testing.assert_allclose(model.predict([[huge], [-huge]]), Y.mean(), rtol=1e-5)
    if dtype == np.float32:
        with pytest.raises(ValueError, match=r"^X: got 1e\+39; expected at most .*, the limit of float32"):
            model.predict([[1e39]])


@pytest.mark.parametrize(
    "bandwidth", [0, 0.0, -1.0, np.nan, np.inf, [1.0, 0.0], [], "wide", "0.5", None, True, object()]
)
def test_a_bandwidth_that_is_none(bandwidth):
    message = r"bandwidth: got .*; expected a positive number in the units of X, .*'silverman', 'scott', 'auto'"
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(bandwidth=bandwidth).fit(np.hstack([X, X]), Y)


def test_a_bandwidth_that_does_not_fit():
    with pytest.raises(ValueError, match=r"bandwidth: got shape \(2,\); expected a number, or \(1,\)"):
        NadarayaWatson(bandwidth=[1.0, 2.0]).fit(X, Y)
    for dtype, sigma in ((np.float32, 1e-60), (np.float32, 1e-40), (np.float32, 1e39), (np.float64, 1e-310)):
        message = f"bandwidth: got {sigma}; expected numbers from {np.finfo(dtype).tiny} to "
        with pytest.raises(ValueError, match=re.escape(message)):
            NadarayaWatson(bandwidth=sigma).fit(X.astype(dtype), Y)
        least = float(np.finfo(dtype).tiny)
        found = NadarayaWatson(bandwidth=least).fit(X.astype(dtype), Y).predict(X.astype(dtype))
        np.testing.assert_allclose(found, Y, atol=1e-7)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("kernel", "cosine"), ("kernel", None), ("order", "quadratic"), ("order", 1), ("kernel", "boxcar"),
        ("bandwidth", "gcv"),
    ],
)  # fmt: skip
def test_settings_that_are_not_allowed(setting, value):
    with pytest.raises(ValueError, match=rf"^{setting}: got .*; expected "):
        NadarayaWatson(**{setting: value}).fit(X, Y)


def test_tensors_of_another_device_are_refused():
    elsewhere = torch.empty(len(X), 1, device="meta")  # as one on a GPU is
    with pytest.raises(TypeError, match="can't convert meta device type tensor to numpy"):
        NadarayaWatson(bandwidth=1.0).fit(elsewhere, Y)
    with pytest.raises(TypeError, match="can't convert meta device type tensor to numpy"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).predict(elsewhere)


def test_sample_weights():
    with pytest.raises(ValueError, match="sample_weight: got only zeros; expected"):
        NadarayaWatson(bandwidth="loo").fit(X, Y, sample_weight=np.zeros(23))
    with pytest.raises(ValueError, match=r"sample_weight: got -1.0; expected numbers of at least 0"):
        NadarayaWatson(bandwidth="loo").fit(X, Y, sample_weight=np.r_[-1.0, np.ones(22)])
    with pytest.raises(ValueError, match=r"sample_weight: got shape \(22,\); expected \(23,\)"):
        NadarayaWatson(bandwidth="loo").fit(X, Y, sample_weight=np.ones(22))
    expected = NadarayaWatson(bandwidth=1.0).fit(X, Y).predict(X)
    np.testing.assert_allclose(NadarayaWatson(bandwidth=1.0).fit(X, Y, sample_weight=3).predict(X), expected)


@pytest.mark.parametrize("level", [0, 1, -0.1, 95, np.nan, "high", None])
def test_levels(level):
    with pytest.raises(ValueError, match=r"level: got .*; expected a number between 0 and 1"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).confidence_interval(X, level=level)


@pytest.mark.parametrize("top_k", [0, -1, 1.5, True, "all"])
def test_top_k(top_k):
    with pytest.raises(ValueError, match=r"top_k: got .*; expected a whole number of at least 1"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).attention_weights(X, top_k=top_k)


DAYS = pd.date_range("2024-01-01", periods=23)


@pytest.mark.parametrize("missing", ["refuse", "indicator"])
@pytest.mark.parametrize(("y", "found"), [
    (DAYS.to_series(), "datetime64"), (DAYS.to_numpy()[:, None], "datetime64"), (pl.Series(DAYS), "datetime64"),
    (DAYS.tz_localize("UTC").to_series(), "Timestamp"), (DAYS.date.tolist(), "datetime.date"),
    (pd.DataFrame({"a": Y, "b": DAYS}), "Timestamp"), (np.ma.array(DAYS, mask=np.arange(23) == 3), "datetime64"),
    (DAYS - DAYS[0], "timedelta64"), ((DAYS - DAYS[0]).to_pytimedelta(), "datetime.timedelta"),
])  # fmt: skip
def test_dates_and_durations_are_no_targets(y, found, missing):
    with pytest.raises(ValueError, match=rf"^y: got {found}.*; expected numbers$"):
        KernelRegressor(bandwidth=1.0, missing=missing).fit(X, y)


def test_texts_and_categories_as_targets():
    with pytest.raises(ValueError, match=r"^y: got 'a'; expected numbers \(for classes use KernelClassifier\)$"):
        KernelRegressor(bandwidth=1.0).fit(X, ["a"] * 23)
    levels = pd.Categorical(np.arange(23) % 3)
    expected = KernelRegressor(bandwidth=1.0).fit(X, np.arange(23) % 3).y_train_
    np.testing.assert_array_equal(KernelRegressor(bandwidth=1.0).fit(X, levels).y_train_, expected)
    with pytest.raises(ValueError, match=r"y: got missing values \(NaN\)"):
        KernelRegressor(bandwidth=1.0).fit(X, pd.array([None, *range(22)], "Int64"))


def test_values_whose_squares_are_nothing():
    x = np.arange(9.0)[:, None]
    with pytest.raises(ValueError, match=r"^y: got values at most 8e-170 apart; expected at least 1e-150"):
        NadarayaWatson().fit(x, 1e-170 * x[:, 0])


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_band_of_a_few_rows_is_infinite(rows):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=rows)
    for end in NadarayaWatson(bandwidth="scott").fit(x, y).confidence_interval(x):
        assert not ((np.abs(end) > 1e6) & np.isfinite(end)).any()


def test_lazy_frames_and_turned_queries():
    frame = pl.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 1.0, 2.0]})
    with pytest.raises(InputError, match=r"^X: got a LazyFrame; expected a frame in memory; call `\.collect\(\)`"):
        NadarayaWatson().fit(frame.lazy(), [1.0, 2.0, 3.0])
    x = frame.to_numpy()
    model = NadarayaWatson(bandwidth=1.0).fit(x, x[:, 0])
    np.testing.assert_array_equal(model.predict(x[:, ::-1]), model.predict(x[:, ::-1].copy()))
