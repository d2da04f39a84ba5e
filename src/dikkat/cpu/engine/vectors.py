"""Vectors for Numba: 64 bytes of numbers, with arithmetic, loads and stores.

Numba leaves it to LLVM to find vectors in loops over arrays; what it finds depends on the machine's settings, and
accumulators do not stay in registers. Here a kernel says what is a vector: 16 lanes of float32 or 8 of float64, which
LLVM turns into one, two or four registers of the machine it runs on.

Memory is reached through typed pointers, without bounds or wraparound.
"""

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import factorial
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from dikkat.cpu.attention.launch import BYTES

# Contraction makes fused multiply-adds. There is neither `nnan` nor `ninf`: both occur, and are looked for.
FLAGS = ("contract", "reassoc", "arcp", "nsz")
_HALF, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)

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
    """Which lanes of a vector of `lanes`."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(f"Mask({lanes})")


VECTORS = {element: VectorType(element) for element in (types.float32, types.float64)}


def _llvm(kind: VectorType) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if kind.element == types.float32 else ir.DoubleType(), kind.lanes)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, _llvm(kind))


@register_model(MaskType)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: MaskType) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), kind.lanes))


def _operator(function: Any, kinds: type[types.Type], returns: Callable[[Any], Any], build: Any) -> None:
    """`function` of two vectors (or masks) of one type."""

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
# As in Python, where either is NaN: it differs, and nothing else holds.
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


def _splat(builder: Any, kind: ir.VectorType, scalar: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count))


def _constant(kind: ir.VectorType, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


@intrinsic
def pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """The memory at an address, as numbers of `like`'s type."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.CPointer(like)(types.intp, like), build


@intrinsic
def address(typingctx: Any, number: Any) -> Any:
    """The same address, as `carray` takes it."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return types.voidptr(types.intp), build


@intrinsic
def at(typingctx: Any, base: Any, index: Any) -> Any:
    """The pointer to element `index`."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return base(base, types.intp), build


@intrinsic
def whole_numbers(typingctx: Any, base: Any) -> Any:
    """The same memory as 64-bit integers."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64.as_pointer())

    return types.CPointer(types.int64)(base), build


@intrinsic
def bits_of(typingctx: Any, base: Any) -> Any:
    """The same memory as 16-bit integers."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _HALF.as_pointer())

    return types.CPointer(types.uint16)(base), build


def _vector_at(builder: Any, base: Any, index: Any, kind: VectorType) -> tuple[Any, Any]:
    spot = builder.gep(base, [index])
    return builder.bitcast(spot, _llvm(kind).as_pointer()), kind.element.bitwidth // 8


@intrinsic
def load(typingctx: Any, base: Any, index: Any) -> Any:
    """The vector that begins at element `index`."""
    kind = VECTORS[base.dtype]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        spot, align = _vector_at(builder, args[0], args[1], kind)
        return builder.load(spot, align=align)

    return kind(base, types.intp), build


