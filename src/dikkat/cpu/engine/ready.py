"""A call that is repeated with other tensors of the same shapes: its record is copied as a whole."""

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine import threads
from dikkat.cpu.engine.record import NUMPY, Call


class Ready:
    """A kernel's calls of one signature: only the addresses of operands and outputs are new.

    Args:
        call: Filled, but for these addresses; its regions are laid out.
        kernel: A `compile.Kernel`.
        tasks: How many tasks there are to claim.
        operands: The names of the fields with the operands' addresses, as a call gives them.
        outputs: The shape of each output, by its field's name.
    """

    def __init__(
        self, call: Call, kernel: Callable[..., Any], tasks: int, operands: tuple[str, ...],
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
        """The outputs; None where an operand's memory is not laid out as the kernel reads it.

        Args:
            operands: In the order of their names, on the CPU, plain and of the types and shapes that the call has.
        """
        call, numbers, made = self._call, self._numbers.copy(), []
        for at, operand in zip(self._operands, operands, strict=True):
            if operand is not None:
                found = addresses.of_plain(operand)
                if found is None:
                    return None
                numbers[at] = found
        for at, shape, like in self._outputs:
            output, numbers[at] = addresses.made_as(like, shape)
            made.append(output)
        workers = 1 if call.alone else torch.get_num_threads()
        _room, numbers[self._scratch] = call.room(workers if self._tasks > 1 else 1)  # kept until the kernel is done
        memory = call.record.memory.from_buffer_copy(self._memory)
        address = ctypes.addressof(memory)
        numbers[self._counters] = address + call.record.counters
        self._front.pack_into(memory, 0, *numbers)
        threads.run(self._kernel, address, self._tasks, workers)
        return made
