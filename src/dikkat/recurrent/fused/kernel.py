"""A recurrent layer, or a stack of them that attends, over whole sequences, compiled by Numba.

Sequences of a batch do not depend on each other: a task is some of them, and walks through all their steps, so that
threads never wait for each other. A step multiplies the task's states with weights that lie in panels, each the columns
of two vectors; the lanes are features, everywhere.

Rows are sequences sorted by length, the longest first; a step's rows are those that are not over yet. What belongs to a
step and a row is at `offsets[step] + row`, as in PyTorch's packed sequences. In reverse, a row begins with its own last
step.

All sizes are filled up with zeros to whole panels, of which nothing comes back: a state that begins at 0 and whose
gates get 0 stays 0.

Additive scores leave out Σ v, which the softmax takes away: −2 Σ v r with r = 1/(1 + p), p = e^{2q} e^{2k}; two
features share a division where |q| and |k| are small enough, and where either is too large for exponentials p is
e^{2(q + k)}.
"""

from typing import Any

from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import tanh
from dikkat._engine.memory import Call, Work, clear, copy_vectors, number_at, workplace_of
from dikkat._engine.vectors import Pointer, at, claim, full, lanes_of, load, pointer, store
from dikkat.recurrent.fused.attending import (
    attend_row,
    key_gradients,
    place_of,
    query_gradient,
    score_gradients,
    seen_by,
    value_gradients,
)
from dikkat.recurrent.fused.cells import gru, lstm
from dikkat.recurrent.fused.panels import product
from dikkat.recurrent.fused.record import ADDITIVE, CALL, LSTM, NOTHING

_workplace = workplace_of(CALL)


@inlined
def _add(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    """Add `count` numbers, a multiple of the lanes."""
    for c in range(0, count, lanes_of(zero)):
        store(into, c, load(into, c) + load(source, c))


@inlined
def _begin(rows: int, bias: int, place: int, into: Pointer, size: int, zero: Any) -> None:
    """Fill each row with a bias, read from `place` on, or with 0 if there is none."""
    for i in range(rows):
        if bias != 0:
            copy_vectors(at(pointer(bias, zero), place), at(into, i * size), size, zero)
        else:
            clear(at(into, i * size), size, zero)


@inlined
def _active_rows(call: Call, task: int, rows: int, t: int) -> int:
    """The number of a task's rows, the longest first, that have a step t."""
    while rows > 0 and number_at(call.lengths, task + (rows - 1) * call.tasks) <= t:
        rows -= 1
    return rows


@inlined
def _gru_row(gates: Pointer, recurrent: Pointer, state: Pointer, saved: Pointer, size: int, zero: Any) -> None:
    """Compute the new state; save r, z, n and the recurrent side of n for the backward."""
    for c in range(0, size, lanes_of(zero)):
        inner, update = load(recurrent, 2 * size + c), load(gates, size + c) + load(recurrent, size + c)
        new, reset, update, candidate = gru(
            load(gates, c) + load(recurrent, c), update, load(gates, 2 * size + c), inner, load(state, c), zero
        )
        store(state, c, new)
        store(saved, c, reset)
        store(saved, size + c, update)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, inner)


@inlined
def _lstm_row(
    gates: Pointer, recurrent: Pointer, state: Pointer, cell: Pointer, saved: Pointer, size: int, zero: Any
) -> None:
    """Compute the new cell and state; save i, f, g, o for the backward."""
    for c in range(0, size, lanes_of(zero)):
        first, second = load(gates, c) + load(recurrent, c), load(gates, size + c) + load(recurrent, size + c)
        third = load(gates, 2 * size + c) + load(recurrent, 2 * size + c)
        fourth = load(gates, 3 * size + c) + load(recurrent, 3 * size + c)
        new, new_cell, into, forget, candidate, out = lstm(first, second, third, fourth, load(cell, c), zero)
        store(cell, c, new_cell)
        store(state, c, new)
        store(saved, c, into)
        store(saved, size + c, forget)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, out)


