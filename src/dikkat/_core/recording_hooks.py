"""Observers of a thread's calls of attention; there are none unless something is being recorded."""

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
    """Is told of every call of attention."""

    def compute(self, name: str, problem: Problem) -> Result | None:
        """Runs the call itself if it can be recorded on the way, and returns the result; else None."""

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Take note of a call that was computed, or of the calls of packed sequences."""

    def observe_output(self, output: Tensor) -> None:
        """Take note of the output (..., n, d_v) of the call."""

    def observe_weights(self, weights: Tensor) -> None:
        """Take note of the weights (..., n, m), before dropout, of a call that computes all of them anyway."""


class _Thread(threading.local):
    def __init__(self) -> None:  # torch.compile cannot set an attribute that only the class has
        self.observers: tuple[Observer, ...] = ()


_thread = _Thread()


def current_observers() -> tuple[Observer, ...]:
    """This thread's observers; none while PyTorch compiles."""
    return () if torch.compiler.is_compiling() else _thread.observers


@contextmanager
def observed_by(*observers: Observer) -> Iterator[None]:
    """Replace this thread's observers by these for the duration of the context; without any, nobody follows tensors."""
    before, _thread.observers = _thread.observers, observers
    try:
        with nullcontext() if observers else torch._C.DisableTorchFunction():
            yield
    finally:
        _thread.observers = before
