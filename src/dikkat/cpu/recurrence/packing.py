"""Weights in panels, as products read them."""

from typing import Any

from numba import carray

from dikkat.cpu.engine.compile import Kernel, inlined
from dikkat.cpu.engine.vectors import Pointer, address, at, claim, lanes_of, pointer
from dikkat.cpu.recurrence.record import CALL, PACK, PANEL


@inlined
def _pack_line(packing: Any, out: int, column: int, count: int, into: Pointer, step: int, zero: Any) -> None:
    """A part of a weight's row, from a column on, to every `step`th number; zeros where there is no such weight."""
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
    """A panel of a weight (out, in): its lines are columns of the panel, or, transposed, rows."""
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
    """All panels of all weights of a call."""
    layout, packing = CALL.dtype, PACK

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
