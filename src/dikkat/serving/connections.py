"""The server's connections: what those that say nothing may take of its time, its file descriptors and its log."""

import asyncio
import logging
import os
import socket
from collections import Counter
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_LINES = 10  # of one kind and minute, in the log


def bounded(seconds: float) -> dict[str, Any]:
    """Options of uvicorn's, for connections that leave file descriptors to others.

    Args:
        seconds: Until the head of a request must be there.
    """
    descriptors = min(os.sysconf("SC_OPEN_MAX"), 4096)
    rivals = Rivals(most=descriptors * 5 // 8, most_of_one=descriptors // 2)
    return {
        "http": partial(Connection, seconds=seconds, rivals=rivals),
        "ws": "none",
        "loop": f"{__name__}:{Loop.__name__}",
        # As many are accepted at a time; four times as many may be on their way in or out.
        "backlog": max(1, descriptors // 16),
    }


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers let more connections queue than they accept at a time."""

    async def create_server(self, *given: Any, **more: Any) -> asyncio.Server:
        """Listen."""
        server = await super().create_server(*given, **more)
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(2048)
        return server


class Rivals:
    """The connections of a process.

    Args:
        most: In all; where there are more, the one that has been silent for longest is closed.
        most_of_one: Of one address, likewise.
    """

    def __init__(self, *, most: int, most_of_one: int) -> None:
        self.most, self.most_of_one = most, most_of_one
        self.of = Counter[str]()  # connections by address
        self.silent: dict[Connection, None] = {}  # the longest silent first

    def make_room(self, address: str) -> None:
        """Close a connection where one of this address, which is silent yet, is one too many."""
        if (crowded := self.of[address] > self.most_of_one) or self.of.total() > self.most:
            open_ = (each for each in self.silent if not each.transport.is_closing())
            next(each for each in open_ if not crowded or each.address == address).transport.abort()


class Connection(H11Protocol):
    """A connection that is closed where it is silent for too long: where no head of a request is complete.

    Args:
        seconds: How long that is, from its beginning or the end of its last answer on.
        rivals: All connections.
        given: What uvicorn gives.
    """

    def __init__(self, *, seconds: float, rivals: Rivals, **given: Any) -> None:
        super().__init__(**given)
        self._seconds, self._rivals, self.address = seconds, rivals, ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._rivals.of[self.address] += 1
        self._listen()
        self._rivals.make_room(self.address)

    def data_received(self, data: bytes) -> None:
        """Read."""
        super().data_received(data)
        self._listen()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._heard()
        self._rivals.of[self.address] -= 1
        self._rivals.of += Counter()  # without those of nobody

    def _listen(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._heard()
        elif self not in self._rivals.silent:
            self._rivals.silent[self] = None
            self._late = self.loop.call_later(self._seconds, self.transport.abort)

    def _heard(self) -> None:
        self._late.cancel()
        self._rivals.silent.pop(self, None)


class Few(logging.Filter):
    """A bound on a log that strangers can make grow."""

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._seen = 0, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        minute, kind = int(record.created // 60), str(record.msg)[:40]
        if minute != self._minute:
            self._minute, self._seen = minute, Counter()
        self._seen[kind] += 1
        if self._seen[kind] == _LINES:
            record.msg = f"{record.msg} (more of these are not logged in this minute)"
        return self._seen[kind] <= _LINES
