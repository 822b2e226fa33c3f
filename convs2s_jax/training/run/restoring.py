"""Reading checkpoints. Each is verified; a damaged one is skipped, one of another model is an error."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import distributed, position_file
from convs2s_jax.training.run.checkpoint import Checkpoints, manager, reason
from convs2s_jax.training.run.digest import digest
from convs2s_jax.training.run.run_folder import finished
from convs2s_jax.training.step import TrainState

T = TypeVar("T")

RENAMED: tuple[tuple[str, str], ...] = (
    ("conv/taps/w", "conv/depthwise/w"),
    ("conv/taps/scores", "conv/taps"),
    ("conv/taps/maker", "conv/maker"),
    ("convolution/taps/scores", "convolution/kernel/scores"),
    ("convolution/taps/maker", "convolution/kernel/maker"),
)
"""Parts of parameter paths: the current name, and the name in checkpoints from before 23 November 2026.

The old names are tried when the paths in a checkpoint are not those of the model."""

DAMAGED = ".damaged"
"""Suffix of a checkpoint that could not be read. It is kept, since it may still be of use."""


class Restored(NamedTuple):
    """A training state from a checkpoint.

    Attributes:
      state: parameters, state of the optimiser and step.
      position: progress of training.
      damaged: newer checkpoints, which could not be read.
    """

    state: TrainState
    position: dict[str, Any]
    damaged: list[Path]


def restore(
    folder: Path,
    abstract: TrainState,
    *,
    check: Callable[[dict[str, Any]], None],
    tell: Callable[[str], None],
) -> Restored | None:
    """Read the newest intact checkpoint; None if there are no checkpoints.

    A damaged checkpoint is reported to `tell`, and the previous one is tried. Nothing in the folder is changed.

    Args:
      folder: folder of the checkpoints.
      abstract: shapes and dtypes of the state (`jax.eval_shape`), with shardings where they matter.
      check: is called with the position before any array is read; raises UserError if it does not belong to this run.
      tell: is called with a sentence for each damaged checkpoint.

    Raises:
      UserError: there are checkpoints, but none is intact.
    """
    places, damaged = finished(folder), list[Path]()
    for step, place in sorted(places.items(), reverse=True):
        found, why = _attempt(lambda: _whole(place, step, abstract, check))  # noqa: B023
        if found is not None:
            return Restored(*found, damaged)
        tell(f"the checkpoint of step {step} is damaged ({why}); trying the one before")
        damaged.append(place)
    if places:
        raise UserError(f"{folder}: none of the checkpoints {list(places)} could be read")
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
    """Read parameters for decoding, and their position.

    Args:
      folder: folder of the checkpoints.
      abstract: shapes and dtypes of the parameters.
      step: which checkpoint to read; None for the best, or the newest intact one if the best is damaged.
      check: is called with the position before any array is read; raises UserError if it does not belong to this model.
      tell: is called with a sentence for each damaged checkpoint.
      item: "params", or "optimizer" to read the optimiser's state, which `abstract` then describes.

    Raises:
      UserError: there is no checkpoint, no checkpoint of that step, or none that is intact.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no checkpoint here; train first with train.py --workdir={folder.parent}")
    with manager(folder, keep=1, read_only=True) as checkpoints:
        steps = sorted(checkpoints.all_steps(), reverse=True)
        if not steps:
            raise UserError(f"{folder} holds no checkpoint yet; train first with train.py --workdir={folder.parent}")
        if step is not None and step not in steps:
            raise UserError(f"{folder} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(steps)))}")
        for candidate in [step] if step is not None else _best_first(checkpoints, steps, tell):
            place = folder / str(candidate)
            found, why = _attempt(lambda: _part(place, item, abstract, check))  # noqa: B023
            if found is not None:
                return found
            tell(f"the checkpoint of step {candidate} is damaged ({why})")
    raise UserError(f"{folder}: none of the checkpoints {sorted(steps) if step is None else [step]} could be read")


