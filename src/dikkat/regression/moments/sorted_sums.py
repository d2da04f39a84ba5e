"""Local moments along one feature, with sorted keys and queries, in O(n) for all queries together, by Numba.

Queries less than `span` bandwidths apart form a run. Let c be the run's middle, u = (x − c)/σ and t = (q − c)/σ. The
sums Σ w φ(u) u^k over the keys in reach of all queries of the run are computed once. Two sweeps over the queries add
the remaining keys. A sweep from the first to the last query adds the keys that enter on the right, then a sweep back
adds the keys that enter on the left. So nothing is ever subtracted, each key occurs in a few runs, and the cost of a
query does not depend on the number of keys in its reach.

Epanechnikov's kernel and its square are polynomials of δ = u − t (φ = 1). Their moments are these sums, shifted from c
to the query. The Gaussian's weight is φ(u) φ(t) e^{ut} with φ(u) = e^{−u²/2} and a Taylor series for e^{ut}. The series
is truncated where, for |u| up to the limit and |t| up to half a span, the remainder is below the rounding of the
smallest weight.

The keys below and above a query have separate sums, split at its excluded key or at the query itself, so an excluded
key never enters a sum. If a sum is small compared with its terms (keys at the edge of the kernel, or all
nearly equal and far from the query), Epanechnikov's moments are summed key by key, and the Gaussian's result is NaN,
so that the caller uses `kernel`.

Source: Greengard and Strain 1991, The fast Gauss transform (its local expansion); Fan and Marron 1994, Fast
implementations of nonparametric curve estimators (updating).
"""

import math
from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp
from dikkat._engine.memory import Call, Work, clear, workplace_of
from dikkat._engine.vectors import Pointer, at, claim, full, lanes_of, load, pointer, store, total
from dikkat.regression.moments.record import SORTED, TILE

# The minimum weight and spread of a query's keys, relative to the larger sums that cancel to them.
MIN_WEIGHT, MIN_SPREAD = 2.0**-7, 1e-6

_workplace = workplace_of(SORTED)


# --- keys in reach


@inlined
def _first_key(call: Call, q: float, offset: float, zero: Any) -> int:
    """Return the first key that is at least `offset` bandwidths above a query."""
    key, low, high = pointer(call.key, zero), 0, call.keys
    while low < high:
        middle = (low + high) // 2
        if (key[middle] - q) * call.scale < offset:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _split_key(call: Call, n: int, zero: Any) -> int:
    """Return a query's excluded key, or else the first key that is not below the query."""
    if call.exclude != 0:
        return pointer(call.exclude, np.int64(0))[n]
    return _first_key(call, pointer(call.query, zero)[n], 0.0, zero)


# --- sums about the middle of a run


@inlined
def _add(call: Call, k: int, center: float, side: Pointer, zero: Any) -> None:
    """Add the powers of a key's u to the sums of each column."""
    terms = call.terms
    u, term = (pointer(call.key, zero)[k] - center) * call.scale, pointer(call.weight, zero)[k]
    if call.gaussian != 0:
        term *= math.exp(-0.5 * u * u)
    for j in range(terms):
        side[j] += term
        for v in range(call.values):
            side[(1 + v) * terms + j] += term * pointer(call.value, zero)[v * call.keys + k]
        term *= u


