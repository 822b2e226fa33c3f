"""Checkpoints by Orbax: asynchronous, atomic, the last few and the best, each verified when it is read.

A checkpoint holds `params` and `optimizer` (arrays) and `position` (JSON: where training stands, and a digest of every
array and of itself).
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policies

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.digest import digest, digest_of_record, path_of
from convs2s_jax.training.step import TrainState

FORMAT = 1
"""Raised when older checkpoints can no longer be read; CHANGELOG says what to do."""


def manager(folder: Path, *, keep: int, read_only: bool = False) -> ocp.CheckpointManager:
    """Orbax's manager of a folder: keeps the last `keep` checkpoints and the one of least validation loss.

    Raises:
      UserError: a validation loss in there cannot be read.
    """
    _check_losses(folder)
    best = policies.BestN(get_metric_fn=lambda m: -m["loss"], n=1, keep_checkpoints_without_metrics=False)
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda m: m["loss"],
        best_mode="min",
        preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
        create=not read_only,
        read_only=read_only,
    )
    return ocp.CheckpointManager(folder.absolute(), options=options, item_names=("params", "optimizer", "position"))


def save(
    checkpoints: ocp.CheckpointManager, state: TrainState, position: dict[str, Any], *, loss: float | None = None
) -> None:
    """Begin to save; training may go on at once.

    Args:
      checkpoints: of `manager`.
      state: its `step` names the checkpoint; one that exists already stays as it is, unless there is now a loss for it.
      position: JSON.
      loss: validation loss, for choosing the best; None where none was measured.

    Raises:
      UserError: this or the save before it could not be written (a full disk, say).
    """
    step = int(state.step)
    if step in checkpoints.all_steps():
        if loss is None:
            return
        checkpoints.wait_until_finished()
        checkpoints.delete(step)  # saved before its validation: written again with its loss
    position = {**position, "format": FORMAT, "step": step}
    digests = {
        "params": digest(state.params),
        "optimizer": digest(state.optimizer),
        "position": digest_of_record(position),
    }
    with writing(checkpoints, step):
        checkpoints.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                position=ocp.args.JsonSave({**position, "digests": digests}),
            ),
            metrics=None if loss is None or not math.isfinite(loss) else {"loss": loss},
        )


class writing:
    """Turn an error while a checkpoint is written into a sentence that says which one is still good."""

    def __init__(self, checkpoints: ocp.CheckpointManager, step: int) -> None:
        self._checkpoints, self._step = checkpoints, step

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            last = max(_on_disk(self._checkpoints, but=self._step), default=None)
            good = "no earlier one exists" if last is None else f"the last good one is step {last}"
            raise UserError(
                f"{self._checkpoints.directory}: the checkpoint of step {self._step} could not be written "
                f"({reason(error)}); {good}. Make room and run the same command again"
            ) from error


def wait(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Wait until everything is on disk; UserError where it could not be written."""
    with writing(checkpoints, step):
        checkpoints.wait_until_finished()


