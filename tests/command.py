"""The command line, run in the process of a test."""

import io
import sys
from collections.abc import Callable

import pytest

from dikkat.cli import main

Run = Callable[..., tuple[int, str, str]]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str) -> Run:
    """What runs `dikkat`, with arguments behind the first ones; returns (status, standard output, standard error)."""

    def run(*arguments: object, stdin: bytes | None = None) -> tuple[int, str, str]:
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
