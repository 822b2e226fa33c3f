"""The state that request handlers share (model, batches, metrics), and the translation of a request."""

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
from convs2s_jax.translation import arguments

RETRY = 1
"""Seconds after which a client may retry."""
INLINE = 4096
"""Maximum characters of a request, times its nbest, that are tokenised and answered in the event loop itself if no
attention is requested. Larger requests would block others and run in a thread."""
LINE = 32
"""Characters added per line, since the fields of an answer take time however short the line is."""
MOST_WEIGHTS = 1 << 21
"""Maximum number of attention weights in an answer. As JSON they take up to 16 MB."""


class Service:
    """The model of a server with its batches and metrics.

    Attributes:
      engine: the model.
      options: limits.
      batcher: collects lines into batches.
      metrics: metrics of this server.
      programs: number of programs to compile before the server is ready.
      compiled: number of programs compiled so far.
      closing: set when the server shuts down. It then waits for the program that is being compiled, but for no other.
    """

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        """Start without compiled programs. Must be called within an event loop."""
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
        """A message while programs are still being compiled, else ""."""
        if self.compiled == self.programs:
            return ""
        return f"{self.compiled} of {self.programs} programs are compiled; try again soon"

    def compile(self, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Compile all programs, unless the server shuts down first. Slow; call it in a thread.

        Args:
          progress: called after each program with the number compiled so far and the total.
        """
        for _ in self.engine.compile():
            self.compiled += 1
            progress(self.compiled, self.programs)
            if self.closing:
                return

    async def translate(self, asked: TranslationRequest) -> bytes:
        """Return the answer to a request, a `TranslationAnswer` as JSON.

        Raises:
          HTTPException: the request cannot be served; the detail states why.
        """
        if self.missing:
            raise HTTPException(503, self.missing, {"retry-after": str(RETRY)})
        most = self.options.max_lines
        if len(asked.lines) > most:
            raise HTTPException(422, f"lines has {len(asked.lines)} lines, but this server accepts at most {most}")
        try:
            async with asyncio.timeout(self.options.timeout):
                answer = await self._answer(asked)
        except TimeoutError:
            raise HTTPException(504, f"the request timed out after {self.options.timeout:g} seconds") from None
        self.metrics.lines.inc(len(asked.lines))
        return answer

    async def _answer(self, asked: TranslationRequest) -> bytes:
        """`translate` without a time limit."""

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
            sentence = f"{self.batcher.waiting} lines are already waiting; try again later"
            raise HTTPException(429, sentence, {"retry-after": str(RETRY)}) from None
        try:
            results = await asyncio.gather(*answers)
        finally:
            for answer in answers:
                answer.cancel()
        content: bytes = await done(answer_of, results, asked)
        return content

    def _prepared(self, asked: TranslationRequest) -> tuple[Key, list[tuple[int, LineRequest]]]:
        """The batching key of a request, and each of its lines with its width.

        Raises:
          UserError: the request cannot be served.
        """
        engine, lines = self.engine, asked.lines
        for name, texts in asked.texts:
            _check_lines(name, texts)
        check(
            engine.translator.attends or not asked.needs_attention,
            "this model has no attention; remove alignment, attention and replace_unk",
        )
        own = engine.translator.shortlist is not None
        check(own or not asked.shortlist, "shortlist is true, but this server has no shortlist; remove it")
        search = engine.search_for(asked.changes, nbest=asked.nbest)
        drawn = search.sampling
        check(asked.seed is None or drawn, "seed has no effect without sampling; remove it")
        check(
            not (asked.shortlist and drawn),
            "shortlist cannot be combined with sampling, which uses all words; remove one of them",
        )
        short = own and asked.shortlist is not False and not drawn
        constraints = asked.constraints and [[one for one in phrases if one.strip()] for phrases in asked.constraints]
        axes = engine.room_for(search, lines, prefix=asked.prefix, constraints=constraints)
        key = Key(search, asked.replace_unk, asked.needs_attention, short, axes)
        required = zip(asked.prefix or [""] * len(lines), constraints or [[]] * len(lines), strict=True)
        requests = [
            LineRequest(line, asked.nbest, *more, draw=(asked.seed or 0, number))
            for number, (line, more) in enumerate(zip(lines, required, strict=True))
        ]
        widths = engine.widths_of(lines)
        count = engine.most_weights(search, widths, nbest=asked.nbest) if asked.attention else 0
        check(
            count <= MOST_WEIGHTS,
            f"attention: translations of these lines may have {count} weights, but this server returns at most "
            f"{MOST_WEIGHTS}; request fewer lines at once or a smaller nbest",
        )
        return key, list(zip(widths, requests, strict=True))


def _check_lines(name: str, texts: Sequence[str]) -> None:
    """Raise UserError for texts that are not single lines of valid Unicode."""
    for number, text in enumerate(texts, 1):
        remedy = "send each line as a separate entry of lines" if name == "line" else "remove it"
        check("\n" not in text and "\r" not in text, f"{name} {number} contains a line break; {remedy}")
        check(
            arguments.is_unicode(text),
            f"{name} {number} contains half of a surrogate pair, which is not a character; correct its encoding",
        )
