"""The layer before the application: limits on bodies and rates, HEAD, headers that guard browsers, counts."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Iterable

import limits as rates
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dikkat.serving.limits import Limits
from dikkat.serving.metrics import Metrics

_LOG = logging.getLogger("dikkat")
# Bytes of a body that is too large which are read: unread, they would reset the connection before its answer is read.
_REST = 2**24
GONE = 499  # the status of a request whose client left before its answer; only the counts have it

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# For the page, whose own policy lists the hashes of the scripts that may run in it.
PAGE_POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Guards:
    """An ASGI application around another."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, paths: frozenset[str], hosts: Iterable[str]
    ) -> None:
        self._app, self._limits, self._metrics, self._paths = app, limits, metrics, paths
        self._hosts = [host.lower() for host in hosts]
        self._rate = None if limits.rate is None else rates.parse(limits.rate)
        # Of windows that move, the store in memory would keep every address for ever.
        self._window = rates.strategies.FixedWindowRateLimiter(rates.storage.MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, path = time.perf_counter(), scope["path"] if scope["path"] in self._paths else "other"
        bare = scope["method"] == "HEAD"  # what GET answers, but for the body
        if bare:
            scope = {**scope, "method": "GET"}
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            elif bare:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._guarded(scope, receive, answer)
        except ClientDisconnect:
            pass
        except Exception:
            _LOG.exception("a request failed")
            if status:
                raise
            await JSONResponse({"error": "the server failed; its log says why"}, 500)(scope, receive, answer)
        finally:
            self._metrics.requests.labels(path, status or GONE).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = (scope.get("client") or ("",))[0]
        if self._rate is not None and not self._window.hit(self._rate, client):
            reset = self._window.get_window_stats(self._rate, client).reset_time
            seconds = max(1, math.ceil(reset - time.time()))
            await busy(f"got more than {self._limits.rate}", seconds)(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await self._body(receive)
        except TimeoutError:
            message = "body: it did not come in time; send all of it at once"
            await JSONResponse({"error": message}, 408, {"Connection": "close"})(scope, receive, send)
            return
        if body is None:
            message = f"body: got more than {self._limits.body:,} bytes; expected at most so many. Send less at once"
            await JSONResponse({"error": message}, 413, {"Connection": "close"})(scope, receive, send)
            return
        host = re.sub(r":\d+$", "", Headers(scope=scope).get("host", "").lower())
        if "*" not in self._hosts and host not in self._hosts:
            message = f"Host: got {host[:80]!r}; expected one of {', '.join(self._hosts)}: use such a name"
            await JSONResponse({"error": message}, 400)(scope, receive, send)
            return
        unread = [body]

        async def receive_again() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()  # waits until the client leaves

        await self._app(scope, receive_again, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """All of it; None where it is too large, and then no more than the limit is kept."""
        body, size, more = bytearray(), 0, True
        while more and size < self._limits.body + _REST:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self._limits.body:
                body += part
        return bytes(body) if size <= self._limits.body else None


def busy(why: str, seconds: int) -> JSONResponse:
    """The answer to one request too many."""
    return JSONResponse({"error": f"{why}; try again in {seconds} s"}, 429, {"Retry-After": str(seconds)})
