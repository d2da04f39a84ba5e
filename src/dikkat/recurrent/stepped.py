"""A memory that a recurrent layer steps over without gradients, as a search does."""

from collections.abc import Callable
from functools import cached_property
from threading import Lock

import torch
from torch import Tensor

from dikkat import call
from dikkat.attention import Memory
from dikkat.cpu.recurrence.launch import Stepper


class Once:
    """Makes a stepper when it is first asked for, by one of the threads that ask."""

    def __init__(self, make: Callable[[], Stepper]) -> None:
        self._make, self._lock = make, Lock()
        self._made: Stepper | None = None

    def __call__(self) -> Stepper:
        """The stepper, made by the first call."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


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
    _make: Once

    @classmethod
    def of(cls, whole: Memory, make: Once, rows: Tensor | None = None) -> "SteppedMemory":
        """Some rows of a memory, or all of them."""
        made = object.__new__(cls)
        batch = len(whole.key) if rows is None else len(rows)
        vars(made).update(_whole=whole, _make=make, _rows=rows, batch=batch)
        vars(made).update(score=whole.score, seen=whole.seen, stamp=whole.stamp, maker=whole.maker)
        return made

    @cached_property
    def stepper(self) -> Stepper:
        """The stepper, made for the first step, since whole sequences need none; its weights must not change."""
        whole = self._make()
        return whole if self._rows is None else whole.select(self._rows)

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
            self._make,
            rows.to(torch.int64, copy=True) if self._rows is None else self._rows.index_select(0, rows),
        )