@inlined
def _add_all(call: Call, begin: int, end: int, center: float, sums: Pointer, side: Pointer, zero: Any) -> None:
    """Add the keys from `begin` to `end` to the sums; the lanes are keys, a tile at a time."""
    lanes, terms, columns = lanes_of(zero), call.terms, 1 + call.values
    tile_keys = TILE * lanes
    tiles_end = begin + max(0, end - begin) // tile_keys * tile_keys
    if tiles_end > begin:
        center_lanes, scale = full(center, zero), full(call.scale, zero)
        clear(sums, columns * terms * lanes, zero)
        for k in range(begin, tiles_end, tile_keys):
            key, weight = at(pointer(call.key, zero), k), at(pointer(call.weight, zero), k)
            u0, u1 = (load(key, 0) - center_lanes) * scale, (load(key, lanes) - center_lanes) * scale
            u2, u3 = (load(key, 2 * lanes) - center_lanes) * scale, (load(key, 3 * lanes) - center_lanes) * scale
            w0, w1, w2, w3 = load(weight, 0), load(weight, lanes), load(weight, 2 * lanes), load(weight, 3 * lanes)
            if call.gaussian != 0:
                half = full(-0.5, zero)
                w0, w1 = w0 * exp(half * u0 * u0), w1 * exp(half * u1 * u1)
                w2, w3 = w2 * exp(half * u2 * u2), w3 * exp(half * u3 * u3)
            for j in range(terms):
                store(sums, j * lanes, load(sums, j * lanes) + ((w0 + w1) + (w2 + w3)))
                for v in range(call.values):
                    value, position = at(pointer(call.value, zero), v * call.keys + k), ((1 + v) * terms + j) * lanes
                    first = w0 * load(value, 0) + w1 * load(value, lanes)
                    second = w2 * load(value, 2 * lanes) + w3 * load(value, 3 * lanes)
                    store(sums, position, load(sums, position) + (first + second))
                w0, w1, w2, w3 = w0 * u0, w1 * u1, w2 * u2, w3 * u3
        for slot in range(columns * terms):
            side[slot] += total(load(sums, slot * lanes))
    for k in range(max(begin, tiles_end), end):
        _add(call, k, center, side, zero)


# --- from the middle of a run to a query


@inlined
def _shift(moments: Pointer, count: int, t: float) -> None:
    """Turn Σ u^m into Σ (u − t)^m, in place."""
    for first in range(1, count):
        for m in range(count - 1, first - 1, -1):
            moments[m] -= t * moments[m - 1]


@inlined
def _first_power(call: Call, column: int) -> int:
    """Return the index of a column's first power in a query's row."""
    return 0 if column == 0 else 1 + call.mass_powers + (column - 1) * (1 + call.value_powers)


@inlined
def _add_polynomial(call: Call, work: Work, side: Pointer, t: float, out: Pointer, zero: Any) -> None:
    """Add one side's Σ w K δ^m of Epanechnikov's kernel; and Σ w and Σ w (u² + t²), which show cancellation."""
    terms, shifted, factors = call.terms, work.shifted, pointer(call.polynomial, zero)
    for column in range(1 + call.values):
        for m in range(terms):
            shifted[m] = side[column * terms + m]
        if column == 0:
            out[call.columns - 2] += shifted[0]
            out[call.columns - 1] += shifted[2] + t * t * shifted[0]
        _shift(shifted, terms, t)
        row_powers = at(out, _first_power(call, column))
        for m in range(1 + (call.mass_powers if column == 0 else call.value_powers)):
            for k in range(call.degree + 1):
                row_powers[m] += factors[k] * shifted[m + k]


@inlined
def _add_gaussian(call: Call, work: Work, t: float, out: Pointer) -> None:
    """Add both sides' Σ w K δ^m of the Gaussian, with the series of e^{ut}."""
    terms, order, factors, shifted = call.terms, call.order, work.factors, work.shifted
    factor = math.exp(-0.5 * t * t)
    for j in range(order):
        factors[j] = factor
        factor *= t / (j + 1)
    for column in range(1 + call.values):
        before, behind = at(work.before, column * terms), at(work.behind, column * terms)
        powers = 1 + (call.mass_powers if column == 0 else call.value_powers)
        for m in range(powers):
            sum_ = 0.0
            for j in range(order):
                sum_ += factors[j] * (before[m + j] + behind[m + j])
            shifted[m] = sum_
        _shift(shifted, powers, t)
        row_powers = at(out, _first_power(call, column))
        for m in range(powers):
            row_powers[m] += shifted[m]


@inlined
def _add_sides(call: Call, work: Work, n: int, center: float, zero: Any) -> None:
    """Add the sums on both sides, shifted to a query, to the query's row."""
    t = (pointer(call.query, zero)[n] - center) * call.scale
    out = at(pointer(call.powers, zero), n * call.columns)
    if call.gaussian != 0:
        _add_gaussian(call, work, t, out)
    else:
        _add_polynomial(call, work, work.before, t, out, zero)
        _add_polynomial(call, work, work.behind, t, out, zero)


# --- runs


