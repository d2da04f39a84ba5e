"""Errors and warnings on standard error, in the command line's own words, each as one line."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_wording: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)


@contextmanager
def worded(words: Callable[[str], str]) -> Iterator[None]:
    """Within the context, warnings are shown in a command's words: options in place of arguments, for instance."""
    before = _wording.set(words)
    try:
        yield
    finally:
        _wording.reset(before)


def printable(text: str) -> str:
    """A text with its control characters, which a terminal would obey, as their numbers: ⟨1B⟩."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda letter: f"⟨{ord(letter[0]):X}⟩", text)


def complain(message: str) -> None:
    """Print a message as one line."""
    print("dikkat: " + printable(" ".join(message.split())), file=sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without its line of code: the function that `warnings` calls."""
    complain(_wording.get()(str(message)))


def suggest(step: str) -> None:
    """Print what may be done next, where somebody reads it: on a terminal."""
    if sys.stderr.isatty():
        print(f"next: {printable(step)}", file=sys.stderr)


def in_browser(page: Path) -> str:
    """The advice to open a page."""
    return f"open {page.resolve().as_uri()} in a browser"
