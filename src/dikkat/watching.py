"""Who watches the calls of attention that a thread makes: nobody, unless something is recorded there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dikkat.problem import Problem, Result


class Watcher(Protocol):
    """Is told of every call of attention."""

    def runs(self, name: str, problem: Problem) -> Result | None:
        """The result of a call that the implementation of this name is to run, if it can be looked at on the way."""

    def saw(self, problem: Problem) -> None:
        """A call that was computed."""

    def saw_weights(self, weights: Tensor) -> None:
        """The weights (..., n, m) of a call that computes all of them anyway, before dropout."""


class _Thread(threading.local):
    watchers: tuple[Watcher, ...] = ()


_thread = _Thread()


def watchers() -> tuple[Watcher, ...]:
    """Those who watch this thread; nobody in what is being compiled."""
    return () if torch.compiler.is_compiling() else _thread.watchers


@contextmanager
def watched_by(*those: Watcher) -> Iterator[None]:
    """Let these, and nobody else, watch this thread."""
    before, _thread.watchers = _thread.watchers, those
    try:
        yield
    finally:
        _thread.watchers = before
