"""Outputs of commands: none may be one of the own files of a run."""

import os
import posixpath
from pathlib import Path

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import joined, resolved, scheme_of
from convs2s_jax.training.run.run_folder import FILES, checkpoints


def check_not_of_run(name: str, workdir: str, flag: str) -> None:
    """Raise UserError if the output would be one of a run's own files; other names in its folder are allowed.

    Args:
      name: path or address of the output.
      workdir: path or address of the run.
      flag: the flag that specifies the run, for messages.
    """
    if name == "-" or scheme_of(name) != scheme_of(workdir):
        return
    if any(_is_own(each, folder) for each in _spellings(name) for folder in _spellings(workdir)):
        raise UserError(f"--output={name} belongs to the run {flag}={workdir}: choose another path")


def check_outside_runs(name: str, flag: str) -> None:
    """Raise UserError if an output would be one of the own files of any run.

    Args:
      name: path or address of the output; "" for none.
      flag: the flag that specifies it, for messages.

    Raises:
      UserError: the output belongs to a run, or its store cannot be read.
    """
    if name in ("", "-"):
        return
    root = f"{scheme_of(name)}://" if scheme_of(name) else ""
    for output in _spellings(name):
        parts = output.removeprefix(root).split("/")
        for folder in (root + "/".join(parts[:depth]) or "/" for depth in range(1, len(parts))):
            try:
                found = _is_own(output, folder) and _is_run(folder)
            except OSError as error:
                if not root:
                    raise
                raise stores.unusable(flag, name, error) from error
            if found:
                raise UserError(f"{flag}={name} belongs to the run in {folder}: choose another path")


def _spellings(place: str) -> list[str]:
    """An address, or a path with its links and without: the folder of checkpoints may be a link to another disk."""
    if scheme := scheme_of(place):
        return [f"{scheme}://{posixpath.normpath(place.partition('://')[2])}"]
    return [os.path.abspath(place), resolved(place)]


def _is_run(folder: str) -> bool:
    """Whether there is a run at a path or address. Raises OSError if a store cannot be used."""
    if scheme_of(folder):
        return stores.exists(joined(folder, "config.json")) and bool(stores.names(folder, "checkpoints/"))
    return (Path(folder) / "config.json").is_file() and checkpoints(Path(folder)).is_dir()


def _is_own(output: str, workdir: str) -> bool:
    """Whether a resolved path or address is one of the own files and folders of the run at this one, or within them."""
    inside = output.removeprefix(f"{workdir.rstrip('/')}/")
    return inside != output and inside.partition("/")[0] in FILES