@inlined
def _gru_row_gradients(
    grad: Pointer, before: Pointer, saved: Pointer, gates: Pointer, recurrent: Pointer, size: int, zero: Any
) -> None:
    """Write the gradients of both sides of the gates; `grad`, of the new state, becomes that of the old one."""
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
    """Write the gates' gradient, which both sides share; `cell_grad` becomes that of the old cell, `grad` 0."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        into, forget = load(saved, c), load(saved, size + c)
        candidate, out = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state, cell = load(grad, c), load(before, c)
        shown = tanh(forget * cell + into * candidate, zero)
        by_cell = load(cell_grad, c) + by_state * out * (one - shown * shown)
        store(gates, c, by_cell * candidate * into * (one - into))
        store(gates, size + c, by_cell * cell * forget * (one - forget))
        store(gates, 2 * size + c, by_cell * into * (one - candidate * candidate))
        store(gates, 3 * size + c, by_state * shown * out * (one - out))
        store(cell_grad, c, by_cell * forget)
        store(grad, c, full(0, zero))


@inlined
def _copy_rows(call: Call, task: int, rows: int, everyone: int, own: Pointer, back: bool, zero: Any) -> None:
    """Copy the task's rows of numbers (layers, batch, hidden) to numbers of its own, or back."""
    size = call.hidden
    for layer in range(call.layers):
        for i in range(rows):
            place = (layer * call.batch + number_at(call.order, task + i * call.tasks)) * size
            theirs, ours = at(pointer(everyone, zero), place), at(own, (layer * call.task_rows + i) * size)
            if back:
                copy_vectors(ours, theirs, size, zero)
            else:
                copy_vectors(theirs, ours, size, zero)


@inlined
def _cell_step(call: Call, work: Work, task: int, active: int, t: int, layer: int, zero: Any) -> None:
    """Write the states of a layer after a step, of both sides of its gates."""
    size, most, wide = call.hidden, call.task_rows, call.wide
    for i in range(active):
        place = layer * call.tokens + place_of(call, task + i * call.tasks, t)
        state, cell = at(work.states, (layer * most + i) * size), at(work.cells, (layer * most + i) * size)
        saved, gates, recurrent = work.unsaved, at(work.gates, i * wide), at(work.recurrent, i * wide)
        if call.saved != 0:
            saved = at(pointer(call.saved, zero), place * 4 * size)
            copy_vectors(state, at(pointer(call.began, zero), place * size), size, zero)
            if call.cell == LSTM:
                copy_vectors(cell, at(pointer(call.cells, zero), place * size), size, zero)
        if call.cell == LSTM:
            _lstm_row(gates, recurrent, state, cell, saved, size, zero)
        else:
            _gru_row(gates, recurrent, state, saved, size, zero)
        # An infinite input is NaN where it meets the zeros that fill a panel up.
        for c in range(call.own, size):
            state[c] = zero
            if call.cell == LSTM:
                cell[c] = zero
        copy_vectors(state, at(pointer(call.states, zero), place * size), size, zero)


@inlined
def _attend(call: Call, work: Work, task: int, active: int, t: int, top: Pointer, zero: Any) -> None:
    """Write the contexts of a step's rows, from the top layer's states before it."""
    size, values, queries, weights = call.features, call.values, work.queries, work.row_weights
    if call.query_weight != 0:
        _begin(active, call.query_bias, 0, queries, size, zero)
        weight = pointer(call.query_weight, zero)
        product(active, top, call.hidden, weight, call.hidden, size, queries, size, zero)
    else:
        queries = top
    for i in range(active):
        row = task + i * call.tasks
        place, query = place_of(call, row, t), at(queries, i * size)
        exps, context = work.exps, at(work.contexts, i * values)
        if call.queries != 0:
            copy_vectors(query, at(pointer(call.queries, zero), place * size), size, zero)
            if call.pair == ADDITIVE:
                exps = at(pointer(call.query_exp, zero), place * size)
        attend_row(call, place, number_at(call.order, row), query, exps, weights, context, zero)
        copy_vectors(weights, at(pointer(call.weights, zero), place * call.key_row), call.key_row, zero)
        copy_vectors(context, at(pointer(call.contexts, zero), place * values), values, zero)


