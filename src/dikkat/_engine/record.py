"""Records, which launchers write and compiled kernels read.

A `Record` declares the fields of an operation's calls and the regions of a worker's scratch memory. A `CallRecord` has
the values of one call. This module derives all sizes, offsets and alignments: a kernel finds an address at
`call.<field>`, and a region `call.<region>_at` bytes after the start of its worker's scratch (`memory.workplace_of`).

With the environment variable `DIKKAT_FENCES=1`, every region, and every output of `CallRecord.new`, is between two
fences of a known pattern. They are checked after each call: a write outside a region raises an error that names it.
"""

import ctypes
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import addresses, threads

BYTES = 64
"""A vector's width: 16 numbers of float32 or 8 of float64, in one, two or four registers of the machine."""
FENCE = 4 * BYTES if os.environ.get("DIKKAT_FENCES") == "1" else 0
"""The bytes of a fence; 0 for no fences."""
_PATTERN = 0xA5
# The number of claimed tasks, and of started workers.
_COUNTERS = Struct("2q")
_WHOLE, _REAL = Struct("q"), Struct("d")
NUMPY: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
"""The dtypes for which kernels are compiled."""


def round_up(count: int, step: int) -> int:
    return -(-count // step) * step


class Record:
    """The fields of an operation's calls, and the regions of a worker's scratch, by kind; spaces separate names.

    Args:
        numbers: Addresses of numbers of the call's dtype; `doubles`, `integers` (int64), `flags` (bytes): of others.
        whole: Integers and flags.
        real: Real numbers.
        regions: Regions of scratch for numbers of the call's dtype; `integer_regions` are for int64 numbers.
    """

    def __init__(
        self, *, numbers: str = "", doubles: str = "", integers: str = "", flags: str = "", whole: str = "",
        real: str = "", regions: str = "", integer_regions: str = "",
    ) -> None:  # fmt: skip
        # The dtype of the numbers at an address or in a region; None for the call's dtype.
        self.kinds: dict[str, torch.dtype | None] = {
            **dict.fromkeys(numbers.split()),
            **dict.fromkeys(doubles.split(), torch.float64),
            **dict.fromkeys(integers.split(), torch.int64),
            **dict.fromkeys(flags.split(), torch.bool),
        }
        self.regions: dict[str, torch.dtype | None] = {
            **dict.fromkeys(regions.split()),
            **dict.fromkeys(integer_regions.split(), torch.int64),
        }
        offsets = [f"{name}_at" for name in self.regions]
        self._whole = ["counters", "tasks", "scratch", "scratch_size", *self.kinds, *whole.split(), *offsets]
        self._real = real.split()
        formats = [*((name, _WHOLE) for name in self._whole), *((name, _REAL) for name in self._real)]
        # By name: the functions that write and read a field, and its offset in bytes.
        self.accessors = {name: (f.pack_into, f.unpack_from, 8 * index) for index, (name, f) in enumerate(formats)}
        self.counters = 8 * (len(formats) + 1)  # after the field with the digest of the sources
        self.memory = ctypes.c_char * (self.counters + _COUNTERS.size)

    def index(self, name: str) -> int:
        """Return the index of a field; each has 8 bytes."""
        offset: int = self.accessors[name][2]
        return offset // 8

    @cache  # noqa: B019 - records are a module's constants
    def layout(self, module: str) -> np.dtype[Any]:
        """Return the record's dtype for a module's kernels, with a digest of the sources for the kernels' cache key."""
        integers = [(name, np.int64) for name in self._whole]
        digest = f"source_{_source_digest(module)}"
        return np.dtype([*integers, *((name, np.float64) for name in self._real), (digest, np.int64)])


# The packages with compiled code, and modules that compiled code shares with other code.
COMPILED = (
    "dikkat._core.implementations.numba", "dikkat._engine", "dikkat.translation.network.fused_loss",
    "dikkat.regression.moments", "dikkat._core.compiled", "dikkat.recurrent.fused",
    "dikkat.translation.decoding.compiled",
    "dikkat.translation.text.special_tokens",
)  # fmt: skip
_IMPORT = re.compile(rf"^ *from ((?:{'|'.join(COMPILED)})\b[.\w]*) import ([\w, ]*)", re.MULTILINE)


def sources(module: str) -> dict[str, bytes]:
    folder, texts, pending = Path(__file__).parents[1], {}, [module]
    while pending:
        name = pending.pop()
        path = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name in texts or not path.is_file():
            continue
        texts[name] = path.read_bytes()
        for package, names in _IMPORT.findall(texts[name].decode()):
            pending += [package, *(f"{package}.{imported}" for imported in re.findall(r"\w+", names))]
    return texts


@cache
def _source_digest(module: str) -> str:
    """Return a digest of a kernel's sources. Numba itself checks only the file that contains the kernel."""
    return hashlib.sha256(b"".join(text for _, text in sorted(sources(module).items()))).hexdigest()[:16]


class Fields:
    """The values of a record in memory that kernels read; a copy is one copy of memory."""

    __slots__ = ("_accessors", "memory", "record")

    def __init__(self, record: Record, values: Any = None) -> None:
        self.record, self._accessors = record, record.accessors
        self.memory = record.memory() if values is None else record.memory.from_buffer_copy(values)

    def copy(self) -> "Fields":
        return Fields(self.record, self.memory)

    def __setitem__(self, name: str, value: Any) -> None:
        write, _, offset = self._accessors[name]
        write(self.memory, offset, value)

    def __getitem__(self, name: str) -> Any:
        _, read, offset = self._accessors[name]
        return read(self.memory, offset)[0]

    def __ior__(self, values: Mapping[str, Any]) -> Self:
        for name, value in values.items():
            self[name] = value
        return self


class CallRecord:
    """The record of one call; it keeps the tensors at its addresses alive."""

    alone = False  # whether to run on the caller's thread only

    def __init__(self, record: Record, dtype: torch.dtype, variant: tuple[Any, ...] = ()) -> None:
        self.record, self.dtype, self.variant = record, dtype, variant
        self.lanes = BYTES // dtype.itemsize
        self.fields = Fields(record)
        self.kept: dict[str, Tensor] = {}
        self._fenced: dict[str, Tensor] = {}
        self._regions: tuple[dict[str, tuple[int, int]], int] = {}, 0

    def copy(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__ |= self.__dict__
        copied.fields, copied.kept, copied._fenced = self.fields.copy(), {}, {}
        return copied

    def kind(self, name: str) -> torch.dtype:
        return self.record.kinds[name] or self.dtype

    def point(self, name: str, tensor: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """Store a tensor's address in the record. The tensor's dtype is `kind`, or the declared one."""
        self.kept[name] = tensor
        self.fields[name] = addresses.address(name, tensor, kind or self.kind(name))
        return tensor

    def new(self, name: str, *shape: int) -> Tensor:
        """Allocate an output or buffer that the kernel fills."""
        kind = self.kind(name)
        if FENCE:
            size = torch.Size(shape).numel() * kind.itemsize
            buffer = self._fenced[name] = torch.full(
                (1, round_up(size, BYTES) + 2 * FENCE), _PATTERN, dtype=torch.uint8, device="cpu"
            )
            return self.point(name, buffer[0, FENCE : FENCE + size].view(kind).view(shape))
        tensor, self.fields[name] = addresses.new_tensor(shape, kind)
        self.kept[name] = tensor
        return tensor

    def zeros(self, name: str, *shape: int) -> Tensor:
        """Allocate an output or buffer that the kernel adds to."""
        if FENCE:
            return self.new(name, *shape).zero_()
        return self.point(name, torch.zeros(shape, dtype=self.kind(name), device="cpu"))

    def lay_out(self, **regions: int) -> None:
        """Set the size of each region, in numbers per worker, for this call and its copies."""
        self._regions = spans, _ = _layout(self.record, self.dtype, tuple(regions.items()), FENCE)
        self.fields |= {name: start for name, (start, _) in spans.items()}

    @property
    def room_size(self) -> int:
        return self._regions[1]

    def room(self, workers: int) -> tuple[Tensor, int]:
        return _room(workers, self.room_size, reuse=self.alone)

    def run(self, kernel: Callable[..., Any], tasks: int, **regions: int) -> None:
        if tasks:
            self._bind(kernel, tasks, regions)(0, tasks)

    def run_by_parts(self, kernel: Callable[..., Any], tasks: int, first: int, **regions: int) -> Iterator[int]:
        """Run a kernel in parts of about `threads.PART` seconds; the first part has `first` tasks."""
        return threads.by_parts(self._bind(kernel, tasks, regions), tasks, first)

    def _bind(self, kernel: Callable[..., Any], tasks: int, regions: dict[str, int]) -> Callable[[int, int], None]:
        """Return a function that runs the kernel on the tasks [begin, end)."""
        workers = 1 if self.alone else torch.get_num_threads()
        spans, size = self._regions
        if regions:
            spans, size = _layout(self.record, self.dtype, tuple(regions.items()), FENCE)
        room, scratch = _room(workers if tasks > 1 else 1, size, reuse=self.alone)
        fields = self.fields.copy()  # one call may run several kernels, each with its own tasks
        memory, counters = fields.memory, self.record.counters
        address = ctypes.addressof(memory)
        if regions:
            fields |= {name: start for name, (start, _) in spans.items()}
        fields["counters"], fields["scratch"], fields["scratch_size"] = address + counters, scratch, size
        compiled = kernel(NUMPY[self.dtype], *self.variant)

        def run(begin: int, end: int) -> None:  # keeps the scratch alive
            fields["tasks"] = end
            _COUNTERS.pack_into(memory, counters, begin, 0)
            threads.run_on_threads(compiled, address, end - begin, workers)
            if FENCE:
                for name, (start, length) in spans.items():
                    _check(f"scratch {name.removesuffix('_at')}", room, start, length)
                for name, fenced in self._fenced.items():
                    _check(name, fenced, FENCE, fenced.shape[1] - 2 * FENCE)

        return run


class Ready:
    """Repeated calls of one signature: each copies the record and replaces the addresses of operands and outputs."""

    def __init__(
        self, call: CallRecord, kernel: Callable[..., Any], tasks: int, operands: tuple[str, ...],
        outputs: dict[str, tuple[int, ...]],
    ) -> None:  # fmt: skip
        self._call, self._tasks, self._kernel = call, tasks, kernel(NUMPY[call.dtype], *call.variant)
        fields = call.fields.copy()
        fields["tasks"], fields["scratch_size"] = tasks, call.room_size
        index = call.record.index
        self._operands = [index(name) for name in operands]
        with torch.inference_mode(False):
            like = {kind: torch.empty(0, dtype=kind, device="cpu") for kind in map(call.kind, outputs)}
        self._outputs = [(index(name), shape, like[call.kind(name)]) for name, shape in outputs.items()]
        self._counters, self._scratch = index("counters"), index("scratch")
        # The fields up to the last one that changes are written at once.
        last = max(self._counters, self._scratch, *self._operands, *(field for field, *_ in self._outputs))
        self._front = Struct(f"{last + 1}q")
        self._numbers = list(self._front.unpack_from(fields.memory))
        self._memory = fields.memory

    def __call__(self, *operands: Tensor | None) -> list[Tensor] | None:
        call, numbers, outputs, copies = self._call, self._numbers.copy(), [], []
        for field, operand in zip(self._operands, operands, strict=True):
            if operand is not None:
                start = addresses.plain_address(operand)
                if start is None:  # kept until the kernel is done
                    copies.append(operand.resolve_neg().contiguous())
                    start = addresses.plain_address(copies[-1])
                    if start is None:
                        return None
                numbers[field] = start
        for field, shape, like in self._outputs:
            output, numbers[field] = addresses.new_tensor_like(like, shape)
            outputs.append(output)
        workers = 1 if call.alone else torch.get_num_threads()
        _room, numbers[self._scratch] = call.room(workers if self._tasks > 1 else 1)  # kept until the kernel is done
        memory = call.record.memory.from_buffer_copy(self._memory)
        address = ctypes.addressof(memory)
        numbers[self._counters] = address + call.record.counters
        self._front.pack_into(memory, 0, *numbers)
        if workers == 1 or self._tasks == 1:
            self._kernel(address)
        else:
            threads.run_on_threads(self._kernel, address, self._tasks, workers)
        return outputs


class _ThreadScratch(threading.local):
    """A thread's scratch for small calls, where an allocation would take half of the time."""

    size, room = -1, (torch.empty(0, device="cpu"), 0)


_SCRATCH, _MAX_SCRATCH = _ThreadScratch(), 2**18


def _room(workers: int, size: int, *, reuse: bool) -> tuple[Tensor, int]:
    """Return scratch for `workers` workers, and its address; reuse the thread's scratch if `reuse` and it is small."""
    if FENCE:
        room, address = addresses.new_tensor((workers, size), torch.uint8)
        return room.fill_(_PATTERN), address
    if not reuse or size > _MAX_SCRATCH:
        return addresses.new_tensor((workers, size), torch.uint8)
    if size > _SCRATCH.size:
        capacity = max(2 * size, BYTES)
        _SCRATCH.room = addresses.new_tensor((1, capacity), torch.uint8)  # one assignment: an interrupt cannot split it
        _SCRATCH.size = capacity  # last, so that the old size stays valid if the allocation fails
    return _SCRATCH.room


@lru_cache(1024)
def _layout(
    record: Record, dtype: torch.dtype, regions: tuple[tuple[str, int], ...], fence: int
) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the offset (at a vector's boundary) and bytes of each region by field name, and the total bytes."""
    spans, end = {}, 0
    for name, count in regions:
        size = count * (record.regions[name] or dtype).itemsize
        spans[f"{name}_at"] = end + fence, size
        end += fence + round_up(size, BYTES) + fence
    return spans, end


def _check(name: str, room: Tensor, start: int, size: int) -> None:
    """Raise RuntimeError if a fence of a region is damaged, for any worker."""
    end = start + round_up(size, BYTES)
    for side, fence in (("before", room[:, start - FENCE : start]), ("behind", room[:, end : end + FENCE])):
        if bool((fence != _PATTERN).any()):
            raise RuntimeError(
                f"{name}: a kernel wrote {side} its {size} bytes. This is a bug in dikkat; please report it"
            )
