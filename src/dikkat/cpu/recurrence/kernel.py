"""A recurrent layer, or a stack of them that attends, over whole sequences, compiled by Numba.

Sequences of a batch do not depend on each other: a task is some of them, and walks through all their steps, so that
threads never wait for each other. A step multiplies the task's states with weights that lie in panels (`panels` of
`launch`), each the columns of two vectors; the lanes are features, everywhere.

Rows are sequences sorted by length, the longest first; a step's rows are those that are not over yet. What belongs to a
step and a row is at `offsets[step] + row`, as in PyTorch's packed sequences. In reverse, a row begins with its own last
step.

All sizes are filled up with zeros to whole panels, of which nothing comes back: a state that begins at 0 and whose
gates get 0 stays 0.

Additive scores leave out Σ v, which the softmax takes away: −2 Σ v r with r = 1/(1 + p), p = e^{2q} e^{2k}; two
features share a division where |q| and |k| are small enough, and where either is too large for exponentials p is
e^{2(q + k)}.
"""

from struct import Struct
from typing import Any

import numpy as np
from numba import carray

from dikkat.cpu.attention.kernel import log_profile, profile_slope
from dikkat.cpu.engine.compile import Kernel, inlined, source_digest
from dikkat.cpu.engine.vectors import (
    PANEL,
    SMALL_TANH,
    Pointer,
    Vector,
    address,
    at,
    claim,
    exp,
    full,
    lanes_of,
    largest,
    load,
    maximum,
    pointer,
    product_1,
    product_2,
    product_4,
    product_8,
    small_tanh,
    spread,
    store,
    total,
    where,
)

GRU, LSTM = range(2)
NOTHING, INNER, ADDITIVE, DISTANCE = range(4)

WHOLE = (
    "counters", "tasks", "scratch", "scratch_size",
    "cell", "reverse", "layers", "hidden", "own", "batch",
    "order", "owners", "lengths", "offsets", "tokens",
    "gates", "state", "memory_cell",
    "packs", "packings",
    "hidden_weight", "hidden_bias", "below_weight", "below_bias", "context_weight", "query_weight", "query_bias",
    "dropped",
    "pair", "profile", "keys", "key_row", "features", "values",
    "key", "key_exp", "value", "seen", "reach", "weight", "kept",
    "states", "began", "saved", "cells", "contexts", "queries", "query_exp", "weights", "last_state", "last_cell",
    "states_grad", "contexts_grad", "weights_grad", "last_state_grad", "last_cell_grad",
    "gates_grad", "recurrent_grad", "state_grad", "cell_grad", "query_grad", "score_grad", "context_sums",
    "key_grad", "value_grad", "weight_grad",
)  # fmt: skip
REAL = ("folded", "single", "highest", "most")
CALL = np.dtype(
    [(name, np.int64) for name in WHOLE]
    + [(name, np.float64) for name in REAL]
    # A kernel closes over this type, which makes the state of the sources part of what is looked for on disk.
    + [(f"source_{source_digest()}", np.int64)]
)
NOTHING_YET: dict[str, Any] = dict.fromkeys(CALL.names or (), 0)
FORM = Struct(f"{len(WHOLE)}q{len(REAL)}dq")
# A weight that is to lie in panels: where it is and will be; its rows' step, columns, and rows of a group, as they are
# and filled up; how many rows a panel has, and how many panels there are.
_PACKING = ("source", "into", "step", "columns", "group", "padded", "count", "panels", "transposed")
PACKING, PANELS = np.dtype([(name, np.int64) for name in _PACKING]), _PACKING.index("panels")
Call = Any

# Below this sum of |q| and |k|, tanh is computed as such and not from exponentials.
SMALL = 0.5


# --- pieces


