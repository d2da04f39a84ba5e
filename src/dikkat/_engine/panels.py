"""Products of a few rows with matrices in panels, with sums in registers; for floats and for int8 weights.

A panel contains some columns of a matrix, row by row in contiguous memory. Each weight is read once. Each sum follows
the order of the panel's rows, independently of the number of rows multiplied with it.

In int8 panels, two rows are interleaved for instructions that multiply and add pairs. The other factor is int8 too,
held in 16 bits. Sums are integers, exact up to 133,000 products.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dikkat._engine.internals import cgutils
from dikkat._engine.vectors import I32, I64, VECTORS, VectorType, built, call_llvm, llvm_type, splat

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_PANELS = {1: (4, 2, 1), 2: (2, 1), 3: (2, 1), 4: (1,), 5: (1,), 6: (1,)}
"""Panels at once, by the number of rows: six rows and one panel have twelve sums in registers of half a vector."""


def _prefetch(builder: Any, spot: Any) -> None:
    spot = builder.bitcast(spot, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [spot.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [spot, I32(0), I32(2), I32(1)])


class _Loop:
    """A loop in generated code with sums in registers.

    `k` is the index of the iteration, and `sums` are the sums at its start.
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
        """Close the loop with the sums of an iteration; the last ones are the loop's results."""
        builder = self._builder
        for phi, value in zip(self.sums, sums, strict=True):
            phi.add_incoming(value, self._block)
        following = builder.add(self.k, I64(1))
        self.k.add_incoming(following, self._block)
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._block, self._after)
        builder.position_at_end(self._after)


def _outputs(builder: Any, c: Any, c_step: Any, rows: int, vectors: int, kind: VectorType) -> list[Any]:
    spots = [
        builder.gep(c, [builder.add(builder.mul(c_step, I64(row)), I64(number * kind.lanes))])
        for row in range(rows)
        for number in range(vectors)
    ]
    return [builder.bitcast(spot, llvm_type(kind).as_pointer()) for spot in spots]


def _add_product(
    builder: Any, kind: VectorType, rows: int, starts: list[Any], step: int, ahead: Any, product: Any
) -> None:
    """Add the product of some rows with a panel to the rows of the output."""
    a, a_step, count, c, c_step = product
    vector, align = llvm_type(kind), kind.element.bitwidth // 8
    outputs = _outputs(builder, c, c_step, rows, len(starts), kind)
    a_rows = [builder.gep(a, [builder.mul(a_step, I64(row))]) for row in range(rows)]
    loop = _Loop(builder, count, [builder.load(output, align=align) for output in outputs])
    first, columns, sums = builder.mul(loop.k, I64(step)), [], iter(loop.sums)
    for start in starts:
        spot = builder.gep(start, [first])
        columns.append(builder.load(builder.bitcast(spot, vector.as_pointer()), align=align))
        if ahead is not None:
            _prefetch(builder, builder.gep(spot, [ahead]))
    new_sums = []
    for row in a_rows:
        factor = splat(builder, vector, builder.load(builder.gep(row, [loop.k])))
        new_sums += [call_llvm(builder, "fma", factor, column, next(sums)) for column in columns]
    loop.end(new_sums)
    for output, value in zip(outputs, new_sums, strict=True):
        builder.store(value, output, align=align)


def wide_block(rows: int, vectors: int) -> Any:
    """Make a function that adds the product of rows with a panel of some vectors, and prefetches the next panel."""

    @intrinsic
    def block(typingctx: Any, a: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any) -> Any:
        kind = VECTORS[a.dtype]

        def build(builder: Any, a: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any) -> None:
            step = vectors * kind.lanes
            starts = [builder.gep(panel, [I64(number * kind.lanes)]) for number in range(vectors)]
            ahead = builder.mul(count, I64(step))
            _add_product(builder, kind, rows, starts, step, ahead, (a, a_step, count, c, c_step))

        return types.void(a, types.intp, panel, types.intp, c, types.intp), built(build)

    return block


