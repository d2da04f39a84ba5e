"""The ASGI application with the JSON API, which `GET /api/openapi.json` and docs/serving.md describe."""

import asyncio
import hashlib
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dikkat import __version__
from dikkat._engine.cancellation import StoppedError
from dikkat.errors import InputError
from dikkat.serving.guards import CLIENT_LEFT, PAGE_POLICY, Guards
from dikkat.serving.limits import Limits
from dikkat.serving.messages import (
    BatchRequest,
    BatchResponse,
    ErrorMessage,
    Health,
    ModelInfo,
    Translated,
    TranslateRequest,
    TranslateResponse,
)
from dikkat.serving.metrics import Metrics
from dikkat.serving.queue import BusyError, Queue
from dikkat.translation import Translation, Translator
from dikkat.translation.decoding.pairs import check_sentence

T = TypeVar("T")
_FEW = 64  # translations that take less time to serialise than to pass to another thread
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorMessage, "description": "Unreadable body"},
    413: {"model": ErrorMessage, "description": "Body too large"},
    404: {"model": ErrorMessage, "description": "Unknown model"},
    422: {"model": ErrorMessage, "description": "Invalid request"},
    429: {"model": ErrorMessage, "description": "Too many requests; Retry-After has the seconds to wait"},
    503: {"model": ErrorMessage, "description": "Time limit exceeded"},
}


def create_app(
    translators: Mapping[str, Translator], *, limits: Limits | None = None,
    hosts: Iterable[str] = ("localhost", "127.0.0.1", "[::1]"), origins: Iterable[str] = (),
) -> FastAPI:  # fmt: skip
    """Return an ASGI application that serves translators.

    Args:
        translators: Translators by name. Requests without a model use the first.
        limits: Limits of the server; None: the defaults of `Limits`.
        hosts: Allowed values of the Host header; `"*"`: any. Other values get status 400, which prevents DNS
            rebinding.
        origins: Origins of other sites whose pages may call the API, such as `https://example.org`.

    Raises:
        InputError: If there is no translator.

    Example:
        >>> from fastapi.testclient import TestClient
        >>> app = create_app({"small": translator})
        >>> with TestClient(app, base_url="http://localhost") as client:
        ...     answer = client.post("/api/translate", json={"text": "Go."}).json()
        >>> answer["translations"][0]["source_tokens"]
        ['Go', '.']
    """
    if not translators:
        raise InputError("translators: got none; expected at least one")
    limits = limits or Limits()
    served = Served(dict(translators), limits)
    app = FastAPI(
        title="dikkat", version=__version__, description="Translators with visible attention.",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=served.life,
    )  # fmt: skip
    app.add_exception_handler(RequestValidationError, _invalid)
    for error in (InputError, HTTPException, BusyError, TimeoutError, StoppedError, ClientDisconnect):
        app.add_exception_handler(error, _error_response)
    served.add_to(app)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(Guards, limits=limits, metrics=served.metrics, paths=paths, hosts=hosts)
    if allowed := list(origins):  # outside the guards, so that pages can read their errors too
        app.add_middleware(
            CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["Retry-After"],
        )  # fmt: skip
    return app


