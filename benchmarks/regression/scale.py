"""Millions of keys: time and the peak memory of a process that does nothing else.

    python -m benchmarks.regression.scale '{"keys": 1000000, "queries": 10000, "dtype": "float32", "bandwidth": 1.0,
        "tolerance": 0.0}'

is one of these processes; it prints what it found.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.kit.processes import command, environment
from benchmarks.kit.worker import process_status
from benchmarks.regression import formulas
from benchmarks.regression.contest import Plan, Record
from benchmarks.regression.data import cube, reach
from benchmarks.regression.peers import ours
from dikkat.regression import NadarayaWatson

LARGEST, TOLERANCE, SHARE = 10_000_000, 1e-6, 0.001
FRACTIONS = (0.1, 0.25, 0.5, 1.0)


def scale(plan: Plan) -> Iterator[Record]:
    """Growing numbers of keys, of a bandwidth that reaches all and of one that reaches a thousandth."""
    largest, queries = plan.size(LARGEST, 20_000), plan.size(10_000, 100)
    narrow = {"bandwidth": reach(SHARE, 2, TOLERANCE).bandwidth, "tolerance": TOLERANCE}
    for reaches, settings in (("all", {"bandwidth": 1.0, "tolerance": 0.0}), ("a thousandth", narrow)):
        found = []
        for dtype, fractions in (("float32", FRACTIONS), ("float64", FRACTIONS[-1:])):
            for fraction in fractions:
                case = {"keys": int(largest * fraction), "queries": queries, "dtype": dtype, **settings}
                record = {"what": "keys", "reaches": reaches, "d": 2, **case} | fresh(case)
                print(f"  {reaches}, {record['keys']:,} {dtype}: {record.get('not_run') or 'done'}", flush=True)
                found.append(record)
        yield from found
        grown = [record for record in found if record["dtype"] == "float32" and "not_run" not in record]
        if len(grown) == len(FRACTIONS):
            for step in ("fit_seconds", "predict_seconds"):
                straight = line([r["keys"] for r in grown], [r[step] for r in grown])
                yield {"what": "line", "reaches": reaches, "of": step, "dtype": "float32", **straight}


def fresh(case: Record) -> Record:
    """What a process of its own says of a case."""
    done = subprocess.run(
        command("regression.scale", json.dumps(case)), env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"not_run": f"failed ({done.returncode}): {last[:200]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def line(keys: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    """The line of least squares, how far the farthest is from it, and the time per key at the end over the start."""
    slope, intercept = np.polyfit(np.array(keys) / 1e6, seconds, 1)
    fitted = slope * np.array(keys) / 1e6 + intercept
    return {
        "seconds_per_million": float(slope),
        "intercept": float(intercept),
        "farthest_of_line": float(np.max(np.abs(np.array(seconds) / fitted - 1))),
        "growth_over_proportional": float((seconds[-1] / seconds[0]) / (keys[-1] / keys[0])),
    }


def measure(keys: int, queries: int, dtype: str, bandwidth: float, tolerance: float) -> dict[str, Any]:
    small = cube(100, 2, dtype, seed=2)
    ours(small, bandwidth, tolerance=tolerance)
    start_bytes = process_status("VmHWM")
    data, query = cube(keys, 2, dtype), cube(queries, 2, dtype, seed=1).key
    begun = time.perf_counter()
    model = NadarayaWatson(bandwidth=bandwidth, tolerance=tolerance).fit(*data)
    fitted = time.perf_counter()
    answer = model.predict(query)
    ended = time.perf_counter()
    found = {
        "fit_seconds": fitted - begun,
        "predict_seconds": ended - fitted,
        "peak_gib": process_status("VmHWM") / 2**30,
        "before_gib": start_bytes / 2**30,
        "data_gib": (data.key.nbytes + data.value.nbytes) / 2**30,
    }
    # After the mark was read: float64 copies of the keys are the formula's.
    some = slice(0, 5)
    right = formulas.constant(query[some], *data, np.array(bandwidth))
    return found | {"error_of_range": float(np.max(np.abs(answer[some] - right)) / np.ptp(data.value))}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
