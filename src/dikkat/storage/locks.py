"""One process at a time; the system releases a lock when its process ends, however it ends."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class LockedError(Exception):
    """Another process holds the lock; the message names it, as far as that is known."""


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    # Not in the lock's file: some systems let nobody read a locked file, and older versions of filelock empty it.
    holder = path.with_name(f"{path.name}.holder")
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        name = ""
        with suppress(OSError, ValueError):
            name = holder.read_text(encoding="utf-8").strip()
        raise LockedError(name or "another process") from None
    try:
        if not wait:
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()
