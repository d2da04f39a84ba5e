import itertools
import math

import dense
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize

from dikkat.regression import KernelRegressor, NadarayaWatson, bandwidth, local
from dikkat.regression.bandwidth import rule_of_thumb
from dikkat.regression.criterion import MAX_FREEDOM, Criterion
from dikkat.regression.diagnostics import leave_out
from dikkat.regression.joined import join

RULES = {"silverman": lambda d: (4 / (d + 2)) ** (1 / (d + 4)), "scott": lambda d: 1.0}


def _joined(x, y, weight=None):
    return join(x, y.reshape(len(y), -1), np.ones(len(x)) if weight is None else weight)


def _waves(count, size, seed=0, noise=0.3):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 5, (count, size))
    return x, np.sin(2 * x[:, 0]) + x[:, -1] / 3 + noise * random.normal(size=count)


# --- rules of thumb


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_rules_of_thumb(rule, size):
    x = np.random.default_rng(0).uniform(0, 7, (43, size)) ** 0.5
    unit = RULES[rule](size) * 43 ** (-1 / (size + 4))
    lower, upper = np.quantile(x, [0.25, 0.75], axis=0, method="inverted_cdf")
    expected = unit * np.minimum(x.std(0, ddof=1), (upper - lower) / 1.349)
    np.testing.assert_allclose(rule_of_thumb(_joined(x, x), rule), expected)


