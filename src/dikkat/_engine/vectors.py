"""Vectors for Numba: 64 bytes of numbers, with arithmetic, loads and stores.

Numba lets LLVM vectorise loops over arrays. The result depends on the machine's settings, and accumulators do not stay
in registers. So kernels use explicit vectors: 16 lanes of float32 or 8 of float64, which LLVM maps to one, two or four
registers of the machine.

Typed pointers access memory without bounds checks or wraparound.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model

from dikkat._engine.internals import AbstractTemplate, cgutils, infer_global, signature
from dikkat._engine.record import BYTES

# `contract` allows fused multiply-adds. `nnan` and `ninf` are off, because kernels test for NaN and infinity.
FLAGS = ("contract", "reassoc", "arcp", "nsz")
_HALF, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)

# Types in a kernel's signature, which Numba infers itself.
Vector: TypeAlias = Any
Mask: TypeAlias = Any
Pointer: TypeAlias = Any


class VectorType(types.Type):
    """A vector of one floating-point type."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        self.lanes = BYTES * 8 // element.bitwidth
        super().__init__(f"Vector({element})")


class MaskType(types.Type):
    """A boolean for each lane of a vector."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(f"Mask({lanes})")


VECTORS = {element: VectorType(element) for element in (types.float32, types.float64)}


def llvm_type(kind: VectorType) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if kind.element == types.float32 else ir.DoubleType(), kind.lanes)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, llvm_type(kind))


@register_model(MaskType)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: MaskType) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), kind.lanes))


def _operator(function: Any, kinds: type[types.Type], returns: Callable[[Any], Any], build: Any) -> None:
    """Define an operator for two vectors, or two masks, of one type."""

    @infer_global(function)
    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], kinds) and args[0] == args[1]:
                return signature(returns(args[0]), *args)
            return None

    @lower_builtin(function, kinds, kinds)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return build(builder, *args)


for _function, _name in (
    (operator.add, "fadd"), (operator.iadd, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):  # fmt: skip
    _operator(
        _function,
        VectorType,
        lambda kind: kind,
        lambda builder, a, b, name=_name: getattr(builder, name)(a, b, flags=FLAGS),
    )
# NaN compares as in Python: unequal to every number, and neither smaller nor larger.
for _function, _name in ((operator.lt, "<"), (operator.gt, ">"), (operator.eq, "=="), (operator.ne, "!=")):
    _operator(
        _function,
        VectorType,
        lambda kind: MaskType(kind.lanes),
        lambda builder, a, b, name=_name: (builder.fcmp_unordered if name == "!=" else builder.fcmp_ordered)(
            name, a, b
        ),
    )
_operator(operator.and_, MaskType, lambda kind: kind, lambda builder, a, b: builder.and_(a, b))
_operator(operator.or_, MaskType, lambda kind: kind, lambda builder, a, b: builder.or_(a, b))


def splat(builder: Any, kind: ir.VectorType, scalar: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first_lane = builder.insert_element(undefined, scalar, I32(0))
    return builder.shuffle_vector(first_lane, undefined, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def splat_constant(kind: ir.VectorType, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def built(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make an intrinsic's code from a function of LLVM's builder and the argument values."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = build(builder, *args)
        return context.get_dummy_value() if sig.return_type == types.void else result

    return codegen


@intrinsic
def pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """Return the memory at an address as numbers of `like`'s type."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.CPointer(like)(types.intp, like), build


@intrinsic
def address(typingctx: Any, number: Any) -> Any:
    """Convert an address to the pointer type for `carray`."""
    return types.voidptr(types.intp), built(lambda builder, n: builder.inttoptr(n, ir.IntType(8).as_pointer()))


@intrinsic
def at(typingctx: Any, base: Any, index: Any) -> Any:
    return base(base, types.intp), built(lambda builder, base, index: builder.gep(base, [index]))


@intrinsic
def bits_of(typingctx: Any, base: Any) -> Any:
    """Return memory as 16-bit integers."""
    return types.CPointer(types.uint16)(base), built(lambda builder, base: builder.bitcast(base, _HALF.as_pointer()))


def _load(builder: Any, base: Any, index: Any, kind: ir.VectorType, size: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [index]), kind.as_pointer()), align=size)


def _store(builder: Any, base: Any, index: Any, vector: Any, size: int) -> None:
    builder.store(vector, builder.bitcast(builder.gep(base, [index]), vector.type.as_pointer()), align=size)


