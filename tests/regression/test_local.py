import dense
import numpy as np
import pytest
import torch

from dikkat.regression import KernelRegressor
from dikkat.regression.joined import join
from dikkat.regression.local import LocalFit, Points, fit_queries, moments, noise_share, ridge_of, trend
from dikkat.regression.local import local_fit as ridged_fit
from dikkat.regression.moments.launch import Window

ROWS, QUERIES, VALUES = 41, 7, 2
SIZES = [1, 3, 5]


def _no_ridge(found):
    size = found.offset.shape[1]
    return torch.zeros(size, dtype=found.lse.dtype) if size else None


def local_fit(found) -> LocalFit:
    return ridged_fit(found, _no_ridge(found))


def _data(size, seed=0, dtype=np.float64):
    random = np.random.default_rng(seed)
    x, query = random.uniform(0, 4, (ROWS, size)).astype(dtype), random.uniform(0, 4, (QUERIES, size)).astype(dtype)
    y = (np.sin(x) @ random.normal(size=(size, VALUES)) + random.normal(size=(ROWS, VALUES))).astype(dtype)
    weight = random.integers(1, 4, ROWS).astype(dtype)
    sigma = random.uniform(1.0, 2.0, size).astype(dtype) * (1 + size)
    return x, y, weight, query, sigma


