"""Whether a run could use a workdir: tried on all processes, and everything made for that is removed again."""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import distributed, staging


def tried(workdir: str) -> dict[str, Any]:
    """What this process finds at a workdir. All processes call it together.

    Args:
      workdir: path or address.

    Returns:
      As JSON takes it: "path"; "there", whether it exists; "free", bytes for the run's files on this machine; "error",
      a sentence that says why a run could not use it, or "".
    """
    try:
        there, free = _address(workdir.rstrip("/")) if scheme_of(workdir) else _folder(Path(workdir))
    except UserError as error:
        return {"path": workdir, "there": False, "free": 0, "error": str(error)}
    return {"path": workdir, "there": there, "free": free, "error": ""}


def _folder(workdir: Path) -> tuple[bool, int]:
    """Whether a folder is there, and its free bytes. UserError unless all processes share it and write into it."""
    with contextlib.ExitStack() as stack:
        missing = distributed.primary_only("workdir made", lambda: _made(workdir, stack))
        distributed.agree_on_folder(workdir)
        refused, free = None, 0
        try:
            _try_to_write(workdir)
            free = _free(workdir)
        except UserError as error:
            refused = error
        distributed.barrier("workdir tried")  # before process 0 removes it
        if refused:
            raise refused
        return not missing, free


def _made(workdir: Path, stack: contextlib.ExitStack) -> int:
    """Make a folder and its parents, to be removed when the stack closes; the number of those that were missing."""
    with _explained(workdir):
        missing = [path for path in (workdir, *workdir.parents) if not path.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            stack.callback(_remove_if_empty, folder)
    _try_to_write(workdir)
    return len(missing)


def _free(workdir: Path) -> int:
    with _explained(workdir):
        return shutil.disk_usage(workdir).free


def _try_to_write(workdir: Path) -> None:
    with _explained(workdir), tempfile.TemporaryFile(dir=workdir) as file:
        file.write(b"\n")


@contextlib.contextmanager
def _explained(workdir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written: {error.strerror}; make room or name another workdir"
        ) from error


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # a run that began meanwhile has files there
        folder.rmdir()


def _address(address: str) -> tuple[bool, int]:
    """Whether a store has objects below an address, and the free bytes for their copy on this machine.

    As in a training, all processes list it and process 0 alone writes. UserError where they cannot.
    """
    copy = staging.folder_of(address, os.environ)
    try:
        nearest = next(path for path in (copy, *copy.parents) if path.exists())
        there = bool(stores.names(address))
        if distributed.is_primary():
            _try_object(stores.join(address, f"doctor-{uuid.uuid4().hex}"))
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    return there, _free(nearest)


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
