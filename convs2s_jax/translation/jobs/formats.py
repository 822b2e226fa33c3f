"""Write results as lines of text, JSON or fairseq-generate's output, and read their best texts back.

Each format is a record of functions: `FORMATS` for translations, `LABEL_FORMATS` for labels.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.translation.classifier import Labelled
from convs2s_jax.translation.results import Hypothesis, Result


class Format(NamedTuple):
    """How results are written.

    Attributes:
      render: result -> lines, each with its line break.
      texts: lines of whole results, as `render` returned them -> the best text of each.
      alignments: whether alignments are written.
    """

    render: Callable[[Any], str]
    texts: Callable[[Iterable[str]], Iterator[str]]
    alignments: bool = False


def text(result: Result) -> str:
    """Format the best translation."""
    return f"{_one_line(result.best.text)}\n"


def scores(result: Result) -> str:
    """Format the score, TAB, token scores separated by spaces (end symbol last): --format=text with --score."""
    return f"{_short(result.best.score)}\t{' '.join(map(_short, result.best.token_scores))}\n"


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


def fairseq_texts(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of the first D- line of each result, which is the best."""
    last = ""
    for line in lines:
        label, _, content = line.partition("\t")
        if label.startswith("D-") and label != last:
            last = label
            yield content.partition("\t")[2]


def label(result: Labelled) -> str:
    """Format the most probable label, TAB, its probability."""
    return f"{result.best.text}\t{result.best.probability:.4f}\n"


def label_record(result: Labelled) -> dict[str, Any]:
    """Return the JSON fields: line, source, labels (label and probability, the most probable first)."""
    labels = [{"label": choice.text, "probability": choice.probability} for choice in result.labels]
    return {"line": result.line, "source": result.source, "labels": labels}


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _one_line(content: str) -> str:
    return content.replace("\n", " ")


def _short(value: float) -> str:
    """Return the shortest decimal string that reads back as this number in single precision."""
    return str(np.float32(value))


def _number(value: float) -> float | None:
    return float(_short(value)) if math.isfinite(value) else None


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "text": Format(text, iter),
        "scores": Format(scores, iter),
        "json": Format(
            lambda result: _json(record(result)),
            lambda lines: (json.loads(line)["hypotheses"][0]["text"] for line in lines),
            alignments=True,
        ),
        "fairseq": Format(fairseq, fairseq_texts, alignments=True),
    }
)
LABEL_FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "text": Format(label, lambda lines: (line.rpartition("\t")[0] for line in lines)),
        "json": Format(
            lambda result: _json(label_record(result)),
            lambda lines: (json.loads(line)["labels"][0]["label"] for line in lines),
        ),
    }
)
