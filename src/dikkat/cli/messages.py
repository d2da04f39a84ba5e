"""Errors, warnings and hints of the commands on standard error, each as one line."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_rewrite: ContextVar[Callable[[str], str]] = ContextVar("rewrite", default=str)


@contextmanager
def rewriting_warnings(rewrite: Callable[[str], str]) -> Iterator[None]:
    """Apply `rewrite` to the text of each warning in the context."""
    token = _rewrite.set(rewrite)
    try:
        yield
    finally:
        _rewrite.reset(token)


def printable(text: str) -> str:
    """Replace control characters by their codes, ⟨1B⟩, so that no text controls the terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda letter: f"⟨{ord(letter[0]):X}⟩", text)


def complain(message: str) -> None:
    """Print an error or a warning as one line."""
    print("dikkat: " + printable(" ".join(message.split())), file=sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without its source line, as `warnings.showwarning`."""
    complain(_rewrite.get()(str(message)))


def suggest(step: str) -> None:
    """Print the next step on a terminal."""
    if sys.stderr.isatty():
        print(f"next: {printable(step)}", file=sys.stderr)


def model_contents(corrections: int) -> str:
    """Return the contents of a page with a model and its stored corrections."""
    return "the model" + (f" and the texts of {corrections:,} corrections" if corrections else "")


def in_browser(page: Path) -> str:
    """Return the advice to open a page."""
    return f"open {page.resolve().as_uri()} in a browser"
