"""Write labels as text or JSON, and read them back."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from convs2s_jax.translation.classifier import Labelled
from convs2s_jax.translation.jobs.formats import Format, lines_of


def text(result: Labelled) -> str:
    """Format the most probable label, TAB, its probability."""
    return f"{result.best.text}\t{result.best.probability:.4f}\n"


def json_line(result: Labelled) -> str:
    """Format a JSON object with the fields line, source, labels (label and probability, the most probable first)."""
    labels = [{"label": choice.text, "probability": choice.probability} for choice in result.labels]
    record = {"line": result.line, "source": result.source, "labels": labels}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def text_labels(data: bytes) -> list[str]:
    """Return the label of each line."""
    return [line.rpartition("\t")[0] for line in lines_of(data)]


def json_labels(data: bytes) -> list[str]:
    """Return the most probable label of each line of JSON."""
    return [json.loads(line)["labels"][0]["label"] for line in lines_of(data)]


LABEL_FORMATS: Mapping[str, Format[Labelled]] = MappingProxyType(
    {
        "text": Format(text, text_labels, alignments=False),
        "json": Format(json_line, json_labels, alignments=False),
    }
)
