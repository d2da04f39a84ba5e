"""Elementary functions of vectors by polynomials: exponentials, logarithm, tanh and sigmoid.

Numba has no vector form of `np.exp`, so a polynomial is ten times faster.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dikkat._engine import vectors as v
from dikkat._engine.compile import inlined


def _polynomial(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule; the constant term comes first."""
    kind = x.type
    value = v.splat_constant(kind, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = builder.fadd(builder.fmul(value, x, flags=v.FLAGS), v.splat_constant(kind, coefficient), flags=v.FLAGS)
    return value


class _Format:
    """The bits of a floating-point type, and the lengths of its series."""

    def __init__(self, kind: v.VectorType) -> None:
        single = kind.element == types.float32
        self.integer = ir.VectorType(v.I32 if single else v.I64, kind.lanes)
        self.mantissa = 23 if single else 52
        self.bias = 127 if single else 1023
        # ln 2 in two parts: the product of the first part with any exponent n is exact.
        self.ln2 = (
            (0.693145751953125, 1.428606765330187e-06) if single else (0.6931471803691238, 1.9082149292705877e-10)
        )
        self.exp_terms, self.log_terms = (8, 5) if single else (14, 11)
        self.exp2_terms, self.tanh_terms = (7, 6) if single else (13, 12)
        # The logarithms of the smallest normal number (rounded down) and of the largest number.
        self.lowest, self.highest = (-87.33654785, 88.72283173) if single else (-708.3964185322642, 709.78271289338397)

    def constant(self, number: int) -> Any:
        return ir.Constant(self.integer, [number] * self.integer.count)


@intrinsic
def exp(typingctx: Any, vector: Any) -> Any:
    """Return e^x to one unit in the last place; 0 below the smallest normal number, capped at the largest number."""
    form = _Format(vector)

    def build(builder: Any, x: Any) -> Any:
        kind = x.type

        def constant(value: float) -> Any:
            return v.splat_constant(kind, value)

        # Numba allows reassociation in the whole module, which would undo rounding by adding and subtracting a large
        # number, and would merge the two parts of ln 2. LLVM's functions rint and fma are not reassociated.
        low, high = constant(form.lowest), constant(form.highest)
        inside = builder.fcmp_ordered(">", x, low)
        clamped = builder.select(inside, x, low)  # false for NaN
        clamped = builder.select(builder.fcmp_ordered("<", clamped, high), clamped, high)
        n = v.call_llvm(builder, "rint", builder.fmul(clamped, constant(1.4426950408889634)))
        r = v.call_llvm(builder, "fma", n, constant(-form.ln2[0]), clamped)
        r = v.call_llvm(builder, "fma", n, constant(-form.ln2[1]), r)
        value = _polynomial(builder, r, [1 / factorial(k) for k in range(form.exp_terms)])
        value = _times_power(builder, value, n, form)
        below = builder.select(builder.fcmp_unordered("uno", x, x), x, constant(0.0))
        return builder.select(inside, value, below)

    return vector(vector), v.built(build)


def _times_power(builder: Any, value: Any, n: Any, form: _Format) -> Any:
    """Return value · 2^n, both normal, by adding n to the exponent's bits."""
    exponent = builder.shl(builder.fptosi(n, form.integer), form.constant(form.mantissa))
    return builder.bitcast(builder.add(builder.bitcast(value, form.integer), exponent), value.type)


def _shortened(series: Sequence[float], terms: int, domain: tuple[float, float]) -> list[float]:
    """Return `terms` polynomial coefficients for a power series, the constant term first.

    Interpolation at Chebyshev points replaces only the remaining terms, so that the value at 0 stays exact.
    """
    remainder = np.polynomial.Polynomial([0.0] * terms + list(series[terms:]))
    fitted = np.polynomial.Chebyshev.interpolate(remainder, terms - 1, domain=domain)
    corrections = fitted.convert(kind=np.polynomial.Polynomial).coef.tolist()
    return [a + b for a, b in zip(series, corrections, strict=False)]


_LN2 = 0.6931471805599453
SMALL_TANH = 0.625
"""Up to this |x| tanh x is a polynomial. Beyond, 1 − 2/(1 + e^{2x}) is above ½ and loses no digits."""


def _tanh_series(terms: int) -> list[float]:
    """Return the coefficients of (tanh x / x − 1)/x² in powers of x², from tanh' = 1 − tanh²."""
    series = [Fraction(1)]
    for k in range(1, terms + 1):
        series.append(-sum((series[i] * series[k - 1 - i] for i in range(k)), Fraction(0)) / (2 * k + 1))
    return [float(term) for term in series[1:]]


@intrinsic
def small_tanh(typingctx: Any, vector: Any) -> Any:
    """Return tanh x for |x| ≤ `SMALL_TANH`, to one unit in the last place."""
    form = _Format(vector)
    coefficients = _shortened(_tanh_series(form.tanh_terms + 24), form.tanh_terms, (0.0, SMALL_TANH**2))

    def build(builder: Any, x: Any) -> Any:
        square = builder.fmul(x, x, flags=v.FLAGS)
        rest = builder.fmul(square, _polynomial(builder, square, coefficients), flags=v.FLAGS)
        return v.call_llvm(builder, "fma", x, rest, x)

    return vector(vector), v.built(build)


@intrinsic
def exp2(typingctx: Any, vector: Any) -> Any:
    """Return 2^x to about one unit in the last place, for x without NaN or overflow; 0 below normal numbers."""
    form = _Format(vector)
    series = [_LN2**k / factorial(k) for k in range(form.exp2_terms + 8)]
    coefficients = _shortened(series, form.exp2_terms, (-0.5, 0.5))

    def build(builder: Any, x: Any) -> Any:
        kind = x.type
        low = v.splat_constant(kind, 1.0 - form.bias)
        inside = builder.fcmp_ordered(">=", x, low)
        x = builder.select(inside, x, low)
        n = v.call_llvm(builder, "rint", x)
        value = _polynomial(builder, builder.fsub(x, n), coefficients)
        value = _times_power(builder, value, n, form)
        return builder.select(inside, value, v.splat_constant(kind, 0.0))

    return vector(vector), v.built(build)


@intrinsic
def log(typingctx: Any, vector: Any) -> Any:
    """Return ln x for positive normal x, to three units in the last place; to one unit where |ln x| ≥ 1."""
    form = _Format(vector)

    def build(builder: Any, x: Any) -> Any:
        kind = x.type
        # x = 2^n y with y in [√½, √2): subtract the bits of √½ to find n.
        root = form.constant(0x3F3504F3 if form.mantissa == 23 else 0x3FE6A09E667F3BCD)
        bits = builder.bitcast(x, form.integer)
        n = builder.ashr(builder.sub(bits, root), form.constant(form.mantissa))
        y = builder.bitcast(builder.sub(bits, builder.shl(n, form.constant(form.mantissa))), kind)
        # ln y = 2 artanh z with z = (y − 1)/(y + 1), |z| ≤ 0.172.
        one = v.splat_constant(kind, 1.0)
        z = builder.fdiv(builder.fsub(y, one), builder.fadd(y, one))
        series = _polynomial(builder, builder.fmul(z, z), [2 / (2 * k + 1) for k in range(form.log_terms)])
        power = builder.sitofp(n, kind)
        low = builder.fadd(
            builder.fmul(z, series), builder.fmul(power, v.splat_constant(kind, form.ln2[1])), flags=("contract",)
        )
        return builder.fadd(builder.fmul(power, v.splat_constant(kind, form.ln2[0])), low, flags=("contract",))

    return vector(vector), v.built(build)


@inlined
def sigmoid(x: v.Vector, zero: Any) -> v.Vector:
    one = v.full(1, zero)
    return one / (one + exp(v.full(0, zero) - x))


@inlined
def tanh(x: v.Vector, zero: Any) -> v.Vector:
    """Return tanh x, to two units in the last place."""
    one, two, zeros = v.full(1, zero), v.full(2, zero), v.full(0, zero)
    absolute = v.magnitude(x)
    large = one - two / (one + exp(two * absolute))
    return v.where(absolute < v.full(SMALL_TANH, zero), small_tanh(x), v.where(x < zeros, zeros - large, large))
