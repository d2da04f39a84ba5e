"""Atomic writing of files, and strict reading of files from untrusted sources."""

import errno
import json
import math
import os
import secrets
import stat
from pathlib import Path
from typing import Any, NoReturn

from dikkat.errors import InputError

__all__ = ["check_replaceable", "flush_folder", "parse_json", "publish", "read_regular", "write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed. A failure (disk full,
    interrupt) leaves an existing file as it was and no temporary file. The new file keeps the old file's permissions.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_whole(folder / "note.txt", "déjà vu")
        >>> (folder / "note.txt").read_text(encoding="utf-8")
        'déjà vu'
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    if not isinstance(content, bytes):
        raise TypeError(f"data: got {type(data).__name__}; expected bytes or str")
    target = Path(path).resolve()
    mode = check_replaceable(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        publish(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # the caller's path, not the temporary one
        raise


def publish(temporary: Path, path: Path) -> None:
    """Rename a flushed file to `path` in one step that survives a power cut."""
    os.replace(temporary, path)  # noqa: PTH105  (tests patch this function)
    flush_folder(path.parent)


def check_replaceable(path: str | os.PathLike[str]) -> int | None:
    """Return the permissions of a file to replace (None: a new file), or raise if `write_whole` could not write it."""
    target = Path(path).resolve()
    if target.parent.is_dir() and not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, f"{str(target)!r} cannot be written: its folder is read-only")
    try:
        status = Path(path).stat()  # not the link's target: /dev/stdout may point to a pipe, whose name is no path
    except FileNotFoundError:
        if target.parent.is_dir():
            return None
        message = f"the folder {str(target.parent)!r} does not exist; create it before writing {target.name!r}"
        raise FileNotFoundError(errno.ENOENT, message) from None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, f"{str(target)!r} is a folder; give the name of a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: got a device or a pipe, which cannot be replaced; expected the name of a file")
    return stat.S_IMODE(status.st_mode)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, if the system can flush a folder."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network and user-space file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def read_regular(path: str | os.PathLike[str], *, most: int, first: int | None = None) -> bytes:
    """Return the bytes of an untrusted file of at most `most` bytes; a pipe or device, which may never end, raises.

    Example:
        >>> read_regular(os.devnull, most=10)
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: /dev/null: not a regular file (a folder, a pipe or a device). Put a file in its place
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: not a regular file (a folder, a pipe or a device). Put a file in its place")
        if status.st_size > most:
            raise InputError(f"{path}: got {status.st_size:,} bytes; expected at most {most:,}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(status.st_size + 1 if first is None else first)
    finally:
        os.close(descriptor)
    if first is None and len(data) != status.st_size:
        raise InputError(f"{path}: got {len(data):,} bytes; expected {status.st_size:,}, the size of the file")
    return data


def parse_json(data: bytes) -> Any:
    """Parse untrusted JSON strictly: UTF-8, no repeated key, no NaN or infinity, no excessive nesting.

    Example:
        >>> parse_json(b'{"seed": 1, "seed": 2}')
        Traceback (most recent call last):
            ...
        ValueError: the key 'seed' is given twice
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r} is given twice")
        values[key] = value
    return values


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text[:40]} is larger than any number in double precision")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not allowed in JSON; expected a finite number")
