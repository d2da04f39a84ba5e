"""Vectors for Numba: 64 bytes of numbers, with arithmetic, loads and stores.

Numba leaves it to LLVM to vectorise loops over arrays; the result depends on the machine's settings, and accumulators
do not stay in registers. Here a kernel names its vectors: 16 lanes of float32 or 8 of float64, which LLVM turns into
one, two or four registers of the machine it runs on.

Memory is reached through typed pointers, without bounds or wraparound.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model

from dikkat._engine.internals import AbstractTemplate, cgutils, infer_global, signature
from dikkat._engine.record import BYTES

# `contract` makes fused multiply-adds. Not `nnan` or `ninf`: NaN and infinity occur, and kernels test for them.
FLAGS = ("contract", "reassoc", "arcp", "nsz")
_HALF, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)

# In a kernel's signature: what Numba infers by itself.
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
    """A truth value for each lane of a vector."""

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
    """Define an operator for two vectors, or masks, of one type."""

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
# NaN compares as in Python: unequal to everything, and neither smaller nor larger.
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
    one = builder.insert_element(undefined, scalar, I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def splat_constant(kind: ir.VectorType, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def built(build: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic's code, from a function of LLVM's builder and values of the arguments."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = build(builder, *args)
        return context.get_dummy_value() if sig.return_type == types.void else result

    return codegen


@intrinsic
def pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """The memory at an address, as numbers of `like`'s type."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.CPointer(like)(types.intp, like), build


@intrinsic
def address(typingctx: Any, number: Any) -> Any:
    """An address in the form that `carray` takes."""
    return types.voidptr(types.intp), built(lambda builder, n: builder.inttoptr(n, ir.IntType(8).as_pointer()))


@intrinsic
def at(typingctx: Any, base: Any, index: Any) -> Any:
    """The pointer to element `index`."""
    return base(base, types.intp), built(lambda builder, base, index: builder.gep(base, [index]))


@intrinsic
def bits_of(typingctx: Any, base: Any) -> Any:
    """Memory as 16-bit integers."""
    return types.CPointer(types.uint16)(base), built(lambda builder, base: builder.bitcast(base, _HALF.as_pointer()))


def _load(builder: Any, base: Any, index: Any, kind: ir.VectorType, size: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [index]), kind.as_pointer()), align=size)


def _store(builder: Any, base: Any, index: Any, vector: Any, size: int) -> None:
    builder.store(vector, builder.bitcast(builder.gep(base, [index]), vector.type.as_pointer()), align=size)


