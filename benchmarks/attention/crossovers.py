"""Find the thresholds of `dikkat._core.implementations.Crossovers` for this machine.

    python -m benchmarks.attention.crossovers [--threads 1] [--seconds 0.06] [--out FOLDER]

Each shape is timed by plain products and by a kernel. For each threshold of `Crossovers` and each power of two as its
value, the regret is the geometric mean of the time of the selected implementation over the time of the faster one.
"""

import argparse
import math
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.small import Case, ways
from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import measured, once
from dikkat._core import dispatch, implementations

_NONE = 2**62
NEVER = implementations.Crossovers(0, 0, 0, 0, 0, _NONE, _NONE, 0)
ALWAYS = implementations.Crossovers(*[_NONE] * 4, 0, *[_NONE] * 3)
BATCHES, QUERIES, KEYS, FEATURES = (1, 8, 64), (1, 16, 64, 512), (8, 64, 512), (16, 64, 512)
SECONDS = 0.05


def both(case: Case, seconds: float) -> dict[str, float]:
    """Return the seconds by plain products and by the kernel."""
    runs = {}
    for name, crossovers in (("products", ALWAYS), ("kernel", NEVER)):
        implementations.CROSSOVERS = crossovers
        dispatch._PROGRAMS.clear()
        run = ways(case)["dikkat"]
        run(), run()  # the second call runs the cached program
        runs[name] = run
    samples = {}
    for name, run in runs.items():  # programs are cached by signature, so the implementations cannot take turns
        implementations.CROSSOVERS = ALWAYS if name == "products" else NEVER
        dispatch._PROGRAMS.clear()
        samples[name] = measured({name: once(run)}, seconds, seconds / 8)[name]
    implementations.CROSSOVERS = implementations.Crossovers()
    dispatch._PROGRAMS.clear()
    return {name: statistics.median(s / n for s, n in rounds) for name, rounds in samples.items()}


def sizes(case: Case) -> tuple[str, float]:
    """Return the name of the threshold that decides on a case, and the size to compare with it."""
    pairs = case.batch * case.queries * case.keys
    if case.score != "scaled dot":
        return "kernel_back", pairs * case.features
    if case.backward:
        divisor = case.features ** (2 if case.lengths else 1)
        return ("inner_masked_back" if case.lengths else "inner_back"), pairs / divisor
    return "inner", pairs / case.features


def regrets(rows: list[dict[str, Any]]) -> dict[int, float]:
    """Return the mean slowdown of the choices of each threshold 2^power, by power."""
    return {
        power: statistics.geometric_mean(
            [
                row["products" if row["size"] <= 2.0**power else "kernel"] / min(row["products"], row["kernel"])
                for row in rows
            ]
        )
        for power in range(-6, 31)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each way of a shape")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: dict[str, list[dict[str, Any]]] = {}
    shapes = product(("scaled dot", "additive", "gaussian"), BATCHES, QUERIES, KEYS, FEATURES, *[(False, True)] * 2)
    for score, b, n, m, h, lengths, backward in shapes:
        case = Case(score, b, n, m, h, lengths, False, backward)
        elements = b * n * m * (1 if score == "scaled dot" else h)
        if elements > 2**21 or b * max(m, n) * h > 2**22 or (score != "scaled dot" and elements > 2**18):
            continue
        if not backward and (lengths or score != "scaled dot"):  # always a kernel
            continue
        name, size = sizes(case)
        if name == "inner" and (n < 16 or m < 4 * h):  # other rules of `Crossovers` decide
            continue
        rows.setdefault(name, []).append(case._asdict() | {"size": size} | both(case, arguments.seconds))
    results = {}
    for name, cases in rows.items():
        regret = regrets(cases)
        best = min(regret, key=lambda power: (round(regret[power], 3), power))
        current = regret[round(math.log2(getattr(implementations.Crossovers(), name)))]
        results[name] = {"best": f"2^{best}", "regret": regret[best], "regret now": current, "shapes": len(cases)}
        print(f"{name:20} best 2^{best}: {regret[best]:.3f}; now {current:.3f}; {len(cases)} shapes", flush=True)
    print(write(f"crossovers-{arguments.threads}", {"found": results, "rows": rows}, folder=arguments.out))


if __name__ == "__main__":
    main()
