"""metrics.jsonl, a line for each report, and facts.json: how a training began and ended. Reports read both."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core.checksums import DamagedError, parsed, seal, unseal
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.files import content, no_link, replace_file
from convs2s_jax.training.run.run_folder import FACTS

METRICS = "metrics.jsonl"
DAMAGED = "metrics.jsonl.damaged"
"""Where damaged lines are put aside."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a run; those of its last start, unless they say otherwise. One that is not known is empty.

    Attributes:
      begun: time of the first start.
      starts: number of starts.
      devices: with library versions.
      examples: number of training pairs, texts or lines that are used and skipped.
      batches: batches per epoch, their shapes and padding.
      parameters: how many.
      vocabularies: entries of the source and of the target vocabulary.
      origin: step and workdir of the initial parameters, such as "step 441 of runs/base".
      rates: changes of the learning rate between epochs or at validations, of all starts; not those at every update.
      ended: time of the end; "" if training is in progress or was killed.
      stopped: where it ended.
      why: the reason: a limit, a signal or an error.
      time: how the time was spent.
    """

    begun: str = ""
    starts: int = 0
    devices: str = ""
    examples: str = ""
    batches: str = ""
    parameters: int = 0
    vocabularies: tuple[int, int] = (0, 0)
    origin: str = ""
    rates: tuple[str, ...] = ()
    ended: str = ""
    stopped: str = ""
    why: str = ""
    time: str = ""


def read_facts(workdir: Path) -> Facts:
    """The facts of a run. Raises OSError if the file cannot be read, DamagedError if it is not what was written."""
    record = unseal(parsed(content(workdir / FACTS)))
    try:
        return build(Facts, record)
    except UserError as error:
        raise DamagedError(str(error)) from error


def write_facts(workdir: Path, facts: Facts) -> None:
    """Replace the facts of a run. Raises OSError if they cannot be written."""
    replace_file(workdir / FACTS, json.dumps(seal(dataclasses.asdict(facts)), indent=2) + "\n")


def write_start(workdir: Path, facts: Facts) -> Facts:
    """Write and return the facts of a start with those of earlier ones. If their file is damaged, they are lost."""
    before = Facts()
    with contextlib.suppress(OSError, DamagedError):
        before = read_facts(workdir)
    begun, starts, origin = before.begun or now(), before.starts + 1, facts.origin or before.origin
    all_of_it = dataclasses.replace(facts, begun=begun, starts=starts, origin=origin, rates=before.rates)
    write_facts(workdir, all_of_it)
    return all_of_it


def now() -> str:
    """The time, as it is written."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def metrics_line(record: Mapping[str, Any]) -> str:
    """The line of a report; its last field is a checksum of the others."""
    return json.dumps(seal(record)) + "\n"


def read_metrics(workdir: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], list[bytes]]:
    """The intact lines, each with its record without the checksum, and the damaged lines. Raises OSError.

    A last line that is still being written is a damaged one without a line break.
    """
    path = workdir / METRICS
    intact, damaged = [], []
    for line in content(path, most=sys.maxsize - 1).splitlines(keepends=True) if path.exists() else ():
        try:
            record = unseal(parsed(line))
        except DamagedError:
            record = {}
        numbers = (value for name, value in record.items() if name != "split")
        sound = isinstance(record.get("step"), int) and isinstance(record.get("split"), str)
        if sound and all(isinstance(value, int | float | None) for value in numbers):
            intact.append((line.rstrip(b"\n") + b"\n", record))
        else:
            damaged.append(line)
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
    path = workdir / METRICS
    intact, damaged = read_metrics(workdir)
    if damaged:
        with open(workdir / DAMAGED, "ab", opener=no_link) as aside:
            aside.writelines(line.rstrip(b"\n") + b"\n" for line in damaged)

    def stays(record: Mapping[str, Any]) -> bool:
        return record["step"] < step or (record["step"] == step and (validated or record["split"] != "valid"))

    if path.exists():
        replace_file(path, b"".join(line for line, record in intact if stays(record)))
    are = "are" if len(damaged) > 1 else "is"
    return [f"{path}: {counted(len(damaged), 'line')} {are} damaged; put aside in {DAMAGED}"] if damaged else []
