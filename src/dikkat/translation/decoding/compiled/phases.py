"""A whole search as one compiled call: the encoder, then all steps until every sentence is decided.

A search is a sequence of phases. The tasks of a phase are independent: a product with a block of a matrix and the
operation that follows, or some rows of attention. Workers claim tickets. A worker with a ticket of an unpublished phase
waits. The worker that finishes a phase's last task does the bookkeeping and publishes the next phase. So any number of
workers completes a search, with the same results.

The progress of a search is kept in memory, so that all workers can return between two tasks, for Ctrl-C, and continue
later.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, clear, copy_vectors, read_number, workplace_of
from dikkat._engine.order import added, publish, seen, wait_a_little
from dikkat._engine.panels import int8_blocks, narrow_blocks
from dikkat._engine.vectors import (
    Pointer,
    address,
    at,
    claim,
    full,
    lanes_of,
    largest_lane,
    load,
    load_int8,
    magnitude,
    maximum,
    pointer,
    spread,
    store,
    store_int16,
)
from dikkat.recurrent.fused.attending import attend_row
from dikkat.recurrent.fused.cells import gru, lstm
from dikkat.translation.decoding.compiled import record
from dikkat.translation.decoding.compiled.ranking import Phase, merge, merge_states, rank, rank_states
from dikkat.translation.decoding.compiled.rules import State, finish_step

# The type of the terms of all phases, `record.TERM`, in kernels' signatures.
Terms = Any

_workplace = workplace_of(record.SEARCH)
_GATES, _ENCODER_STATE, _ENCODER_CELL, _FINAL, _FINAL_CELL = (
    record.BUFFERS.index(name) for name in ("gates", "encoder_state", "encoder_cell", "final", "final_cell")
)
_EMBEDDED_SOURCE, _KEYS, _QUERY, _CONTEXT, _ATTENDED, _EMBEDDING = (
    record.BUFFERS.index(name) for name in ("embedded_source", "keys", "query", "context", "attended", "embedding")
)
_BEFORE, _CELL_BEFORE, _AFTER, _CELL_AFTER = (
    record.BUFFERS.index(name) for name in ("before", "cell_before", "after", "cell_after")
)
_BYTE, _HALF, _PAIR = np.int8(0), np.int16(0), np.int32(0)


# --- the rows and tasks of a phase


@inlined
def _buffer(call: Call, number: int, layer: int, zero: Any) -> Pointer:
    return at(pointer(read_number(call.buffers, number), zero), layer * read_number(call.strides, number))


@inlined
def _count_rows(call: Call, state: State, phase: Phase) -> int:
    if phase.rows == record.LIVE:
        return state.rows
    if phase.rows == record.POSITIONS:
        return call.positions
    rows = call.sentences
    if phase.kind == record.ENCODE:
        while read_number(call.lengths, rows - 1) <= state.encoded:
            rows -= 1
    return rows


@inlined
def _count_chunks(call: Call, phase: Phase, rows: int) -> int:
    if phase.rows == record.POSITIONS:
        return call.chunks
    return (rows + record.CHUNK - 1) // record.CHUNK


@inlined
def _find_chunk(call: Call, phase: Phase, rows: int, chunk: int) -> tuple[int, int]:
    if phase.rows == record.POSITIONS:
        return read_number(call.chunk_first, chunk), read_number(call.chunk_rows, chunk)
    return chunk * record.CHUNK, min(record.CHUNK, rows - chunk * record.CHUNK)


# --- products


@inlined
def _find_layer(call: Call, state: State, phase: Phase, term: Any, block: int) -> int:
    if phase.kind == record.ENCODE:
        return (state.encoded % 2) * call.directions + block // (phase.blocks // call.directions)
    return term.layer


@inlined
def _start(call: Call, state: State, phase: Phase, block: int, first: int, rows: int, out: Pointer, zero: Any) -> None:
    """Set a block's rows to the bias, or in a step of the encoder to the input's gates."""
    lanes, width = lanes_of(zero), phase.panels * lanes_of(zero)
    bias = at(pointer(phase.bias, zero), block * width)
    for i in range(rows):
        copy_vectors(bias, at(out, i * width), width, zero)
        if phase.kind == record.ENCODE:
            blocks = phase.blocks // call.directions
            gate_row = (4 if call.lstm else 3) * lanes
            position = _position(call, state, first + i, block // blocks)
            gates = at(_buffer(call, _GATES, block // blocks, zero), (position * blocks + block % blocks) * gate_row)
            copy_vectors(gates, at(out, i * width), gate_row, zero)


@inlined
def _position(call: Call, state: State, b: int, direction: int) -> int:
    if direction == 0:
        return b * call.longest + state.encoded
    return b * call.longest + read_number(call.lengths, b) - 1 - state.encoded


@inlined
def _choose_group(rows: int, panels: int) -> int:
    if rows == 1 and panels >= 4:
        return 4
    return 2 if rows <= 3 and panels >= 2 else 1


@inlined
def _product(
    rows: int, a: Pointer, a_step: int, weight: Pointer, count: int, panels: int, c: Pointer, c_step: int,
    row_scales: Pointer, scales: Pointer, int8: Any, zero: Any,
) -> None:  # fmt: skip
    """Add `a` (rows, count), of numbers or pairs of int8, times `panels` panels to `c` (rows, panels · lanes)."""
    lanes, n = lanes_of(zero), 0
    while n < panels:
        group, i = _choose_group(min(6, rows), panels - n), 0
        while i < rows:
            m, row, target = min(6, rows - i), at(a, i * a_step), at(c, i * c_step + n * lanes)
            if int8 is not None:
                panel, by_row, by_column = at(weight, n * count * 2 * lanes), at(row_scales, i), at(scales, n * lanes)
                int8_blocks(m, group, row, a_step, panel, count, target, c_step, by_row, by_column)
            else:
                narrow_blocks(m, group, row, a_step, at(weight, n * count * lanes), count, target, c_step)
            i += m
        n += group


@inlined
def _multiply(
    call: Call, state: State, phase: Phase, terms: Terms, block: int, first: int, rows: int, target: Pointer,
    int8: Any, zero: Any,
) -> None:  # fmt: skip
    lanes = lanes_of(zero)
    _start(call, state, phase, block, first, rows, target, zero)
    weight, width = phase.weight + block * phase.stride, phase.panels * lanes
    scale, start, scale_start = phase.scales + block * phase.scale_stride, 0, 0
    all_rows = _count_rows(call, state, phase)
    for index in range(phase.terms):
        term = terms[phase.first_term + index]
        out = at(target, term.first_panel * lanes)
        if int8 is not None and phase.kind < record.PROBE:
            direction = 0
            if phase.kind == record.ENCODE:
                direction = block // (phase.blocks // call.directions)
            row = direction * all_rows + first
            inputs = at(pointer(call.quantized, _PAIR), (start + row * term.count) // 2)
            by_row, by_column = at(pointer(call.quantized_scales, zero), scale_start + row), pointer(scale, zero)
            pairs, panels = term.count // 2, pointer(weight, _BYTE)
            _product(rows, inputs, pairs, panels, pairs, term.panels, out, width, by_row, by_column, int8, zero)
            weight += term.count * term.panels * lanes
            scale += term.panels * 64
            start, scale_start = start + all_rows * term.count, scale_start + all_rows
        else:
            layer = _find_layer(call, state, phase, term, block)
            source = at(_buffer(call, term.source, layer, zero), first * term.step)
            numbers = pointer(weight, zero)
            _product(rows, source, term.step, numbers, term.count, term.panels, out, width, source, source, None, zero)
            weight += term.count * term.panels * 64


@inlined
def _quantize(call: Call, state: State, phase: Phase, terms: Terms, zero: Any) -> None:
    """Round a phase's terms to int8. The largest magnitude of a row becomes 127."""
    lanes, rows, start, scale_start = lanes_of(zero), _count_rows(call, state, phase), 0, 0
    directions = call.directions if phase.kind == record.ENCODE else 1
    for index in range(phase.terms):
        term = terms[phase.first_term + index]
        for i in range(directions * rows):
            layer = term.layer
            if phase.kind == record.ENCODE:
                layer = (state.encoded % 2) * call.directions + i // rows
            source = at(_buffer(call, term.source, layer, zero), (i % rows) * term.step)
            rounded = at(pointer(call.quantized, _HALF), start + i * term.count)
            peak = full(0, zero)
            for c in range(0, term.count, lanes):
                peak = maximum(magnitude(load(source, c)), peak)
            largest = largest_lane(peak)
            factor = full(zero if largest == 0 else 127 / largest, zero)
            for c in range(0, term.count, lanes):
                store_int16(rounded, c, load(source, c) * factor)
            pointer(call.quantized_scales, zero)[scale_start + i] = largest / 127
        start, scale_start = start + directions * rows * term.count, scale_start + directions * rows


