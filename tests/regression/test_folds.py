"""Rows that are predicted from other folds, beside fits of each fold by NumPy and series of known noise."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, ShuffleSplit, TimeSeriesSplit

from dikkat.regression import KernelClassifier, KernelRegressor, NadarayaWatson
from dikkat.regression.criterion import HeldOut, folds_of, membership
from dikkat.regression.diagnostics import hold_out
from dikkat.regression.joined import Rows
from regression.test_dependence import autoregressive

Array = NDArray[np.float64]


def draw(rows: int, size: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """x with some rows at one place, y and weights."""
    random = np.random.default_rng(seed)
    x = random.random((rows, size))
    x[rows // 2] = x[rows // 3]
    return x, np.sin(5 * x[:, 0]) + 0.3 * random.normal(size=rows), random.integers(1, 4, rows).astype(float)


def lines(x: Array, y: Array, weight: Array, query: Array, bandwidth: Any, degree: int) -> Array:
    """Local fits without a ridge, one by one."""
    result = np.empty(len(query))
    for i, at in enumerate(query):
        delta = (x - at) / bandwidth
        root = np.sqrt(weight * np.exp(-(delta**2).sum(1) / 2))
        design = np.hstack([np.ones((len(x), 1)), delta]) if degree else np.ones((len(x), 1))
        result[i] = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)[0][0]
    return result


@pytest.mark.parametrize("order", ["constant", "linear"])
@pytest.mark.parametrize("splitter", [KFold(7), ShuffleSplit(5, random_state=1), TimeSeriesSplit(3)])
def test_the_criterion_is_the_error_of_tested_rows(order: Any, splitter: Any) -> None:
    x, y, weight = draw(61, 2)

    def error(bandwidth: Array) -> float:
        squares, total = 0.0, 0.0
        for learned, tested in splitter.split(x):
            of = x[learned], y[learned], weight[learned], x[tested]
            left = y[tested] - lines(*of, bandwidth, int(order == "linear"))
            squares, total = squares + weight[tested] @ left**2, total + weight[tested].sum()
        return float(squares / total)

    model = KernelRegressor(order=order, ridge=0, cv=splitter).fit(x, y, weight)
    least = error(model.bandwidth_)
    assert np.isclose(model.history_[-1]["error"], least, rtol=1e-8)
    for factor in ([1.05, 1], [1 / 1.05, 1], [1, 1.05], [1, 1 / 1.05]):
        assert error(model.bandwidth_ * factor) >= least * (1 - 1e-9)


def test_rows_without_weight_do_not_interrupt_a_run() -> None:
    """The design effect of runs is that of the rows with weight."""
    x = np.arange(60.0)[:, None]
    y, weight = autoregressive(np.random.default_rng(1), 60), np.ones(60)
    weight[[4, 31, 50]] = 0
    folds = np.arange(60) // 10
    pairs = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(6)]
    counted = np.flatnonzero(weight)
    rest = [(np.flatnonzero(np.isin(counted, a)), np.flatnonzero(np.isin(counted, b))) for a, b in pairs]
    models = [
        KernelRegressor(bandwidth=4.0, cv=pairs).fit(x, y, weight),
        KernelRegressor(bandwidth=4.0, cv=rest).fit(x[counted], y[counted]),
    ]
    assert models[1]._smoother.design_effect > 1
    for method in ("jackknife+", "local"):
        np.testing.assert_allclose(*(model.predict_interval(x[::7], method=method) for model in models))


@pytest.mark.parametrize("kind", [KernelRegressor, KernelClassifier])
def test_a_generator_of_folds_is_a_list_of_its_pairs(kind: Any, tmp_path: Path) -> None:
    x, y, weight = draw(37, 2)
    y = y if kind is KernelRegressor else y > 0.3
    models = [kind(bandwidth=[0.3, 0.4], cv=cv) for cv in (KFold(5).split(x), list(KFold(5).split(x)))]
    for model in models:
        model.fit(x, y, weight)
        model.save(tmp_path / "model")
        model.report(tmp_path / f"{type(model.cv).__name__}.html", folds=2)
    again = [clone(models[0]), copy.deepcopy(models[0]), pickle.loads(pickle.dumps(models[0])), models[0]]
    expected = str(models[1].summary(folds=2))
    assert [str(model.fit(x, y, weight).summary(folds=2)) for model in again] == [expected] * 4
    loaded = kind.load(tmp_path / "model")
    assert str(loaded.summary(folds=2)) == expected
    with pytest.raises(ValueError, match="cv: got 'list'; expected a scikit-learn splitter, pairs of indices, or a"):
        loaded.fit(x, y)


@pytest.mark.parametrize("ridge", [None, 0.3])
@pytest.mark.parametrize("degree", [0, 1])
def test_the_gradient_is_the_slope_of_the_criterion(degree: int, ridge: float | None) -> None:
    if degree == 0 and ridge is None:
        ridge = 0.0
    x, y, weight = draw(53, 3)
    frame = pandas.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "c": pandas.Categorical(np.array(list("uvw"))[(3 * x[:, 2]).astype(int)])}
    )
    fitted = KernelRegressor(bandwidth=[0.3, 0.4, 0.2], cv=5).fit(frame, y, weight)
    rows = Rows(fitted.X_train_, y, weight, fitted.columns_, None, membership(KFold(5).split(x), len(x)))
    joined = rows.joined()
    folds = folds_of(rows, joined)
    assert folds is not None
    held = HeldOut(joined, folds, "gaussian", degree, ridge)
    t = np.log(np.array([0.3, 0.5, 0.8] + [0.2] * (ridge is None)))
    slope, _ = held.gradient(held(t))
    steps = 1e-5 * np.eye(len(t))
    assert np.allclose(slope, [(held(t + each).error - held(t - each).error) / 2e-5 for each in steps], rtol=2e-6)


def test_folds_of_one_row_give_the_intervals_of_leaving_out_one_row() -> None:
    """One precision is so large that the mean of the others is less than half: the ridge must not change with it."""
    x = np.random.default_rng(0).uniform(0, 3, (23, 1))
    y, weight = 100 * x[:, 0] + 5 * np.sin(4 * x[:, 0]), np.ones(23)  # so steep that the planes are the same
    weight[11] = 60.0
    alone, folds = (
        KernelRegressor(bandwidth=0.2, weights="precision", cv=cv).fit(x, y, weight) for cv in (None, LeaveOneOut())
    )
    for method, slack in (("jackknife+", 1e-3), ("local", 0.1)):
        expected = alone.predict_interval([[1.0], [2.0]], method=method)
        np.testing.assert_allclose(folds.predict_interval([[1.0], [2.0]], method=method), expected, rtol=0, atol=slack)


@pytest.mark.parametrize("splitter", [TimeSeriesSplit(4), ShuffleSplit(3, random_state=0)])
def test_errors_are_those_of_tested_rows_alone(splitter: Any) -> None:
    """Rows that are never tested have errors of 1,000, and rows tested more often do not count for more."""
    x = np.linspace(0, 1, 83)[:, None]
    tested = np.zeros(83)
    for _, own in splitter.split(x):
        tested[own] += 1
    y = np.where(tested > 0, 0.1, 1000.0) * np.random.default_rng(0).choice([-1, 1], 83)
    model = NadarayaWatson(bandwidth=1e6, cv=splitter).fit(x, y)
    middle = [[0.5]]  # where the rows' mean is, from which nothing is extrapolated
    drawn = model.sample(middle, 1000, random_state=0) - model.predict(middle)
    errors = model._smoother.tested
    assert errors is not None
    assert np.isclose(errors.weight.sum(), (tested > 0).sum())
    assert set(np.round(drawn.ravel(), 6)) <= set(np.round(errors.errors[:, 0], 6))
    for level in (0.8, 0.9):  # which the errors of all tested rows have, wherever these are
        assert np.isfinite(model.predict_interval(middle, level, "local")).all()


@pytest.mark.parametrize("order", ["constant", "linear"])
def test_a_series_has_intervals_that_hold_what_they_say(order: Any) -> None:
    """Noise of an autoregression of .6: without folds the intervals for the mean hold .63, and single values .75."""
    random, x = np.random.default_rng(5), np.linspace(0, 1, 101)[:, None]
    mean, inside = np.sin(4 * np.pi * x[:, 0]), []
    places = np.linspace(0.05, 0.95, 60)[:, None]
    for _ in range(5):
        y = mean + 0.3 * autoregressive(random, 101)
        model = KernelRegressor(order=order, cv=20).fit(x, y)
        new = mean + 0.3 * autoregressive(random, 101)
        held = [
            (low <= new) & (new <= high)
            for low, high in (model.predict_interval(x, 0.95, each) for each in ("jackknife+", "local"))
        ]
        low, high = model.confidence_interval(places)
        curve = np.sin(4 * np.pi * places[:, 0])
        inside.append([*(each.mean() for each in held), ((low <= curve) & (curve <= high)).mean()])
    assert (np.mean(inside, 0) >= 0.90).all(), np.mean(inside, 0)
    assert np.mean(inside, 0)[0] < 1  # and they are not infinite


def test_independent_errors_have_nearly_the_same_intervals() -> None:
    x, y, _ = draw(211, 1)
    plain, folded = (
        KernelRegressor(bandwidth=0.1, ridge=0, cv=cv).fit(x, y)
        for cv in (None, KFold(70, shuffle=True, random_state=0))
    )
    widths = [np.median(np.subtract(*model.confidence_interval(x)[::-1])) for model in (plain, folded)]
    assert 0.95 <= widths[1] / widths[0] <= 1.3
    assert np.allclose(plain.predict(x), folded.predict(x))


def test_models_with_folds_are_saved_and_pickled(tmp_path: Path) -> None:
    x, y, weight = draw(67, 2)
    weight[3] = 0
    model = KernelRegressor(cv=6).fit(x, y, weight)
    model.save(tmp_path / "a.safetensors")
    for other in (KernelRegressor.load(tmp_path / "a.safetensors"), pickle.loads(pickle.dumps(model))):
        for method in ("jackknife+", "local"):
            ends = other.predict_interval(x[:5], method=method), model.predict_interval(x[:5], method=method)
            assert np.array_equal(*ends)
    loaded = KernelRegressor.load(tmp_path / "a.safetensors")
    assert clone(loaded).fit(x, y, weight).bandwidth_.tolist() == model.bandwidth_.tolist()
    model.set_params(cv=KFold(6)).fit(x, y, weight).save(tmp_path / "a.safetensors")
    KernelRegressor.load(tmp_path / "a.safetensors").save(tmp_path / "a.safetensors")
    loaded = KernelRegressor.load(tmp_path / "a.safetensors")
    assert np.array_equal(loaded.folds_, model.folds_)
    with pytest.raises(ValueError, match="cv: got 'KFold'; expected a scikit-learn splitter"):
        clone(loaded).fit(x, y)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"cv": 1}, {}, "cv: got 1; expected a scikit-learn splitter"),
        ({"cv": "blocks"}, {}, "cv: got 'blocks'; expected a scikit-learn splitter"),
        ({"cv": 99}, {}, "Cannot have number of splits"),
        ({"cv": GroupKFold(3)}, {}, "groups"),
        ({"cv": GroupKFold(3)}, {"groups": [1] * 31}, "number of groups"),
        ({"cv": GroupKFold(3)}, {"groups": [1, 2]}, r"groups: got shape \(2,\)"),
        ({}, {"groups": [1] * 31}, "groups: got groups and cv=None"),
        ({"cv": [([], [0])]}, {}, "cv: got 1 splits, none with rows"),
        ({"cv": [([0], [99])]}, {}, "cv: got row 99"),
        ({"cv": [([-32, 0], [1])]}, {}, "cv: got row -32"),
        ({"cv": [([True] * 31, [False] * 31)]}, {}, "cv: got bool for rows"),
    ],
)
def test_folds_that_are_none(settings: Any, given: Any, message: str) -> None:
    x, y, _ = draw(31, 1)
    with pytest.raises(ValueError, match=message):
        KernelRegressor(**settings).fit(x, y, **given)


def test_random_halves_are_refused() -> None:
    x, y, _ = draw(31, 1)
    with pytest.raises(ValueError, match="method: got 'split', which draws random halves"):
        KernelRegressor(bandwidth=0.2, cv=5).fit(x, y).predict_interval(x, method="split")


def test_what_is_held_out_is_predicted_by_fits_with_the_same_folds() -> None:
    x, y, _ = draw(60, 1)
    blocks, predicted = KFold(3), np.empty(60)
    model = NadarayaWatson(cv=KFold(6, shuffle=True, random_state=0)).fit(x, y)
    for rest, held in blocks.split(x):
        inner = [(np.flatnonzero((own == 1)[rest]), np.flatnonzero((own == 2)[rest])) for own in model.folds_]
        other = NadarayaWatson(cv=[each for each in inner if len(each[1])]).fit(x[rest], y[rest])
        predicted[held] = other.predict(x[held])
    assert np.allclose(hold_out(model, blocks).predicted, predicted)
