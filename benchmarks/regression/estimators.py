"""Kernel regression: this library's `NadarayaWatson` and its peers, in one run, on the same data.

    PYTHONPATH=src .venv-peers/bin/python -m benchmarks.regression.estimators [--only STAGE,...] [--patience SECONDS]
        [--quick] [--out FOLDER]

Answers are held against float64 before speeds are measured, and whose answer is off has no speed. All are asked in
turn, round by round; what takes very long is measured once, and what takes too long is not run, and the record says so.
With --patience 300 statsmodels is run on the tables of ten columns as well, which takes half an hour more.
Each stage writes a record of its own, regression-<stage>, also of what it had found when it failed;
`tables.py` makes the tables of docs/benchmarks.md of the newest of each.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression import tables
from benchmarks.regression.contest import Plan, Record, failure
from benchmarks.regression.fits import bandwidth, problems, quality
from benchmarks.regression.predictions import agreement, dense, linear, narrow
from benchmarks.regression.scale import scale

PACKAGES = ("numba", "scipy", "scikit-learn", "statsmodels", "scikit-fda", "pykeops")
STAGES: dict[str, Callable[[Plan], Iterator[Record]]] = {
    "agreement": agreement,
    "bandwidth": bandwidth,
    "dense": dense,
    "narrow": narrow,
    "scale": scale,
    "problems": problems,
    "linear": linear,
    "quality": quality,
}


def main() -> None:
    arguments = parse()
    plan = Plan(arguments.quick, arguments.patience)
    paths, failed = [], False
    for stage in arguments.only:
        print(stage, flush=True)
        start = time.perf_counter()
        records, cut_short = collected(stage, STAGES[stage](plan))
        failed |= cut_short
        paths.append(write(f"regression-{stage}", records, *PACKAGES, folder=arguments.out))
        print(f"{stage}: {time.perf_counter() - start:.0f} s", flush=True)
    if arguments.quick:
        print("Tiny sizes: these are no measurements, and the goals' sizes are not theirs.")
    print(tables.regression([tables.read(path) for path in paths]))
    print(*paths, sep="\n")
    if arguments.out == RESULTS:
        tables.update()
    sys.exit(failed)


def collected(stage: str, found: Iterator[Record]) -> tuple[list[Record], bool]:
    """What a stage has found, and whether it failed on the way."""
    records = []
    try:
        for record in found:
            records.append({"stage": stage, **record})
    except Exception as error:  # the other stages are worth having
        print(f"  {failure(error)}", file=sys.stderr, flush=True)
        return [*records, {"stage": stage, "what": "failure", "not_run": failure(error)}], True
    return records, False


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=names, default=tuple(STAGES), help="these stages, by ',': " + ",".join(STAGES))
    parser.add_argument(
        "--patience",
        type=int,
        default=Plan.patience,
        help="no fits of a table that are to be expected to take more seconds",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results, whose tables go to docs/")
    arguments = parser.parse_args()
    if unknown := [stage for stage in arguments.only if stage not in STAGES]:
        parser.error(f"--only: no such stage: {', '.join(unknown)}")
    if arguments.out is None:  # a quick run is not a result
        arguments.out = Path(tempfile.mkdtemp(prefix="regression-")) if arguments.quick else RESULTS
    return arguments


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


if __name__ == "__main__":
    main()
