"""Opening a run: everything is read and checked before the workdir changes, except for its lock and its cache."""

import dataclasses
import os
import shutil
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from convs2s_jax.core import platforms
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.packages import versions
from convs2s_jax.data import vocabulary
from convs2s_jax.nn import weight_norm
from convs2s_jax.training import schedule, sharding
from convs2s_jax.training.mesh import make
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.background_compiler import ProgramsAhead
from convs2s_jax.training.run.checkpoints import checkpoint, derived_workdir, position_file, restoring
from convs2s_jax.training.run.checkpoints.checkpoint import Checkpoints
from convs2s_jax.training.run.checkpoints.digest import digest_of_record
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.lock import locked
from convs2s_jax.training.run.mirror import Workdir
from convs2s_jax.training.run.prepare import Run, learned_folder, prepare
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.programs import (
    ProgramKey,
    begin_program,
    check_rules,
    compile_run,
    evaluator,
    executed_loss,
    placed_state,
    program_key,
    state_program,
)
from convs2s_jax.training.run.reports import trackers
from convs2s_jax.training.run.reports.facts import Facts
from convs2s_jax.training.run.reports.measures import PROFILE, Profile, WallClock, counter, peak_flops
from convs2s_jax.training.run.reports.reports import Reports, Silence, show
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.session import Position, SaveClock, Session, check_data
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import TrainState


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
    clock, told = WallClock(), list[str]()

    def tell(sentence: str) -> None:
        if distributed.is_primary():
            told.append(show(sentence))

    trackers.check_installed(cfg.training.trackers)
    mesh, key = make(cfg.mesh, parallel=cfg.parallel), program_key(cfg)
    check_rules(cfg)
    step = compile_run(key, mesh)
    _take(cfg, place, stack)
    compiled = stack.enter_context(CompileCounter())
    run = _prepared(cfg, place, _devices(mesh, cfg.parallel), tell)
    evaluate = evaluator(key.model, mesh, key.rules, key.parallel)
    layout = placed_state(key, mesh, **run.sizes)
    task_of(cfg.model).check_search(jax.eval_shape(weight_norm.merge, layout.params), cfg, run.vocabularies)
    ahead = stack.enter_context(ProgramsAhead(run, mesh, step, evaluate, layout.params))
    begun = _begin(run, place.folder, key, mesh, layout, ahead, tell)
    reports, checkpoints = _commit(run, begun, _devices(mesh, cfg.parallel), place, told, stack)
    traced = cfg.training.traced if distributed.is_primary() else None
    profile = Profile(traced, run.workdir / PROFILE, step=begun.position.step, tell=reports.tell, clock=clock)
    peak = peak_flops(mesh, cfg.training.peak_flops)
    session = Session(
        run=run,
        mesh=mesh,
        step=step,
        evaluate=evaluate,
        reports=reports,
        checkpoints=checkpoints,
        interrupts=interrupts,
        save_clock=SaveClock(cfg.training.save_every_minutes),
        compiled=compiled,
        clock=clock,
        ahead=ahead,
        profile=stack.enter_context(profile),
        peak=peak,
        flops=counter(step, executed_loss(key, mesh), begun.state.params) if peak else lambda _: 0.0,
        place=place,
    )
    return session, begun.state, begun.position


def _take(cfg: Config, place: Workdir, stack: ExitStack) -> None:
    """Lock the workdir and compare its run with the configuration; all processes agree on both."""
    workdir = place.folder
    distributed.agree("configuration", digest_of_record(to_dict(cfg)))
    distributed.primary_only("locked", lambda: stack.enter_context(locked(workdir)))
    distributed.primary_only("compared", lambda: _check_workdir(workdir, cfg))
    if place.shared:
        distributed.agree_on_folder(workdir)
    steps = list(run_folder.finished(run_folder.checkpoints(workdir)))
    distributed.agree("list of checkpoints", digest_of_record({"steps": steps}))


def _prepared(cfg: Config, place: Workdir, devices: str, tell: Tell) -> Run:
    """Prepare the data; all processes agree on them."""
    tell(f"devices: {devices}")
    if flags := platforms.describe_flags(os.environ):
        tell(f"XLA flags: {flags}")
    learn = distributed.is_primary() or not place.shared
    run = distributed.primary_first("prepared", lambda: prepare(cfg, place.folder, tell, learn=learn))
    distributed.agree("training corpus", run.fingerprint)
    distributed.agree("validation or test set", digest_of_record(dict(run.held_out)))
    return run


class _Begun(NamedTuple):
    """What the loop begins with.

    Attributes:
      state: a new one, or that of a checkpoint.
      position: its position.
      damaged: newer checkpoints, which could not be read.
      origin: step and workdir of the parameters of a fine-tuned run that begins; otherwise "".
    """

    state: TrainState
    position: Position
    damaged: list[Path]
    origin: str = ""


def _begin(
    run: Run, workdir: Path, key: ProgramKey, mesh: Mesh, layout: TrainState, ahead: ProgramsAhead, tell: Tell
) -> _Begun:
    """Restore the newest intact checkpoint, or initialise a new state."""
    folder = run_folder.checkpoints(workdir)
    found = restoring.restore(folder, layout, check=lambda position: check_data(run, position), tell=tell)
    if found is None:
        begun = _begin_anew(run, key, mesh, layout, ahead, tell)
    else:
        position = _without_repeated_validation(Position.of(found.position), folder)
        begun = _Begun(found.state, position, found.damaged)
        tell(f"continuing at {position.where}")
        if _measured_otherwise(run.cfg, workdir):
            tell(
                f"{run.cfg.training.best_metric} is computed differently from here on (search, "
                "training.bleu_tokenize), but is compared directly with that of earlier checkpoints"
            )
    tell(f"{_count(begun.state):,} parameters; vocabularies of {run.sizes['source']} and {run.sizes['target']}")
    if mesh.devices.size > 1:
        tell(sharding.summary(sharding.table(layout.params, mesh, key.parallel, key.rules)))
    return begun


