"""Intervals of new values, and whether an answer hangs on how the columns are written.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.intervals [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `coverage`: 90 % intervals over the 51 tables of `reviewed` and `CASES`, by each method and by MAPIE's jackknife+
  around the same model, whose bandwidth is given: the share of new values that they hold, and their mean width in
  standard deviations of y;
- `tails`: the share of new values below and above 95 % intervals where noise is exponential;
- `invariance`: how far predictions of the same rows are apart that were turned, permuted, scaled and moved.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
from sklearn.model_selection import LeaveOneOut

from benchmarks.regression.contest import Record, failure
from benchmarks.regression.data import Array, Data
from benchmarks.regression.judgement import Pairs, Problem, Stage, of_drawn, review51, run
from benchmarks.regression.tables import Draw, normal, uniform
from dikkat.regression import KernelRegressor
from dikkat.regression.intervals import Method

Ends = tuple[Array, Array]
COVERAGE, DRAWS, TURNS = 0.9, 6, 24
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


def covered(pairs: Pairs, facts: Record) -> list[Record]:
    """Over all pairs: the share held, the mean width of the finite intervals, and the share of the others.

    MAPIE's are of the first pair alone, beside the width of this library's there.
    """
    held: dict[str, list[Array]] = {}
    wide: dict[str, list[Array]] = {}
    for old, new in pairs:
        model = KernelRegressor().fit(*old)
        for way in (*get_args(Method), *([MAPIE] if old is pairs[0][0] else [])):
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
        beside = {"ours": float(wide["jackknife+"][0].mean())} if way == MAPIE else {}
        mean = float(width[finite].mean()) if finite.any() else None  # JSON has no infinity
        found.append({**facts, "method": way, **share, "width": mean, **beside})
    return found


def cases() -> Iterator[Problem]:
    yield from of_drawn(CASES, 1000, DRAWS)
    yield from review51()


def outside(pairs: Pairs, facts: Record) -> list[Record]:
    """The mean shares below and above intervals of 95 %."""
    found: dict[str, list[tuple[float, float]]] = {}
    for old, new in pairs:
        model = KernelRegressor().fit(*old)
        for way in get_args(Method):
            lower, upper = model.predict_interval(new.key, 0.95, way)
            found.setdefault(way, []).append((np.mean(new.value < lower), np.mean(new.value > upper)))
    shares = {way: np.mean(each, 0).tolist() for way, each in found.items()}
    return [{**facts, "method": way, "below": below, "above": above} for way, (below, above) in shares.items()]


def apart(pairs: Pairs, facts: Record) -> list[Record]:
    """The largest difference over the draws, in standard deviations of y."""
    far: dict[str, list[float]] = {}
    random = np.random.default_rng(0)
    for old, new in pairs:
        size = old.key.shape[1]
        offset = random.normal(0, 10, size)
        scale = np.exp(random.normal(0, 3, size)) * random.choice([-1, 1], size)
        plain = KernelRegressor().fit(*old).predict(new.key)
        for way, of in {
            "-X": lambda x: -x,
            "columns permuted": lambda x, size=size: x[:, np.roll(np.arange(size), 1)],
            "affine": lambda x, scale=scale, offset=offset: (x + offset) * scale,
        }.items():
            other = KernelRegressor().fit(of(old.key), old.value).predict(of(new.key))
            far.setdefault(way, []).append(float(np.abs(other - plain).max() / old.value.std()))
    return [{**facts, "method": way, "apart": max(each), "of": each} for way, each in far.items()]


_SKEWED = {f"exponential noise, d = {size}": (200, noisy(size, _exponential)) for size in (1, 2)}
_TURNED = {"60 × 3": (60, normal(lambda x: np.sin(x[:, 0]) + 0.5 * x[:, 1], 3, 0.4))}
STAGES = {
    "coverage": Stage("regression-coverage", cases, covered),
    "tails": Stage("regression-tails", lambda: of_drawn(_SKEWED, 1000, TURNS), outside),
    "invariance": Stage("regression-invariance", lambda: of_drawn(_TURNED, 200, TURNS), apart),
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(STAGES, __doc__)
