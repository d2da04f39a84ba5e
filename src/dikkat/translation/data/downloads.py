"""Files from the network, known by their checksums.

Tried in place of this: pooch 1.9.0 begins anew where a connection broke; what goes on in huggingface_hub 2.4.0,
`http_get`, is not documented, and its errors are the Hub's.
"""

import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dikkat.storage.cache import opened, waited_for, writing
from dikkat.storage.files import publish
from dikkat.translation.errors import CorpusError

_BUSY = (408, 425, 429)  # answers after which it is worth asking again, as after all from 500


class Checksum(NamedTuple):
    """What a file's content is known by.

    Attributes:
        algorithm: As `hashlib` calls it.
        value: Hexadecimal digits.
    """

    algorithm: str
    value: str

    @classmethod
    def of(cls, path: Path, algorithm: str = "sha256") -> "Checksum":
        """A file's."""
        with path.open("rb") as file:
            return cls(algorithm, hashlib.file_digest(file, algorithm).hexdigest())

    def __str__(self) -> str:
        """Both."""
        return f"{self.algorithm} {self.value}"


def fetch(
    address: str, path: Path, checksum: Checksum, *, timeout: float = 30.0, attempts: int = 5, pause: float = 0.5
) -> None:
    """Download a file that is not there yet, and verify it, however it came there.

    What came before a connection broke stays in a file beside it, `.part`, and the next attempt, or the next call, asks
    for the rest alone. The file has its name when all of it is there and verified. A progress bar is on standard error,
    where that is a terminal.

    Args:
        address: Of the file.
        path: Where it is to be, in a folder of the cache.
        checksum: Of its content.
        timeout: Seconds without a byte after which a connection is taken for broken.
        attempts: How often to try while the connection breaks, or the server is busy.
        pause: Seconds before the second attempt; each further one waits twice as long.

    Raises:
        CorpusError: The address cannot be reached, or what came is not what it should be. The message says under
            which path to put the file by hand.
        OSError: The file cannot be written.
    """
    with waited_for(path.with_name(f"{path.name}.lock"), path.name):
        if path.exists():
            found = Checksum.of(path, checksum.algorithm)
            if found != checksum:
                raise CorpusError(
                    f"{path}: got a file with {found}; expected one with {checksum}. Delete it to have it "
                    f"fetched from {address}, or put the right one there by hand"
                )
            return
        part = path.with_name(f"{path.name}.part")
        _download(address, path, checksum, part, timeout, attempts, pause)
        found = Checksum.of(part, checksum.algorithm)
        if found != checksum:
            part.unlink()
            raise CorpusError(
                f"{address}: got a file with {found}; expected one with {checksum}. Try "
                f"again, or {_by_hand(path, checksum)}"
            )
        with writing(path.name, path.parent):
            publish(part, path)


def _by_hand(path: Path, checksum: Checksum) -> str:
    return f"put the file there by hand: {path} ({checksum})"


def _download(
    address: str, path: Path, checksum: Checksum, part: Path, timeout: float, attempts: int, pause: float
) -> None:
    """All of the file into `part`, which may hold its beginning."""
    import httpx
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    with httpx.Client(timeout=timeout, follow_redirects=True) as client, bar:
        task = bar.add_task(path.name, total=None)
        for attempt in range(1, attempts + 1):
            try:
                for done, total in _pieces(client, address, part):
                    bar.update(task, completed=done, total=total)
                return
            except (httpx.HTTPError, httpx.InvalidURL, _BrokenError) as error:
                if attempt == attempts or not _worth_another(error):
                    raise CorpusError(
                        f"cannot fetch {address} ({_reason(error)}). Check the network and try again, or "
                        f"{_by_hand(path, checksum)}"
                    ) from error
            time.sleep(pause * 2 ** (attempt - 1))


def _pieces(client: Any, address: str, part: Path) -> Iterator[tuple[int, int | None]]:
    """Appends to `part` what is missing, and says after each piece how much there is, and of how much."""
    begun = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begun}-"} if begun else {})
    with client.stream("GET", address, headers=headers) as answer:
        if begun and answer.status_code == 416:
            part.unlink()
            raise _BrokenError("the server has no such rest of the file")
        answer.raise_for_status()
        if answer.status_code != 206:  # the server knows no ranges: it sends all of it
            begun = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            part.unlink()
            raise _BrokenError("the server sent another part of the file than the one asked for")
        length = answer.headers.get("Content-Length", "")
        total = begun + int(length) if length.isdigit() else None
        try:
            with opened(part, "r+b" if begun else "wb", part.name) as file:
                file.seek(begun)
                for piece in answer.iter_raw():
                    with writing(part.name, part.parent):
                        file.write(piece)
                        file.flush()
                    yield file.tell(), total
        except OSError:
            part.unlink(missing_ok=True)  # its space is wanted
            raise


class _BrokenError(Exception):
    """What came does not fit to what came before."""


def _worth_another(error: Exception) -> bool:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in _BUSY
    return isinstance(error, (httpx.TransportError, _BrokenError)) and not isinstance(error, httpx.UnsupportedProtocol)


def _reason(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return f"the server answered {error.response.status_code} {error.response.reason_phrase}"
    if isinstance(error, httpx.TimeoutException):
        return "the server was silent for too long"
    return str(error) or type(error).__name__
