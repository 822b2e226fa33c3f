"""A copy of a workdir in an object store, for reading. Arrays of a checkpoint are fetched when they are read."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from convs2s_jax.core import files, local_copies, stores
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run.reports import metrics_file
from convs2s_jax.training.run.run_folder import DAMAGED, FACTS, LOG, SCORES
from convs2s_jax.training.run.stores import mirror

ORIGIN = ".origin"
"""File in a copy that contains the flag and the address of its workdir, on two lines."""


@contextlib.contextmanager
def opened(workdir: Path | str, *, flag: str = "--workdir", reports: bool = False) -> Iterator[Path]:
    """A workdir for reading: its folder, or a temporary copy of one in an object store.

    Args:
      workdir: path or address.
      flag: the flag that specifies it, for messages.
      reports: whether the copy also contains metrics, logs and samples.

    Raises:
      UserError: the store cannot be used.
    """
    if not scheme_of(str(workdir)):
        yield Path(workdir)
        return
    address = str(workdir).rstrip("/")
    beginnings = ("vocab/", "samples/") if reports else ("vocab/",)
    files_read = ("config.json", SCORES, *((metrics_file.NAME, LOG, FACTS) if reports else ()))

    def wanted(name: str) -> bool:
        return name in files_read or name.startswith(beginnings)

    with local_copies.incoming_folder(flag, address, wanted) as folder:
        if not any(folder.iterdir()):
            raise UserError(f"{flag}={address}: there is no such folder")
        (folder / ORIGIN).write_text(f"{flag}\n{address}", encoding="utf-8")
        if reports:
            refresh(folder)
        yield folder


@contextlib.contextmanager
def reading(workdir: Path | str, tell: Tell, *, flag: str = "--workdir") -> Iterator[tuple[Path, Tell]]:
    """`opened`, with a `tell` that replaces the path of the copy with the workdir as it was given."""
    address = str(workdir).rstrip("/")
    with opened(workdir, flag=flag) as folder:
        yield folder, local_copies.with_address(tell, folder, address) if scheme_of(address) else tell


def refresh(workdir: Path) -> None:
    """List the checkpoints in the store again and fetch their positions; does nothing if the workdir is not a copy.

    Raises:
      UserError: the store cannot be used.
    """
    flag, address = _origin(workdir)
    if not address:
        return
    try:
        there = {
            step: position
            for step, names in mirror.steps_of(stores.names(address)).items()
            if mirror.MARK in names and not step.endswith(DAMAGED)
            if (position := mirror.read_position(address, step)) is not None
        }
        with contextlib.suppress(FileNotFoundError):
            local_copies.fetch(address, workdir, SCORES)
        local = workdir / mirror.CHECKPOINTS
        for place in local.iterdir() if local.is_dir() else ():
            if there.get(place.name) != mirror.position_of(place):
                shutil.rmtree(place)
        for step, position in there.items():
            mark = local / step / mirror.MARK
            if not mark.exists():
                mark.parent.mkdir(parents=True)
                mark.write_bytes(position)
    except OSError as error:
        raise local_copies.unusable(flag, address, error) from error


def fetch_item(item: Path) -> None:
    """Fetch an item of a checkpoint, a folder, unless it exists, or its workdir is not a copy.

    Raises:
      FileNotFoundError: the checkpoint was deleted in the store; the copy of it is deleted too.
      UserError: the store cannot be used.
    """
    place = item.parent
    flag, address = _origin(place.parents[1])
    if not address or item.exists():
        return
    base = stores.join(address, mirror.CHECKPOINTS, place.name, item.name)
    try:
        with files.new_folder(item) as new:
            names = stores.names(base)
            stores.in_parallel(lambda name: local_copies.fetch(base, new, name), names)
            if mirror.read_position(address, place.name) != mirror.position_of(place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), base)
            new.rename(item)
    except FileNotFoundError:
        shutil.rmtree(place)
        raise
    except OSError as error:
        raise local_copies.unusable(flag, address, error) from error


def _origin(workdir: Path) -> tuple[str, str]:
    """The flag and the address of the workdir that a folder is a copy of; empty if it is not a copy."""
    with contextlib.suppress(OSError):
        flag, _, address = (workdir / ORIGIN).read_text(encoding="utf-8").partition("\n")
        return flag, address
    return "", ""
