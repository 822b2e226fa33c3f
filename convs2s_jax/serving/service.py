"""What a server answers: its metrics, the JSON schema of requests and answers, and the translation of a request."""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, shown
from convs2s_jax.core.text import visible
from convs2s_jax.search.batching import max_output_length
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.serving.batching import Batcher, Item
from convs2s_jax.serving.engine import Engine, Key, LineRequest
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.translation.jobs.formats import record
from convs2s_jax.translation.lines import TextRequest
from convs2s_jax.translation.results import Result

RETRY_AFTER = 1
"""Seconds after which a client may retry."""
INLINE_CHARACTERS, LINE_CHARACTERS = 4096, 32
"""Maximum characters of a request, times its nbest, that are tokenised and answered in the event loop itself if no
attention is requested; larger requests would block others and run in a thread. And characters added per line, since the
fields of an answer take time however short the line is."""
MOST_WEIGHTS = 1 << 21
"""Maximum number of attention weights in an answer. As JSON they take up to 16 MB."""
LATENCIES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets of histograms: seconds, and lines."""
SEARCH_FIELDS = {field.name for field in dataclasses.fields(SearchConfig)}


class TranslationRequest(BaseModel):
    """Lines to translate, with options. Search fields that are omitted default to the server's values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lines: Annotated[
        list[str], Field(description="lines to translate, one sentence each", examples=[["April 4, 1989"]])
    ]
    nbest: Annotated[int, Field(description="number of translations per line, at most beam_size")] = 1
    alignment: Annotated[bool, Field(description="whether to return the source token of each target token")] = False
    attention: Annotated[bool, Field(description="whether to return the attention as a matrix")] = False
    replace_unk: Annotated[bool, Field(description="replace unknown words by the source words they attend to")] = False
    prefix: Annotated[
        list[str] | None, Field(description='for each line, words that its translation must begin with; "" for none')
    ] = None
    constraints: Annotated[
        list[list[str]] | None,
        Field(description="for each line, phrases that must occur in its translation, in any order"),
    ] = None
    shortlist: Annotated[
        bool | None,
        Field(description="on a server with a shortlist, false: use all words; true: only the likely words"),
    ] = None
    sampling: Annotated[
        bool | None,
        Field(description="sample beam_size translations of each line and rank them, instead of beam search"),
    ] = None
    seed: Annotated[int | None, Field(description="random seed for sampling; 0 by default", ge=0, lt=2**32)] = None
    beam_size: Annotated[int | None, Field(description="one of the server's beam sizes")] = None
    length_penalty: Annotated[float | None, Field(description="scores are divided by the length to this power")] = None
    coverage_penalty: Annotated[float | None, Field(description="weight of the coverage penalty")] = None
    temperature: Annotated[float | None, Field(description="divisor of the logits")] = None
    unk_penalty: Annotated[float | None, Field(description="nats subtracted for each unknown word")] = None
    min_length: Annotated[int | None, Field(description="minimum number of tokens in a translation")] = None

    @property
    def texts(self) -> Iterator[str]:
        """Its lines, prefixes and constraints."""
        return itertools.chain(self.lines, self.prefix or (), *(self.constraints or ()))


class Hypothesis(BaseModel):
    """One translation of a line."""

    text: str
    tokens: Annotated[list[str], Field(description="the model's tokens, end symbol last")]
    score: Annotated[float | None, Field(description="in nats, normalised as in the search; null if there is none")]
    token_scores: Annotated[list[float | None], Field(description="score of each token, in nats")]
    alignment: Annotated[
        str | None, Field(description='pairs of source and target tokens, from 0, such as "0-0 1-2"; only if requested')
    ] = None
    attention: Annotated[
        list[list[float]] | None,
        Field(description="one row per entry of tokens, one column per source token and one for the end symbol"),
    ] = None


class Line(BaseModel):
    """A line and its translations."""

    text: Annotated[str, Field(description="the best translation")]
    source_tokens: list[str]
    hypotheses: Annotated[list[Hypothesis], Field(description="best first")]


class TranslationAnswer(BaseModel):
    """The answer to a `TranslationRequest`: one entry for each line, in order."""

    translations: list[Line]


class Problem(BaseModel):
    """The answer to a request that cannot be served."""

    error: Annotated[str, Field(description="one sentence about what is wrong and how to fix it")]


def answer_of(results: Sequence[Result], request: TranslationRequest) -> bytes:
    """The JSON of a `TranslationAnswer`, built line by line so that other threads can run in between."""
    lines = []
    for result in results:
        found = result.hypotheses[: request.nbest]
        hypotheses = record(dataclasses.replace(result, hypotheses=found))["hypotheses"]
        for one, values in zip(found, hypotheses, strict=True):
            if not request.alignment:
                del values["alignment"]
            if request.attention and one.attention is not None:
                values["attention"] = np.round(one.attention.astype(np.float64), 4).tolist()
        line = Line(text=found[0].text, source_tokens=list(result.source_tokens), hypotheses=hypotheses)
        lines.append(line.model_dump_json())
    return f'{{"translations":[{",".join(lines)}]}}'.encode()


