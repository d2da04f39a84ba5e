import math
import pickle
import re
import warnings

import dense
import numpy as np
import pytest
from sklearn.neighbors import KernelDensity
from sklearn.utils.estimator_checks import parametrize_with_checks

from crossings.slow_regression import Slow
from dikkat.errors import InputError
from dikkat.regression import KernelClassifier, KernelRegressor, NadarayaWatson, progress
from dikkat.regression.diagnostics import hold_out

ROWS, QUERIES, SIZE = 37, 11, 3
SIGMA = np.array([1.7, 2.3, 3.1])


def _data(outputs=(), seed=0, dtype=np.float64):
    random = np.random.default_rng(seed)
    x, query = random.uniform(0, 4, (ROWS, SIZE)), random.uniform(0, 4, (QUERIES, SIZE))
    y = random.normal(size=(ROWS, *outputs)) + np.sin(x[:, 0]).reshape(-1, *(1 for _ in outputs))
    return x.astype(dtype), y.astype(dtype), query.astype(dtype), random.integers(0, 4, ROWS).astype(float)


def _searched():
    """Both kernels and orders, with a search and with a rule."""
    return [KernelRegressor(), NadarayaWatson("epanechnikov"), NadarayaWatson(bandwidth="scott")]


@parametrize_with_checks(_searched(), expected_failed_checks=dense.expected_failures)
def test_scikit_learn_checks(estimator, check):
    with dense.short_searches():
        check(estimator)


# --- answers


@pytest.mark.parametrize("order", dense.ORDERS)
def test_an_offset_of_y_costs_no_digits(order):
    x, y, query, _ = _data()
    model = NadarayaWatson(bandwidth=SIGMA, order=order, ridge=0)
    expected = model.fit(x, y).predict(query, return_std=True)
    found = model.fit(x, y + 1e9).predict(query, return_std=True)
    np.testing.assert_allclose(found[0] - 1e9, expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_float32_stays_and_is_near(order):
    x, y, query, _ = _data(dtype=np.float32)
    model = NadarayaWatson(bandwidth=SIGMA, order=order, ridge=0).fit(x, y)
    wide = NadarayaWatson(bandwidth=SIGMA, order=order, ridge=0).fit(x.astype(float), y)
    answers = [model.predict(query), *model.confidence_interval(query), model.attention_weights(query)]
    answers += [model.effective_neighbors(query), model.log_density(query), model.predict(query.astype(float))]
    assert {answer.dtype for answer in answers} == {np.dtype(np.float32)}
    np.testing.assert_allclose(answers[0], wide.predict(query), atol=1e-4)
    np.testing.assert_allclose(answers[1], wide.confidence_interval(query)[0], atol=1e-4)
    assert model.bandwidth_.dtype == np.float64


@pytest.mark.parametrize("ridge", ["auto", 0.0])
@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_beyond_the_data_lines_are_the_plane_and_doubt_grows(order, ridge, seed):
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, 1, 100))[:, None]
    y = np.sin(20 * x[:, 0]) + 0.2 * random.normal(size=100)
    model = NadarayaWatson(order=order, ridge=ridge, bandwidth="loo").fit(x, y)
    query = np.append(x[-1], np.linspace(1.0, 2.0, 40))[:, None]
    mean, deviation = model.predict(query, return_std=True)
    lower, upper = model.confidence_interval(query)
    if ridge == "auto" or order == "constant":
        assert np.abs(mean).max() < 2
        assert mean[-1] == pytest.approx(y[-1] if order == "constant" else mean[-2], abs=0.3)
    assert (np.diff(deviation) > 0).all()
    assert (np.diff(upper - lower) > 0).all()


