"""The files of a local copy of a workdir that are written back, and which of their content is."""

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from convs2s_jax.training.run.reports.trackers import DATABASE

LEFT = ("lock", f"{DATABASE}-")
"""Prefixes of files that are not written back: locks, and what SQLite keeps beside a database in use."""
Stamp = tuple[int, int]


def stamps(folder: Path, *, local: Sequence[str] | None = None) -> dict[str, Stamp]:
    """The files in a folder by their relative names, with size and time of the last change.

    Args:
      folder: the folder to list.
      local: folders in it that are left out, and with them temporary files and those of `LEFT`; None for all files.
    """
    found = {}
    for root, folders, names in os.walk(folder):
        if Path(root) == folder and local is not None:
            folders[:] = [name for name in folders if name not in local]
            names = [name for name in names if not name.startswith(LEFT)]
        if local is not None:
            folders[:] = [name for name in folders if not name.startswith(".")]
            names = [name for name in names if not name.startswith(".")]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(os.path.join(root, name))
                found[os.path.relpath(os.path.join(root, name), folder)] = status.st_size, status.st_mtime_ns
    return found


def content(path: Path) -> bytes:
    """The content of a file: only complete lines of files that grow by lines, and only what is committed of a database.

    Raises:
      OSError: it cannot be read.
      sqlite3.Error: it is a database that is in use or damaged.
    """
    if path.name == DATABASE:
        with contextlib.closing(sqlite3.connect(path)) as database:
            if hasattr(database, "serialize"):  # not where SQLite before 3.36 was built without it
                return database.serialize()
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1] if path.suffix in (".jsonl", ".log") else data