# --- the operations that follow a product


@inlined
def _write(call: Call, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any) -> None:
    width = phase.panels * lanes_of(zero)
    buffer = _buffer(call, phase.out, phase.out_layer, zero)
    for i in range(rows):
        target = at(buffer, (first + i) * phase.out_step + block * width)
        if phase.tanh:
            for c in range(0, width, lanes_of(zero)):
                store(target, c, tanh(load(results, i * width + c), zero))
        elif phase.adds:
            for c in range(0, width, lanes_of(zero)):
                store(target, c, load(target, c) + load(results, i * width + c))
        else:
            copy_vectors(at(results, i * width), target, width, zero)


@inlined
def _step_cell(
    call: Call, gates: Pointer, state: Pointer, cell: Pointer, new_state: Pointer, new_cell: Pointer, zero: Any
) -> None:
    """Write a vector of new states from the gates i, f, g, o; or n's input side, r, z, n's recurrent side."""
    lanes = lanes_of(zero)
    gate_0, gate_1, gate_2, gate_3 = load(gates, 0), load(gates, lanes), load(gates, 2 * lanes), load(gates, 3 * lanes)
    if call.lstm:
        after, content, _, _, _, _ = lstm(gate_0, gate_1, gate_2, gate_3, load(cell, 0), zero)
        store(new_cell, 0, content)
        store(new_state, 0, after)
    else:
        after, _, _, _ = gru(gate_1, gate_2, gate_0, gate_3, load(state, 0), zero)
        store(new_state, 0, after)


