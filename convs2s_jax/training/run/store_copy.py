"""Local copies of a workdir in an object store. The arrays of a checkpoint are fetched when they are read.

A checkpoint in a store is complete once it contains its position, which is written last and deleted first.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from convs2s_jax.core import files, local_copies, stores
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.training.run.reports import records
from convs2s_jax.training.run.run_folder import DAMAGED, FACTS, LOG, SCORES

CHECKPOINTS, MARK = "checkpoints", "position/metadata"
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
    files_read = ("config.json", SCORES, *((records.METRICS, LOG, FACTS) if reports else ()))

    def wanted(name: str) -> bool:
        return name in files_read or name.startswith(beginnings)

    with local_copies.incoming_folder(flag, address, wanted) as folder:
        if not any(folder.iterdir()):
            raise UserError(f"{flag}={address}: there is no such folder")
        set_origin(folder, flag, address)
        refresh(folder)
        yield folder


@contextlib.contextmanager
def reading(workdir: Path | str, tell: Tell, *, flag: str = "--workdir") -> Iterator[tuple[Path, Tell]]:
    """`opened`, with a `tell` that replaces the path of the copy with the workdir as it was given."""
    address = str(workdir).rstrip("/")
    with opened(workdir, flag=flag) as folder:
        yield folder, local_copies.with_address(tell, folder, address) if scheme_of(address) else tell


def set_origin(copy: Path, flag: str, address: str) -> None:
    """Write into a copy of which workdir it is one. Raises OSError."""
    files.replace_file(copy / ORIGIN, f"{flag}\n{address}")


def refresh(workdir: Path) -> None:
    """Update the checkpoints in a copy to those in the store; does nothing if the workdir is not a copy.

    Raises:
      UserError: the store cannot be used.
    """
    flag, address = _origin(workdir)
    if address:
        try:
            update(workdir, address, stores.names(address, f"{CHECKPOINTS}/"))
            with contextlib.suppress(FileNotFoundError):
                local_copies.fetch(address, workdir, SCORES)
        except OSError as error:
            raise local_copies.unusable(flag, address, error) from error


def update(copy: Path, address: str, names: Iterable[str]) -> dict[str, bytes | None]:
    """Delete the checkpoints in a copy that are not the same in the store, and fetch the positions of the others.

    Args:
      copy: folder of the copy.
      address: of the workdir.
      names: of its objects.

    Returns:
      The checkpoints in the store with their positions; None for one that is not complete.

    Raises:
      OSError: something cannot be read or written.
    """
    known = {step: _position(address, step) if MARK in inside else None for step, inside in steps_of(names).items()}
    local = copy / CHECKPOINTS
    for place in local.iterdir() if local.is_dir() else ():
        if known.get(place.name) is None or known[place.name] != position_of(place):
            shutil.rmtree(place)
    for step, position in known.items():
        if position is not None and not step.endswith(DAMAGED) and not (local / step).exists():
            with files.new_folder(local / step) as new:
                (new / MARK).parent.mkdir()
                (new / MARK).write_bytes(position)
                new.rename(local / step)
    return known


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
    base = joined(address, CHECKPOINTS, place.name, item.name)
    try:
        with files.new_folder(item) as new:
            names = stores.names(base)
            stores.in_parallel(lambda name: local_copies.fetch(base, new, name), names)
            if _position(address, place.name) != position_of(place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), base)
            if not names:  # a refused list may look like an empty folder: the checkpoint is not damaged
                raise stores.not_listed(base)
            new.rename(item)
    except FileNotFoundError:
        shutil.rmtree(place)
        raise
    except OSError as error:
        raise local_copies.unusable(flag, address, error) from error


def steps_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the folders of checkpoints among the names of a workdir's objects, with the names inside each."""
    found: dict[str, list[str]] = {}
    for name in names:
        kind, _, rest = name.partition("/")
        step, _, file = rest.partition("/")
        if kind == CHECKPOINTS and file:
            found.setdefault(step, []).append(file)
    return found


def position_of(place: Path) -> bytes | None:
    """Return the position of a checkpoint in a copy; None if there is none."""
    with contextlib.suppress(OSError):
        return files.content(place / MARK)
    return None


def _position(address: str, step: str) -> bytes | None:
    """Return the position of a checkpoint in the store; None if it has just been deleted."""
    with contextlib.suppress(FileNotFoundError):
        return stores.read(joined(address, CHECKPOINTS, step, MARK))
    return None


def _origin(workdir: Path) -> tuple[str, str]:
    """The flag and the address of the workdir that a folder is a copy of; empty if it is not a copy."""
    with contextlib.suppress(OSError):
        flag, _, address = (workdir / ORIGIN).read_text(encoding="utf-8").partition("\n")
        return flag, address
    return "", ""
