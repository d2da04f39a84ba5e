import dense
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from sklearn.neighbors import KernelDensity as Plain
from sklearn.utils.estimator_checks import parametrize_with_checks

from dikkat.regression import KernelDensity
from dikkat.regression.joined import join
from dikkat.regression.likelihood import Density


@parametrize_with_checks(
    [KernelDensity(), KernelDensity("epanechnikov", bandwidth="silverman")],
    expected_failed_checks=dense.expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    with dense.short_searches():
        check(estimator)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_it_is_scikit_learns_with_the_same_bandwidth(kernel):
    random = np.random.default_rng(0)
    x, query, weight = random.normal(size=(37, 2)), random.normal(size=(11, 2)), random.uniform(0.1, 3, 37)
    expected = Plain(kernel=kernel, bandwidth=1.3).fit(x, sample_weight=weight)
    found = KernelDensity(kernel, bandwidth=1.3).fit(x, sample_weight=weight)
    np.testing.assert_allclose(found.score_samples(query), expected.score_samples(query), rtol=1e-9)
    assert found.score(query) == pytest.approx(expected.score(query), rel=1e-9)


def _likelihood(x, sigma):
    """The mean log density of rows without themselves, less the penalty on the shares of their own, by plain sums."""
    weight = np.exp(-(((x[:, None] - x) / sigma) ** 2).sum(-1) / 2)
    others, density = weight.sum(1) - 1, np.prod(sigma) * (2 * np.pi) ** (x.shape[1] / 2)
    own = np.sum(1 / weight.sum(1))
    return np.mean(np.log(others / (len(x) - 1) / density)) + np.log(1 - own / (0.8 * len(x)))


def test_the_criterion_is_the_likelihood_without_each_row_with_a_penalty():
    x, sigma = np.random.default_rng(1).normal(size=(31, 3)) * [1, 3, 7], np.array([0.9, 2.3, 5.1])
    x[4] = x[3]
    criterion = Density(join(x, np.zeros((31, 1)), np.ones(31)))
    error = criterion(np.log(sigma)).error
    scale = np.log(x.std(0)).sum() + 1.5 * np.log(2 * np.pi)
    assert error == pytest.approx(np.exp(-(_likelihood(x, sigma) + scale) / 3), rel=1e-12)


@pytest.mark.parametrize("categories", [False, True])
def test_the_gradient_by_differences(categories):
    random = np.random.default_rng(2)
    x = random.normal(size=(29, 3)).round(1)
    joined = join(x, np.zeros((29, 1)), np.ones(29))
    if categories:  # of four levels and of two
        corners = np.vstack([np.zeros(3), np.linalg.cholesky((np.eye(3) + 1) / 2)])
        x = np.hstack([x[:, :1], corners[random.integers(0, 4, 29)], random.integers(0, 2, (29, 1))])
        joined = join(x, np.zeros((29, 1)), np.ones(29), np.array([0, 1, 1, 1, 2]), 1)
    criterion, t = Density(joined), np.log([0.7, 0.9, 1.1])
    slope, _ = criterion.gradient(criterion(t))
    for c, step in enumerate(1e-5 * np.eye(3)):
        expected = (criterion(t + step).error - criterion(t - step).error) / 2e-5
        assert slope[c] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_search_finds_the_largest_likelihood():
    x = np.random.default_rng(3).normal(size=(211, 1))
    found = KernelDensity().fit(x).bandwidth_
    grid = [_likelihood(x, np.array([sigma])) for sigma in np.geomspace(0.1, 3, 301)]
    assert _likelihood(x, found) >= max(grid) - 1e-12


def test_rounded_numbers_are_no_spikes():
    """Heights in whole centimetres and weights in whole kilograms: more rows than pairs of them."""
    random = np.random.default_rng(4)
    x = random.normal([170, 70], [7, 9], (499, 2)).round()
    assert (KernelDensity().fit(x).bandwidth_ >= 0.5).all()
    truth = random.normal([170, 70], [7, 9], (997, 2))
    found = KernelDensity().fit(x).score(truth) / 997
    assert found > -np.log(2 * np.pi * 7 * 9) - 1 - 0.05  # the entropy of the truth


def _ties(random, count):
    return np.where(random.random(count) < 0.3, 5.0, random.normal(size=count))


def _marks(random, count):
    return (
        np.where(random.random(count) < 0.5, random.normal(30, 4, count), random.normal(60, 5, count)) / 5
    ).round() * 5


def _ages(random, count):
    return random.normal(40, 12, count).round()


@pytest.mark.parametrize(("drawn", "least", "within"), [(_ties, 0.3, 0.05), (_marks, 2.5, 0.02), (_ages, 0.5, 0.01)])
@pytest.mark.parametrize("seed", range(2))
def test_ties_and_rounded_numbers_are_as_likely_as_by_the_best_bandwidth(drawn, least, within, seed):
    random = np.random.default_rng(seed)
    x, fresh = drawn(random, 500)[:, None], drawn(random, 5003)[:, None]
    tried = np.geomspace(least, 30, 41)
    best = max(KernelDensity(bandwidth=sigma).fit(x).score(fresh) for sigma in tried) / len(fresh)
    assert KernelDensity().fit(x).score(fresh) / len(fresh) > best - within


def test_rows_near_each_other_by_chance_at_the_end_of_a_tail_do_not_decide():
    short = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        x, fresh = (random.exponential(size=(rows, 1)) for rows in (199, 2003))
        best = max(KernelDensity(bandwidth=sigma).fit(x).score(fresh) for sigma in np.geomspace(0.1, 0.4, 5))
        short.append((best - KernelDensity().fit(x).score(fresh)) / 2003)
    assert np.mean(short) < 0.1  # without the penalty it is 0.2


@pytest.mark.parametrize("wrong", [-999.0, 1000.0])
def test_a_row_far_off_is_told_and_has_no_say(wrong):
    x = np.random.default_rng(0).normal(size=(101, 1))
    x[7] = wrong
    with pytest.warns(UserWarning, match="got 1 of 101 rows with a number 8 or more interquartile ranges"):
        model = KernelDensity().fit(x)
    assert model.bandwidth_[0] == pytest.approx(KernelDensity().fit(np.delete(x, 7, 0)).bandwidth_[0], rel=0.02)


def test_a_constant_column_is_told():
    x = np.column_stack([np.random.default_rng(0).normal(size=59), np.full(59, 4000.0)])
    with pytest.warns(UserWarning, match="constant column 1"):
        model = KernelDensity().fit(x)
    assert model.bandwidth_[1] == 4
    assert model.bandwidth_[0] == pytest.approx(KernelDensity().fit(x[:, :1]).bandwidth_[0], rel=0.1)
    assert np.abs(model.sample(99, random_state=0)[:, 1] - 4000).max() < 20


def test_categories_sum_to_1():
    random = np.random.default_rng(5)
    frame = pd.DataFrame({"height": random.normal(size=83), "town": pd.Categorical(random.choice(list("abc"), 83))})
    model = KernelDensity().fit(frame)

    def at(x, town):
        return float(np.exp(model.score_samples(pd.DataFrame({"height": [x], "town": [town]}))[0]))

    assert sum(quad(at, -9, 9, args=(town,))[0] for town in "abc") == pytest.approx(1, rel=1e-6)
    assert model.sample(7, random_state=0).shape == (7, 2)
    assert set(model.sample(97, random_state=0)[:, 1]) == set("abc")


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_samples_have_the_moments_of_the_density(kernel):
    model = KernelDensity(kernel, bandwidth=[1.0, 3.0]).fit([[0.0, 0.0], [4.0, 1.0]], sample_weight=[3, 1])
    drawn = model.sample(200_000, random_state=0)
    own = np.array([1.0, 9.0]) / (1 if kernel == "gaussian" else 6)  # of one dimension of Epanechnikov's: 1/(d + 4)
    np.testing.assert_allclose(drawn.mean(0), [1.0, 0.25], atol=0.03)
    np.testing.assert_allclose(drawn.var(0), own + np.array([3.0, 3 / 16]), rtol=0.02)


def test_bad_input():
    with pytest.raises(ValueError, match="bandwidth: got 'loo'"):
        KernelDensity(bandwidth="loo").fit([[0.0], [1.0]])
    with pytest.raises(ValueError, match="n_samples: got 0"):
        KernelDensity().fit([[0.0], [1.0]]).sample(0)
    one = KernelDensity().fit([[2.0]])
    assert np.isfinite(one.score_samples([[2.0], [3.0]])).all()
