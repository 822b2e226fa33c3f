"""The training loop: epochs of updates, reports, validations and checkpoints, from any position."""

import dataclasses
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from convs2s_jax.data import loader, plan
from convs2s_jax.nn.trees import paths
from convs2s_jax.training import schedule
from convs2s_jax.training.run import selection
from convs2s_jax.training.run.background_compiler import CompileRequest
from convs2s_jax.training.run.checkpoints import checkpoint
from convs2s_jax.training.run.compilations import forget
from convs2s_jax.training.run.config import Config, TrainingConfig
from convs2s_jax.training.run.inputs import Split, batch_on, fingerprint, padding_on
from convs2s_jax.training.run.mirror import opened
from convs2s_jax.training.run.opening import open_run
from convs2s_jax.training.run.prepare import segmented
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts, StoppedBeforeUpdateError
from convs2s_jax.training.run.reports.measures import Window, device_memory
from convs2s_jax.training.run.session import Position, Session
from convs2s_jax.training.run.validation import divergence_advice, save, score_test, validate
from convs2s_jax.training.step import Batch, TrainState, fold_in, update


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
        session, state, position = open_run(cfg, stack.enter_context(opened(workdir)), interrupts, stack)
        window, epochs = _window(session, state, position), _epochs(session)
        session.profile.done(position.step, state)
        training = cfg.training
        if _due(training, position) and position.validated < position.step:  # a signal had prevented it
            interrupts.begin()
            position = validate(session, state, position, scheduled=True)
        while not (why := _ended(training, position)) and not interrupts.received:
            with session.clock.during("compute"):
                state, position = _epoch(session, window, epochs, state, position)
        interrupts.begin()  # also if an earlier start has done all updates
        if why and position.validated < position.step:
            position = validate(session, state, position, scheduled=False)
        save(session, state, position)
        with session.clock.during("checkpoint"):
            checkpoint.wait(session.checkpoints)
        if why and not interrupts.received:
            score_test(session, state)
        session.reports.end(position.where, why or interrupts.received, time=session.clock.account())


def _due(cfg: TrainingConfig, position: Position) -> bool:
    """Whether a validation is scheduled here."""
    if cfg.validate_every is None:
        return position.step > 0 and position.batch == 0
    return position.step > 0 and position.step % cfg.validate_every == 0


def _ended(cfg: TrainingConfig, position: Position) -> str:
    """Return why training is over, or ""."""
    if cfg.max_steps is not None and position.step >= cfg.max_steps:
        return f"training.max_steps is {cfg.max_steps}"
    if cfg.max_epochs is not None and position.epoch > cfg.max_epochs:
        return f"training.max_epochs is {cfg.max_epochs}"
    return position.schedule.stopped or selection.ended(position.best, cfg.best_metric, cfg.patience)


def _window(session: Session, state: TrainState, position: Position) -> Window:
    """The window of the whole run, which counts consecutive skipped updates across epochs and restarts."""
    return Window(
        names=paths(state.params),
        skip=session.run.cfg.training.skip_bad_steps,
        remedy=partial(divergence_advice, session),
        tell=session.reports.tell,
        clock=session.clock,
        peak=session.peak,
        skipped=position.skipped,
    )


class _Epoch(NamedTuple):
    """The training data in the segmentation of an epoch, and the plan of its batches."""

    split: Split
    plan: plan.Plan


def _epochs(session: Session) -> loader.Epochs[_Epoch]:
    """The data and the batch plan of each epoch."""
    run = session.run
    longest = max(shape.src for shape in run.shapes), max(shape.tgt for shape in run.shapes)

    def of(epoch: int) -> _Epoch:
        split = segmented(run.cfg.data, run.train, run.vocabularies, seed=run.cfg.seed, epoch=epoch, longest=longest)
        planned = plan.plan_epoch(*split.lengths(), run.rows, run.shapes, seed=run.cfg.seed, epoch=epoch)
        return _Epoch(split, planned)

    return loader.Epochs(of, last=run.cfg.training.max_epochs)


