"""A step of a GRU cell and of an LSTM cell, compiled, for a vector of features."""

from typing import Any

from dikkat._engine.compile import inlined
from dikkat._engine.elementary import sigmoid, tanh
from dikkat._engine.vectors import Vector


@inlined
def gru(
    reset: Vector, update: Vector, input_side: Vector, recurrent_side: Vector, state: Vector, zero: Any
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the new state n + z (s − n), and r, z, n. r and z get the sum of both sides, n gets each side."""
    reset, update = sigmoid(reset, zero), sigmoid(update, zero)
    candidate = tanh(input_side + reset * recurrent_side, zero)
    return candidate + update * (state - candidate), reset, update, candidate


@inlined
def lstm(
    into: Vector, forget: Vector, candidate: Vector, out: Vector, cell: Vector, zero: Any
) -> tuple[Vector, Vector, Vector, Vector, Vector, Vector]:
    """Return the new state o tanh c, the new cell c = f c + i g, and i, f, g, o, from the sums of both sides."""
    into, forget, candidate, out = sigmoid(into, zero), sigmoid(forget, zero), tanh(candidate, zero), sigmoid(out, zero)
    new = forget * cell + into * candidate
    return out * tanh(new, zero), new, into, forget, candidate, out
