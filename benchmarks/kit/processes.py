"""Run modules of the benchmarks in separate processes, optionally with the Python of another environment."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command(module: str, *arguments: object, python: str | Path = sys.executable) -> list[str]:
    """Return the command that runs a module of `benchmarks`; use it with `environment`."""
    return [str(python), "-m", f"benchmarks.{module}", *map(str, arguments)]


def environment(source: Path = ROOT / "src", **variables: str) -> dict[str, str]:
    """Return environment variables for a process that imports these benchmarks, and dikkat from `source`.

    The working directory is not searched, as it may be another checkout with other benchmarks.
    """
    path = [str(source), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"} | variables
