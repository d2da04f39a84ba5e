"""Bandwidths that are wider where rows are sparse, against their formulas one query at a time in NumPy."""

from dataclasses import replace

import dense
import numpy as np
import pandas as pd
import pytest

from dikkat.regression import NadarayaWatson, bandwidth
from dikkat.regression.criterion import Criterion
from dikkat.regression.diagnostics import hold_out
from dikkat.regression.joined import join
from dikkat.regression.nearest_neighbors import Factors
from dikkat.regression.smoother import Smoother

KERNELS = list(dense.KERNELS)
SIGMA = np.array([0.9, 1.3])


def _data(rows=53, seed=0):
    """Many rows near the origin, few far away; two of them at one place."""
    random = np.random.default_rng(seed)
    x = random.exponential(1.0, (rows, 2))
    x[1] = x[0]
    y = np.sin(x[:, 0]) + x[:, 1] / 3 + 0.3 * random.normal(size=rows)
    return x, y, random.uniform(0, 4, (11, 2)), random.integers(1, 4, rows).astype(float)


def _left_out(x, weight, count):
    """At each row without it; of two at one place the other stays."""
    single = ~((x[:, None] == x).all(2) & ~np.eye(len(x), dtype=bool)).any(1)
    without, there = (dense.factors(x, x, weight, count, at_rows=each) for each in (True, False))
    return np.where(single, without, there)


def _errors(order, x, y, sigma, weight, ridge):
    """Each row less its prediction from all others, by a fit of its own; `sigma` is one for each row."""
    errors = []
    for i, width in enumerate(sigma):
        others, added = np.arange(len(x)) != i, dense.penalty(order, x, width, weight, ridge)
        slope = dense.plane(x, y, weight, x[i]) if ridge else 0.0
        theta, _ = dense.ridged("gaussian", order, x[i], x[others], y[others], width, weight[others], added, slope)
        errors.append(y[i] - theta[0])
    return np.array(errors)


@pytest.mark.parametrize("count", [2, 5])
def test_factors(count):
    x, y, query, weight = _data()
    joined = join(x, y[:, None], weight)
    found = Factors(joined, count)
    np.testing.assert_allclose(found.at(query)[:, 0], dense.factors(query, x, weight, count), rtol=1e-12)
    np.testing.assert_allclose(found.at(x)[:, 1], dense.factors(x, x, weight, count), rtol=1e-12)
    left_out = _left_out(x, weight, count)
    np.testing.assert_allclose(found.left_out(joined)[joined.inverse, 0], left_out, rtol=1e-12)


