"""A run in progress: its position and its resources."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import Mesh

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.background_compiler import ProgramsAhead
from convs2s_jax.training.run.checkpoints import checkpoint, position_file
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.inputs import check_unchanged
from convs2s_jax.training.run.mirror import Workdir
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.reports.measures import Profile, WallClock
from convs2s_jax.training.run.reports.reports import Reports
from convs2s_jax.training.run.selection import Best
from convs2s_jax.training.schedule import ScheduleState
from convs2s_jax.training.step import Batch, LossSums, Step


@dataclasses.dataclass(frozen=True)
class Position:
    """Progress of training. Together with the configuration it determines all later updates.

    Attributes:
      schedule: state of the learning rate's schedule.
      best: the best of the scheduled validations.
      step: number of updates done.
      epoch: the current epoch, from 1.
      batch: number of batches of this epoch already used.
      validated: step of the last validation.
      skipped: number of updates in a row, up to here, that were skipped because their loss was not finite.
    """

    schedule: ScheduleState
    best: Best = Best()
    step: int = 0
    epoch: int = 1
    batch: int = 0
    validated: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "Position":
        """The position in the record of a checkpoint. Raises UserError if an earlier version wrote it."""
        if missing := [field.name for field in dataclasses.fields(cls) if field.name not in saved]:
            raise position_file.earlier(f"the checkpoint of step {saved['step']}", f"it has no '{missing[0]}'")
        fields = {field.name: saved[field.name] for field in dataclasses.fields(cls)}
        return cls(**fields | {"schedule": ScheduleState(**saved["schedule"]), "best": Best(**saved["best"])})

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update; the next one may not have begun."""
        return max(1, self.epoch - (self.batch == 0 < self.step))  # imports may have done steps in epoch 1

    @property
    def where(self) -> str:
        """The position as messages name it: the last update and its epoch."""
        return f"step {self.step}, epoch {self.last_epoch}"


class SaveClock:
    """Measures the time since the last checkpoint (`training.save_every_minutes`)."""

    def __init__(self, minutes: float) -> None:
        """Start the clock; with 0 `minutes` between two checkpoints, none is due by the clock."""
        self._seconds = 60 * minutes
        self.restart()

    def restart(self) -> None:
        """Start over: a checkpoint has just been saved."""
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether the time has passed. All processes must ask at the same step; they get the answer of process 0."""
        if not self._seconds:
            return False
        return distributed.from_primary(time.monotonic() - self._since >= self._seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """The resources of the training loop.

    Attributes:
      run: configuration, data and vocabularies.
      mesh: the devices.
      step: the compiled update.
      evaluate: the compiled loss of a batch, without dropout and smoothing.
      reports: where metrics and messages go.
      checkpoints: manager of the run's checkpoints.
      interrupts: signals received.
      save_clock: when a checkpoint is due by the clock.
      compiled: counter of compilations.
      clock: where the time goes.
      ahead: compiles programs before they are needed.
      profile: the trace of a few updates.
      peak: floating-point operations per second of all devices; None if unknown.
      flops: floating-point operations of an update on a batch; 0 if the peak is unknown.
      place: the workdir.
    """

    run: Run
    mesh: Mesh
    step: Step[Batch, LossSums]
    evaluate: Callable[[Tree, Batch], LossSums]
    reports: Reports
    checkpoints: checkpoint.Checkpoints
    interrupts: Interrupts
    save_clock: SaveClock
    compiled: CompileCounter
    clock: WallClock
    ahead: ProgramsAhead
    profile: Profile
    peak: float | None
    flops: Callable[[Batch], float]
    place: Workdir


def check_data(run: Run, saved: dict[str, Any]) -> None:
    """Raise UserError if the data have changed: batches, losses and scores would no longer be those of the run.

    A checkpoint from another program has no fingerprint of its data (None) and continues with any. Validation or test
    data that did not exist before may be added.
    """
    run_folder.check_vocabularies(run.workdir, run.vocabularies, saved)
    if saved["data"] not in (None, run.fingerprint):
        raise UserError(
            f"the training data of --workdir={run.workdir} have changed since its checkpoint of step {saved['step']}: "
            "restore them, or start over in another workdir"
        )
    known = saved.get("held_out", {})
    for name, found in run.held_out.items():
        check_unchanged(name, found, known, where=str(run.workdir), remedy="start over in another workdir")
