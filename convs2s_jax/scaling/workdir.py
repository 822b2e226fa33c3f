"""Check on all processes whether a run could use a workdir. Everything created for the check is removed again."""

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.stores import staging


def probe(workdir: str) -> dict[str, Any]:
    """Return what this process finds at a workdir. All processes call it together.

    Args:
      workdir: path or address.

    Returns:
      JSON values: "path"; "there", whether it exists; "free", free bytes for the run's files on this machine; "error",
      a sentence that explains why a run could not use it, or "".
    """
    try:
        there, free = _address(workdir.rstrip("/")) if scheme_of(workdir) else _folder(Path(workdir))
    except UserError as error:
        return {"path": workdir, "there": False, "free": 0, "error": str(error)}
    return {"path": workdir, "there": there, "free": free, "error": ""}


def _folder(workdir: Path) -> tuple[bool, int]:
    """Return whether a folder existed, and its free bytes. UserError unless all processes share it and can write it."""
    with contextlib.ExitStack() as stack:
        was_there = distributed.primary_only("workdir made", lambda: _made(workdir, stack))
        distributed.agree_on_folder(workdir)
        refused, free = None, 0
        try:
            free = _tried_to_write(workdir)
        except UserError as error:
            refused = error
        was_there = distributed.from_primary(bool(was_there))  # no process is still writing when process 0 removes it
        if refused:
            raise refused
        return was_there, free


def _made(workdir: Path, stack: contextlib.ExitStack) -> bool:
    """Create a folder until the stack closes; return whether it existed before."""
    with run_folder.writing(workdir):
        was_there = run_folder.provide(workdir, stack)
    _tried_to_write(workdir)
    return was_there


def _tried_to_write(workdir: Path) -> int:
    """Try to write to a folder and return its free bytes."""
    with run_folder.writing(workdir):
        with tempfile.TemporaryFile(dir=workdir) as file:
            file.write(b"\n")
        return shutil.disk_usage(workdir).free


def _address(address: str) -> tuple[bool, int]:
    """Return whether a store has objects below an address, and the free bytes for their copy on this machine.

    As in training, all processes list it and only process 0 writes. UserError if they cannot.
    """
    copy = staging.folder_of(address, os.environ)
    try:
        free = shutil.disk_usage(next(path for path in (copy, *copy.parents) if path.exists())).free
        there = bool(stores.names(address))
        if distributed.is_primary():
            _try_object(stores.join(address, f"doctor-{uuid.uuid4().hex}"))
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    return there, free


def _try_object(address: str) -> None:
    """Write, read and delete an object. Raises OSError."""
    try:
        stores.write(address, b"convs2s scale doctor\n")
        stores.read(address)
    except BaseException:
        with contextlib.suppress(OSError):
            stores.delete(address)
        raise
    stores.delete(address)
