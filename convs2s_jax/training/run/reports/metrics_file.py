"""metrics.jsonl: a line for each report, each with its own checksum."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core.checksums import DamagedError, parsed, seal, unseal
from convs2s_jax.core.errors import counted
from convs2s_jax.core.files import content, replace_file

NAME = "metrics.jsonl"
DAMAGED = "metrics.jsonl.damaged"
"""Where damaged lines are put aside."""


def line(record: Mapping[str, Any]) -> str:
    """The line of a report; its last field is a checksum of the others."""
    return json.dumps(seal(record)) + "\n"


def content_of(workdir: Path) -> bytes:
    """The content of the file of a workdir, b"" if there is none."""
    path = workdir / NAME
    return content(path, most=sys.maxsize - 1) if path.exists() else b""


def read(workdir: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], list[bytes]]:
    """`parse` the content of the file of a workdir."""
    return parse(content_of(workdir))


def parse(data: bytes) -> tuple[list[tuple[bytes, dict[str, Any]]], list[bytes]]:
    """The intact lines, each with its record without the checksum, and the damaged lines."""
    intact, damaged = [], []
    for text in data.split(b"\n"):
        if not text:
            continue  # after the last line
        try:
            intact.append((text, _record(text)))
        except DamagedError:
            damaged.append(text)
    return intact, damaged


def keep_up_to(workdir: Path, step: int, *, validated: bool = True) -> list[str]:
    """Drop the lines that a continued run will write again, and set damaged lines aside.

    Args:
      workdir: of the run.
      step: updates done; the lines of later ones are dropped.
      validated: whether the validation of this step is done. If it is not, its line is from a start that was killed
        before the checkpoint was saved.

    Returns:
      A sentence for the user if lines are damaged.
    """
    path = workdir / NAME
    intact, damaged = read(workdir)
    if damaged:
        with (workdir / DAMAGED).open("ab") as aside:
            aside.writelines(text + b"\n" for text in damaged)

    def stays(record: Mapping[str, Any]) -> bool:
        return record["step"] < step or (record["step"] == step and (validated or record["split"] != "valid"))

    if path.exists():
        replace_file(path, b"".join(text + b"\n" for text, record in intact if stays(record)))
    are = "are" if len(damaged) > 1 else "is"
    return [f"{path}: {counted(len(damaged), 'line')} {are} damaged; put aside in {DAMAGED}"] if damaged else []


def _record(text: bytes) -> dict[str, Any]:
    """The record of a line. Raises DamagedError if it is damaged."""
    record = unseal(parsed(text))
    if not (isinstance(record.get("step"), int) and isinstance(record.get("split"), str)):
        raise DamagedError("it is not a report")
    return record
