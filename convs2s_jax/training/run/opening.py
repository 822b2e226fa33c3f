"""Opening a run: everything is read and checked before the workdir changes, except for its lock and its cache."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from convs2s_jax.core import platforms
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.packages import check_installed, program, versions
from convs2s_jax.core.places import check_utf8
from convs2s_jax.data import processes, tokens_on_disk, vocabulary
from convs2s_jax.nn.trees import paths
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training import schedule, sharding
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, derived_workdir, position_file, restoring
from convs2s_jax.training.run.checkpoints.checkpoint import Checkpoints
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.lock import locked
from convs2s_jax.training.run.mirror import Workdir
from convs2s_jax.training.run.prepare import Run, prepare
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.programs import Programs, check_rules, program_key
from convs2s_jax.training.run.reports.measures import PROFILE, Profile, WallClock, Window, peak_flops
from convs2s_jax.training.run.reports.reports import Reports, show, silence
from convs2s_jax.training.run.saving import Position, Saves
from convs2s_jax.training.step import TrainState


class Session(NamedTuple):
    """The resources of the training loop.

    Attributes:
      run: configuration, data and vocabularies.
      programs: the update and the loss.
      saves: saves checkpoints.
      reports: where metrics and messages go.
      window: the updates since the last report.
      clock: where the time goes.
      profile: the trace of a few updates.
      compiled: counter of compilations.
      interrupts: signals received.
    """

    run: Run
    programs: Programs
    saves: Saves
    reports: Reports
    window: Window
    clock: WallClock
    profile: Profile
    compiled: CompileCounter
    interrupts: Interrupts


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

    for name in cfg.training.trackers:
        check_installed(f"'{name}' in training.trackers", [name], name)
    mesh, key = meshes.make(cfg.mesh, parallel=cfg.parallel), program_key(cfg)
    check_rules(cfg)
    held = _take(cfg, place, stack)
    compiled = stack.enter_context(CompileCounter())
    devices = _devices(mesh, cfg.parallel)
    run = _prepared(cfg, place, devices, tell)
    programs = stack.enter_context(Programs(key, mesh, run.sizes, cfg.training.compile_ahead))
    begun = _begin(run, place.folder, programs, tell)
    # all checks have passed
    written = distributed.primary_only("begun", lambda: _write(run, begun, devices, place, told))
    reports = stack.enter_context(written or silence())
    checkpoints = None
    if place.shared or distributed.is_primary():  # otherwise process 0 writes all of each checkpoint
        folder, keep, metric = run_folder.checkpoints(place.folder), cfg.training.keep, cfg.training.best_metric
        checkpoints = stack.enter_context(Checkpoints(folder, keep=keep, metric=metric, shared=place.shared))
    if place.mirror is not None:
        place.mirror.start()
    minutes = cfg.training.save_every_minutes
    saves = Saves(checkpoints, place, mesh, minutes=minutes, data=run.record, clock=clock, held=held)
    traced = cfg.training.traced if distributed.is_primary() else None
    profile = Profile(traced, place.folder / PROFILE, tell=reports.tell, clock=clock)
    stack.callback(profile.close)
    window = Window(
        names=paths(begun.state.params),
        skip=cfg.training.skip_bad_steps,
        remedy=saves.advice,
        tell=reports.tell,
        clock=clock,
        peak=peak_flops(mesh, cfg.training.peak_flops),
        skipped=begun.position.skipped,
    )
    session = Session(run, programs, saves, reports, window, clock, profile, compiled, interrupts)
    return session, begun.state, begun.position


def _take(cfg: Config, place: Workdir, stack: ExitStack) -> Callable[[], bool]:
    """Lock the workdir and compare its run with the configuration; all processes agree on both.

    Returns whether the workdir is still at its path, as a function; always True on other processes than the primary.
    """
    workdir = place.folder
    if distributed.is_multi_process():
        distributed.agree("program", program(), remedy="install the same on all")
    distributed.agree("configuration", to_dict(cfg))
    held = distributed.primary_only("locked", lambda: stack.enter_context(locked(workdir)))
    distributed.primary_only("compared", lambda: _check_workdir(workdir, cfg))
    if place.shared:
        distributed.agree_on_folder(workdir)
    distributed.agree("list of checkpoints", {"steps": [*run_folder.finished(run_folder.checkpoints(workdir))]})
    return held or (lambda: True)


def _prepared(cfg: Config, place: Workdir, devices: str, tell: Tell) -> Run:
    """Prepare the data; all processes agree on them."""
    tell(f"devices: {devices}")
    if flags := platforms.describe_flags(os.environ):
        tell(f"XLA flags: {flags}")
    run = distributed.on_all("prepared", lambda: prepare(cfg, place.folder, tell), at_once=not place.shared)
    distributed.agree("training corpus", run.fingerprint)
    distributed.agree("validation or test set", dict(run.held_out))
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
    damaged: Sequence[Path] = ()
    origin: str = ""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))


def _begin(run: Run, workdir: Path, programs: Programs, tell: Tell) -> _Begun:
    """Restore the newest intact checkpoint, or initialise a new state, with random parameters or another run's."""
    folder = run_folder.checkpoints(workdir)
    cfg, layout = run.cfg, programs.layout
    found = restoring.restore(folder, layout, check=partial(run.check_unchanged, workdir), tell=tell)
    if found is not None:
        state, saved, damaged = found
        begun = _Begun(state, Position.of(saved), damaged)
        tell(f"continuing at {begun.position.where}")
    else:
        random, origin = jax.random.fold_in(jax.random.key(cfg.seed), 0), ""
        if cfg.training.finetune_from:
            params, origin = finetuning.parameters(cfg, run.vocabularies, layout.params, tell)
        state = programs.new_state(params if origin else random)
        begun = _Begun(state, Position(schedule=schedule.start(cfg.training.schedule)), origin=origin)
    tell(f"{begun.parameters:,} parameters; vocabularies of {run.sizes['source']} and {run.sizes['target']}")
    if programs.mesh.devices.size > 1:
        here, whole = map(sharding.size_text, sharding.stored_bytes(layout.params))
        tell(f"each device stores {here} of {whole} of parameters (convs2s config --shardings=N lists them)")
    return begun


