"""Kernels of recurrent layers over whole sequences, with or without attention.

A task runs all steps of some sequences, so threads never wait for each other. A step multiplies the task's states by
weights in panels of two vectors of columns. The lanes are features.

Rows are sequences, longest first. A step's rows are the sequences that have not ended. The numbers of a step and a row
are at index `offsets[step] + row`, as in PyTorch's packed sequences. In reverse, a row begins with its last step.

All sizes are padded with zeros to whole panels. The padding stays 0: a state of 0 whose gates are 0 remains 0.

Additive scores omit Σ v, which cancels in the softmax: −2 Σ v r with r = 1/(1 + p), p = e^{2q} e^{2k}. Two features
share a division if |q| and |k| are small. If either is too large for separate exponentials, p is e^{2(q + k)}.
"""

from typing import Any

from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import tanh
from dikkat._engine.memory import Call, Work, clear, copy_vectors, read_number, workplace_of
from dikkat._engine.vectors import Pointer, at, claim, full, lanes_of, load, pointer, store
from dikkat.recurrent.fused.attending import (
    attend_row,
    count_keys,
    find_index,
    key_gradients,
    query_gradient,
    score_gradients,
    value_gradients,
)
from dikkat.recurrent.fused.cells import gru, lstm
from dikkat.recurrent.fused.panels import product
from dikkat.recurrent.fused.record import ADDITIVE, CALL, LSTM, NOTHING

_workplace = workplace_of(CALL)


@inlined
def _add_to(source: Pointer, target: Pointer, count: int, zero: Any) -> None:
    for c in range(0, count, lanes_of(zero)):
        store(target, c, load(target, c) + load(source, c))


@inlined
def _fill_rows(rows: int, bias: int, offset: int, target: Pointer, size: int, zero: Any) -> None:
    """Set each row to the bias from `offset` on, or to 0 if the address `bias` is 0."""
    for i in range(rows):
        if bias != 0:
            copy_vectors(at(pointer(bias, zero), offset), at(target, i * size), size, zero)
        else:
            clear(at(target, i * size), size, zero)


@inlined
def _count_active(call: Call, task: int, rows: int, t: int) -> int:
    while rows > 0 and read_number(call.lengths, task + (rows - 1) * call.tasks) <= t:
        rows -= 1
    return rows


@inlined
def _gru_row(gates: Pointer, recurrent: Pointer, state: Pointer, saved: Pointer, size: int, zero: Any) -> None:
    """Update the state; save r, z, n and the recurrent side of n for the backward pass."""
    for c in range(0, size, lanes_of(zero)):
        recurrent_n, update = load(recurrent, 2 * size + c), load(gates, size + c) + load(recurrent, size + c)
        new, reset, update, candidate = gru(
            load(gates, c) + load(recurrent, c), update, load(gates, 2 * size + c), recurrent_n, load(state, c), zero
        )
        store(state, c, new)
        store(saved, c, reset)
        store(saved, size + c, update)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, recurrent_n)


@inlined
def _lstm_row(
    gates: Pointer, recurrent: Pointer, state: Pointer, cell: Pointer, saved: Pointer, size: int, zero: Any
) -> None:
    """Update the cell and the state; save i, f, g, o for the backward pass."""
    for c in range(0, size, lanes_of(zero)):
        i_sum, f_sum = load(gates, c) + load(recurrent, c), load(gates, size + c) + load(recurrent, size + c)
        g_sum = load(gates, 2 * size + c) + load(recurrent, 2 * size + c)
        o_sum = load(gates, 3 * size + c) + load(recurrent, 3 * size + c)
        new, new_cell, into, forget, candidate, out = lstm(i_sum, f_sum, g_sum, o_sum, load(cell, c), zero)
        store(cell, c, new_cell)
        store(state, c, new)
        store(saved, c, into)
        store(saved, size + c, forget)
        store(saved, 2 * size + c, candidate)
        store(saved, 3 * size + c, out)


