"""The records that launchers write and compiled kernels read, declared once.

A `Record` names the fields of an operation's calls and the regions of a worker's scratch memory; a `Call` is one record
while it is filled. Sizes, offsets and alignment are derived here and nowhere else: a kernel finds an address at
`call.<field>`, and a region at `call.<region>_at` bytes from where its worker's scratch begins (`memory.workplace_of`).

With the environment variable `DIKKAT_FENCES=1`, every region, and every output made by `Call.new`, lies between two
fences of a known pattern, which are checked after each call: a write outside is an error that names the region, and not
a corrupted heap.
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
"""Bytes of a fence; 0 for none."""
_PATTERN = 0xA5
# How many tasks are claimed, and how many workers have begun.
_COUNTERS = Struct("2q")
_WHOLE, _REAL = Struct("q"), Struct("d")
NUMPY: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
"""The types that kernels are compiled for."""


def round_up(count: int, step: int) -> int:
    return -(-count // step) * step


class Record:
    """The fields of an operation's calls, and the regions of a worker's scratch, by kind; names are split by spaces.

    Args:
        numbers: Addresses of numbers of the call's dtype; `doubles`, `integers` (int64) and `flags` (bytes) likewise.
        whole: Whole numbers and flags.
        real: Real numbers.
        regions: Regions of scratch that hold numbers of the call's type; `integer_regions` hold int64 numbers.
    """

    def __init__(
        self, *, numbers: str = "", doubles: str = "", integers: str = "", flags: str = "", whole: str = "",
        real: str = "", regions: str = "", integer_regions: str = "",
    ) -> None:  # fmt: skip
        # What lies behind an address or in a region; None for the type that the call computes in.
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
        places = [f"{name}_at" for name in self.regions]
        self._whole = ["counters", "tasks", "scratch", "scratch_size", *self.kinds, *whole.split(), *places]
        self._real = real.split()
        forms = [*((name, _WHOLE) for name in self._whole), *((name, _REAL) for name in self._real)]
        # By name: how a field is written and read, and where.
        self.places = {name: (form.pack_into, form.unpack_from, 8 * at) for at, (name, form) in enumerate(forms)}
        self.counters = 8 * (len(forms) + 1)  # behind the number that the sources are known by
        self.memory = ctypes.c_char * (self.counters + _COUNTERS.size)

    def place(self, name: str) -> int:
        """The number of fields, of 8 bytes each, before one."""
        at: int = self.places[name][2]
        return at // 8

    @cache  # noqa: B019 - records are a module's constants
    def layout(self, module: str) -> np.dtype[Any]:
        """The record as the kernels of a module read it: its type makes the sources part of a kernel's key on disk."""
        whole = [(name, np.int64) for name in self._whole]
        digest = f"source_{_source_digest(module)}"
        return np.dtype([*whole, *((name, np.float64) for name in self._real), (digest, np.int64)])


# Where compiled code is: packages, and modules that it shares with others.
COMPILED = (
    "dikkat._core.implementations.numba", "dikkat._engine", "dikkat.translation.network.fused_loss",
    "dikkat.regression.moments", "dikkat._core.compiled", "dikkat.recurrent.fused",
    "dikkat.translation.decoding.compiled",
    "dikkat.translation.text.special_tokens",
)  # fmt: skip
_IMPORT = re.compile(rf"^ *from ((?:{'|'.join(COMPILED)})\b[.\w]*) import ([\w, ]*)", re.MULTILINE)


def sources(module: str) -> dict[str, bytes]:
    """The sources of a module and of all compiled code that it imports, by name."""
    folder, texts, left = Path(__file__).parents[1], {}, [module]
    while left:
        name = left.pop()
        path = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name in texts or not path.is_file():
            continue
        texts[name] = path.read_bytes()
        for package, names in _IMPORT.findall(texts[name].decode()):
            left += [package, *(f"{package}.{own}" for own in re.findall(r"\w+", names))]
    return texts


@cache
def _source_digest(module: str) -> str:
    """A name for the state of a kernel's sources: Numba's own check sees only the file that the kernel is in."""
    return hashlib.sha256(b"".join(text for _, text in sorted(sources(module).items()))).hexdigest()[:16]


