"""A server without sockets, whose model turns words around."""

import asyncio
import contextlib
import dataclasses
import threading
import types

import httpx
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.serving import app
from convs2s_jax.serving.engine import Engine
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.serving.service import Service
from convs2s_jax.translation.results import Hypothesis, Result


class Model:
    """A translator that turns words around; only what handlers ask of one."""

    attends = True
    shortlist = None
    members = (types.SimpleNamespace(max_target=64),)


@dataclasses.dataclass(frozen=True)
class Reversing(Engine):
    """An engine without a model. The line "slow" waits for the event, and "fail" cannot be translated.

    Attributes:
      event: ends the wait.
      begun: is released by each batch with "slow" in it.
    """

    event: threading.Event = dataclasses.field(default_factory=threading.Event)
    begun: threading.Semaphore = dataclasses.field(default_factory=lambda: threading.Semaphore(0))

    def widths_of(self, lines):
        for number, line in enumerate(lines, 1):
            if len(line.split()) >= self.max_tokens:
                raise UserError(f"line {number} is too long")
        return [16 for _ in lines]

    def compile(self):
        yield from (None for _ in self.shapes())

    def run(self, key, _width, requests):
        lines = [one.text for one in requests]
        if "slow" in lines:
            self.begun.release()
            self.event.wait(20)
        if "fail" in lines:
            raise RuntimeError("secret of the program, in /some/path")
        return [self._result(i, line, key) for i, line in enumerate(lines)]

    def _result(self, i, line, key):
        words = (*line.split()[::-1], "</s>")
        square = np.eye(len(words), dtype=np.float32)[::-1] if key.attention else None
        one = Hypothesis(" ".join(words[:-1]), words, -0.5, (-0.25,) * len(words), ((0, 1),), square)
        worse = dataclasses.replace(one, text="worse", score=float("-inf"))
        return Result(i, line, tuple(line.split()), (one, worse)[: key.search.beam_size])


def reversing(kind=Reversing, batch_size=64):
    """An engine of beams of 2 and 1, with lines of up to 31 words."""
    return kind(Model(), SearchConfig(beam_size=2), (2, 1), batch_size, 32)


def talk(work, *, options=None, engine=None, compile=True):
    """What `work(client)` returns, of a client of a server without sockets."""
    options, engine = options or ServeOptions(workdir=("w",)), engine or reversing()

    async def main():
        made = app.make(Service(engine, options, tell=lambda _: None, failed=lambda _: None))
        transport = httpx.ASGITransport(app=made, raise_app_exceptions=False)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(made.router.lifespan_context(made))
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://localhost")
            )
            while compile and (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)
            return await work(client)

    return asyncio.run(main())
