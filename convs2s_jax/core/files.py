"""Files and folders that are there as a whole or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that its name always stands for the old content or the whole new one.

    Args:
      path: of the file; its folder exists.
      content: text is written as UTF-8.

    Raises:
      OSError: it cannot be written; what was there is unchanged.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file under a temporary name beside `path`, to be written in the block; then it takes the place of `path`.

    If the block raises an error, the temporary file is removed and `path` is left as it was.
    """
    part = _beside(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, parents: bool = True) -> Iterator[Path]:
    """An empty folder under a temporary name beside `path`, removed at the end of the block unless it was renamed.

    The block fills it and moves it, or what is in it, into place.

    Args:
      path: where it is to be in the end.
      parents: whether to make the folders that it lies in.
    """
    part = _beside(path)
    try:
        part.mkdir(parents=parents)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A name in the same folder, which is on the same file system, that nothing else has."""
    return path.absolute().with_name(f".{path.name}-{uuid.uuid4().hex}")
