"""The JSON API. `GET /api/openapi.json` describes it to programs, docs/serving.md to people."""

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
_AT_ONCE = 64  # translations that are written in less time than it takes to hand them to another thread
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorMessage, "description": "A body that cannot be read"},
    413: {"model": ErrorMessage, "description": "More than the server takes at once"},
    404: {"model": ErrorMessage, "description": "No such model"},
    422: {"model": ErrorMessage, "description": "A request that cannot be answered"},
    429: {"model": ErrorMessage, "description": "Too many requests; Retry-After says when to try again"},
    503: {"model": ErrorMessage, "description": "The work took too long, and was stopped"},
}


def create_app(
    translators: Mapping[str, Translator], *, limits: Limits | None = None,
    hosts: Iterable[str] = ("localhost", "127.0.0.1", "[::1]"), origins: Iterable[str] = (),
) -> FastAPI:  # fmt: skip
    """An ASGI application that serves translators.

    Args:
        translators: By name; requests that name none are for the first.
        limits: What it takes on; None: what `Limits` says.
        hosts: Names by which it may be addressed; `"*"`: any. Other names are refused, which prevents DNS
            rebinding.
        origins: Pages that may use it from a browser, beside its own, such as `https://example.org`.

    Raises:
        InputError: No translator.

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
        title="dikkat", version=__version__, description="Translators with attention that can be seen.",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=served.life,
    )  # fmt: skip
    app.add_exception_handler(RequestValidationError, _invalid)
    for error in (InputError, HTTPException, BusyError, TimeoutError, StoppedError, ClientDisconnect):
        app.add_exception_handler(error, _refused)
    served.add_to(app)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(Guards, limits=limits, metrics=served.metrics, paths=paths, hosts=hosts)
    if allowed := list(origins):  # around the guards, so that a page can read their answers too
        app.add_middleware(
            CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["Retry-After"],
        )  # fmt: skip
    return app


class Served:
    """The translators that are served, and the answers to requests for them."""

    def __init__(self, translators: dict[str, Translator], limits: Limits) -> None:
        self._translators, self._limits, self.metrics = translators, limits, Metrics()
        self._pages: dict[str, tuple[bytes, dict[str, str]]] = {}
        self._working: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """The time from the start of the server to its end, in which its queue works."""
        self._queue = Queue(self._limits, self.metrics)
        self._packing = {name: asyncio.Lock() for name in self._translators}
        self._working = working = asyncio.create_task(self._queue.run())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def _check_working(self) -> None:
        if self._working is None or self._working.done():
            raise HTTPException(503, "the server does not translate any more: its log says why; start it again")

    def add_to(self, app: FastAPI) -> None:
        """The paths."""
        post, get = app.post, app.get
        post("/api/translate", response_model=TranslateResponse, responses=_ERRORS)(self.translate)
        post("/api/batch", response_model=BatchResponse, responses=_ERRORS)(self.batch)
        get("/", response_class=HTMLResponse, responses={404: _ERRORS[404]})(self.page)
        get("/api/models", response_model=list[ModelInfo])(self.models)
        get("/api/health", response_model=Health)(self.health)
        get("/metrics", response_class=Response)(self.counts)

    async def translate(self, body: TranslateRequest, request: Request) -> Response:
        """Translate a sentence."""
        best = await self._translated(body, [body.text], request)
        return await _answer(lambda: _answers(best, body)[0], aside=body.attention)

    async def batch(self, body: BatchRequest, request: Request) -> Response:
        """Translate sentences."""
        if len(body.texts) > self._limits.sentences:
            raise InputError(f"texts: got {len(body.texts)} sentences; expected at most {self._limits.sentences}")
        best = await self._translated(body, body.texts, request)
        large = body.attention or len(best) * body.n_best > _AT_ONCE
        return await _answer(lambda: BatchResponse(results=_answers(best, body)), aside=large)

    async def _translated(
        self, body: TranslateRequest | BatchRequest, texts: list[str], request: Request
    ) -> list[list[Translation]]:
        self._check_working()
        translator = self._translator(body.model)
        for text in texts:
            self._check(text, "text")
        cells = sum(len(text) ** 2 for text in texts) * body.n_best
        most = self._limits.cells * (1 if body.attention or body.markup else 8)
        if cells > most:
            raise InputError(
                f"text: got {cells:,} as the sum of squared characters times n_best; expected at most {most:,}: send "
                "shorter texts, or fewer at once, or ask for fewer translations"
            )
        if body.beam > self._limits.beam:
            raise InputError(f"beam: got {body.beam}; expected at most {self._limits.beam}")
        if body.markup:
            for text in texts:  # here, since an error within a batch would be everybody's
                translator.marked(text, "text")
        return await _while_there(request, self._queue.translate(translator, body.options(), texts))

    async def page(self, request: Request, model: str | None = None) -> Response:
        """A page that translates by itself, as `dikkat export --html` writes it."""
        translator = self._translator(model)
        name = next(name for name, each in self._translators.items() if each is translator)
        async with self._packing[name]:  # several first requests pack it once
            if name not in self._pages:
                try:
                    page = (await asyncio.to_thread(translator.as_html, title=name)).encode()
                except InputError as error:
                    raise HTTPException(404, str(error)) from error
                self._pages[name] = page, {
                    "Cache-Control": "no-cache",  # keep it, and ask whether it is still the same
                    "Content-Security-Policy": PAGE_POLICY,
                    "ETag": f'W/"{hashlib.sha256(page).hexdigest()[:32]}"',  # weak: of the compressed page too
                }  # fmt: skip
        (page, headers), known = self._pages[name], request.headers.get("if-none-match", "")
        if known == "*" or headers["ETag"] in known:  # a browser puts the headers in the place of those that it kept
            return Response(status_code=304, headers=headers)
        return HTMLResponse(page, headers=headers)

    async def models(self) -> list[ModelInfo]:
        """The models that are served; the first is that of requests that name none."""
        return [
            ModelInfo(
                name=name, languages=each.origin.languages if each.origin else None, cell=each.settings.cell,
                score=each.settings.score, hidden_size=each.settings.hidden_size,
                source_tokens=len(each.source_tokenizer), target_tokens=len(each.target_tokenizer),
            )
            for name, each in self._translators.items()
        ]  # fmt: skip

    async def health(self) -> Health:
        """The state of the server."""
        self._check_working()
        return Health(status="ok")

    async def counts(self) -> Response:
        """The counts, as Prometheus reads them."""
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


def _answers(best: list[list[Translation]], body: TranslateRequest | BatchRequest) -> list[TranslateResponse]:
    return [
        TranslateResponse(translations=[Translated.of(each, attention=body.attention) for each in translations])
        for translations in best
    ]


async def _answer(answer: Callable[[], BaseModel], *, aside: bool) -> Response:
    """An answer as JSON; aside, on another thread, where it is long: a short one takes less time than going there."""
    text = await asyncio.to_thread(lambda: answer().model_dump_json()) if aside else answer().model_dump_json()
    return Response(text, media_type="application/json")


async def _while_there(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is given up if the client leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


# --- errors

_TOO_LONG = "the work took too long, and was stopped; send a shorter text, or try again later"


async def _invalid(request: Request, error: Any) -> JSONResponse:
    """The answer to a body that is not of the expected form."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"body: not JSON: {first['ctx']['error']} at character {first['loc'][-1] + 1}"
        return JSONResponse({"error": message}, 400)
    if isinstance(first["input"], bytes):  # as they came, since nothing says that they are JSON
        kind = request.headers.get("content-type", "none")[:80]
        return JSONResponse({"error": f"Content-Type: got {kind}; expected application/json"}, 400)
    field = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    got = f"got {reprlib.repr(first['input'])}; " if first["type"] == "literal_error" else ""
    return JSONResponse({"error": f"{field}: {got}{first['msg']}"}, 422)


async def _refused(_: Request, error: Any) -> Response:
    """The answer to a request that ended in an error."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_LEFT)
    if isinstance(error, BusyError):
        return JSONResponse({"error": str(error)}, 429, {"Retry-After": str(error.seconds)})
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)
    if isinstance(error, InputError):
        return JSONResponse({"error": str(error)}, 422)
    return JSONResponse({"error": _TOO_LONG}, 503)
