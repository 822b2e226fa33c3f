"""Local copies of files and folders in object stores. Messages state the address in place of the path of a copy."""

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from convs2s_jax.core import files, stores
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.guard import NO_ROOM, held_interrupts
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


def download(address: str, path: Path, *, most: int | None = None) -> None:
    """Copy an object to a file. Raises OSError as `stores.pieces`; for a missing object, no file is created."""
    pieces = stores.pieces(address, most=most)
    first = next(pieces)
    with files.replacing(path) as part, part.open("wb") as file:
        file.write(first)
        file.writelines(pieces)


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
def incoming(flag: str, place: str, *, most: int | None = None) -> Iterator[Path]:
    """Yield the path of a file to read: the place itself, or a temporary copy of an object.

    Args:
      flag: the flag that specifies it, for messages.
      place: path or address.
      most: maximum size in bytes of an object. The caller checks the size of a local file.

    Raises:
      UserError: there is no such object, it is too large, or the store cannot be used.
    """
    if not scheme_of(place):
        yield Path(place)
        return
    address = place.rpartition("/")[0]
    with _copies(place, address) as (_, copy):
        try:
            download(place, copy, most=most)
        except FileNotFoundError as error:
            raise UserError(f"{flag}={place}: there is no such object") from error
        except OSError as error:
            if error.errno == errno.EOVERFLOW:
                raise UserError(f"{flag}={place} cannot be read: {error.strerror}; choose another file") from error
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
    with _copies(address, address) as (folder, _):
        try:
            names = filter(wanted, stores.names(address))
            stores.in_parallel(lambda name: fetch(address, folder, name), names)
        except OSError as error:
            raise unusable(flag, address, error) from error
        yield folder


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
    with _results(flag, place) as (folder, path):
        yield path
    upload(flag, place, folder, lambda: stores.write(place, path.read_bytes()), tell)


@contextlib.contextmanager
def outgoing_folder(
    flag: str, place: str, tell: Tell, *, is_new: str = "", last: str = ""
) -> Iterator[tuple[Path, Tell]]:
    """Yield the path of a folder to create or fill: the place itself, or a temporary folder, uploaded at the end.

    Nothing is uploaded after an error. The caller checks and creates a local folder.

    Args:
      flag: the flag that specifies it, such as --output.
      place: path or address.
      tell: as in `upload`.
      is_new: name of an object that each output of this kind has, to refuse an address under which there are objects;
        "" to accept it.
      last: name of the files, or end of their paths, that are uploaded after all others, because they mark the rest as
        complete.

    Yields:
      The path, and `tell` with the address in place of the path of a copy.

    Raises:
      UserError: there are objects although `is_new`, or the store cannot be used.
    """
    if not scheme_of(place):
        yield Path(place), tell
        return
    address = place.rstrip("/")
    with _results(flag, address) as (kept, folder):
        try:
            if stores.names(address) and is_new:
                raise UserError(
                    f"{flag}={address} already exists: choose a new folder, or delete its objects if they are from an "
                    "upload that did not finish; nothing was written"
                )
            if is_new and stores.is_readable(joined(address, is_new)):
                raise stores.not_listed(address)
        except OSError as error:
            raise unusable(flag, address, error) from error
        yield folder, with_address(tell, folder, address)
    upload(flag, address, kept, lambda: _send(folder, address, last), tell)


def upload(flag: str, address: str, folder: Path, send: Callable[[], None], tell: Tell) -> None:
    """Upload results, and then delete the temporary folder that contains them.

    An interrupt (SIGINT, SIGTERM) takes effect after the upload; a second one ends it after the objects that are being
    written. If the upload fails or is ended, the folder stays, and the message states where it is.

    Args:
      flag: the flag that specifies the address, for messages.
      address: of the results.
      folder: the temporary folder.
      send: uploads the results; raises OSError.
      tell: receives the message after a second interrupt.

    Raises:
      UserError: the results cannot be written.
    """
    rest = f"a part may be in the store; all results are in {folder}"
    with held_interrupts():
        try:
            send()
        except OSError as error:
            raise UserError(f"{flag}={address} cannot be written: {error.strerror}; {rest}") from error
        except KeyboardInterrupt:
            tell(f"{flag}={address} is not complete; {rest}")
            raise
        shutil.rmtree(folder, ignore_errors=True)


def unusable(flag: str, address: str, error: OSError) -> UserError:
    """Return the error for an address that cannot be copied: the disk is full, or the store cannot be used."""
    if error.errno in NO_ROOM:
        place = tempfile.gettempdir()
        return UserError(f"{flag}={address}: no space for a temporary copy in {place}; free disk space, or set TMPDIR")
    return stores.unusable(flag, address, error)


def temporary(address: str) -> tuple[Path, Path]:
    """Return a new temporary folder, and a path in it with the name of an object or folder, or with its end."""
    name = address.partition("://")[2].rpartition("/")[2]
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return folder, folder / ("copy" if name in ("", ".", "..") else name[-_LONGEST:])


@contextlib.contextmanager
def _copies(place: str, address: str) -> Iterator[tuple[Path, Path]]:
    """`temporary` for copies, which are deleted at the end. Errors state the address in place of the folder."""
    folder, path = temporary(place)
    try:
        with address_in_errors(folder, address):
            yield folder, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _results(flag: str, address: str) -> Iterator[tuple[Path, Path]]:
    """Yield a new temporary folder and a path in it for results. After an error it is deleted."""
    folder, path = temporary(address)
    try:
        with address_in_errors(path, address):
            yield folder, path
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                raise unusable(flag, address, cause) from error
            cause = cause.__cause__
        raise


def _send(folder: Path, address: str, last: str) -> None:
    """Write the files of a folder to a store, those named `last` after all others."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    for at_end in (False, True):
        some = [name for name in names if bool(last and f"/{name}".endswith(f"/{last}")) == at_end]
        stores.in_parallel(lambda name: stores.write(joined(address, name), (folder / name).read_bytes()), some)
