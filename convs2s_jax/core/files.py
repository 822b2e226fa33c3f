"""Files: read with one sentence for everything that can be wrong, and written completely or not at all."""

import contextlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convs2s_jax.core.errors import UserError, shortened

LARGEST = 1 << 28
"""Most bytes of a file that is read as a whole. Texts of a corpus are read in pieces (`data.text_files`)."""
_NAME = 255
"""Most bytes of a file's name on common file systems."""


def read_bytes(path: str | Path, *, remedy: str, most: int = LARGEST) -> bytes:
    """The content of a regular file.

    Args:
      path: of the file.
      remedy: what the user can do about a file that cannot be read; the end of the message.
      most: bytes the file may have.

    Raises:
      UserError: there is no such file, it is a folder, a device or a pipe, it cannot be read, or it is too large.
    """
    try:
        with open_regular(path, remedy=remedy) as number, os.fdopen(number, "rb", closefd=False) as file:
            data = file.read(most + 1) if os.fstat(number).st_size <= most else None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    if data is None or len(data) > most:
        raise UserError(f"{path} has more than {most:,} bytes, which no such file has; {remedy}")
    return data


@contextlib.contextmanager
def open_regular(path: str | Path, *, remedy: str) -> Iterator[int]:
    """Yield the descriptor of a regular file that is opened for reading. A pipe is not waited for.

    Raises:
      UserError: it is a folder, a device or a pipe.
      OSError: it cannot be opened.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            kind = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
            raise UserError(f"{path} is a {kind}, and a file belongs there; {remedy}")
        yield number
    finally:
        os.close(number)


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


def _beside(path: Path) -> Path:
    """A unique name in the same folder, and so on the same file system; not longer than a name may be."""
    unique = uuid.uuid4().hex
    name = os.fsencode(path.name)[: _NAME - len(unique) - 2]
    return path.absolute().with_name(f".{os.fsdecode(name)}-{unique}")
