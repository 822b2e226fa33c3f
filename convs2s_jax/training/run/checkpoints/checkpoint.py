"""Checkpoints with Orbax. They are written asynchronously and atomically; the last few and the best are kept.

A checkpoint contains `params` and `optimizer` (arrays) and `position` (JSON: the progress of training, digests of all
arrays, checksums of itself; see position_file.py). It never changes. The scores of validations are in one file of the
workdir, scores.json.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from convs2s_jax.core import files
from convs2s_jax.core.checksums import parsed, seal, unseal
from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.guard import NO_ROOM
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.run_folder import DAMAGED, SCORES, finished
from convs2s_jax.training.run.selection import LOSS, Scores, best_of
from convs2s_jax.training.step import TrainState

LOOK = 0.01
"""Seconds between two checks for the end of a save."""
_PLAIN = re.compile(r"(?!/(az|gs|hf|s3)/)[\w/.+=,@~% -]*", re.ASCII)
"""Paths that mean the same to all libraries of checkpoints."""


@contextlib.contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yield an absolute path of an existing folder that Orbax and TensorStore take as it is, whatever its name.

    Orbax takes brackets for patterns (benchmarks/upstream/bracket_path.py), TensorStore refuses backslashes, and a
    locale may encode other letters in another way than TensorStore. Linux has a plain name for a folder that is open.
    """
    path = folder.absolute()
    if _PLAIN.fullmatch(str(path)) or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)


class Checkpoints(ocp.CheckpointManager):
    """Orbax's manager, with the best checkpoint chosen by the scores in scores.json.

    Attributes:
      folder: of the checkpoints.
      scores: step -> the scores of its validation (`known_scores`).
      writing: step of the last save, which may still be in progress.
      failed: why this one of several processes could not write its part of the last save; None if it could.
    """

    failed: Exception | None = None

    def __init__(self, folder: Path, *, keep: int, metric: str = LOSS, shared: bool = True) -> None:
        """Open or create a folder, in which the last `keep` checkpoints and the one that is best by `metric` stay.

        If it is not `shared` by all processes, only the primary one has a manager, and writes all shards.
        """
        self.folder, self.scores = folder, known_scores(folder)
        self.writing = 0
        processes = {} if shared else {"active_processes": {0}, "barrier_sync_key_prefix": "alone"}
        folder.mkdir(parents=True, exist_ok=True)
        self._path = contextlib.ExitStack()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_LastAndBest(folder, keep, metric, self.scores),
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=0, **processes),
        )
        path = self._path.enter_context(plain_path(folder))
        super().__init__(path, options=options, item_names=("params", "optimizer", "position"))

    def __contextmanager__(self) -> Iterator["Checkpoints"]:
        """Close at the end. If another error ends the run, the error of an unfinished save does not replace it.

        On a full disk both have the same cause, and only ours says what to do.
        """
        with self._path:
            try:
                yield self
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

    def reached_preemption(self, step: int) -> bool:
        """Return False: JAX's preemption service is not used.

        After a save, Orbax would ask the service about the saved step. The service would take that for the current
        step, and the processes could agree to stop at a step that this one has passed.
        """
        del step
        return False


@dataclasses.dataclass
class _LastAndBest(policies.PreservationPolicy):
    """Preserves the last `keep` checkpoints, the best, and those that are links, which are not the run's to delete."""

    folder: Path
    keep: int
    metric: str
    scores: Mapping[int, Scores]

    def should_preserve(
        self, checkpoints: Sequence[policies.PolicyCheckpointInfo], *, context: policies.PreservationContext
    ) -> Sequence[bool]:
        """Return for each checkpoint, in the order of their steps, whether it is kept."""
        del context
        steps = [info.step for info in checkpoints]
        kept = {*steps[-self.keep :], best_of(self.scores, steps, self.metric)}
        return [step in kept or (self.folder / str(step)).is_symlink() for step in steps]


