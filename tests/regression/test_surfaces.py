"""The second-order surface of designed experiments, compared with a true surface, refits and finite differences."""

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV

from dikkat.regression import KernelRegressor
from dikkat.regression.diagnostics import leave_out
from dikkat.regression.joined import Rows
from dikkat.regression.surfaces import second_order

STEP = 1e-4


def cube(*levels):
    return np.array(list(itertools.product(*levels)), float)


def surface(x):
    return x @ [1, 2, -1] + x[:, 0] * x[:, 1] + 0.7 * x[:, 2] ** 2


def refitted(model, rows):
    return model._fit_copy(rows, bandwidth_=model.bandwidth_, ridge_=model.ridge_, history_=[])


@pytest.fixture(scope="module")
def design():
    x = cube([-1, 0, 1], [-2, 0, 2], [0, 1, 2])
    y = surface(x) + 0.1 * np.random.default_rng(0).normal(size=len(x))
    return x, y, KernelRegressor().fit(x, y)


def test_predictions_follow_the_surface(design):
    x, _, model = design
    queries = np.random.default_rng(1).uniform(x.min(0), x.max(0), (50, 3))
    assert np.sqrt(np.mean((model.predict(queries) - surface(queries)) ** 2)) < 0.08
    assert [row[3] for row in model.summary(folds=0).features] == ["a parabola"] * 3


def test_left_out_rows_do_not_count_in_the_surface(design):
    x, _, model = design
    predicted = leave_out(model).predicted
    for row in (3, 13, 26):
        without = refitted(model, model._rows.take(np.delete(np.arange(len(x)), row)))
        np.testing.assert_allclose(without.predict(x[[row]]), predicted[row], atol=5e-3)  # another λ


def test_gradients_and_their_errors(design):
    _, y, model = design
    queries = np.array([[0.3, 1.1, 0.2], [-0.7, 0.4, 1.9]])
    slope, error = model.gradient(queries, return_std=True)
    steps = STEP * np.eye(3)
    differences = [(model.predict(queries + step) - model.predict(queries - step)) / (2 * STEP) for step in steps]
    np.testing.assert_allclose(slope, np.transpose(differences), atol=1e-7)
    rows = []
    for row in range(len(y)):
        changed = y.copy()
        changed[row] += STEP
        rows.append((refitted(model, model._rows._replace(y=changed)).gradient(queries) - slope) / STEP)
    noise = np.sqrt(model._smoother.noise(model._coordinates(queries))[0])
    np.testing.assert_allclose(error, noise * np.linalg.norm(rows, axis=0), rtol=1e-6)
    true = 2 + queries[:, 0]
    np.testing.assert_allclose(model.derivative(queries, 1).value, true, atol=0.15)


def test_degrees_of_freedom_are_the_change_of_estimates_by_their_values(design):
    x, y, model = design
    change = 0.0
    for row in range(len(y)):
        changed = y.copy()
        changed[row] += STEP
        other = refitted(model, model._rows._replace(y=changed))
        change += (other.predict(x[[row]]) - model.predict(x[[row]])).item() / STEP
    np.testing.assert_allclose(model.effective_degrees_of_freedom(), change, rtol=1e-7)


def test_the_surface_continues_linearly_beyond_the_data(design):
    _, _, model = design
    border = np.array([[1.0, 0.5, 2.0]])  # the greatest values of the first and the third column
    slope = model.gradient(border)[0]
    np.testing.assert_allclose(slope, [1 + 0.5, 2 + 1, -1 + 2.8], atol=0.25)
    for step in np.array([[0.3, 0, 0], [0, 0, 0.9], [0.7, 0, 1.1]]):
        beyond = border + step * np.array([[1], [2], [40]])
        np.testing.assert_allclose(model.predict(beyond), model.predict(border) + (beyond - border) @ slope)
    beyond = np.array([[1.7, 0.5, 2.4], [1.7, 2.3, 2.4], [-3.0, 0.5, 0.4]])
    changes = [(model.predict(beyond + step) - model.predict(beyond - step)) / (2 * STEP) for step in STEP * np.eye(3)]
    np.testing.assert_allclose(model.gradient(beyond), np.transpose(changes), atol=1e-7)


