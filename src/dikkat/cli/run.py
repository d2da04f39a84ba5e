"""Running the application; the help of its commands is written for someone who has never used what they do."""

import difflib
import sys
from io import StringIO, TextIOWrapper
from typing import Any

import typer

from dikkat.cli.app import InterruptedCommand, app
from dikkat.cli.messages import complain
from dikkat.errors import InputError

_UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of the copy of it that newer versions of typer have


def run_application() -> None:
    """Run the application; errors that a user can mend become one line on standard error and exit status 2."""
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # which has letters that a narrow locale has not
    try:
        status = app(prog_name=app.info.name, standalone_mode=False) or 0
        sys.stdout.flush()  # while what the system says of it can still be told
        raise SystemExit(status)
    except _UsageError as error:
        _fail(_misuse(error))
    except InterruptedCommand:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        sys.stdout = StringIO()
        raise SystemExit(1) from None
    except OSError as error:
        name = error.filename
        try:
            sys.stdout.flush()
        except OSError:
            name, sys.stdout = "standard output", StringIO()
        _fail(f"{name}: {error.strerror}" if name and error.strerror else error.strerror or str(error))
    except InputError as error:
        _fail(str(error))


def _misuse(error: Any) -> str:
    """The fault of a command as it was written, and the command whose help says how to write it."""
    command = error.ctx.command_path if error.ctx else app.info.name
    if type(error).__name__ == "NoSuchOption":
        problem = f"no such option: {error.option_name}{_meant(error)}"
    else:
        problem = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's word
        problem = problem[:1].lower() + problem[1:]
    return f"{problem}{'' if problem.endswith('?') else '.'} See {command} --help"


def _meant(error: Any) -> str:
    """A question with the option of nearly this name. Their dashes would make any two look alike."""
    command = error.ctx.command
    known = {
        name.lstrip("-"): name
        for option in command.get_params(error.ctx)
        for name in (*option.opts, *option.secondary_opts)
    }
    near = difflib.get_close_matches(error.option_name.lstrip("-"), known, n=1, cutoff=0.7)
    return f"; did you mean {known[near[0]]}?" if near else ""


def _fail(message: str) -> None:
    complain(message)
    raise SystemExit(2)