@inlined
def _gru_row_gradients(
    grad: Pointer, old_state: Pointer, saved: Pointer, gates: Pointer, recurrent: Pointer, size: int, zero: Any
) -> None:
    """Write the gradients of both sides of the gates; replace `grad`, of the new state, by the old state's."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        reset, update = load(saved, c), load(saved, size + c)
        candidate, recurrent_n = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state = load(grad, c)
        by_candidate = by_state * (one - update) * (one - candidate * candidate)
        by_update = by_state * (load(old_state, c) - candidate) * update * (one - update)
        by_reset = by_candidate * recurrent_n * reset * (one - reset)
        store(gates, c, by_reset)
        store(gates, size + c, by_update)
        store(gates, 2 * size + c, by_candidate)
        store(recurrent, c, by_reset)
        store(recurrent, size + c, by_update)
        store(recurrent, 2 * size + c, by_candidate * reset)
        store(grad, c, by_state * update)


@inlined
def _lstm_row_gradients(
    grad: Pointer, cell_grad: Pointer, old_cell: Pointer, saved: Pointer, gates: Pointer, size: int, zero: Any
) -> None:
    """Write the gates' gradient, the same for both sides; replace `cell_grad` by the old cell's, and `grad` by 0."""
    one = full(1, zero)
    for c in range(0, size, lanes_of(zero)):
        into, forget = load(saved, c), load(saved, size + c)
        candidate, out = load(saved, 2 * size + c), load(saved, 3 * size + c)
        by_state, cell = load(grad, c), load(old_cell, c)
        cell_tanh = tanh(forget * cell + into * candidate, zero)
        by_cell = load(cell_grad, c) + by_state * out * (one - cell_tanh * cell_tanh)
        store(gates, c, by_cell * candidate * into * (one - into))
        store(gates, size + c, by_cell * cell * forget * (one - forget))
        store(gates, 2 * size + c, by_cell * into * (one - candidate * candidate))
        store(gates, 3 * size + c, by_state * cell_tanh * out * (one - out))
        store(cell_grad, c, by_cell * forget)
        store(grad, c, full(0, zero))


@inlined
def _copy_rows(call: Call, task: int, rows: int, in_batch: int, in_work: Pointer, back: bool, zero: Any) -> None:
    """Copy the task's rows of an array (layers, batch, hidden) to its work space, or back."""
    size = call.hidden
    for layer in range(call.layers):
        for i in range(rows):
            offset = (layer * call.batch + read_number(call.order, task + i * call.tasks)) * size
            in_call, in_task = at(pointer(in_batch, zero), offset), at(in_work, (layer * call.task_rows + i) * size)
            if back:
                copy_vectors(in_task, in_call, size, zero)
            else:
                copy_vectors(in_call, in_task, size, zero)


@inlined
def _cell_step(call: Call, work: Work, task: int, active: int, t: int, layer: int, zero: Any) -> None:
    """Update the states of a layer from both sides of its gates."""
    size, task_rows, width = call.hidden, call.task_rows, call.gate_row
    for i in range(active):
        index = layer * call.step_rows + find_index(call, task + i * call.tasks, t)
        state, cell = at(work.states, (layer * task_rows + i) * size), at(work.cells, (layer * task_rows + i) * size)
        saved, gates, recurrent = work.unsaved, at(work.gates, i * width), at(work.recurrent, i * width)
        if call.saved != 0:
            saved = at(pointer(call.saved, zero), index * 4 * size)
            copy_vectors(state, at(pointer(call.states_before, zero), index * size), size, zero)
            if call.cell == LSTM:
                copy_vectors(cell, at(pointer(call.cells, zero), index * size), size, zero)
        if call.cell == LSTM:
            _lstm_row(gates, recurrent, state, cell, saved, size, zero)
        else:
            _gru_row(gates, recurrent, state, saved, size, zero)
        # An infinite input times a panel's padding of 0 is NaN.
        for c in range(call.unpadded, size):
            state[c] = zero
            if call.cell == LSTM:
                cell[c] = zero
        copy_vectors(state, at(pointer(call.states, zero), index * size), size, zero)


