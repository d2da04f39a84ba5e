"""Logarithms of skewed columns, compared with fits to columns whose logarithms were taken before."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import PredefinedSplit

from dikkat.regression import KernelRegressor, NadarayaWatson, smooth
from dikkat.regression.diagnostics import curve_along, hold_out
from dikkat.regression.files import load_model


def skewed(count=31, seed=0):
    random = np.random.default_rng(seed)
    logs = random.normal(0, 1.5, (count, 2))
    y = logs @ [1, -0.5] + np.sin(logs[:, 0]) + 0.2 * random.normal(size=count)
    return logs, y


@pytest.fixture(scope="module")
def models():
    logs, y = skewed()
    return logs, KernelRegressor().fit(np.exp(logs), y), KernelRegressor(logarithms=None).fit(logs, y)


QUERIES = np.array([[0.3, -0.4], [-1.1, 0.7], [0.9, 1.3]])


def test_answers_are_those_of_logarithms_in_the_units_of_the_columns(models):
    _, auto, of_logs = models
    cells = np.exp(QUERIES)
    assert [bool(column.log) for column in auto.columns_] == [True, True]
    np.testing.assert_allclose(auto.bandwidth_, of_logs.bandwidth_)
    np.testing.assert_allclose(auto.predict(cells), of_logs.predict(QUERIES))
    for method in ("jackknife+", "local"):
        expected = of_logs.predict_interval(QUERIES, method=method)
        np.testing.assert_allclose(auto.predict_interval(cells, method=method), expected)
    np.testing.assert_allclose(auto.confidence_interval(cells), of_logs.confidence_interval(QUERIES))
    for answer, expected in zip(auto.gradient(cells, True), of_logs.gradient(QUERIES, True), strict=True):
        np.testing.assert_allclose(answer, expected / cells)
    for answer, expected in zip(auto.derivative(cells, 0), of_logs.derivative(QUERIES, 0), strict=True):
        np.testing.assert_allclose(answer, expected / cells[:, 0])
    density = of_logs.log_density(QUERIES) - QUERIES.sum(1)
    np.testing.assert_allclose(auto.log_density(cells), density)


def test_a_number_below_all_rows_counts_as_the_smallest(models):
    logs, auto, of_logs = models
    least = logs.min(0)
    np.testing.assert_allclose(auto.predict([[0.0, -3.0], np.exp(least)]), np.tile(of_logs.predict([least]), 2))
    np.testing.assert_array_equal(auto.gradient([[1e-9, 1e-9]]), [[0.0, 0.0]])


def test_a_column_with_zeros_has_its_smallest_positive_number_added():
    logs, y = skewed()
    cells = np.exp(logs)
    cells[[3, 11], 0], y[[3, 11]] = 0.0, -3.0
    offset = cells[cells[:, 0] > 0, 0].min()
    auto, cell_logs = KernelRegressor().fit(cells, y), np.log(cells + np.array([offset, 0]))
    other = KernelRegressor(logarithms=None).fit(cell_logs, y)
    np.testing.assert_allclose(auto.predict(cells), other.predict(cell_logs))


@pytest.mark.filterwarnings("ignore:X. got rows at")
@pytest.mark.parametrize("change", ["negative", "few values", "symmetric", "better as it is"])
def test_columns_without_need_of_a_logarithm_stay(change):
    logs, y = skewed()
    cells = {
        "negative": np.exp(logs) - 1, "few values": np.exp(np.clip(logs.round(), -1, 3)), "symmetric": logs + 9,
        "better as it is": np.exp(logs),
    }[change]  # fmt: skip
    if change == "better as it is":
        y = cells @ [1, 2] + 0.1 * y
    auto, plain = (KernelRegressor(logarithms=logarithms).fit(cells, y) for logarithms in ("auto", None))
    assert auto.columns_ == plain.columns_ == ()
    np.testing.assert_array_equal(auto.predict(cells), plain.predict(cells))


def test_curves_have_even_steps_and_axes_of_the_logarithm(models):
    _, auto, of_logs = models
    curve, expected = curve_along(auto, 1, "x1"), curve_along(of_logs, 1, "x1")
    np.testing.assert_allclose(np.log(curve.at), expected.at, atol=1e-12)
    assert curve.at[-1] > 20 * curve.at[0]
    assert {axes.get_xscale() for axes in auto.plot().axes} == {"log"}


def test_held_out_rows_do_not_choose_logarithms():
    logs, y = skewed()
    cells, fold = np.exp(logs), np.arange(len(y)) % 2
    model = KernelRegressor().fit(cells, y)
    predicted = hold_out(model, PredefinedSplit(fold)).predicted
    for k in (0, 1):
        half = KernelRegressor().fit(cells[fold != k], y[fold != k])
        np.testing.assert_allclose(predicted[fold == k], half.predict(cells[fold == k]))


def test_weights_count_repeats():
    logs, y = skewed()
    weight = np.random.default_rng(1).integers(0, 3, len(y))
    model = KernelRegressor().fit(np.exp(logs), y, sample_weight=weight)
    repeats = np.repeat(np.arange(len(y)), weight)
    repeated = KernelRegressor().fit(np.exp(logs)[repeats], y[repeats])
    np.testing.assert_allclose(model.predict(np.exp(QUERIES)), repeated.predict(np.exp(QUERIES)), rtol=1e-6)


def test_frames_with_gaps_and_folds_and_files(tmp_path):
    logs, y = skewed()
    frame = pd.DataFrame(np.exp(logs), columns=["area", "age"])
    frame.iloc[::9, 0] = np.nan
    model = KernelRegressor(missing="indicator", cv=4).fit(frame, y)
    assert model.columns_[1].log
    assert "of its logarithm" in str(model.summary(folds=2))
    model.save(tmp_path / "model.safetensors")
    loaded = load_model(KernelRegressor, tmp_path / "model.safetensors")
    assert loaded.columns_ == model.columns_
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))


def test_estimators_that_keep_their_units():
    logs, y = skewed()
    cells = np.exp(logs)
    assert NadarayaWatson().fit(cells, y).columns_ == ()
    assert KernelRegressor(bandwidth=1.0).fit(cells, y).columns_ == ()
    curve = smooth(cells[:, 0], y)
    np.testing.assert_allclose(curve.bandwidth, smooth(cells[:, 0], y, logarithms=None).bandwidth)
    with pytest.raises(ValueError, match="logarithms: got 'log'; expected 'auto'"):
        KernelRegressor(logarithms="log").fit(cells, y)
