"""Checkpoints with Orbax. They are written asynchronously and atomically; the last few and the best are kept.

A checkpoint contains `params` and `optimizer` (arrays) and `position` (JSON: the progress of training, the scores of
its validation, digests of all arrays, checksums of itself; see position_file.py).
"""

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.guard import NO_ROOM
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError
from convs2s_jax.training.run.run_folder import BEFORE, finished
from convs2s_jax.training.run.selection import LOSS, Scores, Validation, best_of
from convs2s_jax.training.step import TrainState

LOOK = 0.01
"""Seconds between two checks for the end of a save."""


class Checkpoints(ocp.CheckpointManager):
    """Orbax's manager, with the best checkpoint chosen by the scores in the positions.

    Attributes:
      validations: step -> its validation.
      unreadable: step -> why its position, and so its scores, cannot be read. Such a checkpoint is never deleted.
      shared: whether each process writes its shards; otherwise the primary one writes everything.
      writing: step of the last save, which may still be in progress.
      failed: why this one of several processes could not write its part of the last save; None if it could.
    """

    failed: Exception | None = None

    def __init__(self, folder: Path, *, keep: int, metric: str, shared: bool) -> None:
        """Read the scores of the checkpoints in `folder`."""
        self.validations, self.unreadable = validations_of(finished(folder))
        self.shared = shared
        self.writing = 0
        processes = {} if shared else {"active_processes": {0}, "barrier_sync_key_prefix": "alone"}
        if not shared:
            folder.mkdir(exist_ok=True)  # Orbax does not create it for a subset of the processes
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_LastAndBest(keep, metric, self.validations, self.unreadable),
            create=shared,
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=0, **processes),
        )
        super().__init__(folder.absolute(), options=options, item_names=("params", "optimizer", "position"))

    def __contextmanager__(self) -> Iterator["Checkpoints"]:
        """Close at the end. If another error ends the run, the error of an unfinished save does not replace it.

        On a full disk both have the same cause, and only ours says what to do. A second signal waits for no save: the
        folder gets the name of a checkpoint only once everything is written.
        """
        try:
            yield self
        except EndedAtOnceError:
            raise
        except BaseException:
            if self.failed is None:
                with contextlib.suppress(Exception):
                    self.close()
            raise
        self.close()

    def _wait_for_checkpointers(self) -> None:
        """Note the error of one of several processes: Orbax waits 20 minutes for the others before it raises it."""
        try:
            super()._wait_for_checkpointers()
        except Exception as error:
            self.failed = error if distributed.is_multi_process() else None
            raise

    def metrics(self, step: int) -> None:
        """Do nothing: the position stores the scores. In earlier versions of this program, Orbax stored them."""
        del step

    def reached_preemption(self, step: int) -> bool:
        """Return False: JAX's preemption service is not used.

        After a save, Orbax would ask the service about the saved step. The service would take that for the current
        step, and the processes could agree to stop at a step that this one has passed.
        """
        del step
        return False


class NullCheckpoints(Checkpoints):
    """Replaces the manager on a process that writes nothing: the primary process has all checkpoints."""

    def __init__(self) -> None:
        """Create a manager without checkpoints."""
        self.validations = {}

    def close(self) -> None:
        """Do nothing."""


@dataclasses.dataclass
class _LastAndBest(policies.PreservationPolicy):
    """Preserves the last `keep` checkpoints, the best of scheduled validations, and those with unreadable scores.

    Attributes:
      keep: number of latest checkpoints to keep.
      metric: the score by which checkpoints are compared.
      validations, unreadable: as in `Checkpoints`.
    """

    keep: int
    metric: str
    validations: dict[int, Validation]
    unreadable: dict[int, str]

    def should_preserve(
        self, checkpoints: Sequence[policies.PolicyCheckpointInfo], *, context: policies.PreservationContext
    ) -> Sequence[bool]:
        """Return for each checkpoint, in the order of their steps, whether it is kept."""
        del context
        steps = [info.step for info in checkpoints]
        kept = {*steps[-self.keep :], best_of(self.validations, steps, self.metric, goes_on=True), *self.unreadable}
        return [step in kept for step in steps]


def validations_of(places: Mapping[int, Path]) -> tuple[dict[int, Validation], dict[int, str]]:
    """Return `validations` and `unreadable`, as in `Checkpoints`, of the checkpoints at these places."""
    validations: dict[int, Validation] = {}
    unreadable = {}
    for step, place in places.items():
        try:
            validations[step] = position_file.validation_of(place)
        except UserError:
            continue  # of another version, which reading the checkpoint reports
        except (ValueError, OSError) as error:
            unreadable[step] = first_line(error)
    return validations, unreadable