@pytest.mark.parametrize("x", [[0.0, 0.1, 1.0, 1.1], [0.0] * 9 + [10.0]], ids=["deviation smaller", "most the same"])
def test_rules_of_thumb_by_the_deviation(x):
    x = np.array(x)[:, None]
    np.testing.assert_allclose(rule_of_thumb(_joined(x, x), "scott"), x.std(ddof=1) * len(x) ** (-1 / 5))


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_thumb_take_weights_as_repeats(rule):
    x, _ = _waves(31, 3)
    weight = np.random.default_rng(1).integers(0, 4, 31)
    repeated = np.repeat(x, weight, 0)
    expected = rule_of_thumb(_joined(repeated, repeated), rule)
    np.testing.assert_allclose(rule_of_thumb(_joined(x, x, weight.astype(float)), rule), expected)


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_thumb_of_hard_columns(rule):
    """An outlier hardly moves them; a constant, huge and tiny numbers, and shares for weights give positive ones."""
    x, _ = _waves(50, 1)
    with_outlier = np.vstack([x, [[1e6]]])
    plain, moved = (rule_of_thumb(_joined(a, a), rule) for a in (x, with_outlier))
    np.testing.assert_allclose(moved, plain, rtol=0.3)
    hard = np.hstack([np.full((50, 1), 0.1), 1e200 * x, 1e-200 * x])
    for weight in (np.ones(50), np.full(50, 0.02)):
        found = rule_of_thumb(_joined(hard, x, weight), rule)
        assert (np.isfinite(found) & (found > 0)).all()
        assert found[0] == 1e6  # the constant


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("kernel", dense.COMPACT)
def test_rules_give_every_kernel_the_same_deviation(kernel, size):
    """The mean of r² under the kernel is d times the variance along a feature; by shells."""
    x, _ = _waves(43, size)
    radius = rule_of_thumb(_joined(x, x), "scott", kernel) / rule_of_thumb(_joined(x, x), "scott")
    mass, square = (
        quad(lambda r, power=power: dense.KERNELS[kernel](np.float64(r)) * r ** (size - 1 + power), 0, 1)[0]
        for power in (0, 2)
    )
    np.testing.assert_allclose(radius**2 * square / mass / size, 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", ["silverman", "loo"])
def test_bandwidths_are_numbers_of_the_rows_dtype(rule, dtype):
    limits = np.finfo(dtype)
    x = np.stack([np.arange(5.0) * 1e-44, np.full(5, 3e38), np.arange(5.0) * 1e30], 1).astype(dtype)
    with np.errstate(over="ignore"):
        found = NadarayaWatson(bandwidth=rule).fit(x, np.arange(5.0) ** 2).bandwidth_
    assert ((found >= limits.tiny) & (found <= limits.max)).all()
    assert found[1] > 1e38


# --- the leave-one-out error


def _with_repeats(size, outputs=1):
    random = np.random.default_rng(3)
    x = random.integers(0, 6, (29, size)) + np.arange(size)
    y = random.normal(size=(29, outputs)) + x[:, :1]
    return x.astype(float), y, random.integers(0, 3, 29).astype(float)


@pytest.mark.parametrize("kernel", dense.COMPACT)
def test_whom_nobody_reaches_the_mean_of_the_others_answers(kernel):
    x, y, weight = _with_repeats(2)
    criterion = Criterion(join(x, y, weight), kernel, 0)
    expected = dense.leave_one_out_error(kernel, "constant", x, y, np.array([1e-3, 1e-3]), weight)
    assert criterion(np.log([1e-3, 1e-3])).error == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ridge", [0.7, None])
def test_the_gradient_where_a_row_is_far_from_all_others(ridge):
    x, y = _waves(23, 3)
    x[5] += 25  # log S_0 is about −300
    criterion = Criterion(_joined(x, y), "gaussian", 1, ridge)
    t = np.append(np.log([1.1, 2.3, 3.1]), [math.log(0.9)] * (ridge is None))
    slope, _ = criterion.gradient(criterion(t))
    for c, step in enumerate(1e-5 * np.eye(len(t))):
        expected = (criterion(t + step).error - criterion(t - step).error) / 2e-5
        assert slope[c] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("ridge", [0.3, None, 0.0])
def test_the_penalty_and_its_gradient(ridge):
    """Over the degrees of freedom of a smoother matrix, of rows of which some are the same."""
    x, y = _waves(23, 3)
    x[5], x[7] = x[6], x[8]
    criterion = Criterion(_joined(x, y), "gaussian", int(ridge != 0.0), ridge, "auto", freedom_per_row=0.8)
    t = np.append(np.log([1.1, 2.3, 1.9]), [math.log(0.9)] * (ridge is None))
    slope, _ = criterion.gradient(criterion(t))
    for c, step in enumerate(1e-5 * np.eye(len(t))):
        expected = (criterion(t + step).error - criterion(t - step).error) / 2e-5
        assert slope[c] == pytest.approx(expected, rel=1e-5, abs=1e-8)
    if ridge == 0.0:
        matrix = np.array([dense.smoother_row("gaussian", "constant", row, x, np.exp(t), np.ones(23)) for row in x])
        plain = dense.leave_one_out_error("gaussian", "constant", x, y[:, None], np.exp(t))
        assert criterion(t).error == pytest.approx(plain / (1 - np.trace(matrix) / (0.8 * 23)), rel=1e-9)
        assert criterion(t - 3).error == math.inf


def test_in_parts_it_is_the_same(monkeypatch):
    x, y, weight = _with_repeats(2, 3)
    criterion, t = Criterion(join(x, y, weight), "gaussian", 1), np.log([1.1, 2.3])
    expected, gradient = criterion(t), criterion.gradient(criterion(t))
    monkeypatch.setattr(local, "_ELEMENTS", 100)
    assert 1 < len(local.parts(len(criterion.points.key), criterion.points.columns(1))) < len(criterion.points.key)
    assert criterion(t).error == pytest.approx(expected.error, rel=1e-12)
    for one, other in zip(criterion.gradient(criterion(t)), gradient, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_row_far_from_dense_ones_is_answered_by_their_mean():
    """Its line would go up by a hundred times what their values differ in."""
    random = np.random.default_rng(0)
    x = np.append(random.uniform(-0.01, 0, 30), 100.0)[:, None]
    y = np.append(random.normal(size=30), 0.0)
    criterion = Criterion(_joined(x, y), "gaussian", 1)
    left = criterion(np.zeros(1)).errors[criterion.joined.x.argmax()]
    share = np.exp(100 * x[:30, 0] - x[:30, 0] ** 2 / 2)
    assert left.item() == pytest.approx(np.average(y[:30], weights=share), rel=1e-7)


# --- its minimum


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("size", [1, 2])
def test_no_other_search_finds_less(order, size):
    x, y = _waves(47, size, seed=size)
    model = NadarayaWatson(order=order, ridge=0, bandwidth="loo").fit(x, y)
    found = dense.leave_one_out_error("gaussian", order, x, y, model.bandwidth_)
    assert model.history_[-1]["error"] == pytest.approx(found, rel=1e-7)

    def error(t):
        return dense.leave_one_out_error("gaussian", order, x, y, np.exp(t))

    starts = [np.log(x.std(0)) + shift for shift in (-2.5, -1.0, 0.5)]
    options = {"xatol": 1e-4, "fatol": 1e-8, "maxfev": 120}
    others = [minimize(error, start, method="Nelder-Mead", options=options).fun for start in starts]
    assert found <= min(others) * (1 + 1e-9)


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", dense.COMPACT)
def test_kernels_that_end_come_close_to_the_best_of_a_grid(kernel, order):
    x, y = _waves(61, 1)
    model = NadarayaWatson(kernel, order=order, ridge=0, bandwidth="loo").fit(x, y)
    found = dense.leave_one_out_error(kernel, order, x, y, model.bandwidth_)
    grid = [dense.leave_one_out_error(kernel, order, x, y, sigma) for sigma in np.geomspace(0.05, 20, 60)]
    assert found <= 1.05 * min(grid)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_starts_from_a_sample_end_at_the_minimum_over_all(kernel, monkeypatch):
    x, y = _waves(400, 1)
    expected = NadarayaWatson(kernel, bandwidth="loo").fit(x, y)
    monkeypatch.setattr(bandwidth, "_SAMPLE_ROWS", 110)
    found = NadarayaWatson(kernel, bandwidth="loo").fit(x, y)
    share = 1e-9 if kernel == "gaussian" else 0.01
    assert found.history_[-1]["error"] == pytest.approx(expected.history_[-1]["error"], rel=share)
    np.testing.assert_allclose(found.bandwidth_, expected.bandwidth_, rtol=1e-5 if kernel == "gaussian" else 0.2)


def test_the_whole_is_looked_at_a_few_times(monkeypatch):
    """Each look is all pairs of rows."""
    looks = []
    for name in ("__call__", "gradient"):
        method = getattr(Criterion, name)

        def counted(self, at, method=method):
            looks.append(len(self.points.key))
            return method(self, at)

        monkeypatch.setattr(Criterion, name, counted)
    monkeypatch.setattr(bandwidth, "_SAMPLE_ROWS", 250)
    NadarayaWatson(bandwidth="loo").fit(*_waves(1500, 1))
    assert 4 <= looks.count(1500) <= 14


def test_a_sample_is_spread_over_all():
    x = np.random.default_rng(0).permutation(10_007).astype(float)
    chosen = bandwidth._sample(_joined(x[:, None], np.sqrt(x)), 1000)
    assert len(chosen) == 1000
    assert (np.diff(chosen) > 0).all()
    assert np.diff(chosen).max() <= 21  # y goes up with x
    assert chosen[-1] < 10_007


def test_the_bandwidth_of_so_many_rows_that_there_is_a_middle_sample():
    """Below its neighbours on either side, by the sums over a grid of sorted rows that NumPy can make."""
    random = np.random.default_rng(0)
    x = np.sort(random.random(100_003))
    y = np.sin(200 * x) + random.normal(size=len(x))
    width = float(NadarayaWatson(bandwidth="loo").fit(x[:, None], y).bandwidth_[0])

    def error(sigma):
        reach = int(6 * sigma * len(x)) + 1
        total, weighted = np.zeros(len(x)), np.zeros(len(x))
        for k in range(1, reach + 1):
            near = np.exp(-(((x[k:] - x[:-k]) / sigma) ** 2) / 2)
            total[k:] += near
            total[:-k] += near
            weighted[k:] += near * y[:-k]
            weighted[:-k] += near * y[k:]
        return np.mean((y - weighted / total) ** 2)

    assert error(width) < min(error(1.1 * width), error(width / 1.1))


@given(st.integers(0, 2**32 - 1), st.sampled_from(dense.ORDERS), st.sampled_from(["gaussian", "epanechnikov"]))
@settings(max_examples=5, deadline=None)
def test_repeats_weights_and_the_order_of_rows(seed, order, kernel):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(17, 2)).round(1), random.normal(size=17).round(2)
    weight = random.integers(0, 4, 17)
    weight[0] = 1
    expected = (
        NadarayaWatson(kernel, order=order, bandwidth="loo")
        .fit(np.repeat(x, weight, 0), np.repeat(y, weight))
        .bandwidth_
    )
    found = NadarayaWatson(kernel, order=order, bandwidth="loo").fit(x, y, sample_weight=weight).bandwidth_
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    shuffled = random.permutation(17)
    other = (
        NadarayaWatson(kernel, order=order, bandwidth="loo")
        .fit(x[shuffled], y[shuffled], sample_weight=weight[shuffled])
        .bandwidth_
    )
    np.testing.assert_allclose(other, expected, rtol=1e-5)


def _problem(kind, seed, count=30):
    random = np.random.default_rng(seed)
    x, noise = random.normal(size=(count, 1 + seed % 3)), random.normal(size=count)
    if kind == "ties":
        x = x.round(x.shape[1] > 1)
    elif kind == "heavy tails":
        x, noise = random.standard_t(1.5, x.shape), random.standard_t(1.5, count)
    elif kind == "constant column":
        x = np.column_stack([x, np.full(count, 3.0)])
    elif kind == "units":
        x = x * 10.0 ** random.integers(-9, 9, x.shape[1])
    wave = np.sin(2 * x[:, 0] / x[:, 0].std())
    return x, noise if kind == "noise alone" else wave + 0.3 * noise


def _error_of_means(x, y, sigma):
    """The leave-one-out error of the Gaussian's local means, of which none underflow."""
    square = (((x[:, None] - x) / sigma) ** 2).sum(2) / 2
    np.fill_diagonal(square, np.inf)
    weights = np.exp(square.min(1, keepdims=True) - square)
    return np.mean((y - weights @ y / weights.sum(1)) ** 2)


@pytest.mark.filterwarnings("ignore:X. got rows at")  # ties are repeats, and few places are far apart
@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kind", ["ties", "heavy tails", "constant column", "units", "noise alone"])
def test_small_problems(kind, order):
    for seed in range(3):  # of as many features as that and one more
        x, y = _problem(kind, seed)
        model = NadarayaWatson(order=order, bandwidth="loo").fit(x, y)
        errors = [step["error"] for step in model.history_]
        assert (np.isfinite(model.bandwidth_) & (model.bandwidth_ > 0)).all(), seed
        assert model.history_[-1]["bandwidth"] == model.bandwidth_.tolist()
        assert (np.diff(errors)[:-1] <= 1e-12 * errors[0]).all(), seed  # the last may leave rows more neighbours
        assert errors[-1] <= 2 * min(errors), seed
        if order == "constant":
            assert errors[-1] == pytest.approx(_error_of_means(x, y, model.bandwidth_), rel=1e-6), seed
            rule = NadarayaWatson(bandwidth="silverman").fit(x, y).bandwidth_
            assert errors[-1] <= _error_of_means(x, y, rule) * (1 + 1e-9), seed


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_nothing_to_choose_by(kernel):
    """One place, or equal values: any bandwidth will do, and there is no path to it."""
    for x, y in ((np.ones((5, 2)), np.arange(5.0)), (np.arange(10.0).reshape(5, 2), np.ones(5))):
        model = NadarayaWatson(kernel, bandwidth="loo").fit(x, y)
        assert (np.isfinite(model.bandwidth_) & (model.bandwidth_ > 0)).all()
        assert model.history_ == []


@pytest.mark.parametrize("count", [3, 7, 10, 23, 101, 1009])
def test_equal_values_are_equal_to_their_mean(count):
    """Were the mean of so many 0.1 another number, the search would fit the rounding."""
    x, y = np.random.default_rng(0).uniform(0, 1, (count, 1)), np.full(count, 0.1)
    weight = np.random.default_rng(1).uniform(0.1, 3, count)
    joined = _joined(x, y, weight)
    assert joined.variance() == 0
    assert joined.origin.tolist() == [0.1]
    model = NadarayaWatson(bandwidth="loo").fit(x, y, weight)
    assert model.history_ == []
    assert (model.predict(x) == 0.1).all()


# --- other criteria, and judgement


def test_no_bandwidth_of_a_grid_has_a_lower_criterion():
    x, y = _waves(61, 1)
    model = NadarayaWatson().fit(x, y)
    criterion = Criterion(_joined(x, y), "gaussian", 0, kind="auto", freedom_per_row=MAX_FREEDOM)
    least = min(criterion(np.log([sigma])).error for sigma in np.geomspace(0.03, 9, 80))
    assert model.history_[-1]["error"] == pytest.approx(criterion(np.log(model.bandwidth_)).error, rel=1e-9)
    assert model.history_[-1]["error"] <= least * (1 + 1e-9)


@pytest.mark.parametrize(("waves", "size"), [(60, 3), (40, 5)])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("by", ["loo", "auto"])
def test_an_oscillation_in_one_of_several_features_is_found(waves, size, seed, by):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (300, size))
    y = np.sin(waves * x[:, 0]) + 0.3 * random.normal(size=300)
    model = NadarayaWatson(bandwidth=by).fit(x, y)
    assert model.bandwidth_[0] < 0.02
    assert 1 - model.history_[-1]["error"] / y.var() > 0.7


