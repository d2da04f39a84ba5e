"""The weights of a recurrence in panels: how they are packed, and products of a few rows with them."""

from typing import Any

from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.panels import wide_block
from dikkat._engine.vectors import Pointer, address, at, claim, lanes_of, pointer
from dikkat.recurrent.fused.record import CALL, PACK, PANEL

_block_1, _block_2, _block_4, _block_8 = (wide_block(rows, PANEL) for rows in (1, 2, 4, 8))


@inlined
def product(
    rows: int, a: Pointer, a_step: int, weight: Pointer, count: int, size: int, c: Pointer, c_step: int, zero: Any
) -> None:
    """Add rows of `count` numbers times a matrix in panels to rows of `size` numbers."""
    wide = PANEL * lanes_of(zero)
    for n in range(0, size, wide):
        panel, i = at(weight, n * count), 0
        while i + 8 <= rows:
            _block_8(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 8
        if i + 4 <= rows:
            _block_4(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 4
        if i + 2 <= rows:
            _block_2(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 2
        if i < rows:
            _block_1(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)


@inlined
def _pack_line(packing: Any, out: int, column: int, count: int, into: Pointer, step: int, zero: Any) -> None:
    """Write a part of a weight's row, from a column on, to every `step`-th number; zeros beyond the weight."""
    group, row = out // packing.padded, out % packing.padded
    there = 0
    if row < packing.group:
        there = max(0, min(count, packing.columns - column))
    source = at(pointer(packing.source, zero), (group * packing.group + row) * packing.step + column)
    for k in range(there):
        into[k * step] = source[k]
    for k in range(there, count):
        into[k * step] = zero


@inlined
def _pack_panel(packing: Any, panel: int, zero: Any) -> None:
    """Write one panel of a weight (out, in), whose rows become columns of the panel, or, transposed, rows."""
    wide = PANEL * lanes_of(zero)
    into = at(pointer(packing.into, zero), panel * wide * packing.count)
    if packing.transposed:
        for k in range(packing.count):
            _pack_line(packing, k, panel * wide, wide, at(into, k * wide), 1, zero)
    else:
        for c in range(wide):
            _pack_line(packing, panel * wide + c, 0, packing.count, at(into, c), wide, zero)


@Kernel
def pack(zero: Any) -> Any:
    """Write all panels of all weights of a call."""
    layout, packing = CALL.layout(__name__), PACK

    def pack(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        packings = carray(address(call.packs), call.packings, packing)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            number = 0
            while task >= packings[number].panels:
                task -= packings[number].panels
                number += 1
            _pack_panel(packings[number], task, zero)

    return pack
