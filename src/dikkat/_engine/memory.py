"""Access to a worker's scratch, and to rows of numbers in memory, in compiled code."""

from collections import namedtuple
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic

from dikkat._engine import vectors as v
from dikkat._engine.compile import inlined
from dikkat._engine.internals import cgutils
from dikkat._engine.record import Record

# Types in a kernel's signature: a call's record, and the pointers to a worker's regions, by name.
Call: TypeAlias = Any
Work: TypeAlias = Any


def workplace_of(record: Record) -> Any:
    """Make the compiled function that assigns scratch to a worker: a named tuple of pointers to all regions."""
    regions_type = namedtuple("Work", record.regions)  # type: ignore[misc]  # the names come from `record`

    @intrinsic
    def workplace(typingctx: Any, call: Any, zero: Any) -> Any:
        pointers = [types.CPointer(types.int64 if kind == torch.int64 else zero) for kind in record.regions.values()]
        returned = types.NamedTuple(pointers, regions_type)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            def field(name: str) -> Any:
                pointer = cgutils.get_record_member(builder, args[0], call.offset(name), v.I64)
                return builder.load(pointer, align=1)

            counter = builder.inttoptr(builder.add(field("counters"), v.I64(8)), v.I64.as_pointer())
            worker = builder.atomic_rmw("add", counter, v.I64(1), "monotonic")
            start = builder.add(field("scratch"), builder.mul(worker, field("scratch_size")))
            regions = [
                builder.inttoptr(builder.add(start, field(f"{name}_at")), context.get_value_type(kind))
                for name, kind in zip(record.regions, pointers, strict=True)
            ]
            return context.make_tuple(builder, returned, regions)

        return returned(call, zero), build

    return workplace


@inlined
def numbers_at(address: int, index: int) -> v.Pointer:
    """Return a pointer to the integers at an address, from an index on."""
    return v.at(v.pointer(address, np.int64(0)), index)


@inlined
def doubles_at(address: int, index: int) -> v.Pointer:
    return v.at(v.pointer(address, 0.0), index)


@inlined
def flags_at(address: int, index: int) -> v.Pointer:
    return v.at(v.pointer(address, np.uint8(0)), index)


@inlined
def read_number(address: int, index: int) -> int:
    return v.pointer(address, np.int64(0))[index]


@inlined
def read_double(address: int, index: int) -> float:
    return v.pointer(address, 0.0)[index]


@inlined
def read_flag(address: int, index: int) -> int:
    return v.pointer(address, np.uint8(0))[index]


@inlined
def store_four(
    memory: v.Pointer, index: int, step: int, v0: v.Vector, v1: v.Vector, v2: v.Vector, v3: v.Vector
) -> None:
    """Write four vectors, `step` numbers apart, from an index on."""
    v.store(memory, index, v0)
    v.store(memory, index + step, v1)
    v.store(memory, index + 2 * step, v2)
    v.store(memory, index + 3 * step, v3)


@inlined
def clear(memory: v.Pointer, count: int, zero: Any) -> None:
    """Set `count` numbers, rounded up to complete vectors, to 0."""
    for start in range(0, count, v.lanes_of(zero)):
        v.store(memory, start, v.full(0, zero))


@inlined
def load_part(row: v.Pointer, c: int, size: int, zero: Any) -> v.Vector:
    """Load a vector of a row's numbers from c on, with 0 after the last number."""
    if c + v.lanes_of(zero) <= size:
        return v.load(row, c)
    return v.where(v.lane_numbers(zero) < v.full(size - c, zero), v.gather(row, c, 1, size - c), v.full(0, zero))


@inlined
def copy(source: v.Pointer, into: v.Pointer, count: int, zero: Any) -> None:
    lanes = v.lanes_of(zero)
    vectors_end = count - count % lanes
    for i in range(0, vectors_end, lanes):
        v.store(into, i, v.load(source, i))
    for i in range(vectors_end, count):
        into[i] = source[i]


@inlined
def copy_vectors(source: v.Pointer, into: v.Pointer, count: int, zero: Any) -> None:
    """Copy `count` numbers, a multiple of the lanes."""
    for i in range(0, count, v.lanes_of(zero)):
        v.store(into, i, v.load(source, i))
