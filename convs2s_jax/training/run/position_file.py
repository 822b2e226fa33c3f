"""The JSON part of a checkpoint: progress of training, validation loss, digests of all arrays, checksums of itself."""

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
from convs2s_jax.training.run.digest import digest, digest_of_record

FORMAT = 1
"""Version of the format. It is raised when older checkpoints can no longer be read; CHANGELOG says what to do."""


def make(
    position: Mapping[str, Any], *, step: int, loss: float | None, params: Tree, optimizer: Tree
) -> dict[str, Any]:
    """The record of a checkpoint, as `read` returns it.

    Args:
      position: the progress of training, as JSON.
      step: of the checkpoint.
      loss: validation loss; None if it was not measured. One that is not finite is not stored.
      params, optimizer: the arrays of the checkpoint.
    """
    known = loss if loss is not None and math.isfinite(loss) else None
    content = {**position, "format": FORMAT, "step": step, "loss": known}
    digests = {"params": digest(params), "optimizer": digest(optimizer), "position": digest_of_record(content)}
    return {**content, "digests": seal(digests)}


def read(folder: Path) -> dict[str, Any]:
    """The record of the checkpoint in `folder`.

    Raises:
      DamagedError, ValueError, OSError: it is not what was saved, or cannot be read.
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
            f"{folder} has checkpoint format {content['format']}, this version reads {FORMAT}; see CHANGELOG.md"
        )
    return {**content, "digests": digests}


def trained_on(workdir: Path) -> int | None:
    """The fingerprint of the training data in the newest checkpoint that can be read and has one."""
    for place in reversed(run_folder.finished(run_folder.checkpoints(workdir)).values()):
        with contextlib.suppress(DamagedError, ValueError, OSError, UserError):
            if (found := read(place).get("data")) is not None:
                return int(found)
    return None


def loss_of(folder: Path) -> float | None:
    """The validation loss of the checkpoint in `folder`; None if it was not measured. Errors as in `read`."""
    record = read(folder)
    if "loss" in record:
        return None if record["loss"] is None else float(record["loss"])
    metrics = folder / "metrics" / "metrics"  # earlier versions had it there, without a checksum
    if not metrics.exists():
        return None
    try:
        return float(parsed(files.content(metrics))["loss"])
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{metrics} holds no loss") from error
