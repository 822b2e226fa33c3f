"""The web application: routes, error messages, static pages, and limits on the size and duration of requests."""

import asyncio
import functools
import importlib.resources
import ipaddress
import re
import socket
import time
from collections.abc import Coroutine, Set
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from convs2s_jax.core.errors import did_you_mean, shown
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


def make(service: Service) -> FastAPI:
    """Create the application, which runs the service."""
    app = FastAPI(
        title="convs2s_jax",
        description="Translation by a convolutional sequence-to-sequence model.",
        lifespan=lambda _app: service.running(),
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_handlers(app)
    _add_routes(app, service)
    app.add_middleware(_Guard, hosts=_hosts(service.options))
    return app


def _hosts(options: ServeOptions) -> Set[str]:
    """Return the names of this server in lower case."""
    return {name.lower() for name in ("localhost", socket.gethostname(), options.host, *options.allow_host)}


class _Guard:
    """Refuses requests for other hosts, and those whose length is stated twice.

    A web page can point its own name to the address of this server (DNS rebinding). The browser then lets it read
    answers, but sends its name. Addresses of any kind are no such names. HTTP/1.0, which no browser speaks, may state
    no host. Starlette's TrustedHostMiddleware does not read addresses of IPv6.
    """

    def __init__(self, app: ASGIApp, hosts: Set[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        host = headers.get("host")
        if host is not None and not self._is_own(host):
            sentence = f"this server does not answer for the host {shown(host)}; name it when the server is started"
            answer = JSONResponse({"error": f"{sentence}, as in --allow_host=translate.example.com"}, 421)
            await answer(scope, receive, send)
        elif {"content-length", "transfer-encoding"} <= {*headers}:
            sentence = "the request has both Content-Length and Transfer-Encoding; send one of them"
            await JSONResponse({"error": sentence}, 400, {"connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        """Whether a Host header, NAME:PORT or [ADDRESS]:PORT, has a name of this server or an address."""
        found = re.fullmatch(r"(?:\[(.+)\]|([\w.-]+?)\.?)(?::[0-9]*)?", host, re.ASCII)
        address, name = found.groups("") if found else ("", "")
        try:
            return bool({name.lower(), name and "*"} & self._hosts or ipaddress.ip_address(address or name))
        except ValueError:
            return False


def _add_routes(app: FastAPI, service: Service) -> None:
    problems: dict[int | str, Any] = {
        status: {"model": Problem} for status in (400, 408, 413, 415, 422, 429, 500, 503, 504)
    }
    body = {"required": True, "content": {"application/json": {"schema": TranslationRequest.model_json_schema()}}}

    @app.post(TRANSLATE, response_model=TranslationAnswer, responses=problems, openapi_extra={"requestBody": body})
    async def translate(request: Request) -> Response:
        """Translate lines. Requests that arrive together share a batch, which does not change their translations."""
        begun, status = time.monotonic(), 500
        try:
            asked = _parsed(await _body(request, service.options), request.headers.get("content-type", ""))
            answer = await _unless_gone(request, service.translate(asked))
            status = 200
            return Response(answer, media_type="application/json")
        except HTTPException as error:
            status = error.status_code
            raise
        except asyncio.CancelledError:  # the server is told to stop, and does not wait any longer
            status = 503
            sentence = "the server is shutting down and could not finish this request in time; send it again"
            headers = {"retry-after": str(RETRY_AFTER), "connection": "close"}
            return JSONResponse({"error": sentence}, status, headers)
        finally:
            service.requests.labels(str(status)).inc()
            if status in ATTEMPTED:
                service.seconds.observe(time.monotonic() - begun)

    @app.head("/health", include_in_schema=False)  # some load balancers ask in this way
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Check that the process responds."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", responses={503: {"model": Problem}})
    async def ready() -> dict[str, str]:
        """Check that all programs are compiled, so that requests are answered without delay."""
        service.check_ready()
        return {"status": "ready"}

    @app.get("/about")
    async def about() -> dict[str, Any]:
        """Describe the model and the limits, for the web page."""
        engine, data = service.engine, service.engine.translator.cfg.data
        return {
            "source": data.src,
            "target": data.tgt,
            "beam_sizes": list(engine.beam_sizes),
            "attention": engine.translator.attends,
            "allow": list(engine.allow),
            "shortlist": engine.translator.shortlist is not None,
            "max_tokens": engine.max_tokens - 1,
            "max_lines": service.options.max_lines,
        }

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.metrics(), media_type="text/plain; version=0.0.4")

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
        if error.status_code == 404:
            sentence = "no such page; see /docs for all endpoints"
        elif error.status_code == 405:
            methods = (error.headers or {}).get("Allow", "another method")
            here = request.url.path == TRANSLATE
            sentence = f"send lines to {TRANSLATE} with POST" if here else f"this address accepts {methods} only"
        return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the server failed to process this request; see its log for the reason"}, 500)


async def _body(request: Request, options: ServeOptions) -> bytes:
    """Read the body of a request.

    What is beyond the limit is read and dropped: a client that is still sending when its connection is closed may lose
    the answer that explains the error.

    Raises:
      HTTPException: it is too large, does not arrive in time, or its client disconnects.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(options.timeout):
            async for part in request.stream():
                size += len(part)
                if size <= options.max_body:
                    body += part
    except TimeoutError:
        sentence = "the request took too long to arrive; send it without delay"
        raise HTTPException(408, sentence, {"connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(DISCONNECTED, "the client disconnected") from None
    if size > options.max_body:
        raise HTTPException(413, f"the request has more than {options.max_body} bytes; split it")
    return bytes(body)


def _parsed(body: bytes, kind: str) -> TranslationRequest:
    """Parse a body of this content type. Raises HTTPException with a sentence if it is no request.

    Browsers ask the server first whether a page of another host may send JSON, but not for other types.
    """
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the request is not declared as JSON; send it with Content-Type: application/json")
    try:
        return TranslationRequest.model_validate_json(body)
    except ValidationError as invalid:
        error: Any = invalid.errors()[0]
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "json_invalid":
        raise HTTPException(400, f"the request is not valid JSON in UTF-8: {error['ctx']['error']}")
    if not field:
        raise HTTPException(422, 'the request is not a JSON object such as {"lines": ["April 4, 1989"]}')
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(field, TranslationRequest.model_fields)
        raise HTTPException(422, f"unknown field {shown(field)}{hint}")
    raise HTTPException(422, f"{field}: {error['msg'].lower()}")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, bytes]) -> bytes:
    """Await `work`, and cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(DISCONNECTED, "the client disconnected")
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
