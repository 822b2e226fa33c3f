"""The JSON part of a checkpoint: progress of training, scores of its validation, digests, checksums of itself."""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core import files
from convs2s_jax.core.checksums import DamagedError, parsed, seal, unseal
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints.digest import digest, digest_of_record
from convs2s_jax.training.run.selection import LOSS, Scores, Validation

FORMAT = 1
"""Version of the format. It increases when older checkpoints can no longer be read; CHANGELOG says what to do."""


def make(
    position: Mapping[str, Any], *, step: int, scores: Scores, scheduled: bool = True, params: Tree, optimizer: Tree
) -> dict[str, Any]:
    """The record of a checkpoint, as it is stored; `read` returns it without the checksum of the digests.

    Args:
      position: the progress of training, as JSON.
      step: of the checkpoint.
      scores: of the validation, with its loss; empty if there was none. Values that are not finite are not stored.
      scheduled: as in `selection.Validation`.
      params, optimizer: the arrays of the checkpoint.
    """
    known = {name: value for name, value in scores.items() if math.isfinite(value)}
    validation = {"loss": known.get(LOSS), "scores": known, "scheduled": scheduled}
    content = {**position, "format": FORMAT, "step": step, **validation}
    digests = {"params": digest(params), "optimizer": digest(optimizer), "position": digest_of_record(content)}
    return {**content, "digests": seal(digests)}


def read(folder: Path) -> dict[str, Any]:
    """The record of the checkpoint in `folder`.

    Raises:
      ValueError, OSError: it is not what was saved, or cannot be read.
      UserError: it is of another version of the format.
    """
    record = parsed(files.content(folder / "position" / "metadata"))
    try:
        content = {name: value for name, value in record.items() if name != "digests"}
        digests = record["digests"]
        if set(digests) != {"params", "optimizer", "position"}:  # the digests of earlier versions had no checksum
            digests = unseal(digests)
        intact = bool(digest_of_record(content) == digests["position"])
    except (AttributeError, KeyError, TypeError, DamagedError) as error:
        raise DamagedError("position is not what was saved") from error
    if not intact:
        raise DamagedError("position is not what was saved")
    if content["format"] != FORMAT:
        raise UserError(
            f"{folder} has checkpoint format {content['format']}, but this version reads {FORMAT}; see CHANGELOG.md"
        )
    return {**content, "digests": digests}


def known_splits(workdir: Path) -> Mapping[str, int | str | None]:
    """Return fingerprints of "train", "valid" and "test" from the newest readable checkpoint that stores them.

    Those of the last two may be missing; without such a checkpoint the result is empty.
    """
    for place in reversed(run_folder.finished(run_folder.checkpoints(workdir)).values()):
        with contextlib.suppress(ValueError, OSError, UserError):
            record = read(place)
            if (found := record.get("data")) is not None:
                return {"train": int(found), **record.get("held_out", {})}
    return {}


def validation_of(folder: Path) -> Validation:
    """The validation of the checkpoint in `folder`. Validations of earlier versions count as scheduled.

    Errors as in `read`.
    """
    record = read(folder)
    return Validation(_scores(folder, record), bool(record.get("scheduled", True)))


def _scores(folder: Path, record: Mapping[str, Any]) -> Scores:
    if "scores" in record:
        return {name: float(value) for name, value in record["scores"].items()}
    if "loss" in record:  # earlier versions stored no other score
        return {} if record["loss"] is None else {LOSS: float(record["loss"])}
    metrics = folder / "metrics" / "metrics"  # even earlier ones stored it there, without a checksum
    if not metrics.exists():
        return {}
    try:
        return {LOSS: float(parsed(files.content(metrics))["loss"])}
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{metrics} contains no loss") from error
