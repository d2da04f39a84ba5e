import dense
import numpy as np
import pandas as pd
import pytest

from dikkat.regression import NadarayaWatson, trend

KERNELS = ["gaussian", "epanechnikov"]


def _data(outputs=()):
    random = np.random.default_rng(0)
    x, query = random.uniform(0, 4, (53, 2)), random.uniform(0.5, 3.5, (7, 2))
    y = np.sin(x[:, 0]).reshape(-1, *(1 for _ in outputs)) + random.normal(size=(53, *outputs))
    return x, y, query, random.integers(1, 4, 53).astype(float)


@pytest.mark.parametrize("outputs", [(), (2,)])
@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_central_differences(kernel, order, outputs):
    x, y, query, weight = _data(outputs)
    model = NadarayaWatson(kernel, bandwidth=[1.7, 2.3], order=order, ridge=0.3).fit(x, y, weight)
    found = model.gradient(query)
    assert found.shape == (7, 2, *outputs)
    for c in range(2):
        step = 1e-5 * np.eye(2)[c]
        expected = (model.predict(query + step) - model.predict(query - step)) / 2e-5
        np.testing.assert_allclose(found[:, c], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("order", "amount"), [("constant", np.inf), ("linear", np.inf), ("linear", 0.1)])
def test_errors_are_those_of_the_gradient_as_it_is_linear_in_y(order, amount, monkeypatch):
    for place in (trend, dense):  # one ridge of the plane alone, since which it is hangs on y
        monkeypatch.setattr(place, "AMOUNTS", (amount,))
    x, y, query, weight = _data()
    settings = {"bandwidth": [0.7, 0.9], "order": order, "ridge": 0.3}
    model = NadarayaWatson(**settings).fit(x, y, weight)
    slope, error = model.gradient(query, return_std=True)
    rows = np.array([NadarayaWatson(**settings).fit(x, unit, weight).gradient(query) for unit in np.eye(53)])
    np.testing.assert_allclose(np.tensordot(y, rows, 1), slope, rtol=1e-7, atol=1e-9)
    errors, shares = dense.left_out("gaussian", order, x, y[:, None], np.array([0.7, 0.9]), weight, 0.3)
    for i in range(7):
        k = dense.kernel_weights("gaussian", query[i], x, np.array([0.7, 0.9]), weight)
        wide = dense.kernel_weights("gaussian", k @ x / k.sum(), x, 2 * np.array([0.7, 0.9]), weight)
        noise = wide @ (shares * errors[:, 0]) ** 2 / (wide @ (1 - (1 - shares) / weight))
        # A row of weight 3 is three rows: its share of the gradient is three times that of one.
        expected = np.sqrt(noise * (rows[:, i] ** 2 / weight[:, None]).sum(0))
        np.testing.assert_allclose(error[i], expected, rtol=1e-6)


def test_coverage_of_the_mean_gradient():
    """The errors are those of repeated noise."""
    random, x = np.random.default_rng(1), np.linspace(0, 4, 120)[:, None]
    model = NadarayaWatson(bandwidth=0.5, order="linear", ridge=0.0)
    query, found = np.array([[1.0], [2.2]]), []
    for _ in range(60):
        found.append(model.fit(x, np.sin(x[:, 0]) + 0.3 * random.normal(size=120)).gradient(query, return_std=True))
    slopes, errors = (np.array(each)[..., 0] for each in zip(*found, strict=True))
    np.testing.assert_allclose(errors.mean(0), slopes.std(0, ddof=1), rtol=0.3)


def test_beside_categories():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"town": random.choice(["a", "b"], 50), "x": random.uniform(0, 3, 50)})
    y = np.sin(frame["x"]) + (frame["town"] == "b")
    for order in dense.ORDERS:
        model = NadarayaWatson(bandwidth=[0.1, 0.4], order=order, categorical_features=["town"]).fit(frame, y)
        slope, error = model.gradient(frame[:5], return_std=True)
        assert np.isnan(slope[:, 0]).all()
        assert np.isnan(error[:, 0]).all()
        high, low = (model.predict(frame[:5].assign(x=frame["x"][:5] + step)) for step in (1e-5, -1e-5))
        np.testing.assert_allclose(slope[:, 1], (high - low) / 2e-5, rtol=1e-5, atol=1e-7)
        assert (error[:, 1] > 0).all()


@pytest.mark.filterwarnings("ignore:.*in reach of the.*:UserWarning")
def test_where_there_is_none():
    x, y, _, _ = _data()
    far = np.array([[50.0, 50.0]])
    assert np.isnan(NadarayaWatson("epanechnikov", bandwidth=1.0).fit(x, y).gradient(far)).all()
    for order in dense.ORDERS:
        found = NadarayaWatson(bandwidth=0.5, order=order, ridge=0.25).fit(x, y).gradient(far)
        plane = dense.plane(x, y[:, None], np.ones(len(x)))[:, 0]
        np.testing.assert_allclose(found, [plane * (order == "linear")], atol=1e-6)
