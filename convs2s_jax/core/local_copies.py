"""Local copies of files and folders in object stores. Messages state the address in place of the path of a copy."""

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from convs2s_jax.core import files, stores
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.guard import NO_ROOM
from convs2s_jax.core.places import joined, scheme_of

PREFIX = "convs2s_jax-"
"""Beginning of the names of temporary folders."""
_LONGEST = 50
"""Maximum length of a copy's name, its end. Names of objects may be longer than disks allow, in bytes."""


def fetch(address: str, folder: Path, name: str) -> None:
    """Copy an object of a folder in the store. Raises OSError if it cannot be copied, or for names like x/../y."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")):  # its path could leave the folder
        raise OSError(errno.EINVAL, f"{name} is not the name of a file in a folder", address)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    download(joined(address, name), folder / name)


def download(address: str, path: Path) -> None:
    """Copy an object to a file. Raises OSError as `stores.read`; for a missing object, no file is created."""
    files.replace_file(path, stores.read(address))


def with_address(tell: Tell, copy: Path, address: str) -> Tell:
    """Return a `tell` that replaces the path of a copy with its address."""
    return lambda sentence: tell(sentence.replace(str(copy), address))


@contextlib.contextmanager
def address_in_errors(copy: Path | str, address: str) -> Iterator[None]:
    """Replace the path of a copy with its address in the messages of user errors."""
    try:
        yield
    except UserError as error:
        if str(copy) not in str(error):
            raise
        raise UserError(str(error).replace(str(copy), address)) from error


@contextlib.contextmanager
def incoming(flag: str, place: str) -> Iterator[Path]:
    """Yield the path of a file to read: the place itself, or a temporary copy of an object.

    Args:
      flag: the flag that specifies it, for messages.
      place: path or address.

    Raises:
      UserError: there is no such object, or the store cannot be used.
    """
    if not scheme_of(place):
        yield Path(place)
        return
    with _copies(place, place.rpartition("/")[0]) as copy:
        try:
            with open(copy, "wb") as file:
                shutil.copyfileobj(stores.Reader(place), file, stores.RANGE)  # it may be larger than the memory
        except FileNotFoundError as error:
            raise UserError(f"{flag}={place}: there is no such object") from error
        except OSError as error:
            raise unusable(flag, place, error) from error
        yield copy


@contextlib.contextmanager
def incoming_folder(flag: str, place: str, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the path of a folder to read: the place itself, or a temporary copy of some of its objects.

    Args:
      flag: the flag that specifies it, for messages.
      place: path or address.
      wanted: whether to copy an object, by its name in the folder.

    Raises:
      UserError: the store cannot be used.
    """
    if not scheme_of(place):
        yield Path(place)
        return
    address = place.rstrip("/")
    with _copies(address, address) as copy:
        try:
            names = filter(wanted, stores.names(address))
            stores.in_parallel(lambda name: fetch(address, copy.parent, name), names)
        except OSError as error:
            raise unusable(flag, address, error) from error
        yield copy.parent


def unusable(flag: str, address: str, error: OSError) -> UserError:
    """Return the error for an address that cannot be copied: the disk is full, or the store cannot be used."""
    if error.errno in NO_ROOM:
        place = tempfile.gettempdir()
        return UserError(f"{flag}={address}: no space for a temporary copy in {place}; free disk space, or set TMPDIR")
    return stores.unusable(flag, address, error)


@contextlib.contextmanager
def _copies(place: str, address: str) -> Iterator[Path]:
    """Yield a path in a new temporary folder, with the name of an object or folder, or its end.

    The folder is deleted at the end. Errors state its address.
    """
    name = place.partition("://")[2].rpartition("/")[2]
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with address_in_errors(folder, address):
            yield folder / ("copy" if name in ("", ".", "..") else name[-_LONGEST:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
