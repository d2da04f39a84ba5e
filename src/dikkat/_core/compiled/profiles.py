"""Compiled log-kernels of distances, and their slopes."""

from typing import Any

import numpy as np

from dikkat._core.compiled.scoring import BOXCAR, EPANECHNIKOV, GAUSSIAN, TRIANGULAR
from dikkat._engine.compile import inlined
from dikkat._engine.elementary import log
from dikkat._engine.vectors import Vector, full, square_root, where


@inlined
def log_profile(profile: int, square: Vector, zero: Any) -> Vector:
    if profile == GAUSSIAN:
        return full(-0.5, zero) * square
    one, outside = full(1, zero), full(-np.inf, zero)
    if profile == BOXCAR:
        return where(square > one, outside, full(0, zero) * square)
    if profile == TRIANGULAR:
        square = square_root(square)
    rest = one - square
    # Not `rest > 0`, which would count NaN as outside.
    return where((one < square) | (one == square), outside, where(rest > full(0, zero), log(rest), rest))


@inlined
def profile_slope(profile: int, square: Vector, zero: Any) -> Vector:
    one, nothing = full(1, zero), full(0, zero)
    if profile == GAUSSIAN:
        return full(-0.5, zero)
    if profile == BOXCAR:
        return nothing
    outside = (one < square) | (one == square)
    if profile == EPANECHNIKOV:
        return where(outside, nothing, (nothing - one) / (one - square))
    flat = outside | (square == nothing)
    radius = square_root(where(flat, full(0.25, zero), square))
    return where(flat, nothing, full(-0.5, zero) / (radius * (one - radius)))
