"""The cache folder, for files that can be computed or downloaded again."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dikkat.storage.files import publish
from dikkat.storage.locks import locked

CACHE_VARIABLE = "DIKKAT_CACHE"


def cache_folder(*names: str) -> Path:
    """Return a folder in the cache (DIKKAT_CACHE, else the system's cache folder for dikkat), created if missing.

    Example:
        >>> import os, tempfile
        >>> os.environ["DIKKAT_CACHE"] = tempfile.mkdtemp()
        >>> cache_folder("corpora").is_dir()
        True
        >>> del os.environ["DIKKAT_CACHE"]
    """
    import platformdirs

    chosen = os.environ.get(CACHE_VARIABLE)
    cache = Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("dikkat")
    folder = cache.joinpath(*names)
    with explaining_write_errors("the cache folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def explaining_write_errors(label: str, folder: Path) -> Iterator[None]:
    """Add to an `OSError` the name of the file (`label`), its folder and a remedy.

    Example:
        >>> with explaining_write_errors("the list", Path("cache")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
            ...
        OSError: [Errno 28] the list cannot be written (No space left on device): free some space, or name a folder \
on another disk with the environment variable DIKKAT_CACHE: 'cache'
    """
    try:
        yield
    except OSError as error:
        message = (
            f"{label} cannot be written ({error.strerror or error}): free some space, or name a folder on another disk "
            f"with the environment variable {CACHE_VARIABLE}"
        )
        raise OSError(error.errno, message, str(folder)) from error


@contextmanager
def create_file(path: Path, label: str) -> Iterator[BinaryIO]:
    """Yield a new file of the cache, named `.part` until it is on the disk; `label` is its name in errors."""
    part_path = path.with_name(f"{path.name}.part")
    try:
        with explaining_write_errors(label, path.parent):
            file = part_path.open("wb")
        try:
            yield file
            with explaining_write_errors(label, path.parent):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with suppress(OSError):  # close() retries a failed write; that error was raised already
                file.close()
        with explaining_write_errors(label, path.parent):
            publish(part_path, path)
    finally:
        part_path.unlink(missing_ok=True)


@contextmanager
def hold_lock(path: Path, label: str) -> Iterator[None]:
    """Hold the lock of the file `label` (wait for it first), so that only one process writes the file."""
    with ExitStack() as stack:
        with explaining_write_errors(label, path.parent):
            stack.enter_context(locked(path, wait=True))
        yield
