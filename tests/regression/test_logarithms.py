"""Logarithms of skewed columns, compared with fits to columns whose logarithms were taken before."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import PredefinedSplit

from dikkat.regression import KernelRegressor, NadarayaWatson, estimator, smooth
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


@pytest.mark.filterwarnings("ignore:X. got .* rows beyond")
def test_below_all_rows_the_logarithm_continues_as_its_tangent(models):
    logs, auto, of_logs = models
    least = logs.min(0)
    cells = np.exp(least) * [[0.0, 0.2], [0.7, 0.9]]
    tangent = least + cells / np.exp(least) - 1
    np.testing.assert_allclose(auto.predict(cells), of_logs.predict(tangent))
    np.testing.assert_allclose(auto.predict_interval(cells), of_logs.predict_interval(tangent))
    np.testing.assert_allclose(auto.confidence_interval(cells), of_logs.confidence_interval(tangent))
    for answer, expected in zip(auto.gradient(cells, True), of_logs.gradient(tangent, True), strict=True):
        np.testing.assert_allclose(answer, expected / np.exp(least))
    for answer, expected in zip(auto.derivative(cells, 0), of_logs.derivative(tangent, 0), strict=True):
        np.testing.assert_allclose(answer, expected / np.exp(least[0]))


@pytest.mark.filterwarnings("ignore:X. got .* rows beyond")
def test_numbers_below_0_count_as_0_and_have_no_slope(models):
    _, auto, _ = models
    np.testing.assert_array_equal(auto.predict([[-3.0, 1.0]]), auto.predict([[0.0, 1.0]]))
    slope, error = auto.gradient([[-3.0, 1.0]], return_std=True)
    np.testing.assert_array_equal(np.isnan([slope, error]), [[[True, False]]] * 2)
    derivative, lower, upper = auto.derivative([[-3.0, 1.0]], 0)
    assert (np.isnan(derivative).all(), lower, upper) == (True, -np.inf, np.inf)
    assert auto.log_density([[-3.0, 1.0]]) == -np.inf


def test_rows_beyond_the_data_are_those_of_the_logarithms(models):
    logs, auto, _ = models
    least, greatest = logs.min(0), logs.max(0)
    margin = 0.1 * (greatest - least)
    inside = np.exp([greatest + 0.9 * margin, logs.mean(0)])
    auto.predict_interval(inside)  # no warning
    for beyond in (np.exp(greatest + 1.1 * margin), np.exp(least) * (1 - 1.1 * margin), [-1e-9, 1.0]):
        with pytest.warns(UserWarning, match="got 1 of 3 rows beyond"):
            auto.predict_interval([*inside, beyond])


@pytest.fixture(scope="module")
def dose():
    """A curve with its minimum near e⁻², far below the middle of the doses, in two groups."""
    random = np.random.default_rng(7)
    logs = random.normal(0, 2, 120)
    group = np.repeat(["a", "b"], 60)
    y = (logs + 2) ** 2 + (group == "b") * logs + 0.3 * random.normal(size=120)
    return logs, group, y


def test_minima_are_those_of_the_logarithms(dose):
    logs, _, y = dose
    auto, of_logs = (
        KernelRegressor().fit(np.exp(logs)[:, None], y),
        KernelRegressor(logarithms=None).fit(logs[:, None], y),
    )
    assert auto.columns_[0].log
    np.testing.assert_allclose(np.log(auto.argmin()), of_logs.argmin(), atol=1e-3)
    np.testing.assert_allclose(np.log(smooth(np.exp(logs), y, logarithms="auto").x), smooth(logs, y).x)


def test_differences_of_groups_are_those_of_the_logarithms(dose):
    logs, group, y = dose
    auto = KernelRegressor().fit(pd.DataFrame({"dose": np.exp(logs), "group": group}), y)
    of_logs = KernelRegressor(logarithms=None).fit(pd.DataFrame({"dose": logs, "group": group}), y)
    band, expected = auto.difference("group"), of_logs.difference("group")
    np.testing.assert_allclose(np.log(band.x), expected.x, atol=1e-12)
    np.testing.assert_allclose([band.y, band.lower, band.upper], [expected.y, expected.lower, expected.upper])


def test_similar_rows_are_those_of_the_logarithms(models):
    _, auto, of_logs = models
    similar, expected = auto.nearest(np.exp(QUERIES), k=31), of_logs.nearest(QUERIES, k=31)
    assert similar["row"].tolist() == expected["row"].tolist()
    np.testing.assert_allclose(similar["differs by"], expected["differs by"])


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


def test_a_sample_of_the_rows_of_folds_chooses_logarithms(monkeypatch):
    sizes = []
    monkeypatch.setattr(estimator, "chosen_bandwidths", raise_interrupted)
    monkeypatch.setattr(estimator, "rough_error", lambda joined, *_: sizes.append(len(joined.unique_index)) or 1.0)
    logs, y = skewed(2011)
    for cv in (None, 3):
        model = KernelRegressor(bandwidth="loo", cv=cv)
        with pytest.raises(InterruptedError):  # before the search
            model.fit(np.exp(logs), y)
    assert sizes == [2011, 2011, 2000, 2000]


def raise_interrupted(*_):
    raise InterruptedError