@inlined
def _step_encoder(
    call: Call, state: State, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any
) -> None:
    lanes, size, blocks = lanes_of(zero), call.direction_size, phase.blocks // call.directions
    direction, c = block // blocks, (block % blocks) * lanes
    old, new = state.encoded % 2 * call.directions + direction, (1 - state.encoded % 2) * call.directions + direction
    width, outputs = call.directions * size, _buffer(call, phase.out, 0, zero)
    for i in range(rows):
        b = first + i
        offset = b * size + c
        new_state = at(_buffer(call, _ENCODER_STATE, new, zero), offset)
        new_cell = at(_buffer(call, _ENCODER_CELL, new, zero), offset)
        _step_cell(
            call, at(results, i * phase.panels * lanes), at(_buffer(call, _ENCODER_STATE, old, zero), offset),
            at(_buffer(call, _ENCODER_CELL, old, zero), offset), new_state, new_cell, zero,
        )  # fmt: skip
        column = direction * size + c
        store(outputs, _position(call, state, b, direction) * width + column, load(new_state, 0))
        if state.encoded == read_number(call.lengths, b) - 1:
            store(_buffer(call, _FINAL, phase.layer, zero), b * width + column, load(new_state, 0))
            if call.lstm:
                store(_buffer(call, _FINAL_CELL, phase.layer, zero), b * width + column, load(new_cell, 0))


@inlined
def _step_decoder(call: Call, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any) -> None:
    lanes, layer = lanes_of(zero), phase.layer
    for i in range(rows):
        offset = (first + i) * call.hidden + block * lanes
        _step_cell(
            call, at(results, i * phase.panels * lanes), at(_buffer(call, _BEFORE, layer, zero), offset),
            at(_buffer(call, _CELL_BEFORE, layer, zero), offset), at(_buffer(call, _AFTER, layer, zero), offset),
            at(_buffer(call, _CELL_AFTER, layer, zero), offset), zero,
        )  # fmt: skip


