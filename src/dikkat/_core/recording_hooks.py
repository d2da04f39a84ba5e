"""The observer of a thread's attention calls; None unless a model is being recorded or changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dikkat._core.problem import Problem, Result


class Observer(Protocol):
    """Receives every attention call of a thread."""

    def run_call(self, name: str, problem: Problem, run: Callable[[Problem], Result]) -> Result:
        """Return the result of a call, by `run` of the implementation `name` or changed, and record the call."""

    def observe_calls(self, problems: Sequence[Problem], output: Tensor | None = None) -> None:
        """Record the calls of packed sequences, or a call over keys of several ranks, and their output."""

    def observe_weights(self, weights: Tensor) -> None:
        """Record the weights (..., n, m), before dropout, of a call that computes all of them anyway."""

    @property
    def changes(self) -> bool:
        """Whether the observer changes calls."""

    def as_heads(self) -> AbstractContextManager[None] | None:
        """Return a context in which the queries (B, H', g, d) of a call are one query each of H' · g heads.

        None if the observer needs repeated keys.
        """

    def as_one_call(self) -> AbstractContextManager[None]:
        """Return a context in which the calls are the steps of one call: they are changed, but not recorded."""


class _Thread(threading.local):
    def __init__(self) -> None:  # torch.compile cannot set an attribute that only the class has
        self.observer: Observer | None = None


_thread = _Thread()


def current_observer() -> Observer | None:
    """Return this thread's observer; None while PyTorch compiles."""
    return None if torch.compiler.is_compiling() else _thread.observer


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Replace this thread's observer within the context; without an observer, also disable `__torch_function__`."""
    before, _thread.observer = _thread.observer, observer
    try:
        with torch._C.DisableTorchFunction() if observer is None else nullcontext():
            yield
    finally:
        _thread.observer = before
