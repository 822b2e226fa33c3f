"""Limits on requests: size, time to arrive, and time to finish when the server shuts down."""

import asyncio
import time
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from convs2s_jax.serving.service import RETRY

DISCARDED = 16
"""How many times the maximum body size is read and discarded. A client that is still sending when its connection is
closed may lose the answer that explains the error."""


class _TooLargeError(Exception):
    """The body has more bytes than allowed."""


class Bounded:
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
                await _refuse(503, sentence, scope, receive, send, retry=True)

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
        """Read the body. None if the client disconnects before its end. Raises _TooLargeError."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            if int(length) <= DISCARDED * self._most:
                await self._discard(receive)
            raise _TooLargeError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                body.clear()
                if more:
                    await self._discard(receive)
                raise _TooLargeError
            if not more:
                return bytes(body)

    async def _discard(self, receive: Receive) -> None:
        """Read the rest of a body that is too large, up to a limit."""
        size = 0
        while size <= DISCARDED * self._most:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return


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


async def _refuse(
    status: int, sentence: str, scope: Scope, receive: Receive, send: Send, *, retry: bool = False
) -> None:
    headers = {"connection": "close"} | ({"retry-after": str(RETRY)} if retry else {})
    response = JSONResponse({"error": sentence}, status, headers=headers)
    await response(scope, receive, send)
