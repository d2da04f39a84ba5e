"""Places with several rows: each row is predicted from all others, those at its own place as well."""

import math

import dense
import numpy as np
import pytest

from dikkat.regression import NadarayaWatson
from dikkat.regression.criterion import Criterion
from dikkat.regression.diagnostics import hold_out, leave_out
from dikkat.regression.joined import join

SIGMA = np.array([0.9, 1.7])


def _cells(seed=0, outputs=1, levels=(5, 3)):
    """Rows on a grid, of which several are in most cells."""
    random = np.random.default_rng(seed)
    x = np.column_stack([random.integers(0, each, 41) for each in levels]).astype(float)
    y = np.sin(2 * x[:, :1]) + 0.4 * random.normal(size=(41, outputs))
    return x, y, random


def _predicted(kernel, order, x, y, sigma, weight, ridge, out):
    """Each row without so much of its weight and of that of its copies: a fit for each, by least squares."""
    found = np.empty_like(y)
    for i, (row, value) in enumerate(zip(x, y, strict=True)):
        left = weight.copy()
        copies = (x == row).all(1) & (y == value).all(1)
        left[copies] *= 1 - out[i] / weight[copies].sum()
        added = dense.penalty(order, x, sigma, weight, ridge)
        if dense.kernel_weights(kernel, row, x, sigma, left).sum() == 0:
            found[i] = np.average(y, axis=0, weights=left)
        else:
            slope = dense.plane(x, y, weight, row) if ridge else 0.0
            found[i] = dense.ridged(kernel, order, row, x, y, sigma, left, added, slope)[0][0]
    return found


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("kernel", "order", "ridge"), [
    ("gaussian", "constant", 0.0), ("gaussian", "linear", 0.7), ("epanechnikov", "constant", 0.0),
])  # fmt: skip
def test_each_row_is_predicted_from_all_others(kernel, order, ridge, outputs):
    x, y, random = _cells(outputs=outputs)
    x[5], y[5] = x[4], y[4]  # a copy, which is left out with its original
    weight = random.uniform(0.3, 2.5, 41)
    weight[7] = 0
    there = weight > 0
    copies = (x[:, None] == x).all(2) & (y[:, None] == y).all(2)
    out = copies @ weight
    expected = _predicted(kernel, order, x[there], y[there], SIGMA, weight[there], ridge, out[there])
    errors = (y[there] - expected) ** 2
    criterion = Criterion(join(x, y, weight), kernel, int(order == "linear"), ridge)
    trial = criterion(np.log(SIGMA))
    assert trial.error == pytest.approx(np.average(errors.mean(1), weights=weight[there]), rel=1e-6)
    model = NadarayaWatson(kernel, bandwidth=SIGMA, order=order, ridge=ridge).fit(x, y, weight)
    np.testing.assert_allclose(leave_out(model).predicted[there], expected, rtol=1e-6, atol=1e-9)
    assert np.isnan(leave_out(model).predicted[7]).all()
    assert leave_out(model).error == pytest.approx(trial.error, rel=1e-9)
    y, weight = y[there], weight[there]
    total = np.average((y - np.average(y, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    explained = 1 - np.average(errors, axis=0, weights=weight) / total
    assert leave_out(model).r2 == pytest.approx(explained.mean(), rel=1e-7)


@pytest.mark.parametrize("levels", [(3, 2), (7, 3)])
def test_equal_rows_of_a_discrete_y_are_no_copies(levels):
    """A yes or no in a few cells: a single row is left out; of many with one value, whose rows may be copies, all."""
    x, _, random = _cells(levels=levels)
    y = (random.uniform(size=(41, 1)) < 0.2 + 0.3 * x[:, :1]) * 1.0
    weight = random.integers(1, 3, 41).astype(float)
    rows, values = np.repeat(x, weight.astype(int), 0), np.repeat(y, weight.astype(int), 0)
    ones, same = np.ones(len(rows)), (rows[:, None] == rows).all(2)
    pure = ~(same & (values != values.T)).any(1)
    assert 0 < pure.sum() < len(rows)
    whole, given = same.sum(1), (rows[:, None] == x).all(2).sum(1)
    one = whole / given if levels == (3, 2) else whole
    expected = _predicted("gaussian", "constant", rows, values, SIGMA, ones, 0.0, np.where(pure, one, 1))
    trial = Criterion(join(x, y, weight), "gaussian", 0)(np.log(SIGMA))
    assert trial.error == pytest.approx(np.mean((values - expected) ** 2), rel=1e-9)


def test_copies_tell_nothing_new():
    """A table that is there twice, or whose weights are 2, has the bandwidths of the table."""
    x, y, _ = _cells()
    one, twice, weighted = (
        NadarayaWatson(bandwidth="loo").fit(*each)
        for each in ((x, y), (np.tile(x, (2, 1)), np.tile(y, (2, 1))), (x, y, np.full(41, 2.0)))
    )
    np.testing.assert_allclose(twice.bandwidth_, weighted.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(leave_out(twice).error, leave_out(weighted).error, rtol=1e-9)
    assert leave_out(one).error == pytest.approx(leave_out(twice).error, rel=1e-3)


@pytest.mark.parametrize(("degree", "ridge"), [(0, 0.0), (1, 0.7), (1, None)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_gradient_is_that_of_differences(degree, ridge, outputs):
    x, y, random = _cells(outputs=outputs)
    criterion = Criterion(join(x, y, random.uniform(0.5, 2, 41)), "gaussian", degree, ridge)
    t = np.append(np.log(SIGMA), [math.log(0.9)] * (ridge is None))
    slope, _ = criterion.gradient(criterion(t))
    for c, step in enumerate(1e-5 * np.eye(len(t))):
        expected = (criterion(t + step).error - criterion(t - step).error) / 2e-5
        assert slope[c] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def _towns(random):
    town = random.integers(0, 4, 300)
    return town[:, None].astype(float), np.array([0.0, 10.0, 3.0, 20.0])[town] + random.normal(size=300), [0]


def _levels(random):
    level = random.integers(0, 6, 300)
    return level[:, None].astype(float), np.array([0, 5, 0, 5, 0, 5.0])[level] + 0.5 * random.normal(size=300), None


def _interaction(random):
    x = np.column_stack([random.integers(0, 3, 400), random.integers(0, 4, 400)]).astype(float)
    means = 4 * random.normal(size=(3, 4))
    return x, means[tuple(x.astype(int).T)] + random.normal(size=400), [0, 1]


def _counts(random):
    """Six kinds of spray, twelve counts each."""
    spray = np.repeat(np.arange(6), 12)
    return spray[:, None].astype(float), random.poisson(np.array([14, 15, 2, 5, 3, 17])[spray]).astype(float), [0]


def _yes_or_no(random):
    town = random.integers(0, 3, 300)
    return town[:, None].astype(float), (random.uniform(size=300) < np.array([0.05, 0.9, 0.4])[town]) * 1.0, [0]


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("table", [_towns, _levels, _interaction, _counts, _yes_or_no])
def test_cells_are_predicted_by_about_their_means(table, order):
    x, y, categories = table(np.random.default_rng(0))
    model = NadarayaWatson(order=order, categorical_features=categories).fit(x, y)
    same = (x[:, None] == x).all(2)
    sums, counts = same @ y, same.sum(1)
    without = np.mean((y - (sums - y) / (counts - 1)) ** 2)  # each row predicted by the mean of the others of its cell
    r2 = 1 - without / y.var()
    within = math.sqrt(np.mean((y - sums / counts) ** 2))
    assert np.abs(model.predict(x) - sums / counts).max() < 0.6 * within
    assert leave_out(model).r2 == pytest.approx(r2, abs=0.03)
    assert hold_out(model).r2 == pytest.approx(r2, abs=0.07)
    if table is _towns:
        assert model.predict(x, return_std=True)[1] == pytest.approx(1.0, abs=0.2)


# --- the same model, however the columns are written


def _waves(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(60, 3))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.4 * random.normal(size=60), random.normal(size=(31, 3))


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("seed", range(2))
def test_turned_scaled_and_reversed_columns_give_the_same_model(order, seed):
    x, y, query = _waves(seed)
    expected = NadarayaWatson(order=order).fit(x, y).predict(query)
    changes = {
        "turned": (-1.0, 0.0, slice(None)),
        "reversed": (1.0, 0.0, slice(None, None, -1)),
        "moved": (np.array([2.0, -0.25, 8.0]), np.array([3.0, -1.0, 0.5]), slice(None)),
    }
    for name, (scale, shift, columns) in changes.items():
        moved, asked = ((each * scale + shift)[:, columns] for each in (x, query))
        found = NadarayaWatson(order=order).fit(moved, y).predict(asked)
        np.testing.assert_allclose(found, expected, atol=1e-4 * y.std(), err_msg=name)
    other = NadarayaWatson(order=order).fit(x, 3 - 2 * y).predict(query)
    np.testing.assert_allclose((3 - other) / 2, expected, atol=1e-4 * y.std())


def test_held_out_accuracy_does_not_hang_on_how_columns_are_written():
    x, y, _ = _waves(0)
    one, other = (hold_out(NadarayaWatson(bandwidth=[0.7, 0.9, 1.3]).fit(each, y)) for each in (x, -x))
    np.testing.assert_allclose(one.predicted, other.predicted, rtol=1e-9)


def test_many_rows_in_several_columns_turned():
    random = np.random.default_rng(0)
    x = random.uniform(0, 3, (300, 5))  # more than a search tries many starts on
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * random.normal(size=300)
    one, other = (NadarayaWatson(order="linear", bandwidth="loo").fit(each, y) for each in (x, -x))
    np.testing.assert_allclose(one.bandwidth_, other.bandwidth_, rtol=1e-3)
