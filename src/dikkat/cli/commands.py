"""The application with all its commands; their help is written for someone who has never trained a translator."""

import sys
from io import TextIOWrapper
from typing import TextIO

from dikkat.cli import comparing, scoring, showing, training, translating
from dikkat.cli.app import app
from dikkat.translation.errors import InputError

__all__ = ["app", "comparing", "run", "scoring", "showing", "training", "translating"]


def run() -> None:
    """Run the application; errors that a user can mend become one line on standard error and exit status 2."""
    if not sys.stdout.isatty():
        _write_utf8(sys.stdout)
    try:
        app()
    except BrokenPipeError:  # the reader of our output has seen enough; nothing is to be said to it any more
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except InputError as error:
        _fail(str(error))


def _write_utf8(stream: TextIO) -> None:
    """Translations have letters that a narrow locale has not; files and pipes get them as they are."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8")


def _fail(message: str) -> None:
    print("dikkat: " + " ".join(message.split()), file=sys.stderr)
    raise SystemExit(2)
