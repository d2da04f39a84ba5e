"""The command line, run in the process of a test, and what several tests look at or have made."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dikkat.cli import main
from dikkat.storage.locks import locked

Result = tuple[int, str, str]
Run = Callable[..., Result]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str) -> Run:
    """What runs `dikkat`, with arguments behind the first ones; returns (status, standard output, standard error)."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["dikkat", *first, *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        status = stopped.value.code or 0
        assert isinstance(status, int)
        return status, captured.out, captured.err

    return run


@contextmanager
def once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that test processes side by side share, and whether its content is still to be made."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock", wait=True):
        yield folder, not (folder / "made").exists()
        (folder / "made").touch()


def run_before(patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[..., object]) -> None:
    """Do something before each call of a function or method, which gets the same arguments."""
    inner = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        action(*arguments, **named)
        return inner(*arguments, **named)

    patch.setattr(owner, name, call)


def made(result: Result) -> tuple[str, str]:
    """Standard output and error of a command that did what it should."""
    status, out, err = result
    assert status == 0, err
    return out, err


def refused(result: Result, message: str) -> None:
    """A command that wrote nothing, but for one line of why."""
    status, out, err = result
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("dikkat: ")
    assert message in err
