"""Work that nobody waits for any more: long computations ask between their parts whether to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asked: ContextVar[Callable[[], bool] | None] = ContextVar("stopping", default=None)


class StoppedError(Exception):
    """What was being computed is not wanted any more."""


@contextmanager
def stopping(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Within, on this thread, a search and other long computations end early once nobody wants them.

    Args:
        unwanted: Asked several times a second, between two parts of the work; it must be quick.

    Raises:
        StoppedError: From within the work, once `unwanted` has said yes.

    Example:
        >>> with stopping(lambda: True):
        ...     look()
        Traceback (most recent call last):
            ...
        dikkat.stopping.StoppedError
    """
    before = _asked.set(unwanted)
    try:
        yield
    finally:
        _asked.reset(before)


def look() -> None:
    """End the work if it is not wanted any more: called between its parts."""
    unwanted = _asked.get()
    if unwanted is not None and unwanted():
        raise StoppedError
