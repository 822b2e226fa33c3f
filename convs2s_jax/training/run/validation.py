"""What is done between updates: validations, the score of the test set, and checkpoints."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import replace_file
from convs2s_jax.data import loader, plan
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training import dispatch, schedule
from convs2s_jax.training.run import run_folder, selection
from convs2s_jax.training.run.background_compiler import CompileRequest
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.config import AnyModel
from convs2s_jax.training.run.inputs import Split, batch_on, planned
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import InterruptedWorkError
from convs2s_jax.training.run.programs import merged_kernels
from convs2s_jax.training.run.selection import LOSS, Scores
from convs2s_jax.training.run.session import Position, Session, check_data
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Batch, LossSums, TrainState

BEHIND = 2
"""Number of batches that the host may run ahead of the device."""


def evaluate(
    evaluate_batch: Callable[[Tree, Batch], LossSums],
    params: Tree,
    cfg: AnyModel,
    mesh: Mesh,
    split: Split,
    *,
    shapes: tuple[Shape, ...],
    check: Callable[[], None] = lambda: None,
) -> float:
    """Return the loss over every line of a split, in nats per target token, without smoothing.

    Lines longer than the model's positions are truncated.

    Args:
      evaluate_batch: as `evaluator` returns it.
      params: merged kernels.
      cfg: the model.
      mesh: the devices over which batches are sharded.
      split: at least one line.
      shapes: of batches, as `held_out_shapes` chooses them.
      check: called after each batch; raises an error to end the evaluation.
    """
    everything = planned(cfg, split, shapes)

    def make(batch: plan.PlannedBatch) -> Batch:
        return batch_on(mesh, split, everything, batch)

    sums: list[LossSums] = []
    for prepared in loader.load(everything, make):
        sums.append(evaluate_batch(params, prepared.batch))
        jax.block_until_ready(sums[-1 - BEHIND :][:1])  # the device gets no more work than a signal should wait for
        check()
    fetched = jax.device_get(sums)
    return sum(float(s.nll) for s in fetched) / sum(int(s.tokens) for s in fetched)


@dispatch.jit
def all_finite(params: Tree) -> Array:
    """Whether no parameter is infinite or not a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def write_samples(folder: Path, step: int, split: Split, hypotheses: list[str]) -> None:
    """Write the first 50 translations, or labels, of a validation as JSON lines: source, hypothesis, reference."""
    folder.mkdir(exist_ok=True)
    lines = list(zip(split.text.src, hypotheses, split.text.tgt, strict=True))[:50]
    records = [{"source": s, "hypothesis": h, "reference": r} for s, h, r in lines]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    replace_file(folder / f"{step}.jsonl", text)


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
            write_samples(run.workdir / "samples", position.step, run.valid, hypotheses)
        session.reports.metrics(step=position.step, epoch=position.last_epoch, split="valid", **measured, **mark)
    position = dataclasses.replace(position, validated=position.step)
    if scheduled:
        before = position.schedule.rate
        after, why = schedule.validated(cfg.training.schedule, position.schedule, loss)
        best = selection.validated(position.best, cfg.training.best_metric, measured, step=position.step)
        position = dataclasses.replace(position, schedule=after, best=best)
        if why:
            session.reports.rate(f"step {position.step}: {why}", before, after.rate)
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

    def evaluate_batch(params: Tree, batch: Batch) -> LossSums:
        request = CompileRequest("loss", batch.src.shape + batch.tgt.shape)
        session.ahead.wait_for(request, session.interrupts.check)
        return session.evaluate(params, batch)

    with session.clock.during("validation"):
        merged = merged_kernels(params)
        loss = evaluate(
            evaluate_batch,
            merged,
            cfg.model,
            session.mesh,
            split,
            shapes=run.held_out_shapes,
            check=session.interrupts.check_together,
        )
        if not cfg.training.validate_bleu:
            return loss, {}, []
        if session.ahead.enabled:
            session.ahead.finish(session.ahead.predictions(split), session.interrupts.check)
            distributed.barrier(f"{name} compiled")
        outputs = task.predict(
            merged, cfg.model, cfg, session.mesh, split, run.vocabularies, name=name, interrupts=session.interrupts
        )
        return loss, task.scores(cfg, split, outputs), outputs


def save(
    session: Session, state: TrainState, position: Position, *, scores: Scores | None = None, scheduled: bool = True
) -> None:
    """Save a checkpoint of this position. Raises UserError if a parameter is not finite."""
    run = session.run
    with session.clock.during("checkpoint"):
        if not all_finite(state.params):
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
    best = selection.best_of(session.checkpoints.known.validations, steps, metric) or max(steps)
    return (
        f"Use a lower learning rate or clip in another workdir; --config.training.finetune_from={workdir} starts it "
        f"from the parameters of step {best}"
    )
