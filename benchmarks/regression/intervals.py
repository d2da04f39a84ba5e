"""Intervals of new values.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.intervals [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `coverage`: 90 % intervals over the 51 tables of `reviewed` and `CASES`, by each method and by MAPIE's jackknife+
  around the same model, whose bandwidth is given: the share of new values that they hold, and their mean width in
  standard deviations of y.
- `fresh`: the same without MAPIE's, over the 33 tables of `fresh`.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

import numpy as np
from sklearn.model_selection import LeaveOneOut

from benchmarks.regression.contest import Record, failure
from benchmarks.regression.data import Array, Data
from benchmarks.regression.judgement import Pairs, Problem, Stage, fresh33, of_drawn, review51, run
from benchmarks.regression.tables import Draw, normal, uniform
from dikkat.regression import KernelRegressor
from dikkat.regression.intervals import Method

Ends = tuple[Array, Array]
COVERAGE, DRAWS = 0.9, 6
MAPIE = "MAPIE, jackknife+"


def noisy(size: int, noise: Callable[[np.random.Generator, Array], Array]) -> Draw:
    """sin 6x₁ + x₂, where there is a second column, and noise of a standard deviation of about 0.5."""

    def draw(random: np.random.Generator, count: int) -> Data:
        x = random.uniform(size=(count, size))
        return Data(x, np.sin(6 * x[:, 0]) + x[:, 1:2].sum(1) + noise(random, x))

    return draw


def _exponential(random: np.random.Generator, x: Array) -> Array:
    return 0.5 * (random.exponential(size=len(x)) - 1)


CASES: dict[str, tuple[int, Draw]] = {
    "normal": (200, uniform(lambda x: np.sin(6 * x[:, 0]), 1, 0.5)),
    "skewed": (200, noisy(1, _exponential)),
    "heteroscedastic": (200, noisy(1, lambda random, x: (0.1 + 0.9 * x[:, 0]) * random.normal(size=len(x)))),
    "heavy tails": (200, noisy(1, lambda random, x: 0.3 * random.standard_t(3, len(x)))),
    "d = 3": (200, normal(lambda x: np.sin(2 * x[:, 0]) + 0.5 * x[:, 1], 3, 0.5)),
    "d = 3, heteroscedastic": (200, noisy(3, lambda random, x: (0.1 + 0.9 * x[:, 0]) * random.normal(size=len(x)))),
}


def mapie(model: KernelRegressor, old: Data, new: Array) -> Ends:
    """Its jackknife+ around the bandwidth and the ridge that were found, which fits anew without each row."""
    from mapie.regression import CrossConformalRegressor

    given = KernelRegressor(bandwidth=model.bandwidth_, ridge=model.ridge_)
    around = CrossConformalRegressor(given, confidence_level=COVERAGE, method="plus", cv=LeaveOneOut())
    ends = around.fit_conformalize(*old).predict_interval(new)[1]
    return ends[:, 0, 0], ends[:, 1, 0]


def covered(pairs: Pairs, facts: Record, beside: bool = True) -> list[Record]:
    """Over all pairs: the share held, the mean width of the finite intervals, and the share of the others.

    MAPIE's are of the first pair alone, beside the width of this library's there.
    """
    held: dict[str, list[Array]] = {}
    wide: dict[str, list[Array]] = {}
    for old, new in pairs:
        model = KernelRegressor().fit(*old)
        for way in (*get_args(Method), *([MAPIE] if beside and old is pairs[0][0] else [])):
            try:
                lower, upper = (
                    mapie(model, old, new.key) if way == MAPIE else model.predict_interval(new.key, COVERAGE, way)
                )
            except ValueError as error:  # MAPIE leaves out the only row of a category
                if way != MAPIE:
                    raise
                print(failure(error), flush=True)
                continue
            held.setdefault(way, []).append((lower <= new.value) & (new.value <= upper))
            wide.setdefault(way, []).append((upper - lower) / np.concatenate([old.value, new.value]).std())
    found = []
    for way, every in held.items():
        width = np.concatenate(wide[way])
        finite = np.isfinite(width)
        share = {"coverage": float(np.concatenate(every).mean()), "infinite": float(1 - finite.mean())}
        ours = {"ours": float(wide["jackknife+"][0].mean())} if way == MAPIE else {}
        mean = float(width[finite].mean()) if finite.any() else None  # JSON has no infinity
        found.append({**facts, "method": way, **share, "width": mean, **ours})
    return found


def cases() -> Iterator[Problem]:
    yield from of_drawn(CASES, 1000, DRAWS)
    yield from review51()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stages = {
        "coverage": Stage("regression-coverage", cases, covered),
        "fresh": Stage("regression-fresh-coverage", fresh33, partial(covered, beside=False)),
    }
    run(stages, __doc__)
