"""Measure the memory of this process.

Linux counts the peak of `getrusage` from before a process starts its own program, so that a child inherits its parent's
peak. The files of /proc have no such carry-over.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def process_status(field: str) -> int:
    """Return a field of /proc/self/status in bytes: "VmRSS" for the memory now, "VmHWM" for its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def reset_peak() -> None:
    """Let the peak start at the memory now, without imports; raise `OSError` if a container forbids it."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_growth(run: Callable[[], Any]) -> int:
    """Return by how many bytes the memory grows, at most, during a run."""
    reset_peak()
    before = process_status("VmRSS")
    run()
    return max(0, process_status("VmHWM") - before)
