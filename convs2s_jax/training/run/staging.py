"""A workdir as a folder of this machine: the folder itself, or the local copy of one in an object store."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from convs2s_jax.core import compiled_programs, stores
from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import distributed, mirror, store_lock
from convs2s_jax.training.run.mirror import Mirror
from convs2s_jax.training.run.store_copy import named


class Workdir(NamedTuple):
    """A workdir that is open for a training.

    Attributes:
      folder: where its files are.
      mirror: writes them back into an object store; None where the folder is the workdir, and on all processes but
        the primary one.
    """

    folder: Path
    mirror: Mirror | None = None


@contextlib.contextmanager
def opened(workdir: Path | str) -> Iterator[Workdir]:
    """Open a workdir for training. One in an object store is locked and copied; `Mirror.start` begins to write back.

    Raises:
      UserError: the store cannot be used, or another process trains there.
    """
    address = str(workdir)
    if not scheme_of(address):
        yield Workdir(Path(workdir))
        return
    address = address.rstrip("/")
    folder = folder_of(address, os.environ)
    with contextlib.ExitStack() as stack:
        stack.enter_context(named(folder, address))
        found = distributed.primary_only("fetched", lambda: stack.enter_context(_fetched(address, folder)))
        try:
            distributed.agree_on_folder(folder)
        except UserError as error:
            raise UserError(
                f"--workdir={address}: several processes share one local copy of it, and {folder} is not one folder "
                "for all of them: let XDG_CACHE_HOME name a folder on a file system that they share"
            ) from error
        yield Workdir(folder, found)


def folder_of(address: str, environment: Mapping[str, str]) -> Path:
    """The folder of the local copy of a workdir: in the user's folder of caches, which XDG_CACHE_HOME names."""
    try:
        caches = compiled_programs.folder_of(environment).with_name("convs2s_jax-stores")
    except RuntimeError as error:
        raise UserError(f"--workdir={address}: there is no home folder for a copy of it; set XDG_CACHE_HOME") from error
    return caches / f"{address.rpartition('/')[2][:100]}-{checksum(address.encode())}"


@contextlib.contextmanager
def _fetched(address: str, folder: Path) -> Iterator[Mirror]:
    """Hold the lock of a workdir in a store, copy the workdir, and write back what has changed at the end."""
    try:
        with contextlib.ExitStack() as stack:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stores.names(address)
            is_fresh = stack.enter_context(store_lock.held(address))
            found = Mirror(address, folder, mirror.fetch(address, folder), is_fresh)
            stack.callback(found.close)
            entered = stack.pop_all()
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    with entered:
        yield found