@inlined
def _below(call: Call, task: int, active: int, t: int, layer: int, states: Pointer, into: Pointer, zero: Any) -> None:
    """Write a layer's input: the states of the layer below it after this step, some features dropped."""
    size = call.hidden
    for i in range(active):
        source, own = at(states, ((layer - 1) * call.task_rows + i) * size), at(into, i * size)
        if call.dropped == 0:
            copy_vectors(source, own, size, zero)
            continue
        place = (layer - 1) * call.tokens + place_of(call, task + i * call.tasks, t)
        dropped = at(pointer(call.dropped, zero), place * size)
        for c in range(0, size, lanes_of(zero)):
            store(own, c, load(source, c) * load(dropped, c))


@Kernel
def forward(zero: Any) -> Any:
    """All steps of all rows."""
    layout = CALL.layout(__name__)

    def forward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, layers, values = call.hidden, call.layers, call.values
        wide, most = call.wide, call.task_rows
        work = _workplace(call, zero)
        states, gates, recurrent, reads = work.states, work.gates, work.recurrent, work.reads
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            _copy_rows(call, task, rows, call.state, states, False, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.memory_cell, work.cells, False, zero)
            for t in range(number_at(call.lengths, task)):
                active = _active_rows(call, task, rows, t)
                if call.pair != NOTHING:
                    top = at(states, (layers - 1) * most * size)
                    _attend(call, work, task, active, t, top, zero)
                for layer in range(layers):
                    own = at(states, layer * most * size)
                    _begin(active, call.hidden_bias, layer * wide, recurrent, wide, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * wide * size)
                    product(active, own, size, weight, size, wide, recurrent, wide, zero)
                    if layer == 0:
                        for i in range(active):
                            place = place_of(call, task + i * call.tasks, t)
                            copy_vectors(at(pointer(call.gates, zero), place * wide), at(gates, i * wide), wide, zero)
                        if call.pair != NOTHING:
                            weight = pointer(call.context_weight, zero)
                            product(active, work.contexts, values, weight, values, wide, gates, wide, zero)
                    else:
                        _below(call, task, active, t, layer, states, reads, zero)
                        _begin(active, call.below_bias, (layer - 1) * wide, gates, wide, zero)
                        weight = at(pointer(call.below_weight, zero), (layer - 1) * wide * size)
                        product(active, reads, size, weight, size, wide, gates, wide, zero)
                    _cell_step(call, work, task, active, t, layer, zero)
            _copy_rows(call, task, rows, call.last_state, states, True, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.last_cell, work.cells, True, zero)

    return forward


@inlined
def _cell_step_gradients(
    call: Call, work: Work, task: int, active: int, t: int, layer: int, recurrent: Pointer, zero: Any
) -> None:
    """Write the gradients of both sides of a layer's gates; its states' become those of the states before."""
    size, most, wide = call.hidden, call.task_rows, call.wide
    for i in range(active):
        place = layer * call.tokens + place_of(call, task + i * call.tasks, t)
        saved = at(pointer(call.saved, zero), place * 4 * size)
        grad, into = at(work.grads, (layer * most + i) * size), at(work.gates, i * wide)
        if call.cell == LSTM:
            cell = at(pointer(call.cells, zero), place * size)
            cell_grad = at(work.cell_grads, (layer * most + i) * size)
            _lstm_row_gradients(grad, cell_grad, cell, saved, into, size, zero)
        else:
            began, own = at(pointer(call.began, zero), place * size), at(recurrent, i * wide)
            _gru_row_gradients(grad, began, saved, into, own, size, zero)
            copy_vectors(own, at(pointer(call.recurrent_grad, zero), place * wide), wide, zero)
        copy_vectors(into, at(pointer(call.gates_grad, zero), place * wide), wide, zero)


