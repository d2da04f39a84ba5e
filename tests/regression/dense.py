"""Kernel regression by its formulas, one query at a time, in NumPy: what the tests expect."""

from contextlib import contextmanager

import numpy as np
import pytest

from dikkat.regression import bandwidth, metric

KERNELS = {"gaussian": lambda r: np.exp(-(r**2) / 2), "epanechnikov": lambda r: np.maximum(0, 1 - r**2)}
COMPACT = ["epanechnikov"]
AMOUNTS = [np.inf, *10.0 ** np.arange(3, -7, -1)]  # of the plane's ridge
ORDERS = ["constant", "linear"]


def kernel_weights(kernel, query, x, sigma, weight):
    """W K(r), (m,), not normalised."""
    return weight * KERNELS[kernel](np.sqrt((((x - query) / sigma) ** 2).sum(1)))


def design(query, x, order):
    """Rows (1) or (1, x − query)."""
    ones = np.ones((len(x), 1))
    return ones if order == "constant" else np.hstack([ones, x - query])


def fit(kernel, order, query, x, y, sigma, weight):
    """The coefficients of the local fit, by weighted least squares."""
    root = np.sqrt(kernel_weights(kernel, query, x, sigma, weight))
    z = design(query, x, order)
    return np.linalg.lstsq(root[:, None] * z, (root * y.T).T, rcond=None)[0]


def predict(kernel, order, queries, x, y, sigma, weight=None):
    weight = np.ones(len(x)) if weight is None else weight
    return np.array([fit(kernel, order, q, x, y, sigma, weight)[0] for q in queries])


def smoother_row(kernel, order, query, x, sigma, weight):
    """l, (m,): the estimate is l·y."""
    k = kernel_weights(kernel, query, x, sigma, weight)
    z = design(query, x, order)
    return np.linalg.solve(z.T @ (k[:, None] * z), (k[:, None] * z).T)[0]


def leave_one_out_error(kernel, order, x, y, sigma, weight=None):
    """Copies of a row are left out with it; whom nobody reaches the mean of the others answers."""
    weight = np.ones(len(x)) if weight is None else weight
    total = 0.0
    for i in range(len(x)):
        others = ~((x == x[i]).all(1) & (y == y[i]).reshape(len(y), -1).all(1)) & (weight > 0)
        if weight[i] == 0:
            continue
        if kernel_weights(kernel, x[i], x[others], sigma, weight[others]).sum() == 0:
            estimate = np.average(y[others], axis=0, weights=weight[others])
        else:
            estimate = fit(kernel, order, x[i], x[others], y[others], sigma, weight[others])[0]
        total += weight[i] * np.mean((y[i] - estimate) ** 2)
    return total / weight.sum()


def penalty(order, x, sigma, weight, ridge):
    """What ρ rows say that one bandwidth, or one standard deviation where that is shorter, off x has the same y."""
    if order == "constant":
        return np.zeros((1, 1))
    mean = np.average(x, axis=0, weights=weight)
    variance = np.average((x - mean) ** 2, axis=0, weights=weight)
    return np.diag([0, *(ridge / (1 / variance + 1 / np.broadcast_to(sigma, variance.shape) ** 2))])


def plane(x, y, weight, without=None, units=False):
    """The slopes (d, v) of ridge regression, perhaps without the rows at a place; or (d, n), their rows."""
    share = weight / weight.sum()
    unit = np.sqrt(share @ (x - share @ x) ** 2)
    unit = np.where(unit > 0, unit, 1)

    def slopes(amount, place):
        there = np.ones(len(x), bool) if place is None else (x != place).any(1)
        part = share[there]
        if np.isinf(amount):
            slope = np.zeros((x.shape[1], y.shape[1]))
        else:
            z, value = (each[there] - part @ each[there] / part.sum() for each in (x / unit, y))
            system = z.T @ (part[:, None] * z) + amount * np.eye(len(unit))
            slope = np.linalg.solve(system, z.T @ (part[:, None] * value)) / unit[:, None]
        return slope, part @ (y - x @ slope)[there] / part.sum()

    def error(amount):
        total = 0.0
        for place in np.unique(x, axis=0):
            own = (x == place).all(1)
            slope, height = slopes(amount, place)
            mean = np.average(y[own], axis=0, weights=share[own])
            total += share[own].sum() * np.mean((mean - height - place @ slope) ** 2)
        return total

    amount = min(AMOUNTS, key=error)
    y = np.eye(len(x)) if units else y
    return slopes(amount, without)[0]


def ridged(kernel, order, query, x, y, sigma, weight, added, slope=0.0):
    """The coefficients with a penalty on what they are beyond a slope, and the inverse of what is solved."""
    k, z = kernel_weights(kernel, query, x, sigma, weight), design(query, x, order)
    inverse = np.linalg.inv(z.T @ (k[:, None] * z) + added)
    if order == "constant":
        return inverse @ (k[:, None] * z).T @ y, inverse
    slope = slope + np.zeros((x.shape[1], y.shape[1]))
    theta = inverse @ (k[:, None] * z).T @ (y - (x - query) @ slope)
    theta[1:] += slope
    return theta, inverse


@contextmanager
def short_searches():
    """What is looked at is not how good a bandwidth is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "_subset_starts", lambda *_: [])
        patch.setattr(bandwidth, "_toggle_features", lambda _, path, *more: path)
        patch.setattr(metric, "_MAX_ROUNDS", 1)
        yield


def expected_failures(estimator):
    """The checks of scikit-learn that an estimator fails on purpose."""
    return {"check_fit1d": "an array of one dimension is one column, as a list or a series"}
