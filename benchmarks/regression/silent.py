"""Coverage of intervals on data that break their assumptions: dependent rows, known errors, queries beyond the data.

    PYTHONPATH=src python -m benchmarks.regression.silent [--warnings] [DRAWS] [PATTERN...]

For each case, or those whose names match a pattern such as "near repeats*groups", it prints the share of new values
inside 90 % intervals of each method (of the true values inside 95 % confidence intervals), the standard error over the
draws, and the share of draws in which dikkat warned. With `--warnings` it only fits: the share of draws that warn is
the rate of false alarms of the cases "independent", and the rate of detection of the others. Rows of one day collect in
one record.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.signal import lfilter
from sklearn.model_selection import GroupKFold

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression.data import Array
from dikkat.regression import KernelRegressor

NAME = "regression-silent"


class Case(NamedTuple):
    """One draw: the settings, the arguments of `fit`, the queries and their new values or true means."""

    settings: dict[str, Any]
    fit: dict[str, Any]
    queries: Any
    values: Array
    answer: str = "value"  # or "mean", of confidence intervals


def autoregressive(random: np.random.Generator, count: int, memory: float) -> Array:
    """Return a stationary series of variance 1."""
    noise = random.normal(size=count + 100)
    series: Array = lfilter([(1 - memory**2) ** 0.5], [1, -memory], noise)[100:]
    return series


def near_repeats(
    columns: int, rows_per_place: int, grouped: bool, jitter: float = 0.05
) -> Callable[[np.random.Generator], Case]:
    """Places with random effects, each measured several times; the queries are at new places."""

    def draw(random: np.random.Generator) -> Case:
        def rows(places: int, repeats: int) -> tuple[Array, Array, Array]:
            center, effect = random.uniform(0, 10 if columns == 1 else 3, (places, columns)), random.normal(size=places)
            place = np.repeat(np.arange(places), repeats)
            x = center[place] + jitter * random.normal(size=(len(place), columns))
            y = np.sin(2 * x[:, 0]) + x[:, 1:].sum(1) + 0.7 * effect[place] + 0.3 * random.normal(size=len(place))
            return x, y, place

        x, y, place = rows(20, rows_per_place)
        queries, values, _ = rows(200, 1)
        settings, groups = ({"cv": GroupKFold(10)}, {"groups": place}) if grouped else ({}, {})
        return Case(settings, {"X": x, "y": y, **groups}, queries, values)

    return draw


def days(cv: int | None) -> Callable[[np.random.Generator], Case]:
    """300 days with date and weekday, AR(1) errors of 0.6; the queries are the same days with new errors."""

    def draw(random: np.random.Generator) -> Case:
        day = np.arange(300)
        mean = 5 * np.sin(day / 28) + np.array([0, 1, 2, 1, 3, -4, -5])[day % 7]
        error = [1.25 * autoregressive(random, 300, 0.6) for _ in range(2)]
        dates = pd.date_range("2024-01-01", periods=300)
        table = pd.DataFrame({"date": dates, "weekday": pd.Categorical(day % 7)})
        return Case({"cv": cv}, {"X": table, "y": mean + error[0]}, table, mean + error[1])

    return draw


def series(cv: int | None, columns: int = 1, memory: float = 0.7) -> Callable[[np.random.Generator], Case]:
    """100 rows in order with AR(1) errors; further columns are uniform."""

    def draw(random: np.random.Generator) -> Case:
        x = np.column_stack([np.linspace(0, 1, 100), random.uniform(size=(100, columns - 1))])
        mean = np.sin(6 * x[:, 0]) + x[:, 1:].sum(1)
        error = [0.5 * autoregressive(random, 100, memory) for _ in range(2)]
        return Case({"cv": cv}, {"X": x, "y": mean + error[0]}, x, mean + error[1])

    return draw


CURVES: dict[str, Callable[[Array], Array]] = {
    "parabola": lambda x: (x - 6) ** 2 / 8,
    "sine": np.sin,
    "line": lambda x: x / 3,
    "exponential": lambda x: np.exp(x / 4),
    "logarithm": lambda x: 3 * np.log(1 + x),
    "step": lambda x: 3.0 * (x > 5),
}


def beyond(curve: str, ranges: float) -> Callable[[np.random.Generator], Case]:
    """80 rows in 0 … 10; the queries are up to `ranges` ranges beyond them."""

    def draw(random: np.random.Generator) -> Case:
        x = random.uniform(0, 10, 80)
        queries = 10 * (random.uniform(ranges - 1, ranges, 50) + 1)
        mean = CURVES[curve]
        y, values = mean(x) + 0.2 * random.normal(size=80), mean(queries) + 0.2 * random.normal(size=50)
        return Case({}, {"X": x[:, None], "y": y}, queries[:, None], values)

    return draw


def known_errors(weights: str) -> Callable[[np.random.Generator], Case]:
    """60 rows with known errors, weights 1/σ² as precisions or repeats; the values are the true curve."""

    def draw(random: np.random.Generator) -> Case:
        x = np.sort(random.uniform(0, 10, 60))
        error = 0.05 + 0.06 * x
        y = np.sin(x) + error * random.normal(size=60)
        fit = {"X": x[:, None], "y": y, "sample_weight": 1 / error**2}
        return Case({"weights": weights}, fit, x[:, None], np.sin(x), "mean")

    return draw


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    **{
        f"near repeats, d = {d}, {m} per place{', groups' * grouped}": near_repeats(d, m, grouped)
        for d in (1, 3) for m in (3, 5, 20) for grouped in (False, True)
    },
    "date and weekday": days(None), "date and weekday, cv=20": days(20),
    "AR(.7)": series(None), "AR(.7), cv=20": series(20),
    "AR(.7), d = 3": series(None, 3), "AR(.7), d = 3, cv=20": series(20, 3),
    "independent, d = 1": series(None, 1, 0.0), "independent, d = 3": series(None, 3, 0.0),
    "independent, d = 1, cv=20": series(20, 1, 0.0), "independent, d = 3, cv=20": series(20, 3, 0.0),
    **{f"beyond, {name}, {ranges} ranges": beyond(name, ranges) for name in CURVES for ranges in (1, 2)},
    **{f"weights 1/σ² as {weights}": known_errors(weights) for weights in ("repeats", "precision")},
}  # fmt: skip


def held(case: Case, model: KernelRegressor) -> Iterator[tuple[str, float]]:
    """Yield the share of the values inside the intervals of each method."""
    if case.answer == "mean":
        ends = {"confidence": model.confidence_interval(case.queries)}
    else:
        ends = {method: model.predict_interval(case.queries, 0.9, method) for method in ("jackknife+", "local")}
        if model.cv is None:
            ends["split"] = model.predict_interval(case.queries, 0.9, "split")
    for method, (lower, upper) in ends.items():
        yield method, float(((lower <= case.values) & (case.values <= upper)).mean())


def measured(name: str, draws: int, only_warnings: bool) -> dict[str, Any]:
    """Return the mean share of each method with its standard error over the draws, and the share of draws that warn."""
    shares: dict[str, list[float]] = {}
    warned = []
    for seed in range(draws):
        case = CASES[name](np.random.default_rng(seed))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = KernelRegressor(**case.settings).fit(**case.fit)
            for method, share in [] if only_warnings else held(case, model):
                shares.setdefault(method, []).append(share)
        warned.append(bool(caught))
    coverage = {
        method: [float(np.mean(values)), float(np.std(values, ddof=1) / draws**0.5)]
        for method, values in shares.items()
    }
    return {"case": name, "draws": draws, "coverage": coverage, "warned": float(np.mean(warned))}


def main(draws: int, names: list[str], only_warnings: bool) -> None:
    """Print one line for each case, and replace the case in today's record."""
    for name in CASES:
        if names and not any(fnmatchcase(name, pattern) for pattern in names):
            continue
        row = measured(name, draws, only_warnings)
        text = ", ".join(f"{method} {mean:.3f} ± {error:.3f}" for method, (mean, error) in row["coverage"].items())
        print(f"{name}: {text}; warned in {row['warned']:.2f} of {draws}", flush=True)
        record = RESULTS / f"{NAME}-{date.today()}.json"
        earlier_rows = json.loads(record.read_text())["results"] if record.exists() else []
        write(NAME, [*(earlier for earlier in earlier_rows if earlier["case"] != name), row], "scikit-learn")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--warnings"]
    main(int(words[0]) if words else 40, words[1:], len(words) < len(sys.argv) - 1)