def test_the_ridge_is_found_with_the_bandwidth():
    """A line through everything is the plane; of noise nothing of a slope is left."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (60, 3))
    noise = random.normal(size=60)
    straight = NadarayaWatson(order="linear", bandwidth="loo").fit(x, 5 * x.sum(1) + 0.1 * noise)
    np.testing.assert_allclose(straight.predict(x), 5 * x.sum(1), atol=0.1)
    assert NadarayaWatson(order="linear", bandwidth="loo").fit(x, noise).ridge_ > 10
    assert NadarayaWatson(order="linear", bandwidth=1.0).fit(x, noise).ridge_ == 0.25
    assert NadarayaWatson(order="linear", bandwidth=1.0, ridge=3).fit(x, noise).ridge_ == 3
    assert NadarayaWatson(ridge=3, bandwidth="loo").fit(x, noise).ridge_ == 0


def _decades(dtype=np.float64, weights=False):
    """Values over nine decades, each place with noise of a hundredth."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 10, 1009)).astype(dtype)[:, None]
    y = 10 ** (0.9 * x.astype(float)) * (1 + 0.01 * random.normal(size=(1009, 2)))
    y[:, 1] *= np.where(random.uniform(size=1009) < 0.5, -1, 1)  # of both signs too
    return x, y, random.integers(1, 4, 1009).astype(float) if weights else np.ones(1009)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", ["gaussian", *dense.COMPACT])
def test_deviations_keep_their_digits_where_values_elsewhere_are_larger_by_decades(kernel, order, weights):
    x, y, weight = _decades(weights=weights)
    sigma, query = 0.02 if kernel == "gaussian" else 0.07, np.linspace(0.3, 9.7, 31)[:, None]
    model = NadarayaWatson(kernel, bandwidth=sigma, order=order, ridge=0).fit(x, y, weight)
    slow = Slow(model)
    lower, upper = model.confidence_interval(query)
    np.testing.assert_allclose(model.predict(query, return_std=True)[1], slow.std(query), rtol=1e-6)
    np.testing.assert_allclose((lower, upper), slow.confidence_interval(query, 0.95), rtol=1e-6)
    assert 0 < (upper - lower)[0, 0] < 0.5  # as wide as the noise of its own neighbours makes it