# --- other tasks


@inlined
def _embed(call: Call, table: int, scales: int, token: int, target: Pointer, int8: Any, zero: Any) -> None:
    size = call.embedded
    if int8 is not None:
        scale = full(pointer(scales, zero)[token] * call.scale, zero)
        for c in range(0, size, lanes_of(zero)):
            store(target, c, load_int8(pointer(table, _BYTE), token * size + c, zero) * scale)
    else:
        scale = full(call.scale, zero)
        for c in range(0, size, lanes_of(zero)):
            store(target, c, load(pointer(table, zero), token * size + c) * scale)


@inlined
def _embed_sources(call: Call, chunk: int, int8: Any, zero: Any) -> None:
    first = read_number(call.chunk_first, chunk)
    target = _buffer(call, _EMBEDDED_SOURCE, 0, zero)
    for position in range(first, first + read_number(call.chunk_rows, chunk)):
        token = read_number(call.sources, position)
        _embed(call, call.source_table, call.source_scales, token, at(target, position * call.embedded), int8, zero)


@inlined
def _write_exponentials(call: Call, b: int, zero: Any) -> None:
    """Write e^{2k} of a sentence's keys, and their largest |k|."""
    size, peak = call.features, full(0, zero)
    for j in range(read_number(call.key_counts, b) if call.key_counts != 0 else call.keys):
        offset = (b * call.keys + j) * size
        for c in range(0, size, lanes_of(zero)):
            values = load(pointer(call.key, zero), offset + c)
            peak = maximum(magnitude(values), peak)
            store(pointer(call.key_exp, zero), offset + c, exp(values + values))
    pointer(call.key_peaks, zero)[b] = largest_lane(peak)


@inlined
def _gather(call: Call, row: int, int8: Any, zero: Any) -> None:
    size, source = call.hidden, read_number(call.next_rows, row)
    target = at(_buffer(call, _EMBEDDING, 0, zero), row * call.embedded)
    _embed(call, call.target_table, call.target_scales, read_number(call.next_tokens, row), target, int8, zero)
    for layer in range(call.layers):
        after, before = _buffer(call, _AFTER, layer, zero), _buffer(call, _BEFORE, layer, zero)
        copy_vectors(at(after, source * size), at(before, row * size), size, zero)
        if call.lstm:
            after, before = _buffer(call, _CELL_AFTER, layer, zero), _buffer(call, _CELL_BEFORE, layer, zero)
            copy_vectors(at(after, source * size), at(before, row * size), size, zero)


@inlined
def _attend(call: Call, state: State, row: int, exps: Pointer, zero: Any) -> None:
    query = at(_buffer(call, _QUERY, 0, zero), row * call.features)
    step = state.step if call.key_counts != 0 else 0  # without attention, weights are not returned
    offset = (step * call.capacity + row) * call.key_row
    weights, context = at(pointer(call.weights, zero), offset), at(_buffer(call, _CONTEXT, 0, zero), row * call.values)
    b = read_number(call.next_sentences, row)
    attend_row(call, 0, b, query, exps, weights, context, zero)
    if call.lexical != 0:
        _average_embeddings(call, b, weights, at(_buffer(call, _ATTENDED, 0, zero), row * call.embedded), zero)


@inlined
def _average_embeddings(call: Call, b: int, weights: Pointer, target: Pointer, zero: Any) -> None:
    lanes, size = lanes_of(zero), call.embedded
    embedded = at(_buffer(call, _EMBEDDED_SOURCE, 0, zero), b * call.longest * size)
    for c in range(0, size, 2 * lanes):
        low, high = full(0, zero), full(0, zero)
        for j in range(read_number(call.key_counts, b)):
            low += spread(weights, j) * load(embedded, j * size + c)
            high += spread(weights, j) * load(embedded, j * size + c + lanes)
        store(target, c, low)
        store(target, c + lanes, high)


# --- between two phases


