"""Sorted sums along one feature against the formula in long double, and against moments by pairs."""

import dense
import numpy as np
import pytest
import torch

from dikkat.regression import NadarayaWatson
from dikkat.regression.joined import join
from dikkat.regression.local import Points, moments, sensitivity
from dikkat.regression.moments import launch
from dikkat.regression.moments.launch import Window

KERNELS = [*dense.COMPACT, "gaussian"]
KEYS = {
    "even": lambda random: random.uniform(0, 5, 211),
    "far from the origin": lambda random: 1e8 + random.uniform(0, 5, 211),
    "dense and sparse": lambda random: random.lognormal(0, 2, 211),
    "near each other": lambda random: random.normal(0, 1e-7, 211) + random.integers(0, 3, 211),
    "tied": lambda random: random.integers(0, 40, 211) / 8.0,
}


@pytest.fixture(autouse=True)
def sorted_calls(monkeypatch):
    """The kernels of the calls of sorted sums, which take few keys as well."""
    calls = []
    powers = launch.powers
    monkeypatch.setattr(launch, "_MIN_KEYS", 2)
    monkeypatch.setattr(launch, "_MIN_DENSITY", 0)
    monkeypatch.setattr(launch, "powers", lambda *args, **more: calls.append(args[2].profile) or powers(*args, **more))
    return calls


def points(kind="even", values=2, seed=0):
    random = np.random.default_rng(seed)
    x = np.sort(KEYS[kind](random))[:, None]
    y, weight = random.normal(size=(211, values)), random.uniform(0.1, 3, 211)
    return Points(*(torch.from_numpy(each) for each in (x, y, weight)))


def window(kernel, sigma=0.37, squared=False, tolerance=2.0**-52):
    return Window(kernel, torch.tensor([sigma], dtype=torch.float64), squared, tolerance)


def by_formula(query, given, kernel, sigma, squared=False, exclude=None):
    """lse and the means of δ, δ², y and δy under the weights, in long double, a query at a time."""
    x, y, weight = (each.numpy().astype(np.longdouble) for each in (given.key, given.value, given.weight))
    for i, q in enumerate(query.numpy().astype(np.longdouble)):
        delta = ((x - q) / np.longdouble(sigma))[:, 0]
        w = weight * dense.KERNELS[kernel](np.abs(delta)) ** (2 if squared else 1)
        if exclude is not None:
            w[exclude[i]] = 0
        with np.errstate(divide="ignore"):
            lse = np.log(w.sum())
        w = w / w.sum() if w.sum() else w
        yield lse, w @ y, w @ delta, w @ delta**2, (w * delta) @ y


def assert_sums(found, right, within=1e-12):
    for i, (lse, value, offset, spread, cross) in enumerate(right):
        if not lse > np.log(1e-9):  # who has next to nothing in reach
            continue
        assert found.lse[i].item() == pytest.approx(float(lse), abs=within), i
        assert np.abs(found.value[i].numpy() - value).max() <= within * 4, i
        if found.offset.shape[1]:
            came = torch.cat([found.offset[i], found.spread[i, 0], found.cross[i, 0]]).numpy()
            assert np.abs(came - np.concatenate([[offset, spread], cross])).max() <= within * 4, i


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sigma", [0.09, 0.37, 23.0])
def test_moments_are_what_their_formula_says(sorted_calls, sigma, kernel, degree, squared):
    given = points()
    query = torch.from_numpy(np.random.default_rng(1).uniform(-1, 6, (97, 1)))
    found = moments(query, given, window(kernel, sigma, squared), degree=degree)
    assert_sums(found, by_formula(query, given, kernel, sigma, squared))
    assert sorted_calls == [kernel]


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sigma", [0.09, 0.37, 23.0])
@pytest.mark.parametrize("kind", [kind for kind in KEYS if kind != "tied"])
def test_each_key_left_out_of_its_own(sorted_calls, kind, sigma, kernel, degree):
    given = points(kind)
    # Distances at 10⁸ are multiples of 1.5e-8, of which the long double knows as much.
    found = moments(given.key, given, window(kernel, sigma), degree=degree, exclude=torch.arange(211))
    assert_sums(found, by_formula(given.key, given, kernel, sigma, exclude=range(211)), 1e-11)
    assert sorted_calls == [kernel]


@pytest.mark.parametrize("kernel", KERNELS)
def test_tied_keys_and_edges_are_those_of_pairs(sorted_calls, kernel):
    given, plain = points("tied"), points("tied")
    object.__setattr__(plain, "line", None)
    query = torch.arange(-3, 50, dtype=torch.float64)[:, None] / 8
    for sigma in (0.125, 0.25, 1.0):
        found, right = (moments(query, each, window(kernel, sigma), degree=1) for each in (given, plain))
        for came, wanted in zip(found, right, strict=True):
            torch.testing.assert_close(came, wanted, rtol=1e-12, atol=1e-12)
    assert sorted_calls == [kernel] * 3


def test_large_values_elsewhere_cost_no_digits():
    """Nothing is subtracted: neither of a row itself, nor of rows that have gone out of sight."""
    given = points(values=1)
    given.value[[17, 100]] = 1e15
    for kernel in dense.COMPACT:
        found = moments(given.key, given, window(kernel, 0.09), exclude=torch.arange(211))
        for i, (lse, value, *_) in enumerate(by_formula(given.key, given, kernel, 0.09, exclude=range(211))):
            if abs(value[0]) < 10 and lse > np.log(1e-3):
                assert found.value[i].item() == pytest.approx(float(value[0]), abs=1e-12)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("sigma", [0.09, 0.37, 23.0])