@inlined
def _add_run(call: Call, work: Work, i: int, j: int, zero: Any) -> None:
    """Add the sums of all queries of a run, in a sweep from the first to the last query and a sweep back."""
    key, query, before, behind = pointer(call.key, zero), pointer(call.query, zero), work.before, work.behind
    slots, excludes, is_compact = (1 + call.values) * call.terms, int(call.exclude != 0), call.gaussian == 0
    center = query[i] + (query[j - 1] - query[i]) / 2
    low = _first_key(call, query[j - 1] if is_compact else center, -call.limit, zero)
    high = _first_key(call, query[i] if is_compact else center, call.limit, zero)
    before_end, behind_start = _split_key(call, i, zero), _split_key(call, j - 1, zero) + excludes
    for slot in range(slots):
        before[slot] = behind[slot] = 0.0
    _add_all(call, low, before_end, center, work.sums, before, zero)
    _add_all(call, behind_start, high, center, work.sums, behind, zero)
    for n in range(i, j):
        for k in range(before_end, _split_key(call, n, zero)):
            _add(call, k, center, before, zero)
            before_end = k + 1
        while is_compact and high < call.keys and (key[high] - query[n]) * call.scale < call.limit:
            _add(call, high, center, behind, zero)
            high += 1
        _add_sides(call, work, n, center, zero)
    for slot in range(slots):
        before[slot] = behind[slot] = 0.0
    for n in range(j - 1, i - 1, -1):
        for k in range(behind_start - 1, _split_key(call, n, zero) + excludes - 1, -1):
            _add(call, k, center, behind, zero)
            behind_start = k
        while is_compact and low > 0 and (query[n] - key[low - 1]) * call.scale < call.limit:
            low -= 1
            _add(call, low, center, before, zero)
        _add_sides(call, work, n, center, zero)


@inlined
def _sum_pairs(call: Call, n: int, out: Pointer, zero: Any) -> None:
    """Write a query's row for Epanechnikov's kernel, key by key."""
    key, q = pointer(call.key, zero), pointer(call.query, zero)[n]
    excluded = _split_key(call, n, zero) if call.exclude != 0 else -1
    for slot in range(call.columns):
        out[slot] = 0.0
    for k in range(_first_key(call, q, -call.limit, zero), _first_key(call, q, call.limit, zero)):
        delta = (key[k] - q) * call.scale
        if k == excluded:
            continue
        profile = max(0.0, 1 - delta * delta)
        term = pointer(call.weight, zero)[k] * (profile * profile if call.squared != 0 else profile)
        for m in range(1 + call.mass_powers):
            out[m] += term
            if m <= call.value_powers:
                for v in range(call.values):
                    out[_first_power(call, 1 + v) + m] += term * pointer(call.value, zero)[v * call.keys + k]
            term *= delta


@inlined
def _finish(call: Call, n: int, zero: Any) -> None:
    """Turn a query's sums into means and a log-sum-exp; recompute sums that cancellation made inaccurate."""
    out, gaussian = at(pointer(call.powers, zero), n * call.columns), call.gaussian != 0
    mass, square = out[call.columns - 2], out[call.columns - 1]
    is_accurate = out[0] >= call.floor if gaussian else not out[0] < MIN_WEIGHT * mass
    if is_accurate and call.mass_powers > 1 and out[0] > 0:
        is_accurate = out[2] - out[1] * out[1] / out[0] >= MIN_SPREAD * max(out[2], square)
    if not is_accurate:
        if gaussian:
            out[0] = np.nan
            return
        _sum_pairs(call, n, out, zero)
    inverse = 1 / out[0] if out[0] > 0 else 0.0
    out[0] = math.log(out[0]) if out[0] > 0 else -np.inf
    for slot in range(1, call.columns):
        out[slot] *= inverse


@Kernel
def sorted_sums(zero: Any) -> Any:
    """Write each query's row: log Σ w K, and the means of δ^m and of δ^m y. A task is `call.rows` queries."""
    layout = SORTED.layout(__name__)

    def sorted_sums(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        work = _workplace(call, zero)
        query = pointer(call.query, zero)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            i = task * call.rows
            end = min(call.queries, i + call.rows)
            for slot in range(i * call.columns, end * call.columns):
                pointer(call.powers, zero)[slot] = 0.0
            while i < end:
                j = i + 1
                while j < end and (query[j] - query[i]) * call.scale <= call.span:
                    j += 1
                _add_run(call, work, i, j, zero)
                for n in range(i, j):
                    _finish(call, n, zero)
                i = j

    return sorted_sums
