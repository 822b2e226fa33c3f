"""Write results as lines of text, JSON or fairseq-generate's output, and read them back.

Each format is a record of functions in `FORMATS`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.results import Hypothesis, Result

R = TypeVar("R")


class Written(NamedTuple):
    """The results that a file already contains.

    Attributes:
      texts: the best text of each complete result.
      size: size of these results in bytes.
    """

    texts: list[str]
    size: int


class Format(NamedTuple, Generic[R]):
    """How results are written.

    Attributes:
      render: result -> lines, each with its line break.
      read: (content of a file, source lines, hypotheses per line) -> `Written`; ignores an incomplete last result.
        Raises UserError if the file was not written for these lines.
      alignments: whether alignments are written.
    """

    render: Callable[[R], str]
    read: Callable[[bytes, Sequence[str], int], Written]
    alignments: bool


def text(result: Result) -> str:
    """Format the best translation."""
    return f"{_one_line(result.best.text)}\n"


def scores(result: Result) -> str:
    """Format the score, TAB, token scores separated by spaces (end symbol last): --format=text with --score."""
    return f"{_short(result.best.score)}\t{' '.join(map(_short, result.best.token_scores))}\n"


def json_line(result: Result) -> str:
    """Format `record` as one line of JSON."""
    return json.dumps(record(result), ensure_ascii=False, allow_nan=False) + "\n"


def record(result: Result) -> dict[str, Any]:
    """Return the JSON fields: line, source, source_tokens, hypotheses (text, tokens, score, token_scores, alignment).

    Scores that are not finite are null. The alignment is a string such as "0-0 1-2" (source token - target token).
    """
    return {
        "line": result.line,
        "source": result.source,
        "source_tokens": result.source_tokens,
        "hypotheses": [
            {
                "text": hypothesis.text,
                "tokens": hypothesis.tokens,
                "score": _number(hypothesis.score),
                "token_scores": [_number(score) for score in hypothesis.token_scores],
                "alignment": alignment(hypothesis),
            }
            for hypothesis in result.hypotheses
        ],
    }


def fairseq(result: Result) -> str:
    """Format as fairseq-generate does: S source, T reference, then H, D, P, A of each hypothesis; scores in base 2.

    H contains the score and the tokens, D the score and the text, P the token scores, and A the alignment.
    """
    n = result.line
    lines = [f"S-{n}\t{' '.join(result.source_tokens)}"]
    if result.reference is not None:
        lines.append(f"T-{n}\t{result.reference}")
    for hypothesis in result.hypotheses:
        score = _short(hypothesis.score / math.log(2))
        positional = " ".join(f"{s / math.log(2):.4f}" for s in hypothesis.token_scores)
        lines += [
            f"H-{n}\t{score}\t{' '.join(hypothesis.tokens[:-1])}",
            f"D-{n}\t{score}\t{_one_line(hypothesis.text)}",
            f"P-{n}\t{positional}",
            f"A-{n}\t{alignment(hypothesis)}",
        ]
    return "".join(f"{line}\n" for line in lines)


def alignment(hypothesis: Hypothesis) -> str:
    """Return pairs of source and target tokens, counted from 0, as a string such as "0-0 1-2"."""
    return " ".join(f"{s}-{t}" for s, t in hypothesis.alignment)


def read_text(data: bytes, lines: Sequence[str], _nbest: int) -> Written:
    """Read complete lines of text, which do not show whether they belong to these sources."""
    found = _whole_lines(data)
    _check_count(len(found), lines)
    return Written([_decode(line, i) for i, line in enumerate(found, 1)], sum(map(len, found)))


def read_json(data: bytes, lines: Sequence[str], _nbest: int) -> Written:
    """Read complete lines of JSON, each with its line number and source."""
    return read_records(data, lines, lambda record: record["hypotheses"][0]["text"])


def read_records(data: bytes, lines: Sequence[str], best: Callable[[Any], str]) -> Written:
    """Read complete lines of JSON; `best` extracts the best text from a record."""
    found = _whole_lines(data)
    _check_count(len(found), lines)
    texts = []
    for i, line in enumerate(found):
        record = _record(line, i + 1)
        try:
            number, source, text = record["line"], record["source"], best(record)
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"line {i + 1} was not written by --format=json") from error
        if (number, source) != (i, lines[i]):
            raise UserError(
                f"line {i + 1} is for line {number!r}, source {source!r}, but the input has {lines[i]!r} there"
            )
        texts.append(str(text))
    return Written(texts, sum(map(len, found)))


def read_fairseq(data: bytes, lines: Sequence[str], nbest: int) -> Written:
    """Read complete groups S .. A. If the last group has fewer than `nbest` hypotheses, its line is decoded again."""
    texts: list[list[str]] = []  # of each group
    sizes: list[int] = []
    for number, line in enumerate(_whole_lines(data), 1):
        label, _, content = _decode(line, number).partition("\t")
        kind, _, index = label.partition("-")
        if kind == "S":
            if texts and not texts[-1]:
                raise UserError(f"line {number} begins a group, but the one before it has no D- line")
            texts.append([])
            sizes.append(0)
        if not texts or kind not in tuple("STHDPA") or index != str(len(texts) - 1):
            raise UserError(f"line {number} begins with {label!r}, not with the S- T- H- D- P- A- of --format=fairseq")
        sizes[-1] += len(line)
        if kind == "D":
            texts[-1].append(content.partition("\t")[2])
    if texts and (len(texts[-1]) < nbest or kind != "A"):
        texts, sizes = texts[:-1], sizes[:-1]
    _check_count(len(texts), lines)
    return Written([found[0] for found in texts], sum(sizes))


def _whole_lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _check_count(count: int, lines: Sequence[str]) -> None:
    if count > len(lines):
        raise UserError(f"it already has {count} lines, but the input has {len(lines)}")


def _decode(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"line {number} is not UTF-8") from error


def _record(line: bytes, number: int) -> Any:
    try:
        return json.loads(_decode(line, number))
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {number} was not written by --format=json") from error


def _one_line(content: str) -> str:
    return content.replace("\n", " ")


def _short(value: float) -> str:
    """Return the shortest decimal string that reads back as this number in single precision."""
    return str(np.float32(value))


def _number(value: float) -> float | None:
    return float(_short(value)) if math.isfinite(value) else None


FORMATS: Mapping[str, Format[Result]] = MappingProxyType(
    {
        "text": Format(text, read_text, alignments=False),
        "scores": Format(scores, read_text, alignments=False),
        "json": Format(json_line, read_json, alignments=True),
        "fairseq": Format(fairseq, read_fairseq, alignments=True),
    }
)
