"""How often the 95 % band holds the textbook's function, for both orders.

    PYTHONPATH=src:. python -m benchmarks.regression.coverage [--repeats 200]

y = 2 sin x + x^0.8 + noise of standard deviation 0.5, x uniform in 0 … 5. The bandwidth is found anew in each
repetition. The mean over 51 places, and the worst place.
"""

import argparse

import numpy as np

from benchmarks.regression.data import Array
from dikkat.regression import NadarayaWatson

SIZES = (50, 200, 1000)
_NOISE = 0.5


def held(size: int, order: str, repeats: int) -> Array:
    """The share of repetitions in which the band holds, (51,) places."""
    random, at = np.random.default_rng(size), np.linspace(0, 5, 51)
    found = []
    for _ in range(repeats):
        x = random.uniform(0, 5, size)
        y = _truth(x) + random.normal(0, _NOISE, size)
        model = NadarayaWatson(order=order)  # type: ignore[arg-type]
        lower, upper = model.fit(x[:, None], y).confidence_band(at[:, None])
        found.append((lower < _truth(at)) & (_truth(at) < upper))
    return np.mean(found, axis=0)


def _truth(x: Array) -> Array:
    return np.asarray(2 * np.sin(x) + x**0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    for order in ("constant", "linear"):
        for size in SIZES:
            share = held(size, order, repeats)
            print(f"{order:9} n = {size:5}: mean {share.mean():.3f}, worst place {share.min():.3f}", flush=True)


if __name__ == "__main__":
    main()
