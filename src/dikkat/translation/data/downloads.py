"""Downloads of files with known checksums."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dikkat.storage.cache import create_file, explaining_write_errors, hold_lock
from dikkat.translation.errors import CorpusError


class Checksum(NamedTuple):
    """A checksum of a file: the algorithm's name in `hashlib`, and hexadecimal digits."""

    algorithm: str
    value: str

    @classmethod
    def of(cls, path: Path, algorithm: str = "sha256") -> "Checksum":
        """Return the checksum of a file."""
        with path.open("rb") as file:
            return cls(algorithm, hashlib.file_digest(file, algorithm).hexdigest())

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"


def fetch(address: str, path: Path, checksum: Checksum, *, timeout: float = 30.0) -> None:
    """Download a file unless it exists, and verify its checksum in both cases.

    The file gets its name when it is complete and verified. A terminal shows a progress bar.

    Raises:
        CorpusError: The content is wrong, or cannot be fetched; the message names the path for a manual download.
        OSError: The file cannot be written.
    """
    with hold_lock(path.with_name(f"{path.name}.lock"), path.name):
        if path.exists():
            actual = Checksum.of(path, checksum.algorithm)
            if actual != checksum:
                raise CorpusError(
                    f"{path}: got a file with {actual}; expected one with {checksum}. Delete it to have it "
                    f"fetched from {address}, or replace it by hand"
                )
            return
        by_hand = f"put the file there by hand: {path} ({checksum})"
        with create_file(path, path.name) as file:
            value = hashlib.new(checksum.algorithm)
            for piece in _pieces(address, path.name, timeout, by_hand):
                with explaining_write_errors(path.name, path.parent):
                    file.write(piece)
                value.update(piece)
            if (actual := checksum._replace(value=value.hexdigest())) != checksum:
                raise CorpusError(
                    f"{address}: got a file with {actual}; expected one with {checksum}. Try again, or {by_hand}"
                )


def _pieces(address: str, name: str, timeout: float, by_hand: str) -> Iterator[bytes]:
    import httpx
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    headers = {"Accept-Encoding": "identity"}  # no compression, as the checksum is of the file's bytes
    try:
        with bar, httpx.stream("GET", address, headers=headers, timeout=timeout, follow_redirects=True) as response:
            response.raise_for_status()
            length = response.headers.get("Content-Length", "")
            task = bar.add_task(name, total=int(length) if length.isdigit() else None)
            for piece in response.iter_raw():
                yield piece
                bar.advance(task, len(piece))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CorpusError(
            f"cannot fetch {address} ({_reason(error)}). Check the network and try again, or {by_hand}"
        ) from error


def _reason(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return f"the server answered {error.response.status_code} {error.response.reason_phrase}"
    if isinstance(error, httpx.TimeoutException):
        return "the server did not answer in time"
    return str(error) or type(error).__name__
