"""Generated tables to evaluate a regressor, and splits of tables."""

from collections.abc import Callable

import numpy as np

from benchmarks.regression.data import Array, Data

Table = Callable[[], Data]
Draw = Callable[[np.random.Generator, int], Data]


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


# The number of training rows, and the generator.
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


def loaded(table: Table, max_rows: int | None = None) -> Data:
    """Load a table in random order."""
    data = table()
    return taken(data, np.random.default_rng(0).permutation(len(data.value))[:max_rows])


def folds(data: Data, count: int = 5) -> list[tuple[Data, Data]]:
    """Return pairs of training and test rows."""
    fold: Array = np.arange(len(data.value)) % count
    return [(taken(data, fold != number), taken(data, fold == number)) for number in range(count)]


def taken(data: Data, rows: Array) -> Data:
    """Select rows of arrays or frames."""
    return Data(data.key.iloc[rows] if hasattr(data.key, "iloc") else data.key[rows], data.value[rows])