def _epoch(
    session: Session, window: Window, epochs: loader.Epochs[_Epoch], state: TrainState, position: Position
) -> tuple[TrainState, Position]:
    """Run the updates up to the end of the epoch or of training."""
    run, cfg = session.run, session.run.cfg.training
    with session.clock.during("input"):
        split, epoch = epochs.get(position.epoch)
        if run.cfg.data.subword_sampling:
            distributed.agree(f"segmentation in epoch {position.epoch}", fingerprint(split.src, split.tgt))

    def make(planned: plan.PlannedBatch) -> Batch:
        return batch_on(session.mesh, split, epoch, planned)

    session.ahead.updates(epoch.first_uses(position.batch))
    session.ahead.predictions(run.valid)
    _tell_rate(session, position)
    padding = padding_on(session.mesh, epoch)
    pending, root = [], jax.random.fold_in(jax.random.key(run.cfg.seed), 1)
    for prepared in loader.load(epoch, make, start=position.batch):
        session.clock.reassign("input", prepared.waited)
        pending.append(prepared.batch)
        last = prepared.index + 1 == len(epoch.batches)
        if len(pending) < run.cfg.data.batch.accumulate and not last:
            continue
        rate = schedule.rate(cfg.schedule, position.schedule, step=position.step + 1, epoch=position.epoch)
        shapes = [batch.src.shape + batch.tgt.shape for batch in pending]
        with window.update_of(shapes):
            for shape in shapes:
                session.ahead.wait_for(CompileRequest("gradients", shape))
            key = fold_in(root, position.step)  # a separate program, compiled at the first update
            state, sums = update(session.step, state, pending, np.float32(rate), key)
            flops = sum(map(session.flops, pending))
        pending = []
        position = dataclasses.replace(position, step=position.step + 1, batch=prepared.index + 1)
        window.add(position.step, rate, sums, flops)
        session.profile.done(position.step, sums)
        session.interrupts.begin()
        session.reports.advance(position.step, position.epoch)
        session.interrupts.ask()
        if last:
            position = dataclasses.replace(position, epoch=position.epoch + 1, batch=0)
        due = _due(cfg, position)
        ended = bool(_ended(cfg, position))
        keep = cfg.save_every is not None and position.step % cfg.save_every == 0
        over = bool(session.interrupts.received)
        if due or ended or keep or over or last or position.step % cfg.report_every == 0:
            _report(session, window, position, padding)
            position = dataclasses.replace(position, skipped=window.skipped)
            keep = session.save_clock.due() or keep
        if (due or ended) and not over:
            position = validate(session, state, position, scheduled=due)
            if not ended and not session.interrupts.received:
                session.ahead.predictions(run.test)
        elif keep:
            save(session, state, position)
        if session.interrupts.received or _ended(cfg, position):
            break
    return state, position


def _tell_rate(session: Session, position: Position) -> None:
    """Log when the schedule changes the rate from one epoch to the next."""
    cfg, step = session.run.cfg.training.schedule, position.step + 1
    now = schedule.rate(cfg, position.schedule, step=step, epoch=position.epoch)
    before = schedule.rate(cfg, position.schedule, step=step, epoch=max(1, position.epoch - 1))
    if now != before and position.batch == 0:
        why = f"learning rate {before:g} -> {now:g}, as the schedule says"
        session.reports.rate(f"epoch {position.epoch}: {why}", before, now)


def _report(session: Session, window: Window, position: Position, padding: float) -> None:
    """Write the metrics since the last report. Raises UserError for a non-finite loss or a failed save."""
    summary = window.close()
    checkpoint.check(session.checkpoints)
    with session.clock.during("other"):
        session.reports.metrics(
            step=position.step,
            epoch=position.last_epoch,
            split="train",
            padding=padding,
            compilations=session.compiled.count - session.compiled.kept,
            **summary,
            **device_memory(session.mesh.local_devices),
        )
