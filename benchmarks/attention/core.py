"""Measure the import time: `python -m benchmarks.attention.core`."""

import subprocess
import sys
from typing import Any

from benchmarks.kit.processes import environment
from benchmarks.kit.report import spread, write

IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(names: str) -> float:
    """Return the seconds that a new process needs to import packages."""
    command_line = [sys.executable, "-c", IMPORT.format(names)]
    return float(subprocess.run(command_line, check=True, capture_output=True, text=True, env=environment()).stdout)


def import_times(runs: int = 9) -> dict[str, Any]:
    """Measure the imports in turn, without the first turn, which fills caches."""
    pairs = [(seconds("torch"), seconds("torch, dikkat")) for _ in range(runs + 1)][1:]
    torchs, ours = zip(*pairs, strict=True)
    beyond = [dikkat_seconds - torch_seconds for torch_seconds, dikkat_seconds in pairs]
    return {"torch": spread(list(torchs)), "dikkat": spread(list(ours)), "beyond torch": spread(beyond)}


if __name__ == "__main__":
    print(write("core", {"import seconds": import_times()}).read_text())
