"""ASGI middleware that limits request bodies, sets security headers and counts responses."""

import asyncio
import logging
import re
import time
from collections.abc import Iterable

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dikkat.serving.limits import Limits
from dikkat.serving.metrics import Metrics

_LOG = logging.getLogger("dikkat")
CLIENT_LEFT = 499  # status in the metrics if the client disconnected before the response

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# The page's own policy lists the hashes of its scripts.
PAGE_POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Guards:
    """An ASGI application that wraps another one."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, paths: frozenset[str], hosts: Iterable[str]
    ) -> None:
        self._app, self._limits, self._metrics, self._paths = app, limits, metrics, paths
        self._hosts = [host.lower() for host in hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, path = time.perf_counter(), scope["path"] if scope["path"] in self._paths else "other"
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        size, more_body, status = 0, True, 0

        async def receive_bounded() -> Message:
            nonlocal size, more_body, status
            try:
                async with asyncio.timeout_at(deadline if more_body else None):
                    message = await receive()
            except TimeoutError:
                raise _closing_error(408, "body: incomplete at the time limit; send all of it at once") from None
            size, more_body = size + len(message.get("body", b"")), message.get("more_body", False)
            if message["type"] == "http.disconnect":
                status = CLIENT_LEFT
            elif size > (limit := self._limits.body):
                raise _closing_error(413, f"body: got more than {limit:,} bytes, the limit; send less text at once")
            return message

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = status or message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        host = re.sub(r":\d+$", "", Headers(scope=scope).get("host", "").lower())
        try:
            if "*" in self._hosts or host in self._hosts:
                if scope["method"] == "HEAD":  # handled as GET; servers omit the body
                    scope = {**scope, "method": "GET"}
                await self._app(scope, receive_bounded, send_guarded)
            else:
                message = f"Host: got {host[:80]!r}; expected one of {', '.join(self._hosts)}"
                await JSONResponse({"error": message}, 400)(scope, receive, send_guarded)
        except Exception:
            _LOG.exception("a request failed")
            if status:
                raise
            await JSONResponse({"error": "internal error; see the server's log"}, 500)(scope, receive, send_guarded)
        finally:
            self._metrics.requests.labels(path, status or CLIENT_LEFT).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - began)


def _closing_error(status: int, message: str) -> HTTPException:
    return HTTPException(status, message, {"Connection": "close"})
