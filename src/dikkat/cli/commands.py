"""Running the application; the help of its commands is written for someone who has never used what they do."""

import sys
from io import TextIOWrapper
from typing import TextIO

from dikkat.cli.app import app
from dikkat.errors import InputError


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