def _attempt(read: Callable[[], T]) -> tuple[T | None, str]:
    """The result of `read`, or None and the reason why the checkpoint is damaged."""
    try:
        return read(), ""
    except (UserError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        return None, reason(error)


def _everywhere(read: Callable[[], T]) -> T:
    """Call `read` on each process. If one fails, all raise ValueError, since the next steps need all of them."""
    found, why, refused = None, "", None
    try:
        found = read()
    except UserError as error:
        refused = error
    except Exception as error:  # a damaged file; libraries raise all kinds of errors
        why = reason(error)
    if not distributed.all_of(found is not None):
        raise refused or ValueError(why or "another process cannot read its part")
    assert found is not None
    return found


def _best_first(checkpoints: Checkpoints, steps: list[int], tell: Callable[[str], None]) -> Iterator[int]:
    """The best step and then the others, the newest first."""
    for step in steps:
        if step in checkpoints.unreadable:
            tell(
                f"the checkpoint of step {step} is damaged ({checkpoints.unreadable[step]}): its validation loss is "
                "unknown, and it does not count as the best"
            )
    best = checkpoints.best_step()
    if best is not None:
        yield best
    yield from (step for step in steps if step != best)


def _whole(
    place: Path, step: int, abstract: TrainState, check: Callable[[dict[str, Any]], None]
) -> tuple[TrainState, dict[str, Any]]:
    """A training state and its position."""
    params, position = _part(place, "params", abstract.params, check)
    moments = _arrays(place, "optimizer", abstract.optimizer, position)
    number = jnp.asarray(step, jnp.int32)
    if abstract.step.sharding is not None:
        number = jax.device_put(number, abstract.step.sharding)
    return TrainState(params=params, optimizer=moments, step=number), position


def _part(
    place: Path, item: str, abstract: Tree, check: Callable[[dict[str, Any]], None]
) -> tuple[Tree, dict[str, Any]]:
    """One item of a checkpoint, and its position."""
    position = _everywhere(lambda: position_file.read(place))
    check(position)
    return _arrays(place, item, abstract, position), position


def _arrays(place: Path, item: str, abstract: Tree, position: dict[str, Any]) -> Tree:
    """One item of a checkpoint. Raises ValueError if a digest differs, UserError if it is of another model."""
    expected = position["digests"][item]
    leaves, structure = jax.tree.flatten_with_path(abstract)
    names = [path_of(path) for path, _ in leaves]
    if set(names) != set(expected):
        names = [_old_name(name) for name in names]
    if set(names) != set(expected):
        odd = sorted(set(names) ^ set(expected))
        raise UserError(f"{place} is of another model: {', '.join(odd[:5])} are not in both")
    # not through the manager: it would wait for all processes even if one has failed to read its part
    placed = {name: _placed(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    restored = _everywhere(lambda: _read_arrays(place / item, placed))
    found = digest(restored)
    wrong = [name for name in expected if expected[name] != found[name]]
    if wrong:
        raise ValueError(f"{item}/{wrong[0]} is not what was saved")
    arrays = {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(restored)}
    ours = (arrays[name] for name in names)
    return jax.tree.unflatten(structure, [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in ours])


def _read_arrays(folder: Path, placed: dict[str, jax.ShapeDtypeStruct]) -> Tree:
    """An item in the structure it has on disk, dictionaries and lists. `placed` describes each array, by its path."""
    handler = ocp.StandardCheckpointHandler()
    lies = handler.metadata(folder).tree
    item = jax.tree_util.tree_map_with_path(lambda path, _: placed[path_of(path)], lies)
    return handler.restore(folder, args=ocp.args.StandardRestore(item))


def _old_name(name: str) -> str:
    """The former path of a parameter or of an optimiser's state for it."""
    for new, old in RENAMED:
        name = re.sub(rf"(^|/){new}(/|$)", rf"\1{old}\2", name)
    return name


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    """A description of an array with its sharding; without one, the first device instead of those it was saved from."""
    where = leaf.sharding or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