def _write(run: Run, begun: _Begun, devices: str, place: Workdir, told: list[str]) -> Reports:
    """Write what has passed the checks: configuration, new vocabularies, reports. Rename damaged checkpoints.

    Learned vocabularies stay in the cache until there is a checkpoint, so a run that ends before it need not learn them
    again.
    """
    workdir = place.folder
    position = begun.position
    run_folder.write_inputs(workdir, run.cfg, run.vocabularies)
    if run_folder.has_checkpoint(workdir):
        vocabulary.remove(run_folder.learned_vocabularies(workdir))
    for damaged in begun.damaged:
        checkpoint.put_aside(damaged)
    facts = dataclasses.replace(run.facts, devices=devices, parameters=begun.parameters, origin=begun.origin)
    return Reports(
        workdir,
        step=position.step,
        validated=position.validated == position.step,
        told=told,
        found=facts,
        trackers=run.cfg.training.trackers,
        address=place.address,
        config=to_dict(run.cfg),
        total=run.cfg.training.max_steps,
    )


def prepare_only(
    cfg: Config, workdir: Path, tell: Tell, *, part: tuple[int, int] | None = None, engine: str = "processes"
) -> None:
    """Build what a run needs before its first update (vocabularies, tokenised text, shapes) and cache it.

    Args:
      cfg: configuration of the run.
      workdir: of the run; created if missing.
      tell: called with sentences for the user.
      part: (i, N): only tokenise every N-th range of the training text, from range i - 1 on; others may do the rest at
        the same time. None for all.
      engine: "processes" of this machine tokenise ranges, or tasks of a "ray" cluster.

    Raises:
      UserError: as `open_run`, except for what depends on the devices: the sizes of the mesh, the memory of a search.
    """
    check_utf8("--workdir", workdir)
    check_rules(cfg)
    share: processes.Share | None = processes.on_cluster if engine == "ray" else None
    if part is not None:
        share = tokens_on_disk.only(*part, share or processes.local(cfg.data.workers))
    with locked(workdir) if part is None else nullcontext():
        _check_workdir(workdir, cfg)
        try:
            run = prepare(cfg, workdir, tell, share=share)
        except tokens_on_disk.PartDone as done:
            tell(str(done))
            return
        if saved := position_file.newest(workdir):
            run.check_unchanged(workdir, saved)
    tell("prepared: convs2s train with the same flags continues from here")


def _check_workdir(workdir: Path, cfg: Config) -> None:
    """Raise UserError if no run of this configuration can start or continue in the workdir."""
    derived_workdir.check_continues(workdir)
    run_folder.check_config(workdir, cfg)


def _devices(mesh: Mesh, parallel: str) -> str:
    """Describe the devices for the user, with the versions of the libraries that compute on them."""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    kind, count = mesh.devices.flat[0].device_kind, mesh.devices.size
    where = f" in {jax.process_count()} processes" if distributed.is_multi_process() else ""
    over = f"; {parallel} over {axes}" if axes else ""
    return f"{count} x {kind}{where}{over} ({versions('jax', 'jaxlib', 'flax')})"