def _moments(x, y, weight, query, sigma, order, kernel="gaussian", squared=False):
    points = Points(*(torch.tensor(array) for array in (x, y, weight)))
    window = Window(kernel, torch.tensor(sigma), squared=squared)
    return moments(torch.tensor(query), points, window, degree=int(order == "linear"))


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", dense.KERNELS)
@pytest.mark.parametrize("size", SIZES)
def test_the_fit_is_that_of_weighted_least_squares(size, kernel, order):
    x, y, weight, query, sigma = _data(size)
    found = _moments(x, y, weight, query, sigma, order, kernel)
    points = Points(*(torch.tensor(array) for array in (x, y, weight)))
    window = Window(kernel, torch.tensor(sigma))
    compiled = fit_queries(torch.tensor(query), points, window, _no_ridge(found))[1].theta.numpy()
    theta = local_fit(found).theta.numpy()
    np.testing.assert_allclose(compiled, theta, rtol=1e-12, atol=1e-12)
    for i in range(QUERIES):
        expected = dense.fit(kernel, order, query[i], x, y, sigma, weight)
        expected[1:] *= sigma[: len(expected) - 1, None]  # slopes for δ, not for x
        np.testing.assert_allclose(theta[i], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("slopes", [0, 1, 3, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_the_kernel_fits_lines_as_pytorch_does(dtype, tolerance, slopes, drawn):
    """With slopes along the first coordinates only, one of which is constant, and a query that no weight reaches."""
    x, y, weight, query, sigma = _data(5, seed=2, dtype=dtype)
    x[:, 2] = x[0, 2]
    query[3] += 1000
    points = Points(*(torch.tensor(array) for array in (x, y, weight)))
    window = Window("gaussian", torch.tensor(sigma))
    ridge = torch.tensor(np.random.default_rng(3).uniform(0.1, 2, (QUERIES, slopes)).astype(dtype))
    exclude = torch.arange(QUERIES) * 5
    toward = torch.tensor(np.random.default_rng(4).normal(size=(QUERIES, slopes, VALUES)).astype(dtype))
    toward = toward if drawn else None
    lse, compiled = fit_queries(torch.tensor(query), points, window, ridge, toward, exclude=exclude)
    around = moments(torch.tensor(query), points, window, degree=1, exclude=exclude)
    torch.testing.assert_close(lse, around.lse)
    for one, other in zip(compiled, ridged_fit(around, ridge, toward), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert (compiled.theta[3, 1 : 1 + slopes] == (toward[3] if drawn else 0)).all()
    assert (compiled.theta[:, 1 + slopes :] == 0).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("slopes", [0, 2])
def test_slopes_beyond_the_ridge_are_those_of_the_plane(slopes, compiled):
    """The expected line is that of y minus the plane along these coordinates."""
    x, y, weight, query, sigma = _data(5, seed=5)
    points = Points(*(torch.tensor(array) for array in (x, y, weight)))
    window, ridge = Window("gaussian", torch.tensor(sigma)), torch.full((slopes,), 0.3, dtype=torch.float64)
    target = np.random.default_rng(6).normal(size=(4, VALUES))
    if compiled:
        fit = fit_queries(torch.tensor(query), points, window, ridge, torch.tensor(target))[1]
    else:
        fit = ridged_fit(moments(torch.tensor(query), points, window, degree=1), ridge, torch.tensor(target))
    for i in range(QUERIES):
        delta = (x - query[i]) / sigma
        k = dense.kernel_weights("gaussian", query[i], x, sigma, weight)
        z = np.hstack([np.ones((ROWS, 1)), delta[:, :slopes]])
        penalty = np.diag([0, *[0.3] * slopes])
        theta = np.linalg.solve(z.T @ (k[:, None] * z) + penalty, (k[:, None] * z).T @ (y - delta[:, :4] @ target))
        theta[1:] += target[:slopes]
        np.testing.assert_allclose(fit.theta[i], np.vstack([theta, target[slopes:]]), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("distance", [40.0, 100.0, 200.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_far_from_dense_points_there_is_no_line(distance, dtype):
    """Their weights differ by little there: a slope from a thousandth of a bandwidth would go on for a hundred."""
    query, random = np.array([[distance]], dtype), np.random.default_rng(0)
    x, y = random.uniform(-0.01, 0, (ROWS, 1)).astype(dtype), random.normal(size=(ROWS, 1)).astype(dtype)
    ones, sigma = np.ones(ROWS, dtype), np.ones(1, dtype)
    found = _moments(x, y, ones, query, sigma, "linear")
    fit = local_fit(found)
    square = ((x.astype(float) - query) ** 2)[:, 0] / 2
    share = np.exp(square.min() - square)
    share /= share.sum()
    tolerance = 1e-9 if dtype == np.float64 else 2e-2  # of a square of 2 · 10⁴ the last digit in float32 is 0.002
    np.testing.assert_allclose(fit.estimate.numpy()[0, 0], share @ y[:, 0], atol=tolerance)
    assert (fit.theta.numpy()[:, 1:] == 0).all()
    np.testing.assert_array_equal(fit.row.numpy(), [[1, 0]])
    norm = noise_share(found, _moments(x, y, ones, query, sigma, "linear", squared=True), _no_ridge(found))
    np.testing.assert_allclose(norm, (share**2).sum(), atol=tolerance)


@pytest.mark.parametrize("kernel", dense.KERNELS)
def test_the_share_of_noise_in_a_line(kernel):
    x, y, weight, query, sigma = _data(3, seed=1)
    found, squared = (_moments(x, y, weight, query, sigma, "linear", kernel, squared=each) for each in (False, True))
    norm = noise_share(found, squared, _no_ridge(found))
    repeated = np.repeat(x, weight.astype(int), 0)
    for i in range(QUERIES):
        row = dense.smoother_row(kernel, "linear", query[i], repeated, sigma, np.ones(len(repeated)))
        np.testing.assert_allclose(norm[i], row @ row, rtol=1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("size", SIZES)
def test_the_ridge_is_that_of_penalised_least_squares(size, kernel):
    """As if more rows had a slope that is given, by which the heights are not drawn anywhere."""
    x, y, weight, query, sigma = _data(size, seed=2)
    spread, amount = x.std(0), 0.7
    ridge = ridge_of(torch.tensor(amount), torch.tensor(spread), torch.tensor(sigma))
    found = _moments(x, y, weight, query, sigma, "linear", kernel)
    toward = np.random.default_rng(3).normal(size=(size, VALUES))
    fit = ridged_fit(found, ridge, torch.tensor(toward * sigma[:, None]))
    for i in range(QUERIES):
        k = dense.kernel_weights(kernel, query[i], x, sigma, weight)
        z = dense.design(query[i], x, "linear")
        penalty = np.diag([0, *(amount * spread**2 * sigma**2 / (spread**2 + sigma**2))])
        theta = np.linalg.solve(z.T @ (k[:, None] * z) + penalty, (k[:, None] * z).T @ (y - (x - query[i]) @ toward))
        theta[1:] += toward
        np.testing.assert_allclose(fit.estimate[i], theta[0], rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(fit.theta[i, 1:], theta[1:] * sigma[:, None], rtol=1e-6, atol=1e-9)


def test_a_row_that_sees_one_other_row_does_not_know_the_slope():
    """With the plane's slope 0, the residual of a row over its left-out error is the share of noise left in it."""
    x = np.array([0.0, 0.6, 5.0, 5.6, 10.0, 10.6])
    y = np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    model = KernelRegressor("epanechnikov", bandwidth=1.0, ridge=0.25).fit(x[:, None], y)
    assert (model._smoother.trend.slope == 0).all()
    residual, left_out = y - model.predict(x[:, None]), 2 * y
    _, trial = model._smoother.left_out
    residual_share = trial.residual_share[model._smoother.joined.unique_index]
    np.testing.assert_allclose(residual_share, residual / left_out, rtol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_two_rows_do_not_determine_the_ridge_of_the_plane(seed):
    """Each row is predicted by the other's value, at any ridge: rounding must not choose one."""
    random = np.random.default_rng(seed)
    x, y = random.uniform(0, 3, (2, 2)) * [1, 7], random.normal(size=(2, 1))
    assert (trend(join(x, y, np.ones(2))).slope == 0).all()
