import dense
import numpy as np
import pytest

from crossings import slow_regression
from crossings.slow_regression import Slow
from dikkat.regression import NadarayaWatson, local


def _data(outputs=()):
    random = np.random.default_rng(0)
    x, query = random.uniform(0, 4, (53, 2)), random.uniform(0.5, 3.5, (7, 2))
    y = np.sin(x[:, 0]).reshape(-1, *(1 for _ in outputs)) + random.normal(size=(53, *outputs))
    return x, y, query, random.integers(1, 4, 53).astype(float)


@pytest.mark.parametrize(("order", "amount"), [("constant", np.inf), ("linear", np.inf), ("linear", 0.1)])
def test_errors_are_those_of_the_gradient_as_it_is_linear_in_y(order, amount, monkeypatch):
    for module in (local, slow_regression):  # a fixed ridge of the plane, since the choice depends on y
        monkeypatch.setattr(module, "AMOUNTS", (amount,))
    x, y, query, weight = _data()
    settings = {"bandwidth": [0.7, 0.9], "order": order, "ridge": 0.3}
    model = NadarayaWatson(**settings).fit(x, y, weight)
    slope, error = model.gradient(query, return_std=True)
    rows = np.array([NadarayaWatson(**settings).fit(x, unit, weight).gradient(query) for unit in np.eye(53)])
    np.testing.assert_allclose(np.tensordot(y, rows, 1), slope, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(error, Slow(model).gradient(query, return_std=True)[..., 0], rtol=1e-4)


def test_coverage_of_the_mean_gradient():
    """The errors are those of repeated noise."""
    random, x = np.random.default_rng(1), np.linspace(0, 4, 120)[:, None]
    model = NadarayaWatson(bandwidth=0.5, order="linear", ridge=0.0)
    query, found = np.array([[1.0], [2.2]]), []
    for _ in range(60):
        found.append(model.fit(x, np.sin(x[:, 0]) + 0.3 * random.normal(size=120)).gradient(query, return_std=True))
    slopes, errors = (np.array(each)[..., 0] for each in zip(*found, strict=True))
    np.testing.assert_allclose(errors.mean(0), slopes.std(0, ddof=1), rtol=0.3)


@pytest.mark.filterwarnings("ignore:.*in reach of the.*:UserWarning")
def test_where_there_is_none():
    x, y, _, _ = _data()
    far = np.array([[50.0, 50.0]])
    assert np.isnan(NadarayaWatson("epanechnikov", bandwidth=1.0).fit(x, y).gradient(far)).all()
    for order in dense.ORDERS:
        found = NadarayaWatson(bandwidth=0.5, order=order, ridge=0.25).fit(x, y).gradient(far)
        plane = dense.plane(x, y[:, None], np.ones(len(x)))[:, 0]
        np.testing.assert_allclose(found, [plane * (order == "linear")], atol=1e-6)
