"""Files that appear whole or not at all."""

import errno
import os
import secrets
import stat
from pathlib import Path

__all__ = ["flush_folder", "write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    The bytes go to a new file in the same folder, are flushed to the disk, and take the name in one step. A failure on
    the way (disk full, interrupt) leaves an existing file as it was, and nothing beside it. A file that is replaced
    passes its permissions on.

    Args:
        path: the file to write. Its folder must exist. Where the path is a symbolic link, its target is replaced.
        data: the content; a `str` is encoded as UTF-8, its line ends as they are.

    Raises:
        FileNotFoundError: the folder does not exist.
        IsADirectoryError: `path` is a folder.
        TypeError: `data` is neither `bytes` nor `str`.
        ValueError: `path` is neither a regular file nor free (a device or a pipe), or `data` cannot be encoded.
        OSError: the system could not write.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_whole(folder / "note.txt", "déjà vu")
        >>> (folder / "note.txt").read_text(encoding="utf-8")
        'déjà vu'
    """
    content = _as_bytes(data)
    target = Path(path).resolve()
    mode = _replaceable_mode(target)
    aside = target.with_name(f".{secrets.token_hex(8)}.part")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            aside.chmod(mode)
        os.replace(aside, target)  # noqa: PTH105  (the step that tests break; one name for it)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(target.parent)


def _as_bytes(data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8")
    if isinstance(data, bytes):
        return data
    raise TypeError(f"data: got {type(data).__name__}; allowed are bytes and str")


def _replaceable_mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced, `None` where there is none yet."""
    try:
        status = target.stat()
    except FileNotFoundError:
        if target.parent.is_dir():
            return None
        message = f"the folder {str(target.parent)!r} does not exist; create it before writing {target.name!r}"
        raise FileNotFoundError(errno.ENOENT, message) from None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, f"{str(target)!r} is a folder; give the name of a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"path: {str(target)!r} is a device or a pipe, which cannot be replaced; give a file's name")
    return stat.S_IMODE(status.st_mode)


def flush_folder(folder: Path) -> None:
    """Make a new name in a folder last through a power cut, where the system can flush a folder.

    Args:
        folder: where the file or folder of the new name is.

    Raises:
        OSError: the system could not flush.
    """
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
