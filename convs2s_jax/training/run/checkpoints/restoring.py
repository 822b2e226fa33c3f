"""Reading checkpoints, also while a training replaces them.

Each is verified. A damaged one is skipped, one of another model is an error.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from convs2s_jax.core.errors import Tell, UserError, first_line
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import store_copy
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.checkpoints.checkpoint import known_scores, plain_path
from convs2s_jax.training.run.checkpoints.digest import digest
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.run_folder import finished
from convs2s_jax.training.run.selection import best_of
from convs2s_jax.training.step import TrainState

T = TypeVar("T")

NOT_DAMAGE = (UserError, MemoryError, jax.errors.JaxRuntimeError)
"""Errors in reading that say nothing about the checkpoint, such as memory that runs out."""
SETTLED = 1.0
"""Seconds for which a checkpoint that could not be read must stay unchanged to count as damaged."""
LISTINGS = 200
"""How often the folder is listed before reading fails."""


class RemovedError(Exception):
    """A checkpoint was removed while it was read."""


def is_removed(place: Path) -> bool:
    """Whether a checkpoint that could not be read is gone, or loses files within `SETTLED` seconds."""

    def count() -> int:
        return sum(1 + len(names) for _, _, names in os.walk(place))

    before = count()
    if before:
        time.sleep(SETTLED)
    return before == 0 or count() != before


def restore(
    folder: Path,
    abstract: TrainState,
    *,
    check: Callable[[dict[str, Any]], None],
    tell: Tell,
) -> tuple[TrainState, dict[str, Any], list[Path]] | None:
    """Read the newest intact checkpoint; None if there are no checkpoints.

    A damaged checkpoint is reported to `tell`, and the previous one is tried. Nothing in the folder is changed.

    Args:
      folder: folder of the checkpoints.
      abstract: shapes and dtypes of the state (`jax.eval_shape`), with shardings where they matter.
      check: is called with the position before any array is read; raises UserError if it does not belong to this run.
      tell: is called with a sentence for each damaged checkpoint.

    Returns:
      The state, its position, and the newer checkpoints, which could not be read.

    Raises:
      UserError: there are checkpoints, but none is intact; or it was saved with another JAX_ENABLE_X64.
    """
    places = dict(sorted(finished(folder).items(), reverse=True))
    if not places:
        return None
    items = {"params": abstract.params, "optimizer": abstract.optimizer}
    found, position, damaged = _first_intact(places, items, check, tell)
    for (path, wanted), array in zip(jax.tree.leaves_with_path(items), jax.tree.leaves(found), strict=True):
        if array.dtype != wanted.dtype:
            raise UserError(
                f"{folder}: {path_of(path)} was saved in {array.dtype}, but this process computes in {wanted.dtype}; "
                "continue the run with the JAX_ENABLE_X64 that it began with"
            )
    # from NumPy, so that nothing is compiled: other arrays would need a program for their conversion
    number, where = np.asarray(position["step"], np.int32), _placed(abstract.step).sharding
    step = jax.make_array_from_callback((), where, lambda _: number)
    return TrainState(**found, step=step), position, damaged


def restore_items(
    folder: Path,
    items: Mapping[str, Tree],
    *,
    step: int | None,
    metric: str,
    check: Callable[[dict[str, Any]], None],
    tell: Tell,
) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Read items of one checkpoint, and its position, even while a training replaces its checkpoints.

    Args:
      folder: folder of the checkpoints.
      items: shapes and dtypes of what to read: "params", and "optimizer" for the state of the optimiser. Arrays that
        were saved in other dtypes are converted (JAX_ENABLE_X64).
      step: which checkpoint to read; None for the best, or the newest intact one if the best is damaged.
      metric: the score that selects the best (`training.best_metric`).
      check: is called with the position before any array is read; raises UserError if it does not belong to this model.
      tell: is called with a sentence for each damaged checkpoint.

    Raises:
      UserError: there is no checkpoint, no checkpoint of that step, or none that is intact; or it has 64 bits and this
        process computes in 32.
    """
    for listing in range(LISTINGS):
        if listing:
            store_copy.refresh(folder.parent)
        places = finished(folder)
        if not places:
            raise UserError(
                f"{folder}: there is no checkpoint here; train first: convs2s train --workdir={folder.parent}"
            )
        if step is not None and step not in places:
            raise UserError(f"{folder} has no checkpoint of step {step}; it has {', '.join(map(str, places))}")
        best = best_of(known_scores(folder), places, metric) if step is None else step
        others = reversed(places) if step is None else ()
        asked = {one: places[one] for one in (best, *others) if one is not None}
        with contextlib.suppress(RemovedError):
            found, position, _ = _first_intact(asked, items, check, tell, may_go=True)
            like = dict(items)
            return jax.tree.map(lambda x, y: x if x.dtype == y.dtype else x.astype(y.dtype), found, like), position
    raise UserError(
        f"{folder}: training replaces the checkpoints faster than they can be read; decode from a copy of the workdir, "
        "or train with a larger training.keep"
    )


