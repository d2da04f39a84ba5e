"""Which order and criterion predict best over tables that are drawn: what the estimator's defaults were chosen by.

    PYTHONPATH=src:. python -m benchmarks.regression.judgement [--seeds 2]

Each table is drawn with 1,000 further rows, on which R² is measured. For the ranks each table counts once a seed.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.regression.data import Array
from dikkat.regression import NadarayaWatson

_NEW = 1000
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]
WAYS: dict[str, dict[str, str]] = {
    f"{order} {by}": {"order": order, "bandwidth": by}
    for order in ("constant", "linear")
    for by in ("loo", "loo-1se", "aic", "gcv")
}


def _uniform(function: Callable[[Array], Array], size: int, noise: float) -> Draw:
    def draw(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        x = random.uniform(0, 1, (count, size))
        return x, function(x) + random.normal(0, noise, count)

    return draw


def _normal(function: Callable[[Array], Array], size: int, noise: float, common: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        x = random.normal(size=(count, size)) + common * random.normal(size=(count, 1))
        return x, function(x) + random.normal(0, noise, count)

    return draw


def _friedman(x: Array) -> Array:
    return np.asarray(10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4])


def _classes(x: Array) -> Array:
    return np.asarray((x[:, :5].sum(1) > 0) * 1.0)


TABLES: dict[str, tuple[int, Draw]] = {
    "wave": (80, _uniform(lambda x: np.sin(9 * x[:, 0]), 1, 0.4)),
    "bend": (60, _uniform(lambda x: np.exp(-8 * x[:, 0]), 1, 0.15)),
    "step": (100, _uniform(lambda x: (x[:, 0] > 0.6) * 1.0, 1, 0.3)),
    "line, 2": (40, _normal(lambda x: x[:, 0] - x[:, 1], 2, 1.0)),
    "waves, 2": (150, _uniform(lambda x: np.sin(6 * x[:, 0]) * np.cos(5 * x[:, 1]), 2, 0.3)),
    "few rows, 3": (22, _normal(lambda x: x[:, 0] + 0.5 * x[:, 1], 3, 0.7, 1.0)),
    "interaction, 4": (150, _normal(lambda x: x[:, 0] * x[:, 1] + x[:, 2], 4, 0.7)),
    "plane, 6": (60, _normal(lambda x: x[:, :3].sum(1), 6, 1.5, 1.0)),
    "Friedman, 10": (200, _uniform(_friedman, 10, 1.0)),
    "plane, 10": (150, _normal(lambda x: x @ np.linspace(1, 0, 10), 10, 2.0, 1.0)),
    "classes, 12": (180, _normal(_classes, 12, 0.1, 0.7)),
    "bowl, 12": (250, _normal(lambda x: np.sqrt(1 + (x[:, :3] ** 2).sum(1)), 12, 0.3)),
    "noise, 8": (80, _normal(lambda x: 0 * x[:, 0], 8, 1.0)),
}


def r2(way: dict[str, str], table: str, seed: int) -> float:
    """On new rows, where the mean of the old ones has about 0."""
    count, draw = TABLES[table]
    random = np.random.default_rng(seed)
    x, y = draw(random, count + _NEW)
    model = NadarayaWatson(**way)  # type: ignore[arg-type]
    return float(model.fit(x[:count], y[:count]).score(x[count:], y[count:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    arguments = parser.parse_args()
    ways, ranks = arguments.ways.split(","), []
    for table in TABLES:
        found = np.zeros((arguments.seeds, len(ways)))
        seconds = np.zeros(len(ways))
        for seed in range(arguments.seeds):
            for place, way in enumerate(ways):
                start = time.perf_counter()
                found[seed, place] = r2(WAYS[way], table, seed)
                seconds[place] += time.perf_counter() - start
        ranks.append((-found).argsort(1).argsort(1) + 1)
        shown = "  ".join(
            f"{way} {score:.3f} ({s:.0f} s)" for way, score, s in zip(ways, found.mean(0), seconds, strict=True)
        )
        print(f"{table}: {shown}", flush=True)
    print("mean rank:", dict(zip(ways, np.concatenate(ranks).mean(0).round(2).tolist(), strict=True)))


if __name__ == "__main__":
    main()