@intrinsic
def store(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector from element `index` on."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        spot, align = _vector_at(builder, args[0], args[1], vector)
        builder.store(args[2], spot, align=align)
        return context.get_dummy_value()

    return types.void(base, types.intp, vector), build


@intrinsic
def load_bfloat16(typingctx: Any, base: Any, index: Any, like: Any) -> Any:
    """The vector of `like`'s type that begins at element `index` of bfloat16 numbers, told by their bits."""
    kind = VECTORS[like]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        spot = builder.bitcast(builder.gep(args[0], [args[1]]), ir.VectorType(_HALF, kind.lanes).as_pointer())
        wide = ir.VectorType(_I32, kind.lanes)
        bits = builder.shl(builder.zext(builder.load(spot, align=2), wide), ir.Constant(wide, [16] * kind.lanes))
        single = builder.bitcast(bits, ir.VectorType(ir.FloatType(), kind.lanes))
        return single if kind.element == types.float32 else builder.fpext(single, _llvm(kind))

    return kind(base, types.intp, like), build


@intrinsic
def store_bfloat16(typingctx: Any, base: Any, index: Any, vector: Any) -> Any:
    """Write a vector as bfloat16 numbers from element `index` on, each the nearest, even where two are."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide, narrow = ir.VectorType(_I32, vector.lanes), ir.VectorType(_HALF, vector.lanes)

        def all_of(number: int) -> Any:
            return ir.Constant(wide, [number] * vector.lanes)

        single = args[2]
        if vector.element != types.float32:
            single = builder.fptrunc(single, ir.VectorType(ir.FloatType(), vector.lanes))
        bits = builder.bitcast(single, wide)
        last = builder.and_(builder.lshr(bits, all_of(16)), all_of(1))
        rounded = builder.add(bits, builder.add(last, all_of(0x7FFF)))
        # A NaN whose bits are all in the lower half would become infinity.
        nan = builder.fcmp_unordered("uno", args[2], args[2])
        rounded = builder.select(nan, all_of(0x7FC00000), rounded)
        halves = builder.trunc(builder.lshr(rounded, all_of(16)), narrow)
        spot = builder.bitcast(builder.gep(args[0], [args[1]]), narrow.as_pointer())
        builder.store(halves, spot, align=2)
        return context.get_dummy_value()

    return types.void(base, types.intp, vector), build


@intrinsic
def spread(typingctx: Any, base: Any, index: Any) -> Any:
    """Element `index` in every lane."""
    kind = VECTORS[base.dtype]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, _llvm(kind), builder.load(builder.gep(args[0], [args[1]])))

    return kind(base, types.intp), build


@intrinsic
def gather(typingctx: Any, base: Any, index: Any, step: Any, count: Any) -> Any:
    """Elements index, index + step, ...; beyond `count` of them, the first again."""
    kind = VECTORS[base.dtype]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start, index, step, count = args
        vector = ir.Constant(_llvm(kind), ir.Undefined)
        for lane in range(kind.lanes):
            inside = builder.icmp_signed("<", _I64(lane), count)
            offset = builder.select(inside, builder.mul(step, _I64(lane)), _I64(0))
            number = builder.load(builder.gep(start, [builder.add(index, offset)]))
            vector = builder.insert_element(vector, number, _I32(lane))
        return vector

    return kind(base, types.intp, types.intp, types.intp), build


@intrinsic
def full(typingctx: Any, number: Any, like: Any) -> Any:
    """A number in every lane, as of `like`'s type."""
    kind = VECTORS[like]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, _llvm(kind), context.cast(builder, args[0], number, like))

    return kind(number, like), build


@intrinsic
def lane_numbers(typingctx: Any, like: Any) -> Any:
    """0, 1, 2, ... as numbers of `like`'s type."""
    kind = VECTORS[like]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(_llvm(kind), [float(lane) for lane in range(kind.lanes)])

    return kind(like), build


@intrinsic
def lanes_of(typingctx: Any, like: Any) -> Any:
    """How many lanes a vector of `like`'s type has."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _I64(VECTORS[like].lanes)

    return types.intp(like), build


@intrinsic
def where(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:
    """a in the lanes of the mask, b in the others."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return a(mask, a, b), build


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; b where either is NaN."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), build


@intrinsic
def some(typingctx: Any, mask: Any) -> Any:
    """Whether the mask has a lane."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(mask.lanes))
        return builder.icmp_unsigned("!=", bits, ir.IntType(mask.lanes)(0))

    return types.boolean(mask), build


def _fold(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """All lanes joined by halving."""
    width = vector.type.count
    while width > 1:
        width //= 2
        lanes = ir.Constant(ir.VectorType(_I32, width), list(range(width)))
        others = ir.Constant(ir.VectorType(_I32, width), list(range(width, 2 * width)))
        undefined = ir.Constant(vector.type, ir.Undefined)
        vector = join(
            builder.shuffle_vector(vector, undefined, lanes), builder.shuffle_vector(vector, undefined, others)
        )
    return builder.extract_element(vector, _I32(0))


@intrinsic
def total(typingctx: Any, vector: Any) -> Any:
    """The sum of the lanes."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _fold(builder, args[0], lambda a, b: builder.fadd(a, b, flags=FLAGS))

    return vector.element(vector), build