@intrinsic
def load(typingctx: Any, base: Any, index: Any) -> Any:
    """The vector that begins at element `index`."""
    kind = VECTORS[base.dtype]
    return kind(base, types.intp), built(
        lambda builder, base, index: _load(builder, base, index, llvm_type(kind), kind.element.bitwidth // 8)
    )


@intrinsic
def store(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector from element `index` on."""
    size = vector.element.bitwidth // 8
    return types.void(base, types.intp, vector), built(
        lambda builder, base, index, vector: _store(builder, base, index, vector, size)
    )


@intrinsic
def load_bfloat16(typingctx: Any, base: Any, index: Any, like: Any) -> Any:
    """The vector of `like`'s type that begins at element `index` of bfloat16 numbers, given by their bits."""
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
    """Write a vector as bfloat16 numbers from element `index` on, each the nearest, of two as near the even one."""
    wide, narrow = ir.VectorType(I32, vector.lanes), ir.VectorType(_HALF, vector.lanes)

    def build(builder: Any, base: Any, index: Any, numbers: Any) -> None:
        def all_of(number: int) -> Any:
            return ir.Constant(wide, [number] * vector.lanes)

        single = numbers
        if vector.element != types.float32:
            single = builder.fptrunc(single, ir.VectorType(ir.FloatType(), vector.lanes))
        bits = builder.bitcast(single, wide)
        last = builder.and_(builder.lshr(bits, all_of(16)), all_of(1))
        rounded = builder.add(bits, builder.add(last, all_of(0x7FFF)))
        # A NaN whose bits are all in the lower half would become infinity.
        nan = builder.fcmp_unordered("uno", numbers, numbers)
        rounded = builder.select(nan, all_of(0x7FC00000), rounded)
        _store(builder, base, index, builder.trunc(builder.lshr(rounded, all_of(16)), narrow), 2)

    return types.void(base, types.intp, vector), built(build)


@intrinsic
def load_int8(typingctx: Any, base: Any, index: Any, like: Any) -> Any:
    """The vector of `like`'s type that begins at element `index` of int8 numbers."""
    kind = VECTORS[like]
    narrow = ir.VectorType(ir.IntType(8), kind.lanes)
    return kind(base, types.intp, like), built(
        lambda builder, base, index, like: builder.sitofp(_load(builder, base, index, narrow, 1), llvm_type(kind))
    )


@intrinsic
def store_int16(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector as 16-bit integers from element `index` on, each the nearest, of two as near the even one."""

    def build(builder: Any, base: Any, index: Any, numbers: Any) -> None:
        whole = builder.fptosi(call_llvm(builder, "rint", numbers), ir.VectorType(I32, vector.lanes))
        _store(builder, base, index, builder.trunc(whole, ir.VectorType(_HALF, vector.lanes)), 2)

    return types.void(base, types.intp, vector), built(build)


@intrinsic
def spread(typingctx: Any, base: Any, index: Any) -> Any:
    """Element `index` in every lane."""
    kind = VECTORS[base.dtype]
    return kind(base, types.intp), built(
        lambda builder, base, index: splat(builder, llvm_type(kind), builder.load(builder.gep(base, [index])))
    )


@intrinsic
def gather(typingctx: Any, base: Any, index: Any, step: Any, count: Any) -> Any:
    """Elements index, index + step, ...; beyond `count` of them, the first again."""
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
    """A number in every lane, as of `like`'s type."""
    kind = VECTORS[like]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splat(builder, llvm_type(kind), context.cast(builder, args[0], number, like))

    return kind(number, like), build


@intrinsic
def lane_numbers(typingctx: Any, like: Any) -> Any:
    """0, 1, 2, ... as numbers of `like`'s type."""
    kind = VECTORS[like]
    numbers = ir.Constant(llvm_type(kind), [float(lane) for lane in range(kind.lanes)])
    return kind(like), built(lambda builder, like: numbers)


@intrinsic
def lanes_of(typingctx: Any, like: Any) -> Any:
    """The number of lanes of a vector of `like`'s type."""
    return types.intp(like), built(lambda builder, like_value: I64(VECTORS[like].lanes))


@intrinsic
def where(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """a in the lanes of the mask, b in the others."""
    return a(mask, a, b), built(lambda builder, *args: builder.select(*args))


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; b where either is NaN."""
    return a(a, b), built(_larger)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def some(typingctx: Any, mask: Any) -> Any:
    """True where any lane of the mask is."""
    bits = ir.IntType(mask.lanes)
    return types.boolean(mask), built(
        lambda builder, mask: builder.icmp_unsigned("!=", builder.bitcast(mask, bits), bits(0))
    )


def _fold(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Join all lanes, one half with the other until one is left."""
    width = vector.type.count
    while width > 1:
        width //= 2
        lanes = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        others = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        undefined = ir.Constant(vector.type, ir.Undefined)
        vector = join(
            builder.shuffle_vector(vector, undefined, lanes), builder.shuffle_vector(vector, undefined, others)
        )
    return builder.extract_element(vector, I32(0))


@intrinsic
def total(typingctx: Any, vector: Any) -> Any:
    """The sum of the lanes."""
    return vector.element(vector), built(
        lambda builder, vector: _fold(builder, vector, lambda a, b: builder.fadd(a, b, flags=FLAGS))
    )


@intrinsic
def totals(typingctx: Any, base: Any, index: Any) -> Any:
    """The sums of as many vectors as one has lanes, stored one after another from element `index` on."""
    kind = VECTORS[base.dtype]

    def build(builder: Any, base: Any, index: Any) -> Any:
        lanes, size = kind.lanes, kind.element.bitwidth // 8
        starts = [builder.add(index, I64(number * lanes)) for number in range(lanes)]
        vectors = [_load(builder, base, start, llvm_type(kind), size) for start in starts]
        # Two vectors become one: the sum of their halves, the first vector's in one part, the second's in the other.
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
    """Some lanes of both vectors plus the other lanes of both."""
    kind = ir.VectorType(I32, len(first))
    one = builder.shuffle_vector(a, b, ir.Constant(kind, list(first)))
    return builder.fadd(one, builder.shuffle_vector(a, b, ir.Constant(kind, list(second))), flags=FLAGS)


@intrinsic
def largest_lane(typingctx: Any, vector: Any) -> Any:
    """The largest lane."""
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
    """a b + c, rounded once, and in no other order: a sum that is made twice is the same to the last bit."""
    return a(a, b, c), built(lambda builder, *args: call_llvm(builder, "fma", *args))


@intrinsic
def magnitude(typingctx: Any, vector: Any) -> Any:
    """|x|."""
    return vector(vector), built(lambda builder, *args: call_llvm(builder, "fabs", *args))


@intrinsic
def square_root(typingctx: Any, vector: Any) -> Any:
    """√x."""
    return vector(vector), built(lambda builder, *args: call_llvm(builder, "sqrt", *args))


@intrinsic
def claim(typingctx: Any, address: Any) -> Any:
    """Add 1 to the 64-bit integer at an address, atomically; return its old value."""
    return types.intp(types.intp), built(
        lambda builder, address: builder.atomic_rmw("add", integer_at(builder, address), I64(1), "monotonic")
    )


def integer_at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())
