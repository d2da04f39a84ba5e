import dense
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from dikkat.regression import NadarayaWatson
from dikkat.regression.significance import significance

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


@pytest.mark.parametrize("order", dense.ORDERS)
def test_errors_are_those_of_the_gradient_as_it_is_linear_in_y(order):
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
        np.testing.assert_allclose(found, 0, atol=1e-6)


def test_significance_by_permutation():
    random = np.random.default_rng(3)
    x = random.uniform(0, 3, (50, 2))
    y = np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=50)
    model = NadarayaWatson(bandwidth=[0.3, 0.6]).fit(x, y)
    found = significance(model, n_permutations=39, random_state=5)
    again = significance(model, n_permutations=39, random_state=5)
    np.testing.assert_array_equal(found.permuted, again.permuted)
    assert found.p_value[0] == 1 / 40
    assert found.p_value[1] > 0.05
    expected = (1 + (found.permuted[1] <= found.error).sum()) / 40
    assert found.p_value[1] == expected
    shuffled = np.random.RandomState(5).permutation(50)
    errors = []
    for i in range(50):
        mixed = np.column_stack([x[shuffled, 0], x[:, 1]])
        others = np.arange(50) != i
        errors.append(
            y[i]
            - dense.predict("gaussian", "constant", mixed[i : i + 1], mixed[others], y[others], model.bandwidth_)[0]
        )
    np.testing.assert_allclose(found.permuted[0, 0], np.mean(np.square(errors)), rtol=1e-9)
    with pytest.raises(ValueError, match="n_permutations: got 0"):
        significance(model, n_permutations=0)


def test_where_there_is_nothing_to_predict_no_column_is_significant():
    model = NadarayaWatson(bandwidth=1.0).fit(np.ones((5, 2)), np.arange(5.0))
    found = significance(model, n_permutations=9)
    assert found.error == 3.125  # of 0 to 4 each from the others' mean
    assert found.p_value.tolist() == [1, 1]


def test_what_has_no_significance():
    x = np.arange(6.0)[:, None]
    with pytest.raises(NotFittedError):
        significance(NadarayaWatson(bandwidth=1.0))
    with pytest.raises(ValueError, match="n_permutations: got None; expected a whole number"):
        significance(NadarayaWatson(bandwidth=1.0).fit(x, x[:, 0]), n_permutations=None)
    with pytest.raises(ValueError, match="model: got one of 2 targets; expected one target"):
        significance(NadarayaWatson(bandwidth=1.0).fit(x, np.hstack([x, x])))