@pytest.mark.parametrize("count", [2, 5, 19])
def test_factors_along_a_line(count):
    """Rows as far on one side as on the other among them, and queries on rows, between them and beyond."""
    x = np.random.default_rng(1).permutation(np.concatenate([np.arange(10.0), np.exp(np.arange(10) / 2) + 9]))[:, None]
    query, weight = np.linspace(-200, 400, 241)[:, None], np.ones(20)
    joined = join(x, x, weight)
    found = Factors(joined, count)
    np.testing.assert_allclose(found.at(query)[:, 0], dense.factors(query, x, weight, count), rtol=1e-12)
    np.testing.assert_allclose(found.left_out(joined)[joined.inverse, 0], _left_out(x, weight, count), rtol=1e-12)
    step = 1e-4
    ahead, behind = (np.log(found.at(query + 0.01 + each)[:, 0]) for each in (step, -step))
    np.testing.assert_allclose(found.slope(query + 0.01)[:, 0], (ahead - behind) / (2 * step), rtol=1e-3)


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_predictions(kernel, order):
    x, y, query, weight = _data()
    sigma = SIGMA * (1 if kernel == "gaussian" else 3)
    model = NadarayaWatson(kernel, bandwidth=sigma, order=order, ridge=0, neighbors=5).fit(x, y, weight)
    assert model.neighbors_ == 5
    expected = [
        dense.fit(kernel, order, at, x, y, sigma * factor, weight)[0]
        for at, factor in zip(query, dense.factors(query, x, weight, 5), strict=True)
    ]
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-7)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_the_left_out_error(order):
    x, y, _, weight = _data()
    degree, ridge = int(order == "linear"), 0.3 if order == "linear" else 0.0
    joined = join(x, y[:, None], weight)
    criterion = Criterion(joined, "gaussian", degree, ridge, factors=Factors(joined, 5))
    t = np.log(SIGMA)
    trial = criterion(t)
    sigma = SIGMA * _left_out(x, weight, 5)[:, None]
    _, shares = dense.left_out("gaussian", order, x, y[:, None], sigma, weight, ridge)
    np.testing.assert_allclose(trial.kept.numpy()[joined.inverse], shares, rtol=1e-7)
    errors = _errors(order, x, y[:, None], sigma, weight, ridge)
    assert trial.error == pytest.approx(np.average(errors[:, 0] ** 2, weights=weight))
    slope, _ = criterion.gradient(trial)
    for c in range(2):
        step = 1e-5 * np.eye(2)[c]
        assert slope[c] == pytest.approx((criterion(t + step).error - criterion(t - step).error) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_deviations_and_bands(order):
    x, y, query, weight = _data()
    x[1] += 0.1  # `uncertainty` is of places with one row each
    ridge = 0.3 if order == "linear" else 0.0
    model = NadarayaWatson(bandwidth=SIGMA, order=order, ridge=ridge, neighbors=5).fit(x, y, weight)
    widths = SIGMA * dense.factors(x, x, weight, 5, at_rows=True)[:, None]
    left, shares = dense.left_out("gaussian", order, x, y[:, None], widths, weight, ridge)

    def sigma(place):
        return SIGMA * dense.factors([place], x, weight, 5)[0]

    deviation = model.predict(query, return_std=True)[1]
    lower, upper = model.confidence_interval(query)
    band, _ = model._smoother.confidence(query)
    for i, at in enumerate(query):
        total, center, error, freedom = dense.uncertainty(
            "gaussian", order, at, x, y[:, None], sigma, weight, left, shares, ridge
        )
        np.testing.assert_allclose(deviation[i], total[0], rtol=1e-6)
        np.testing.assert_allclose((lower[i] + upper[i]) / 2, center[0], rtol=1e-6)
        np.testing.assert_allclose(band.error[i], error, rtol=1e-6)
        np.testing.assert_allclose(band.freedom[i], freedom, rtol=1e-6)


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients(kernel, order):
    """Central differences of the answers, in whose windows the bandwidth changes too."""
    x, y, query, weight = _data()
    sigma = SIGMA * (1 if kernel == "gaussian" else 3)
    model = NadarayaWatson(kernel, bandwidth=sigma, order=order, ridge=0.4, neighbors=5).fit(x, y, weight)
    found = model.gradient(query)
    for c in range(2):
        step = 1e-6 * np.eye(2)[c]
        expected = (model.predict(query + step) - model.predict(query - step)) / 2e-6
        np.testing.assert_allclose(found[:, c], expected, rtol=1e-5, atol=1e-6)


def test_what_it_looks_at():
    x, y, query, weight = _data()
    model = NadarayaWatson("epanechnikov", bandwidth=3 * SIGMA, neighbors=5).fit(x, y, weight)
    weights = model.attention_weights(query)
    np.testing.assert_allclose(weights @ y, model.predict(query), rtol=1e-12)
    factors = dense.factors(query, x, weight, 5)
    kernels = np.array(
        [
            dense.kernel_weights("epanechnikov", at, x, 3 * SIGMA * factor, np.ones(53))
            for at, factor in zip(query, factors, strict=True)
        ]
    )
    count = (kernels @ weight) ** 2 / (kernels**2 @ weight)
    np.testing.assert_allclose(model.effective_neighbors(query), count, rtol=1e-9)
    volume = dense.ball_volume(2) * np.prod(3 * SIGMA) * factors**2
    density = kernels @ weight / weight.sum() * 2 / volume
    np.testing.assert_allclose(np.exp(model.log_density(query)), density, rtol=1e-9)


@pytest.mark.parametrize("order", dense.ORDERS)
def test_beyond_the_data_is_the_nearest_row_or_the_plane_and_nothing_is_sure(order):
    x, y, _, _ = _data()
    slope = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y)[0][2] if order == "linear" else 0.0
    model = NadarayaWatson(bandwidth=SIGMA, order=order, neighbors=5).fit(x, y)
    far = np.array([[0.0, -1e6], [0.0, -1e7], [0.0, -1e8]])
    mean, deviation = model.predict(far, return_std=True)
    lower, upper = model.confidence_interval(far)
    nearest = x[:, 1].argmin()
    np.testing.assert_allclose(mean, y[nearest] + slope * (far[:, 1] - x[nearest, 1]), rtol=0.15)
    np.testing.assert_allclose(model.gradient(far)[:, 1], slope, rtol=0.15, atol=1e-6)
    for width in (deviation, upper - lower):
        np.testing.assert_allclose(width[1:] / width[:-1], 10, rtol=0.1)