def _begin_anew(run: Run, key: ProgramKey, mesh: Mesh, layout: TrainState, ahead: ProgramsAhead, tell: Tell) -> _Begun:
    """A state with random parameters, or with those of the run that is fine-tuned."""
    origin = ""
    if run.cfg.training.finetune_from:
        params, origin = finetuning.parameters(run.cfg, run.vocabularies, layout.params, tell)
        begin = partial(begin_program(key, mesh, **run.sizes), params)
    else:
        random = jax.random.fold_in(jax.random.key(run.cfg.seed), 0)
        begin = partial(state_program(key, mesh, **run.sizes), random)
    if not distributed.is_multi_process():  # several GPU processes must compile in the same order
        ahead.updates(run.first_uses)
    return _Begun(begin(), Position(schedule=schedule.start(run.cfg.training.schedule)), [], origin)


def _without_repeated_validation(position: Position, folder: Path) -> Position:
    """The position, with the validation at the end of the last start, if it came after the checkpoint was written."""
    known = checkpoint.known_scores(folder).validations.get(position.step)
    if distributed.from_primary(known is not None and not known.scheduled):
        return dataclasses.replace(position, validated=position.step)
    return position


def _count(state: TrainState) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def _commit(
    run: Run, begun: _Begun, devices: str, place: Workdir, told: list[str], stack: ExitStack
) -> tuple[Reports, Checkpoints]:
    """Write what has passed the checks, and open what the loop writes to."""
    cfg, position = run.cfg.training, begun.position
    facts = Facts(
        devices=devices,
        examples=run.used,
        batches=run.batching,
        parameters=_count(begun.state),
        vocabularies=tuple(run.sizes.values()),
        origin=begun.origin,
    )

    def commit() -> Reports:
        _write(run, place.folder, begun.damaged)
        return Reports(
            place.folder,
            step=position.step,
            validated=position.validated == position.step,
            told=told,
            found=facts,
            trackers=cfg.trackers,
            address=place.address,
            config=to_dict(run.cfg),
        )

    reports = stack.enter_context(distributed.primary_only("begun", commit) or Silence())
    folder = run_folder.checkpoints(place.folder)
    checkpoints = checkpoint.manager(folder, keep=cfg.keep, metric=cfg.best_metric, shared=place.shared)
    stack.enter_context(checkpoints)
    if checkpoints.known.damage:
        reports.tell(
            f"{place.folder / run_folder.SCORES} is damaged ({checkpoints.known.damage}): the scores of earlier "
            "checkpoints are unknown, so all of them are kept"
        )
    if place.mirror is not None:
        place.mirror.start()
    reports.expect(_updates(run))
    return reports, checkpoints


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
        if saved := position_file.newest(workdir):
            check_data(run, saved)
        if found := learned_folder(workdir, run.vocabularies):
            tell(
                f"vocabularies: {found} (until this run trains, others can use them with --config.data.vocabulary.dir)"
            )


def _check_workdir(workdir: Path, cfg: Config) -> None:
    """Raise UserError if no run of this configuration can start or continue in the workdir."""
    derived_workdir.check_continues(workdir)
    run_folder.check_config(workdir, cfg)


def _measured_otherwise(cfg: Config, workdir: Path) -> bool:
    """Whether the score that selects the best checkpoint is computed differently than before this start."""
    if cfg.training.best_metric == LOSS or cfg.classifies:
        return False
    before = run_folder.load_config(workdir)
    return (before.search, before.training.bleu_tokenize) != (cfg.search, cfg.training.bleu_tokenize)


def _write(run: Run, workdir: Path, damaged: list[Path]) -> None:
    """Write what has passed the checks: the configuration and new vocabularies. Rename damaged checkpoints.

    Learned vocabularies stay in the cache until there is a checkpoint, so a run that ends before it need not learn them
    again.
    """
    run_folder.write_config(workdir, run_folder.with_origin(workdir, run.cfg))
    if run_folder.has_checkpoint(workdir):
        shutil.rmtree(run_folder.learned_vocabularies(workdir), ignore_errors=True)
    else:
        vocabulary.save(run.vocabularies, run_folder.vocabulary(workdir))
    for place in damaged:
        checkpoint.put_aside(place, f"{place.name}{run_folder.DAMAGED}")


def _devices(mesh: Mesh, parallel: str) -> str:
    """Describe the devices for the user, with the versions of the libraries that compute on them."""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    kind, count = mesh.devices.flat[0].device_kind, mesh.devices.size
    where = f" in {jax.process_count()} processes" if distributed.is_multi_process() else ""
    over = f"; {parallel} over {axes}" if axes else ""
    return f"{count} x {kind}{where}{over} ({versions('jax', 'jaxlib', 'flax')})"


def _updates(run: Run) -> int | None:
    """Number of updates in the whole run, according to its limits; None if unknown."""
    cfg = run.cfg.training
    if cfg.max_epochs is None:
        return cfg.max_steps
    epoch = -(-run.batches // run.cfg.data.batch.accumulate)
    return min(cfg.max_epochs * epoch, cfg.max_steps or sys.maxsize)
