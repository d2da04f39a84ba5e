"""Kernels that pack the weights of a recurrence into panels and multiply rows by them."""

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
    """Add `a` (rows, count) times a weight (count, size) in panels to `c` (rows, size)."""
    width = PANEL * lanes_of(zero)
    for n in range(0, size, width):
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
def _pack_line(packing: Any, out: int, column: int, count: int, target: Pointer, step: int, zero: Any) -> None:
    """Write `count` numbers of a weight's row `out` from `column` on, `step` apart; zeros past the weight's edges."""
    group, row = out // packing.padded_rows, out % packing.padded_rows
    available = 0
    if row < packing.group_rows:
        available = max(0, min(count, packing.columns - column))
    source = at(pointer(packing.source, zero), (group * packing.group_rows + row) * packing.step + column)
    for k in range(available):
        target[k * step] = source[k]
    for k in range(available, count):
        target[k * step] = zero


@inlined
def _pack_panel(packing: Any, panel: int, zero: Any) -> None:
    """Write a panel of a weight (out, in). Its rows become the panel's columns, or rows if `packing.transposed`."""
    width = PANEL * lanes_of(zero)
    target = at(pointer(packing.target, zero), panel * width * packing.panel_rows)
    if packing.transposed:
        for line in range(packing.panel_rows):
            _pack_line(packing, line, panel * width, width, at(target, line * width), 1, zero)
    else:
        for column in range(width):
            _pack_line(packing, panel * width + column, 0, packing.panel_rows, at(target, column), width, zero)


@Kernel
def pack(zero: Any) -> Any:
    """Make the kernel that writes all panels of a call's weights."""
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