def _first_intact(
    places: Mapping[int, Path],
    items: Mapping[str, Tree],
    check: Callable[[dict[str, Any]], None],
    tell: Tell,
    *,
    may_go: bool = False,
) -> tuple[dict[str, Tree], dict[str, Any], list[Path]]:
    """Items of the first of these checkpoints that is intact, its position, and the damaged ones before it.

    Raises:
      RemovedError: a checkpoint could not be read because it has just been removed, and it `may_go`.
      UserError: none is intact.
    """
    damaged = list[Path]()
    for step, place in places.items():
        try:
            position = _everywhere(partial(position_file.read, place))
            check(position)
            return {item: _arrays(place, item, tree, position) for item, tree in items.items()}, position, damaged
        except NOT_DAMAGE:
            raise
        except Exception as error:
            reason = first_line(error)
        if may_go and not distributed.true_on_all(not is_removed(place)):
            raise RemovedError
        tell(f"the checkpoint of step {step} is damaged ({reason})")
        damaged.append(place)
    folder = next(iter(places.values())).parent
    raise UserError(f"{folder}: none of the checkpoints {sorted(places)} could be read")


def _everywhere(read: Callable[[], T]) -> T:
    """Call `read` on each process. If one fails, all raise, since the next steps need all of them.

    Raises:
      ValueError: the checkpoint is damaged on one of them.
      UserError, MemoryError, jax.errors.JaxRuntimeError: one of them could not read it for another reason.
    """
    found, why = None, ""
    refused: Exception | None = None
    try:
        found = read()
    except NOT_DAMAGE as error:
        refused = error
    except Exception as error:  # a damaged file; libraries raise all kinds of errors
        why = first_line(error)
    if not distributed.true_on_all(refused is None):
        raise refused or UserError("another process could not read the checkpoint; see its message")
    if not distributed.true_on_all(found is not None):
        raise ValueError(why or "another process cannot read its shards")
    assert found is not None
    return found


def _arrays(place: Path, item: str, abstract: Tree, position: dict[str, Any]) -> Tree:
    """One item of a checkpoint. Raises ValueError if a digest differs, UserError if it is of another model."""
    expected = position["digests"][item]
    leaves, structure = jax.tree.flatten_with_path(abstract)
    names = [path_of(path) for path, _ in leaves]
    if set(names) != set(expected):
        odd = sorted(set(names) ^ set(expected))
        raise UserError(f"{place} belongs to another model: {', '.join(odd[:5])} are not in both")
    # not through the manager: it would wait for all processes even if one has failed to read its shards
    placed = {name: _placed(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    restored = _everywhere(lambda: _read_arrays(place / item, placed))
    _check_digests(item, restored, expected)
    arrays = {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(restored)}
    ours = [jax.device_put(x) if isinstance(x, np.ndarray) else x for x in map(arrays.__getitem__, names)]
    return jax.tree.unflatten(structure, ours)


def _check_digests(item: str, restored: Tree, expected: Mapping[str, int]) -> None:
    """Raise ValueError if an array of an item is not what was saved."""
    found = digest(restored)
    if wrong := [name for name in expected if expected[name] != found.get(name)]:
        raise ValueError(f"{item}/{wrong[0]} is not what was saved")


def read_back(place: Path) -> None:
    """Compare a checkpoint that was just saved with its digests. It is read into host memory, one item at a time.

    Raises:
      UserError: it cannot be read, or is not what was saved.
    """
    try:
        digests, handler = position_file.read(place)["digests"], ocp.StandardCheckpointHandler()
        for item in ("params", "optimizer"):
            with plain_path(place / item) as path:
                shapes = handler.metadata(path).tree
                on_host = jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), shapes)
                _check_digests(item, handler.restore(path, args=ocp.args.StandardRestore(on_host)), digests[item])
    except NOT_DAMAGE:
        raise
    except Exception as error:
        raise UserError(
            f"{place}: this checkpoint was saved, but cannot be read back ({first_line(error)}): use a workdir on "
            "another disk, with plain letters in its path. Training stops, because its work would be lost"
        ) from error


def _read_arrays(folder: Path, placed: dict[str, jax.ShapeDtypeStruct]) -> Tree:
    """An item in the structure and the dtypes it has on disk. `placed` describes each array, by its path.

    Raises:
      UserError: it has 64 bits, which arrays of this process cannot have.
    """

    def described(path: tuple[Any, ...], metadata: Any) -> jax.ShapeDtypeStruct:
        one = placed[path_of(path)]
        if metadata.dtype != jax.dtypes.canonicalize_dtype(metadata.dtype):
            raise UserError(f"{folder} was saved in {metadata.dtype}: set JAX_ENABLE_X64=1 to read it")
        return jax.ShapeDtypeStruct(one.shape, metadata.dtype, sharding=one.sharding)

    store_copy.fetch_item(folder)
    handler = ocp.StandardCheckpointHandler()
    with plain_path(folder) as path:
        item = jax.tree_util.tree_map_with_path(described, handler.metadata(path).tree)
        return handler.restore(path, args=ocp.args.StandardRestore(item))


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    """A description of an array with its sharding; without one, the first device instead of those it was saved from."""
    where = leaf.sharding or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
