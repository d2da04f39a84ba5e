"""Measure the speed and errors of kernel regression, `NadarayaWatson` and its peers, on the same data.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.speed [--only STAGE,...] [--quick] [--out FOLDER]

500 answers are compared with the formula in float64 first; a wrong answer gets no time. Entrants run in turn; runs of
more than 20 s are measured once. Each stage writes a separate record:

- `bandwidth`: a leave-one-out bandwidth, compared with statsmodels;
- `dense`: 100,000 × 100,000 with a wide kernel, fit and predict, compared with PyTorch and KeOps; and errors;
- `many`: a million rows: the bandwidth along one feature, and predictions of a compact kernel with three features;
- `curves`: `smooth`; `lowess` compared with statsmodels; CPU seconds of default fits of 1,000 rows;
- `jackknife`: prediction intervals compared with MAPIE;
- `densities`: the bandwidth of a density and its likelihood of new rows, compared with statsmodels.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.peers import SDPA
from benchmarks.kit.report import RESULTS, write
from benchmarks.regression import formulas
from benchmarks.regression.contest import Entrant, Record, contest, failure
from benchmarks.regression.data import CURVES, Array, Data, cube, curve
from benchmarks.regression.intervals import COVERAGE, mapie
from benchmarks.regression.peers import (
    CDIST,
    OURS,
    STATSMODELS,
    Pool,
    chunked_cdist,
    differences,
    keops_compiled,
    refit_ours,
    sdpa,
    statsmodels_bandwidth,
)
from benchmarks.regression.tables import DRAWN
from dikkat.regression import KernelRegressor, NadarayaWatson, lowess, smooth

PACKAGES = ("numba", "scipy", "scikit-learn", "statsmodels", "pykeops", "MAPIE")
# Largest allowed error in float32 and in float64, as a share of the values' range.
OFF, OFF_WIDE = 1e-5, 1e-9
# Queries whose answer is also computed in float64.
SAMPLE = 500
PLAIN = "plain differences"


def farthest(answer: Array, right: Array) -> float:
    """Return the largest difference; NaN if there is a NaN."""
    return float(np.max(np.abs(np.asarray(answer, float) - right)))


def judge(sampled: Any, expected: Array, value_range: float, tolerance: float, answer: Array) -> Record:
    """Return the error of sampled answers as a share of the values' range, with `not_run` if it is too large."""
    error = farthest(answer[sampled], expected) / value_range
    record: Record = {"error_of_range": error if np.isfinite(error) else None}  # JSON has no NaN and no infinity
    return record if error <= tolerance else record | {"not_run": "disagrees with float64"}


def judged(
    data: Data, query: Array, bandwidth: float, kernel: str = "gaussian", tolerance: float = OFF
) -> Callable[[Array], Record]:
    """Return a function that judges sampled answers."""
    sampled = np.linspace(0, len(query) - 1, min(SAMPLE, len(query))).astype(int)
    expected = formulas.constant(query[sampled], *data, np.array(bandwidth), kernel)
    return partial(judge, sampled, expected, float(np.ptp(data.value)), tolerance)


def bandwidth(quick: bool) -> Iterator[Record]:
    """Time the search for a leave-one-out bandwidth, with its error by the formula."""
    count = 120 if quick else 10_000
    for name in CURVES:
        data = curve(name, count)

        def check(width: Array, data: Data = data) -> Record:
            if not np.all(np.isfinite(width) & (width > 0)):
                return {"not_run": f"bandwidth {width[0]}"}
            return {"bandwidth": float(width[0]), "left_out_error": formulas.left_out(*data, width)}

        def ours(data: Data = data) -> Array:
            return np.asarray(NadarayaWatson(bandwidth="loo").fit(*data).bandwidth_)

        entrants = [Entrant(OURS, ours, check), Entrant(STATSMODELS, partial(statsmodels_bandwidth, *data), check)]
        yield from ({"curve": name, "points": count, **record} for record in contest(entrants))


