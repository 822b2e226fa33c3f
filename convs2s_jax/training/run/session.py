"""A run in progress: its resources, and the work between updates (validation, test scores, checkpoints)."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import schedule
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.run import run_folder, selection, validation
from convs2s_jax.training.run.background_compiler import BackgroundCompiler, CompileRequest, Predictions
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.inputs import Split, check_unchanged
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import InterruptedWorkError, Interrupts
from convs2s_jax.training.run.reports.measures import Profile, WallClock
from convs2s_jax.training.run.reports.reports import Reports
from convs2s_jax.training.run.selection import LOSS, Best, Scores
from convs2s_jax.training.run.stores.staging import Workdir
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.schedule import ScheduleState
from convs2s_jax.training.step import Step, TrainState


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
        """The position in the record of a checkpoint. Earlier versions did not save all fields."""
        fields = {field.name: saved[field.name] for field in dataclasses.fields(cls) if field.name in saved}
        records = {"schedule": ScheduleState(**saved["schedule"]), "best": Best(**saved.get("best", {}))}
        return cls(**{**fields, **records})

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update; the next one may not have begun."""
        return max(1, self.epoch - (self.batch == 0 < self.step))  # imports may have done steps in epoch 1

    @property
    def where(self) -> str:
        """The position as messages name it: the last update and its epoch."""
        return f"step {self.step}, epoch {self.last_epoch}"


class SaveClock:
    """Measures the time since the last checkpoint. The clock of process 0 decides for all processes."""

    def __init__(self, minutes: float) -> None:
        """Start the clock.

        Args:
          minutes: between two checkpoints; 0 for none by the clock.
        """
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


@dataclasses.dataclass(frozen=True)
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
      predictions: the programs that predict outputs, to be compiled ahead.
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
    ahead: BackgroundCompiler[CompileRequest]
    predictions: Predictions
    profile: Profile
    peak: float | None
    flops: Callable[[Batch], float]
    place: Workdir


def validate(session: Session, state: TrainState, position: Position, *, scheduled: bool) -> Position:
    """Score the validation set, update the schedule and save a checkpoint. A signal abandons the validation.

    Without a validation set, only the checkpoint is saved. An unscheduled validation at the end of a run affects
    neither the learning rate nor the patience. It counts for the best checkpoint only while the run ends there, so a
    continued run is the same as one that never ended.
    """
    run, cfg = session.run, session.run.cfg
    if run.valid is None:
        position = dataclasses.replace(position, validated=position.step)
        save(session, state, position)
        return position
    try:
        loss, scores, hypotheses = measure(session, state.params, run.valid, name=f"valid {position.step}")
    except InterruptedWorkError:
        return position
    measured, mark = {LOSS: loss, **scores}, {} if scheduled else {"scheduled": 0}
    with session.clock.during("other"):
        if hypotheses and distributed.is_primary():
            validation.write_samples(run.workdir / "samples", position.step, run.valid, hypotheses)
        session.reports.metrics(step=position.step, epoch=position.last_epoch, split="valid", **measured, **mark)
    position = dataclasses.replace(position, validated=position.step)
    if scheduled:
        after, why = schedule.validated(cfg.training.schedule, position.schedule, loss)
        best = selection.validated(position.best, cfg.training.best_metric, measured, step=position.step)
        position = dataclasses.replace(position, schedule=after, best=best)
        if why:
            session.reports.tell(f"step {position.step}: {why}")
    save(session, state, position, scores=measured, scheduled=scheduled)
    return position


