"""The elementary functions of the CPU kernels, against long double over the whole range of a type."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

import kit
from dikkat._engine import elementary, vectors
from dikkat._engine.compile import _OPTIONS
from dikkat._engine.vectors import lanes_of, load, pointer, store

Function = Callable[[np.ndarray], np.ndarray]
LONG = np.longdouble

pytestmark = [
    pytest.mark.skipif(np.finfo(LONG).nmant < 63, reason="a long double here has no more digits than a double"),
    pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning"),
]

# What is compiled, with or without a zero to tell the type by; its value; units in the last place that it may be off.
FUNCTIONS: dict[str, tuple[Any, bool, Function, float]] = {
    "exp": (elementary.exp, False, np.exp, 1.0),
    "exp2": (elementary.exp2, False, np.exp2, 1.0),
    "log": (elementary.log, False, np.log, 3.0),
    "square root": (vectors.square_root, False, np.sqrt, 0.51),
    "sigmoid": (elementary.sigmoid, True, lambda x: 1 / (1 + np.exp(-x)), 2.5),
    "tanh": (elementary.tanh, True, np.tanh, 2.0),
    "small tanh": (elementary.small_tanh, False, np.tanh, 1.0),
}


def apply(function: Any, with_zero: bool, x: np.ndarray) -> np.ndarray:
    """The function of an array, compiled as kernels are."""
    found, zero = np.empty_like(x), x.dtype.type(0)

    @njit(**_OPTIONS)
    def run(source: int, into: int, count: int) -> None:
        for place in range(0, count, lanes_of(zero)):
            vector = load(pointer(source, zero), place)
            if with_zero:
                store(pointer(into, zero), place, function(vector, zero))
            else:
                store(pointer(into, zero), place, function(vector))

    run(x.ctypes.data, found.ctypes.data, len(x))
    return found


def inputs(dtype: type) -> np.ndarray:
    """Every magnitude of both signs, what lies between, patterns of bits, and the edges; a whole number of vectors."""
    limits, rng = np.finfo(dtype), np.random.default_rng(0)
    least = np.log2(LONG(limits.smallest_subnormal))
    magnitudes = np.exp2(np.linspace(least, np.log2(LONG(limits.max)) - LONG(1e-6), 20011)).astype(dtype)
    whole = np.uint32 if dtype is np.float32 else np.uint64
    bits = rng.integers(0, np.iinfo(whole).max, 20011, dtype=whole, endpoint=True).view(dtype)
    near = np.concatenate([rng.uniform(-size, size, 20011) for size in (1, 10, 100, 800)]).astype(dtype)
    edges = np.array([0, np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal, 1, 0.625], dtype)
    logs = np.log(np.array([limits.tiny, limits.max], LONG)).astype(dtype)
    edges = np.concatenate([edges, logs, np.nextafter(logs, dtype(0)), np.nextafter(logs, dtype(1000))])
    found = np.concatenate([magnitudes, -magnitudes, bits, near, edges, -edges, -np.nextafter(edges, dtype(0))])
    return np.concatenate([found, np.zeros(-len(found) % 16, dtype)])


@kit.each("dtype", [np.float32, np.float64])
@kit.each("name", FUNCTIONS)
def test_units_in_the_last_place(name: str, dtype: type) -> None:
    function, with_zero, exactly, allowed = FUNCTIONS[name]
    limits, x = np.finfo(dtype), inputs(dtype)
    domain = {"exp2": x < np.log2(LONG(limits.max)), "log": x >= limits.tiny, "small tanh": np.abs(x) <= 0.625}
    x = np.where(domain.get(name, np.ones_like(x, bool)), x, dtype(0.5))
    if name in ("exp2", "log"):
        x = np.where(np.isfinite(x), x, dtype(0.5))
    found, exact = apply(function, with_zero, x), exactly(x.astype(LONG))
    assert (np.isnan(found) == np.isnan(exact)).all()
    # Below the smallest normal number results may be flushed to 0; beyond the largest, be the largest.
    exact = np.clip(exact, -LONG(limits.max), LONG(limits.max))
    off = np.abs(np.clip(found.astype(LONG), -LONG(limits.max), LONG(limits.max)) - exact)
    small = (np.abs(exact) < limits.tiny) & (name in ("exp", "exp2", "sigmoid"))
    unit = np.where(small, limits.tiny, np.spacing(np.abs(exact).astype(dtype))).astype(LONG)
    error = np.where(np.isnan(exact), 0, off / unit)
    worst = np.argmax(error)
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) is {found[worst]!r}: {float(error[worst]):.2f} units"
