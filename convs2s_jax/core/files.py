"""Atomic writing: a file or folder appears complete or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


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
    """A unique name in the same folder, and so on the same file system."""
    return path.absolute().with_name(f".{path.name}-{uuid.uuid4().hex}")
