"""Write labels as text or JSON, and read them back."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from convs2s_jax.translation.jobs.formats import Format, Written, read_records, read_text


@dataclasses.dataclass(frozen=True)
class Choice:
    """A label and its probability.

    Attributes:
      text: the label.
      probability: from 0 to 1.
    """

    text: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A line and its labels.

    Attributes:
      line: its number, from 0.
      source: the text.
      labels: all labels, the most probable first.
      cut: number of tokens truncated at the end.
      mostly_unknown: see `data.unknown.is_mostly_unknown`.
    """

    line: int
    source: str
    labels: tuple[Choice, ...]
    cut: int = 0
    mostly_unknown: bool = False

    @property
    def best(self) -> Choice:
        """The most probable label."""
        return self.labels[0]


def text(result: Labelled) -> str:
    """Format the most probable label, TAB, its probability."""
    return f"{result.best.text}\t{result.best.probability:.4f}\n"


def json_line(result: Labelled) -> str:
    """Format a JSON object with the fields line, source, labels (label and probability, the most probable first)."""
    labels = [{"label": choice.text, "probability": choice.probability} for choice in result.labels]
    record = {"line": result.line, "source": result.source, "labels": labels}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def read_labels(data: bytes, lines: Sequence[str], nbest: int) -> Written:
    """Read complete lines of text, which do not show whether they belong to these sources."""
    written = read_text(data, lines, nbest)
    return written._replace(texts=[line.rpartition("\t")[0] for line in written.texts])


def read_json(data: bytes, lines: Sequence[str], _nbest: int) -> Written:
    """Read complete lines of JSON, each with its line number and source."""
    return read_records(data, lines, lambda record: record["labels"][0]["label"])


LABEL_FORMATS: Mapping[str, Format[Labelled]] = MappingProxyType(
    {
        "text": Format(text, read_labels, alignments=False),
        "json": Format(json_line, read_json, alignments=False),
    }
)