@intrinsic
def load(typingctx: Any, base: Any, index: Any) -> Any:
    kind = VECTORS[base.dtype]
    return kind(base, types.intp), built(
        lambda builder, base, index: _load(builder, base, index, llvm_type(kind), kind.element.bitwidth // 8)
    )


@intrinsic
def store(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    size = vector.element.bitwidth // 8
    return types.void(base, types.intp, vector), built(
        lambda builder, base, index, vector: _store(builder, base, index, vector, size)
    )


@intrinsic
def load_bfloat16(typingctx: Any, base: Any, index: Any, like: Any) -> Any:
    """Load a vector of `like`'s type from bfloat16 numbers, given as 16-bit integers, starting at element `index`."""
    kind = VECTORS[like]

    def build(builder: Any, base: Any, index: Any, like: Any) -> Any:
        wide = ir.VectorType(I32, kind.lanes)
        halves = _load(builder, base, index, ir.VectorType(_HALF, kind.lanes), 2)
        bits = builder.shl(builder.zext(halves, wide), ir.Constant(wide, [16] * kind.lanes))
        single = builder.bitcast(bits, ir.VectorType(ir.FloatType(), kind.lanes))
        return single if kind.element == types.float32 else builder.fpext(single, llvm_type(kind))

    return kind(base, types.intp, like), built(build)


@intrinsic
def store_bfloat16(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector as bfloat16 numbers, rounded to nearest even, starting at element `index`."""
    wide, narrow = ir.VectorType(I32, vector.lanes), ir.VectorType(_HALF, vector.lanes)

    def build(builder: Any, base: Any, index: Any, numbers: Any) -> None:
        def constant(number: int) -> Any:
            return ir.Constant(wide, [number] * vector.lanes)

        single = numbers
        if vector.element != types.float32:
            single = builder.fptrunc(single, ir.VectorType(ir.FloatType(), vector.lanes))
        bits = builder.bitcast(single, wide)
        last = builder.and_(builder.lshr(bits, constant(16)), constant(1))
        rounded = builder.add(bits, builder.add(last, constant(0x7FFF)))
        # A NaN with bits only in the lower half would become infinity.
        nan = builder.fcmp_unordered("uno", numbers, numbers)
        rounded = builder.select(nan, constant(0x7FC00000), rounded)
        _store(builder, base, index, builder.trunc(builder.lshr(rounded, constant(16)), narrow), 2)

    return types.void(base, types.intp, vector), built(build)


@intrinsic
def load_int8(typingctx: Any, base: Any, index: Any, like: Any) -> Any:
    """Load a vector of `like`'s type from int8 numbers, starting at element `index`."""
    kind = VECTORS[like]
    narrow = ir.VectorType(ir.IntType(8), kind.lanes)
    return kind(base, types.intp, like), built(
        lambda builder, base, index, like: builder.sitofp(_load(builder, base, index, narrow, 1), llvm_type(kind))
    )


@intrinsic
def store_int16(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector as 16-bit integers, rounded to nearest even, starting at element `index`."""

    def build(builder: Any, base: Any, index: Any, numbers: Any) -> None:
        integers = builder.fptosi(call_llvm(builder, "rint", numbers), ir.VectorType(I32, vector.lanes))
        _store(builder, base, index, builder.trunc(integers, ir.VectorType(_HALF, vector.lanes)), 2)

    return types.void(base, types.intp, vector), built(build)


@intrinsic
def spread(typingctx: Any, base: Any, index: Any) -> Any:
    """Load element `index` and broadcast it to every lane."""
    kind = VECTORS[base.dtype]
    return kind(base, types.intp), built(
        lambda builder, base, index: splat(builder, llvm_type(kind), builder.load(builder.gep(base, [index])))
    )


@intrinsic
def gather(typingctx: Any, base: Any, index: Any, step: Any, count: Any) -> Any:
    """Return elements index, index + step, ...; after `count` of them, repeat the first."""
    kind = VECTORS[base.dtype]

    def build(builder: Any, base: Any, index: Any, step: Any, count: Any) -> Any:
        vector = ir.Constant(llvm_type(kind), ir.Undefined)
        for lane in range(kind.lanes):
            inside = builder.icmp_signed("<", I64(lane), count)
            offset = builder.select(inside, builder.mul(step, I64(lane)), I64(0))
            number = builder.load(builder.gep(base, [builder.add(index, offset)]))
            vector = builder.insert_element(vector, number, I32(lane))
        return vector

    return kind(base, types.intp, types.intp, types.intp), built(build)


@intrinsic
def full(typingctx: Any, number: Any, like: Any) -> Any:
    """Return a number, converted to `like`'s type, in every lane."""
    kind = VECTORS[like]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splat(builder, llvm_type(kind), context.cast(builder, args[0], number, like))

    return kind(number, like), build


@intrinsic
def lane_numbers(typingctx: Any, like: Any) -> Any:
    """Return 0, 1, 2, ... as numbers of `like`'s type."""
    kind = VECTORS[like]
    numbers = ir.Constant(llvm_type(kind), [float(lane) for lane in range(kind.lanes)])
    return kind(like), built(lambda builder, like: numbers)


@intrinsic
def lanes_of(typingctx: Any, like: Any) -> Any:
    """Return the number of lanes of a vector of `like`'s type."""
    return types.intp(like), built(lambda builder, like_value: I64(VECTORS[like].lanes))


@intrinsic
def where(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """Return a in the lanes of the mask, b in the others."""
    return a(mask, a, b), built(lambda builder, *args: builder.select(*args))


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the larger number of each lane; b if either is NaN."""
    return a(a, b), built(_larger)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def some(typingctx: Any, mask: Any) -> Any:
    """Return True if any lane of the mask is true."""
    bits = ir.IntType(mask.lanes)
    return types.boolean(mask), built(
        lambda builder, mask: builder.icmp_unsigned("!=", builder.bitcast(mask, bits), bits(0))
    )


def _fold(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Combine all lanes: repeatedly join the two halves of the vector."""
    width = vector.type.count
    while width > 1:
        width //= 2
        lower = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        upper = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        undefined = ir.Constant(vector.type, ir.Undefined)
        vector = join(
            builder.shuffle_vector(vector, undefined, lower), builder.shuffle_vector(vector, undefined, upper)
        )
    return builder.extract_element(vector, I32(0))


@intrinsic
def total(typingctx: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""
    return vector.element(vector), built(
        lambda builder, vector: _fold(builder, vector, lambda a, b: builder.fadd(a, b, flags=FLAGS))
    )


@intrinsic
def totals(typingctx: Any, base: Any, index: Any) -> Any:
    """Return the sums of as many vectors as a vector has lanes, stored consecutively from element `index` on."""
    kind = VECTORS[base.dtype]

    def build(builder: Any, base: Any, index: Any) -> Any:
        lanes, size = kind.lanes, kind.element.bitwidth // 8
        starts = [builder.add(index, I64(number * lanes)) for number in range(lanes)]
        vectors = [_load(builder, base, start, llvm_type(kind), size) for start in starts]
        # Each step turns two vectors into one: the first half holds sums of the first vector, the second of the second.
        width = lanes
        while len(vectors) > 1:
            half = width // 2
            first = [lane for lane in range(2 * lanes) if lane % width < half]
            second = [lane + half for lane in first]
            pairs = zip(vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :], strict=True)
            vectors = [_halves(builder, a, b, first, second) for a, b in pairs]
            width = half
        order = [int(f"{lane:0{lanes.bit_length() - 1}b}"[::-1], 2) for lane in range(lanes)]
        lanes_in_order = ir.Constant(ir.VectorType(I32, lanes), order)
        return builder.shuffle_vector(vectors[0], ir.Constant(vectors[0].type, ir.Undefined), lanes_in_order)

    return kind(base, types.intp), built(build)


def _halves(builder: Any, a: Any, b: Any, first: Sequence[int], second: Sequence[int]) -> Any:
    """Add some lanes of both vectors to the other lanes of both."""
    kind = ir.VectorType(I32, len(first))
    first_lanes = builder.shuffle_vector(a, b, ir.Constant(kind, list(first)))
    return builder.fadd(first_lanes, builder.shuffle_vector(a, b, ir.Constant(kind, list(second))), flags=FLAGS)


@intrinsic
def largest_lane(typingctx: Any, vector: Any) -> Any:
    return vector.element(vector), built(
        lambda builder, vector: _fold(builder, vector, lambda a, b: _larger(builder, a, b))
    )


def call_llvm(builder: Any, name: str, *args: Any) -> Any:
    kind = args[0].type
    width = 32 if kind.element == ir.FloatType() else 64
    called = ir.FunctionType(kind, [kind] * len(args))
    name = f"llvm.{name}.v{kind.count}f{width}"
    return builder.call(cgutils.get_or_insert_function(builder.module, called, name), args)


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once; never reordered, so that repeated sums are identical to the last bit."""
    return a(a, b, c), built(lambda builder, *args: call_llvm(builder, "fma", *args))


@intrinsic
def magnitude(typingctx: Any, vector: Any) -> Any:
    return vector(vector), built(lambda builder, *args: call_llvm(builder, "fabs", *args))


@intrinsic
def square_root(typingctx: Any, vector: Any) -> Any:
    return vector(vector), built(lambda builder, *args: call_llvm(builder, "sqrt", *args))


@intrinsic
def claim(typingctx: Any, address: Any) -> Any:
    """Add 1 to the 64-bit integer at an address, atomically; return its old value."""
    return types.intp(types.intp), built(
        lambda builder, address: builder.atomic_rmw("add", integer_at(builder, address), I64(1), "monotonic")
    )


def integer_at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())
