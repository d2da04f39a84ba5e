"""Packed sequences: each worker's copy of the record describes the one sequence of its task as a batch of one.

A worker has a copy of the call's record. For each task it moves the addresses in it to where the task's sequence
begins, and writes the sequence's lengths: what a kernel does then is what it does for one call of that sequence alone.
"""

from typing import Any

import numpy as np
from numba import carray

from dikkat._core.implementations.numba.record import CALL
from dikkat._core.implementations.numba.visibility import owner
from dikkat._engine.compile import inlined
from dikkat._engine.memory import Call, number_at, numbers_at
from dikkat._engine.vectors import Pointer, lanes_of, untyped

_WORDS, _SPANS = CALL.counters // 8, CALL.place("spans")


@inlined
def record_of(record: Any, own: Pointer) -> Any:
    """The record that a worker goes by: the call's, or where there are sequences a copy, in the scratch."""
    words = carray(record, _WORDS, np.int64)
    if words[_SPANS] == 0:
        return record
    for place in range(_WORDS):
        own[place] = words[place]
    return untyped(own)


@inlined
def enter(call: Call, own: Pointer, task: int, zero: Any) -> int:
    """Turn a worker's record into that of a task's sequence alone, if there are any; return the task's number there."""
    if call.spans == 0:
        return task
    element, count = numbers_at(call.elements, 5 * task), call.sequences
    head, sequence, part = element[0], element[1], element[2]
    for k in range(call.moved):
        move = numbers_at(call.moves, 7 * k)
        begin = number_at(move[4], sequence) if move[4] != 0 else 0
        own[move[0]] = move[1] + owner(move[2], move[3], head) * move[5] + begin * move[6]
    queries, keys = numbers_at(call.spans, 0), numbers_at(call.spans, count + 1)
    call.queries = queries[sequence + 1] - queries[sequence]
    call.keys = keys[sequence + 1] - keys[sequence]
    call.blocks = (call.keys + lanes_of(zero) - 1) // lanes_of(zero)
    call.parts, call.together = element[3], element[4]
    call.part_rows = (call.queries + call.parts * call.together - 1) // (call.parts * call.together)
    return part