def test_sensitivity_is_what_pairs_say(sorted_calls, sigma, degree):
    given, plain = points(), points()
    object.__setattr__(plain, "line", None)
    random = torch.Generator().manual_seed(3)
    row, fit = (torch.randn(211, 1 + degree, *more, generator=random, dtype=torch.float64) for more in ((), (2,)))
    at, exclude = window("gaussian", sigma), torch.arange(211)
    lse = moments(plain.key, plain, at, exclude=exclude).lse
    inputs = at, lse, row, fit, np.zeros(1, np.intp), exclude
    found, right = (sensitivity(given.key, each, *inputs) for each in (given, plain))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-11)
    assert sorted_calls == ["gaussian"]


def test_far_from_all_keys_the_gaussian_asks_pairs(sorted_calls):
    given = points()
    query = torch.tensor([[-40.0], [2.5], [90.0]], dtype=torch.float64)
    found = moments(query, given, window("gaussian", 0.5))
    score = given.weight.log() - ((given.key[:, 0] - query) / 0.5).square() / 2
    torch.testing.assert_close(found.lse, score.logsumexp(1))
    torch.testing.assert_close(found.value, score.softmax(1) @ given.value)
    assert sorted_calls == ["gaussian"]


@pytest.mark.parametrize("tolerance", [1e-3, 1e-9])
def test_no_more_is_left_out_than_the_tolerance(sorted_calls, tolerance):
    given, query = points("dense and sparse"), torch.linspace(0, 60, 301, dtype=torch.float64)[:, None]
    found = moments(query, given, window("gaussian", 0.37, tolerance=tolerance))
    for i, (lse, *_) in enumerate(by_formula(query, given, "gaussian", 0.37)):
        assert -1.001 * tolerance <= found.lse[i].item() - float(lse) <= 1e-12
    assert sorted_calls == ["gaussian"]


def test_whom_they_do_not_serve(sorted_calls, monkeypatch):
    """Another key than the own left out, single precision, several features, few keys: all of these by pairs."""
    given = points()
    moments(given.key, given, window("epanechnikov"), exclude=torch.arange(211).flip(0))
    assert points("even").line is not None
    assert Points(given.key.float(), given.value.float(), given.weight.float()).line is None
    assert Points(given.key.flip(0), given.value, given.weight).line is None
    assert Points(given.key.expand(-1, 2), given.value, given.weight).line is None
    monkeypatch.setattr(launch, "_MIN_DENSITY", 16)
    moments(given.key, given, window("gaussian", 0.1))
    assert sorted_calls == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_random_problems_are_those_of_pairs(kernel):
    """Of few rows and many, weights over ten decades, units far from 1, bandwidths that are a distance of two rows."""
    random = np.random.default_rng(11)
    for _ in range(100):
        count = int(random.integers(2, 200))
        x = (
            random.uniform(0, 1, count),
            random.lognormal(0, 3, count),
            random.standard_cauchy(count),
            random.integers(0, 30, count) / 8,
            np.append(random.normal(0, 1e-9, count - 1), 5),
        )[random.integers(5)] * 10.0 ** random.choice([0, -150, 100])
        joined = join(x[:, None], random.normal(size=(count, 1)), 10.0 ** random.integers(0, 10, count))
        summed, plain = (Points(*map(torch.from_numpy, (joined.x, joined.y, joined.weight))) for _ in range(2))
        object.__setattr__(plain, "line", None)
        apart = np.abs(x - x[random.integers(count)]).max()
        sigma = random.choice([apart, np.abs(x[0] - x[1]), np.ptp(x) * 10.0 ** random.uniform(-3, 5)])
        if not sigma:
            continue
        leaving = bool(random.integers(2))
        places = random.choice(np.append(x, random.uniform(x.min() - sigma, x.max() + sigma, 20)), 30)[:, None]
        query = summed.key if leaving else torch.from_numpy(places)
        exclude = torch.arange(len(query)) if leaving else None
        at = window(kernel, sigma, bool(random.integers(2)))
        found, right = (moments(query, each, at, degree=int(leaving), exclude=exclude) for each in (summed, plain))
        assert (torch.isfinite(found.lse) == torch.isfinite(right.lse)).all()
        seen = right.lse > np.log(1e-4)
        torch.testing.assert_close(found.lse[seen], right.lse[seen], rtol=0, atol=1e-9)
        torch.testing.assert_close(found.value[seen], right.value[seen], rtol=0, atol=1e-9)


def test_tasks_end_anywhere(monkeypatch):
    given = points()
    for kernel in KERNELS:
        whole = moments(given.key, given, window(kernel), degree=1, exclude=torch.arange(211))
        monkeypatch.setattr(launch, "_SORTED_ROWS", 5)
        for one, other in zip(
            moments(given.key, given, window(kernel), degree=1, exclude=torch.arange(211)), whole, strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        monkeypatch.setattr(launch, "_SORTED_ROWS", 4096)


# --- what is made of them


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_search_and_the_answers_are_those_of_pairs(sorted_calls, monkeypatch, kernel, order):
    random = np.random.default_rng(7)
    x = random.uniform(0, 5, (307, 1))
    y, query = np.sin(3 * x[:, 0]) + 0.3 * random.normal(size=307), np.linspace(0.1, 4.9, 53)[:, None]
    model = NadarayaWatson(kernel, order=order).fit(x, y)
    found = [model.predict(query), *model.confidence_interval(query)]
    assert len(sorted_calls) > 10
    monkeypatch.setattr(launch, "_MIN_KEYS", 1000)
    plain = NadarayaWatson(kernel, order=order).fit(x, y)
    assert plain.history_[-1]["error"] == pytest.approx(model.history_[-1]["error"], rel=1e-9)
    for one, other in zip(found, [plain.predict(query), *plain.confidence_interval(query)], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
