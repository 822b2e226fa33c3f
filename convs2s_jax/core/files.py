"""File access: reads that report every failure in one sentence, and atomic writes."""

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from convs2s_jax.core.checksums import integer
from convs2s_jax.core.errors import UserError, shortened
from convs2s_jax.core.guard import writing_remedy

LARGEST = 1 << 28
"""Maximum size in bytes of a file that is read as a whole. Corpus files are read in pieces (`data.text_files`)."""
_NAME = 255
"""Maximum length in bytes of a file name on common file systems."""


def content(path: str | Path, *, most: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
      OSError: the file does not exist, is a folder, a device or a pipe, cannot be read, or is too large.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EOVERFLOW, f"it has more than {most:,} bytes, too many for such a file", str(path))
        return file.read()


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a folder, a device or a pipe, without waiting for a pipe."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(number, "rb")
    os.close(number)
    kind = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
    raise OSError(errno.EINVAL, f"it is a {kind}, not a file", str(path))


def no_link(path: str, flags: int) -> int:
    """Open a file for writing, as the `opener` of `open`, unless it is a link.

    Raises OSError for a link: whoever made it would find his other file changed.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{os.path.basename(path)} is a link to another file", path) from error
        raise


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_bytes(path: str | Path, *, remedy: str, most: int = LARGEST) -> bytes:
    """Return the content of a regular file that the user specified or that belongs to a run.

    Args:
      path: of the file.
      remedy: what the user can do if the file cannot be read; the end of the message.
      most: maximum size in bytes.

    Raises:
      UserError: whenever `content` raises OSError.
    """
    try:
        return content(path, most=most)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {remedy}") from error


def read_text(path: str | Path, *, remedy: str, most: int = LARGEST) -> str:
    """Return the content of a UTF-8 text file without a byte order mark. Arguments and errors as in `read_bytes`."""
    data = read_bytes(path, remedy=remedy, most=most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; {remedy}") from error


def read_json(path: str | Path, *, remedy: str) -> Any:
    """Return the content of a JSON file. Arguments and errors as in `read_text`; invalid JSON raises UserError too."""
    text = read_text(path, remedy=remedy)
    try:
        return json.loads(text, parse_int=integer)
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path} is not JSON ({shortened(str(error), 200)}); {remedy}") from error


@contextlib.contextmanager
def writing(what: str | Path, otherwise: str, *, kind: type[UserError] = UserError) -> Iterator[None]:
    """Turn an OSError of the block into an error of this kind: `what` cannot be written.

    The message ends with the advice `otherwise`, and to free disk space if it ran out.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be written: {error.strerror}; {writing_remedy(error, otherwise)}") from error


def check_replaceable(path: Path) -> None:
    """Check before long work that `replace_file` can write a file. Changes nothing.

    Raises:
      OSError: `path` is a folder, or no file can be created next to it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with tempfile.TemporaryFile(dir=path.absolute().parent):
        pass


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text as UTF-8: a reader sees the old content or the complete new one.

    Raises OSError if it cannot be written; an existing file then stays unchanged.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`. The block writes a file there, which then replaces `path`.

    If the block raises an error, the temporary file is removed and `path` stays unchanged.
    """
    part = _temporary_path(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to `path`. The block fills it and renames it, or moves its content.

    Missing parent folders are created. If the folder still exists at the end of the block, it is removed.
    """
    part = _temporary_path(path)
    try:
        part.mkdir(parents=True)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _temporary_path(path: Path) -> Path:
    """Return a unique name of permitted length in the same folder, and therefore on the same file system."""
    unique = uuid.uuid4().hex
    name = os.fsencode(path.name)[: _NAME - len(unique) - 2]
    return path.absolute().with_name(f".{os.fsdecode(name)}-{unique}")
