"""The textbook's experiment: three poolings of the same fifty points."""

from typing import NamedTuple

import numpy as np

from dikkat.regression.estimator import NadarayaWatson
from dikkat.regression.joined import Array

_POINTS = 50  # training points
EVERYWHERE = 1e9
"""A bandwidth with which all points weigh the same."""
_NOISE = 0.5  # standard deviation of the noise


class Pooling(NamedTuple):
    """One of the three poolings."""

    name: str
    model: NadarayaWatson  # fitted
    predicted: Array  # (n,), at the test points
    weights: Array  # (n, m), of the test points on the training points
    error: float  # the mean squared distance of the predictions from the truth


class Experiment(NamedTuple):
    """Random points, and three poolings: their mean, and the Gaussian kernel with σ = 1 and with a learned σ."""

    x: Array  # (m,), the training points, ascending
    y: Array  # (m,), their values, with noise
    at: Array  # (n,), the test points, ascending
    truth: Array  # (n,), the function there, without noise
    poolings: tuple[Pooling, Pooling, Pooling]


def run_experiment(seed: int) -> Experiment:
    r"""Draw random points and pool them in three ways.

    $$ y = 2 \sin x + x^{0.8} + \varepsilon, \qquad \varepsilon \sim N(0, 0.5^2), \quad x \sim U[0, 5), $$

    fifty points to learn from, and the truth at 0, 0.1, …, 4.9 to compare with.

    Args:
        seed: Seed of the random numbers, at least 0.

    Example:
        >>> average, fixed, learned = run_experiment(0).poolings
        >>> learned.error < fixed.error < average.error
        True

    Source: Zhang et al., Dive into Deep Learning, the section on attention pooling by similarity.
    """
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0.0, 5.0, _POINTS))
    y = _truth(x) + random.normal(0.0, _NOISE, _POINTS)
    at = np.arange(0.0, 5.0, 0.1)

    def pooling(name: str, model: NadarayaWatson) -> Pooling:
        predicted = np.asarray(model.fit(x[:, None], y).predict(at[:, None]))
        weights = np.asarray(model.attention_weights(at[:, None]))
        return Pooling(name, model, predicted, weights, float(np.mean((predicted - _truth(at)) ** 2)))

    poolings = (
        pooling("average pooling", NadarayaWatson(bandwidth=EVERYWHERE)),
        pooling("Gaussian, σ = 1", NadarayaWatson(bandwidth=1.0)),
        pooling("Gaussian, σ learned", NadarayaWatson(bandwidth="loo")),
    )
    return Experiment(x, y, at, _truth(at), poolings)


def _truth(x: Array) -> Array:
    return np.asarray(2 * np.sin(x) + x**0.8)
