"""Checkpoints with Orbax. They are written asynchronously and atomically; the last few and the best are kept.

A checkpoint holds `params` and `optimizer` (arrays) and `position` (JSON: the progress of training, a digest of every
array and one of the position itself).
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from convs2s_jax.core.command_line import NO_ROOM
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import distributed
from convs2s_jax.training.run.digest import digest, digest_of_record
from convs2s_jax.training.step import TrainState

BEFORE = ".before"
"""Suffix of the earlier copy of a checkpoint while it is being written again."""
FORMAT = 1
"""Version of the format. It is raised when older checkpoints can no longer be read; CHANGELOG says what to do."""


def manager(folder: Path, *, keep: int, read_only: bool = False) -> ocp.CheckpointManager:
    """Orbax's manager of a folder: keeps the last `keep` checkpoints and the one with the lowest validation loss.

    Raises:
      UserError: the validation loss of a checkpoint cannot be read.
    """
    if not read_only:
        if distributed.is_primary():
            _bring_back(folder)
        distributed.barrier("checkpoints are there")
    _check_losses(folder)
    best = policies.BestN(get_metric_fn=lambda m: -m["loss"], n=1, keep_checkpoints_without_metrics=False)
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda m: m["loss"],
        best_mode="min",
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
        create=not read_only,
        read_only=read_only,
    )
    made = ocp.CheckpointManager(folder.absolute(), options=options, item_names=("params", "optimizer", "position"))
    # After a save, the manager would ask JAX's preemption service about the saved step. The service would take that for
    # the current step, and the processes could agree to stop at a step that this one has passed.
    made.reached_preemption = lambda _: False
    return made


def save(
    checkpoints: ocp.CheckpointManager, state: TrainState, position: dict[str, Any], *, loss: float | None = None
) -> None:
    """Start to save in the background; training may go on at once.

    Args:
      checkpoints: as `manager` returns it.
      state: the checkpoint is named by its `step`. An existing one is kept, unless there is now a loss for it.
      position: the progress of training, as JSON.
      loss: validation loss, for choosing the best; None if it was not measured.

    Raises:
      UserError: this or the previous checkpoint could not be written, for example because the disk is full.
    """
    step = int(state.step)
    again = step in checkpoints.all_steps()
    if again:
        if loss is None:
            return
        wait(checkpoints, step)
        put_aside(checkpoints, step, BEFORE)  # saved before its validation: written again with its loss
    position = {**position, "format": FORMAT, "step": step}
    digests = {
        "params": digest(state.params),
        "optimizer": digest(state.optimizer),
        "position": digest_of_record(position),
    }
    with _writing(checkpoints, step):
        checkpoints.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                position=ocp.args.JsonSave({**position, "digests": digests}),
            ),
            metrics=None if loss is None or not math.isfinite(loss) else {"loss": loss},
        )
    if again:
        wait(checkpoints, step)
        if distributed.is_primary():
            shutil.rmtree(Path(checkpoints.directory) / f"{step}{BEFORE}", ignore_errors=True)


@contextlib.contextmanager
def _writing(checkpoints: ocp.CheckpointManager, step: int) -> Iterator[None]:
    """Turn an error in writing a checkpoint into a UserError that says which checkpoint is still good.

    The loss of another process is left to `distributed.guarded`, which has its own message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if distributed.is_loss(error):
            raise
        last = max((other for other in finished(checkpoints) if other != step), default=None)
        good = "no earlier one exists" if last is None else f"the last good one is step {last}"
        raise UserError(
            f"{checkpoints.directory}: the checkpoint of step {step} could not be written "
            f"({_room(error) or reason(error)}); {good}. Make room and run the same command again"
        ) from error


def wait(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Wait until everything is on disk. Raises UserError if it could not be written."""
    with _writing(checkpoints, step):
        checkpoints.wait_until_finished()


def reason(error: BaseException) -> str:
    """The first line of an error, cut to 200 characters for use in a message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _room(error: BaseException | None) -> str:
    """The system's message for a full disk if it occurs anywhere in an error or its causes, else ""."""
    while error is not None:
        for said in map(os.strerror, NO_ROOM):
            if said in str(error):
                return said
        error = error.__cause__ or error.__context__
    return ""


def _check_losses(folder: Path) -> None:
    """Raise UserError for a damaged loss: Orbax reads the losses of all checkpoints at once and cannot skip one."""
    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            float(json.loads(path.read_text(encoding="utf-8"))["loss"])
        except FileNotFoundError:
            continue  # removed by a training that is still running
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged ({reason(error)}): delete {path.parent}; "
                "the checkpoint can still be read, and no longer counts as the best"
            ) from error


def finished(checkpoints: ocp.CheckpointManager) -> list[int]:
    """Steps of the finished checkpoints, read from the folder: the manager also counts the one it is still writing."""
    return sorted(int(entry.name) for entry in checkpoints.directory.iterdir() if entry.name.isdigit())


def put_aside(checkpoints: ocp.CheckpointManager, step: int, ending: str) -> None:
    """Rename a checkpoint by adding a suffix to its name."""
    folder = Path(checkpoints.directory)
    aside = folder / f"{step}{ending}"
    if distributed.is_primary():
        shutil.rmtree(aside, ignore_errors=True)
        (folder / str(step)).rename(aside)
    distributed.barrier(f"{step} is {step}{ending}")
    checkpoints.reload()


def _bring_back(folder: Path) -> None:
    """If a run ended while it rewrote a checkpoint, restore the earlier copy."""
    for aside in folder.glob(f"*{BEFORE}"):
        whole = folder / aside.name.removesuffix(BEFORE)
        if whole.is_dir():
            shutil.rmtree(aside)
        else:
            aside.rename(whole)
