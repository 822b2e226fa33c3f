"""The application: what a server answers to each request."""

import asyncio
import contextlib
import importlib.resources
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.serving.batching import Batcher, FullError
from convs2s_jax.serving.engine import Engine, Key
from convs2s_jax.serving.messages import Problem, TranslationAnswer, TranslationRequest, line_of
from convs2s_jax.serving.metrics import Metrics
from convs2s_jax.serving.options import ServeOptions

RETRY = 1
"""Seconds after which a client may try again."""
INLINE = 4096
"""Characters of a request that are tokenised at once; more would keep other requests waiting, and get a thread."""
GONE = 499
"""Status of a request whose client has left, as proxies write it."""
PAGE = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
"""Files of the page for people and their types."""
POLICY = "default-src 'self'; img-src 'self' data:"
"""Content security policy of the page: nothing is loaded from elsewhere."""


class Service:
    """What the handlers of requests share.

    Attributes:
      engine: the model.
      options: limits.
      batcher: collects lines.
      metrics: of this server.
      programs: how many are compiled before the server is ready.
      compiled: how many are.
    """

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        """Begin without compiled programs. Called within an event loop."""
        self.engine, self.options = engine, options
        self.programs, self.compiled = sum(1 for _ in engine.shapes()), 0
        self.batcher = Batcher(
            run=lambda items: engine.run(items[0].key, max(item.width for item in items), [i.line for i in items]),  # type: ignore[arg-type]  # keys are those of `translate`
            rows=lambda key: engine.rows_of(key)[-1],  # type: ignore[arg-type]
            wait=options.wait_ms / 1000,
            most=options.max_waiting,
            ran=lambda lines: self.metrics.batch_lines.observe(lines),
        )
        self.metrics = Metrics(ready=lambda: not self.missing, waiting=lambda: self.batcher.waiting)

    @property
    def missing(self) -> str:
        """A sentence while programs are still being compiled, else ""."""
        if self.compiled == self.programs:
            return ""
        return f"{self.compiled} of {self.programs} programs are compiled: try again soon"

    def compile(self) -> None:
        """Compile all programs; in a thread, since it takes a while."""
        for _ in self.engine.compile():
            self.compiled += 1

    async def translate(self, asked: TranslationRequest) -> TranslationAnswer:
        """The translations of a request.

        Raises:
          HTTPException: it cannot be served, and why.
        """
        if self.missing:
            raise HTTPException(503, self.missing, {"retry-after": str(RETRY)})
        lines = asked.lines
        if len(lines) > self.options.max_lines:
            raise HTTPException(422, f"lines has {len(lines)} lines: this server takes up to {self.options.max_lines}")
        for number, line in enumerate(lines, 1):
            _check_line(number, line)
        if asked.looks and not self.engine.translator.attends:
            raise HTTPException(422, "this model has no attention: leave out alignment, attention and replace_unk")
        try:
            search = self.engine.asked(asked.changes, nbest=asked.nbest)
            few = sum(map(len, lines)) <= INLINE
            widths = self.engine.widths_of(lines) if few else await asyncio.to_thread(self.engine.widths_of, lines)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        key = Key(search, asked.replace_unk, asked.looks)
        try:
            answers = self.batcher.submit(key, list(zip(widths, lines, strict=True)))
        except FullError:
            sentence = f"{self.batcher.waiting} lines are waiting already: try again later"
            raise HTTPException(429, sentence, {"retry-after": str(RETRY)}) from None
        try:
            async with asyncio.timeout(self.options.timeout):
                results = await asyncio.gather(*answers)
        except TimeoutError:
            raise HTTPException(504, f"there was no answer within {self.options.timeout:g} seconds") from None
        finally:
            for answer in answers:
                answer.cancel()
        self.metrics.lines.inc(len(lines))
        return TranslationAnswer(translations=[line_of(result, asked) for result in results])


def make(engine: Engine, options: ServeOptions, *, ready: Callable[[], None] = lambda: None) -> FastAPI:
    """The application of an engine.

    Args:
      engine: the model.
      options: limits.
      ready: called once all programs are compiled.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = Service(engine, options)

        async def warm() -> None:
            await asyncio.to_thread(service.compile)
            ready()

        tasks = [asyncio.create_task(service.batcher.work()), asyncio.create_task(warm())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="convs2s_jax",
        description="Translation by a convolutional sequence-to-sequence model.",
        lifespan=lifespan,
        redoc_url=None,
    )
    _add_handlers(app)
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    problems: dict[int | str, Any] = {status: {"model": Problem} for status in (400, 408, 413, 422, 429, 500, 503, 504)}

    @app.post("/translate", responses=problems)
    async def translate(request: Request, asked: TranslationRequest) -> TranslationAnswer:
        """Translate lines. Lines of requests that arrive together share a batch, which changes no translation."""
        service: Service = request.app.state.service
        begun, status = time.monotonic(), 500
        try:
            answer = await _unless_gone(request, service.translate(asked))
            status = 200
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            service.metrics.requests.labels(str(status)).inc()
            service.metrics.seconds.observe(time.monotonic() - begun)
        return answer

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"model": Problem}})
    async def ready(request: Request) -> dict[str, str]:
        """Whether all programs are compiled, so that requests are answered without delay."""
        service: Service = request.app.state.service
        if service.missing:
            raise HTTPException(503, service.missing, {"retry-after": str(RETRY)})
        return {"status": "ready"}

    @app.get("/about")
    async def about(request: Request) -> dict[str, Any]:
        """What the model and the limits are, for the page."""
        service: Service = request.app.state.service
        engine, options = service.engine, service.options
        data = engine.translator.cfg.data
        return {
            "source": data.src,
            "target": data.tgt,
            "beam_sizes": list(engine.beam_sizes),
            "attention": engine.translator.attends,
            "max_tokens": engine.max_tokens - 1,
            "max_lines": options.max_lines,
        }

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        return Response(request.app.state.service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _page("index.html")

    @app.get("/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        return _page(name)


def _page(name: str) -> Response:
    """A file of the page for people."""
    if name not in PAGE:
        raise HTTPException(404, "there is no such page")
    content = importlib.resources.files("convs2s_jax.serving").joinpath("static", name).read_bytes()
    return Response(content, media_type=PAGE[name], headers={"content-security-policy": POLICY})


def _add_handlers(app: FastAPI) -> None:
    """Answer every mistake with a sentence, and errors of the program without their traceback."""

    @app.exception_handler(AnyHTTPException)
    async def refused(_request: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        broken = any(one["type"] == "json_invalid" for one in error.errors())
        return JSONResponse({"error": _sentence(error.errors()[0])}, 400 if broken else 422)

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the server failed at this request; its log has the reason"}, 500)


def _sentence(error: Any) -> str:
    """A mistake that Pydantic found, in words."""
    field = ".".join(str(part) for part in error["loc"][1:])
    if error["type"] == "json_invalid":
        return "the request is not JSON"
    if error["type"] == "extra_forbidden":
        return f"there is no field '{field}'{did_you_mean(field, TranslationRequest.model_fields)}"
    return f"{field or 'the request'}: {error['msg'].lower()}"


def _check_line(number: int, line: str) -> None:
    """Refuse a text that is no line."""
    if "\n" in line:
        raise HTTPException(422, f"line {number} has a line break: give each line as one of lines")
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        raise HTTPException(422, f"line {number} has half of a surrogate pair, which is no character") from None


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of `work`, which is cancelled when the client leaves."""
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
        raise HTTPException(GONE, "the client has left")
    finally:
        leaving.cancel()
        working.cancel()