def known_scores(folder: Path) -> dict[int, Scores]:
    """Return the scores of the validations of checkpoints in a folder, by step.

    Runs of versions before 30 November 2026 have no scores.json; their positions have the scores.

    Raises:
      UserError: scores.json is damaged.
    """
    path, found = folder.parent / SCORES, dict[int, Scores]()
    try:
        stored = unseal(parsed(files.content(path)))["scores"]
        return {int(step): {name: float(x) for name, x in scores.items()} for step, scores in stored.items()}
    except FileNotFoundError:
        for step, place in finished(folder).items():
            with contextlib.suppress(ValueError, OSError):  # reading the checkpoint reports it
                found[step] = position_file.read(place).get("scores", {})
        return found
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)}): restore it, or delete it; then the newest checkpoint is used, "
            "not the best"
        ) from error


def save(
    checkpoints: Checkpoints,
    state: TrainState,
    position: dict[str, Any],
    *,
    scores: Scores | None = None,
) -> None:
    """Start saving in the background; training can continue immediately. An existing checkpoint stays as it is.

    Args:
      checkpoints: the manager of the folder.
      state: its `step` names the checkpoint.
      position: the progress of training, as JSON.
      scores: of the validation, for choosing the best; None if there was none. Values that are not finite are dropped.

    Raises:
      UserError: this or the previous checkpoint could not be written, for example because the disk is full.
    """
    wait(checkpoints)
    step = int(state.step)
    checkpoints.writing = step
    with _writing(checkpoints, step):
        if scores is not None:
            _note(checkpoints, step, {name: value for name, value in scores.items() if math.isfinite(value)})
        if step in checkpoints.all_steps():
            return
        record = position_file.make(position, step=step, params=state.params, optimizer=state.optimizer)
        checkpoints.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                position=ocp.args.JsonSave(record),
            ),
        )


def _note(checkpoints: Checkpoints, step: int, scores: Scores) -> None:
    """Add the scores of a validation to scores.json, before its checkpoint is written: none is without its scores."""
    checkpoints.scores[step] = scores
    if distributed.is_primary():
        steps = {*checkpoints.all_steps(), step}
        kept = {str(one): found for one, found in checkpoints.scores.items() if one in steps}
        files.replace_file(checkpoints.folder.parent / SCORES, json.dumps(seal({"scores": kept})))


@contextlib.contextmanager
def _writing(checkpoints: Checkpoints, step: int) -> Iterator[None]:
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
        last = max((other for other in finished(checkpoints.folder) if other != step), default=None)
        good = "no earlier one exists" if last is None else f"the last good one is step {last}"
        remedy = "Free disk space" if room else "Check the folder and its permissions"
        raise UserError(
            f"{checkpoints.folder}: the checkpoint of step {step} could not be written "
            f"({room or first_line(error)}); {good}. {remedy} and run the same command again"
        ) from error


def wait(checkpoints: Checkpoints) -> None:
    """Wait until everything is on disk. Raises UserError if it could not be written.

    A process that has failed does not wait for the others, which notice its end.
    """
    with _writing(checkpoints, checkpoints.writing):
        while checkpoints.is_saving_in_progress() and checkpoints.failed is None:
            time.sleep(LOOK)
        if checkpoints.failed is not None:
            raise checkpoints.failed
        checkpoints.wait_until_finished()


def check(checkpoints: Checkpoints) -> None:
    """Raise UserError if the last save could not be written; one in progress is not waited for."""
    if checkpoints.failed or not checkpoints.is_saving_in_progress():
        wait(checkpoints)


def _room(error: BaseException | None) -> str:
    """Return the system's message for a full disk if it occurs anywhere in an error or its causes, else ""."""
    while error is not None:
        for said in map(os.strerror, NO_ROOM):
            if said in str(error):
                return said
        error = error.__cause__ or error.__context__
    return ""


def put_aside(path: Path) -> None:
    """Rename a damaged checkpoint to a name that is free."""
    names = (path.with_name(f"{path.name}{'-' * i}{DAMAGED}") for i in itertools.count())
    path.rename(next(name for name in names if not os.path.lexists(name)))
