"""Kernel regression on Dask beside one process: 10⁷ rows of three features, two workers.

    python -m benchmarks.scale.partitions [--rows 10000000] [--searched 20000 60000]
        [--queries 1000] [--write]

Rows are made in the workers, partition by partition, and so again in one process, which is the truth. The bandwidth is
found by Silverman's rule over all rows; that of the least leave-one-out error, whose search compares pairs, over
`--searched` rows. Memory is a worker's resident set, looked at every 50 ms.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from benchmarks.kit.report import write
from dikkat.regression import NadarayaWatson

_MEMORY = "2GiB"
_PARTS = 20


class Watching:
    """The largest resident set of each of some processes, while it looks."""

    def __init__(self, pids: list[int]) -> None:
        self.largest = dict.fromkeys(pids, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            for pid in self.largest:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.largest[pid] = max(self.largest[pid], pages * 4096)


def draw(number: int, rows: int) -> np.ndarray[Any, Any]:
    """A partition: three features and the target."""
    random = np.random.default_rng(number)
    x = random.uniform(0, 1, (rows, 3))
    y = np.sin(6 * x[:, 0]) + x[:, 1] ** 2 + 0.3 * random.normal(size=rows)
    return np.column_stack([x, y])


def collection(rows: int, parts: int) -> da.Array:
    import dask

    each = rows // parts
    blocks = [da.from_delayed(dask.delayed(draw)(number, each), (each, 4), float) for number in range(parts)]
    return da.concatenate(blocks)


def compare(rows: int, parts: int, queries: int, settings: dict[str, Any], pids: list[int]) -> dict[str, Any]:
    """A fit and predictions on the workers, and in this process."""
    query = np.random.default_rng(10**6).uniform(0, 1, (queries, 3))
    table = collection(rows, parts)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Any) -> Any:
        begin = time.perf_counter()
        found = work()
        seconds[name] = time.perf_counter() - begin
        return found

    with Watching(pids) as watching:
        model = timed("fit, two workers", lambda: NadarayaWatson(**settings).fit(table[:, :3], table[:, 3]))
        found = timed("predict, two workers", lambda: model.predict(query))
    whole = np.concatenate([draw(number, rows // parts) for number in range(parts)])
    one = timed("fit, one process", lambda: NadarayaWatson(**settings).fit(whole[:, :3], whole[:, 3]))
    wanted = timed("predict, one process", lambda: one.predict(query))
    return {
        "rows": rows,
        "partitions": parts,
        "queries": queries,
        "settings": settings,
        "seconds": seconds,
        "ratio": {
            what: seconds[f"{what}, two workers"] / seconds[f"{what}, one process"] for what in ("fit", "predict")
        },
        "worker_bytes": max(watching.largest.values()),
        "bandwidth": model.bandwidth_.tolist(),
        "bandwidth_off": float(np.abs(model.bandwidth_ / one.bandwidth_ - 1).max()),
        "predictions_off": float(np.abs(found - wanted).max() / np.abs(wanted).max()),
    }


def main() -> None:
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--searched", type=int, nargs="*", default=[20_000, 60_000])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    results = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=_MEMORY, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        import os

        pids = list(client.run(os.getpid).values())
        # What is compiled at first, and loaded, in every process.
        compare(3000, 4, 100, {"bandwidth": "loo"}, pids)
        for rows, parts, queries, settings in (
            *((rows, 4, given.queries, {"bandwidth": "loo"}) for rows in given.searched),
            (given.rows, _PARTS, given.queries, {"bandwidth": "silverman"}),
        ):
            results.append(compare(rows, parts, queries, settings, pids))
            print(json.dumps(results[-1]), flush=True)
    if given.write:
        print(write("scale-partitions", results, "dask", "distributed"))


if __name__ == "__main__":
    main()
