"""The web application: routes, error messages, static pages, and limits on the size and duration of requests."""

import asyncio
import contextlib
import functools
import importlib.resources
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convs2s_jax.core.errors import did_you_mean, shown
from convs2s_jax.serving.engine import Engine
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.serving.service import RETRY_AFTER, Problem, Service, TranslationAnswer, TranslationRequest

TRANSLATE = "/translate"
DISCONNECTED = 499
"""Status of a request whose client has disconnected, as proxies log it."""
ATTEMPTED = (200, 500, 504)
"""Statuses of requests that were translated, or attempted. Others are refusals."""
INDEX = "index.html"
PAGE = {INDEX: "text/html", "page.js": "text/javascript", "page.css": "text/css"}
"""Files of the web page and their types."""
SHARED = {"attention.js": "text/javascript", "attention.css": "text/css"}
"""Files that the web page shares with reports (`translation/static`)."""
POLICY = "default-src 'self'; img-src 'self' data:"
"""Content security policy of the web page. Nothing is loaded from other hosts."""


def make(
    engine: Engine,
    options: ServeOptions,
    *,
    progress: Callable[[int, int], None] = lambda *_: None,
    failed: Callable[[BaseException], None] = lambda _: None,
) -> FastAPI:
    """Create the application for an engine.

    Args:
      engine: the model.
      options: limits.
      progress: called from a thread whenever a program is compiled, with the number compiled so far and the total.
      failed: called with the error if a program cannot be compiled or batches are no longer translated.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = Service(engine, options)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        tasks = [
            asyncio.create_task(service.batcher.work()),
            asyncio.create_task(asyncio.to_thread(service.compile, progress)),
        ]
        for task in tasks:
            task.add_done_callback(ended)
        yield
        service.closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="convs2s_jax",
        description="Translation by a convolutional sequence-to-sequence model.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_handlers(app)
    _add_routes(app)
    refused = functools.partial(_count_refusal, app)
    app.add_middleware(Limited, most=options.max_body, seconds=options.timeout, count=refused)
    return app


def _add_routes(app: FastAPI) -> None:
    problems: dict[int | str, Any] = {status: {"model": Problem} for status in (400, 408, 413, 422, 429, 500, 503, 504)}

    @app.post(TRANSLATE, response_model=TranslationAnswer, responses=problems)
    async def translate(request: Request, asked: TranslationRequest) -> Response:
        """Translate lines. Requests that arrive together share a batch, which does not change their translations."""
        service: Service = request.app.state.service
        begun = getattr(request.state, "arrived", time.monotonic())
        try:
            answer = await _unless_gone(request, service.translate(asked))
        except Exception as error:  # `Limited` answers and counts cancelled requests
            _count_answer(service, error.status_code if isinstance(error, HTTPException) else 500, begun)
            raise
        _count_answer(service, 200, begun)
        return Response(answer, media_type="application/json")

    @app.head("/health", include_in_schema=False)  # some load balancers ask in this way
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Check that the process responds."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", responses={503: {"model": Problem}})
    async def ready(request: Request) -> dict[str, str]:
        """Check that all programs are compiled, so that requests are answered without delay."""
        service: Service = request.app.state.service
        if service.missing:
            raise HTTPException(503, service.missing, {"retry-after": str(RETRY_AFTER)})
        return {"status": "ready"}

    @app.get("/about")
    async def about(request: Request) -> dict[str, Any]:
        """Describe the model and the limits, for the web page."""
        service: Service = request.app.state.service
        engine, options = service.engine, service.options
        data = engine.translator.cfg.data
        return {
            "source": data.src,
            "target": data.tgt,
            "beam_sizes": list(engine.beam_sizes),
            "attention": engine.translator.attends,
            "allow": list(engine.allow),
            "shortlist": engine.translator.shortlist is not None,
            "max_tokens": engine.max_tokens - 1,
            "max_lines": options.max_lines,
        }

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        return Response(request.app.state.service.metrics.text(), media_type="text/plain; version=0.0.4")

    for path, name in {"": INDEX, **{name: name for name in PAGE | SHARED}}.items():
        app.add_route(f"/{path}", functools.partial(_page, name), ["GET"], include_in_schema=False)


async def _page(name: str, _request: Request) -> Response:
    """Return a file of the web page."""
    package = "convs2s_jax.serving" if name in PAGE else "convs2s_jax.translation"
    content = importlib.resources.files(package).joinpath("static", name).read_bytes()
    return Response(content, media_type=(PAGE | SHARED)[name], headers={"content-security-policy": POLICY})


def _add_handlers(app: FastAPI) -> None:
    """Answer every client error with a sentence, and internal errors without a traceback."""

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        sentence = error.detail
        if error.status_code == 400:  # raised by FastAPI for a body that Python's JSON parser cannot read
            _count_refusal(request.app, request.url.path, 400)
            sentence = _unreadable(error.__cause__)
        elif error.status_code == 404:
            sentence = "no such page; see /docs for all endpoints"
        elif error.status_code == 405:
            methods = (error.headers or {}).get("Allow", "another method")
            here = request.url.path == TRANSLATE
            sentence = f"send lines to {TRANSLATE} with POST" if here else f"this address accepts {methods} only"
        return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        broken = any(one["type"] == "json_invalid" for one in error.errors())
        status = 400 if broken else 422
        _count_refusal(request.app, request.url.path, status)
        return JSONResponse({"error": _sentence(error.errors()[0])}, status)

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the server failed to process this request; see its log for the reason"}, 500)


def _count_answer(service: Service, status: int, begun: float) -> None:
    """Count a request handled by `translate`, and its time since `begun`."""
    service.metrics.requests.labels(str(status)).inc()
    if status in ATTEMPTED:
        service.metrics.seconds.observe(time.monotonic() - begun)


def _count_refusal(app: FastAPI, path: str, status: int) -> None:
    """Count a translation request that is refused before it reaches `translate`, which counts its own."""
    if path == TRANSLATE:
        app.state.service.metrics.requests.labels(str(status)).inc()


def _unreadable(why: BaseException | None) -> str:
    """Explain why Python's JSON parser cannot read a body."""
    match why:
        case UnicodeDecodeError():
            return "the request is not valid JSON in UTF-8"
        case RecursionError():
            return "the request is nested too deeply"
        case _:  # the only other failure: Python does not parse numbers with thousands of digits
            return "the request contains a number with thousands of digits, which no field accepts"


