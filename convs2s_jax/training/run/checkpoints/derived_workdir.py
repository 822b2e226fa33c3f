"""A workdir not created by training: the configuration, the vocabularies, and one checkpoint of given parameters."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core import files, local_copies
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, position_file
from convs2s_jax.training.run.checkpoints.checkpoint import Checkpoints
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.step import TrainState

AVERAGED = "averaged"
"""Field in the position of an averaged checkpoint: the workdir and the steps that were averaged."""
IMPORTED = "imported"
"""Field in the position of a checkpoint imported from another program: its files."""


@contextlib.contextmanager
def new(flag: str, place: str) -> Iterator[Path]:
    """Yield a folder to fill, which becomes the workdir at the end of the block, unless an error occurs.

    Args:
      flag: the flag that specifies the workdir, for messages.
      place: path of the workdir.

    Raises:
      UserError: it already exists and is not an empty folder, or it cannot be written.
    """
    path = Path(place)
    with files.writing(f"{flag}={place}", "choose another folder"), contextlib.ExitStack() as stack:
        there = path.exists() and not (path.is_dir() and not any(path.iterdir()))
        check(not there, f"{flag}={place} already exists: choose a new folder; nothing was written")
        run_folder.provide(path.absolute().parent, stack)
        part = stack.enter_context(files.new_folder(path))
        named = local_copies.address_in_errors  # writers do not know the final name
        with named(part, place), named(f"--workdir={part}", f"{flag}={place}"):
            yield part
        part.rename(path.absolute())


def write(
    folder: Path, cfg: Config, vocabularies: Vocabularies, state: TrainState, position: Mapping[str, Any]
) -> None:
    """Fill the folder of a workdir.

    Args:
      folder: exists, and is empty.
      cfg: the configuration.
      vocabularies: of both sides.
      state: parameters, split for training, state of the optimiser, and the step that names the checkpoint.
      position: the progress of training, as JSON, with the fingerprint of the training data.
    """
    run_folder.write_inputs(folder, cfg, vocabularies)
    record = {**position, "vocabularies": run_folder.fingerprints(vocabularies)}
    with Checkpoints(run_folder.checkpoints(folder), keep=1) as checkpoints:
        checkpoint.save(checkpoints, state, record)
        checkpoint.wait(checkpoints)


def check_continues(workdir: Path) -> None:
    """Refuse to train from an averaged checkpoint: its optimiser state is the initial one, and it was never validated.

    Raises:
      UserError: the newest checkpoint of the workdir is an average.
    """
    if AVERAGED in position_file.newest(workdir):
        raise UserError(
            f"--workdir={workdir} contains an average of checkpoints, from which training cannot continue: "
            f"start a run in another workdir with --config.training.finetune_from={workdir}"
        )