@inlined
def _attend_gradients(call: Call, work: Work, task: int, active: int, t: int, top: Pointer, zero: Any) -> None:
    """Write the gradients of contexts, scores and queries, from the first layer's gates'; add to the states'."""
    size, values, wide = call.features, call.values, call.wide
    contexts, queries, by_score = work.contexts, work.queries, work.by_score
    for i in range(active):
        place = place_of(call, task + i * call.tasks, t)
        copy_vectors(at(pointer(call.contexts_grad, zero), place * values), at(contexts, i * values), values, zero)
    product(active, work.gates, wide, pointer(call.context_weight, zero), wide, values, contexts, values, zero)
    for i in range(active):
        row = task + i * call.tasks
        place, b = place_of(call, row, t), number_at(call.order, row)
        query, exps = at(pointer(call.queries, zero), place * size), at(pointer(call.query_exp, zero), place * size)
        context, seen, into = at(contexts, i * values), seen_by(call, b), at(queries, i * size)
        copy_vectors(context, at(pointer(call.context_sums, zero), place * values), values, zero)
        score_gradients(call, place, b, seen, query, context, by_score, work.squares, zero)
        copy_vectors(by_score, at(pointer(call.score_grad, zero), place * call.key_row), call.key_row, zero)
        query_gradient(call, b, seen, query, exps, by_score, into, zero)
        if call.query_weight != 0:
            copy_vectors(into, at(pointer(call.query_grad, zero), place * size), size, zero)
        else:
            _add(into, at(top, i * call.hidden), size, zero)
    if call.query_weight != 0:
        weight = pointer(call.query_weight, zero)
        product(active, queries, size, weight, size, call.hidden, top, call.hidden, zero)


@Kernel
def backward(zero: Any) -> Any:
    """The gradients of states, gates, keys and values; those of weights are products over all steps afterwards."""
    layout = CALL.layout(__name__)

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, layers = lanes_of(zero), call.hidden, call.layers
        wide, most = call.wide, call.task_rows
        work = _workplace(call, zero)
        grads, gates, reads = work.grads, work.gates, work.reads
        recurrent = gates if call.cell == LSTM else work.recurrent
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            _copy_rows(call, task, rows, call.last_state_grad, grads, False, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.last_cell_grad, work.cell_grads, False, zero)
            top = at(grads, (layers - 1) * most * size)
            for t in range(number_at(call.lengths, task) - 1, -1, -1):
                active = _active_rows(call, task, rows, t)
                for i in range(active):
                    place = place_of(call, task + i * call.tasks, t)
                    _add(at(pointer(call.states_grad, zero), place * size), at(top, i * size), size, zero)
                for layer in range(layers - 1, -1, -1):
                    own = at(grads, layer * most * size)
                    _cell_step_gradients(call, work, task, active, t, layer, recurrent, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * wide * size)
                    product(active, recurrent, wide, weight, wide, size, own, size, zero)
                    if layer == 0:
                        continue
                    _begin(active, 0, 0, reads, size, zero)
                    weight = at(pointer(call.below_weight, zero), (layer - 1) * wide * size)
                    product(active, gates, wide, weight, wide, size, reads, size, zero)
                    for i in range(active):
                        source, into = at(reads, i * size), at(grads, ((layer - 1) * most + i) * size)
                        place = (layer - 1) * call.tokens + place_of(call, task + i * call.tasks, t)
                        for c in range(0, size, lanes):
                            share = load(source, c)
                            if call.dropped != 0:
                                share = share * load(pointer(call.dropped, zero), place * size + c)
                            store(into, c, load(into, c) + share)
                if call.pair != NOTHING:
                    _attend_gradients(call, work, task, active, t, top, zero)
            _copy_rows(call, task, rows, call.state_grad, grads, True, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.cell_grad, work.cell_grads, True, zero)
            if call.pair == NOTHING:
                continue
            weight_grad = at(pointer(call.weight_grad, zero), task * call.features)
            for i in range(rows):
                row = task + i * call.tasks
                key_gradients(call, row, weight_grad, zero)
                value_gradients(call, row, zero)

    return backward
