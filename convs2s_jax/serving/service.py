"""What the handlers of requests share: the model, its batches, its metrics, and the answer to a request."""

import asyncio

from fastapi import HTTPException

from convs2s_jax.core.errors import UserError
from convs2s_jax.serving.batching import Batcher, FullError
from convs2s_jax.serving.engine import Engine, Key, LineRequest
from convs2s_jax.serving.messages import TranslationAnswer, TranslationRequest, line_of
from convs2s_jax.serving.metrics import Metrics
from convs2s_jax.serving.options import ServeOptions

RETRY = 1
"""Seconds after which a client may try again."""
INLINE = 4096
"""Characters of a request that are tokenised at once; more would keep other requests waiting, and get a thread."""


class Service:
    """The model of a server with its batches and metrics.

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
            run=lambda items: engine.run(items[0].key, max(item.width for item in items), [i.line for i in items]),
            rows=lambda key: engine.rows_of(key)[-1],
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
        own = self.engine.translator.shortlist is not None
        if asked.shortlist and not own:
            raise HTTPException(422, "shortlist is true and this server has none: leave it out")
        few = own if asked.shortlist is None else asked.shortlist
        try:
            search = self.engine.asked(asked.changes, nbest=asked.nbest)
            short = sum(map(len, lines)) <= INLINE
            widths = self.engine.widths_of(lines) if short else await asyncio.to_thread(self.engine.widths_of, lines)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        key = Key(search, asked.replace_unk, asked.looks, few)
        try:
            requests = [LineRequest(line, asked.nbest) for line in lines]
            answers = self.batcher.submit(key, list(zip(widths, requests, strict=True)))
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


def _check_line(number: int, line: str) -> None:
    """Refuse a text that is no line."""
    if "\n" in line:
        raise HTTPException(422, f"line {number} has a line break: give each line as one of lines")
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        raise HTTPException(422, f"line {number} has half of a surrogate pair, which is no character") from None