@pytest.mark.parametrize("good", ["plane", "surface"])
def test_the_folds_of_cv_choose_the_surface(good):
    x = np.repeat(cube([-1, 0, 1], [-1, 0, 1], range(3)), 2, axis=0)
    batch = np.arange(len(x)) % 2
    bend = 1.5 if good == "surface" else np.where(batch, 1.5, -0.5)  # of batches that differ, the mean has a surface
    y = x @ [1, 2, -1] + bend * x[:, 0] * x[:, 1] + 0.05 * np.random.default_rng(4).normal(size=len(x))
    folds = [(np.flatnonzero(batch == k), np.flatnonzero(batch != k)) for k in (0, 1)]
    errors = np.zeros(2)
    for learned, tested in folds:
        z = x / x.std(0)
        second = np.column_stack([z[:, a] * z[:, b] for a in range(3) for b in range(a, 3)])
        for k, columns in enumerate((z, np.hstack([z, second]))):
            center = columns[learned].mean(0)
            fit = RidgeCV(10.0 ** np.arange(-6, 4) * len(learned)).fit(columns[learned] - center, y[learned])
            errors[k] += ((fit.predict(columns[tested] - center) - y[tested]) ** 2).sum()
    assert (errors[1] < 0.9 * errors[0]) == (good == "surface")
    assert (KernelRegressor(cv=folds).fit(x, y).surface_ is not None) == (good == "surface")
    assert KernelRegressor().fit(x, y).surface_ is not None


def test_constant_and_confounded_products_are_no_terms():
    x = np.column_stack([cube([-1, 1], [-1, 1], [0, 1, 2]), np.zeros((12, 2))])
    x[:, 3] = x[:, 0] * x[:, 1]
    y = x[:, 0] + 4 * (x[:, 2] - 1) ** 2 + 3 * x[:, 0] * x[:, 2] + 0.01 * np.random.default_rng(5).normal(size=12)
    model = KernelRegressor().fit(x, y)
    # No square of two levels, no product of the columns 0, 1 and 3, which is one of them, none of a constant.
    assert np.argwhere(model.surface_[4:]).tolist() == [[0, 2], [1, 2], [2, 2], [2, 3]]
    assert model.summary(folds=0).features[0][3] == "a straight line"


def test_surveys_with_many_different_rows_have_no_surface():
    random = np.random.default_rng(6)
    x = np.unique(random.integers(1, 6, (2300, 6)), axis=0).astype(float)
    rows = Rows(x, (x[:, 0] - 3) ** 2 + random.normal(size=len(x)), np.ones(len(x)), ())
    assert second_order(rows.take(np.arange(2000))) is not None
    assert len(x) > 2000
    assert second_order(rows) is None


def test_a_loaded_model_has_the_surface(design, tmp_path):
    x, _, model = design
    model.save(tmp_path / "model.safetensors")
    loaded = KernelRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.surface_, model.surface_)
    np.testing.assert_array_equal(loaded.predict(x + 0.1), model.predict(x + 0.1))


def test_weights_count_repeats_and_categories_keep_their_steps():
    x = cube([-1, 0, 1], [-1, 0, 1], range(2))
    random = np.random.default_rng(2)
    frame = pd.DataFrame(x, columns=list("abc")).assign(c=pd.Categorical(x[:, 2].astype(int)))
    y = 2 * x[:, 0] ** 2 + x[:, 0] * x[:, 1] + 3 * x[:, 2] + 0.1 * random.normal(size=len(x))
    weight = random.integers(1, 4, len(x))
    repeats = np.repeat(np.arange(len(x)), weight)
    model = KernelRegressor().fit(frame, y, sample_weight=weight)
    repeated = KernelRegressor().fit(frame.iloc[repeats].reset_index(drop=True), y[repeats])
    assert model.surface_ is not None
    np.testing.assert_allclose(model.predict(frame), repeated.predict(frame), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.predict(frame), y, atol=0.6)


@pytest.mark.parametrize(
    "settings", [{"order": "constant"}, {"bandwidth": 1.0}, {"ridge": 0.0}, {"metric": "linear"}], ids=str
)
def test_only_searches_of_shrunk_lines_have_a_surface(settings, design):
    x, y, _ = design
    assert KernelRegressor(**settings).fit(x, y).surface_ is None


def test_numbers_with_many_values_have_no_surface(design):
    x, y, _ = design
    assert KernelRegressor().fit(np.column_stack([x, np.arange(len(x)) % 6]), y).surface_ is None


def test_two_levels_have_constant_squares():
    x = cube(*[[-0.1, 0.7]] * 4)
    y = x[:, 0] + 3 * x[:, 1] * x[:, 2] + 0.01 * np.random.default_rng(3).normal(size=len(x))
    model = KernelRegressor().fit(x, y)
    assert model.surface_ is not None
    assert {row[3] for row in model.summary(folds=0).features} == {"a straight line"}
    middle = np.array([[0.3, 0.2, 0.5, 0.1]])
    np.testing.assert_allclose(model.predict(middle), 0.6, atol=0.1)
