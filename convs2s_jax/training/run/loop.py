"""The training loop: epochs of updates, reports, validations and checkpoints, from any position."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import jax

from convs2s_jax.data import loader, plan
from convs2s_jax.training import schedule
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run import run_folder, selection
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.run.compilations import forget
from convs2s_jax.training.run.config import Config, TrainingConfig
from convs2s_jax.training.run.inputs import Split, batch_on, fingerprint
from convs2s_jax.training.run.mirror import Workdir, opened
from convs2s_jax.training.run.opening import Session, open_run
from convs2s_jax.training.run.prepare import segmented
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import InterruptedWorkError, Interrupts, StoppedBeforeUpdateError
from convs2s_jax.training.run.reports.measures import device_memory
from convs2s_jax.training.run.saving import Position
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.validation import measure, write_samples
from convs2s_jax.training.step import TrainState, fold_in


def train(cfg: Config, workdir: Path | str, interrupts: Interrupts | None = None) -> None:
    """Train, or continue the run in `workdir`, until a limit in the configuration, the schedule or a signal ends it.

    A signal before the first update ends it immediately, without a checkpoint.

    Args:
      cfg: configuration.
      workdir: folder of the run, or its address in an object store (gs://, s3://).
      interrupts: how signals are handled; by default without ending the process that calls this.

    Raises:
      UserError: bad data or configuration, a checkpoint that cannot be written or read, a loss that is not finite.
    """
    interrupts = interrupts or Interrupts()
    if distributed.is_multi_process():
        forget()  # processes must compile together, but an earlier run may have left them with different programs
    with suppress(StoppedBeforeUpdateError), interrupts, ExitStack() as stack:
        place = stack.enter_context(opened(workdir))
        session, state, position = open_run(cfg, place, interrupts, stack)
        session.profile.done(position.step, state)
        if _due(cfg.training, position) and position.validated < position.step:  # a signal had prevented it
            interrupts.begin()
            position = _validate(session, state, position, scheduled=True)
        if not _ended(cfg.training, position) and not interrupts.received:
            with session.clock.during("compute"):
                state, position = _updates(session, state, position)
        interrupts.begin()  # also if an earlier start has done all updates
        why = _ended(cfg.training, position)
        if why and position.validated < position.step:
            position = _validate(session, state, position, scheduled=False)
        session.saves.save(state, position)
        session.saves.wait()
        if why and not interrupts.received:
            _score_test(session, place)
        session.reports.end(position.where, why or interrupts.received, time=session.clock.account())


def _due(cfg: TrainingConfig, position: Position) -> bool:
    """Whether a validation is scheduled here."""
    at = position.batch if cfg.validate_every is None else position.step % cfg.validate_every
    return at == 0 < position.step


def _ended(cfg: TrainingConfig, position: Position) -> str:
    """Return why training is over, or ""."""
    if cfg.max_steps is not None and position.step >= cfg.max_steps:
        return f"training.max_steps is {cfg.max_steps}"
    if cfg.max_epochs is not None and position.epoch > cfg.max_epochs:
        return f"training.max_epochs is {cfg.max_epochs}"
    return position.schedule.stopped or selection.ended(position.best, cfg.best_metric, cfg.patience)


def _inputs(session: Session, position: Position) -> Iterator[tuple[list[Batch], int, int]]:
    """For all updates from a position on: the batches, and epoch and batch of the position after the update.

    A thread prepares the next epoch.
    """
    run, mesh = session.run, session.programs.mesh
    longest = max(shape.src for shape in run.shapes), max(shape.tgt for shape in run.shapes)
    accumulate = run.cfg.data.batch.accumulate
    firsts = {position.epoch: position.step - position.batch // accumulate + 1}  # number of each epoch's first update

    def data(epoch: int) -> tuple[Split, plan.Plan]:
        seed, made = run.cfg.seed, run.vocabularies
        split = segmented(run.cfg.data, run.train, made, run.folder, seed=seed, epoch=epoch, longest=longest)
        planned = run.planned(split, epoch=epoch, first=firsts[epoch])
        firsts[epoch + 1] = firsts[epoch] - (-len(planned.batches) // accumulate)
        return split, planned

    epochs, epoch, start = loader.Epochs(data, last=run.cfg.training.max_epochs), position.epoch, position.batch
    while True:
        with session.clock.during("input"):
            split, planned = epochs.get(epoch)
            if run.cfg.data.subword_sampling:
                distributed.agree(f"segmentation in epoch {epoch}", fingerprint(split.src, split.tgt))
        session.programs.request_updates(planned.first_uses(start))
        pending: list[Batch] = []
        prepared = loader.load(planned, lambda one: batch_on(mesh, split, planned, one), start=start)  # noqa: B023
        for used in range(start + 1, len(planned.batches) + 1):
            with session.clock.during("input"):
                pending.append(next(prepared))
            if used == len(planned.batches):
                yield pending, epoch + 1, 0
            elif len(pending) == accumulate:
                yield pending, epoch, used
                pending = []
        epoch, start = epoch + 1, 0


def _updates(session: Session, state: TrainState, position: Position) -> tuple[TrainState, Position]:
    """Update until training ends, or a signal stops it, with reports, validations and checkpoints."""
    run, cfg, window = session.run, session.run.cfg.training, session.window
    root = jax.random.fold_in(jax.random.key(run.cfg.seed), 1)
    for batches, epoch, batch in _inputs(session, position):
        rate = schedule.rate(cfg.schedule, position.schedule, step=position.step + 1, epoch=position.epoch)
        if position.batch == 0:
            _tell_rate(session, position, rate)
        with window.update_of([one.src.shape + one.tgt.shape for one in batches]):
            key = fold_in(root, position.step)  # a separate program, compiled at the first update
            state, sums = session.programs.update(state, batches, rate, key)
            flops = sum(map(session.programs.flops, batches)) if window.peak else 0.0
        position = dataclasses.replace(position, step=position.step + 1, epoch=epoch, batch=batch)
        window.add(position.step, rate, sums, flops)
        session.profile.done(position.step, sums)
        session.interrupts.begin()
        session.reports.advance(position.step, position.last_epoch)
        session.interrupts.ask()
        due, ended, over = _due(cfg, position), bool(_ended(cfg, position)), bool(session.interrupts.received)
        keep = cfg.save_every is not None and position.step % cfg.save_every == 0
        if due or ended or keep or over or position.batch == 0 or position.step % cfg.report_every == 0:
            _report(session, position)
            position = dataclasses.replace(position, skipped=window.skipped)
            keep = session.saves.due() or keep
        if (due or ended) and not over:
            position = _validate(session, state, position, scheduled=due)
        elif keep:
            session.saves.save(state, position)
        if session.interrupts.received or _ended(cfg, position):
            break
    return state, position


def _tell_rate(session: Session, position: Position, rate: float) -> None:
    """Log when the schedule changes the rate from one epoch to the next."""
    step, epoch = position.step + 1, max(1, position.epoch - 1)
    before = schedule.rate(session.run.cfg.training.schedule, position.schedule, step=step, epoch=epoch)
    if rate != before:
        session.reports.rate(f"epoch {position.epoch}: learning rate {before:g} -> {rate:g}, as the schedule says")


def _report(session: Session, position: Position) -> None:
    """Write the metrics since the last report. Raises UserError for a non-finite loss or a failed save."""
    summary = session.window.close()
    session.saves.check()
    with session.clock.during("other"):
        session.reports.metrics(
            step=position.step,
            epoch=position.last_epoch,
            split="train",
            compilations=session.compiled.count - session.compiled.kept,
            **summary,
            **device_memory(session.programs.mesh.local_devices),
        )


def _validate(session: Session, state: TrainState, position: Position, *, scheduled: bool) -> Position:
    """Score the validation set, update the schedule and save a checkpoint. A signal abandons the validation.

    Without a validation set, only the checkpoint is saved. An unscheduled validation at the end of a run affects
    neither the learning rate nor the patience, so the updates of a continued run are those of one that never ended.
    """
    run, cfg, reports = session.run, session.run.cfg.training, session.reports
    validated = dataclasses.replace(position, validated=position.step)
    if run.valid is None:
        session.saves.save(state, validated)
        return validated
    name = f"valid {position.step}"
    try:
        with session.clock.during("validation"):
            scores, outputs = measure(
                run, session.programs, state.params, run.valid, name=name, interrupts=session.interrupts
            )
    except InterruptedWorkError:
        return position
    with session.clock.during("other"):
        if outputs and distributed.is_primary():
            write_samples(session.reports.samples, position.step, run.valid, outputs)
        reports.metrics(step=position.step, epoch=position.last_epoch, split="valid", **scores)
    if scheduled:
        after, why = schedule.validated(cfg.schedule, position.schedule, scores[LOSS])
        best = selection.validated(position.best, cfg.best_metric, scores, step=position.step)
        validated = dataclasses.replace(validated, schedule=after, best=best)
        if why:
            reports.rate(f"step {position.step}: {why}")
    session.saves.save(state, validated, scores)
    return validated


def _score_test(session: Session, place: Workdir) -> None:
    """Score the best parameters on the test set, if the corpus has one and they were not scored before."""
    run, reports = session.run, session.reports
    if run.test is None:
        return
    place.refresh()
    found, saved = restoring.restore_items(
        run_folder.checkpoints(place.folder),
        {"params": session.programs.layout.params},
        step=None,
        metric=run.cfg.training.best_metric,
        check=partial(run.check_unchanged, place.folder),
        tell=reports.tell,
    )
    at = Position.of(saved)
    # the reports of other processes answer None
    if distributed.from_primary(bool(reports.has(split="test", step=at.step))):
        reports.tell(
            f"step {at.step} was already scored on the test set; for other metrics, run convs2s decode --split=test"
        )
        return
    name, interrupts = f"test {at.step}", session.interrupts
    with suppress(InterruptedWorkError), session.clock.during("validation"):
        scores, _ = measure(
            run, session.programs, found["params"], run.test, name=name, interrupts=interrupts, details=True
        )
        reports.metrics(step=at.step, epoch=at.last_epoch, split="test", **scores)
