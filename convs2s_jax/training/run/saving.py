"""The position of a run, and the checkpoints in which it is saved."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training import dispatch
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, position_file, restoring
from convs2s_jax.training.run.checkpoints.checkpoint import Checkpoints
from convs2s_jax.training.run.mirror import Workdir
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.reports.measures import WallClock
from convs2s_jax.training.run.selection import LOSS, Best, Scores, best_of
from convs2s_jax.training.schedule import ScheduleState
from convs2s_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Position:
    """Progress of training. Together with the configuration it determines all later updates.

    Attributes:
      schedule: state of the learning rate's schedule.
      best: the best of the scheduled validations, for patience.
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


@dispatch.jit
def all_finite(params: Tree) -> Array:
    """Whether no parameter is infinite or not a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


class Saves:
    """Saves the checkpoints of a run."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        place: Workdir,
        mesh: Mesh,
        *,
        minutes: float,
        data: Mapping[str, Any],
        clock: WallClock,
        held: Callable[[], bool],
    ) -> None:
        """Start the time until the next checkpoint is due.

        Args:
          checkpoints: the manager of the run's checkpoints; None on a process that writes none.
          place: the workdir.
          mesh: the devices.
          minutes: as `training.save_every_minutes`.
          data: what each checkpoint stores of the data (`Run.record`).
          clock: of the run.
          held: whether the workdir is still at its path; process 0 is asked.
        """
        self._checkpoints, self._place, self._mesh, self._data, self._clock = checkpoints, place, mesh, data, clock
        self._held = held
        self._seconds = 60 * minutes
        self._last, self._proven = time.monotonic(), False

    def save(self, state: TrainState, position: Position, scores: Scores | None = None) -> None:
        """Save a checkpoint of this position. The first one is read back.

        Raises:
          UserError: a parameter is not finite, the workdir is gone, or the first checkpoint cannot be read back.
        """
        self._check_place()
        with self._clock.during("checkpoint"):
            if not all_finite(state.params):
                raise UserError(f"step {position.step}: a parameter is not finite. {self.advice()}")
            record = {**dataclasses.asdict(position), **self._data}
            self._place.settle()
            whole = self._place.to_save(self._mesh, state)
            if self._checkpoints is not None:
                checkpoint.save(self._checkpoints, whole, record, scores=scores)
            if not self._proven:
                self.wait()
                place = run_folder.checkpoints(self._place.folder) / str(position.step)
                try:
                    distributed.primary_only("read back", lambda: restoring.read_back(place))
                except UserError:
                    self._check_place()
                    raise
                self._proven = True
            self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the minutes since the last checkpoint have passed.

        All processes must ask at the same step; they get the answer of process 0.
        """
        passed = self._seconds > 0 and time.monotonic() - self._last >= self._seconds
        return bool(self._seconds) and distributed.from_primary(passed)

    def check(self) -> None:
        """Raise UserError if the workdir is gone or the last save failed; one in progress is not waited for."""
        self._check_place()
        if self._checkpoints is not None:
            checkpoint.check(self._checkpoints)

    def _check_place(self) -> None:
        check(
            distributed.from_primary(self._held()),
            f"--workdir={self._place.folder} was renamed or deleted during training, which stops here: rename it back "
            "or pass its new path, and training continues from its last checkpoint",
        )

    def wait(self) -> None:
        """Wait until everything is on disk. Raises UserError if it could not be written."""
        if self._checkpoints is not None:
            with self._clock.during("checkpoint"):
                checkpoint.wait(self._checkpoints)

    def advice(self) -> str:
        """Return advice for a loss that is not finite.

        A run keeps its configuration, so another learning rate requires another run. That run may start from the best
        checkpoint of this one, but not from one without a validation: its parameters may have diverged.
        """
        workdir = self._place.folder
        places = run_folder.finished(run_folder.checkpoints(workdir))
        scores = checkpoint.known_scores(run_folder.checkpoints(workdir))
        best = best_of(scores, places, run_folder.load_config(workdir).training.best_metric)
        way = "start it anew, since no checkpoint of this run was validated, and the last may have diverged"
        if best is not None:
            loss = f"step {best}, where the loss of the validation was {scores[best].get(LOSS, math.nan):.4g}"
            way = f"--config.training.finetune_from={workdir} starts it from the best checkpoint of this run, {loss}"
        return f"Use a lower learning rate or clip in another workdir; {way}"
