"""A whole search as one compiled call: the encoder, and then every step until the last sentence is decided.

It is a sequence of phases, each a number of tasks that do not depend on each other: a product with a block of a matrix
and what follows it, some rows of attention, the bookkeeping between. Workers claim tickets; who holds one of a phase
that is not published yet waits, and who finishes the last task of a phase does what comes between and publishes the
next. So any number of workers, from one on, come to the end, and none waits for a worker that is not there. What they
compute does not depend on how many they are.

The progress of a search is in memory alone, so that all workers can return between two tasks, for Ctrl-C, and go on
later.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._engine.compile import Kernel, inlined
from dikkat._engine.elementary import exp, tanh
from dikkat._engine.memory import Call, clear, copy_vectors, number_at, workplace_of
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
from dikkat.translation.decoding.compiled.ranking import Phase, merge, rank
from dikkat.translation.decoding.compiled.rules import State, book

# In a kernel's signature: the parts of all phases.
Parts = Any

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
    return at(pointer(number_at(call.buffers, number), zero), layer * number_at(call.strides, number))


@inlined
def _rows(call: Call, state: State, phase: Phase) -> int:
    if phase.rows == record.LIVE:
        return state.rows
    if phase.rows == record.POSITIONS:
        return call.positions
    rows = call.sentences
    if phase.kind == record.ENCODE:
        while number_at(call.lengths, rows - 1) <= state.inner:
            rows -= 1
    return rows


@inlined
def _chunks(call: Call, phase: Phase, rows: int) -> int:
    if phase.rows == record.POSITIONS:
        return call.chunks
    return (rows + record.CHUNK - 1) // record.CHUNK


@inlined
def _chunk(call: Call, phase: Phase, rows: int, chunk: int) -> tuple[int, int]:
    if phase.rows == record.POSITIONS:
        return number_at(call.chunk_first, chunk), number_at(call.chunk_rows, chunk)
    return chunk * record.CHUNK, min(record.CHUNK, rows - chunk * record.CHUNK)


# --- products


@inlined
def _layer_of(call: Call, state: State, phase: Phase, part: Any, block: int) -> int:
    if phase.kind == record.ENCODE:
        return (state.inner % 2) * call.directions + block // (phase.blocks // call.directions)
    return part.layer


@inlined
def _start(call: Call, state: State, phase: Phase, block: int, first: int, rows: int, into: Pointer, zero: Any) -> None:
    """Fill a block's rows with the bias, or in an encoder's step with the input's gates."""
    lanes, wide = lanes_of(zero), phase.panels * lanes_of(zero)
    bias = at(pointer(phase.bias, zero), block * wide)
    for i in range(rows):
        copy_vectors(bias, at(into, i * wide), wide, zero)
        if phase.kind == record.ENCODE:
            per = phase.blocks // call.directions
            given = (4 if call.lstm else 3) * lanes
            place = _position(call, state, first + i, block // per)
            gates = at(_buffer(call, _GATES, block // per, zero), (place * per + block % per) * given)
            copy_vectors(gates, at(into, i * wide), given, zero)


@inlined
def _position(call: Call, state: State, b: int, direction: int) -> int:
    if direction == 0:
        return b * call.longest + state.inner
    return b * call.longest + number_at(call.lengths, b) - 1 - state.inner


@inlined
def _at_once(rows: int, panels: int) -> int:
    if rows == 1 and panels >= 4:
        return 4
    return 2 if rows <= 3 and panels >= 2 else 1


@inlined
def _product(
    rows: int, a: Pointer, a_step: int, weight: Pointer, count: int, panels: int, c: Pointer, c_step: int,
    row_scales: Pointer, scales: Pointer, int8: Any, zero: Any,
) -> None:  # fmt: skip
    """Add rows of `count` numbers, or pairs of int8, times panels to rows of as many vectors as there are panels."""
    lanes, n = lanes_of(zero), 0
    while n < panels:
        some, i = _at_once(min(6, rows), panels - n), 0
        while i < rows:
            m, row, into = min(6, rows - i), at(a, i * a_step), at(c, i * c_step + n * lanes)
            if int8 is not None:
                panel, by_row, own = at(weight, n * count * 2 * lanes), at(row_scales, i), at(scales, n * lanes)
                int8_blocks(m, some, row, a_step, panel, count, into, c_step, by_row, own)
            else:
                narrow_blocks(m, some, row, a_step, at(weight, n * count * lanes), count, into, c_step)
            i += m
        n += some


@inlined
def _multiply(
    call: Call, state: State, phase: Phase, parts: Parts, block: int, first: int, rows: int, into: Pointer,
    int8: Any, zero: Any,
) -> None:  # fmt: skip
    lanes = lanes_of(zero)
    _start(call, state, phase, block, first, rows, into, zero)
    weight, wide = phase.weight + block * phase.stride, phase.panels * lanes
    scale, taken, scaled = phase.scales + block * phase.scale_stride, 0, 0
    every = _rows(call, state, phase)
    for p in range(phase.parts):
        part = parts[phase.part + p]
        target = at(into, part.first * lanes)
        if int8 is not None:
            direction = 0
            if phase.kind == record.ENCODE:
                direction = block // (phase.blocks // call.directions)
            row = direction * every + first
            halves = at(pointer(call.quantized, _PAIR), (taken + row * part.count) // 2)
            by_row, own = at(pointer(call.quantized_scales, zero), scaled + row), pointer(scale, zero)
            pairs, panels = part.count // 2, pointer(weight, _BYTE)
            _product(rows, halves, pairs, panels, pairs, part.panels, target, wide, by_row, own, int8, zero)
            weight += part.count * part.panels * lanes
            scale += part.panels * 64
            taken, scaled = taken + every * part.count, scaled + every
        else:
            layer = _layer_of(call, state, phase, part, block)
            source = at(_buffer(call, part.source, layer, zero), first * part.step)
            panels = pointer(weight, zero)
            _product(rows, source, part.step, panels, part.count, part.panels, target, wide, source, source, int8, zero)
            weight += part.count * part.panels * 64


@inlined
def _quantize(call: Call, state: State, phase: Phase, parts: Parts, zero: Any) -> None:
    """Round all rows that a phase reads to int8: each row's largest number becomes 127."""
    lanes, rows, taken, scaled = lanes_of(zero), _rows(call, state, phase), 0, 0
    directions = call.directions if phase.kind == record.ENCODE else 1
    for p in range(phase.parts):
        part = parts[phase.part + p]
        for i in range(directions * rows):
            layer = part.layer
            if phase.kind == record.ENCODE:
                layer = (state.inner % 2) * call.directions + i // rows
            source = at(_buffer(call, part.source, layer, zero), (i % rows) * part.step)
            into = at(pointer(call.quantized, _HALF), taken + i * part.count)
            peak = full(0, zero)
            for c in range(0, part.count, lanes):
                peak = maximum(magnitude(load(source, c)), peak)
            most = largest_lane(peak)
            by = full(zero if most == 0 else 127 / most, zero)
            for c in range(0, part.count, lanes):
                store_int16(into, c, load(source, c) * by)
            pointer(call.quantized_scales, zero)[scaled + i] = most / 127
        taken, scaled = taken + directions * rows * part.count, scaled + directions * rows


# --- what follows a product


@inlined
def _write(call: Call, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any) -> None:
    wide = phase.panels * lanes_of(zero)
    into = _buffer(call, phase.out, phase.out_layer, zero)
    for i in range(rows):
        place = at(into, (first + i) * phase.out_step + block * wide)
        if phase.tanh:
            for c in range(0, wide, lanes_of(zero)):
                store(place, c, tanh(load(results, i * wide + c), zero))
        elif phase.adds:
            for c in range(0, wide, lanes_of(zero)):
                store(place, c, load(place, c) + load(results, i * wide + c))
        else:
            copy_vectors(at(results, i * wide), place, wide, zero)


@inlined
def _cell(
    call: Call, gates: Pointer, state: Pointer, cell: Pointer, new: Pointer, new_cell: Pointer, zero: Any
) -> None:
    """Write the new states of a vector of features, of gates i, f, g, o; or n's input side, r, z, n's other side."""
    lanes = lanes_of(zero)
    first, second, third, fourth = load(gates, 0), load(gates, lanes), load(gates, 2 * lanes), load(gates, 3 * lanes)
    if call.lstm:
        after, content, _, _, _, _ = lstm(first, second, third, fourth, load(cell, 0), zero)
        store(new_cell, 0, content)
        store(new, 0, after)
    else:
        after, _, _, _ = gru(second, third, first, fourth, load(state, 0), zero)
        store(new, 0, after)


@inlined
def _encode_cells(
    call: Call, state: State, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any
) -> None:
    lanes, size, per = lanes_of(zero), call.own, phase.blocks // call.directions
    direction, c = block // per, (block % per) * lanes
    now, then = state.inner % 2 * call.directions + direction, (1 - state.inner % 2) * call.directions + direction
    wide, outputs = call.directions * size, _buffer(call, phase.out, 0, zero)
    for i in range(rows):
        b = first + i
        own = b * size + c
        new = at(_buffer(call, _ENCODER_STATE, then, zero), own)
        cell = at(_buffer(call, _ENCODER_CELL, then, zero), own)
        _cell(
            call, at(results, i * phase.panels * lanes), at(_buffer(call, _ENCODER_STATE, now, zero), own),
            at(_buffer(call, _ENCODER_CELL, now, zero), own), new, cell, zero,
        )  # fmt: skip
        place = direction * size + c
        store(outputs, _position(call, state, b, direction) * wide + place, load(new, 0))
        if state.inner == number_at(call.lengths, b) - 1:
            store(_buffer(call, _FINAL, phase.layer, zero), b * wide + place, load(new, 0))
            if call.lstm:
                store(_buffer(call, _FINAL_CELL, phase.layer, zero), b * wide + place, load(cell, 0))


@inlined
def _decode_cells(call: Call, phase: Phase, block: int, first: int, rows: int, results: Pointer, zero: Any) -> None:
    lanes, layer = lanes_of(zero), phase.layer
    for i in range(rows):
        own = (first + i) * call.hidden + block * lanes
        _cell(
            call, at(results, i * phase.panels * lanes), at(_buffer(call, _BEFORE, layer, zero), own),
            at(_buffer(call, _CELL_BEFORE, layer, zero), own), at(_buffer(call, _AFTER, layer, zero), own),
            at(_buffer(call, _CELL_AFTER, layer, zero), own), zero,
        )  # fmt: skip


# --- other tasks


@inlined
def _embed(call: Call, table: int, scales: int, token: int, into: Pointer, int8: Any, zero: Any) -> None:
    size = call.embedded
    if int8 is not None:
        scale = full(pointer(scales, zero)[token] * call.scale, zero)
        for c in range(0, size, lanes_of(zero)):
            store(into, c, load_int8(pointer(table, _BYTE), token * size + c, zero) * scale)
    else:
        scale = full(call.scale, zero)
        for c in range(0, size, lanes_of(zero)):
            store(into, c, load(pointer(table, zero), token * size + c) * scale)


@inlined
def _read(call: Call, chunk: int, int8: Any, zero: Any) -> None:
    first = number_at(call.chunk_first, chunk)
    into = _buffer(call, _EMBEDDED_SOURCE, 0, zero)
    for place in range(first, first + number_at(call.chunk_rows, chunk)):
        token = number_at(call.sources, place)
        _embed(call, call.source_table, call.source_scales, token, at(into, place * call.embedded), int8, zero)


@inlined
def _exponentials(call: Call, b: int, zero: Any) -> None:
    """Write a sentence's e^{2k}, and the largest |k|."""
    size, peak = call.features, full(0, zero)
    for j in range(number_at(call.key_counts, b) if call.key_counts != 0 else call.keys):
        place = (b * call.keys + j) * size
        for c in range(0, size, lanes_of(zero)):
            x = load(pointer(call.key, zero), place + c)
            peak = maximum(magnitude(x), peak)
            store(pointer(call.key_exp, zero), place + c, exp(x + x))
    pointer(call.key_peaks, zero)[b] = largest_lane(peak)


@inlined
def _gather(call: Call, row: int, int8: Any, zero: Any) -> None:
    size, source = call.hidden, number_at(call.next_rows, row)
    into = at(_buffer(call, _EMBEDDING, 0, zero), row * call.embedded)
    _embed(call, call.target_table, call.target_scales, number_at(call.next_tokens, row), into, int8, zero)
    for layer in range(call.layers):
        after, before = _buffer(call, _AFTER, layer, zero), _buffer(call, _BEFORE, layer, zero)
        copy_vectors(at(after, source * size), at(before, row * size), size, zero)
        if call.lstm:
            after, before = _buffer(call, _CELL_AFTER, layer, zero), _buffer(call, _CELL_BEFORE, layer, zero)
            copy_vectors(at(after, source * size), at(before, row * size), size, zero)


@inlined
def _attend(call: Call, state: State, row: int, exps: Pointer, zero: Any) -> None:
    query = at(_buffer(call, _QUERY, 0, zero), row * call.features)
    step = state.step if call.key_counts != 0 else 0  # without attention the weights are not returned
    place = (step * call.capacity + row) * call.key_row
    weights, context = at(pointer(call.weights, zero), place), at(_buffer(call, _CONTEXT, 0, zero), row * call.values)
    b = number_at(call.next_sentences, row)
    attend_row(call, 0, b, query, exps, weights, context, zero)
    if call.lexical != 0:
        _mean_embedding(call, b, weights, at(_buffer(call, _ATTENDED, 0, zero), row * call.embedded), zero)


@inlined
def _mean_embedding(call: Call, b: int, weights: Pointer, into: Pointer, zero: Any) -> None:
    lanes, size = lanes_of(zero), call.embedded
    embedded = at(_buffer(call, _EMBEDDED_SOURCE, 0, zero), b * call.longest * size)
    for c in range(0, size, 2 * lanes):
        first, second = full(0, zero), full(0, zero)
        for j in range(number_at(call.key_counts, b)):
            first += spread(weights, j) * load(embedded, j * size + c)
            second += spread(weights, j) * load(embedded, j * size + c + lanes)
        store(into, c, first)
        store(into, c + lanes, second)


# --- between two phases


@inlined
def _begin(call: Call, state: State, phase: Phase, parts: Parts, int8: Any, zero: Any) -> None:
    """Set up a phase: its number of tasks and the cost of each, in multiplications."""
    rows = _rows(call, state, phase)
    chunks = _chunks(call, phase, rows)
    if phase.kind == record.ENCODE and state.inner == 0:
        size = call.directions * call.sentences * call.own
        clear(_buffer(call, _ENCODER_STATE, 0, zero), size, zero)
        if call.lstm:
            clear(_buffer(call, _ENCODER_CELL, 0, zero), size, zero)
    if int8 is not None:
        _quantize(call, state, phase, parts, zero)
    state.first += state.tasks
    state.tasks, state.cost = phase.blocks * chunks, 1 + phase.stride * min(rows, record.CHUNK)
    if phase.kind == record.ATTEND:
        state.tasks, state.cost = rows, 1 + call.keys * (call.features + call.values + call.lexical * call.embedded)


@Kernel
def search(zero: Any, int8: Any) -> Any:
    """Phase after phase, until all sentences are decided, the tables of steps are full, or the budget is spent.

    In one function, since each that is called is compiled alone first, with all that it calls.
    """
    layout, phase_type, part_type, state_type = record.SEARCH.layout(__name__), record.PHASE, record.PART, record.STATE

    def search(called: Any) -> None:
        call = carray(called, 1, layout)[0]
        phases = carray(address(call.phases), call.phase_count, phase_type)
        parts = carray(address(call.parts), call.part_count, part_type)
        state = carray(address(call.state), 1, state_type)[0]
        control, work = call.control, _workplace(call, zero)
        while seen(control + record.BUDGET) > 0:
            ticket = claim(control + record.TICKETS)
            turns = 0
            while seen(control + record.PUBLISHED) <= ticket:
                if seen(control + record.OVER) != 0:
                    return
                turns += 1
                wait_a_little(turns % 256 == 0)
            added(control + record.BUDGET, -state.cost)
            phase = phases[state.phase]
            kind, task, rows = phase.kind, ticket - state.first, _rows(call, state, phase)
            chunks = _chunks(call, phase, rows)
            block, chunk = task // chunks, task % chunks
            first, count = _chunk(call, phase, rows, chunk)
            if kind == record.READ:
                _read(call, chunk, int8, zero)
            elif kind == record.KEYS:
                for b in range(first, first + count):
                    _exponentials(call, b, zero)
            elif kind == record.GATHER:
                for row in range(first, first + count):
                    _gather(call, row, int8, zero)
            elif kind == record.ATTEND:
                _attend(call, state, task, work.exps, zero)
            else:
                _multiply(call, state, phase, parts, block, first, count, work.block, int8, zero)
                if kind == record.DENSE:
                    _write(call, phase, block, first, count, work.block, zero)
                elif kind == record.ENCODE:
                    _encode_cells(call, state, phase, block, first, count, work.block, zero)
                elif kind == record.CELL:
                    _decode_cells(call, phase, block, first, count, work.block, zero)
                else:
                    rank(call, state, phase, block, first, count, work.block, zero)
            if added(control + record.FINISHED, 1) != state.first + state.tasks:
                continue
            # The last task of a phase: publish the next, or that all is over, at the end or until there is more room.
            if kind == record.ENCODE and state.inner + 1 < call.longest:
                state.inner += 1
            elif kind == record.RANK:
                for row in range(state.rows):
                    merge(call, row, zero)
                book(call, state, False)
                state.phase = call.loop
            else:
                state.phase, state.inner = state.phase + 1, 0
            if state.status == record.GOING:
                _begin(call, state, phases[state.phase], parts, int8, zero)
                if kind == record.RANK and state.step == state.room:
                    state.status = record.FULL
            if state.status == record.GOING:
                publish(control + record.PUBLISHED, state.first + state.tasks)
            else:
                publish(control + record.OVER, 1)

    return search