@inlined
def _begin_phase(call: Call, state: State, phase: Phase, terms: Terms, int8: Any, zero: Any) -> None:
    """Prepare a phase: set its number of tasks, and a task's cost in multiplications."""
    rows = _count_rows(call, state, phase)
    chunks = _count_chunks(call, phase, rows)
    if phase.kind == record.ENCODE and state.encoded == 0:
        size = call.directions * call.sentences * call.direction_size
        clear(_buffer(call, _ENCODER_STATE, 0, zero), size, zero)
        if call.lstm:
            clear(_buffer(call, _ENCODER_CELL, 0, zero), size, zero)
    if int8 is not None and phase.kind < record.PROBE:
        _quantize(call, state, phase, terms, zero)
    state.first_ticket += state.tasks
    state.tasks, state.cost = phase.blocks * chunks, 1 + phase.stride * min(rows, record.CHUNK)
    if phase.kind == record.ATTEND:
        state.tasks, state.cost = rows, 1 + call.keys * (call.features + call.values + call.lexical * call.embedded)


@Kernel
def search(zero: Any, int8: Any) -> Any:
    """Make the kernel that runs phases until all sentences are decided, the tables are full, or the budget is spent.

    It is one function, since Numba would first compile each called function separately.
    """
    layout, phase_type = record.SEARCH.layout(__name__), record.PHASE
    term_type, state_type = record.TERM, record.STATE

    def search(called: Any) -> None:
        call = carray(called, 1, layout)[0]
        phases = carray(address(call.phases), call.phase_count, phase_type)
        terms = carray(address(call.terms), call.term_count, term_type)
        state = carray(address(call.state), 1, state_type)[0]
        control, work = call.control, _workplace(call, zero)
        while seen(control + record.BUDGET) > 0:
            ticket = claim(control + record.TICKETS)
            waits = 0
            while seen(control + record.PUBLISHED) <= ticket:
                if seen(control + record.OVER) != 0:
                    return
                waits += 1
                wait_a_little(waits % 256 == 0)
            added(control + record.BUDGET, -state.cost)
            phase = phases[state.phase]
            kind, task, rows = phase.kind, ticket - state.first_ticket, _count_rows(call, state, phase)
            chunks = _count_chunks(call, phase, rows)
            block, chunk = task // chunks, task % chunks
            first, count = _find_chunk(call, phase, rows, chunk)
            if kind == record.READ:
                _embed_sources(call, chunk, int8, zero)
            elif kind == record.KEYS:
                for b in range(first, first + count):
                    _write_exponentials(call, b, zero)
            elif kind == record.GATHER:
                for row in range(first, first + count):
                    _gather(call, row, int8, zero)
            elif kind == record.ATTEND:
                _attend(call, state, task, work.exps, zero)
            else:
                _multiply(call, state, phase, terms, block, first, count, work.block, int8, zero)
                if kind == record.DENSE or kind == record.PROBE:
                    _write(call, phase, block, first, count, work.block, zero)
                elif kind == record.ENCODE:
                    _step_encoder(call, state, phase, block, first, count, work.block, zero)
                elif kind == record.CELL:
                    _step_decoder(call, phase, block, first, count, work.block, zero)
                elif kind == record.NEAR:
                    rank_states(call, phase, block, first, count, work.block, zero)
                else:
                    rank(call, state, phase, block, first, count, work.block, zero)
            if added(control + record.FINISHED, 1) != state.first_ticket + state.tasks:
                continue
            # After a phase's last task: publish the next phase, or the end of this run.
            if kind == record.ENCODE and state.encoded + 1 < call.longest:
                state.encoded += 1
            elif kind == record.RANK:
                for row in range(state.rows):
                    merge(call, state, row, zero)
                finish_step(call, state, False)
                state.phase = call.loop
            else:
                if kind == record.NEAR:
                    for row in range(state.rows):
                        merge_states(call, state, row, zero)
                state.phase, state.encoded = state.phase + 1, 0
            if state.status == record.RUNNING:
                _begin_phase(call, state, phases[state.phase], terms, int8, zero)
                if kind == record.RANK and state.step == state.table_steps:
                    state.status = record.FULL
            if state.status == record.RUNNING:
                publish(control + record.PUBLISHED, state.first_ticket + state.tasks)
            else:
                publish(control + record.OVER, 1)

    return search
