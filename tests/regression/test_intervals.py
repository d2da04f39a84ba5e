import numpy as np
import pytest

from dikkat.regression import KernelRegressor, intervals, jackknife

ROWS, QUERIES = 37, 5
METHODS = ["jackknife+", "local", "split"]


def _data(rows=ROWS, seed=0):
    random = np.random.default_rng(seed)
    x, query = random.uniform(0, 4, (rows, 2)), random.uniform(0, 4, (QUERIES, 2))
    return x, np.sin(x[:, 0]) + 0.3 * random.normal(size=rows), query


def test_skewed_noise_is_missed_as_often_on_either_side():
    random = np.random.default_rng(1)
    x = random.uniform(0, 4, 1201)
    y = np.sin(x) + random.exponential(1 + x / 4)
    model = KernelRegressor().fit(x[:401, None], y[:401])
    lower, upper = model.predict_interval(x[401:, None], 0.9, "local")
    below, above = np.mean(y[401:] < lower), np.mean(y[401:] > upper)
    assert 0.01 < min(below, above) <= max(below, above) < 0.09
    wide = (upper - lower)[np.argsort(x[401:])]
    assert wide[:200].mean() < wide[-200:].mean()


@pytest.mark.parametrize("method", METHODS)
def test_intervals_hold_new_values_about_as_often_as_they_say(method):
    x, y, _ = _data(1009, seed=2)
    model = KernelRegressor().fit(x[:211], y[:211])
    lower, upper = model.predict_interval(x[211:], 0.8, method)
    assert 0.73 < np.mean((lower <= y[211:]) & (y[211:] <= upper)) < 0.87


