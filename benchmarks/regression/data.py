"""Random points on curves and in the unit cube, with fixed seeds."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Data(NamedTuple):
    """Rows (n, d) and their values (n,)."""

    key: Array
    value: Array


# One-dimensional -----------------------------------------------------------------------------------------------------


def _sine(x: Array) -> Array:
    return np.sin(2 * math.pi * x)


def _step(x: Array) -> Array:
    return (x > 0.4).astype(float)


def _textbook(x: Array) -> Array:
    return 2 * np.sin(x) + x**0.8


# The curve, its domain's end, the noise's standard deviation.
CURVES: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "sine": (_sine, 1.0, 0.3),
    "step": (_step, 1.0, 0.2),
    "textbook": (_textbook, 5.0, 0.5),
}


def curve(name: str, count: int) -> Data:
    """Return `count` points of a curve with normal noise; x is uniform and sorted."""
    function, end, noise = CURVES[name]
    rng = np.random.default_rng(count)
    x = np.sort(rng.uniform(0, end, count))
    return Data(x[:, None], function(x) + noise * rng.standard_normal(count))


# Uniform in the unit cube --------------------------------------------------------------------------------------------


def cube(count: int, size: int, dtype: str = "float64", seed: int = 0) -> Data:
    """Return uniform points of the unit cube and a wave with noise, without copies in a wider dtype."""
    rng = np.random.default_rng(seed)
    key = rng.random((count, size), dtype=dtype)
    value = np.sin(5 * key.sum(1, dtype=dtype))
    value += np.asarray(0.1, dtype) * rng.standard_normal(count, dtype=dtype)
    return Data(key, value)
