"""What the benchmark of kernel regression computes on. Everything follows from its seeds, or comes with a library."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2

Array = np.ndarray


class Data(NamedTuple):
    """Attributes:
    key: (n, d).
    value: (n,).
    """

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
    """So many points of a curve with normal noise, at uniform places, sorted."""
    of, end, noise = CURVES[name]
    rng = np.random.default_rng(count)
    x = np.sort(rng.uniform(0, end, count))
    return Data(x[:, None], of(x) + noise * rng.standard_normal(count))


# Uniform in the unit cube --------------------------------------------------------------------------------------------


def cube(count: int, size: int, dtype: str = "float64", seed: int = 0) -> Data:
    """Uniform points of the unit cube, and a wave of them with noise; no copy in a wider dtype is made."""
    rng = np.random.default_rng(seed)
    key = rng.random((count, size), dtype=dtype)
    value = np.sin(5 * key.sum(1, dtype=dtype))
    value += np.asarray(0.1, dtype) * rng.standard_normal(count, dtype=dtype)
    return Data(key, value)


def within(radius: float, size: int) -> float:
    """The probability that two uniform points of the unit cube of 2 or 3 dimensions are at most a radius ≤ 1 apart.

    The integral over the ball of the product of 1 − |component|, the density of a difference of two uniform numbers.
    """
    r = radius
    if size == 2:
        return math.pi * r**2 - 8 / 3 * r**3 + r**4 / 2
    return 4 / 3 * math.pi * r**3 - 3 / 2 * math.pi * r**4 + 8 / 5 * r**5 - r**6 / 6


class Reach(NamedTuple):
    """How far a query sees, in the unit cube.

    Attributes:
        radius: Of the ball that holds the wanted share of the keys, on average over uniform queries.
        bandwidth: σ of the Gaussian all of whose weight but the tolerance lies in the ball, were there no boundary.
    """

    radius: float
    bandwidth: float


def reach(share: float, size: int, tolerance: float) -> Reach:
    """Of the Gaussian δ ~ N(0, I) the part beyond t is the upper tail of a χ² of `size` degrees of freedom at t²."""
    radius = brentq(lambda r: within(r, size) - share, 0.0, 1.0)
    return Reach(radius, radius / math.sqrt(chi2.isf(tolerance, size)))


# Small and nasty -----------------------------------------------------------------------------------------------------


def problem(number: int, count: int = 50) -> tuple[str, Data]:
    """A random problem of 1 to 3 dimensions, and what is unusual about it."""
    kinds = ("plain", "ties", "heavy tails", "constant column", "noise alone", "exact line")
    size, kind = 1 + number % 3, kinds[number // 3 % len(kinds)]
    rng = np.random.default_rng(number)
    key = rng.standard_normal((count, size))
    if kind == "ties":
        key = key.round(0 if size == 1 else 1)
    elif kind == "heavy tails":
        key = rng.standard_t(1.5, (count, size))
    elif kind == "constant column":  # beside one that is not
        key = np.column_stack([key[:, : max(1, size - 1)], np.full(count, 3.0)])
    if kind == "noise alone":
        value = rng.standard_normal(count)
    elif kind == "exact line":
        value = 1 + key @ np.arange(1.0, key.shape[1] + 1)
    else:
        noise = rng.standard_t(1.5, count) if kind == "heavy tails" else rng.standard_normal(count)
        value = np.sin(2 * key[:, 0]) + key[:, 1:].sum(1) + 0.3 * noise
    return kind, Data(key, value)


def problems(count: int) -> Iterator[tuple[str, Data]]:
    return map(problem, range(count))


# Tables --------------------------------------------------------------------------------------------------------------


def _friedman(number: int, noise: float) -> Callable[[], Data]:
    def made() -> Data:
        from sklearn import datasets

        maker = getattr(datasets, f"make_friedman{number}")
        return Data(*maker(n_samples=500, noise=noise, random_state=number))

    return made


def diabetes() -> Data:
    from sklearn.datasets import load_diabetes

    return Data(*load_diabetes(return_X_y=True))


def bundled(name: str, target: str, *columns: str) -> Callable[[], Data]:
    """A table that comes with statsmodels."""

    def made() -> Data:
        from importlib import import_module

        frame = import_module(f"statsmodels.datasets.{name}").load_pandas().data
        return Data(frame[list(columns)].to_numpy(float), frame[target].to_numpy(float))

    return made


# Of what comes with scikit-learn and statsmodels: 200 to 1,000 rows, at most 10 numeric columns, a number to predict
# that is no class, and rows that are not one after the other in time. Of the generated ones, Friedman's three with
# their usual noise. Chosen by that alone, before anything was fitted.
TABLES: dict[str, Callable[[], Data]] = {
    "Friedman 1": _friedman(1, 1.0),
    "Friedman 2": _friedman(2, 125.0),
    "Friedman 3": _friedman(3, 0.1),
    "diabetes": diabetes,
    "Engel": bundled("engel", "foodexp", "income"),
    "cancer": bundled("cancer", "cancer", "population"),
    "Grunfeld": bundled("grunfeld", "invest", "value", "capital"),
}