@intrinsic
def totals(typingctx: Any, base: Any, index: Any) -> Any:
    """The sums of as many vectors as one has lanes, stored one after another from element `index` on."""
    kind = VECTORS[base.dtype]

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = kind.lanes
        vectors = []
        for number in range(lanes):
            spot, align = _vector_at(builder, args[0], builder.add(args[1], _I64(number * lanes)), kind)
            vectors.append(builder.load(spot, align=align))
        # Vectors that are to be the halves of one: each gives way for the other's half, and the halves are added.
        width = lanes
        while len(vectors) > 1:
            half = width // 2
            first = [lane for lane in range(2 * lanes) if lane % width < half]
            second = [lane + half for lane in first]
            pairs = zip(vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :], strict=True)
            vectors = [_halves(builder, a, b, first, second) for a, b in pairs]
            width = half
        order = [int(f"{lane:0{lanes.bit_length() - 1}b}"[::-1], 2) for lane in range(lanes)]
        lanes_in_order = ir.Constant(ir.VectorType(_I32, lanes), order)
        return builder.shuffle_vector(vectors[0], ir.Constant(vectors[0].type, ir.Undefined), lanes_in_order)

    return kind(base, types.intp), build


def _halves(builder: Any, a: Any, b: Any, first: Sequence[int], second: Sequence[int]) -> Any:
    """Some lanes of both vectors plus the other lanes of both."""
    kind = ir.VectorType(_I32, len(first))
    one = builder.shuffle_vector(a, b, ir.Constant(kind, list(first)))
    return builder.fadd(one, builder.shuffle_vector(a, b, ir.Constant(kind, list(second))), flags=FLAGS)


@intrinsic
def largest(typingctx: Any, vector: Any) -> Any:
    """The largest lane."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _fold(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return vector.element(vector), build


def _call(builder: Any, name: str, *args: Any) -> Any:
    """One of LLVM's functions of vectors."""
    kind = args[0].type
    width = 32 if kind.element == ir.FloatType() else 64
    called = ir.FunctionType(kind, [kind] * len(args))
    name = f"llvm.{name}.v{kind.count}f{width}"
    return builder.call(cgutils.get_or_insert_function(builder.module, called, name), args)


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once, and in no other order: a sum that is made twice is the same to the last bit."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, "fma", *args)

    return a(a, b, c), build