def dense(quick: bool) -> Iterator[Record]:
    """Time a σ equal to the range of the rows; then only errors of smaller bandwidths."""
    count = 1_500 if quick else 100_000
    data, query = cube(count, 3, "float32"), cube(count, 3, "float32", seed=1).key
    pools: dict[str, Pool] = {SDPA: sdpa, CDIST: chunked_cdist}
    try:
        pools |= keops_compiled(data)
    except Exception as error:  # no compiler, or none that it likes
        yield {"what": "speed", "who": "KeOps", "not_run": failure(error)}
    check = judged(data, query, 1.0)
    entrants = [Entrant(OURS, refit_ours(data, query, 1.0), check)]
    entrants += [Entrant(who, partial(pool, query, *data, 1.0), check) for who, pool in pools.items()]
    yield from ({"what": "speed", "keys": count, "queries": count, "d": 3, **r} for r in contest(entrants))
    yield from errors(pools, count)


def errors(pools: dict[str, Pool], count: int) -> Iterator[Record]:
    """Yield the largest errors in float32."""

    def of_ours(query: Array, key: Array, value: Array, width: float) -> Array:
        return refit_ours((key, value), query, width)()

    for size, ratio in ((3, 10), (3, 1000), (1, 1000)):
        data, query = cube(count, size, "float32"), cube(SAMPLE, size, "float32", seed=1).key
        expected = formulas.constant(query, *data, np.array(1 / ratio))
        common = {"what": "error", "d": size, "range_over_bandwidth": ratio, "keys": count, "queries": SAMPLE}
        for who, pool in {PLAIN: differences, OURS: of_ours, **pools}.items():
            record = {**common, "who": who}
            try:
                answer = pool(query, *data, 1 / ratio)
            except Exception as error:
                yield record | {"not_run": failure(error)}
            else:
                error = farthest(answer, expected)
                non_finite = int(np.size(answer) - np.isfinite(answer).sum())
                yield record | {"error": error if np.isfinite(error) else None, "not_finite": non_finite}


def many(quick: bool) -> Iterator[Record]:
    """Time y = sin 20x + noise of standard deviation 0.3, x uniform in 0 … 1."""
    rows = 3_000 if quick else 1_000_000
    random = np.random.default_rng(0)
    for kernel in ("epanechnikov", "gaussian"):
        x = random.uniform(0, 1, (rows, 1))
        data = Data(x, np.sin(20 * x[:, 0]) + 0.3 * random.normal(size=rows))
        points = random.uniform(0, 1, (SAMPLE, 1))

        def fit(kernel: str = kernel, data: Data = data, points: Array = points) -> Array:
            model = NadarayaWatson(kernel, bandwidth="loo").fit(*data)
            return np.append(model.predict(points), model.bandwidth_)

        def check_fit(answer: Array, kernel: str = kernel, data: Data = data, points: Array = points) -> Record:
            width = float(answer[-1])
            return {"bandwidth": width, **judged(data, points, width, kernel, OFF_WIDE)(answer[:-1])}

        facts = {"what": "leave-one-out bandwidth, 1-D", "kernel": kernel, "rows": rows}
        yield from contest([Entrant(OURS, fit, check_fit, facts)])
    x = random.uniform(0, 1, (rows, 3))
    data, query = Data(x, np.sin(20 * x[:, 0]) + 0.3 * random.normal(size=rows)), random.uniform(0, 1, (1000, 3))
    for width in (0.03, 0.1):
        model = NadarayaWatson("epanechnikov", bandwidth=width).fit(*data)
        neighbours = float(np.mean(model.effective_neighbors(query)))
        facts = {"what": "1,000 predictions, 3-D", "kernel": "epanechnikov", "rows": rows, "bandwidth": width}
        check = judged(data, query, width, "epanechnikov", OFF_WIDE)
        yield from contest([Entrant(OURS, partial(model.predict, query), check, {**facts, "neighbours": neighbours})])


def equal(expected: Array, tolerance: float, answer: Array) -> Record:
    """Compare an answer with the expected one, as a share of its range."""
    return judge(slice(None), expected, float(np.ptp(expected)), tolerance, answer)


