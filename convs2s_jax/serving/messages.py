"""The JSON schema of requests and answers."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.formats import record
from convs2s_jax.translation.results import Result

SEARCH = {field.name for field in dataclasses.fields(SearchConfig)}


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
    def changes(self) -> dict[str, Any]:
        """The search fields that the request sets."""
        return {name: value for name, value in self if name in SEARCH and value is not None}

    @property
    def texts(self) -> tuple[tuple[str, list[str]], ...]:
        """Its texts, grouped by kind: (name of one text, texts)."""
        phrases = [phrase for each in self.constraints or () for phrase in each]
        return ("line", self.lines), ("prefix", self.prefix or []), ("constraint", phrases)

    @property
    def characters(self) -> int:
        """Total number of characters in its texts."""
        return sum(len(text) for _, texts in self.texts for text in texts)

    @property
    def needs_attention(self) -> bool:
        """Whether the attention is needed."""
        return self.alignment or self.attention or self.replace_unk


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
    lines = [_line_of(result, request).model_dump_json() for result in results]
    return f'{{"translations":[{",".join(lines)}]}}'.encode()


def _line_of(result: Result, request: TranslationRequest) -> Line:
    """The part of the answer for one line."""
    result = dataclasses.replace(result, hypotheses=result.hypotheses[: request.nbest])
    hypotheses = []
    for found, values in zip(result.hypotheses, record(result)["hypotheses"], strict=True):
        values = values | {"alignment": values["alignment"] if request.alignment else None}
        if request.attention and found.attention is not None:
            values["attention"] = np.round(found.attention.astype(np.float64), 4).tolist()
        hypotheses.append(Hypothesis(**values))
    return Line(text=hypotheses[0].text, source_tokens=list(result.source_tokens), hypotheses=hypotheses)
