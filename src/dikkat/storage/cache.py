"""The folder for what can be made or fetched again."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dikkat.storage.files import publish
from dikkat.storage.locks import locked

VARIABLE = "DIKKAT_CACHE"


def cache_folder(*names: str) -> Path:
    """A folder within the cache: that of DIKKAT_CACHE, or else the system's for dikkat. It is made if need be.

    Example:
        >>> import os, tempfile
        >>> os.environ["DIKKAT_CACHE"] = tempfile.mkdtemp()
        >>> cache_folder("corpora").is_dir()
        True
        >>> del os.environ["DIKKAT_CACHE"]
    """
    import platformdirs

    chosen = os.environ.get(VARIABLE)
    cache = Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("dikkat")
    folder = cache.joinpath(*names)
    with writing("the cache folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """A context in which an error of the system's also says what could not be written, where, and what helps.

    Example:
        >>> with writing("the list", Path("cache")):
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
            f"{what} cannot be written ({error.strerror or error}): free some space, or name a folder on another disk "
            f"with the environment variable {VARIABLE}"
        )
        raise OSError(error.errno, message, str(folder)) from error


@contextmanager
def made(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file of the cache to be written, called `.part` until it is on the disk; `what` is its name in errors."""
    part = path.with_name(f"{path.name}.part")
    try:
        with writing(what, path.parent):
            file = part.open("wb")
        try:
            yield file
            with writing(what, path.parent):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with suppress(OSError):  # where a write failed, which was said, closing tries it again
                file.close()
        with writing(what, path.parent):
            publish(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def waited_for(path: Path, what: str) -> Iterator[None]:
    """A lock for processes that make the same file `what`: one works, and the others wait."""
    with ExitStack() as stack:
        with writing(what, path.parent):
            stack.enter_context(locked(path, wait=True))
        yield