@intrinsic
def square_root(typingctx: Any, vector: Any) -> Any:
    """√x."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, "sqrt", *args)

    return vector(vector), build


def _polynomial(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule; the constant term first."""
    kind = x.type
    value = _constant(kind, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = builder.fadd(builder.fmul(value, x, flags=FLAGS), _constant(kind, coefficient), flags=FLAGS)
    return value


class _Format:
    """What `exp` and `log` know of a type: its bits, and how far their series must go."""

    def __init__(self, kind: VectorType) -> None:
        single = kind.element == types.float32
        self.integer = ir.VectorType(_I32 if single else _I64, kind.lanes)
        self.mantissa = 23 if single else 52
        self.bias = 127 if single else 1023
        # ln 2 in two parts: n times the first is exact for every exponent n.
        self.ln2 = (
            (0.693145751953125, 1.428606765330187e-06) if single else (0.6931471803691238, 1.9082149292705877e-10)
        )
        self.exp_terms, self.log_terms = (8, 5) if single else (14, 11)
        self.exp2_terms, self.tanh_terms = (7, 6) if single else (13, 12)
        # The logarithms of the smallest normal number, rounded down, and of the largest.
        self.lowest, self.highest = (-87.33654785, 88.72283173) if single else (-708.3964185322642, 709.78271289338397)

    def whole(self, number: int) -> Any:
        return ir.Constant(self.integer, [number] * self.integer.count)


@intrinsic
def exp(typingctx: Any, vector: Any) -> Any:
    """e^x to one unit in the last place; 0 where that is below the smallest normal number, capped at the largest."""
    form = _Format(vector)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (x,), kind = args, _llvm(vector)

        def constant(value: float) -> Any:
            return _constant(kind, value)

        # Numba allows reassociation in all of a module, which would undo the usual rounding by a large number added and
        # taken away, and the two parts of ln 2: hence the functions, which are not reassociated.
        low, high = constant(form.lowest), constant(form.highest)
        inside = builder.fcmp_ordered(">", x, low)
        within = builder.select(inside, x, low)  # NaN is not
        within = builder.select(builder.fcmp_ordered("<", within, high), within, high)
        n = _call(builder, "rint", builder.fmul(within, constant(1.4426950408889634)))
        r = _call(builder, "fma", n, constant(-form.ln2[0]), within)
        r = _call(builder, "fma", n, constant(-form.ln2[1]), r)
        value = _polynomial(builder, r, [1 / factorial(k) for k in range(form.exp_terms)])
        value = _times_power(builder, value, n, form)
        below = builder.select(builder.fcmp_unordered("uno", x, x), x, constant(0.0))
        return builder.select(inside, value, below)

    return vector(vector), build


def _times_power(builder: Any, value: Any, n: Any, form: _Format) -> Any:
    """value · 2^n, both normal: n is added to the exponent's bits."""
    exponent = builder.shl(builder.fptosi(n, form.integer), form.whole(form.mantissa))
    return builder.bitcast(builder.add(builder.bitcast(value, form.integer), exponent), value.type)


def _shortened(series: Sequence[float], terms: int, domain: tuple[float, float]) -> list[float]:
    """Coefficients of a polynomial for a power series, the constant term first: its own, and a share of what follows.

    The rest alone goes through the zeros of a Chebyshev polynomial: the whole would lose some bits on the way, and the
    value at 0 would not be the series' own.
    """
    rest = np.polynomial.Polynomial([0.0] * terms + list(series[terms:]))
    fitted = np.polynomial.Chebyshev.interpolate(rest, terms - 1, domain=domain)
    rest_terms = fitted.convert(kind=np.polynomial.Polynomial).coef.tolist()
    return [a + b for a, b in zip(series, rest_terms, strict=False)]


_LN2 = 0.6931471805599453
SMALL_TANH = 0.625
"""Up to this |x| tanh x is a polynomial; from here on 1 − 2/(1 + e^{2x}), which is above ½, has all its digits."""


def _tanh_series(terms: int) -> list[float]:
    """(tanh x / x − 1)/x² by powers of x²: from tanh' = 1 − tanh²."""
    found = [Fraction(1)]
    for k in range(1, terms + 1):
        found.append(-sum((found[i] * found[k - 1 - i] for i in range(k)), Fraction(0)) / (2 * k + 1))
    return [float(term) for term in found[1:]]


@intrinsic
def small_tanh(typingctx: Any, vector: Any) -> Any:
    """tanh x for |x| ≤ `SMALL_TANH`, to one unit in the last place."""
    form = _Format(vector)
    coefficients = _shortened(_tanh_series(form.tanh_terms + 24), form.tanh_terms, (0.0, SMALL_TANH**2))

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (x,) = args
        square = builder.fmul(x, x, flags=FLAGS)
        rest = builder.fmul(square, _polynomial(builder, square, coefficients), flags=FLAGS)
        return _call(builder, "fma", x, rest, x)

    return vector(vector), build


@intrinsic
def exp2(typingctx: Any, vector: Any) -> Any:
    """2^x to about one unit in the last place, for numbers that are not NaN and no overflow; 0 below normal numbers."""
    form = _Format(vector)
    series = [_LN2**k / factorial(k) for k in range(form.exp2_terms + 8)]
    coefficients = _shortened(series, form.exp2_terms, (-0.5, 0.5))

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (x,), kind = args, _llvm(vector)
        low = _constant(kind, 1.0 - form.bias)
        inside = builder.fcmp_ordered(">=", x, low)
        x = builder.select(inside, x, low)
        n = _call(builder, "rint", x)
        value = _polynomial(builder, builder.fsub(x, n), coefficients)
        value = _times_power(builder, value, n, form)
        return builder.select(inside, value, _constant(kind, 0.0))

    return vector(vector), build


@intrinsic
def log(typingctx: Any, vector: Any) -> Any:
    """ln x for positive normal x, to three units in the last place; to one where |ln x| ≥ 1."""
    form = _Format(vector)

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (x,), kind = args, _llvm(vector)
        # x = 2^n y with y in [√½, √2): the mantissa's bits, counted from those of √½.
        root = form.whole(0x3F3504F3 if form.mantissa == 23 else 0x3FE6A09E667F3BCD)
        bits = builder.bitcast(x, form.integer)
        n = builder.ashr(builder.sub(bits, root), form.whole(form.mantissa))
        y = builder.bitcast(builder.sub(bits, builder.shl(n, form.whole(form.mantissa))), kind)
        # ln y = 2 artanh z with z = (y − 1)/(y + 1), |z| ≤ 0.172.
        one = _constant(kind, 1.0)
        z = builder.fdiv(builder.fsub(y, one), builder.fadd(y, one))
        series = _polynomial(builder, builder.fmul(z, z), [2 / (2 * k + 1) for k in range(form.log_terms)])
        power = builder.sitofp(n, kind)
        low = builder.fadd(
            builder.fmul(z, series), builder.fmul(power, _constant(kind, form.ln2[1])), flags=("contract",)
        )
        return builder.fadd(builder.fmul(power, _constant(kind, form.ln2[0])), low, flags=("contract",))

    return vector(vector), build


@intrinsic
def claim(typingctx: Any, address: Any) -> Any:
    """Add 1 to the 64-bit integer at an address, as one step for all threads; returns what was there."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        spot = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", spot, _I64(1), "monotonic")

    return types.intp(types.intp), build


PANEL = 2
"""Vectors that a panel of a matrix is wide."""


def _prefetch(builder: Any, spot: Any) -> None:
    """Ask for what will be read soon, for the second-level cache."""
    spot = builder.bitcast(spot, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [spot.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [spot, _I32(0), _I32(2), _I32(1)])


def _product_of(rows: int) -> Any:
    """The product of so many rows with a panel, its sums kept in registers."""

    @intrinsic
    def product(typingctx: Any, a: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any) -> Any:
        kind = VECTORS[a.dtype]

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, a_step, panel, count, c, c_step = args
            places = [
                builder.gep(c, [builder.add(builder.mul(c_step, _I64(row)), _I64(part * kind.lanes))])
                for row in range(rows)
                for part in range(PANEL)
            ]
            places = [builder.bitcast(place, _llvm(kind).as_pointer()) for place in places]
            align = kind.element.bitwidth // 8
            starts = [builder.load(place, align=align) for place in places]
            a_rows = [builder.gep(a, [builder.mul(a_step, _I64(row))]) for row in range(rows)]
            before, loop = builder.block, builder.append_basic_block("product")
            after = builder.append_basic_block("product.end")
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(_I64)
            k.add_incoming(_I64(0), before)
            sums = [builder.phi(_llvm(kind)) for _ in starts]
            for phi, start in zip(sums, starts, strict=True):
                phi.add_incoming(start, before)
            first = builder.mul(k, _I64(PANEL * kind.lanes))
            columns = []
            for part in range(PANEL):
                spot, align = _vector_at(builder, panel, builder.add(first, _I64(part * kind.lanes)), kind)
                columns.append(builder.load(spot, align=align))
                following_panel = builder.mul(count, _I64(PANEL))
                _prefetch(builder, builder.gep(spot, [following_panel]))
            added = []
            for row in range(rows):
                factor = _splat(builder, _llvm(kind), builder.load(builder.gep(a_rows[row], [k])))
                for part in range(PANEL):
                    added.append(_call(builder, "fma", factor, columns[part], sums[row * PANEL + part]))
            for phi, value in zip(sums, added, strict=True):
                phi.add_incoming(value, loop)
            following = builder.add(k, _I64(1))
            k.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
            builder.position_at_end(after)
            for place, value in zip(places, added, strict=True):
                builder.store(value, place, align=align)
            return context.get_dummy_value()

        return types.void(a, types.intp, panel, types.intp, c, types.intp), build

    return product


product_1, product_2, product_4, product_8 = (_product_of(rows) for rows in (1, 2, 4, 8))