@inlined
def _attend_step(call: Call, work: Work, task: int, active: int, t: int, top: Pointer, zero: Any) -> None:
    """Write the contexts of a step's rows, from the top layer's states before the step."""
    size, values, queries, weights = call.features, call.values, work.queries, work.row_weights
    if call.query_weight != 0:
        _fill_rows(active, call.query_bias, 0, queries, size, zero)
        weight = pointer(call.query_weight, zero)
        product(active, top, call.hidden, weight, call.hidden, size, queries, size, zero)
    else:
        queries = top
    for i in range(active):
        row = task + i * call.tasks
        index, query = find_index(call, row, t), at(queries, i * size)
        exps, context = work.exps, at(work.contexts, i * values)
        if call.queries != 0:
            copy_vectors(query, at(pointer(call.queries, zero), index * size), size, zero)
            if call.pair == ADDITIVE:
                exps = at(pointer(call.query_exp, zero), index * size)
        attend_row(call, index, read_number(call.order, row), query, exps, weights, context, zero)
        copy_vectors(weights, at(pointer(call.weights, zero), index * call.key_row), call.key_row, zero)
        copy_vectors(context, at(pointer(call.contexts, zero), index * values), values, zero)


@inlined
def _feed(call: Call, task: int, active: int, t: int, layer: int, states: Pointer, inputs: Pointer, zero: Any) -> None:
    """Write a layer's inputs: the new states of the layer below, times the factors of dropout."""
    size = call.hidden
    for i in range(active):
        source, target = at(states, ((layer - 1) * call.task_rows + i) * size), at(inputs, i * size)
        if call.state_factors == 0:
            copy_vectors(source, target, size, zero)
            continue
        index = (layer - 1) * call.step_rows + find_index(call, task + i * call.tasks, t)
        factors = at(pointer(call.state_factors, zero), index * size)
        for c in range(0, size, lanes_of(zero)):
            store(target, c, load(source, c) * load(factors, c))


@Kernel
def forward(zero: Any) -> Any:
    """Make the kernel that runs all steps of all rows."""
    layout = CALL.layout(__name__)

    def forward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        size, layers, values = call.hidden, call.layers, call.values
        width, task_rows = call.gate_row, call.task_rows
        work = _workplace(call, zero)
        states, gates, recurrent, inputs = work.states, work.gates, work.recurrent, work.inputs
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            _copy_rows(call, task, rows, call.state, states, False, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.memory_cell, work.cells, False, zero)
            for t in range(read_number(call.lengths, task)):
                active = _count_active(call, task, rows, t)
                if call.pair != NOTHING:
                    top = at(states, (layers - 1) * task_rows * size)
                    _attend_step(call, work, task, active, t, top, zero)
                for layer in range(layers):
                    layer_states = at(states, layer * task_rows * size)
                    _fill_rows(active, call.hidden_bias, layer * width, recurrent, width, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * width * size)
                    product(active, layer_states, size, weight, size, width, recurrent, width, zero)
                    if layer == 0:
                        for i in range(active):
                            index = find_index(call, task + i * call.tasks, t)
                            copy_vectors(
                                at(pointer(call.gates, zero), index * width), at(gates, i * width), width, zero
                            )
                        if call.pair != NOTHING:
                            weight = pointer(call.context_weight, zero)
                            product(active, work.contexts, values, weight, values, width, gates, width, zero)
                    else:
                        _feed(call, task, active, t, layer, states, inputs, zero)
                        _fill_rows(active, call.below_bias, (layer - 1) * width, gates, width, zero)
                        weight = at(pointer(call.below_weight, zero), (layer - 1) * width * size)
                        product(active, inputs, size, weight, size, width, gates, width, zero)
                    _cell_step(call, work, task, active, t, layer, zero)
            _copy_rows(call, task, rows, call.last_state, states, True, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.last_cell, work.cells, True, zero)

    return forward


@inlined
def _cell_step_gradients(
    call: Call, work: Work, task: int, active: int, t: int, layer: int, recurrent: Pointer, zero: Any
) -> None:
    """Write the gradients of both sides of a layer's gates; replace its states' by those of the old states."""
    size, task_rows, width = call.hidden, call.task_rows, call.gate_row
    for i in range(active):
        index = layer * call.step_rows + find_index(call, task + i * call.tasks, t)
        saved = at(pointer(call.saved, zero), index * 4 * size)
        grad, gates = at(work.grads, (layer * task_rows + i) * size), at(work.gates, i * width)
        if call.cell == LSTM:
            cell = at(pointer(call.cells, zero), index * size)
            cell_grad = at(work.cell_grads, (layer * task_rows + i) * size)
            _lstm_row_gradients(grad, cell_grad, cell, saved, gates, size, zero)
        else:
            old_state, recurrent_row = at(pointer(call.states_before, zero), index * size), at(recurrent, i * width)
            _gru_row_gradients(grad, old_state, saved, gates, recurrent_row, size, zero)
            copy_vectors(recurrent_row, at(pointer(call.recurrent_grad, zero), index * width), width, zero)
        copy_vectors(gates, at(pointer(call.gates_grad, zero), index * width), width, zero)


