"""Measure prediction intervals.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.intervals [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `coverage`: 90 % intervals over the 51 tables of `reviewed` and `CASES`, by each method and by MAPIE's jackknife+ with
  the same bandwidth: the share of test values inside, and the mean width in standard deviations of y.
- `fresh`: the same without MAPIE, over the 33 tables of `fresh`.
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
    """Draw sin 6x₁ (+ x₂ with a second column) with noise of standard deviation about 0.5."""

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


def mapie(model: KernelRegressor, training: Data, queries: Array) -> Ends:
    """Return MAPIE's jackknife+ intervals with the bandwidth and ridge of the model."""
    from mapie.regression import CrossConformalRegressor

    fixed_model = KernelRegressor(bandwidth=model.bandwidth_, ridge=model.ridge_)
    conformal = CrossConformalRegressor(fixed_model, confidence_level=COVERAGE, method="plus", cv=LeaveOneOut())
    ends = conformal.fit_conformalize(*training).predict_interval(queries)[1]
    return ends[:, 0, 0], ends[:, 1, 0]


def covered(
    pairs: Pairs, facts: Record, with_mapie: bool = False, make: Callable[[], KernelRegressor] = KernelRegressor
) -> list[Record]:
    """Return the coverage over all pairs, the mean width of finite intervals, and the share of infinite intervals.

    MAPIE is measured only on the first pair, with the width of dikkat's intervals there.
    """
    hits: dict[str, list[Array]] = {}
    widths: dict[str, list[Array]] = {}
    for training, test in pairs:
        model = make().fit(*training)
        for method in (*get_args(Method), *([MAPIE] if with_mapie and training is pairs[0][0] else [])):
            try:
                lower, upper = (
                    mapie(model, training, test.key)
                    if method == MAPIE
                    else model.predict_interval(test.key, COVERAGE, method)
                )
            except ValueError as error:  # MAPIE leaves out the only row of a category
                if method != MAPIE:
                    raise
                print(failure(error), flush=True)
                continue
            hits.setdefault(method, []).append((lower <= test.value) & (test.value <= upper))
            widths.setdefault(method, []).append((upper - lower) / np.concatenate([training.value, test.value]).std())
    records = []
    for method, hit_masks in hits.items():
        width = np.concatenate(widths[method])
        finite = np.isfinite(width)
        share = {"coverage": float(np.concatenate(hit_masks).mean()), "infinite": float(1 - finite.mean())}
        ours = {"ours": float(widths["jackknife+"][0].mean())} if method == MAPIE else {}
        mean = float(width[finite].mean()) if finite.any() else None  # JSON has no infinity
        records.append({**facts, "method": method, **share, "width": mean, **ours})
    return records


def cases() -> Iterator[Problem]:
    yield from of_drawn(CASES, 1000, DRAWS)
    yield from review51()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stages = {
        "coverage": Stage("regression-coverage", cases, partial(covered, with_mapie=True)),
        "fresh": Stage("regression-fresh-coverage", fresh33, covered),
    }
    run(stages, __doc__)
