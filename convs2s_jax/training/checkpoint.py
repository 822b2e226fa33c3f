"""Checkpoints by Orbax: asynchronous, atomic, the last few and the best, each verified when it is read.

A checkpoint holds `params` and `optimizer` (arrays) and `position` (JSON: where training stands, and a digest of every
array and of itself).
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import distributed
from convs2s_jax.training.digest import digest, digest_of_record
from convs2s_jax.training.step import TrainState

FORMAT = 1
"""Raised when older checkpoints can no longer be read; CHANGELOG says what to do."""


def manager(folder: Path, *, keep: int, read_only: bool = False) -> ocp.CheckpointManager:
    """Orbax's manager of a folder: keeps the last `keep` checkpoints and the one of least validation loss.

    Raises:
      UserError: a validation loss in there cannot be read.
    """
    _check_losses(folder)
    best = policies.BestN(get_metric_fn=lambda m: -m["loss"], n=1, keep_checkpoints_without_metrics=False)
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda m: m["loss"],
        best_mode="min",
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
        create=not read_only,
        read_only=read_only,
    )
    return ocp.CheckpointManager(folder.absolute(), options=options, item_names=("params", "optimizer", "position"))


def save(
    checkpoints: ocp.CheckpointManager, state: TrainState, position: dict[str, Any], *, loss: float | None = None
) -> None:
    """Begin to save; training may go on at once.

    Args:
      checkpoints: of `manager`.
      state: its `step` names the checkpoint; one that exists already stays as it is, unless there is now a loss for it.
      position: JSON.
      loss: validation loss, for choosing the best; None where none was measured.

    Raises:
      UserError: this or the save before it could not be written (a full disk, say).
    """
    step = int(state.step)
    if step in checkpoints.all_steps():
        if loss is None:
            return
        checkpoints.wait_until_finished()
        checkpoints.delete(step)  # saved before its validation: written again with its loss
    position = {**position, "format": FORMAT, "step": step}
    digests = {
        "params": digest(state.params),
        "optimizer": digest(state.optimizer),
        "position": digest_of_record(position),
    }
    with writing(checkpoints, step):
        checkpoints.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                position=ocp.args.JsonSave({**position, "digests": digests}),
            ),
            metrics=None if loss is None or not math.isfinite(loss) else {"loss": loss},
        )


class writing:
    """Turn an error while a checkpoint is written into a sentence that says which one is still good.

    But not where the processes lost each other: `distributed.guarded` has the sentence for that.
    """

    def __init__(self, checkpoints: ocp.CheckpointManager, step: int) -> None:
        self._checkpoints, self._step = checkpoints, step

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        lost = isinstance(error, jax.errors.JaxRuntimeError) and distributed.several()
        if isinstance(error, Exception) and not isinstance(error, UserError) and not lost:
            last = max(_on_disk(self._checkpoints, but=self._step), default=None)
            good = "no earlier one exists" if last is None else f"the last good one is step {last}"
            raise UserError(
                f"{self._checkpoints.directory}: the checkpoint of step {self._step} could not be written "
                f"({reason(error)}); {good}. Make room and run the same command again"
            ) from error


def wait(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Wait until everything is on disk; UserError where it could not be written."""
    with writing(checkpoints, step):
        checkpoints.wait_until_finished()


def reason(error: BaseException) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _check_losses(folder: Path) -> None:
    """Orbax reads the losses of all checkpoints at once and cannot pass over a damaged one."""
    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            float(json.loads(path.read_text(encoding="utf-8"))["loss"])
        except FileNotFoundError:
            continue  # removed by a training that goes on
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged ({reason(error)}): delete {path.parent}; "
                "the checkpoint can still be read, and no longer counts as the best"
            ) from error


def _on_disk(checkpoints: ocp.CheckpointManager, *, but: int) -> list[int]:
    """Finished checkpoints, read from the folder itself: the manager counts one that it is still writing."""
    return [
        int(entry.name) for entry in checkpoints.directory.iterdir() if entry.name.isdigit() and int(entry.name) != but
    ]
