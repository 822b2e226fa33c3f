"""The JSON part of a checkpoint: progress of training, digests of its arrays, and checksums of itself."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core import files
from convs2s_jax.core.checksums import DamagedError, parsed, seal, unseal
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints.digest import digest, digest_of_record

FORMAT = 1
"""Version of the format. It increases when older checkpoints can no longer be read; CHANGELOG says what to do."""
DIGESTS = {"params", "optimizer", "position"}


def make(position: Mapping[str, Any], *, step: int, params: Tree, optimizer: Tree) -> dict[str, Any]:
    """The record of a checkpoint, as it is stored; `read` returns it without the checksum of the digests.

    Args:
      position: the progress of training, as JSON.
      step: of the checkpoint.
      params, optimizer: the arrays of the checkpoint.
    """
    content = {**position, "format": FORMAT, "step": step}
    digests = {"params": digest(params), "optimizer": digest(optimizer), "position": digest_of_record(content)}
    return {**content, "digests": seal(digests)}


def earlier(place: str, why: str) -> UserError:
    """Return the error for a checkpoint of an earlier version that this one does not read."""
    return UserError(
        f"{place} is of a version from before 28 November 2026 ({why}), which this version does not read: use commit "
        "f02697ce, which does, or train again in another workdir"
    )


def read(folder: Path) -> dict[str, Any]:
    """The record of the checkpoint in `folder`.

    Raises:
      ValueError, OSError: it is not what was saved, or cannot be read.
      UserError: it is of another version.
    """
    record = parsed(files.content(folder / "position" / "metadata"))
    try:
        content = {name: value for name, value in record.items() if name != "digests"}
        if set(record["digests"]) == DIGESTS:
            raise earlier(str(folder), "its digests have no checksum")
        digests = unseal(record["digests"])
        intact = bool(digest_of_record(content) == digests["position"])
    except (AttributeError, KeyError, TypeError, DamagedError) as error:
        raise DamagedError("position is not what was saved") from error
    if not intact:
        raise DamagedError("position is not what was saved")
    if content["format"] != FORMAT:
        raise UserError(
            f"{folder} has checkpoint format {content['format']}, but this version reads {FORMAT}; see CHANGELOG.md"
        )
    return {**content, "digests": digests}


def newest(workdir: Path) -> dict[str, Any]:
    """The record of the newest checkpoint that can be read; empty without one. Raises UserError as `read`."""
    for place in reversed(run_folder.finished(run_folder.checkpoints(workdir)).values()):
        with contextlib.suppress(DamagedError, OSError):
            return read(place)
    return {}


def known_splits(workdir: Path) -> Mapping[str, int | str | None]:
    """Return fingerprints of "train", "valid" and "test" from the newest readable checkpoint, {} without them."""
    with contextlib.suppress(UserError):
        record = newest(workdir)
        if record.get("data") is not None:
            return {"train": int(record["data"]), **record.get("held_out", {})}
    return {}
