"""Coverage of intervals for slopes, minima and differences of groups, and of intervals per group.

    PYTHONPATH=src python -m benchmarks.regression.shapes [DRAWS] [PATTERN...]

For each of six curves with normal noise, or those whose names match a pattern, it prints the share of draws in which
the 95 % interval covers the true slope (mean over 21 positions, and at the two ends), the true position of the minimum,
and the true difference of two groups at all positions of the band. The case "groups" has the share of new values in
90 % intervals with `groups=`, in each of eight groups of unequal noise. Rows of one day collect in one record.
"""

import json
import sys
import warnings
from collections.abc import Callable
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.kit.report import RESULTS, write
from benchmarks.regression.data import Array
from dikkat.regression import KernelRegressor

NAME = "regression-shapes"
COUNT, LEVEL, POSITIONS = 120, 0.95, 21
GROUP_NOISE = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


class Curve(NamedTuple):
    """A function on 0 … 1, its slope, the position of its minimum and the standard deviation of the noise."""

    height: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    minimum: float
    noise: float


CURVES = {
    "sine": Curve(lambda x: np.sin(6 * x), lambda x: 6 * np.cos(6 * x), np.pi / 4, 0.3),
    "parabola": Curve(lambda x: 4 * (x - 0.4) ** 2, lambda x: 8 * (x - 0.4), 0.4, 0.2),
    "bump": Curve(
        lambda x: -np.exp(-((x - 0.6) ** 2) / 0.02), lambda x: 100 * (x - 0.6) * np.exp(-((x - 0.6) ** 2) / 0.02), 0.6,
        0.2,
    ),
    "line": Curve(lambda x: 2 * x, lambda x: np.full_like(x, 2.0), 0.0, 0.5),
    "decay": Curve(lambda x: np.exp(-5 * x), lambda x: -5 * np.exp(-5 * x), 1.0, 0.1),
    "two valleys": Curve(
        lambda x: np.cos(12 * x) + x, lambda x: 1 - 12 * np.sin(12 * x), float((np.pi - np.arcsin(1 / 12)) / 12), 0.3
    ),
}  # fmt: skip


def curve_draw(name: str, seed: int) -> dict[str, float]:
    """Return which truths the intervals of one draw cover."""
    curve, random = CURVES[name], np.random.default_rng(seed)
    x = random.uniform(size=(COUNT, 1))
    model = KernelRegressor().fit(x, curve.height(x[:, 0]) + curve.noise * random.normal(size=COUNT))
    at = np.linspace(x.min(), x.max(), POSITIONS)
    _, lower, upper = model.derivative(at[:, None], level=LEVEL)
    inside = (lower <= curve.slope(at)) & (curve.slope(at) <= upper)
    minimum = model.argmin(level=LEVEL)
    target = float(np.clip(curve.minimum, x.min(), x.max()))
    both = pd.DataFrame({"x": random.uniform(size=2 * COUNT), "group": np.repeat(["a", "b"], COUNT)})
    shift = np.where(both["group"] == "b", 1.0, 0.0) * np.cos(3 * both["x"])
    y = curve.height(both["x"].to_numpy()) + shift + curve.noise * random.normal(size=2 * COUNT)
    band = KernelRegressor(bandwidth="silverman").fit(both, y).set_params(bandwidth="auto").difference("group")
    truth = np.cos(3 * band.x)
    return {
        "slope": float(inside.mean()), "slope at the ends": float(inside[[0, -1]].mean()),
        "minimum": float(minimum.lower <= target <= minimum.upper),
        "difference": float(((band.lower <= truth) & (truth <= band.upper)).all()),
        "width of minimum": float(minimum.upper - minimum.lower),
    }  # fmt: skip


def group_draw(seed: int) -> dict[str, float]:
    """Return the share of new values inside 90 % intervals in each of eight groups of unequal noise."""
    random, size = np.random.default_rng(seed), len(GROUP_NOISE)

    def table(count: int) -> tuple[pd.DataFrame, Array]:
        group = np.repeat(np.arange(size), count)
        x = random.uniform(size=size * count)
        y = np.sin(6 * x) + group / 4 + np.array(GROUP_NOISE)[group] * random.normal(size=len(group))
        return pd.DataFrame({"x": x, "group": pd.Categorical(group)}), y

    (rows, y), (queries, values) = table(50), table(50)
    lower, upper = KernelRegressor().fit(rows, y).predict_interval(queries, 0.9, by="group")
    inside = ((lower <= values) & (values <= upper)).reshape(size, -1).mean(1)
    return {f"noise {noise}": float(share) for noise, share in zip(GROUP_NOISE, inside, strict=True)}


def measured(name: str, draws: int) -> dict[str, Any]:
    """Return the mean coverage of each interval with its standard error over the draws."""
    rows = [group_draw(seed) if name == "groups" else curve_draw(name, seed) for seed in range(draws)]
    values = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    coverage = {key: [float(v.mean()), float(v.std(ddof=1) / draws**0.5)] for key, v in values.items()}
    return {"case": name, "draws": draws, "coverage": coverage}


def main(draws: int, names: list[str]) -> None:
    """Print one line for each case, and replace the case in today's record."""
    for name in (*CURVES, "groups"):
        if names and not any(fnmatchcase(name, pattern) for pattern in names):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = measured(name, draws)
        print(
            f"{name}: " + ", ".join(f"{key} {m:.3f} ± {e:.3f}" for key, (m, e) in row["coverage"].items()), flush=True
        )
        record = RESULTS / f"{NAME}-{date.today()}.json"
        earlier_rows = json.loads(record.read_text())["results"] if record.exists() else []
        write(NAME, [*(earlier for earlier in earlier_rows if earlier["case"] != name), row], "scikit-learn")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, sys.argv[2:])
