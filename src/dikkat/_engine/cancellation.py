"""Cooperative cancellation: long computations check between their parts whether anybody still waits for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("stopping", default=None)


class StoppedError(Exception):
    """The computation was cancelled."""


@contextmanager
def stopping(unwanted: Callable[[], bool]) -> Iterator[None]:
    """A context in which long computations of this thread stop as soon as they are cancelled."""
    before = _unwanted.set(unwanted)
    try:
        yield
    finally:
        _unwanted.reset(before)


def check() -> None:
    """Raise `StoppedError` if the work was cancelled; called between its parts."""
    unwanted = _unwanted.get()
    if unwanted is not None and unwanted():
        raise StoppedError