def curves(quick: bool) -> Iterator[Record]:
    """Time a curve with intervals, LOWESS compared with statsmodels as reference, and CPU seconds of fits."""
    from statsmodels.nonparametric.smoothers_lowess import lowess as statsmodels_lowess

    points = 300 if quick else 100_000
    data = curve("sine", points)
    facts = {"what": f"smooth of {points:,} points, with its intervals"}
    yield from contest([Entrant(OURS, lambda: smooth(data.key[:, 0], data.value).y, lambda _: {}, facts)])
    for count, frac in ((1_000, 2 / 3), (10_000, 0.1), (10_000, 2 / 3)):
        x, y = (column.ravel() for column in curve("sine", 100 if quick else count))
        facts = {"what": f"lowess of {len(x):,} points, frac {frac:.2f}"}
        check = partial(equal, statsmodels_lowess(y, x, frac), 1e-8)
        runs = {OURS: lowess, STATSMODELS: statsmodels_lowess}
        yield from contest([Entrant(who, partial(run, y, x, frac), check, facts) for who, run in runs.items()])
    KernelRegressor().fit(data.key[:60], data.value[:60])  # what is compiled at first
    for table, (_, draw) in DRAWN.items():
        rows = draw(np.random.default_rng(0), 60 if quick else 1_000)
        start = time.process_time()
        KernelRegressor().fit(*rows)
        yield {"who": "fit", "table": table, "rows": len(rows.value), "cpu_seconds": time.process_time() - start}


def jackknife(quick: bool) -> Iterator[Record]:
    """Time intervals of 1,000 new values with a given bandwidth, including the fit."""
    _, draw = DRAWN["waves, 2"]
    data, test = (draw(np.random.default_rng(seed), 60 if quick else 1_000) for seed in range(2))
    model = KernelRegressor().fit(*data)

    def ours() -> Array:
        fixed_model = KernelRegressor(bandwidth=model.bandwidth_, ridge=model.ridge_).fit(*data)
        return np.array(fixed_model.predict_interval(test.key, COVERAGE))

    runs = {OURS: ours, "MAPIE": lambda: np.array(mapie(model, data, test.key))}
    facts = {"what": f"jackknife+ of 1,000 new values, {len(data.value):,} rows, d = 2"}
    check = partial(equal, ours(), 0.02)
    yield from contest([Entrant(who, run, check, facts) for who, run in runs.items()])


def densities(quick: bool) -> Iterator[Record]:
    """Time a leave-one-out bandwidth by likelihood, and the mean log density of 1,000 new rows."""
    from dikkat.regression import KernelDensity

    def ours(train: Array, test: Array) -> Array:
        return np.asarray(KernelDensity().fit(train).score_samples(test))

    def theirs(train: Array, test: Array) -> Array:
        from statsmodels.nonparametric.kernel_density import KDEMultivariate

        return np.log(KDEMultivariate(train, "c" * train.shape[1], bw="cv_ml").pdf(test))

    for size in (1, 2, 3):
        random = np.random.default_rng(size)
        # Two clouds, of which one is narrow along the first feature.
        rows = random.normal(size=(2 * (60 if quick else 1_000), size))
        narrow = random.random(len(rows)) < 0.4
        rows[narrow] = rows[narrow] * [0.2, 1, 1][:size] + 3
        train, test = np.split(rows, 2)
        facts = {"what": f"density's bandwidth and 1,000 log densities, {len(train):,} rows, d = {size}"}
        yield from contest(
            [
                Entrant(who, partial(run, train, test), lambda answer: {"log_likelihood": float(answer.mean())}, facts)
                for who, run in {OURS: ours, STATSMODELS: theirs}.items()
            ]
        )


STAGES: dict[str, Callable[[bool], Iterator[Record]]] = {
    "bandwidth": bandwidth, "dense": dense, "many": many, "curves": curves, "jackknife": jackknife,
    "densities": densities,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(STAGES), help="stages, by ','")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results")
    arguments = parser.parse_args()
    if unknown := [stage for stage in arguments.only if stage not in STAGES]:
        parser.error(f"--only: no such stage: {', '.join(unknown)}")
    # A quick run is not a result.
    out = arguments.out or (Path(tempfile.mkdtemp(prefix="regression-")) if arguments.quick else RESULTS)
    for stage in arguments.only:
        print(stage, flush=True)
        records = [{"stage": stage, **record} for record in STAGES[stage](arguments.quick)]
        print(write(f"regression-{stage}", records, *PACKAGES, folder=out), flush=True)


if __name__ == "__main__":
    main()
