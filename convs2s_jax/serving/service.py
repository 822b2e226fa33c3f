"""What the handlers of requests share: the model, its batches, its metrics, and the answer to a request."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import HTTPException

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.serving.batching import Batcher, FullError
from convs2s_jax.serving.engine import Engine, Key, LineRequest
from convs2s_jax.serving.messages import TranslationRequest, answer_of
from convs2s_jax.serving.metrics import Metrics
from convs2s_jax.serving.options import ServeOptions

RETRY = 1
"""Seconds after which a client may try again."""
INLINE = 4096
"""Characters of a request, times its nbest, up to which the event loop itself tokenises and answers where no attention
is asked for; more would keep other requests waiting, and get a thread."""
LINE = 32
"""Characters that a line counts in addition: an answer has its fields, however short it is."""
MOST_WEIGHTS = 1 << 21
"""Attention weights that an answer may have: as JSON they are up to 16 MB."""


class Service:
    """The model of a server with its batches and metrics.

    Attributes:
      engine: the model.
      options: limits.
      batcher: collects lines.
      metrics: of this server.
      programs: how many are compiled before the server is ready.
      compiled: how many are.
      closing: set when the server ends, which then waits for the program that is being compiled and for no other.
    """

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        """Begin without compiled programs. Called within an event loop."""
        self.engine, self.options = engine, options
        self.programs, self.compiled, self.closing = sum(1 for _ in engine.shapes()), 0, False
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

    def compile(self, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Compile all programs, unless the server ends before; in a thread, since it takes a while.

        Args:
          progress: called after each with how many are compiled, and of how many.
        """
        for _ in self.engine.compile():
            self.compiled += 1
            progress(self.compiled, self.programs)
            if self.closing:
                return

    async def translate(self, asked: TranslationRequest) -> bytes:
        """The answer to a request, a `TranslationAnswer` as JSON.

        Raises:
          HTTPException: it cannot be served, and why.
        """
        if self.missing:
            raise HTTPException(503, self.missing, {"retry-after": str(RETRY)})
        most = self.options.max_lines
        if len(asked.lines) > most:
            raise HTTPException(422, f"lines has {len(asked.lines)} lines: this server takes up to {most}")
        try:
            async with asyncio.timeout(self.options.timeout):
                answer = await self._answer(asked)
        except TimeoutError:
            raise HTTPException(504, f"there was no answer within {self.options.timeout:g} seconds") from None
        self.metrics.lines.inc(len(asked.lines))
        return answer

    async def _answer(self, asked: TranslationRequest) -> bytes:
        """`translate` of a request that may take as long as it does."""

        async def done(work: Callable[..., Any], *given: Any) -> Any:
            return work(*given) if inline else await asyncio.to_thread(work, *given)

        inline = (asked.characters + LINE * len(asked.lines)) * asked.nbest <= INLINE and not asked.attention
        try:
            key, requests = await done(self._prepared, asked)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        try:
            answers = self.batcher.submit(key, requests)
        except FullError:
            sentence = f"{self.batcher.waiting} lines are waiting already: try again later"
            raise HTTPException(429, sentence, {"retry-after": str(RETRY)}) from None
        try:
            results = await asyncio.gather(*answers)
        finally:
            for answer in answers:
                answer.cancel()
        content: bytes = await done(answer_of, results, asked)
        return content

    def _prepared(self, asked: TranslationRequest) -> tuple[Key, list[tuple[int, LineRequest]]]:
        """What the lines of a request have in common, and each with its width.

        Raises:
          UserError: the request cannot be served.
        """
        engine, lines = self.engine, asked.lines
        for name, texts in asked.texts:
            _check_lines(name, texts)
        check(
            engine.translator.attends or not asked.looks,
            "this model has no attention: leave out alignment, attention and replace_unk",
        )
        own = engine.translator.shortlist is not None
        check(own or not asked.shortlist, "shortlist is true and this server has none: leave it out")
        search = engine.asked(asked.changes, nbest=asked.nbest)
        drawn = search.sampling
        check(asked.seed is None or drawn, "seed without sampling: nothing is drawn in beam search; leave it out")
        check(
            not (asked.shortlist and drawn), "shortlist with sampling: samples are drawn from all words; leave one out"
        )
        short = own and asked.shortlist is not False and not drawn
        constraints = asked.constraints and [[one for one in phrases if one.strip()] for phrases in asked.constraints]
        axes = engine.room_for(search, lines, prefix=asked.prefix, constraints=constraints)
        key = Key(search, asked.replace_unk, asked.looks, short, axes)
        required = zip(asked.prefix or [""] * len(lines), constraints or [[]] * len(lines), strict=True)
        requests = [
            LineRequest(line, asked.nbest, *more, draw=(asked.seed or 0, number))
            for number, (line, more) in enumerate(zip(lines, required, strict=True))
        ]
        widths = engine.widths_of(lines)
        count = engine.most_weights(search, widths, nbest=asked.nbest) if asked.attention else 0
        check(
            count <= MOST_WEIGHTS,
            f"attention: translations of these lines may have {count} weights, and this server returns up to "
            f"{MOST_WEIGHTS}; ask for fewer lines at once, or for a smaller nbest",
        )
        return key, list(zip(widths, requests, strict=True))


def _check_lines(name: str, texts: Sequence[str]) -> None:
    """Refuse texts that are no lines."""
    for number, text in enumerate(texts, 1):
        check(
            "\n" not in text and "\r" not in text, f"{name} {number} has a line break: give each line as one of lines"
        )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{name} {number} has half of a surrogate pair, which is no character") from None
