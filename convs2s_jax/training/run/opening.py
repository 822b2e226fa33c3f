"""Opening a run: everything is read and checked before the workdir changes, except for its lock and its cache."""

import contextlib
import os
import shutil
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from convs2s_jax.core import platforms
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.packages import versions
from convs2s_jax.data import vocabulary
from convs2s_jax.nn import weight_norm
from convs2s_jax.training import schedule, sharding_table
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.mesh import make
from convs2s_jax.training.run import finetuning, run_folder, validation
from convs2s_jax.training.run.background_compiler import (
    BackgroundCompiler,
    CompileRequest,
    Predictions,
    compiler,
    default_threads,
    requests,
)
from convs2s_jax.training.run.checkpoints import checkpoint, derived_workdir, position_file, restoring
from convs2s_jax.training.run.checkpoints.digest import digest_of_record
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.locks.lock import locked
from convs2s_jax.training.run.prepare import Run, learned_folder, prepare
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.programs import (
    begin_program,
    check_rules,
    compile_run,
    executed_loss,
    placed_state,
    program_key,
    state_program,
)
from convs2s_jax.training.run.reports import trackers
from convs2s_jax.training.run.reports.measures import PROFILE, Profile, WallClock, counter, peak_flops
from convs2s_jax.training.run.reports.reports import Reports, Silence, show
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.session import Position, SaveClock, Session, check_data
from convs2s_jax.training.run.stores.staging import Workdir
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Step, TrainState


def open_run(
    cfg: Config, place: Workdir, interrupts: Interrupts, stack: ExitStack
) -> tuple[Session, TrainState, Position]:
    """Open the resources of the training loop, with a new state or that of the newest intact checkpoint.

    Until all checks have passed, configuration, vocabulary, metrics and checkpoints are untouched. The lock is held,
    and the cache may already contain tokenised text and learned vocabularies, which the next start reuses.

    Args:
      cfg: configuration.
      place: the workdir of the run; created if missing.
      interrupts: signals received.
      stack: receives what must be closed at the end.

    Raises:
      UserError: bad data or configuration, another trainer in the workdir, a checkpoint that cannot be read.
    """
    trackers.check_installed(cfg.training.trackers)
    clock, workdir = WallClock(), place.folder
    mesh, primary = make(cfg.mesh, parallel=cfg.parallel), distributed.is_primary()
    check_rules(cfg)
    step = compile_run(program_key(cfg), mesh)
    distributed.agree("configuration", digest_of_record(to_dict(cfg)))
    distributed.primary_only("locked", lambda: stack.enter_context(locked(workdir)))
    distributed.primary_only("compared", lambda: _check_workdir(workdir, cfg))
    if place.shared:
        distributed.agree_on_folder(workdir)
    compiled = stack.enter_context(CompileCounter())
    folder, told = run_folder.checkpoints(workdir), list[str]()
    distributed.agree("list of checkpoints", digest_of_record({"steps": list(run_folder.finished(folder))}))

    def tell(sentence: str) -> None:
        if primary:
            told.append(show(sentence))

    tell(_devices(cfg, mesh))
    if flags := platforms.describe_flags(os.environ):
        tell(f"XLA flags: {flags}")
    run = distributed.primary_first("prepared", lambda: prepare(cfg, workdir, tell, learn=primary or not place.shared))
    distributed.agree("training corpus", run.fingerprint)
    distributed.agree("validation or test set", digest_of_record(dict(run.held_out)))
    evaluate = validation.evaluator(cfg.model, mesh, cfg.mesh.rules, cfg.parallel)
    layout = placed_state(program_key(cfg), mesh, **_sizes(run))
    merged = jax.eval_shape(weight_norm.merge, layout.params)
    task_of(cfg.model).check_search(merged, cfg, run.vocabularies)
    predictions = Predictions(run, merged, mesh)
    ahead = stack.enter_context(_ahead(cfg, step, evaluate, layout, mesh, predictions))
    state, position, damaged = _begin(run, mesh, layout, ahead, tell)

    def commit() -> Reports:
        _commit(run, damaged)
        return Reports(
            workdir,
            step=position.step,
            validated=position.validated == position.step,
            told=told,
            trackers=cfg.training.trackers,
            address=place.address,
            config=to_dict(cfg),
        )

    reports = stack.enter_context(distributed.primary_only("begun", commit) or Silence())
    keep, metric = cfg.training.keep, cfg.training.best_metric
    checkpoints = stack.enter_context(checkpoint.manager(folder, keep=keep, metric=metric, shared=place.shared))
    if place.mirror is not None:
        place.mirror.start()
    reports.expect(_updates(run))
    peak = peak_flops(mesh, cfg.training.peak_flops)
    traced = cfg.training.traced if primary else None
    profile = Profile(traced, workdir / PROFILE, step=position.step, tell=reports.tell, clock=clock)
    session = Session(
        run,
        mesh,
        step,
        evaluate,
        reports,
        checkpoints,
        interrupts,
        SaveClock(cfg.training.save_every_minutes),
        compiled,
        clock,
        ahead,
        predictions,
        stack.enter_context(profile),
        peak,
        flops=counter(step, executed_loss(cfg, mesh), state.params) if peak else lambda _: 0.0,
        place=place,
    )
    return session, state, position