def manager(folder: Path, *, keep: int, metric: str = LOSS, shared: bool = True) -> Checkpoints:
    """Return the manager of a folder: it keeps the last `keep` checkpoints and the one that is best by `metric`.

    The folder is created, and incomplete checkpoints are replaced by their earlier copies. If processes have no
    `shared` folder, only the primary one writes checkpoints.
    """
    if not (shared or distributed.is_primary()):
        return NullCheckpoints()
    if distributed.is_primary():
        _bring_back(folder)
    if shared:
        distributed.barrier("checkpoints are there")
    return Checkpoints(folder, keep=keep, metric=metric, shared=shared)


def save(
    checkpoints: Checkpoints,
    state: TrainState,
    position: dict[str, Any],
    *,
    scores: Scores | None = None,
    scheduled: bool = True,
) -> None:
    """Start saving in the background; training can continue immediately.

    Args:
      checkpoints: as `manager` returns it.
      state: its `step` names the checkpoint. An existing one is kept, unless there are now scores for it.
      position: the progress of training, as JSON.
      scores: of the validation, for choosing the best; None if there was none.
      scheduled: whether that validation was scheduled.

    Raises:
      UserError: this or the previous checkpoint could not be written, for example because the disk is full.
    """
    if isinstance(checkpoints, NullCheckpoints):
        return
    wait(checkpoints)
    step = int(state.step)
    again = step in checkpoints.all_steps()
    if again:
        if scores is None:
            return
        if distributed.is_primary():  # saved before its validation: rewritten with its scores
            put_aside(Path(checkpoints.directory) / str(step), f"{step}{BEFORE}")
        if checkpoints.shared:
            distributed.barrier(f"{step} is {step}{BEFORE}")
        checkpoints.reload()
    record = position_file.make(
        position,
        step=step,
        scores=scores or {},
        scheduled=scheduled,
        params=state.params,
        optimizer=state.optimizer,
    )
    checkpoints.validations[step] = Validation(record["scores"], scheduled)
    checkpoints.unreadable.pop(step, None)
    checkpoints.writing = step
    with _writing(checkpoints, step):
        checkpoints.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                position=ocp.args.JsonSave(record),
            ),
        )
    if again:
        wait(checkpoints)
        if distributed.is_primary():
            shutil.rmtree(Path(checkpoints.directory) / f"{step}{BEFORE}", ignore_errors=True)


@contextlib.contextmanager
def _writing(checkpoints: ocp.CheckpointManager, step: int) -> Iterator[None]:
    """Turn an error in writing a checkpoint into a UserError that states which checkpoint is still good.

    The loss of another process is left to `distributed.guarded`, which has its own message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        room = _room(error)
        if not room and distributed.is_loss(error):
            raise
        last = max((other for other in finished(Path(checkpoints.directory)) if other != step), default=None)
        good = "no earlier one exists" if last is None else f"the last good one is step {last}"
        remedy = "Free disk space" if room else "Check the folder and its permissions"
        raise UserError(
            f"{checkpoints.directory}: the checkpoint of step {step} could not be written "
            f"({room or first_line(error)}); {good}. {remedy} and run the same command again"
        ) from error


def wait(checkpoints: Checkpoints) -> None:
    """Wait until everything is on disk. Raises UserError if it could not be written.

    A process that has failed does not wait for the others, which end once it has (`Peers`).
    """
    if isinstance(checkpoints, NullCheckpoints):
        return
    with _writing(checkpoints, checkpoints.writing):
        while checkpoints.is_saving_in_progress() and checkpoints.failed is None:
            time.sleep(LOOK)
        if checkpoints.failed is not None:
            raise checkpoints.failed
        checkpoints.wait_until_finished()


def check(checkpoints: Checkpoints) -> None:
    """Raise UserError if the last save could not be written; one in progress is not waited for."""
    if not isinstance(checkpoints, NullCheckpoints) and (checkpoints.failed or not checkpoints.is_saving_in_progress()):
        wait(checkpoints)


def _room(error: BaseException | None) -> str:
    """Return the system's message for a full disk if it occurs anywhere in an error or its causes, else ""."""
    while error is not None:
        for said in map(os.strerror, NO_ROOM):
            if said in str(error):
                return said
        error = error.__cause__ or error.__context__
    return ""


def put_aside(path: Path, name: str) -> None:
    """Rename a checkpoint, replacing an earlier one of that name."""
    aside = path.with_name(name)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def _bring_back(folder: Path) -> None:
    """If a run ended while it rewrote a checkpoint, restore the earlier copy."""
    for aside in folder.glob(f"*{BEFORE}"):
        whole = folder / aside.name.removesuffix(BEFORE)
        if whole.is_dir():
            shutil.rmtree(aside)
        else:
            aside.rename(whole)
