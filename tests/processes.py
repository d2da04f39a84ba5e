"""Programs in processes of their own, which are forked off one that has imported PyTorch: that takes two seconds."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["torch"])


def python(
    code: str, *arguments: object, status: int = 0, timeout: float = 300.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program that has come to an end, with this status, where PyTorch is imported and nothing of dikkat."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("out", "err")]
        process = FRESH.Process(target=_run, args=(code, [*map(str, arguments)], os.environ | environment, streams))
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        said = [path.read_text(encoding="utf-8") for path in streams]
    assert process.exitcode == status, "\n".join(said)
    return subprocess.CompletedProcess([code, *arguments], status, *said)


def _run(code: str, arguments: list[str], environment: dict[str, str], streams: list[Path]) -> None:
    """As `python -c`."""
    for descriptor, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = ["", *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
