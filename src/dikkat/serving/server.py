"""The HTTP server, granian, which limits connections and the time for request headers."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from fastapi import FastAPI
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

_HEADER_SECONDS = 5


def run(app: FastAPI, address: str, port: int, *, seconds: float) -> None:
    """Serve an application until SIGINT or SIGTERM, then finish the running requests.

    `seconds` is the maximum time of a request, from its `Limits`; one second later, open connections are closed.
    """
    open_files = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1  # -1 if there is no limit
    connections = (min(open_files, 4096) if open_files > 0 else 4096) * 5 // 8
    server = Server(
        app, address, port, interface=Interfaces.ASGI, http=HTTPModes.http1, websockets=False, backlog=2048,
        backpressure=connections, http1_settings=HTTP1Settings(header_read_timeout=1000 * _HEADER_SECONDS),
        log_level=LogLevels.error,
    )  # fmt: skip
    asyncio.run(_serve(server, address, port, seconds))


async def _serve(server: Server, address: str, port: int, seconds: float) -> None:
    loop, serving = asyncio.get_running_loop(), asyncio.create_task(server.serve())

    def stop() -> None:
        server.stop()  # type: ignore[no-untyped-call]
        loop.call_later(seconds + 1, serving.cancel)

    # The signal handlers of event loops do not exist on Windows.
    signals = (signal.SIGINT, signal.SIGTERM)
    old_handlers = [signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop)) for number in signals]
    announcement = asyncio.create_task(_announce(address, port))
    try:
        with suppress(asyncio.CancelledError):
            await serving
    finally:
        announcement.cancel()
        for number, handler in zip(signals, old_handlers, strict=True):
            signal.signal(number, handler)


async def _announce(address: str, port: int) -> None:
    connection = None
    while connection is None:
        with suppress(OSError):
            _, connection = await asyncio.open_connection(address, port)
        await asyncio.sleep(0.01)
    connection.close()
    shown = f"[{address}]" if ":" in address else address
    print(f"Serving at http://{shown}:{port} until Ctrl-C", file=sys.stderr)
