"""Atomic writing of folders of files, with a SHA-256 checksum of each file."""

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
    """Write a folder of files and their checksums (`SHA256SUMS`), whole or not at all.

    The files go to a temporary folder, which is flushed to the disk and renamed. An old folder is first renamed, and
    removed at the end. If the system stops in between, `recover` restores the old folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "new"
        >>> write_folder(folder, {"note.txt": b"hello"})
        >>> sorted(file.name for file in folder.iterdir())
        ['SHA256SUMS', 'note.txt']
    """
    sums = "".join(f"{digest(data)}  {name}\n" for name, data in content.items())
    new_folder = _temporary_name(folder)
    try:
        new_folder.mkdir()
        for name, data in {**content, SUMS: sums.encode()}.items():
            write_whole(new_folder / name, data)
        if replace and folder.exists():
            _exchange(new_folder, folder)
        else:
            new_folder.rename(folder)
            flush_folder(folder.parent)
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


def _exchange(new_folder: Path, folder: Path) -> None:
    """Rename `new_folder` to `folder`; the old folder is removed only after that."""
    old = set_aside(folder)
    folder.rename(old)
    try:
        new_folder.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    try:
        flush_folder(folder.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Clean up after a stopped `write_folder`: restore the old folder if there is no new one, else remove it.

    Only for writers: while another process is between the two renames, readers find the old folder by `set_aside`.
    """
    old = set_aside(folder)
    if not old.is_dir():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(folder)


def check_free(folder: Path) -> None:
    """Raise `OSError` if a folder cannot be created there; creates its parents."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    trial = _temporary_name(folder)
    trial.mkdir()
    trial.rmdir()


def remove_folder(folder: Path) -> None:
    """Remove a folder; if the removal is interrupted, no incomplete folder has its name."""
    renamed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    folder.rename(renamed)
    shutil.rmtree(renamed)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that a killed process left in a folder."""
    for entry in folder.glob(".*"):
        if entry.suffix in (".part", ".old"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def parse_sums(data: bytes) -> dict[str, str]:
    """Return {file name: SHA-256} from the content of `SHA256SUMS`."""
    lines = [line.split("  ", 1) for line in data.decode("ascii").splitlines()]
    sums = {name: value for value, name in lines}
    if len(sums) != len(lines):
        raise ValueError("a file name occurs twice")
    return sums


def _temporary_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")


def set_aside(folder: Path) -> Path:
    """Return the temporary path of an old folder while `write_folder` replaces it."""
    return folder.with_name(f".{folder.name}.old")