@pytest.mark.parametrize("order", dense.ORDERS)
def test_a_huge_value_elsewhere_costs_no_digits_in_float32(order):
    """The error budget of each query is its own: eps times the values that it weighs."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (199, 1)).astype(np.float32)
    y = np.sin(6 * x) + 0.1 * random.normal(size=x.shape)
    x[100], y[100] = 0.5, 1e9
    query = np.linspace(0, 0.3, 17).astype(np.float32)[:, None]
    found = NadarayaWatson(bandwidth=0.02, order=order).fit(x, y).predict(query, return_std=True)
    expected = NadarayaWatson(bandwidth=0.02, order=order).fit(x.astype(float), y).predict(query, return_std=True)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_the_nearest_rows_deviate_by_their_own_errors_and_the_distance(order):
    x, y = np.array([[0.0], [0.5], [9.0]]), np.array([1.0, 3.0, 1e12])
    model = NadarayaWatson("epanechnikov", bandwidth=1.0, order=order, ridge=0).fit(x, y)
    mean, deviation = model.predict([[2.0], [3.0], [4.0]], return_std=True)
    np.testing.assert_allclose(mean, [3, 3, 3], rtol=1e-15)
    np.testing.assert_allclose(np.diff(deviation**2, 2) > 0, True)
    assert 2 < deviation[0] < 20


def test_the_band_holds_what_it_says():
    random, held = np.random.default_rng(0), []
    x, query = np.linspace(0, 1, 200)[:, None], np.array([[0.25], [0.5], [0.75]])
    for _ in range(300):
        y = 3 * x[:, 0] + random.normal(size=200)  # a line has no bias
        lower, upper = NadarayaWatson(bandwidth=0.1, order="linear").fit(x, y).confidence_interval(query, level=0.8)
        held.append((lower < 3 * query[:, 0]) & (3 * query[:, 0] < upper))
    assert np.mean(held) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_the_band_is_infinite_where_nothing_is_left_to_measure_noise_by(order):
    model = NadarayaWatson("epanechnikov", bandwidth=0.6, order=order).fit([[2.0], [2.0]], [1.0, 1.0], [1.0, 0.0])
    lower, upper = model.confidence_interval([[2.0]])
    assert (lower[0], upper[0]) == (-math.inf, math.inf)


def test_attention_in_parts(monkeypatch):
    x, y, query, weight = _data()
    model = NadarayaWatson(bandwidth=SIGMA, order="linear").fit(x, y, sample_weight=weight)
    expected = model.attention_weights(query), model.attention_weights(query, top_k=3), model.predict(query)
    monkeypatch.setattr("dikkat.regression.local._ELEMENTS", 100)
    np.testing.assert_array_equal(model.attention_weights(query), expected[0])
    assert (model.attention_weights(query, top_k=3) != expected[1]).nnz == 0
    np.testing.assert_allclose(model.predict(query), expected[2], rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "theirs"), [("gaussian", "gaussian"), ("epanechnikov", "epanechnikov")])
def test_log_density_is_scikit_learns(kernel, theirs, size):
    x, y, query, weight = _data()
    weight[0], query[0] = 1, x[0]
    found = NadarayaWatson(kernel, bandwidth=1.3).fit(x[:, :size], y, sample_weight=weight).log_density(query[:, :size])
    density = KernelDensity(kernel=theirs, bandwidth=1.3).fit(x[weight > 0, :size], sample_weight=weight[weight > 0])
    expected = density.score_samples(query[:, :size])
    reached = expected > -100  # a place out of reach has log 0 here, and there a large number
    np.testing.assert_allclose(found[reached], expected[reached], rtol=1e-6)
    assert (found[~reached] == -math.inf).all()


def test_bandwidths_scale_the_density():
    x, y, query, _ = _data()
    scaled = NadarayaWatson(bandwidth=1.0).fit(x / SIGMA, y).log_density(query / SIGMA)
    found = NadarayaWatson(bandwidth=SIGMA).fit(x, y).log_density(query)
    np.testing.assert_allclose(found, scaled - np.log(SIGMA).sum(), rtol=1e-10)


# --- far away


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("distance", [1e3, 1e6, 1e12, 1e19, 1e25])
def test_far_from_all_data_the_nearest_answer(order, dtype, distance):
    x = np.array([[0.0, 0.0], [1.0, 0.5], [3.0, 3.0]], dtype)
    model = NadarayaWatson(bandwidth=[1.0, 2.0], order=order).fit(x, [5.0, -2.0, 7.0])
    query = np.array([[-distance, 0.0], [distance, 0.0]], dtype)
    mean, deviation = model.predict(query, return_std=True)
    told_apart = distance * np.finfo(dtype).eps < 1  # beyond, all rows are as near
    np.testing.assert_allclose(model.predict(query), [5, 7] if told_apart else 10 / 3, rtol=1e-6)
    assert (np.isfinite(mean) & (mean >= -2) & (mean <= 7)).all()
    assert (np.isfinite(deviation) & (deviation >= 0)).all()
    assert not np.isnan(model.confidence_interval(query)).any()
    assert (model.effective_neighbors(query) >= 1).all()
    np.testing.assert_allclose(model.attention_weights(query).sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("kernel", dense.COMPACT)
def test_out_of_reach_of_a_kernel_that_ends(kernel):
    x, y = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 9.0]]), np.array([1.0, 2.0, 6.0, 5.0])
    query = np.array([[0.0, 0.0], [7.0, 0.0], [1.5, 30.0]])
    model = NadarayaWatson(kernel, bandwidth=[1.0, 9.5]).fit(x, y, sample_weight=[1, 3, 1, 1])
    assert model.log_density(query)[1:].tolist() == [-math.inf] * 2
    found, deviation = model.predict(query, return_std=True)
    np.testing.assert_allclose(found[1:], [3.0, 5.0])
    assert (deviation[1:] > 10).all()  # several bandwidths off, that is far
    np.testing.assert_allclose(model.attention_weights(query)[1:], [[0, 0.75, 0.25, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(model.attention_weights(query, top_k=1).toarray()[1:], [[0, 0.75, 0, 0], [0, 0, 0, 1]])
    assert model.effective_neighbors(query)[1:].tolist() == [4, 1]
    assert np.isinf(model.confidence_interval(query)[0][1:]).all()


def test_places_as_near_share_the_answer():
    model = NadarayaWatson("epanechnikov", bandwidth=0.1).fit([[0.0], [2.0]], [1.0, 4.0], [1, 2])
    np.testing.assert_allclose(model.predict([[1.0]]), 3.0)


# --- scikit-learn's ways


@pytest.mark.parametrize(
    ("fitted", "changed"),
    [
        ({"kernel": "epanechnikov"}, {"kernel": "gaussian"}),
        ({"order": "constant"}, {"order": "linear"}),
        ({"support": None}, {"support": (-4, 4)}),
    ],
)
def test_settings_of_answers_are_the_fitted_ones(fitted, changed, tmp_path):
    """A change takes effect with the next fit, and is in no file before."""
    x, y, query, _ = _data()
    query[0] = 99
    model = NadarayaWatson(bandwidth=SIGMA, **fitted).fit(x, y)
    methods = ["predict", "confidence_interval", "attention_weights", "effective_neighbors", "log_density"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [getattr(model, name)(query) for name in methods]
        model.set_params(**changed)
        model.save(tmp_path / "model")
        for other in (model, pickle.loads(pickle.dumps(model)), NadarayaWatson.load(tmp_path / "model")):
            for name, answer in zip(methods, expected, strict=True):
                np.testing.assert_array_equal(getattr(other, name)(query), answer)
        anew = model.fit(x, y).predict(query)
    np.testing.assert_array_equal(anew, NadarayaWatson(bandwidth=SIGMA, **changed).fit(x, y).predict(query))


@pytest.mark.parametrize("changed", [{"bandwidth": 9.0}, {"order": "constant"}, {"ridge": 0.0}], ids=str)
def test_refits_have_the_settings_of_fit(changed):
    x, y, query, _ = _data()
    model = KernelRegressor(bandwidth="loo", cv=5).fit(x, y)

    def answers():
        return [model.summary().held_out.predicted, hold_out(model).predicted]

    expected = answers()
    model.set_params(**changed)
    np.testing.assert_array_equal(answers(), expected)
    model = KernelRegressor().fit(x, y)
    expected = model.predict_interval(query, method="split")
    np.testing.assert_array_equal(model.set_params(**changed).predict_interval(query, method="split"), expected)


def test_a_report_has_the_settings_of_fit(tmp_path):
    x, y, _, _ = _data()
    model = KernelRegressor(bandwidth=SIGMA, support=(-40, None)).fit(x, y)
    model.report(tmp_path / "before.html", folds=2)
    model.set_params(order="constant", support=None).report(tmp_path / "after.html", folds=2)
    before, after = ((tmp_path / f"{name}.html").read_text() for name in ("before", "after"))
    assert before[before.index("worst predicted") :] == after[after.index("worst predicted") :]


@pytest.mark.parametrize("bandwidth", [list(SIGMA), np.array(SIGMA)], ids=["list", "array"])
def test_a_bandwidth_that_changes_after_fit(bandwidth):
    x, y, query, _ = _data()
    model = KernelRegressor(bandwidth=bandwidth).fit(x, y)
    expected = model.predict_interval(query, method="split")
    bandwidth[0] = 99.0
    np.testing.assert_array_equal(model.predict_interval(query, method="split"), expected)


@pytest.mark.parametrize("kind", [KernelRegressor, KernelClassifier])
def test_progress_is_shown_on_request(kind, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    x, y, _, _ = _data()
    kind().fit(x, y > y.mean())
    assert capsys.readouterr().err == ""
    model = kind(verbose=True).fit(x, y > y.mean())
    for step in ("finding the bandwidth", "holding out 2 folds"):
        shown = capsys.readouterr().err.splitlines()
        assert shown
        assert all(re.fullmatch(rf"{step}: \d+\.\d passes over all pairs of rows, \d+ s", text) for text in shown)
        model.summary(folds=2)
    assert "holding" in capsys.readouterr().err
    model.summary(folds=0)
    assert capsys.readouterr().err == ""


def test_pickles_hold_no_torch_and_answer_the_same():
    x, y, query, weight = _data()
    model = NadarayaWatson(order="linear", bandwidth="loo").fit(x, y, sample_weight=weight)
    data = pickle.dumps(model)
    assert b"torch" not in data
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.predict(query), model.predict(query))
    pickle.loads(pickle.dumps(NadarayaWatson(bandwidth="loo"))).fit(x, y)
    old = model.__getstate__() | {"_version": 5}
    with pytest.raises(InputError, match=r"pickle: got a NadarayaWatson of another version .*: fit again"):
        NadarayaWatson().__setstate__(old)
