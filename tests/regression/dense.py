"""Kernel regression by its formulas, one query at a time, in NumPy: what the tests expect."""

import math

import numpy as np

KERNELS = {
    "gaussian": lambda r: np.exp(-(r**2) / 2),
    "epanechnikov": lambda r: np.maximum(0, 1 - r**2),
    "boxcar": lambda r: (r <= 1).astype(float),
    "triangular": lambda r: np.maximum(0, 1 - r),
    "average": lambda r: np.ones_like(r),
}
COMPACT = ["epanechnikov", "boxcar", "triangular"]
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


def spread(kernel, order, query, x, y, sigma, weight=None):
    """The estimate and the standard deviation about it, (v,) each, in long double; for a line of one feature."""
    x, y, query = (np.asarray(array, np.longdouble) for array in (x, y, query))
    w = kernel_weights(kernel, query, x, np.longdouble(sigma), np.longdouble(1) if weight is None else weight)
    w, delta = w / w.sum(), (x - query) / sigma
    mean, offset = w @ y, w @ delta
    slope = np.zeros((1, y.shape[1]), np.longdouble)
    if order == "linear":
        slope = (w[:, None] * (delta - offset)).T @ (y - mean) / (w @ (delta - offset) ** 2)
    left = y - mean - (delta - offset) @ slope
    return mean - offset @ slope, np.sqrt(w @ left**2)


def leave_one_out_error(kernel, order, x, y, sigma, weight=None):
    """All rows at the same place are left out together; whom nobody reaches the mean of the others answers."""
    weight = np.ones(len(x)) if weight is None else weight
    total = 0.0
    for i in range(len(x)):
        others = (x != x[i]).any(1) & (weight > 0)
        if weight[i] == 0:
            continue
        if kernel_weights(kernel, x[i], x[others], sigma, weight[others]).sum() == 0:
            estimate = np.average(y[others], axis=0, weights=weight[others])
        else:
            estimate = fit(kernel, order, x[i], x[others], y[others], sigma, weight[others])[0]
        total += weight[i] * np.mean((y[i] - estimate) ** 2)
    return total / weight.sum()


def ball_volume(size):
    return math.pi ** (size / 2) / math.gamma(size / 2 + 1)
