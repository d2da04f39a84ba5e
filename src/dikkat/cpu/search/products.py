"""Products of a few rows with matrices in panels, whose sums stay in registers; of numbers, and of int8 weights.

A panel has the columns of one vector, its rows one after the other: a step of a search reads each weight once, from
memory that is contiguous. One row goes through four panels at once, more rows through fewer, so that there are always
about as many sums as registers. Each sum is made in the order of the panel's rows, whatever other rows there are.

Of int8, two rows of a panel lie between each other, as the instructions want it that multiply pairs and add them; what
they are multiplied with is int8 too, held in 16 bits. Sums are whole numbers, exact up to 133,000 products.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dikkat.cpu.engine.compile import inlined
from dikkat.cpu.engine.vectors import I32, I64, VECTORS, Pointer, at, call_llvm, lanes_of, llvm_type, pointer, splat
from dikkat.cpu.recurrence.panels import Loop, places_of

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_PANELS = {1: (4, 2, 1), 2: (2, 1), 3: (2, 1), 4: (1,), 5: (1,), 6: (1,)}
"""Panels that so many rows go through at once: six rows and one panel are twelve sums of half a vector in registers."""
_BYTE = np.int8(0)


def _by_size(builder: Any, rows: Any, panels: Any, build: Callable[[int, int], None]) -> None:
    """Code for each number of rows and panels, of which that of the given numbers is run."""
    end = builder.append_basic_block("products.end")
    choice = builder.switch(builder.add(builder.mul(rows, I64(8)), panels), end)
    for row_count, panel_counts in _PANELS.items():
        for panel_count in panel_counts:
            block = builder.append_basic_block(f"rows.{row_count}.{panel_count}")
            choice.add_case(I64(row_count * 8 + panel_count), block)
            builder.position_at_end(block)
            build(row_count, panel_count)
            builder.branch(end)
    builder.position_at_end(end)


@intrinsic
def _block(
    typingctx: Any, rows: Any, panels: Any, a: Any, a_step: Any, weight: Any, count: Any, c: Any, c_step: Any
) -> Any:
    """Add the product of rows with panels of `count` rows."""
    kind = VECTORS[a.dtype]
    vector, lanes, align = llvm_type(kind), kind.lanes, kind.element.bitwidth // 8

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows, panels, a, a_step, weight, count, c, c_step = args

        def build_one(rows: int, panels: int) -> None:
            places = places_of(builder, c, c_step, rows, panels, kind)
            a_rows = [builder.gep(a, [builder.mul(a_step, I64(row))]) for row in range(rows)]
            size = builder.mul(count, I64(lanes))
            starts = [builder.gep(weight, [builder.mul(size, I64(panel))]) for panel in range(panels)]
            loop = Loop(builder, count, [builder.load(place, align=align) for place in places])
            first = builder.mul(loop.k, I64(lanes))
            spots = [builder.bitcast(builder.gep(start, [first]), vector.as_pointer()) for start in starts]
            columns = [builder.load(spot, align=align) for spot in spots]
            factors = [splat(builder, vector, builder.load(builder.gep(row, [loop.k]))) for row in a_rows]
            pairs = [(factor, column) for factor in factors for column in columns]
            added = [call_llvm(builder, "fma", *pair, was) for pair, was in zip(pairs, loop.sums, strict=True)]
            loop.end(added)
            for place, value in zip(places, added, strict=True):
                builder.store(value, place, align=align)

        _by_size(builder, rows, panels, build_one)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(whole, whole, a, whole, weight, whole, c, whole), build


@intrinsic
def _whole_block(
    typingctx: Any, rows: Any, panels: Any, a: Any, a_step: Any, weight: Any, count: Any, c: Any, c_step: Any,
    row_scales: Any, scales: Any,
) -> Any:  # fmt: skip
    """Likewise of int8 numbers, by the scales of rows and columns; `a_step` and `count` are of pairs."""
    kind = VECTORS[c.dtype]
    vector, lanes, align = llvm_type(kind), kind.lanes, kind.element.bitwidth // 8
    sums, halves = ir.VectorType(I32, lanes), ir.VectorType(_I16, 2 * lanes)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows, panels, a, a_step, weight, count, c, c_step, row_scales, scales = args

        def build_one(rows: int, panels: int) -> None:
            a_rows = [builder.gep(a, [builder.mul(a_step, I64(row))]) for row in range(rows)]
            size = builder.mul(count, I64(2 * lanes))
            starts = [builder.gep(weight, [builder.mul(size, I64(panel))]) for panel in range(panels)]
            loop = Loop(builder, count, [ir.Constant(sums, [0] * lanes)] * (rows * panels))
            first = builder.mul(loop.k, I64(2 * lanes))
            bytes_at = ir.VectorType(_I8, 2 * lanes).as_pointer()
            spots = [builder.bitcast(builder.gep(start, [first]), bytes_at) for start in starts]
            columns = [builder.sext(builder.load(spot, align=1), halves) for spot in spots]
            loaded = [builder.load(builder.gep(row, [loop.k]), align=4) for row in a_rows]
            factors = [builder.bitcast(splat(builder, sums, each), halves) for each in loaded]
            pairs = [(factor, column) for factor in factors for column in columns]
            added = [builder.add(was, _pairs(builder, *pair)) for pair, was in zip(pairs, loop.sums, strict=True)]
            loop.end(added)
            for number, place in enumerate(places_of(builder, c, c_step, rows, panels, kind)):
                row, panel = divmod(number, panels)
                own = builder.bitcast(builder.gep(scales, [I64(panel * lanes)]), vector.as_pointer())
                by_row = splat(builder, vector, builder.load(builder.gep(row_scales, [I64(row)])))
                scale = builder.fmul(by_row, builder.load(own, align=align))
                value = builder.sitofp(added[number], vector)
                was = builder.load(place, align=align)
                builder.store(call_llvm(builder, "fma", value, scale, was), place, align=align)

        _by_size(builder, rows, panels, build_one)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(whole, whole, a, whole, weight, whole, c, whole, row_scales, scales), build


def _pairs(builder: Any, a: Any, b: Any) -> Any:
    """Products of 16-bit numbers, each two neighbours added: LLVM has an instruction for it where the machine has."""
    wide = ir.VectorType(I32, a.type.count)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide), flags=("nsw",))
    undefined = ir.Constant(wide, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(
            products, undefined, ir.Constant(ir.VectorType(I32, wide.count // 2), list(range(first, wide.count, 2)))
        )
        for first in (0, 1)
    )
    return builder.add(even, odd)


@inlined
def _at_once(rows: int, panels: int) -> int:
    """How many of so many panels so many rows, up to six, go through at once."""
    if rows == 1 and panels >= 4:
        return 4
    return 2 if rows <= 3 and panels >= 2 else 1


@inlined
def product(
    rows: int, a: Pointer, a_step: int, weight: int, count: int, panels: int, c: Pointer, c_step: int, zero: Any
) -> None:
    """Add rows of `count` numbers times panels to rows of as many vectors as there are panels."""
    lanes, n, w = lanes_of(zero), 0, pointer(weight, zero)
    while n < panels:
        some, i, panel = _at_once(min(6, rows), panels - n), 0, at(w, n * count * lanes)
        while i < rows:
            m = min(6, rows - i)
            _block(m, some, at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n * lanes), c_step)
            i += m
        n += some


@inlined
def whole_product(
    rows: int, a: Pointer, a_step: int, weight: int, count: int, panels: int, c: Pointer, c_step: int,
    row_scales: Pointer, scales: Pointer, zero: Any,
) -> None:  # fmt: skip
    """Likewise of int8 numbers, by the scales of rows and columns; `a_step` and `count` are of pairs."""
    lanes, n, w = lanes_of(zero), 0, pointer(weight, _BYTE)
    while n < panels:
        some, i, panel = _at_once(min(6, rows), panels - n), 0, at(w, n * count * 2 * lanes)
        while i < rows:
            m, into = min(6, rows - i), at(c, i * c_step + n * lanes)
            own, by_row = at(scales, n * lanes), at(row_scales, i)
            _whole_block(m, some, at(a, i * a_step), a_step, panel, count, into, c_step, by_row, own)
            i += m
        n += some
