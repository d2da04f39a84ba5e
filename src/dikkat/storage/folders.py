"""Folders of files that appear whole or not at all, with the sums by which a reader knows each file again."""

import hashlib
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from dikkat.storage.files import flush_folder, write_whole

__all__ = [
    "SUMS", "check_free", "digest", "parse_sums", "recover", "remove_folder", "remove_leftovers", "set_aside",
    "write_folder",
]  # fmt: skip

SUMS = "SHA256SUMS"
"""The name of the file that `sha256sum --check` reads."""


def write_folder(folder: Path, content: Mapping[str, bytes], *, replace: bool = False) -> None:
    """Write a folder of files, and their sums in `SHA256SUMS`, whole or not at all.

    The files are written to a new folder beside it and flushed to the disk; then that takes the name. An old folder
    of that name is renamed before and removed behind; where the system stops in between, `recover` puts it back.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "new"
        >>> write_folder(folder, {"note.txt": b"hello"})
        >>> sorted(file.name for file in folder.iterdir())
        ['SHA256SUMS', 'note.txt']
    """
    sums = "".join(f"{digest(data)}  {name}\n" for name, data in content.items())
    part = _part(folder)
    try:
        part.mkdir()
        for name, data in {**content, SUMS: sums.encode()}.items():
            write_whole(part / name, data)
        if replace and folder.exists():
            _exchange(part, folder)
        else:
            part.rename(folder)
            flush_folder(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _exchange(part: Path, folder: Path) -> None:
    """Rename `part` to `folder`; the old folder is removed only after the new one has the name."""
    old = set_aside(folder)
    folder.rename(old)
    try:
        part.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    try:
        flush_folder(folder.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Finish what a stopped `write_folder` began: put the old folder back if no new one has its name, or remove it.

    For writers alone: between the two renames of one that is at work, readers find the old folder by `set_aside`.
    """
    old = set_aside(folder)
    if not old.is_dir():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(folder)


def check_free(folder: Path) -> None:
    """Check that a folder could be written: make and remove one beside it, and its parents if need be."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    trial = _part(folder)
    trial.mkdir()
    trial.rmdir()


def remove_folder(folder: Path) -> None:
    """Remove a folder, which is there whole or not at all whenever the removal is cut short."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    folder.rename(gone)
    shutil.rmtree(gone)


def remove_leftovers(folder: Path) -> None:
    """Remove from a folder what a killed process had not finished writing, or removing."""
    for entry in folder.glob(".*"):
        if entry.suffix in (".part", ".old"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def parse_sums(data: bytes) -> dict[str, str]:
    """The SHA-256 of each file by its name, from the content of `SHA256SUMS`."""
    lines = [line.split("  ", 1) for line in data.decode("ascii").splitlines()]
    sums = {name: value for value, name in lines}
    if len(sums) != len(lines):
        raise ValueError("a name is there twice")
    return sums


def _part(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")


def set_aside(folder: Path) -> Path:
    """The name of a folder while a new one takes its own."""
    return folder.with_name(f".{folder.name}.old")
