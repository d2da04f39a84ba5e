"""Six methods over the tables that an outside review names, to which nothing was tuned: run once, at the end.

    pip install statsmodels
    PYTHONPATH=src:. python -m benchmarks.regression.review [--work FOLDER] [--share 0/2] [--write]

The review had 25 tables, of which it names sixteen. R² is the mean of five folds; whatever a method chooses it chooses
within the other four. The mean of what was learned from is predicted for comparison, and for predictions that are none.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.kit.report import write
from benchmarks.regression.bundled import REVIEW, folds, loaded, r2
from benchmarks.regression.contest import Record
from benchmarks.regression.fits import METHODS as OTHERS
from benchmarks.regression.fits import NEIGHBOURS
from dikkat.regression import NadarayaWatson

DEFAULT = "dikkat, constant"
GROUPS = {"all": (1, 99), "d = 1": (1, 1), "d 2–6": (2, 6), "d ≥ 7": (7, 99)}


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(random_state=0)


METHODS: dict[str, Callable[[], Any]] = {
    DEFAULT: NadarayaWatson,
    "dikkat, linear": lambda: NadarayaWatson(order="linear"),
    **{name: OTHERS[name] for name in (NEIGHBOURS, "kernel ridge", "linear regression")},
    "random forest": _forest,
}


def of_table(table: str) -> list[Record]:
    data, found = loaded(REVIEW[table]), []
    for method in [*METHODS, "mean"]:
        start, scores = time.perf_counter(), []
        for old, new in folds(data):
            mean = np.full(len(new.value), old.value.mean())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                predicted = mean if method == "mean" else METHODS[method]().fit(*old).predict(new.key)
            scores.append(r2(np.where(np.isfinite(predicted), predicted, mean), new.value))
        size = {"rows": len(data.value), "columns": data.key.shape[1]}
        seconds = time.perf_counter() - start
        found.append(
            {"table": table, **size, "method": method, "r2": float(np.mean(scores)), "of": scores, "seconds": seconds}
        )
    return found


def ranks(records: list[Record]) -> dict[str, dict[str, float]]:
    """By group of dimensions the mean rank of each method, 1 for the highest R²; and how many tables there are."""
    found = {(record["table"], record["method"]): record["r2"] for record in records}
    size = {record["table"]: record["columns"] for record in records}
    mean = {}
    for group, (least, most) in GROUPS.items():
        tables = [table for table in size if least <= size[table] <= most]
        scores = np.array([[found[table, method] for method in METHODS] for table in tables])
        mean[group] = {"tables": len(tables)}
        if tables:
            mean[group] |= dict(zip(METHODS, rankdata(-scores, axis=1).mean(0).round(2).tolist(), strict=True))
    return mean


def worst(records: list[Record]) -> dict[str, Any]:
    """The table on which the default is worst, and that on which it is farthest below the mean."""
    found = {(record["table"], record["method"]): record["r2"] for record in records}
    tables = {table for table, _ in found}
    low = min(tables, key=lambda table: found[table, DEFAULT])
    under = min(tables, key=lambda table: found[table, DEFAULT] - found[table, "mean"])
    return {
        "lowest": [low, found[low, DEFAULT]],
        "below_mean": [under, found[under, DEFAULT] - found[under, "mean"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="0/1", help="each so-manieth table only, such as 1/2")
    parser.add_argument("--work", type=Path, help="a folder for what was found, table by table; a run goes on there")
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    arguments = parser.parse_args()
    first, step = map(int, arguments.share.split("/"))
    work = arguments.work or Path(tempfile.mkdtemp(prefix="regression-"))
    work.mkdir(exist_ok=True)
    for table in list(REVIEW)[first::step]:
        path = work / f"{table}.json"
        if not path.exists():
            path.write_text(json.dumps(of_table(table)))
        shown = "  ".join(
            f"{record['method']} {record['r2']:.3f} ({record['seconds']:.0f} s)"
            for record in json.loads(path.read_text())
        )
        print(f"{table}: {shown}", flush=True)
    records = [
        record
        for table in REVIEW
        if (path := work / f"{table}.json").exists()
        for record in json.loads(path.read_text())
    ]
    print(json.dumps(ranks(records), indent=1, ensure_ascii=False))
    print(worst(records))
    if arguments.write:
        summary = {"mean_rank": ranks(records), "worst": worst(records)}
        print(write("regression-review", [*records, summary], "scikit-learn", "statsmodels"))


if __name__ == "__main__":
    main()
