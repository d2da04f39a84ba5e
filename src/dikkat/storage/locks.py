"""Locks between processes. The system releases a lock when its process ends, even by a crash."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class LockedError(Exception):
    """Another process holds the lock; the message names the process if it is known."""


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock. If another process holds it, wait, or with `wait=False` raise `LockedError`."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    # The holder's name has its own file: on some systems a locked file cannot be read, and old filelock empties it.
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
