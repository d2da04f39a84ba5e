"""The observers of a thread's attention calls; none unless something is being recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dikkat._core.problem import Problem, Result


class Observer(Protocol):
    """Receives every attention call of a thread."""

    def compute(self, name: str, problem: Problem) -> Result | None:
        """Run the call and return the result if recording needs another computation; else return None."""

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Record one call, or the calls of packed sequences."""

    def observe_output(self, output: Tensor) -> None:
        """Record the output (..., n, d_v) of a call."""

    def observe_weights(self, weights: Tensor) -> None:
        """Record the weights (..., n, m), before dropout, of a call that computes all of them anyway."""


class _Thread(threading.local):
    def __init__(self) -> None:  # torch.compile cannot set an attribute that only the class has
        self.observers: tuple[Observer, ...] = ()


_thread = _Thread()


def current_observers() -> tuple[Observer, ...]:
    """Return this thread's observers; none while PyTorch compiles."""
    return () if torch.compiler.is_compiling() else _thread.observers


@contextmanager
def observed_by(*observers: Observer) -> Iterator[None]:
    """Replace this thread's observers within the context; without observers, also disable `__torch_function__`."""
    before, _thread.observers = _thread.observers, observers
    try:
        with nullcontext() if observers else torch._C.DisableTorchFunction():
            yield
    finally:
        _thread.observers = before
