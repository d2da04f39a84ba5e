"""Bounds on what silent clients cost the server: time, file descriptors and lines in the log."""

import asyncio
import logging
import os
import socket
from collections import Counter
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def bounded(seconds: float) -> dict[str, Any]:
    """Options of uvicorn's, for connections that leave file descriptors to others.

    Args:
        seconds: Until the head of a request must be there.
    """
    limit = os.sysconf("SC_OPEN_MAX")  # -1: none
    descriptors = min(limit, 4096) if limit > 0 else 4096
    most, most_of_one = descriptors * 5 // 8, descriptors // 2
    return {
        "http": partial(Connection, seconds=seconds, most=most, most_of_one=most_of_one, silent={}),
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


class Connection(H11Protocol):
    """A connection that is closed where it is silent: no head of a request is complete."""

    def __init__(
        self, *, seconds: float, most: int, most_of_one: int, silent: dict["Connection", None], **given: Any
    ) -> None:
        super().__init__(**given)
        self._seconds, self._most, self._most_of_one, self._silent = seconds, most, most_of_one, silent
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Make room for it."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._listen()
        crowded = sum(each.address == self.address for each in self.connections) > self._most_of_one  # type: ignore[union-attr]
        if crowded or len(self.connections) > self._most:
            rivals = (each for each in self._silent if not each.transport.is_closing())
            next(each for each in rivals if not crowded or each.address == self.address).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read."""
        super().data_received(data)
        self._listen()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave."""
        super().connection_lost(exc)
        self._heard()

    def _listen(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._heard()
        elif self not in self._silent:
            self._silent[self] = None
            self._wait()

    def _wait(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._late = self.loop.call_later(self._seconds, self._look, left)

    def _look(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:  # the last answer is still being read
            self._wait()
        else:
            self.transport.abort()

    def _heard(self) -> None:
        self._late.cancel()
        self._silent.pop(self, None)


class Few(logging.Filter):
    """A bound on a log that strangers can make grow: ten lines of one kind a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._seen = 0, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """True of a line that is logged."""
        minute, kind = int(record.created // 60), str(record.msg)[:40]
        if minute != self._minute:
            self._minute, self._seen = minute, Counter()
        self._seen[kind] += 1
        if self._seen[kind] == 10:
            record.msg = f"{record.msg} (more of these are not logged in this minute)"
        return self._seen[kind] <= 10
