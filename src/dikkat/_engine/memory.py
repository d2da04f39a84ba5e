"""A worker's scratch, and rows of numbers in memory."""

from collections import namedtuple
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic

from dikkat._engine.compile import inlined
from dikkat._engine.internals import cgutils
from dikkat._engine.record import Record
from dikkat._engine.vectors import (
    I64,
    Pointer,
    Vector,
    at,
    full,
    gather,
    lane_numbers,
    lanes_of,
    load,
    pointer,
    store,
    where,
)

# In a kernel's signature: a call's record, and the pointers to a worker's regions, by name.
Call: TypeAlias = Any
Work: TypeAlias = Any


def workplace_of(record: Record) -> Any:
    """Make the compiled function that gives a worker its scratch: pointers to all regions, as a named tuple."""
    regions_type = namedtuple("Work", record.regions)  # type: ignore[misc]  # whose names are declared elsewhere

    @intrinsic
    def workplace(typingctx: Any, call: Any, zero: Any) -> Any:
        pointers = [types.CPointer(types.int64 if kind == torch.int64 else zero) for kind in record.regions.values()]
        returned = types.NamedTuple(pointers, regions_type)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            def field(name: str) -> Any:
                place = cgutils.get_record_member(builder, args[0], call.offset(name), I64)
                return builder.load(place, align=1)

            counter = builder.inttoptr(builder.add(field("counters"), I64(8)), I64.as_pointer())
            worker = builder.atomic_rmw("add", counter, I64(1), "monotonic")
            own = builder.add(field("scratch"), builder.mul(worker, field("scratch_size")))
            regions = [
                builder.inttoptr(builder.add(own, field(f"{name}_at")), context.get_value_type(kind))
                for name, kind in zip(record.regions, pointers, strict=True)
            ]
            return context.make_tuple(builder, returned, regions)

        return returned(call, zero), build

    return workplace


@inlined
def numbers_at(address: int, index: int) -> Pointer:
    """The whole numbers at an address, from an index on."""
    return at(pointer(address, np.int64(0)), index)


@inlined
def doubles_at(address: int, index: int) -> Pointer:
    """The float64 numbers at an address, from an index on."""
    return at(pointer(address, 0.0), index)


@inlined
def flags_at(address: int, index: int) -> Pointer:
    """The booleans at an address, from an index on."""
    return at(pointer(address, np.uint8(0)), index)


@inlined
def number_at(address: int, index: int) -> int:
    """The whole number at an index behind an address."""
    return pointer(address, np.int64(0))[index]


@inlined
def store_four(memory: Pointer, index: int, step: int, v0: Vector, v1: Vector, v2: Vector, v3: Vector) -> None:
    """Write four vectors, from an index on and `step` numbers apart."""
    store(memory, index, v0)
    store(memory, index + step, v1)
    store(memory, index + 2 * step, v2)
    store(memory, index + 3 * step, v3)


@inlined
def clear(memory: Pointer, count: int, zero: Any) -> None:
    """Set `count` numbers to 0, rounded up to whole vectors."""
    for place in range(0, count, lanes_of(zero)):
        store(memory, place, full(0, zero))


@inlined
def load_part(row: Pointer, c: int, size: int, zero: Any) -> Vector:
    """A vector of a row's numbers from c on, 0 beyond the last."""
    if c + lanes_of(zero) <= size:
        return load(row, c)
    return where(lane_numbers(zero) < full(size - c, zero), gather(row, c, 1, size - c), full(0, zero))


@inlined
def copy(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    """Copy `count` numbers."""
    lanes = lanes_of(zero)
    whole = count - count % lanes
    for place in range(0, whole, lanes):
        store(into, place, load(source, place))
    for place in range(whole, count):
        into[place] = source[place]


@inlined
def copy_vectors(source: Pointer, into: Pointer, count: int, zero: Any) -> None:
    """Copy `count` numbers, a multiple of the lanes."""
    for place in range(0, count, lanes_of(zero)):
        store(into, place, load(source, place))
