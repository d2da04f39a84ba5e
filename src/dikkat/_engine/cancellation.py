"""The end of work that nobody waits for any more: long computations ask between their parts whether to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("stopping", default=None)


class StoppedError(Exception):
    """The computation was stopped, since nobody waits for its result."""


@contextmanager
def stopping(unwanted: Callable[[], bool]) -> Iterator[None]:
    """A context in which, on this thread, long computations end early once nobody waits for them.

    Args:
        unwanted: Called several times a second, between two parts of the work; it must be quick.

    Raises:
        StoppedError: From within the work, once `unwanted` has said yes.

    Example:
        >>> with stopping(lambda: True):
        ...     look()
        Traceback (most recent call last):
            ...
        dikkat._engine.cancellation.StoppedError
    """
    before = _unwanted.set(unwanted)
    try:
        yield
    finally:
        _unwanted.reset(before)


def check() -> None:
    """End the work if nobody waits for it any more: called between its parts."""
    unwanted = _unwanted.get()
    if unwanted is not None and unwanted():
        raise StoppedError
