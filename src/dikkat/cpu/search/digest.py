"""Fingerprints of tensors at the speed at which memory is read: by their bits, so that no write goes unnoticed.

PyTorch counts writes to a tensor, but not those of fused optimisers and through `.data`. A change of one number always
changes the fingerprint; one of several leaves it alike with a probability of about 2⁻³², if nobody means it to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine.compile import Kernel
from dikkat.cpu.engine.memory import workplace_of
from dikkat.cpu.engine.record import Call, Record
from dikkat.cpu.engine.vectors import I32, I64, claim, pointer

_CALL = Record(integers="spots sizes found", integer_regions="hashes")
_workplace = workplace_of(_CALL)
_PIECE = 1 << 20  # bytes of a task
_ALONE = 1 << 19  # bytes in all up to which one thread is faster than several that have to be woken
_LANES, _VECTORS = 16, 4
_BLOCK = 4 * _LANES * _VECTORS
_FACTOR = 0x9E3779B1  # odd: so each bit of each number counts
# Without a turn, high bits would reach none but higher ones, and all signs changed at once could add up to nothing.
_TURN = 13


@intrinsic
def _mix(typingctx: Any, data: Any, blocks: Any, hashes: Any) -> Any:
    """A hash of each of 64 columns of 32-bit numbers: times `_FACTOR`, plus the next, turned. At least one row."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(I32, _LANES)
        start, blocks, into = args
        data = builder.inttoptr(start, vector.as_pointer())
        into = builder.bitcast(into, vector.as_pointer())
        before, loop = builder.block, builder.append_basic_block("mix")
        after = builder.append_basic_block("mix.end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(I64)
        k.add_incoming(I64(0), before)
        sums = [builder.phi(vector) for _ in range(_VECTORS)]
        factor, turn, rest = (ir.Constant(vector, [n] * _LANES) for n in (_FACTOR, _TURN, 32 - _TURN))
        first = builder.mul(k, I64(_VECTORS))
        mixed = []
        for index, was in enumerate(sums):
            was.add_incoming(ir.Constant(vector, [index + 1] * _LANES), before)
            read = builder.load(builder.gep(data, [builder.add(first, I64(index))]), align=1)
            met = builder.add(builder.mul(was, factor), read)
            mixed.append(builder.or_(builder.shl(met, turn), builder.lshr(met, rest)))
        for was, value in zip(sums, mixed, strict=True):
            was.add_incoming(value, loop)
        following = builder.add(k, I64(1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, blocks), loop, after)
        builder.position_at_end(after)
        for index, value in enumerate(mixed):
            builder.store(value, builder.gep(into, [I64(index)]), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, hashes), build


@Kernel
def _digest(zero: Any) -> Any:
    """One number for each piece."""
    layout, byte, factor = _CALL.layout(__name__), np.uint8(0), np.uint64(0x9E3779B97F4A7C15)

    def digest(record: Any) -> None:
        call = carray(record, 1, layout)[0]
        spots, sizes = pointer(call.spots, np.int64(0)), pointer(call.sizes, np.int64(0))
        found = pointer(call.found, np.uint64(0))
        hashes = _workplace(call, zero).hashes
        while True:
            task = claim(call.counters)
            if task >= call.tasks:
                return
            place, size = spots[task], sizes[task]
            blocks, value = size // _BLOCK, np.uint64(size)
            if blocks > 0:
                _mix(place, blocks, hashes)
                for k in range(_BLOCK // 8):
                    value = value * factor + np.uint64(hashes[k])
            rest = pointer(place, byte)
            for k in range(blocks * _BLOCK, size):
                value = value * factor + np.uint64(rest[k])
            found[task] = value

    return digest


class Digest:
    """Fingerprints of the bits of tensors on the CPU, of any dtype, to be taken again and again.

    Args:
        tensors: Which; each must lie where it lay, with the shape that it had, when a fingerprint is taken.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._apart = tensors, not all(tensor.is_contiguous() for tensor in tensors)
        if self._apart:
            return
        self._call = call = Call(_CALL, torch.float32)
        spots, sizes = [], []
        for tensor in tensors:
            place, size = addresses.address("a weight", tensor, tensor.dtype), tensor.nbytes
            starts = range(0, max(size, 1), _PIECE)
            spots += [place + start for start in starts]
            sizes += [min(_PIECE, size - start) for start in starts]
        call.point("spots", torch.tensor(spots, dtype=torch.int64, device="cpu"))
        call.point("sizes", torch.tensor(sizes, dtype=torch.int64, device="cpu"))
        call.lay_out(hashes=_BLOCK // 8)
        call.alone = sum(sizes) <= _ALONE
        self._pieces = len(spots)

    def taken(self) -> bytes:
        """The fingerprints as the bits are now."""
        if self._apart:
            return Digest([tensor.detach().contiguous() for tensor in self._tensors]).taken()
        call = self._call.again()  # so that several threads can take it at once
        found = call.new("found", self._pieces)
        call.run(_digest, self._pieces)
        return found.numpy().tobytes()