def _by_size(builder: Any, rows: Any, panels: Any, build: Callable[[int, int], None]) -> None:
    """Generate a branch of code for each number of rows and panels."""
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
def narrow_blocks(
    typingctx: Any, rows: Any, panels: Any, a: Any, a_step: Any, weight: Any, count: Any, c: Any, c_step: Any
) -> Any:
    """Add the product of rows with panels one vector wide, of `count` rows; `_PANELS` lists the supported sizes."""
    kind = VECTORS[a.dtype]

    def build(builder: Any, *args: Any) -> None:
        rows, panels, a, a_step, weight, count, c, c_step = args

        def build_one(rows: int, panels: int) -> None:
            size = builder.mul(count, I64(kind.lanes))
            starts = [builder.gep(weight, [builder.mul(size, I64(panel))]) for panel in range(panels)]
            _add_product(builder, kind, rows, starts, kind.lanes, None, (a, a_step, count, c, c_step))

        _by_size(builder, rows, panels, build_one)

    integer = types.intp
    return types.void(integer, integer, a, integer, weight, integer, c, integer), built(build)


@intrinsic
def int8_blocks(
    typingctx: Any, rows: Any, panels: Any, a: Any, a_step: Any, weight: Any, count: Any, c: Any, c_step: Any,
    row_scales: Any, scales: Any,
) -> Any:  # fmt: skip
    """Like `narrow_blocks`, for int8 numbers with scales of rows and columns; `a_step` and `count` count pairs."""
    kind = VECTORS[c.dtype]
    vector, lanes, align = llvm_type(kind), kind.lanes, kind.element.bitwidth // 8
    sums, halves = ir.VectorType(I32, lanes), ir.VectorType(_I16, 2 * lanes)

    def build(builder: Any, *args: Any) -> None:
        rows, panels, a, a_step, weight, count, c, c_step, row_scales, scales = args

        def build_one(rows: int, panels: int) -> None:
            a_rows = [builder.gep(a, [builder.mul(a_step, I64(row))]) for row in range(rows)]
            size = builder.mul(count, I64(2 * lanes))
            starts = [builder.gep(weight, [builder.mul(size, I64(panel))]) for panel in range(panels)]
            loop = _Loop(builder, count, [ir.Constant(sums, [0] * lanes)] * (rows * panels))
            first = builder.mul(loop.k, I64(2 * lanes))
            bytes_at = ir.VectorType(_I8, 2 * lanes).as_pointer()
            spots = [builder.bitcast(builder.gep(start, [first]), bytes_at) for start in starts]
            columns = [builder.sext(builder.load(spot, align=1), halves) for spot in spots]
            loaded = [builder.load(builder.gep(row, [loop.k]), align=4) for row in a_rows]
            factors = [builder.bitcast(splat(builder, sums, value), halves) for value in loaded]
            pairs = [(factor, column) for factor in factors for column in columns]
            new_sums = [builder.add(was, _pairs(builder, *pair)) for pair, was in zip(pairs, loop.sums, strict=True)]
            loop.end(new_sums)
            for number, output in enumerate(_outputs(builder, c, c_step, rows, panels, kind)):
                row, panel = divmod(number, panels)
                scale_at = builder.bitcast(builder.gep(scales, [I64(panel * lanes)]), vector.as_pointer())
                by_row = splat(builder, vector, builder.load(builder.gep(row_scales, [I64(row)])))
                scale = builder.fmul(by_row, builder.load(scale_at, align=align))
                value = builder.sitofp(new_sums[number], vector)
                was = builder.load(output, align=align)
                builder.store(call_llvm(builder, "fma", value, scale, was), output, align=align)

        _by_size(builder, rows, panels, build_one)

    integer = types.intp
    return types.void(integer, integer, a, integer, weight, integer, c, integer, row_scales, scales), built(build)


def _pairs(builder: Any, a: Any, b: Any) -> Any:
    """Multiply 16-bit numbers and add neighbouring products, with the machine's instruction for it if there is one."""
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
