"""Cooperative cancellation: long computations check regularly whether their result is still needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("stopping", default=None)


class StoppedError(Exception):
    """The computation was cancelled."""


@contextmanager
def stopping(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Within this context, long computations of this thread stop as soon as `is_cancelled()` is true."""
    before = _is_cancelled.set(is_cancelled)
    try:
        yield
    finally:
        _is_cancelled.reset(before)


def check() -> None:
    """Raise `StoppedError` if the computation was cancelled."""
    is_cancelled = _is_cancelled.get()
    if is_cancelled is not None and is_cancelled():
        raise StoppedError
