"""A memory that a recurrent layer steps over without gradients, as a search does."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cached_property
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor, nn

from dikkat import call
from dikkat.attention import Memory
from dikkat.cpu.recurrence.launch import Stepper
from dikkat.snapshot import Writes


class SharedStepper:
    """The stepper of a layer over a memory: made for the first step, and again once the cells have been written to.

    Args:
        layer: Its own parameters are the cells'.
        make: What makes a stepper of the layer as it is.
    """

    def __init__(self, layer: nn.Module, make: Callable[[], Stepper]) -> None:
        self.layer, self._make, self._lock = layer, make, Lock()
        self._made: tuple[Writes, Stepper] | None = None

    def get(self) -> Stepper:
        """The stepper, made by one of the threads that ask."""
        cells = cast(Iterable[Tensor], self.layer._parameters.values())
        with self._lock:
            if self._made is None or not self._made[0].none(cells):
                self._made = Writes(cells), self._make()
            return self._made[1]


class SteppedMemory(Memory):
    """A memory with what all steps over it share: weights in panels, exponentials of the keys.

    `select` copies nothing, since the steps take the rows as they are: `key`, `value`, `valid_lens` and `packed` of
    selected rows are made when they are first read. What is copied, stored or replaced by hand (`dataclasses.replace`)
    has all of them and no `stepper`.

    Attributes:
        batch: How many sequences are selected; 0 where there is no stepper.
    """

    batch: int = 0
    _whole: Memory
    _rows: Tensor | None
    _shared: SharedStepper
    _chosen: tuple[Stepper, Stepper] | None = None

    @classmethod
    def of(cls, whole: Memory, shared: SharedStepper, rows: Tensor | None = None) -> "SteppedMemory":
        """Some rows of a memory, or all of them."""
        made = object.__new__(cls)
        batch = len(whole.key) if rows is None else len(rows)
        vars(made).update(_whole=whole, _shared=shared, _rows=rows, batch=batch)
        vars(made).update(score=whole.score, seen=whole.seen, writes=whole.writes)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a plain memory."""
        return Memory, tuple(getattr(self, field.name) for field in fields(Memory))

    @property
    def layer(self) -> nn.Module:
        """The layer that made the memory."""
        return self._shared.layer

    @property
    def stepper(self) -> Stepper:
        """The stepper of the selected rows, made for the first step, since whole sequences need none."""
        whole = self._shared.get()
        if self._rows is None:
            return whole
        chosen = self._chosen
        if chosen is None or chosen[0] is not whole:
            chosen = vars(self)["_chosen"] = whole, whole.select(self._rows)
        return chosen[1]

    @cached_property
    def _selected(self) -> Memory:
        return self._whole if self._rows is None else self._whole.select(self._rows)

    @cached_property
    def key(self) -> Tensor:
        """The projected keys of the selected rows."""
        return self._selected.key

    @cached_property
    def value(self) -> Tensor:
        """The values of the selected rows."""
        return self._selected.value

    @cached_property
    def valid_lens(self) -> Tensor | None:
        """The lengths of the selected rows."""
        return self._selected.valid_lens

    @cached_property
    def packed(self) -> Tensor | None:
        """What an implementation keeps of the selected rows' keys."""
        return self._selected.packed

    def select(self, rows: Tensor) -> Memory:
        """Some of the sequences, in any order and number.

        Args:
            rows: (B',) integers, indices into the sequences selected here.

        Raises:
            TypeError: Rows that are not a tensor of integers.
            ValueError: Rows out of range.
        """
        if not self.batch:
            return super().select(rows)
        call.check_rows(rows, self.batch)
        return self.of(
            self._whole,
            self._shared,
            rows.to(torch.int64, copy=True) if self._rows is None else self._rows.index_select(0, rows),
        )