@inlined
def _attend_gradients(call: Call, work: Work, task: int, active: int, t: int, top: Pointer, zero: Any) -> None:
    """Write the gradients of contexts, scores and queries, from the first layer's gates; add to the states'."""
    size, values, width = call.features, call.values, call.gate_row
    contexts, queries, by_score = work.contexts, work.queries, work.by_score
    for i in range(active):
        index = find_index(call, task + i * call.tasks, t)
        copy_vectors(at(pointer(call.contexts_grad, zero), index * values), at(contexts, i * values), values, zero)
    product(active, work.gates, width, pointer(call.context_weight, zero), width, values, contexts, values, zero)
    for i in range(active):
        row = task + i * call.tasks
        index, b = find_index(call, row, t), read_number(call.order, row)
        query, exps = at(pointer(call.queries, zero), index * size), at(pointer(call.query_exp, zero), index * size)
        context, key_count, query_grad = at(contexts, i * values), count_keys(call, b), at(queries, i * size)
        copy_vectors(context, at(pointer(call.context_sums, zero), index * values), values, zero)
        score_gradients(call, index, b, key_count, query, context, by_score, work.squares, zero)
        copy_vectors(by_score, at(pointer(call.score_grad, zero), index * call.key_row), call.key_row, zero)
        query_gradient(call, b, key_count, query, exps, by_score, query_grad, zero)
        if call.query_weight != 0:
            copy_vectors(query_grad, at(pointer(call.query_grad, zero), index * size), size, zero)
        else:
            _add_to(query_grad, at(top, i * call.hidden), size, zero)
    if call.query_weight != 0:
        weight = pointer(call.query_weight, zero)
        product(active, queries, size, weight, size, call.hidden, top, call.hidden, zero)


@Kernel
def backward(zero: Any) -> Any:
    """Make the kernel of all gradients except the weights', which are products over all steps (`launch`)."""
    layout = CALL.layout(__name__)

    def backward(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        lanes, size, layers = lanes_of(zero), call.hidden, call.layers
        width, task_rows = call.gate_row, call.task_rows
        work = _workplace(call, zero)
        grads, gates, below_grads = work.grads, work.gates, work.inputs
        recurrent = gates if call.cell == LSTM else work.recurrent
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            rows = (call.batch - task + call.tasks - 1) // call.tasks
            _copy_rows(call, task, rows, call.last_state_grad, grads, False, zero)
            if call.cell == LSTM:
                _copy_rows(call, task, rows, call.last_cell_grad, work.cell_grads, False, zero)
            top = at(grads, (layers - 1) * task_rows * size)
            for t in range(read_number(call.lengths, task) - 1, -1, -1):
                active = _count_active(call, task, rows, t)
                for i in range(active):
                    index = find_index(call, task + i * call.tasks, t)
                    _add_to(at(pointer(call.states_grad, zero), index * size), at(top, i * size), size, zero)
                for layer in range(layers - 1, -1, -1):
                    layer_grads = at(grads, layer * task_rows * size)
                    _cell_step_gradients(call, work, task, active, t, layer, recurrent, zero)
                    weight = at(pointer(call.hidden_weight, zero), layer * width * size)
                    product(active, recurrent, width, weight, width, size, layer_grads, size, zero)
                    if layer == 0:
                        continue
                    _fill_rows(active, 0, 0, below_grads, size, zero)
                    weight = at(pointer(call.below_weight, zero), (layer - 1) * width * size)
                    product(active, gates, width, weight, width, size, below_grads, size, zero)
                    for i in range(active):
                        source, target = at(below_grads, i * size), at(grads, ((layer - 1) * task_rows + i) * size)
                        index = (layer - 1) * call.step_rows + find_index(call, task + i * call.tasks, t)
                        for c in range(0, size, lanes):
                            grad = load(source, c)
                            if call.state_factors != 0:
                                grad = grad * load(pointer(call.state_factors, zero), index * size + c)
                            store(target, c, load(target, c) + grad)
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
