"""What the command line says on standard error: errors and warnings in its own words, each as one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_wording: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)


@contextmanager
def worded(words: Callable[[str], str]) -> Iterator[None]:
    """Within, warnings are shown in a command's own words: options in place of arguments, for instance."""
    before = _wording.set(words)
    try:
        yield
    finally:
        _wording.reset(before)


def complain(message: str) -> None:
    """One line, whatever white space is in the message."""
    print("dikkat: " + " ".join(message.split()), file=sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning without its place in the code, which is no use to a user: what `warnings` calls."""
    complain(_wording.get()(str(message)))
