"""Local copies of files and folders in object stores. Messages state the address in place of the path of a copy."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import NO_ROOM, held_interrupts
from convs2s_jax.core.places import scheme_of

Tell = Callable[[str], None]
"""Receives a message for the user."""
PREFIX = "convs2s_jax-"
"""Beginning of the names of temporary folders."""


def fetch(address: str, folder: Path, name: str) -> None:
    """Copy an object of a folder in the store. Raises OSError if it cannot be read or written."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(stores.read(stores.join(address, name)))


def with_address(tell: Tell, copy: Path, address: str) -> Tell:
    """Return a `tell` that replaces the path of a copy with its address."""
    return lambda sentence: tell(sentence.replace(str(copy), address))


@contextlib.contextmanager
def address_in_errors(copy: Path, address: str) -> Iterator[None]:
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
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        copy = Path(folder) / _name(place, "file")
        with address_in_errors(copy, place):
            try:
                copy.write_bytes(stores.read(place))
            except FileNotFoundError as error:
                raise UserError(f"{flag}={place}: there is no such object") from error
            except OSError as error:
                raise unusable(flag, place, error) from error
            yield copy


@contextlib.contextmanager
def outgoing(flag: str, place: str, tell: Tell) -> Iterator[Path]:
    """Yield the path of a file to write: the place itself, or a temporary file that is uploaded at the end.

    Args:
      flag: the flag that specifies it, such as --output.
      place: path or address.
      tell: as in `upload`.

    Raises:
      UserError: the object cannot be written.
    """
    if not scheme_of(place):
        yield Path(place)
        return
    stores.check_object(flag, place)
    with _results(place) as path:
        yield path
    upload(flag, place, path.parent, lambda: stores.write(place, path.read_bytes()), tell)


@contextlib.contextmanager
def outgoing_folder(
    flag: str, place: str, tell: Tell, *, is_new: bool = False, reused: tuple[str, ...] = (), last: str = ""
) -> Iterator[tuple[Path, Tell]]:
    """Yield the path of a folder to create or fill: the place itself, or a temporary folder, uploaded at the end.

    Nothing is uploaded after an error. The caller checks and creates a local folder.

    Args:
      flag: the flag that specifies it, such as --output.
      place: path or address.
      tell: as in `upload`.
      is_new: whether to refuse an address under which there are objects.
      reused: beginnings of the names of earlier objects to fetch first.
      last: end of the names of files that are uploaded after all others, because they mark the rest as complete.

    Yields:
      The path, and `tell` with the address in place of the path of a copy.

    Raises:
      UserError: there are objects although `is_new`, or the store cannot be used.
    """
    if not scheme_of(place):
        yield Path(place), tell
        return
    address = place.rstrip("/")
    with _results(address) as folder:
        try:
            if is_new and stores.names(address):
                raise UserError(f"{flag}={address} already exists: choose a new folder; nothing was written")
            there = [name for beginning in reused for name in stores.names(address, beginning)]
            stores.in_parallel(lambda name: fetch(address, folder, name), there)
        except OSError as error:
            raise unusable(flag, address, error) from error
        yield folder, with_address(tell, folder, address)
    upload(flag, address, folder.parent, lambda: _send(folder, address, last), tell)


def upload(flag: str, address: str, folder: Path, send: Callable[[], None], tell: Tell) -> None:
    """Upload results, and then delete the temporary folder that contains them.

    An interrupt (SIGINT, SIGTERM) takes effect after the upload; a second one ends it. If the upload fails or is ended,
    the folder stays, and the message states where it is.

    Args:
      flag: the flag that specifies the address, for messages.
      address: of the results.
      folder: the temporary folder.
      send: uploads the results; raises OSError.
      tell: receives the message after a second interrupt.

    Raises:
      UserError: the results cannot be written.
    """
    with held_interrupts():
        try:
            send()
        except OSError as error:
            raise UserError(
                f"{flag}={address} cannot be written: {error.strerror}; the results are in {folder}"
            ) from error
        except KeyboardInterrupt:
            tell(f"{flag}={address} is not complete; the results are in {folder}")
            raise
        shutil.rmtree(folder, ignore_errors=True)


def unusable(flag: str, address: str, error: OSError) -> UserError:
    """Return the error for an address that cannot be copied: the disk is full, or the store cannot be used."""
    if error.errno in NO_ROOM:
        place = tempfile.gettempdir()
        return UserError(f"{flag}={address}: no space for a temporary copy in {place}; free disk space, or set TMPDIR")
    return stores.unusable(flag, address, error)


@contextlib.contextmanager
def _results(address: str) -> Iterator[Path]:
    """Yield a path for results in a new temporary folder, which is deleted after an error."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    path = folder / _name(address, "results")
    try:
        with address_in_errors(path, address):
            yield path
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _send(folder: Path, address: str, last: str) -> None:
    """Write all files of a folder to a store, those whose names end in `last` after all others."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for at_end in (False, True):
        some = [name for name in names if (bool(last) and name.endswith(last)) == at_end]
        stores.in_parallel(lambda name: stores.write(stores.join(address, name), (folder / name).read_bytes()), some)


def _name(address: str, otherwise: str) -> str:
    """Return the last part of an address, which may be empty."""
    return address.partition("://")[2].rpartition("/")[2] or otherwise