class Service:
    """The model of a server with its batches and metrics.

    Attributes:
      engine: the model.
      options: limits.
      programs: number of programs to compile before the server is ready.
      compiled: number of programs compiled so far.
      requests: metric of answered translation requests, by status.
      seconds: metric of the time from the start of a request's arrival to its answer, without refusals.
    """

    def __init__(
        self, engine: Engine, options: ServeOptions, *, tell: Tell, failed: Callable[[BaseException], None]
    ) -> None:
        """Start without compiled programs.

        Args:
          engine: the model.
          options: limits.
          tell: called with a sentence for the user once all programs are compiled.
          failed: called with the error if a program cannot be compiled or batches are no longer translated.
        """
        self.engine, self.options, self._tell, self._failed = engine, options, tell, failed
        self.programs, self.compiled, self._closing = sum(1 for _ in engine.shapes()), 0, False
        self._batcher = Batcher(
            run=self._run,
            rows=lambda key: engine.rows_of(key)[-1],
            wait=options.wait_ms / 1000,
            most_waiting=options.max_waiting,
        )
        self._registry = own = CollectorRegistry()
        self.requests = Counter("convs2s_requests", "translation requests, by status", ["status"], registry=own)
        self.seconds = Histogram(
            "convs2s_request_seconds",
            "time from the arrival of a request to its answer, without refusals",
            buckets=LATENCIES,
            registry=own,
        )
        self._lines = Counter("convs2s_lines", "translated lines", registry=own)
        self._batch_lines = Histogram("convs2s_batch_lines", "lines per batch", buckets=BATCH_SIZES, registry=own)
        ready = Gauge("convs2s_ready", "1 once all programs are compiled", registry=own)
        ready.set_function(lambda: float(self.compiled == self.programs))
        waiting = Gauge("convs2s_waiting_lines", "lines waiting for a batch", registry=own)
        waiting.set_function(lambda: float(self._batcher.waiting))

    def metrics(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compile the programs and translate batches inside. At the end, only a program in progress is awaited."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failed(error)

        works = (self._batcher.work(), asyncio.to_thread(self._compile))
        tasks = [asyncio.create_task(work) for work in works]
        for task in tasks:
            task.add_done_callback(ended)
        yield
        self._closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _compile(self) -> None:
        """Compile all programs, unless the server shuts down first."""
        begun = time.monotonic()
        for _ in self.engine.compile():
            self.compiled += 1
            if self._closing:
                return
        self._tell(f"ready after {time.monotonic() - begun:.0f} s")

    def _run(self, items: Sequence[Item]) -> list[Result]:
        """Translate a batch."""
        results = self.engine.run(items[0].key, max(item.width for item in items), [item.line for item in items])
        self._batch_lines.observe(len(items))
        return results

    def check_ready(self) -> None:
        """Raise HTTPException while programs are still being compiled."""
        if self.compiled < self.programs:
            sentence = f"{self.compiled} of {self.programs} programs are compiled; try again soon"
            raise HTTPException(503, sentence, {"retry-after": str(RETRY_AFTER)})

    async def translate(self, asked: TranslationRequest) -> bytes:
        """Return the answer to a request, a `TranslationAnswer` as JSON.

        Raises:
          HTTPException: the request cannot be served; the detail states why.
        """
        self.check_ready()
        most = self.options.max_lines
        if len(asked.lines) > most:
            raise HTTPException(422, f"lines has {len(asked.lines)} lines, but this server accepts at most {most}")
        try:
            async with asyncio.timeout(self.options.timeout):
                answer = await self._answer(asked)
        except TimeoutError:
            raise HTTPException(504, f"the request timed out after {self.options.timeout:g} seconds") from None
        self._lines.inc(len(asked.lines))
        return answer

    async def _answer(self, asked: TranslationRequest) -> bytes:
        """`translate` without a time limit."""

        async def done(work: Callable[..., Any], *given: Any) -> Any:
            return work(*given) if inline else await asyncio.to_thread(work, *given)

        size = (sum(map(len, asked.texts)) + LINE_CHARACTERS * len(asked.lines)) * asked.nbest
        inline = size <= INLINE_CHARACTERS and not asked.attention
        try:
            key, requests = await done(self._prepared, asked)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        try:
            answers = self._batcher.submit(key, requests)
        except asyncio.QueueFull:
            sentence = f"{self._batcher.waiting} lines are already waiting; try again later"
            raise HTTPException(429, sentence, {"retry-after": str(RETRY_AFTER)}) from None
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
        for text in asked.texts:
            check("\n" not in text and "\r" not in text, f"{shown(text)} contains a line break; send lines separately")
        attention = asked.alignment or asked.attention or asked.replace_unk
        check(
            engine.translator.attends or not attention,
            "this model has no attention; remove alignment, attention and replace_unk",
        )
        changes = {name: value for name, value in asked if name in SEARCH_FIELDS and value is not None}
        search = engine.search_for(changes, nbest=asked.nbest)
        check(asked.seed is None or search.sampling, "seed has no effect without sampling; remove it")
        few = engine.translator.shortlist is not None and not search.sampling
        check(few or not asked.shortlist, "shortlist is true, but this server has none, or not for samples; remove it")
        constraints = asked.constraints and [[one for one in phrases if visible(one)] for phrases in asked.constraints]
        axes = engine.room_for(TextRequest(search, lines, prefix=asked.prefix, constraints=constraints))
        key = Key(search, asked.replace_unk, attention, few and asked.shortlist is not False, axes)
        required = zip(asked.prefix or [""] * len(lines), constraints or [[]] * len(lines), strict=True)
        requests = [
            LineRequest(line, asked.nbest, *more, draw=(asked.seed or 0, number))
            for number, (line, more) in enumerate(zip(lines, required, strict=True))
        ]
        widths = engine.widths_of(lines)
        models = engine.translator.members
        count = asked.nbest * sum(width * (max_output_length(models, search, width) + 1) for width in widths)
        check(
            count <= MOST_WEIGHTS or not asked.attention,
            f"attention: translations of these lines may have {count} weights, but this server returns at most "
            f"{MOST_WEIGHTS}; request fewer lines at once or a smaller nbest",
        )
        return key, list(zip(widths, requests, strict=True))