@pytest.mark.parametrize("by", ["loo", "auto"])
def test_a_grid_with_little_noise_gives_no_staircase(by):
    x = np.arange(30.0)[:, None]
    y = np.sin(x[:, 0] / 4) + 0.01 * np.random.default_rng(0).normal(size=30)
    model, query = NadarayaWatson(bandwidth=by).fit(x, y), np.linspace(1, 28, 400)[:, None]
    assert np.sqrt(np.mean((model.predict(query) - np.sin(query[:, 0] / 4)) ** 2)) < 0.02
    assert model.effective_degrees_of_freedom() <= 0.81 * 30


@pytest.mark.parametrize(("order", "features"), [("constant", 12), ("linear", 5)])
def test_the_simplest_does_not_follow_noise(order, features):
    lost = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(460, features)), random.normal(size=460)
        lost.append(NadarayaWatson(bandwidth="auto", order=order).fit(x[:60], y[:60]).score(x[60:], y[60:]))
    assert np.mean(lost) > -0.15


def test_the_simplest_leaves_features_out_and_is_hardly_worse():
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (150, 5))
    y = np.sin(9 * x[:, 2]) + 0.2 * random.normal(size=150)
    simple = NadarayaWatson(bandwidth="auto").fit(x, y)
    least = NadarayaWatson(bandwidth="loo").fit(x, y)
    assert (simple.bandwidth_ > 10).sum() >= 3
    assert least.bandwidth_[2] * 0.9 <= simple.bandwidth_[2] < 0.5
    assert leave_out(least).error <= leave_out(simple).error <= 1.2 * leave_out(least).error