def prepare_only(cfg: Config, workdir: Path, tell: Tell) -> None:
    """Build what a run needs before its first update (vocabularies, tokenised text, shapes) and cache it.

    Args:
      cfg: configuration of the run.
      workdir: of the run; created if missing.
      tell: called with sentences for the user.

    Raises:
      UserError: as `open_run`, except for what depends on the devices: the sizes of the mesh, the memory of a search.
    """
    check_rules(cfg)
    with locked(workdir):
        _check_workdir(workdir, cfg)
        run = prepare(cfg, workdir, tell)
        for place in reversed(run_folder.finished(run_folder.checkpoints(workdir)).values()):
            with contextlib.suppress(OSError, ValueError):
                check_data(run, position_file.read(place))
                break
        if found := learned_folder(workdir, run.vocabularies):
            tell(
                f"vocabularies: {found} (until this run trains, others can use them with --config.data.vocabulary.dir)"
            )


def _check_workdir(workdir: Path, cfg: Config) -> None:
    """Raise UserError if no run of this configuration can start or continue in the workdir."""
    derived_workdir.check_continues(workdir)
    run_folder.check_config(workdir, cfg)


def _ahead(
    cfg: Config,
    step: Step[Batch, LossSums],
    evaluate: Any,
    layout: TrainState,
    mesh: Mesh,
    predictions: Predictions,
) -> BackgroundCompiler[CompileRequest]:
    """The threads that compile programs before they are needed."""
    given = cfg.training.compile_ahead
    threads = default_threads(mesh) if given is None else given
    ended, accumulate = threading.Event(), cfg.data.batch.accumulate > 1
    work = compiler(step, evaluate, layout.params, mesh, accumulate=accumulate, ended=ended, predictions=predictions)
    return BackgroundCompiler(work, threads=threads, ended=ended)


def _sizes(run: Run) -> dict[str, int]:
    """Entries of the vocabularies."""
    return {"source": run.vocabularies.src.size, "target": run.vocabularies.tgt.size}


def _begin(
    run: Run, mesh: Mesh, layout: TrainState, ahead: BackgroundCompiler[CompileRequest], tell: Tell
) -> tuple[TrainState, Position, list[Path]]:
    """Return a new state or that of the newest intact checkpoint, its position, and newer, damaged checkpoints."""
    sizes, programs = _sizes(run), program_key(run.cfg)
    found = restoring.restore(
        run_folder.checkpoints(run.workdir),
        layout,
        check=lambda position: check_data(run, position),
        tell=tell,
    )
    if found is None:
        if run.cfg.training.finetune_from:
            params = finetuning.parameters(run.cfg, run.vocabularies, layout.params, tell)
            begin = partial(begin_program(programs, mesh, **sizes), params)
        else:
            key = jax.random.fold_in(jax.random.key(run.cfg.seed), 0)
            begin = partial(state_program(programs, mesh, **sizes), key)
        if ahead.enabled and not distributed.is_multi_process():  # several GPU processes must compile in the same order
            ahead.request(requests(run, mesh, run.first_uses))
        state = begin()
        position, damaged = Position(schedule=schedule.start(run.cfg.training.schedule)), list[Path]()
    else:
        state, saved, damaged = found
        position = Position.of(saved)
        tell(f"continuing at {position.where}")
        if _measured_otherwise(run):
            tell(
                f"{run.cfg.training.best_metric} is computed differently from here on (search, "
                "training.bleu_tokenize), but is compared directly with that of earlier checkpoints"
            )
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    tell(f"{count:,} parameters; vocabularies of {sizes['source']} and {sizes['target']}")
    if mesh.devices.size > 1:
        tell(sharding_table.summary(sharding_table.rows(layout.params, mesh, run.cfg.parallel, run.cfg.mesh.rules)))
    return state, position, damaged


def _measured_otherwise(run: Run) -> bool:
    """Whether the score that selects the best checkpoint is computed differently than before this start."""
    if run.cfg.training.best_metric == LOSS or run.cfg.classifies:
        return False
    before, now = ((cfg.search, cfg.training.bleu_tokenize) for cfg in (run_folder.load_config(run.workdir), run.cfg))
    return before != now


def _commit(run: Run, damaged: list[Path]) -> None:
    """Write what has passed the checks: the configuration and new vocabularies. Rename damaged checkpoints.

    Learned vocabularies stay in the cache until there is a checkpoint, so a run that ends before it need not learn them
    again.
    """
    run_folder.write_config(run.workdir, run_folder.with_origin(run.workdir, run.cfg))
    if run_folder.has_checkpoint(run.workdir):
        shutil.rmtree(run_folder.learned_vocabularies(run.workdir), ignore_errors=True)
    else:
        vocabulary.save(run.vocabularies, run_folder.vocabulary(run.workdir))
    for place in damaged:
        step = place.name.removesuffix(run_folder.BEFORE)
        checkpoint.put_aside(place, f"{step}{run_folder.DAMAGED}")


def _devices(cfg: Config, mesh: Mesh) -> str:
    """Describe the devices for the user, with the versions of the libraries that compute on them."""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    kind, count = mesh.devices.flat[0].device_kind, mesh.devices.size
    where = f" in {jax.process_count()} processes" if distributed.is_multi_process() else ""
    over = f"; {cfg.parallel} over {axes}" if axes else ""
    return f"devices: {count} x {kind}{where}{over} ({versions('jax', 'jaxlib', 'flax')})"


def _updates(run: Run) -> int | None:
    """Number of updates in the whole run, according to its limits; None if unknown."""
    cfg = run.cfg.training
    if cfg.max_epochs is None:
        return cfg.max_steps
    epoch = -(-run.batches // run.cfg.data.batch.accumulate)
    return min(cfg.max_epochs * epoch, cfg.max_steps or sys.maxsize)
