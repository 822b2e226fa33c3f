"""The JSON of requests and answers."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from convs2s_jax.translation.jobs.formats import record
from convs2s_jax.translation.results import Result

SEARCH = (
    "beam_size",
    "length_penalty",
    "coverage_penalty",
    "temperature",
    "unk_penalty",
    "min_length",
    "sampling",
)
"""Fields of a request that change the search; those of `SearchConfig`."""


class TranslationRequest(BaseModel):
    """Lines to translate, and how. A field of the search that is left out has the server's value."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lines: Annotated[list[str], Field(description="one sentence each", examples=[["April 4, 1989"]])]
    nbest: Annotated[int, Field(description="translations of each line, at most beam_size")] = 1
    alignment: Annotated[bool, Field(description="whether to tell the source token of each target token")] = False
    attention: Annotated[bool, Field(description="whether to return the attention as a matrix")] = False
    replace_unk: Annotated[bool, Field(description="replace unknown words by the source words they look at")] = False
    prefix: Annotated[
        list[str] | None, Field(description='for each line, words that its translation begins with; "" for none')
    ] = None
    constraints: Annotated[
        list[list[str]] | None, Field(description="for each line, phrases that occur in its translation, in any order")
    ] = None
    shortlist: Annotated[
        bool | None,
        Field(description="false: all words, on a server that has a shortlist; true: the likely words only"),
    ] = None
    sampling: Annotated[
        bool | None, Field(description="draw beam_size translations of each line and rank them, in place of a search")
    ] = None
    seed: Annotated[int | None, Field(description="of sampling; 0 by default", ge=0, lt=2**32)] = None
    beam_size: Annotated[int | None, Field(description="one of the server's beam sizes")] = None
    length_penalty: Annotated[float | None, Field(description="power of the length that divides scores")] = None
    coverage_penalty: Annotated[float | None, Field(description="weight of the coverage of the source")] = None
    temperature: Annotated[float | None, Field(description="logits are divided by it")] = None
    unk_penalty: Annotated[float | None, Field(description="nats subtracted for each unknown word")] = None
    min_length: Annotated[int | None, Field(description="fewest tokens of a translation")] = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the search that the request has."""
        return {name: value for name in SEARCH if (value := getattr(self, name)) is not None}

    @property
    def texts(self) -> tuple[tuple[str, list[str]], ...]:
        """Its texts, with what one of them is called."""
        phrases = [phrase for each in self.constraints or () for phrase in each]
        return ("line", self.lines), ("prefix", self.prefix or []), ("constraint", phrases)

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(len(text) for _, texts in self.texts for text in texts)

    @property
    def looks(self) -> bool:
        """Whether the attention is needed."""
        return self.alignment or self.attention or self.replace_unk


class Hypothesis(BaseModel):
    """One translation of a line."""

    text: str
    tokens: Annotated[list[str], Field(description="the model's tokens, end symbol last")]
    score: Annotated[float | None, Field(description="nats, divided as the search says; null where there is none")]
    token_scores: Annotated[list[float | None], Field(description="nats of each token")]
    alignment: Annotated[
        str | None, Field(description='"0-0 1-2": source and target tokens, counted from 0; only if asked for')
    ] = None
    attention: Annotated[
        list[list[float]] | None,
        Field(description="a row for each of tokens, a column for each source token and the end symbol"),
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

    error: Annotated[str, Field(description="what is wrong and what to do, in a sentence")]


def answer_of(results: Sequence[Result], request: TranslationRequest) -> bytes:
    """The JSON of a `TranslationAnswer`, made line by line, so that other threads run in between."""
    lines = [_line_of(result, request).model_dump_json() for result in results]
    return f'{{"translations":[{",".join(lines)}]}}'.encode()


def _line_of(result: Result, request: TranslationRequest) -> Line:
    """The part of the answer that is for one line."""
    result = dataclasses.replace(result, hypotheses=result.hypotheses[: request.nbest])
    hypotheses = []
    for found, values in zip(result.hypotheses, record(result)["hypotheses"], strict=True):
        values = values | {"alignment": values["alignment"] if request.alignment else None}
        if request.attention and found.attention is not None:
            values["attention"] = np.round(found.attention.astype(np.float64), 4).tolist()
        hypotheses.append(Hypothesis(**values))
    return Line(text=hypotheses[0].text, source_tokens=list(result.source_tokens), hypotheses=hypotheses)
