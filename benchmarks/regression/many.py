"""A million rows: the leave-one-out bandwidth along one feature, and predictions of a kernel that ends in three.

    python -m benchmarks.regression.many [--rows 1000000] [--rounds 3] [--write]

y = sin 20x + noise of standard deviation 0.3, x uniform in 0 … 1. A time is that of a whole `fit` with
`bandwidth="loo"`, or of a whole `predict`. Some of the answers are computed anew by the formula, over all pairs; where
one is off by more than 1e-9 of the range of y there is no time.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.kit.report import spread, write
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array
from dikkat.regression import NadarayaWatson
from dikkat.regression.diagnostics import leave_out

_CHECKED = 100  # answers that are computed anew
_QUERIES = 1000
_WITHIN = 1e-9
_KERNELS: dict[str, Callable[[Array], Array]] = {
    "epanechnikov": lambda square: np.maximum(0, 1 - square),
    "gaussian": lambda square: np.exp(-square / 2),
}


def draw(rows: int, size: int) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (rows, size))
    return x, np.sin(20 * x[:, 0]) + 0.3 * random.normal(size=rows)


def by_formula(kernel: str, query: Array, x: Array, y: Array, width: Array, own: Array | None = None) -> Array:
    """The local means at some queries; without a row each, if `own` says which."""
    found = []
    for i, place in enumerate(query):
        weight = _KERNELS[kernel]((((x - place) / width) ** 2).sum(1))
        if own is not None:
            weight[own[i]] = 0
        found.append(weight @ y / weight.sum())
    return np.array(found)


def bandwidths(rows: int, rounds: int) -> Iterator[Record]:
    x, y = draw(rows, 1)
    some = np.random.default_rng(1).integers(0, rows, _CHECKED)
    for kernel in _KERNELS:
        NadarayaWatson(kernel).fit(x[:3000], y[:3000])  # type: ignore[arg-type]  # what is compiled at first
        seconds, model = _timed(lambda kernel=kernel: NadarayaWatson(kernel).fit(x, y), rounds)
        wanted = by_formula(kernel, x[some], x, y, model.bandwidth_, some)
        off = np.abs(leave_out(model).predicted[some] - wanted).max() / np.ptp(y)
        yield {
            "what": "leave-one-out bandwidth, 1-D",
            "kernel": kernel,
            "rows": rows,
            "bandwidth": float(model.bandwidth_[0]),
            "left_out_error": model.history_[-1]["error"],
            **_outcome(off, seconds),
        }


def predictions(rows: int, rounds: int) -> Iterator[Record]:
    x, y = draw(rows, 3)
    query = np.random.default_rng(1).uniform(0, 1, (_QUERIES, 3))
    for width in (0.03, 0.1):
        model = NadarayaWatson("epanechnikov", bandwidth=width, out_of_reach="nearest").fit(x, y)
        model.predict(query[:1])
        seconds, found = _timed(lambda model=model: model.predict(query), rounds)
        wanted = by_formula("epanechnikov", query[:_CHECKED], x, y, model.bandwidth_)
        yield {
            "what": f"{_QUERIES:,} predictions, 3-D",
            "kernel": "epanechnikov",
            "rows": rows,
            "bandwidth": width,
            "neighbours": float(np.mean(model.effective_neighbors(query))),
            **_outcome(np.abs(found[:_CHECKED] - wanted).max() / np.ptp(y), seconds),
        }


def _timed(work: Callable[[], object], rounds: int) -> tuple[list[float], object]:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return seconds, found


def _outcome(off: float, seconds: list[float]) -> Record:
    outcome: Record = {"error_of_range": float(off)}
    return outcome | ({"seconds": spread(seconds)} if off <= _WITHIN else {"not_run": "an answer is off"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    args = parser.parse_args()
    found = []
    for stage in (bandwidths, predictions):
        for record in stage(args.rows, args.rounds):
            print(record, flush=True)
            found.append(record)
    if args.write:
        print(write("regression-many", found, "scikit-learn", "numba"))


if __name__ == "__main__":
    main()