@pytest.mark.parametrize("unit", [1e-310, 1e-160, 1e300])
def test_extreme_units(unit):
    x, y, query, _ = _data()
    expected = Factors(join(x, y[:, None], np.ones(len(x))), 5).at(query)
    found = Factors(join(x * unit, y[:, None], np.ones(len(x))), 5)
    np.testing.assert_allclose(found.at(query * unit), expected, rtol=1e-9)
    constant = np.column_stack([x, np.full(len(x), -1e308)])
    model = NadarayaWatson(bandwidth=[*SIGMA, 1e300], neighbors=5).fit(constant, y)
    assert np.isfinite(model.predict([[1.0, 1.0, 1e308]])).all()


def test_rows_that_nearly_coincide():
    """Squares of what is between them are 0 in float64."""
    x = np.array([[0.0, 0.0], [1e-200, 0], [0, 1e-200], [1, 1], [2, 5], [3, 2]])
    found = Factors(join(x, x[:, :1], np.ones(6)), 2)
    assert (np.isfinite(found.at(x)) & (found.at(x) > 0)).all()


def test_categories_keep_their_width():
    random = np.random.default_rng(5)
    frame = pd.DataFrame({"town": random.choice(["a", "b"], 60), "x": random.exponential(size=60)})
    y = np.sin(frame["x"]) + (frame["town"] == "b")
    model = NadarayaWatson(bandwidth=[0.2, 0.5], neighbors=4, categorical_features=["town"]).fit(frame, y)
    at = frame[:7]
    x, town = frame["x"].to_numpy(), frame["town"].to_numpy()
    expected = []
    for place, own, factor in zip(x[:7], town[:7], dense.factors(x[:7, None], x[:, None], np.ones(60), 4), strict=True):
        k = np.exp(-(((x - place) / (0.5 * factor)) ** 2) / 2) * np.where(town == own, 0.8, 0.2)
        expected.append(k @ y / k.sum())
    np.testing.assert_allclose(model.predict(at), expected, rtol=1e-9)


def _growing(seed, rows=150):
    """Waves that grow longer from left to right, as the rows grow sparser."""
    random = np.random.default_rng(seed)
    x = np.exp(random.uniform(0, 5, rows))
    return x[:, None], np.sin(3 * np.log(x)) + 0.2 * random.normal(size=rows)


@pytest.mark.parametrize("by", ["loo", "auto", "aic"])
def test_auto_takes_neighbours_where_rows_thin_out_and_predicts_better(by):
    x, y = _growing(0)
    fixed, adaptive = (NadarayaWatson(bandwidth=by, neighbors=each).fit(x, y) for each in (None, "auto"))
    assert adaptive.neighbors_ is not None
    assert adaptive.history_[-1]["error"] < 0.8 * fixed.history_[-1]["error"]
    at, _ = _growing(1)
    truth = np.sin(3 * np.log(at[:, 0]))
    wrong = [np.mean((model.predict(at) - truth) ** 2) for model in (fixed, adaptive)]
    assert wrong[1] < 0.5 * wrong[0]


