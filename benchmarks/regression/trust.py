"""Whether the estimator can be trusted with a table: noise, coverage, oscillation, refits that break, the nested score.

    PYTHONPATH=src:. python -m benchmarks.regression.trust [--only STAGE,...] [--repeats 200] [--write]

Each stage writes a record of its own, regression-<stage>.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.kit.report import write
from benchmarks.regression import coverage
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array
from dikkat.regression import NadarayaWatson
from dikkat.regression.diagnostics import hold_out, leave_out

_SEEDS, _NEW = 5, 2000
_ORDERS = "constant", "linear"


def noise(repeats: int) -> Iterator[Record]:
    """80 rows of 60 columns that have nothing to do with y: what is printed as accuracy, and what is true."""
    for order in _ORDERS:
        for by in ("loo", "loo-1se"):
            for seed in range(_SEEDS):
                random = np.random.default_rng(seed)
                x, y = random.normal(size=(80, 60)), random.normal(size=80)
                model = NadarayaWatson(order=order, bandwidth=by, nested_score=True).fit(x, y)  # type: ignore[arg-type]
                yield {
                    "order": order,
                    "bandwidth": by,
                    "seed": seed,
                    "printed": model.score_,
                    "left_out": leave_out(model).r2,
                    "new_rows": model.score(random.normal(size=(_NEW, 60)), random.normal(size=_NEW)),
                }


def band(repeats: int) -> Iterator[Record]:
    """How often the 95 % band holds the textbook's function."""
    for order in _ORDERS:
        for size in coverage.SIZES:
            share = coverage.held(size, order, repeats)
            worst = float(share.min())
            yield {"order": order, "rows": size, "repeats": repeats, "mean": float(share.mean()), "worst_place": worst}


def oscillation(repeats: int) -> Iterator[Record]:
    """A wave in one of several features, 300 rows: found, where R² on new rows is 0.8 of what could be had at least."""
    for frequency, size in ((60, 3), (40, 5)):
        for order in _ORDERS:
            for seed in range(_SEEDS):
                random = np.random.default_rng(seed)
                x = random.uniform(0, 1, (300 + _NEW, size))
                y = np.sin(frequency * x[:, 0]) + 0.3 * random.normal(size=len(x))
                alone, model = (
                    NadarayaWatson(order=order).fit(each[:300], y[:300])  # type: ignore[arg-type]
                    for each in (x[:, :1], x)
                )
                score, first = model.score(x[300:], y[300:]), alone.score(x[300:, :1], y[300:])
                yield {
                    "frequency": frequency,
                    "columns": size,
                    "order": order,
                    "seed": seed,
                    "r2": score,
                    "r2_of_that_feature_alone": first,
                    "found": bool(score > 0.8 * first),
                }


class _Broken:
    """Raises KeyboardInterrupt at the so-manieth line that is run of the library's regression."""

    def __init__(self, at: int) -> None:
        self.left, self.lines = at, 0

    def __enter__(self) -> "_Broken":
        sys.settrace(self._calls)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _calls(self, frame: Any, event: str, _: object) -> Any:
        return self._each if "dikkat/regression" in frame.f_code.co_filename else None

    def _each(self, frame: Any, event: str, _: object) -> Any:
        if event == "line":
            self.lines += 1
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._each


def refits(repeats: int) -> Iterator[Record]:
    """A second fit, and a `partial_fit`, broken at 100 random lines each: is the old model whole?"""
    random = np.random.default_rng(0)
    tables = [(random.normal(size=(40, 2)), random.normal(size=40)) for _ in range(2)]
    query = random.normal(size=(7, 2))
    for call in ("fit", "partial_fit"):
        fitted = NadarayaWatson(order="linear").fit(*tables[0])
        wanted = _answers(fitted, query)
        with _Broken(0) as whole:
            getattr(NadarayaWatson(order="linear").fit(*tables[0]), call)(*tables[1])
        kept = 0
        for at in random.integers(1, whole.lines // 2, 100).tolist():
            model = NadarayaWatson(order="linear").fit(*tables[0])
            try:
                with _Broken(at):
                    getattr(model, call)(*tables[1])
            except KeyboardInterrupt:
                kept += all(map(np.array_equal, _answers(model, query), wanted))
        yield {"call": call, "broken": 100, "old_model_whole": kept}


def _answers(model: NadarayaWatson, query: Array) -> list[Array]:
    return [
        *model.predict(query, return_std=True),
        *model.confidence_band(query),
        np.asarray(model.attention_weights(query)),
    ]


def nested(repeats: int) -> Iterator[Record]:
    """The nested score beside R² on new rows, of a model of all rows."""
    tables: dict[str, tuple[int, Callable[[Array], Array]]] = {
        "noise, 80 × 1": (1, lambda x: 0 * x[:, 0]),
        "noise, 80 × 8": (8, lambda x: 0 * x[:, 0]),
        "noise, 80 × 60": (60, lambda x: 0 * x[:, 0]),
        "wave, 80 × 1": (1, lambda x: np.sin(3 * x[:, 0])),
        "plane, 80 × 8": (8, lambda x: x[:, 0] + x[:, 1]),
        "interaction, 80 × 4": (4, lambda x: x[:, 0] * x[:, 1]),
    }
    for name, (size, function) in tables.items():
        for order in _ORDERS:
            for seed in range(_SEEDS):
                random = np.random.default_rng(seed)
                x = random.normal(size=(80 + _NEW, size))
                y = function(x) + random.normal(size=len(x))
                model = NadarayaWatson(order=order).fit(x[:80], y[:80])  # type: ignore[arg-type]
                record: Record = {"table": name, "order": order, "seed": seed, "new_rows": model.score(x[80:], y[80:])}
                start = time.perf_counter()
                record |= {"anew": hold_out(model).r2, "anew_seconds": time.perf_counter() - start}
                yield record


STAGES = {"noise": noise, "band": band, "oscillation": oscillation, "refits": refits, "nested": nested}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STAGES))
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    arguments = parser.parse_args()
    for stage in arguments.only.split(","):
        records = []
        for record in STAGES[stage](arguments.repeats):
            print(
                {name: round(each, 3) if isinstance(each, float) else each for name, each in record.items()}, flush=True
            )
            records.append(record)
        if arguments.write:
            print(write(f"regression-{stage}", records, "scikit-learn", "numba"))


if __name__ == "__main__":
    main()
