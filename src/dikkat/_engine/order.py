"""Atomic integers for communication between workers: a reader sees everything written before `publish`."""

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dikkat._engine.internals import cgutils
from dikkat._engine.vectors import built, integer_at


@intrinsic
def seen(typingctx: Any, address: Any) -> Any:
    """Load the 64-bit integer at an address; everything written before it was published is then visible."""
    return types.intp(types.intp), built(
        lambda builder, address: builder.load_atomic(integer_at(builder, address), "acquire", 8)
    )


@intrinsic
def publish(typingctx: Any, address: Any, number: Any) -> Any:
    """Write the 64-bit integer at an address, after all earlier writes."""
    return types.void(types.intp, types.intp), built(
        lambda builder, address, number: builder.store_atomic(number, integer_at(builder, address), "release", 8)
    )


@intrinsic
def added(typingctx: Any, address: Any, number: Any) -> Any:
    """Add to the 64-bit integer at an address; return the sum. Writes before earlier additions are then visible."""

    def build(builder: Any, address: Any, number: Any) -> Any:
        return builder.add(builder.atomic_rmw("add", integer_at(builder, address), number, "acq_rel"), number)

    return types.intp(types.intp, types.intp), built(build)


@intrinsic
def wait_a_little(typingctx: Any, longer: Any) -> Any:
    """Run one iteration of a spin wait: a pause instruction, and after many iterations a yield to the scheduler."""

    def build(builder: Any, longer: Any) -> None:
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), [])
            with builder.if_then(longer, likely=False):
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.void(longer), built(build)