def restore(
    checkpoints: ocp.CheckpointManager,
    abstract: TrainState,
    *,
    check: Callable[[dict[str, Any]], None],
    tell: Callable[[str], None],
) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest checkpoint that is whole, or None where there is none.

    A damaged one is named to `tell` and put aside as <step>.damaged, so that training can write it anew, and the one
    before is tried.

    Args:
      checkpoints: of `manager`.
      abstract: shapes and dtypes of the state (`jax.eval_shape`), with shardings where they matter.
      check: gets the position before any array is read, and raises UserError where it does not belong to this run.
      tell: gets a sentence for each damaged checkpoint.

    Raises:
      UserError: checkpoints exist and none is whole.
    """
    steps = sorted(checkpoints.all_steps(), reverse=True)
    for step in steps:
        try:
            position = _position(checkpoints, step)
            check(position)
            params = _arrays(checkpoints, step, "params", abstract.params, position)
            moments = _arrays(checkpoints, step, "optimizer", abstract.optimizer, position)
        except UserError:
            raise
        except Exception as error:
            tell(f"the checkpoint of step {step} is damaged ({reason(error)}); trying the one before")
            continue
        for damaged in [s for s in steps if s > step]:
            _put_aside(checkpoints, damaged)
        return TrainState(params=params, optimizer=moments, step=jnp.asarray(step, jnp.int32)), position
    if steps:
        raise UserError(f"{checkpoints.directory}: none of the checkpoints {sorted(steps)} could be read")
    return None


def restore_params(
    folder: Path,
    abstract: Tree,
    *,
    step: int | None,
    check: Callable[[dict[str, Any]], None],
    tell: Callable[[str], None],
    item: str = "params",
) -> tuple[Tree, dict[str, Any]]:
    """Parameters for decoding, and their position.

    Args:
      folder: of checkpoints.
      abstract: shapes and dtypes of the parameters.
      item: "params", or "optimizer" for the state of the optimiser, which `abstract` then describes.
      step: a step, or None for the best, and the others from the newest on where that one is damaged.
      check: gets the position before any array is read, and raises UserError where it does not belong to this model.
      tell: gets a sentence for each damaged checkpoint.

    Raises:
      UserError: no checkpoint, not that step, or none that is whole.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no checkpoint here; train first with train.py --workdir={folder.parent}")
    with manager(folder, keep=1, read_only=True) as checkpoints:
        steps = sorted(checkpoints.all_steps(), reverse=True)
        if not steps:
            raise UserError(f"{folder} holds no checkpoint yet; train first with train.py --workdir={folder.parent}")
        if step is not None and step not in steps:
            raise UserError(f"{folder} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(steps)))}")
        for candidate in [step] if step is not None else _best_first(checkpoints, steps):
            try:
                position = _position(checkpoints, candidate)
                check(position)
                return _arrays(checkpoints, candidate, item, abstract, position), position
            except UserError:
                raise
            except Exception as error:
                tell(f"the checkpoint of step {candidate} is damaged ({reason(error)})")
    raise UserError(f"{folder}: none of the checkpoints {sorted(steps) if step is None else [step]} could be read")


def reason(error: BaseException) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _check_losses(folder: Path) -> None:
    """Orbax reads the losses of all checkpoints at once and cannot pass over a damaged one."""
    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            float(json.loads(path.read_text(encoding="utf-8"))["loss"])
        except FileNotFoundError:
            continue  # removed by a training that goes on
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged ({reason(error)}): delete {path.parent}; "
                "the checkpoint can still be read, and no longer counts as the best"
            ) from error


def _put_aside(checkpoints: ocp.CheckpointManager, step: int) -> None:
    """Rename a damaged checkpoint: what could not be read today may still be of use."""
    folder = Path(checkpoints.directory)
    aside = folder / f"{step}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    (folder / str(step)).rename(aside)
    checkpoints.reload()


def _on_disk(checkpoints: ocp.CheckpointManager, *, but: int) -> list[int]:
    """Finished checkpoints, read from the folder itself: the manager counts one that it is still writing."""
    return [
        int(entry.name) for entry in checkpoints.directory.iterdir() if entry.name.isdigit() and int(entry.name) != but
    ]


def _best_first(checkpoints: ocp.CheckpointManager, steps: list[int]) -> Iterator[int]:
    best = checkpoints.best_step()
    if best is not None:
        yield best
    yield from (step for step in steps if step != best)


def _position(checkpoints: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    restored = checkpoints.restore(step, args=ocp.args.Composite(position=ocp.args.JsonRestore()))
    position = restored["position"]
    content = {name: value for name, value in position.items() if name != "digests"}
    if digest_of_record(content) != position["digests"]["position"]:
        raise ValueError("position is not what was saved")
    if position["format"] != FORMAT:
        raise UserError(
            f"{checkpoints.directory}/{step} has checkpoint format {position['format']}, this version reads {FORMAT}; "
            "see CHANGELOG.md"
        )
    return position


def _arrays(checkpoints: ocp.CheckpointManager, step: int, item: str, abstract: Tree, position: dict[str, Any]) -> Tree:
    """One item of a checkpoint; ValueError where its digest differs, UserError where it is of another model."""
    expected = position["digests"][item]
    names = {path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(abstract)}
    if names != set(expected):
        odd = sorted(names ^ set(expected))
        raise UserError(f"{checkpoints.directory}/{step} is of another model: {', '.join(odd[:5])} are not in both")
    restored = checkpoints.restore(step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(abstract)}))[item]
    found = digest(restored)
    wrong = [name for name in expected if expected[name] != found[name]]
    if wrong:
        raise ValueError(f"{item}/{wrong[0]} is not what was saved")
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, restored)