class Served:
    """The served translators, with a method for each path of the API."""

    def __init__(self, translators: dict[str, Translator], limits: Limits) -> None:
        self._translators, self._limits, self.metrics = translators, limits, Metrics()
        self._pages: dict[str, tuple[bytes, dict[str, str]]] = {}
        self._queue_task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the queue from the start of the server to its end."""
        self._queue = Queue(self._limits, self.metrics)
        self._page_locks = {name: asyncio.Lock() for name in self._translators}
        self._queue_task = task = asyncio.create_task(self._queue.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _check_queue(self) -> None:
        if self._queue_task is None or self._queue_task.done():
            raise HTTPException(503, "the server has stopped translating: see its log and restart it")

    def add_to(self, app: FastAPI) -> None:
        """Register the paths."""
        post, get = app.post, app.get
        post("/api/translate", response_model=TranslateResponse, responses=_ERRORS)(self.translate)
        post("/api/batch", response_model=BatchResponse, responses=_ERRORS)(self.batch)
        get("/", response_class=HTMLResponse, responses={404: _ERRORS[404]})(self.page)
        get("/api/models", response_model=list[ModelInfo])(self.models)
        get("/api/health", response_model=Health)(self.health)
        get("/metrics", response_class=Response)(self.counts)

    async def translate(self, body: TranslateRequest, request: Request) -> Response:
        """Translate a sentence."""
        n_best = await self._translate(body, [body.text], request)
        return await _json_response(lambda: _to_messages(n_best, body)[0], in_thread=body.attention)

    async def batch(self, body: BatchRequest, request: Request) -> Response:
        """Translate sentences."""
        if len(body.texts) > self._limits.sentences:
            raise InputError(f"texts: got {len(body.texts)} sentences; expected at most {self._limits.sentences}")
        n_best = await self._translate(body, body.texts, request)
        large = body.attention or len(n_best) * body.n_best > _FEW
        return await _json_response(lambda: BatchResponse(results=_to_messages(n_best, body)), in_thread=large)

    async def _translate(
        self, body: TranslateRequest | BatchRequest, texts: list[str], request: Request
    ) -> list[list[Translation]]:
        self._check_queue()
        translator = self._translator(body.model)
        for text in texts:
            self._check(text, "text")
        cells = sum(len(text) ** 2 for text in texts) * body.n_best
        max_cells = self._limits.cells * (1 if body.attention or body.markup else 8)
        if cells > max_cells:
            raise InputError(
                f"text: got {cells:,}, the sum of squared text lengths times n_best; expected at most {max_cells:,}. "
                "Send shorter or fewer texts, or request fewer translations"
            )
        if body.beam > self._limits.beam:
            raise InputError(f"beam: got {body.beam}; expected at most {self._limits.beam}")
        if body.markup:
            for text in texts:  # here, as an error in a batch would fail the requests of other clients
                translator.marked(text, "text")
        options = body.options()
        translator.check_terms(options["terms"])
        return await _unless_disconnected(request, self._queue.translate(translator, options, texts))

    async def page(self, request: Request, model: str | None = None) -> Response:
        """Return the page of `dikkat export --html`, which translates in the browser."""
        translator = self._translator(model)
        name = next(name for name, served in self._translators.items() if served is translator)
        async with self._page_locks[name]:  # simultaneous first requests make it once
            if name not in self._pages:
                try:
                    page = (await asyncio.to_thread(translator.as_html, title=name)).encode()
                except InputError as error:
                    raise HTTPException(404, str(error)) from error
                self._pages[name] = page, {
                    "Cache-Control": "no-cache",  # store it, but revalidate before use
                    "Content-Security-Policy": PAGE_POLICY,
                    "ETag": f'W/"{hashlib.sha256(page).hexdigest()[:32]}"',  # weak: also for the compressed page
                }  # fmt: skip
        (page, headers), etags = self._pages[name], request.headers.get("if-none-match", "")
        if etags == "*" or headers["ETag"] in etags:  # the browser updates its stored headers
            return Response(status_code=304, headers=headers)
        return HTMLResponse(page, headers=headers)

    async def models(self) -> list[ModelInfo]:
        """List the models; the first is the default."""
        return [
            ModelInfo(
                name=name, languages=translator.origin.languages if translator.origin else None,
                cell=translator.settings.cell, score=translator.settings.score,
                hidden_size=translator.settings.hidden_size, source_tokens=len(translator.source_tokenizer),
                target_tokens=len(translator.target_tokenizer),
            )
            for name, translator in self._translators.items()
        ]  # fmt: skip

    async def health(self) -> Health:
        """Return the state of the server."""
        self._check_queue()
        return Health(status="ok")

    async def counts(self) -> Response:
        """Return the metrics in the format of Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def _translator(self, name: str | None) -> Translator:
        if name is None:
            return next(iter(self._translators.values()))
        if name not in self._translators:
            raise HTTPException(404, f"model: got {name[:80]!r}; expected one of {', '.join(self._translators)}")
        return self._translators[name]

    def _check(self, text: str, name: str) -> None:
        if len(text) > self._limits.characters:
            raise InputError(
                f"{name}: got {len(text):,} characters; expected at most {self._limits.characters:,}. Split it"
            )
        check_sentence(text, name)


def _to_messages(n_best: list[list[Translation]], body: TranslateRequest | BatchRequest) -> list[TranslateResponse]:
    return [
        TranslateResponse(translations=[Translated.of(t, attention=body.attention) for t in translations])
        for translations in n_best
    ]


async def _json_response(create: Callable[[], BaseModel], *, in_thread: bool) -> Response:
    """Create a message and return it as JSON; large messages are serialised in another thread."""
    text = await asyncio.to_thread(lambda: create().model_dump_json()) if in_thread else create().model_dump_json()
    return Response(text, media_type="application/json")


async def _unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of the work; cancel it and raise ClientDisconnect if the client disconnects first."""
    result, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({result, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        disconnect.cancel()
        result.cancel()


# --- errors

_TOO_LONG = "the work took too long and was stopped; send a shorter text, or try again later"


async def _invalid(request: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"body: not JSON: {first['ctx']['error']} at character {first['loc'][-1] + 1}"
        return JSONResponse({"error": message}, 400)
    if isinstance(first["input"], bytes):  # not parsed, because the content type is not JSON
        content_type = request.headers.get("content-type", "none")[:80]
        return JSONResponse({"error": f"Content-Type: got {content_type}; expected application/json"}, 400)
    field = ".".join(str(key) for key in first["loc"] if key != "body") or "body"
    got = f"got {reprlib.repr(first['input'])}; " if first["type"] == "literal_error" else ""
    return JSONResponse({"error": f"{field}: {got}{first['msg']}"}, 422)


async def _error_response(_: Request, error: Any) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_LEFT)
    if isinstance(error, BusyError):
        return JSONResponse({"error": str(error)}, 429, {"Retry-After": str(error.seconds)})
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)
    if isinstance(error, InputError):
        return JSONResponse({"error": str(error)}, 422)
    return JSONResponse({"error": _TOO_LONG}, 503)
