"""Where the steps of sequences are, and the cells of GRU and LSTM with their gradients, for one row."""

from typing import Any

import numpy as np

from dikkat.cpu.engine.compile import inlined
from dikkat.cpu.engine.elementary import sigmoid, tanh
from dikkat.cpu.engine.memory import Call, clear, copy_vectors
from dikkat.cpu.engine.vectors import Pointer, at, full, lanes_of, load, pointer, store


@inlined
def add(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    """Add so many numbers, a multiple of a vector's."""
    for c in range(0, count, lanes_of(zero)):
        store(into, c, load(into, c) + load(source, c))


@inlined
def begin(rows: int, bias: int, place: int, into: Pointer, size: int, zero: Any) -> None:
    """Fill each row with a bias, read from `place` on, or with 0 if there is none."""
    for i in range(rows):
        if bias != 0:
            copy_vectors(at(pointer(bias, zero), place), at(into, i * size), size, zero)
        else:
            clear(at(into, i * size), size, zero)


@inlined
def number_at(address: int, index: int) -> int:
    """The whole number at an index behind an address."""
    return pointer(address, np.int64(0))[index]


@inlined
def place_of(call: Call, row: int, t: int) -> int:
    """The index of a row's t-th step, in the order of computing, among all steps of all rows."""
    step = number_at(call.lengths, row) - 1 - t if call.reverse else t
    return number_at(call.offsets, step) + row


@inlined
def active_rows(call: Call, task: int, rows: int, t: int) -> int:
    """The number of a task's rows, the longest first, that have a step t."""
    while rows > 0 and number_at(call.lengths, task + (rows - 1) * call.tasks) <= t:
        rows -= 1
    return rows


@inlined
def gru_row(gates: Pointer, recurrent: Pointer, state: Pointer, saved: Pointer, size: int, zero: Any) -> None:
    """Compute the new state n + z (s − n); save r, z, n and the recurrent side of n for the backward."""
    for c in range(0, size, lanes_of(zero)):
        reset = sigmoid(load(gates, c) + load(recurrent, c), zero)
        update = sigmoid(load(gates, size + c) + load(recurrent, size + c), zero)
        inner = load(recurrent, 2 * size + c)
        candidate = tanh(load(gates, 2 * size + c) + reset * inner, zero)
        store(state, c, candidate + update * (load(state, c) - candidate))
        store(saved, c, reset)
        store(saved, size + c, update)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, inner)


@inlined
def lstm_row(
    gates: Pointer, recurrent: Pointer, state: Pointer, cell: Pointer, saved: Pointer, size: int, zero: Any
) -> None:
    """Compute the new cell f c + i g and state o tanh c; save i, f, g, o for the backward."""
    for c in range(0, size, lanes_of(zero)):
        into = sigmoid(load(gates, c) + load(recurrent, c), zero)
        forget = sigmoid(load(gates, size + c) + load(recurrent, size + c), zero)
        candidate = tanh(load(gates, 2 * size + c) + load(recurrent, 2 * size + c), zero)
        out = sigmoid(load(gates, 3 * size + c) + load(recurrent, 3 * size + c), zero)
        new = forget * load(cell, c) + into * candidate
        store(cell, c, new)
        store(state, c, out * tanh(new, zero))
        store(saved, c, into)
        store(saved, size + c, forget)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, out)


@inlined
def gru_row_gradients(
    grad: Pointer, before: Pointer, saved: Pointer, gates: Pointer, recurrent: Pointer, size: int, zero: Any
) -> None:
    """Write the gradients of both sides of the gates; `grad`, of the new state, becomes that of the old one."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        reset, update = load(saved, c), load(saved, size + c)
        candidate, inner = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state = load(grad, c)
        by_candidate = by_state * (one - update) * (one - candidate * candidate)
        by_update = by_state * (load(before, c) - candidate) * update * (one - update)
        by_reset = by_candidate * inner * reset * (one - reset)
        store(gates, c, by_reset)
        store(gates, size + c, by_update)
        store(gates, 2 * size + c, by_candidate)
        store(recurrent, c, by_reset)
        store(recurrent, size + c, by_update)
        store(recurrent, 2 * size + c, by_candidate * reset)
        store(grad, c, by_state * update)


@inlined
def lstm_row_gradients(
    grad: Pointer, cell_grad: Pointer, before: Pointer, saved: Pointer, gates: Pointer, size: int, zero: Any
) -> None:
    """Likewise from the old cell; both sides of the gates share one gradient, the old state's only one."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        into, forget = load(saved, c), load(saved, size + c)
        candidate, out = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state, cell = load(grad, c), load(before, c)
        shown = tanh(forget * cell + into * candidate, zero)
        by_cell = load(cell_grad, c) + by_state * out * (one - shown * shown)
        store(gates, c, by_cell * candidate * into * (one - into))
        store(gates, size + c, by_cell * cell * forget * (one - forget))
        store(gates, 2 * size + c, by_cell * into * (one - candidate * candidate))
        store(gates, 3 * size + c, by_state * shown * out * (one - out))
        store(cell_grad, c, by_cell * forget)
        store(grad, c, full(0, zero))
