"""Matrices in panels: how weights are packed, and products of a few rows with them, with sums kept in registers."""

from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from dikkat.cpu.engine.compile import Kernel, inlined
from dikkat.cpu.engine.internals import cgutils
from dikkat.cpu.engine.vectors import (
    I32,
    I64,
    VECTORS,
    Pointer,
    address,
    at,
    call_llvm,
    claim,
    lanes_of,
    llvm_type,
    pointer,
    splat,
    vector_at,
)
from dikkat.cpu.recurrence.record import CALL, PACK, PANEL


def _prefetch(builder: Any, spot: Any) -> None:
    """Ask for what will be read soon, for the second-level cache."""
    spot = builder.bitcast(spot, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [spot.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [spot, I32(0), I32(2), I32(1)])


class Loop:
    """A loop of compiled code that has a list of sums, in registers.

    Args:
        builder: Of LLVM's instructions; what it builds until `end` is the loop's body.
        count: Turns, at least one.
        starts: The sums before the first.

    Attributes:
        k: The turn, from 0.
        sums: The sums before it.
    """

    def __init__(self, builder: Any, count: Any, starts: list[Any]) -> None:
        self._builder, self._count = builder, count
        before, self._block = builder.block, builder.append_basic_block("product")
        self._after = builder.append_basic_block("product.end")
        builder.branch(self._block)
        builder.position_at_end(self._block)
        self.k = builder.phi(I64)
        self.k.add_incoming(I64(0), before)
        self.sums = [builder.phi(start.type) for start in starts]
        for phi, start in zip(self.sums, starts, strict=True):
            phi.add_incoming(start, before)

    def end(self, sums: list[Any]) -> None:
        """Close the loop with the sums of a turn, which are its results."""
        builder = self._builder
        for phi, value in zip(self.sums, sums, strict=True):
            phi.add_incoming(value, self._block)
        following = builder.add(self.k, I64(1))
        self.k.add_incoming(following, self._block)
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._block, self._after)
        builder.position_at_end(self._after)


def places_of(builder: Any, c: Any, c_step: Any, rows: int, panels: int, kind: Any) -> list[Any]:
    """Where the sums of rows and panels belong."""
    spots = [
        builder.gep(c, [builder.add(builder.mul(c_step, I64(row)), I64(panel * kind.lanes))])
        for row in range(rows)
        for panel in range(panels)
    ]
    return [builder.bitcast(spot, llvm_type(kind).as_pointer()) for spot in spots]


def _product_of(rows: int) -> Any:
    """The product of so many rows with a panel, its sums kept in registers."""

    @intrinsic
    def product(typingctx: Any, a: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any) -> Any:
        kind = VECTORS[a.dtype]

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, a_step, panel, count, c, c_step = args
            places = places_of(builder, c, c_step, rows, PANEL, kind)
            align = kind.element.bitwidth // 8
            a_rows = [builder.gep(a, [builder.mul(a_step, I64(row))]) for row in range(rows)]
            loop = Loop(builder, count, [builder.load(place, align=align) for place in places])
            first = builder.mul(loop.k, I64(PANEL * kind.lanes))
            columns = []
            for part in range(PANEL):
                spot, align = vector_at(builder, panel, builder.add(first, I64(part * kind.lanes)), kind)
                columns.append(builder.load(spot, align=align))
                following_panel = builder.mul(count, I64(PANEL))
                _prefetch(builder, builder.gep(spot, [following_panel]))
            added = []
            for row in range(rows):
                factor = splat(builder, llvm_type(kind), builder.load(builder.gep(a_rows[row], [loop.k])))
                for part in range(PANEL):
                    added.append(call_llvm(builder, "fma", factor, columns[part], loop.sums[row * PANEL + part]))
            loop.end(added)
            for place, value in zip(places, added, strict=True):
                builder.store(value, place, align=align)
            return context.get_dummy_value()

        return types.void(a, types.intp, panel, types.intp, c, types.intp), build

    return product


_product_1, _product_2, _product_4, _product_8 = (_product_of(rows) for rows in (1, 2, 4, 8))


@inlined
def product(
    rows: int, a: Pointer, a_step: int, weight: Pointer, count: int, size: int, c: Pointer, c_step: int, zero: Any
) -> None:
    """Add rows of `count` numbers times a matrix in panels to rows of `size` numbers."""
    wide = PANEL * lanes_of(zero)
    for n in range(0, size, wide):
        panel, i = at(weight, n * count), 0
        while i + 8 <= rows:
            _product_8(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 8
        if i + 4 <= rows:
            _product_4(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 4
        if i + 2 <= rows:
            _product_2(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 2
        if i < rows:
            _product_1(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)


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