@pytest.mark.filterwarnings("ignore:X. got rows at")
@pytest.mark.parametrize("seed", [1, 12])
def test_the_penalty_is_dropped_in_a_crossed_design_if_errors_without_it_are_clearly_smaller(seed):
    """Two interactions of categories, so that each cell is a parameter, and a fifth of the rows is held out."""
    random = np.random.default_rng([seed, 409])
    cells = np.repeat(np.array(list(itertools.product(range(4), range(5), range(3)))), 2, 0)
    steps = [random.normal(0, 0.3, size) for size in (4, 5, 3)]
    a, b, c = cells.T
    truth = (
        steps[0][a] + steps[1][b] + steps[2][c] + random.normal(size=(4, 5))[a, b] + random.normal(size=(5, 3))[b, c]
    )
    truth = np.exp(0.7 * truth)
    held, learned = np.split(random.permutation(120), [24])
    y = truth + 0.1 * truth.std() * random.normal(size=120)
    x = pd.DataFrame(cells.astype(str), columns=list("abc"))
    auto, loo = (KernelRegressor(bandwidth=by).fit(x.iloc[learned], y[learned]) for by in ("auto", "loo"))
    scores = [model.score(x.iloc[held], truth[held]) for model in (auto, loo)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    assert scores[0] > 0.95


def test_a_gain_is_compared_with_its_standard_error():
    random = np.random.default_rng(5)
    x, y = random.uniform(0, 4, (43, 1)), random.normal(size=43)
    y += np.sin(3 * x[:, 0])
    criterion = Criterion(_joined(x, y), "gaussian", 1, 0.25)
    narrow, wide = (criterion(np.log([sigma])) for sigma in (0.3, 5.0))
    models = [KernelRegressor(bandwidth=sigma, ridge=0.25).fit(x, y) for sigma in (0.3, 5.0)]
    one, other = ((leave_out(model).predicted - y) ** 2 for model in models)
    gain = other - one
    errors = gain.mean() / (gain.std() / np.sqrt(43))
    assert errors > 0.5
    assert criterion.is_better(narrow, wide, errors - 1e-6)
    assert not criterion.is_better(narrow, wide, errors + 1e-6)
    assert not criterion.is_better(narrow, narrow, 0.0)


def test_an_interaction_of_two_of_six_features_is_found():
    """One feature of the product says nothing without the other."""
    random = np.random.default_rng(1)
    x = random.choice([-1.0, 1.0], (90, 6))
    y = x[:, 2] * x[:, 4] + 0.3 * random.normal(size=90)
    assert KernelRegressor().fit(x[:60], y[:60]).score(x[60:], y[60:]) > 0.8