def test_draws_have_the_same_distribution():
    x, y, query = _data(211)
    model = KernelRegressor().fit(x, y)
    drawn = model.sample(query, 20_011, random_state=0)
    assert drawn.shape == (QUERIES, 20_011)
    below = (drawn[:, None] < model.predict_quantiles(query, [0.2, 0.5, 0.8])[..., None]).mean(2)
    np.testing.assert_allclose(below, np.tile([0.2, 0.5, 0.8], (QUERIES, 1)), atol=0.04)
    np.testing.assert_array_equal(drawn, model.sample(query, 20_011, random_state=0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_do_not_tell(rows, method):
    x, y, query = _data()
    lower, upper = KernelRegressor().fit(x[:rows], y[:rows]).predict_interval(query, 0.9, method)
    np.testing.assert_array_equal([lower, upper], np.outer([-np.inf, np.inf], np.ones(QUERIES)))


@pytest.mark.parametrize("method", METHODS)
def test_equal_values_are_certain(method):
    x, _, query = _data(101)
    lower, upper = KernelRegressor(bandwidth=1.0).fit(x, np.full(101, 3.0)).predict_interval(query, 0.8, method)
    np.testing.assert_allclose([lower, upper], 3.0)


@pytest.mark.parametrize("method", METHODS)
def test_copies_are_one_row_of_their_weight(method):
    x, y, query = _data(53)
    weight = np.random.default_rng(3).integers(1, 4, 53)
    one, other = KernelRegressor(bandwidth=1.0), KernelRegressor(bandwidth=1.0)
    one.fit(x, y, weight)
    other.fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(
        one.predict_interval(query, 0.8, method), other.predict_interval(query, 0.8, method), rtol=1e-9
    )


@pytest.mark.parametrize("coverage", [0, 1, 1.5, None, "0.9"])
def test_a_coverage_that_is_none(coverage):
    x, y, query = _data()
    with pytest.raises(ValueError, match=r"coverage: got .*; expected a number between 0 and 1"):
        KernelRegressor(bandwidth=1.0).fit(x, y).predict_interval(query, coverage)


def test_other_arguments_that_are_none():
    x, y, query = _data()
    model = KernelRegressor(bandwidth=1.0).fit(x, y)
    with pytest.raises(ValueError, match="method: got 'jackknife'; expected"):
        model.predict_interval(query, method="jackknife")
    with pytest.raises(ValueError, match=r"q: got .*; expected a list of numbers between 0 and 1"):
        model.predict_quantiles(query, [0.5, 1.0])
    for number in (0, 2.0, None):
        with pytest.raises(ValueError, match=f"n_samples: got {number}; expected a whole number of at least 1$"):
            model.sample(query, number)
    two = model.fit(x, np.column_stack([y, y]))
    for ask in (two.predict_interval, two.sample, lambda q: two.predict_quantiles(q, [0.5])):
        with pytest.raises(ValueError, match="y: got 2 targets in fit; expected one"):
            ask(query)


NOISE = {
    "normal": lambda r, n: r.normal(size=n),
    "exponential": lambda r, n: r.exponential(size=n),
    "exponential turned": lambda r, n: -r.exponential(size=n),
    "uniform": lambda r, n: r.uniform(size=n),
    "heavy": lambda r, n: r.standard_t(2, size=n),
    "in steps": lambda r, n: r.integers(0, 3, n) + 1e-9 * r.normal(size=n),
}


@pytest.mark.parametrize(("noise", "ordered"), [*((each, False) for each in NOISE), ("exponential turned", True)])
def test_halves_that_do_not_look_at_y_hold_what_they_promise(noise, ordered):
    """Sorted by y they come too, as files do."""
    rows, draws, held = 39, 300, []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        y = NOISE[noise](random, rows)
        y = np.sort(y) if ordered else y
        model = KernelRegressor(bandwidth=1e5, order="constant").fit(random.normal(size=(rows, 1)), y)
        lower, upper = model.predict_interval([[np.random.default_rng(2000 + seed).normal()]], 0.9, "split")
        new = NOISE[noise](np.random.default_rng(1000 + seed), 997)
        held.append(np.mean((lower[0] <= new) & (new <= upper[0])))
    assert np.mean(held) > 0.9 - 3 * np.std(held) / np.sqrt(draws)


def test_other_halves_by_another_random_state():
    x, y, query = _data()
    model = KernelRegressor(bandwidth=1.0).fit(x, y)
    one, again, other = (model.predict_interval(query, 0.8, "split", random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)


def test_weights_that_sum_to_one_are_warned_of():
    x, y, _ = _data()
    with pytest.warns(UserWarning, match="sample_weight: got weights that sum to 1"):
        KernelRegressor(bandwidth=1.0).fit(x, y, np.full(ROWS, 1 / ROWS))


def test_a_target_of_one_column():
    x, y, query = _data()
    one, other = (KernelRegressor(bandwidth=1.0).fit(x, each) for each in (y, y[:, None]))
    for method in METHODS:
        np.testing.assert_array_equal(*(m.predict_interval(query, 0.8, method) for m in (one, other)))
    np.testing.assert_array_equal(*(m.predict_quantiles(query, [0.2, 0.7]) for m in (one, other)))
    np.testing.assert_array_equal(*(m.sample(query, 3, random_state=0) for m in (one, other)))


def estimates_without_each_row(x, y, query):
    """By refits and by jackknife+, (rows, queries)."""
    settings = {"bandwidth": [0.3, 0.4], "ridge": 0.1}
    refits = [
        KernelRegressor(**settings).fit(np.delete(x, i, 0), np.delete(y, i)).predict(query) for i in range(len(x))
    ]
    model = KernelRegressor(**settings).fit(x, y)
    found = np.concatenate(
        [part for _, part in jackknife.estimates_without(model, intervals.left_out_errors(model)[0], query)]
    )
    return np.array(refits), found.T


@pytest.mark.parametrize("far", [6.0, 1000.0])
def test_far_from_all_rows_jackknife_estimates_are_those_of_fits_without_a_row(far):
    """There the ridge is all but infinite, and a rounded inverse times it was 10¹¹."""
    random = np.random.RandomState(1)
    x = np.c_[random.uniform(0, 3, 23), random.normal(size=23)]
    y = 2 * x[:, 0] - x[:, 1] + np.sin(3 * x[:, 0]) + 0.1 * random.normal(size=23)
    refits, found = estimates_without_each_row(x, y, np.array([[far, 0.2]]))
    slack = 0.2 * np.ptp(refits)  # the plane's own ridge is chosen anew by a refit
    assert refits.min() - slack < found.min() <= found.max() < refits.max() + slack


def test_without_a_row_far_from_the_others_jackknife_goes_by_the_plane():
    """At that row it has all of the weight there is."""
    random = np.random.default_rng(3)
    x = np.vstack([random.uniform(0, 1, (22, 2)), [6, 0.5]])
    y = 5 * x[:, 0] - 2 * x[:, 1] + 0.1 * random.normal(size=23)
    refits, found = estimates_without_each_row(x, y, np.array([[6.0, 0.5], [5.0, 0.5]]))
    np.testing.assert_allclose(found, refits, atol=0.5)


def test_many_errors_are_sampled(monkeypatch):
    """The ends come from fits without each of eleven rows."""
    monkeypatch.setattr(intervals, "MOST_ERRORS", 11)
    x, y, query = _data()
    settings = {"bandwidth": [0.7, 0.9], "ridge": 0.1}
    model = KernelRegressor(**settings).fit(x, y)
    order = np.argsort(model._smoother.joined.unique_index)  # of the errors
    chosen = order[np.sort(np.random.default_rng(0).choice(ROWS, 11, replace=False))]
    fits = [KernelRegressor(**settings).fit(np.delete(x, i, 0), np.delete(y, i)) for i in chosen]
    errors = np.abs([y[i] - fit.predict(x[[i]])[0] for i, fit in zip(chosen, fits, strict=True)])
    centers = np.array([fit.predict(query) for fit in fits])
    growth = model._deviations(query)[1]
    lower, upper = model.predict_interval(query, 0.75)
    rank = int(np.ceil(0.75 * 12)) - 1
    # The spread of the ridge and the strength of the plane are those of all rows.
    np.testing.assert_allclose(upper, np.sort(centers + growth * errors[:, None], 0)[rank], atol=1e-3)
    np.testing.assert_allclose(lower, -np.sort(growth * errors[:, None] - centers, 0)[rank], atol=1e-3)
    low, high = model.predict_interval(query, 0.75, "local")
    assert (low < high).all()


def test_intervals_of_a_fit_that_interpolates_are_finite():
    """In a Box–Behnken design a search may select bandwidths without a neighbour: no residual measures the noise."""
    pairs = [(a, b) for a in range(4) for b in range(a)]
    x = np.zeros((25, 4))
    for k, (a, b) in enumerate(pairs):
        x[4 * k : 4 * k + 4, [a, b]] = [[-1, -1], [-1, 1], [1, -1], [1, 1]]
    random = np.random.default_rng(5)
    y = x @ [1, 2, 3, 4] + x[:, 0] * x[:, 1] + x[:, 2] ** 2 + 0.3 * random.normal(size=25)
    model = KernelRegressor(bandwidth=0.05, ridge=0.1).fit(x, y)
    query = np.vstack([x, random.uniform(-1, 1, (37, 4))])
    assert np.isinf(model._smoother.noise(model._coordinates(query))[0]).any()
    for method in ("jackknife+", "local"):
        lower, upper = model.predict_interval(query, 0.8, method)
        assert np.isfinite(upper - lower).all()
        assert (upper - lower)[25:].mean() > (upper - lower)[:25].mean()
    assert np.isfinite(model.predict(query, return_std=True)[1]).all()
    assert np.isinf(np.subtract(*model.confidence_interval(query))).any()
