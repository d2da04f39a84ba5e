"""Run the application and turn user errors into one line and exit status 2."""

import difflib
import sys
from io import StringIO, TextIOWrapper
from typing import Any

from dikkat.cli.app import InterruptedCommand, UsageError, app
from dikkat.cli.messages import complain
from dikkat.errors import InputError


def run_application() -> None:
    """Run the application; user errors print one line on standard error and exit with status 2."""
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # in any locale
    try:
        status = app(prog_name=app.info.name, standalone_mode=False) or 0
        sys.stdout.flush()  # while an error can still be reported
        raise SystemExit(status)
    except UsageError as error:
        _fail(_describe_usage_error(error))
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


def _describe_usage_error(error: Any) -> str:
    command = error.ctx.command_path if error.ctx else app.info.name
    if type(error).__name__ == "NoSuchOption":
        problem = f"unknown option: {error.option_name}{_suggest_option(error)}"
    else:
        problem = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's prefix
        problem = problem[:1].lower() + problem[1:]
    return f"{problem}{'' if problem.endswith('?') else '.'} See {command} --help"


def _suggest_option(error: Any) -> str:
    """Return a question with the most similar option, compared without dashes; else an empty string."""
    command = error.ctx.command
    known = {
        name.lstrip("-"): name
        for option in command.get_params(error.ctx)
        for name in (*option.opts, *option.secondary_opts)
    }
    similar = difflib.get_close_matches(error.option_name.lstrip("-"), known, n=1, cutoff=0.7)
    return f"; did you mean {known[similar[0]]}?" if similar else ""


def _fail(message: str) -> None:
    complain(message)
    raise SystemExit(2)