def score_test(session: Session, state: TrainState) -> None:
    """Score the best parameters on the test set, if the corpus has one and they were not scored before."""
    run, reports = session.run, session.reports
    if run.test is None:
        return
    session.place.refresh()
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
    folder = run_folder.checkpoints(run.workdir)
    params, saved = restoring.restore_params(
        folder,
        abstract,
        step=None,
        metric=run.cfg.training.best_metric,
        check=lambda position: check_data(run, position),
        tell=reports.tell,
    )
    if distributed.from_primary(reports.has(split="test", step=saved["step"])):
        reports.tell(
            f"step {saved['step']} was already scored on the test set; for other metrics, "
            "run convs2s decode --split=test"
        )
        return
    try:
        loss, scores, outputs = measure(session, params, run.test, name=f"test {saved['step']}")
    except InterruptedWorkError:
        return
    if outputs:
        scores |= task_of(run.cfg.model).details(run.test, outputs)
    at = Position.of(saved)
    reports.metrics(step=at.step, epoch=at.last_epoch, split="test", loss=loss, **scores)


def measure(session: Session, params: Tree, split: Split, *, name: str) -> tuple[float, dict[str, float], list[str]]:
    """Compute the loss of a split and, if the configuration requests them, the model's outputs and their scores.

    `name` is unique to this call; see `distributed.barrier`.

    Raises:
      InterruptedWorkError: a signal arrived meanwhile.
    """
    run, cfg, task = session.run, session.run.cfg, task_of(session.run.cfg.model)

    def evaluate(params: Tree, batch: Batch) -> LossSums:
        request = CompileRequest("loss", batch.src.shape + batch.tgt.shape)
        session.ahead.wait_for(request, session.interrupts.check)
        return session.evaluate(params, batch)

    with session.clock.during("validation"):
        merged = validation.merged(params)
        found = validation.evaluate(
            evaluate,
            merged,
            cfg.model,
            session.mesh,
            split,
            shapes=run.held_out_shapes,
            check=session.interrupts.check_together,
        )
        if not cfg.training.validate_bleu:
            return found.loss, {}, []
        if session.ahead.enabled:
            programs = session.predictions.of(split)
            session.ahead.request(programs)
            session.ahead.finish(programs, session.interrupts.check)
            distributed.barrier(f"{name} compiled")
        outputs = task.predict(
            merged,
            cfg.model,
            cfg,
            session.mesh,
            split,
            run.vocabularies,
            name=name,
            interrupts=session.interrupts,
        )
        return found.loss, task.scores(cfg, split, outputs), outputs


def save(
    session: Session, state: TrainState, position: Position, *, scores: Scores | None = None, scheduled: bool = True
) -> None:
    """Save a checkpoint of this position. Raises UserError if a parameter is not finite."""
    run = session.run
    with session.clock.during("checkpoint"):
        if not validation.all_finite(state.params):
            raise UserError(f"step {position.step}: a parameter is not finite. {divergence_advice(session)}")
        record = dataclasses.asdict(position) | {
            "data": run.fingerprint,
            "held_out": dict(run.held_out),
            "vocabularies": run_folder.fingerprints(run.vocabularies),
        }
        session.place.settle()
        whole = session.place.to_save(session.mesh, state)
        checkpoint.save(session.checkpoints, whole, record, scores=scores, scheduled=scheduled)
        session.save_clock.restart()


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
    for name, found in run.held_out.items():
        known = saved.get("held_out", {})
        check_unchanged(name, found, known, where=str(run.workdir), remedy="start over in another workdir")


def divergence_advice(session: Session) -> str:
    """Return advice for a loss that is not finite; waits for a checkpoint that is being written.

    A run keeps its configuration, so another learning rate requires another run. That run may start from the best
    checkpoint of this one.
    """
    with contextlib.suppress(Exception):
        checkpoint.wait(session.checkpoints)
    workdir = session.run.workdir  # for an object store, its local copy
    steps = run_folder.finished(run_folder.checkpoints(session.run.workdir))
    if not steps:
        return "Use a lower learning rate or clip in another workdir"
    metric = session.run.cfg.training.best_metric
    best = selection.best_of(session.checkpoints.validations, steps, metric) or max(steps)
    return (
        f"Use a lower learning rate or clip in another workdir; --config.training.finetune_from={workdir} starts it "
        f"from the parameters of step {best}"
    )
