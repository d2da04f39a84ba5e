"""Compare the predictions of dikkat with a Gaussian process on twelve kinds of designed experiments.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.designs [--half development|judgement] [--seeds 10]

A seed draws the coefficients of a kind's response, its noise and the rows held out. R² compares predictions with the
response without noise: at a fifth of the rows for designs of categories, and at 300 uniform points for designs whose
factors are all numbers. The search of dikkat was developed on the kinds of "development" only.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array, Data
from benchmarks.regression.judgement import score
from benchmarks.regression.methods import EIGHT
from dikkat.regression import KernelRegressor, NadarayaWatson

Random = np.random.Generator
Response = Callable[[Array], Array]

METHODS: dict[str, Callable[[], Any]] = {
    "dikkat": KernelRegressor,
    "dikkat, constant": NadarayaWatson,
    "Gaussian process": EIGHT["Gaussian process"],
}
_UNIFORM_POINTS = 300


class Design(NamedTuple):
    """The runs of an experiment, (n, factors), its response without noise, and which factors are categories."""

    runs: Array
    response: Response
    categories: list[int]
    noise: float = 0.4  # over the standard deviation of the response


def grid(*levels: Any, repeats: int = 1) -> Array:
    """Return all combinations of levels, repeated."""
    return np.repeat(np.array(list(itertools.product(*levels)), float), repeats, 0)


def effects(random: Random, sizes: list[int], pairs: list[tuple[int, int]], main: float = 0.3) -> Response:
    """Return a response of categories: a step for each level, and for each combination of two factors in `pairs`.

    `main` is the standard deviation of the steps of levels over that of the combinations.
    """
    steps = [random.normal(0, main, size) for size in sizes]
    tables = [random.normal(0, 1, (sizes[a], sizes[b])) for a, b in pairs]

    def response(x: Array) -> Array:
        levels = x.astype(int)
        total = sum(step[column] for step, column in zip(steps, levels.T, strict=True))
        return np.asarray(
            total + sum(table[levels[:, a], levels[:, b]] for table, (a, b) in zip(tables, pairs, strict=True))
        )

    return response


def quadratic(random: Random, size: int, curved: float = 0.7) -> Response:
    """Return a response surface of second order."""
    linear, square = random.normal(size=size), np.triu(random.normal(0, curved, (size, size)))
    return lambda x: x @ linear + np.einsum("ni,ij,nj->n", x, square, x)


def two_levels(random: Random) -> Design:
    runs = grid(*[[-1, 1]] * 5)
    active = random.permutation(5)
    sizes = random.normal(0, 1, 5) * [1, 1, 1, 0.3, 0.1]
    twist = random.normal(0, 1, 2)

    def response(x: Array) -> Array:
        a, b, c = (x[:, k] for k in active[:3])
        return np.asarray(x[:, active] @ sizes + twist[0] * a * b + twist[1] * b * c)

    return Design(runs, response, [])


def two_level_categories(random: Random) -> Design:
    return Design(grid(*[range(2)] * 6), effects(random, [2] * 6, [(0, 1), (1, 2), (3, 4)]), list(range(6)))


def three_levels(random: Random) -> Design:
    return Design(grid(*[[-1, 0, 1]] * 3, repeats=2), quadratic(random, 3), [])


def three_level_categories(random: Random) -> Design:
    return Design(grid(*[range(3)] * 4, repeats=2), effects(random, [3] * 4, [(0, 1), (2, 3)]), list(range(4)))


def factorial(random: Random) -> Design:
    """Effects multiply, so that the response is skewed."""
    sums = effects(random, [4, 5, 3], [(0, 1), (1, 2)])
    return Design(grid(range(4), range(5), range(3), repeats=2), lambda x: np.exp(0.7 * sums(x)), [0, 1, 2])


def latin_square(random: Random) -> Design:
    """Seven rows, columns and treatments, which have no interaction; in two squares."""
    rows, columns = np.divmod(np.tile(np.arange(49), 2), 7)
    treatment = (rows + np.repeat([2, 3], 49) * columns) % 7
    return Design(np.column_stack([rows, columns, treatment]), effects(random, [7] * 3, [], 1.0), [0, 1, 2])


def box_behnken(random: Random) -> Design:
    runs = [np.zeros(4)] * 5
    for a, b in itertools.combinations(range(4), 2):
        for one, other in itertools.product([-1, 1], repeat=2):
            runs.append(np.where(np.arange(4) == a, one, 0) + np.where(np.arange(4) == b, other, 0))
    return Design(np.array(runs, float), quadratic(random, 4), [], 0.2)


def central_composite(random: Random) -> Design:
    far = 8**0.25
    runs = [*grid([-1, 1], [-1, 1], [-1, 1]), *(far * np.eye(3)), *(-far * np.eye(3)), *np.zeros((6, 3))]
    return Design(np.array(runs), quadratic(random, 3), [], 0.2)


def fraction(random: Random) -> Design:
    """2^(7−2): the last two factors are products of the first five. Three are active, and two of them interact."""
    runs = grid(*[[-1, 1]] * 5)
    runs = np.column_stack([runs, runs[:, :3].prod(1), runs[:, 1:5].prod(1)])
    a, b, c = random.permutation(7)[:3]
    sizes = random.uniform(0.5, 1.5, 4)
    return Design(runs, lambda x: sizes[0] * x[:, a] + sizes[1] * x[:, b] + sizes[2] * x[:, c]
                  + sizes[3] * x[:, a] * x[:, b], [])  # fmt: skip


def split_plot(random: Random) -> Design:
    """Eight plots with shifts, two irrigations by plot, four varieties within plots, at three depths of ploughing."""
    runs = grid(range(8), range(4), [1, 2, 3])
    runs = np.column_stack([runs[:, :1], runs[:, 0] % 2, runs[:, 1:]])
    shifts, interaction = random.normal(0, 0.7, 8), random.normal(size=(2, 4))
    slopes = random.normal(0, 0.7, 4)

    def response(x: Array) -> Array:
        plot, water, variety = x[:, :3].astype(int).T
        return np.asarray(shifts[plot] + interaction[water, variety] + slopes[variety] * (x[:, 3] - 2))

    return Design(runs, response, [0, 1, 2])


def dose_by_genotype(random: Random) -> Design:
    """A sigmoid of the logarithm of a dose for each of six genotypes."""
    middle, height, steep = random.normal(0, 1, 6), random.uniform(0.3, 2, 6), random.uniform(1, 4, 6)

    def response(x: Array) -> Array:
        genotype = x[:, 1].astype(int)
        return np.asarray(height[genotype] / (1 + np.exp(-steep[genotype] * (x[:, 0] - middle[genotype]))))

    return Design(grid(np.linspace(-2, 2, 7), range(6), repeats=2), response, [1])


def time_course(random: Random) -> Design:
    """Five treatments, each measured at eight times in six subjects of two sexes, which shift and scale the curve."""
    runs = grid(np.arange(8), range(5), range(2), repeats=3)
    delay, height, scale = random.uniform(0.5, 3, 5), random.normal(0, 1.5, 5), random.normal(0, 0.7, 2)

    def response(x: Array) -> Array:
        treatment, sex = x[:, 1:].astype(int).T
        curve = x[:, 0] / delay[treatment] * np.exp(1 - x[:, 0] / delay[treatment])
        return np.asarray(height[treatment] * curve + scale[sex])

    return Design(runs, response, [1, 2])


DEVELOPMENT: dict[str, Callable[[Random], Design]] = {
    "2^6 categories": two_level_categories, "3^3 numbers": three_levels, "4 × 5 × 3 categories": factorial,
    "Box–Behnken": box_behnken, "split plot": split_plot, "dose × genotype": dose_by_genotype,
}  # fmt: skip
JUDGEMENT: dict[str, Callable[[Random], Design]] = {
    "2^5 numbers": two_levels, "3^4 categories": three_level_categories, "Latin squares": latin_square,
    "central composite": central_composite, "2^(7−2) numbers": fraction, "time course": time_course,
}  # fmt: skip
HALVES = {"development": DEVELOPMENT, "judgement": JUDGEMENT}


def drawn(kind: Callable[[Random], Design], seed: int) -> tuple[Data, Data]:
    """Return the rows to learn from, and rows to predict without noise."""
    random = np.random.default_rng([seed, 71])
    design = kind(random)
    truth = design.response(design.runs)
    order = random.permutation(len(truth))
    y = truth + design.noise * truth.std() * random.normal(size=len(truth))
    if design.categories:
        held, learned = np.split(order, [len(order) // 5])
        queries = design.runs[held]
    else:
        learned = order
        queries = random.uniform(design.runs.min(0), design.runs.max(0), (_UNIFORM_POINTS, design.runs.shape[1]))
    return (
        Data(_frame(design, design.runs[learned]), y[learned]),
        Data(_frame(design, queries), design.response(queries)),
    )


def _frame(design: Design, x: Array) -> Any:
    frame = pd.DataFrame(x, columns=[f"x{k}" for k in range(x.shape[1])])
    for k in design.categories:
        levels = np.unique(design.runs[:, k]).astype(int)
        frame[f"x{k}"] = pd.Categorical(x[:, k].astype(int), categories=levels)
    return frame


def measured(kinds: dict[str, Callable[[Random], Design]], seeds: int) -> list[Record]:
    """Return a record for each kind and method: R² of each seed and the CPU seconds of the fits."""
    records = []
    for name, kind in kinds.items():
        pairs = [drawn(kind, seed) for seed in range(seeds)]
        rows, columns = pairs[0][0].key.shape
        for method, make in METHODS.items():
            scores, seconds = zip(*(score(make, *pair) for pair in pairs), strict=True)
            figures = {"mean": float(np.mean(scores)), "worst": min(scores), "cpu_seconds": float(np.mean(seconds))}
            records.append({"kind": name, "rows": rows, "columns": columns, "method": method, **figures, "r2": scores})
            print(f"{name:24} {method:18}", *(f"{value:8.3f}" for value in figures.values()), flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=list(HALVES), help="only the kinds of one half")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results for all kinds and ten seeds")
    arguments = parser.parse_args()
    records = []
    for half in [arguments.half] if arguments.half else HALVES:
        records += [{"half": half, **record} for record in measured(HALVES[half], arguments.seeds)]
    is_whole = arguments.half is None and arguments.seeds == 10
    for method in METHODS:
        print(f"mean R²: {np.mean([r['mean'] for r in records if r['method'] == method]):.3f} {method}")
    folder = arguments.out or (RESULTS if is_whole else Path(tempfile.mkdtemp(prefix="designs-")))
    print(write("regression-designs", records, "scikit-learn", folder=folder))


if __name__ == "__main__":
    main()
