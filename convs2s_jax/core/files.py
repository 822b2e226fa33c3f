"""Files: read with one sentence for everything that can be wrong, and written completely or not at all."""

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from convs2s_jax.core.errors import UserError, shortened

LARGEST = 1 << 28
"""Most bytes of a file that is read as a whole. Texts of a corpus are read in pieces (`data.text_files`)."""
_NAME = 255
"""Most bytes of a file's name on common file systems."""
_LOCKED = ".locked"
"""End of the names of temporary files whose writers hold a lock; those of earlier versions did not."""


def content(path: str | Path, *, most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
      OSError: there is no such file, it is a folder, a device or a pipe, it cannot be read, or it is too large.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(most, max(size, LARGEST)) + 1) if size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EOVERFLOW, f"it has more than {most:,} bytes, which no such file has", str(path))
    return data


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a folder, a device or a pipe, which is not waited for."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(number, "rb")
    os.close(number)
    kind = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
    raise OSError(errno.EINVAL, f"it is a {kind}, and a file belongs there", str(path))


def open_to_append(path: Path) -> TextIO:
    """Open a text file to write at its end. A pipe that nobody reads is not waited for.

    Raises:
      OSError: it cannot be opened.
    """
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666), "a", encoding="utf-8"
    )


def read_bytes(path: str | Path, *, remedy: str, most: int = LARGEST) -> bytes:
    """The content of a regular file that the user named or that belongs to a run.

    Args:
      path: of the file.
      remedy: what the user can do about a file that cannot be read; the end of the message.
      most: bytes the file may have.

    Raises:
      UserError: as `content` raises OSError.
    """
    try:
        return content(path, most=most)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {remedy}") from error


def read_text(path: str | Path, *, remedy: str, most: int = LARGEST) -> str:
    """The content of a UTF-8 text file, without a byte order mark; arguments and errors as in `read_bytes`."""
    data = read_bytes(path, remedy=remedy, most=most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; {remedy}") from error


def read_json(path: str | Path, *, remedy: str, most: int = LARGEST) -> Any:
    """The content of a JSON file; arguments and errors as in `read_text`, for what is not JSON too."""
    text = read_text(path, remedy=remedy, most=most)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{path} is not JSON (its lists are nested too deeply); {remedy}") from error
    except ValueError as error:  # json.JSONDecodeError, or a number of thousands of digits
        raise UserError(f"{path} is not JSON ({shortened(str(error), 200)}); {remedy}") from error


def check_replaceable(path: Path) -> None:
    """Find out before long work whether `replace_file` can write a file. Nothing is changed.

    Raises:
      OSError: `path` is a folder, or no file can be made beside it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with tempfile.TemporaryFile(dir=path.absolute().parent):
        pass


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a reader sees the old content or the complete new one.

    Args:
      path: of the file; its folder exists.
      content: text is written as UTF-8.

    Raises:
      OSError: it cannot be written; an existing file is unchanged.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. The block writes a file there, which then replaces `path`.

    If the block raises an error, the temporary file is removed and `path` is unchanged.
    """
    part = _beside(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_locked(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file beside `path`, which then replaces it; what killed writers of it left is removed first.

    For large files: a writer that is killed leaves its temporary file. Each holds an exclusive flock on it, also while
    it replaces `path`, so one that can be locked has no writer. Where the file system has no flock, all stay.
    If the block raises an error, the temporary file is removed and `path` is unchanged.
    """
    for left in path.absolute().parent.glob(f".{glob.escape(path.name)}-*{_LOCKED}"):
        _remove_abandoned(left)
    part, file = _locked(path)
    with file:
        try:
            yield file
            file.flush()
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _remove_abandoned(part: Path) -> None:
    """Remove a file that nobody has locked. It stays where that cannot be found out, or where it cannot be removed."""
    with contextlib.suppress(OSError), part.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()


def _locked(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path` with a lock, where there is flock; another one if somebody took it for abandoned."""
    while True:
        part = _beside(path, _LOCKED)
        file = part.open("xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = not part.exists()
        except OSError as error:
            taken = isinstance(error, BlockingIOError)
        if not taken:
            return part, file
        file.close()


@contextlib.contextmanager
def new_folder(path: Path, *, parents: bool = True) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`. The block fills it and renames it, or moves its content.

    If the folder still exists at the end of the block, it is removed.

    Args:
      path: the final place of the folder.
      parents: whether to create missing parent folders.
    """
    part = _beside(path)
    try:
        part.mkdir(parents=parents)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _beside(path: Path, ending: str = "") -> Path:
    """A unique name in the same folder, and so on the same file system; not longer than a name may be."""
    unique = uuid.uuid4().hex + ending
    name = os.fsencode(path.name)[: _NAME - len(unique) - 2]
    return path.absolute().with_name(f".{os.fsdecode(name)}-{unique}")
