"""Atomic numbers for several workers: all that one wrote before it published, another sees."""

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dikkat.cpu.engine.internals import cgutils
from dikkat.cpu.engine.vectors import I64


@intrinsic
def seen(typingctx: Any, address: Any) -> Any:
    """The 64-bit integer at an address; afterwards all that was written before it was published is seen."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.intp(types.intp), build


@intrinsic
def publish(typingctx: Any, address: Any, number: Any) -> Any:
    """Write the 64-bit integer at an address, after all that was written before."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), build


@intrinsic
def added(typingctx: Any, address: Any, number: Any) -> Any:
    """Add to the 64-bit integer at an address; return the sum. All that those wrote who added before is seen then."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        spot = builder.inttoptr(args[0], I64.as_pointer())
        return builder.add(builder.atomic_rmw("add", spot, args[1], "acq_rel"), args[1])

    return types.intp(types.intp, types.intp), build


@intrinsic
def wait_a_little(typingctx: Any, longer: Any) -> Any:
    """A turn of a loop that waits: say so to the processor, or, for longer, let another thread have it."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), [])
            with builder.if_then(args[0], likely=False):
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(longer), build