class Fields:
    """The values of a record, where a kernel reads them: a copy is one of memory."""

    __slots__ = ("_places", "memory", "record")

    def __init__(self, record: Record, values: Any = None) -> None:
        self.record, self._places = record, record.places
        self.memory = record.memory() if values is None else record.memory.from_buffer_copy(values)

    def copy(self) -> "Fields":
        return Fields(self.record, self.memory)

    def __setitem__(self, name: str, value: Any) -> None:
        write, _, at = self._places[name]
        write(self.memory, at, value)

    def __getitem__(self, name: str) -> Any:
        _, read, at = self._places[name]
        return read(self.memory, at)[0]

    def __ior__(self, values: Mapping[str, Any]) -> Self:
        for name, value in values.items():
            self[name] = value
        return self


class CallRecord:
    """One call's record while it is filled; it keeps alive the memory at its addresses."""

    alone = False

    def __init__(self, record: Record, dtype: torch.dtype, variant: tuple[Any, ...] = ()) -> None:
        self.record, self.dtype, self.variant = record, dtype, variant
        self.lanes = BYTES // dtype.itemsize
        self.fields = Fields(record)
        self.kept: dict[str, Tensor] = {}
        self._fenced: dict[str, Tensor] = {}
        self._regions: tuple[dict[str, tuple[int, int]], int] = {}, 0

    def copy(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        made.fields, made.kept, made._fenced = self.fields.copy(), {}, {}
        return made

    def kind(self, name: str) -> torch.dtype:
        """The dtype of the numbers behind an address."""
        return self.record.kinds[name] or self.dtype

    def point(self, name: str, tensor: Tensor, kind: torch.dtype | None = None) -> Tensor:
        """Put a tensor's address into the record. Its dtype is `kind`, or what is declared."""
        self.kept[name] = tensor
        self.fields[name] = addresses.address(name, tensor, kind or self.kind(name))
        return tensor

    def new(self, name: str, *shape: int) -> Tensor:
        """Allocate an output or buffer that the kernel fills."""
        kind = self.kind(name)
        if FENCE:
            size = torch.Size(shape).numel() * kind.itemsize
            room = self._fenced[name] = torch.full(
                (1, round_up(size, BYTES) + 2 * FENCE), _PATTERN, dtype=torch.uint8, device="cpu"
            )
            return self.point(name, room[0, FENCE : FENCE + size].view(kind).view(shape))
        made, self.fields[name] = addresses.new_tensor(shape, kind)
        self.kept[name] = made
        return made

    def zeros(self, name: str, *shape: int) -> Tensor:
        """Allocate an output or buffer that the kernel adds to."""
        if FENCE:
            return self.new(name, *shape).zero_()
        return self.point(name, torch.zeros(shape, dtype=self.kind(name), device="cpu"))

    def lay_out(self, **regions: int) -> None:
        """Set the size of each region, in numbers for each worker, for this call and its copies."""
        self._regions = places, _ = _layout(self.record, self.dtype, tuple(regions.items()), FENCE)
        self.fields |= {name: start for name, (start, _) in places.items()}

    @property
    def room_size(self) -> int:
        return self._regions[1]

    def room(self, workers: int) -> tuple[Tensor, int]:
        """Scratch for `workers` workers, and its address."""
        return _room(workers, self.room_size, kept=self.alone)

    def run(self, kernel: Callable[..., Any], tasks: int, **regions: int) -> None:
        if tasks:
            self._by(kernel, tasks, regions)(0, tasks)

    def run_by_parts(self, kernel: Callable[..., Any], tasks: int, first: int, **regions: int) -> Iterator[int]:
        """Run a kernel in parts of about `threads.PART` seconds, the first of `first` tasks."""
        return threads.by_parts(self._by(kernel, tasks, regions), tasks, first)

    def _by(self, kernel: Callable[..., Any], tasks: int, regions: dict[str, int]) -> Callable[[int, int], None]:
        """A function that runs the kernel on the tasks from one number to another."""
        number = 1 if self.alone else torch.get_num_threads()  # as many workers
        places, size = self._regions
        if regions:
            places, size = _layout(self.record, self.dtype, tuple(regions.items()), FENCE)
        room, where = _room(number if tasks > 1 else 1, size, kept=self.alone)
        fields = self.fields.copy()  # a call may have tasks of its own, and run several kernels
        memory, counters = fields.memory, self.record.counters
        address = ctypes.addressof(memory)
        if regions:
            fields |= {name: start for name, (start, _) in places.items()}
        fields["counters"], fields["scratch"], fields["scratch_size"] = address + counters, where, size
        compiled = kernel(NUMPY[self.dtype], *self.variant)

        def run(begin: int, end: int) -> None:  # keeps the room alive
            fields["tasks"] = end
            _COUNTERS.pack_into(memory, counters, begin, 0)
            threads.run_on_threads(compiled, address, end - begin, number)
            if FENCE:
                for name, (start, length) in places.items():
                    _check(f"scratch {name.removesuffix('_at')}", room, start, length)
                for name, fenced in self._fenced.items():
                    _check(name, fenced, FENCE, fenced.shape[1] - 2 * FENCE)

        return run


class Ready:
    """Repeated calls of one signature: the record is copied as a whole, with new addresses of operands and outputs."""

    def __init__(
        self, call: CallRecord, kernel: Callable[..., Any], tasks: int, operands: tuple[str, ...],
        outputs: dict[str, tuple[int, ...]],
    ) -> None:  # fmt: skip
        self._call, self._tasks, self._kernel = call, tasks, kernel(NUMPY[call.dtype], *call.variant)
        fields = call.fields.copy()
        fields["tasks"], fields["scratch_size"] = tasks, call.room_size
        place = call.record.place
        self._operands = [place(name) for name in operands]
        with torch.inference_mode(False):
            like = {kind: torch.empty(0, dtype=kind, device="cpu") for kind in map(call.kind, outputs)}
        self._outputs = [(place(name), shape, like[call.kind(name)]) for name, shape in outputs.items()]
        self._counters, self._scratch = place("counters"), place("scratch")
        # All that may change lies in front, and is written at once.
        last = max(self._counters, self._scratch, *self._operands, *(at for at, *_ in self._outputs))
        self._front = Struct(f"{last + 1}q")
        self._numbers = list(self._front.unpack_from(fields.memory))
        self._memory = fields.memory

    def __call__(self, *operands: Tensor | None) -> list[Tensor] | None:
        call, numbers, made, copies = self._call, self._numbers.copy(), [], []
        for at, operand in zip(self._operands, operands, strict=True):
            if operand is not None:
                place = addresses.plain_address(operand)
                if place is None:  # kept until the kernel is done
                    copies.append(operand.resolve_neg().contiguous())
                    place = addresses.plain_address(copies[-1])
                    if place is None:
                        return None
                numbers[at] = place
        for at, shape, like in self._outputs:
            output, numbers[at] = addresses.new_tensor_like(like, shape)
            made.append(output)
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
        return made


class _Kept(threading.local):
    """A thread's own scratch for small calls, in which an allocation would take half of the time."""

    size, room = -1, (torch.empty(0, device="cpu"), 0)


_KEPT, _LARGEST_KEPT = _Kept(), 2**18


def _room(workers: int, size: int, *, kept: bool) -> tuple[Tensor, int]:
    """Scratch memory for `workers` workers, and its address; the thread's own where `kept` and not too large."""
    if FENCE:
        room, address = addresses.new_tensor((workers, size), torch.uint8)
        return room.fill_(_PATTERN), address
    if not kept or size > _LARGEST_KEPT:
        return addresses.new_tensor((workers, size), torch.uint8)
    if size > _KEPT.size:
        more = max(2 * size, BYTES)
        _KEPT.room = addresses.new_tensor((1, more), torch.uint8)  # in one assignment: an interrupt must not split it
        _KEPT.size = more  # last, so that the old size still holds where the allocation fails
    return _KEPT.room


@lru_cache(1024)
def _layout(
    record: Record, dtype: torch.dtype, regions: tuple[tuple[str, int], ...], fence: int
) -> tuple[dict[str, tuple[int, int]], int]:
    """The offset of each region, at a vector's boundary, and its bytes, by its field's name; and the bytes in all."""
    places, end = {}, 0
    for name, count in regions:
        size = count * (record.regions[name] or dtype).itemsize
        places[f"{name}_at"] = end + fence, size
        end += fence + round_up(size, BYTES) + fence
    return places, end


def _check(name: str, room: Tensor, start: int, size: int) -> None:
    """Raise an error if a fence of a region is damaged, in any row of the room."""
    end = start + round_up(size, BYTES)
    for side, fence in (("before", room[:, start - FENCE : start]), ("behind", room[:, end : end + FENCE])):
        if bool((fence != _PATTERN).any()):
            raise RuntimeError(
                f"{name}: a kernel wrote {side} its {size} bytes; this is a bug of dikkat, please report it"
            )
