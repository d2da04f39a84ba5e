"""Modules of the benchmarks in processes of their own, perhaps with the Python of another environment."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command(module: str, *arguments: object, python: str | Path = sys.executable) -> list[str]:
    """What runs a module, named from `benchmarks` on; `environment` says where it is found."""
    return [str(python), "-m", f"benchmarks.{module}", *map(str, arguments)]


def environment(source: Path = ROOT / "src", **variables: str) -> dict[str, str]:
    """This process's environment, in which the benchmarks are found, and dikkat in `source`.

    The folder that the process works in is not searched: it may be another checkout with benchmarks of its own.
    """
    path = [str(source), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"} | variables