def test_auto_keeps_one_bandwidth_where_nothing_is_gained():
    random = np.random.default_rng(0)
    x = np.linspace(0, 5, 120)[:, None]
    model = NadarayaWatson(neighbors="auto").fit(x, np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=120))
    assert model.neighbors_ is None


def test_a_search_on_a_sample_and_in_folds():
    x, y = _growing(2, 1400)
    model = NadarayaWatson(neighbors=30).fit(x, y)
    assert hold_out(model).r2 > 0.85


def test_fewer_rows_in_a_fold_than_neighbours():
    x, y, _, _ = _data(13)
    model = NadarayaWatson(bandwidth="loo", neighbors=11).fit(x, y)
    assert np.isfinite(hold_out(model).r2)


@pytest.mark.parametrize("setting", [2, np.int64(2), "auto"])
def test_saved_and_loaded(tmp_path, setting):
    x, y = _growing(0)
    model = NadarayaWatson(bandwidth="loo", neighbors=setting).fit(x, y)
    model.save(tmp_path / "model")
    loaded = NadarayaWatson.load(tmp_path / "model")
    assert (loaded.neighbors, loaded.neighbors_) == (setting, model.neighbors_)
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_a_query_at_the_only_place():
    model = NadarayaWatson(bandwidth=1.0, neighbors=2).fit([[1.0], [1.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0])
    assert np.isfinite(model.predict([[1.0], [1e200], [-1e200]])).all()
    one = join(np.ones((2, 1)), np.array([[1.0], [3.0]]), np.ones(2))
    smoother = Smoother(one, "gaussian", 0, np.ones(1), 0.0)
    wider = replace(smoother, factors=Factors(one, 2))
    assert wider.estimate(np.array([[7.0]]))[0] == smoother.estimate(np.array([[7.0]]))[0] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neighbors": 1}, "neighbors: got 1; expected a whole number of at least 2, 'auto', or None"),
        ({"neighbors": True}, "neighbors: got True; expected"),
        ({"neighbors": 2.5}, "neighbors: got 2.5; expected"),
        ({"neighbors": "five"}, "neighbors: got 'five'; expected"),
        ({"neighbors": 4}, "neighbors: got 4 of n_samples = 4 with different numbers; expected fewer"),
        (
            {"neighbors": "auto", "bandwidth": 1.0},
            "neighbors: got 'auto' with the bandwidth 1.0; expected one that is searched for",
        ),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(**settings).fit([[0.0], [1.0], [2.0], [3.0], [3.0]], [0.0, 1.0, 2.0, 3.0, 4.0])


def test_refused_of_categories_alone():
    frame = pd.DataFrame({"town": ["a", "b", "c", "a"]})
    with pytest.raises(ValueError, match="neighbors: got 2, and no column of numbers; expected None"):
        NadarayaWatson(neighbors=2, categorical_features=["town"]).fit(frame, [1.0, 2.0, 3.0, 4.0])


def test_rows_with_the_same_numbers_are_one_neighbour():
    frame = pd.DataFrame({"town": ["a", "b"] * 6, "x": np.repeat([1.0, 2.0, 4.0], 4)})
    frame["y"] = np.arange(12.0) % 5
    with pytest.raises(ValueError, match="neighbors: got 3 of n_samples = 3 with different numbers"):
        NadarayaWatson(neighbors=3, categorical_features=["town"]).fit(frame[["town", "x"]], frame["y"])
    joined = join(np.repeat([[1.0, 0], [1, 1], [2, 0], [4, 1]], 2, 0), np.arange(8.0)[:, None], np.ones(8), numbers=1,
                  feature=np.arange(2))  # fmt: skip
    tried = []

    def counted(joined, count):
        tried.append(count)
        return Factors(joined, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "Factors", counted)
        bandwidth.search(joined, "gaussian", 0, neighbors="auto")
    assert tried == [2]