@inlined
def _product(
    rows: int, a: Pointer, a_step: int, weight: Pointer, count: int, size: int, c: Pointer, c_step: int, zero: Any
) -> None:
    """Add rows of `count` numbers times a matrix in panels to rows of `size` numbers."""
    wide = PANEL * lanes_of(zero)
    for n in range(0, size, wide):
        panel, i = at(weight, n * count), 0
        while i + 8 <= rows:
            product_8(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 8
        if i + 4 <= rows:
            product_4(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 4
        if i + 2 <= rows:
            product_2(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)
            i += 2
        if i < rows:
            product_1(at(a, i * a_step), a_step, panel, count, at(c, i * c_step + n), c_step)


@inlined
def _copy(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    for c in range(0, count, lanes_of(zero)):
        store(into, c, load(source, c))


@inlined
def _clear(into: Pointer, count: int, zero: Any) -> None:
    for c in range(0, count, lanes_of(zero)):
        store(into, c, full(0, zero))


@inlined
def _add(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    for c in range(0, count, lanes_of(zero)):
        store(into, c, load(into, c) + load(source, c))


@inlined
def _begin(rows: int, bias: int, place: int, into: Pointer, size: int, zero: Any) -> None:
    """Each row a bias, from `place` of it on, or 0 where there is none."""
    for i in range(rows):
        if bias != 0:
            _copy(at(pointer(bias, zero), place), at(into, i * size), size, zero)
        else:
            _clear(at(into, i * size), size, zero)


@inlined
def _sigmoid(x: Vector, zero: Any) -> Vector:
    one = full(1, zero)
    return one / (one + exp(full(0, zero) - x))


@inlined
def _tanh(x: Vector, zero: Any) -> Vector:
    one, two, nothing = full(1, zero), full(2, zero), full(0, zero)
    away = maximum(x, nothing - x)
    large = one - two / (one + exp(two * away))
    return where(away < full(SMALL_TANH, zero), small_tanh(x), where(x < nothing, nothing - large, large))


@inlined
def _number(address: int, index: int) -> int:
    return pointer(address, np.int64(0))[index]


@inlined
def _place(call: Call, row: int, t: int) -> int:
    """Where what belongs to a row's step in the order of computing is."""
    step = _number(call.lengths, row) - 1 - t if call.reverse else t
    return _number(call.offsets, step) + row


@inlined
def _active(call: Call, task: int, rows: int, t: int) -> int:
    """How many of a task's rows, the longest first, have a step t."""
    while rows > 0 and _number(call.lengths, task + (rows - 1) * call.tasks) <= t:
        rows -= 1
    return rows


@inlined
def _owner(call: Call, row: int) -> int:
    """Whose keys and values a row looks at: its own sequence's, or those that a search has told."""
    if call.owners == 0:
        return _number(call.order, row)
    return _number(call.owners, row)


@inlined
def _seen(call: Call, b: int) -> int:
    if call.seen == 0:
        return call.keys
    return min(call.keys, max(0, _number(call.seen, b)))


# --- the cells


@inlined
def _gru_row(gates: Pointer, recurrent: Pointer, state: Pointer, saved: Pointer, size: int, zero: Any) -> None:
    """r, z, n and the recurrent side of n, kept for the backward; the state n + z (s − n)."""
    for c in range(0, size, lanes_of(zero)):
        reset = _sigmoid(load(gates, c) + load(recurrent, c), zero)
        update = _sigmoid(load(gates, size + c) + load(recurrent, size + c), zero)
        inner = load(recurrent, 2 * size + c)
        candidate = _tanh(load(gates, 2 * size + c) + reset * inner, zero)
        store(state, c, candidate + update * (load(state, c) - candidate))
        store(saved, c, reset)
        store(saved, size + c, update)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, inner)


@inlined
def _lstm_row(
    gates: Pointer, recurrent: Pointer, state: Pointer, cell: Pointer, saved: Pointer, size: int, zero: Any
) -> None:
    """i, f, g, o, kept for the backward; the cell f c + i g and the state o tanh c."""
    for c in range(0, size, lanes_of(zero)):
        into = _sigmoid(load(gates, c) + load(recurrent, c), zero)
        forget = _sigmoid(load(gates, size + c) + load(recurrent, size + c), zero)
        candidate = _tanh(load(gates, 2 * size + c) + load(recurrent, 2 * size + c), zero)
        out = _sigmoid(load(gates, 3 * size + c) + load(recurrent, 3 * size + c), zero)
        new = forget * load(cell, c) + into * candidate
        store(cell, c, new)
        store(state, c, out * _tanh(new, zero))
        store(saved, c, into)
        store(saved, size + c, forget)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, out)


@inlined
def _gru_row_gradients(
    grad: Pointer, before: Pointer, saved: Pointer, gates: Pointer, recurrent: Pointer, size: int, zero: Any
) -> None:
    """From the gradient of the state those of both sides of the gates; `grad` becomes that of the state before."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        reset, update = load(saved, c), load(saved, size + c)
        candidate, inner = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state = load(grad, c)
        by_candidate = by_state * (one - update) * (one - candidate * candidate)
        by_update = by_state * (load(before, c) - candidate) * update * (one - update)
        by_reset = by_candidate * inner * reset * (one - reset)
        store(gates, c, by_reset)
        store(gates, size + c, by_update)
        store(gates, 2 * size + c, by_candidate)
        store(recurrent, c, by_reset)
        store(recurrent, size + c, by_update)
        store(recurrent, 2 * size + c, by_candidate * reset)
        store(grad, c, by_state * update)


@inlined
def _lstm_row_gradients(
    grad: Pointer, cell_grad: Pointer, before: Pointer, saved: Pointer, gates: Pointer, size: int, zero: Any
) -> None:
    """The same, from the cell before; both sides of the gates have one gradient, and the state before no other."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        into, forget = load(saved, c), load(saved, size + c)
        candidate, out = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state, cell = load(grad, c), load(before, c)
        shown = _tanh(forget * cell + into * candidate, zero)
        by_cell = load(cell_grad, c) + by_state * out * (one - shown * shown)
        store(gates, c, by_cell * candidate * into * (one - into))
        store(gates, size + c, by_cell * cell * forget * (one - forget))
        store(gates, 2 * size + c, by_cell * into * (one - candidate * candidate))
        store(gates, 3 * size + c, by_state * shown * out * (one - out))
        store(cell_grad, c, by_cell * forget)
        store(grad, c, full(0, zero))


# --- attention of one query


@inlined
def _exponentials(query: Pointer, into: Pointer, size: int, zero: Any) -> float:
    """e^{2q}; returns the largest |q|."""
    peak = full(0, zero)
    for c in range(0, size, lanes_of(zero)):
        x = load(query, c)
        peak = maximum(maximum(x, full(0, zero) - x), peak)
        store(into, c, exp(x + x))
    return largest(peak)


@inlined
def _ratio(call: Call, query: Pointer, key: Pointer, products: Vector, direct: bool, c: int, zero: Any) -> Vector:
    """p, kept finite: from the exponentials' product, or of the sum where these have none."""
    p = products
    if direct:
        x = load(query, c) + load(key, c)
        p = exp(x + x)
    most = full(call.highest, zero)
    return where(most < p, most, p)


@inlined
def _additive_scores(
    call: Call, query: Pointer, query_exp: Pointer, peak: float, b: int, seen: int, scores: Pointer, zero: Any
) -> None:
    lanes, size = lanes_of(zero), call.features
    one, weight = full(1, zero), pointer(call.weight, zero)
    reach = pointer(call.reach, zero)[b]
    folds, direct = peak + reach <= call.folded, not max(peak, reach) <= call.single
    for j in range(seen):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        exps = at(pointer(call.key_exp, zero), (b * call.keys + j) * size)
        acc = full(0, zero)
        if peak + reach < SMALL:  # where −2r has lost digits that tanh has
            for c in range(0, size, lanes):
                acc += load(weight, c) * _tanh(load(query, c) + load(key, c), zero)
            scores[j] = total(acc)
            continue
        if folds:
            for c in range(0, size, 2 * lanes):
                first = one + load(query_exp, c) * load(exps, c)
                second = one + load(query_exp, c + lanes) * load(exps, c + lanes)
                above = load(weight, c) * second + load(weight, c + lanes) * first
                acc += above / (first * second)
        else:
            for c in range(0, size, lanes):
                p = _ratio(call, query, key, load(query_exp, c) * load(exps, c), direct, c, zero)
                acc += load(weight, c) / (one + p)
        scores[j] = -2 * total(acc)


@inlined
def _pair_scores(call: Call, query: Pointer, b: int, seen: int, scores: Pointer, zero: Any) -> None:
    """Inner products, or squared distances."""
    lanes, size = lanes_of(zero), call.features
    for j in range(seen):
        key, acc = at(pointer(call.key, zero), (b * call.keys + j) * size), full(0, zero)
        if call.pair == INNER:
            for c in range(0, size, lanes):
                acc += load(query, c) * load(key, c)
        else:
            for c in range(0, size, lanes):
                away = load(query, c) - load(key, c)
                acc += away * away
        # A square that overflows is the largest number, so that a row is not empty because it is far away.
        found = total(acc)
        scores[j] = call.most if call.pair != INNER and found > call.most else found


@inlined
def _softmax(scores: Pointer, count: int, zero: Any) -> None:
    """In place; zeros where every score is −∞."""
    lanes = lanes_of(zero)
    top = load(scores, 0)
    for c in range(lanes, count, lanes):
        top = maximum(load(scores, c), top)
    peak = largest(top)
    base = full(peak if peak > -np.inf else zero, zero)
    acc = full(0, zero)
    for c in range(0, count, lanes):
        share = exp(load(scores, c) - base)
        store(scores, c, share)
        acc += share
    sums = total(acc)
    by = full(zero if sums == 0 else 1 / sums, zero)
    for c in range(0, count, lanes):
        store(scores, c, load(scores, c) * by)


@inlined
def _attend_row(
    call: Call, place: int, b: int, query: Pointer, exps: Pointer, weights: Pointer, context: Pointer, zero: Any
) -> None:
    """Weights of a query over its keys, and the weighted sum of their values."""
    lanes, size, seen = lanes_of(zero), call.values, _seen(call, b)
    for c in range(0, call.key_row, lanes):
        store(weights, c, full(-np.inf, zero))
    if call.pair == ADDITIVE:
        peak = _exponentials(query, exps, call.features, zero)
        _additive_scores(call, query, exps, peak, b, seen, weights, zero)
    else:
        _pair_scores(call, query, b, seen, weights, zero)
    if call.pair == DISTANCE:
        for c in range(0, call.key_row, lanes):
            began = load(weights, c)
            store(weights, c, where(began < full(0, zero), began, log_profile(call.profile, began, zero)))
    _softmax(weights, call.key_row, zero)
    for c in range(0, size, 2 * lanes):
        first, second = full(0, zero), full(0, zero)
        for j in range(seen):
            weight = spread(weights, j)
            if call.kept != 0:
                weight = weight * spread(pointer(call.kept, zero), place * call.key_row + j)
            value = at(pointer(call.value, zero), (b * call.keys + j) * size + c)
            first += weight * load(value, 0)
            second += weight * load(value, lanes)
        store(context, c, first)
        store(context, c + lanes, second)


@inlined
def _slope(call: Call, query: Pointer, exps: Pointer, b: int, j: int, c: int, direct: bool, zero: Any) -> Vector:
    """4 p r² v, the derivative of an additive score, for a vector of features."""
    place = (b * call.keys + j) * call.features
    key, key_exp = at(pointer(call.key, zero), place), at(pointer(call.key_exp, zero), place)
    p = _ratio(call, query, key, load(exps, c) * load(key_exp, c), direct, c, zero)
    r = full(1, zero) / (full(1, zero) + p)
    return full(4, zero) * p * r * r * load(pointer(call.weight, zero), c)


@inlined
def _peak(call: Call, query: Pointer, zero: Any) -> float:
    """The largest |q|."""
    peak = full(0, zero)
    for c in range(0, call.features, lanes_of(zero)):
        x = load(query, c)
        peak = maximum(maximum(x, full(0, zero) - x), peak)
    return largest(peak)


@inlined
def _is_direct(call: Call, query: Pointer, b: int, zero: Any) -> bool:
    """Whether an additive query or its keys are too large for exponentials."""
    return not max(_peak(call, query, zero), pointer(call.reach, zero)[b]) <= call.single


@inlined
def _score_gradients(
    call: Call, place: int, b: int, seen: int, query: Pointer, context_grad: Pointer, by_score: Pointer, zero: Any
) -> None:
    """The gradients of a query's scores; for distances, of their squares."""
    lanes, size = lanes_of(zero), call.values
    weights = at(pointer(call.weights, zero), place * call.key_row)
    _clear(by_score, call.key_row, zero)
    for j in range(seen):
        value, acc = at(pointer(call.value, zero), (b * call.keys + j) * size), full(0, zero)
        for c in range(0, size, lanes):
            acc += load(context_grad, c) * load(value, c)
        by_score[j] = total(acc)
    drift = full(0, zero)
    for c in range(0, call.key_row, lanes):
        by_weight = load(by_score, c)
        if call.kept != 0:
            by_weight = by_weight * load(pointer(call.kept, zero), place * call.key_row + c)
        if call.weights_grad != 0:
            by_weight = by_weight + load(pointer(call.weights_grad, zero), place * call.key_row + c)
        store(by_score, c, by_weight)
        share = load(weights, c)
        drift += where(share == full(0, zero), full(0, zero), share * by_weight)
    mean = full(total(drift), zero)
    for c in range(0, call.key_row, lanes):
        share = load(weights, c)
        store(by_score, c, where(share == full(0, zero), full(0, zero), share * (load(by_score, c) - mean)))
    if call.pair == DISTANCE:
        squares = at(by_score, call.key_row)
        _clear(squares, call.key_row, zero)
        _pair_scores(call, query, b, seen, squares, zero)
        for c in range(0, call.key_row, lanes):
            slope = profile_slope(call.profile, load(squares, c), zero)
            store(by_score, c, load(by_score, c) * (slope + slope))


@inlined
def _query_gradient(
    call: Call, b: int, seen: int, query: Pointer, exps: Pointer, by_score: Pointer, into: Pointer, zero: Any
) -> None:
    lanes, size = lanes_of(zero), call.features
    direct = call.pair == ADDITIVE and _is_direct(call, query, b, zero)
    for c in range(0, size, lanes):
        acc = full(0, zero)
        if call.pair == ADDITIVE:
            for j in range(seen):
                acc += spread(by_score, j) * _slope(call, query, exps, b, j, c, direct, zero)
        elif call.pair == INNER:
            for j in range(seen):
                acc += spread(by_score, j) * load(pointer(call.key, zero), (b * call.keys + j) * size + c)
        else:
            own = load(query, c)
            for j in range(seen):
                acc += spread(by_score, j) * (own - load(pointer(call.key, zero), (b * call.keys + j) * size + c))
        store(into, c, acc)


@inlined
def _key_gradients(call: Call, row: int, weight_grad: Pointer, zero: Any) -> None:
    """The gradients of a row's keys, and its share of v's, from all its steps."""
    lanes, size, b = lanes_of(zero), call.features, _owner(call, row)
    length, seen = _number(call.lengths, row), _seen(call, b)
    one, minus_two = full(1, zero), full(-2, zero)
    queries, exps = pointer(call.queries, zero), pointer(call.query_exp, zero)
    by_scores = pointer(call.score_grad, zero)
    direct, small = False, False
    if call.pair == ADDITIVE:
        peak = zero
        for t in range(length):
            peak = max(peak, _peak(call, at(queries, _place(call, row, t) * size), zero))
        direct = not max(peak, pointer(call.reach, zero)[b]) <= call.single
        small = peak + pointer(call.reach, zero)[b] < SMALL
    for j in range(seen):
        key = at(pointer(call.key, zero), (b * call.keys + j) * size)
        out = at(pointer(call.key_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, lanes):
            acc, by_weight = full(0, zero), full(0, zero)
            for t in range(length):
                place = _place(call, row, t)
                share, query = spread(by_scores, place * call.key_row + j), at(queries, place * size)
                if call.pair == ADDITIVE:
                    products = load(exps, place * size + c) * load(
                        pointer(call.key_exp, zero), (b * call.keys + j) * size + c
                    )
                    p = _ratio(call, query, key, products, direct, c, zero)
                    r = one / (one + p)
                    acc += share * p * r * r
                    # All digits where tanh is small; elsewhere 1 − 2r, of which the sum over keys takes the 1.
                    by_weight += share * (_tanh(load(query, c) + load(key, c), zero) if small else minus_two * r)
                elif call.pair == INNER:
                    acc += share * load(query, c)
                else:
                    acc += share * (load(key, c) - load(query, c))
            if call.pair == ADDITIVE:
                acc = acc * full(4, zero) * load(pointer(call.weight, zero), c)
                store(weight_grad, c, load(weight_grad, c) + by_weight)
            store(out, c, acc)


@inlined
def _value_gradients(call: Call, row: int, zero: Any) -> None:
    lanes, size, b = lanes_of(zero), call.values, _owner(call, row)
    length, seen = _number(call.lengths, row), _seen(call, b)
    weights, sums = pointer(call.weights, zero), pointer(call.context_sums, zero)
    for j in range(seen):
        out = at(pointer(call.value_grad, zero), (b * call.keys + j) * size)
        for c in range(0, size, 2 * lanes):
            first, second = full(0, zero), full(0, zero)
            for t in range(length):
                place = _place(call, row, t)
                weight = spread(weights, place * call.key_row + j)
                if call.kept != 0:
                    weight = weight * spread(pointer(call.kept, zero), place * call.key_row + j)
                first += weight * load(sums, place * size + c)
                second += weight * load(sums, place * size + c + lanes)
            store(out, c, first)
            store(out, c + lanes, second)


# --- weights in panels


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
    layout, packing = CALL, PACKING

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


# --- whole sequences


@inlined
def _cell_step(
    call: Call, task: int, active: int, t: int, layer: int, gates: Pointer, recurrent: Pointer, states: Pointer,
    cells: Pointer, unsaved: Pointer, zero: Any,
) -> None:  # fmt: skip
    """The states of a layer after a step, where both sides of its gates are known."""
    size, most = call.hidden, (call.batch + call.tasks - 1) // call.tasks
    wide = (4 if call.cell == LSTM else 3) * size
    for i in range(active):
        place = layer * call.tokens + _place(call, task + i * call.tasks, t)
        state, cell, saved = at(states, (layer * most + i) * size), at(cells, (layer * most + i) * size), unsaved
        if call.saved != 0:
            saved = at(pointer(call.saved, zero), place * 4 * size)
            _copy(state, at(pointer(call.began, zero), place * size), size, zero)
            if call.cell == LSTM:
                _copy(cell, at(pointer(call.cells, zero), place * size), size, zero)
        if call.cell == LSTM:
            _lstm_row(at(gates, i * wide), at(recurrent, i * wide), state, cell, saved, size, zero)
        else:
            _gru_row(at(gates, i * wide), at(recurrent, i * wide), state, saved, size, zero)
        # An infinite input is NaN where it meets the zeros that fill a panel up.
        for c in range(call.own, size):
            state[c] = zero
            if call.cell == LSTM:
                cell[c] = zero
        _copy(state, at(pointer(call.states, zero), place * size), size, zero)


@inlined
def _attend(
    call: Call, task: int, active: int, t: int, top: Pointer, queries: Pointer, exps: Pointer, weights: Pointer,
    contexts: Pointer, zero: Any,
) -> None:  # fmt: skip
    """The contexts of a step's rows, from the top layer's states before it."""
    size, values = call.features, call.values
    if call.query_weight != 0:
        _begin(active, call.query_bias, 0, queries, size, zero)
        weight = pointer(call.query_weight, zero)
        _product(active, top, call.hidden, weight, call.hidden, size, queries, size, zero)
    else:
        queries = top
    for i in range(active):
        row = task + i * call.tasks
        place, query, own, context = _place(call, row, t), at(queries, i * size), exps, at(contexts, i * values)
        if call.queries != 0:
            _copy(query, at(pointer(call.queries, zero), place * size), size, zero)
            if call.pair == ADDITIVE:
                own = at(pointer(call.query_exp, zero), place * size)
        _attend_row(call, place, _owner(call, row), query, own, weights, context, zero)
        if call.weights != 0:
            _copy(weights, at(pointer(call.weights, zero), place * call.key_row), call.key_row, zero)
        _copy(context, at(pointer(call.contexts, zero), place * values), values, zero)


@inlined
def _below(call: Call, task: int, active: int, t: int, layer: int, states: Pointer, into: Pointer, zero: Any) -> None:
    """What a layer reads: the states of the layer below it after this step, some features dropped."""
    size, batch = call.hidden, (call.batch + call.tasks - 1) // call.tasks
    for i in range(active):
        source, own = at(states, ((layer - 1) * batch + i) * size), at(into, i * size)
        if call.dropped == 0:
            _copy(source, own, size, zero)
            continue
        place = (layer - 1) * call.tokens + _place(call, task + i * call.tasks, t)
        dropped = at(pointer(call.dropped, zero), place * size)
        for c in range(0, size, lanes_of(zero)):
            store(own, c, load(source, c) * load(dropped, c))


@Kernel
def forward(zero: Any) -> Any:
    """All steps of all rows."""
    layout = CALL

    def forward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, layers, values = call.hidden, call.layers, call.values
        wide, most = (4 if call.cell == LSTM else 3) * size, (call.batch + call.tasks - 1) // call.tasks
        worker = claim(call.counters + 8)
        if worker >= call.tasks:  # more threads than tasks, and than scratch
            return
        states = at(pointer(call.scratch, zero), worker * call.scratch_size)
        cells = at(states, layers * most * size)
        gates = at(cells, layers * most * size if call.cell == LSTM else 0)
        recurrent = at(gates, most * wide)
        reads = at(recurrent, most * wide)
        unsaved = at(reads, most * size)
        queries = at(unsaved, 4 * size)
        exps = at(queries, most * call.features)
        contexts = at(exps, call.features)
        weights = at(contexts, most * values)
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            for layer in range(layers):
                for i in range(rows):
                    own = (layer * call.batch + _number(call.order, task + i * call.tasks)) * size
                    into = (layer * most + i) * size
                    _copy(at(pointer(call.state, zero), own), at(states, into), size, zero)
                    if call.cell == LSTM:
                        _copy(at(pointer(call.memory_cell, zero), own), at(cells, into), size, zero)
            for t in range(_number(call.lengths, task)):
                active = _active(call, task, rows, t)
                if call.pair != NOTHING:
                    top = at(states, (layers - 1) * most * size)
                    _attend(call, task, active, t, top, queries, exps, weights, contexts, zero)
                for layer in range(layers):
                    own = at(states, layer * most * size)
                    _begin(active, call.hidden_bias, layer * wide, recurrent, wide, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * wide * size)
                    _product(active, own, size, weight, size, wide, recurrent, wide, zero)
                    if layer == 0:
                        for i in range(active):
                            place = _place(call, task + i * call.tasks, t)
                            _copy(at(pointer(call.gates, zero), place * wide), at(gates, i * wide), wide, zero)
                        if call.pair != NOTHING:
                            weight = pointer(call.context_weight, zero)
                            _product(active, contexts, values, weight, values, wide, gates, wide, zero)
                    else:
                        _below(call, task, active, t, layer, states, reads, zero)
                        _begin(active, call.below_bias, (layer - 1) * wide, gates, wide, zero)
                        weight = at(pointer(call.below_weight, zero), (layer - 1) * wide * size)
                        _product(active, reads, size, weight, size, wide, gates, wide, zero)
                    _cell_step(call, task, active, t, layer, gates, recurrent, states, cells, unsaved, zero)
            for layer in range(layers):
                for i in range(rows):
                    own = (layer * call.batch + _number(call.order, task + i * call.tasks)) * size
                    into = (layer * most + i) * size
                    _copy(at(states, into), at(pointer(call.last_state, zero), own), size, zero)
                    if call.cell == LSTM:
                        _copy(at(cells, into), at(pointer(call.last_cell, zero), own), size, zero)

    return forward


@inlined
def _cell_step_gradients(
    call: Call, task: int, active: int, t: int, layer: int, grads: Pointer, cell_grads: Pointer, gates: Pointer,
    recurrent: Pointer, zero: Any,
) -> None:  # fmt: skip
    """The gradients of both sides of a layer's gates; those of its states become those of the states before."""
    size, most = call.hidden, (call.batch + call.tasks - 1) // call.tasks
    wide = (4 if call.cell == LSTM else 3) * size
    for i in range(active):
        place = layer * call.tokens + _place(call, task + i * call.tasks, t)
        saved = at(pointer(call.saved, zero), place * 4 * size)
        grad, into = at(grads, (layer * most + i) * size), at(gates, i * wide)
        if call.cell == LSTM:
            cell, cell_grad = at(pointer(call.cells, zero), place * size), at(cell_grads, (layer * most + i) * size)
            _lstm_row_gradients(grad, cell_grad, cell, saved, into, size, zero)
        else:
            began, own = at(pointer(call.began, zero), place * size), at(recurrent, i * wide)
            _gru_row_gradients(grad, began, saved, into, own, size, zero)
            _copy(own, at(pointer(call.recurrent_grad, zero), place * wide), wide, zero)
        _copy(into, at(pointer(call.gates_grad, zero), place * wide), wide, zero)


@inlined
def _attend_gradients(
    call: Call, task: int, active: int, t: int, gates: Pointer, contexts: Pointer, queries: Pointer, by_score: Pointer,
    top: Pointer, zero: Any,
) -> None:  # fmt: skip
    """From the gradients of the first layer's gates those of the contexts, scores and queries; and of the states."""
    size, values, wide = call.features, call.values, (4 if call.cell == LSTM else 3) * call.hidden
    for i in range(active):
        place = _place(call, task + i * call.tasks, t)
        _copy(at(pointer(call.contexts_grad, zero), place * values), at(contexts, i * values), values, zero)
    _product(active, gates, wide, pointer(call.context_weight, zero), wide, values, contexts, values, zero)
    for i in range(active):
        row = task + i * call.tasks
        place, b = _place(call, row, t), _owner(call, row)
        query, exps = at(pointer(call.queries, zero), place * size), at(pointer(call.query_exp, zero), place * size)
        context, seen, into = at(contexts, i * values), _seen(call, b), at(queries, i * size)
        _copy(context, at(pointer(call.context_sums, zero), place * values), values, zero)
        _score_gradients(call, place, b, seen, query, context, by_score, zero)
        _copy(by_score, at(pointer(call.score_grad, zero), place * call.key_row), call.key_row, zero)
        _query_gradient(call, b, seen, query, exps, by_score, into, zero)
        if call.query_weight != 0:
            _copy(into, at(pointer(call.query_grad, zero), place * size), size, zero)
        else:
            _add(into, at(top, i * call.hidden), size, zero)
    if call.query_weight != 0:
        weight = pointer(call.query_weight, zero)
        _product(active, queries, size, weight, size, call.hidden, top, call.hidden, zero)


@inlined
def _begin_gradients(call: Call, task: int, rows: int, source: int, into: Pointer, zero: Any) -> None:
    size, most = call.hidden, (call.batch + call.tasks - 1) // call.tasks
    for layer in range(call.layers):
        for i in range(rows):
            own = (layer * call.batch + _number(call.order, task + i * call.tasks)) * size
            _copy(at(pointer(source, zero), own), at(into, (layer * most + i) * size), size, zero)


@inlined
def _end_gradients(call: Call, task: int, rows: int, source: Pointer, into: int, zero: Any) -> None:
    size, most = call.hidden, (call.batch + call.tasks - 1) // call.tasks
    for layer in range(call.layers):
        for i in range(rows):
            own = (layer * call.batch + _number(call.order, task + i * call.tasks)) * size
            _copy(at(source, (layer * most + i) * size), at(pointer(into, zero), own), size, zero)


@Kernel
def backward(zero: Any) -> Any:
    """The gradients that a step hands to the one before, and of keys and values; those of weights are for later."""
    layout = CALL

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, layers, values = lanes_of(zero), call.hidden, call.layers, call.values
        wide, most = (4 if call.cell == LSTM else 3) * size, (call.batch + call.tasks - 1) // call.tasks
        worker = claim(call.counters + 8)
        if worker >= call.tasks:  # more threads than tasks, and than scratch
            return
        grads = at(pointer(call.scratch, zero), worker * call.scratch_size)
        cell_grads = at(grads, layers * most * size)
        gates = at(cell_grads, layers * most * size if call.cell == LSTM else 0)
        recurrent = at(gates, most * wide)
        reads = at(recurrent, most * wide)
        contexts = at(reads, most * size)
        queries = at(contexts, most * values)
        by_score = at(queries, most * call.features)
        if call.cell == LSTM:
            recurrent = gates
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            _begin_gradients(call, task, rows, call.last_state_grad, grads, zero)
            if call.cell == LSTM:
                _begin_gradients(call, task, rows, call.last_cell_grad, cell_grads, zero)
            top = at(grads, (layers - 1) * most * size)
            for t in range(_number(call.lengths, task) - 1, -1, -1):
                active = _active(call, task, rows, t)
                for i in range(active):
                    place = _place(call, task + i * call.tasks, t)
                    _add(at(pointer(call.states_grad, zero), place * size), at(top, i * size), size, zero)
                for layer in range(layers - 1, -1, -1):
                    own = at(grads, layer * most * size)
                    _cell_step_gradients(call, task, active, t, layer, grads, cell_grads, gates, recurrent, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * wide * size)
                    _product(active, recurrent, wide, weight, wide, size, own, size, zero)
                    if layer == 0:
                        continue
                    _begin(active, 0, 0, reads, size, zero)
                    weight = at(pointer(call.below_weight, zero), (layer - 1) * wide * size)
                    _product(active, gates, wide, weight, wide, size, reads, size, zero)
                    for i in range(active):
                        source, into = at(reads, i * size), at(grads, ((layer - 1) * most + i) * size)
                        place = (layer - 1) * call.tokens + _place(call, task + i * call.tasks, t)
                        for c in range(0, size, lanes):
                            share = load(source, c)
                            if call.dropped != 0:
                                share = share * load(pointer(call.dropped, zero), place * size + c)
                            store(into, c, load(into, c) + share)
                if call.pair != NOTHING:
                    _attend_gradients(call, task, active, t, gates, contexts, queries, by_score, top, zero)
            _end_gradients(call, task, rows, grads, call.state_grad, zero)
            if call.cell == LSTM:
                _end_gradients(call, task, rows, cell_grads, call.cell_grad, zero)
            if call.pair == NOTHING:
                continue
            weight_grad = at(pointer(call.weight_grad, zero), task * call.features)
            for i in range(rows):
                row = task + i * call.tasks
                _key_gradients(call, row, weight_grad, zero)
                _value_gradients(call, row, zero)

    return backward