def _sentence(error: Any) -> str:
    """Describe a validation error of Pydantic in words."""
    field = ".".join(str(part) for part in error["loc"][1:])
    if error["type"] == "json_invalid":
        return "the request is not valid JSON"
    if not field and isinstance(error["input"], bytes):
        return "the request is not declared as JSON; send it with the header content-type: application/json"
    if not field and error["type"] == "string_unicode":
        return "the name of a field contains half of a surrogate pair, which is not a character"
    if not field:
        return 'the request is not a JSON object such as {"lines": ["April 4, 1989"]}'
    if error["type"] == "extra_forbidden":
        return f"unknown field {shown(field)}{did_you_mean(field, TranslationRequest.model_fields)}"
    return f"{field}: {error['msg'].lower()}"


async def _unless_gone(request: Request, work: Any) -> Any:
    """Await `work`, and cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        raise HTTPException(DISCONNECTED, "the client disconnected")
    finally:
        leaving.cancel()
        working.cancel()


READ_AND_DISCARDED = 16
"""How many times the maximum body size is read at most."""


class _TooLargeError(Exception):
    """The body has more bytes than allowed."""


class Limited:
    """ASGI middleware that limits the size and arrival time of requests and answers those cancelled at shutdown."""

    def __init__(
        self, app: ASGIApp, *, most: int, seconds: float, count: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        """Wrap `app`.

        Requests of more than `most` bytes are answered with 413, those that take longer than `seconds` to arrive with
        408, and those that are cancelled at shutdown with 503.

        `count` is called with the path and the status of each refusal.
        """
        self._app, self._most, self._seconds, self._count = app, most, seconds, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within the limits and pass it on, with the time of arrival as `arrived` of its state."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(scope, receive, noted)
        except asyncio.CancelledError:
            if not begun:  # an answer that is partly sent cannot be taken back; its connection is closed
                self._count(scope["path"], 503)
                sentence = "the server is shutting down and could not finish this request in time; send it again"
                await _refuse(503, sentence, scope, receive, send, **{"retry-after": str(RETRY_AFTER)})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`__call__` without handling cancellation."""
        scope.setdefault("state", {})["arrived"] = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            status, sentence = 408, "the request took too long to arrive; send it without delay"
        except _TooLargeError:
            status, sentence = 413, f"the request has more than {self._most} bytes; split it"
        else:
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)
            return
        self._count(scope["path"], status)
        await _refuse(status, sentence, scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the body. None if the client disconnects before its end. Raises _TooLargeError.

        A body that is too large is read and discarded up to a limit: a client that is still sending when its connection
        is closed may lose the answer that explains the error.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        size, announced = 0, int(length) if length.isdigit() else 0
        body, limit = bytearray(), READ_AND_DISCARDED * self._most
        more = announced <= limit
        while more and size <= limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self._most:
                body += part
        if max(size, announced) > self._most:
            raise _TooLargeError
        return bytes(body)


def _replayed(data: bytes, receive: Receive) -> Receive:
    """Replay the body that was read, then pass on later messages, such as a disconnect."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": data, "more_body": False}
        return await receive()

    return next_message


async def _refuse(status: int, sentence: str, scope: Scope, receive: Receive, send: Send, **headers: str) -> None:
    response = JSONResponse({"error": sentence}, status, headers={"connection": "close", **headers})
    await response(scope, receive, send)
