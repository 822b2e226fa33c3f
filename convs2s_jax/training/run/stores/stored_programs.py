"""Compiled programs of a run whose workdir is in an object store: cached in the local copy, and stored with the run.

JAX caches programs in a folder, not in a store. So a start fetches what earlier ones have compiled, also on other
machines, and what process 0 compiles is written back (decision 0040). Programs only save time: if the store fails, the
run continues without them.
"""

import contextlib
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from convs2s_jax.core import compiled_programs, files, stores

FOLDER = "compiled"
QUIET = 5.0
"""Seconds for which a file has not changed when it is written back: JAX writes it in place."""
ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""First bytes of what JAX compresses with zstd instead of zlib, if a library for that is installed."""


def folder_of(copy: Path) -> Path:
    """Folder of the programs in a local copy of a workdir; each kind of processor has its own."""
    return copy / FOLDER / compiled_programs.processor()


def fetch(address: str, copy: Path) -> None:
    """Copy the programs of a workdir that its local copy lacks, if JAX uses them. Never raises OSError."""

    def get(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            content = stores.read(stores.join(there, name))
            if _is_whole(content):
                files.replace_file(folder / name, content)

    folder, there = folder_of(copy), _stored(address)
    if not _is_used(folder):
        return
    try:
        # in no subfolder, as they are written: the path of another name could leave the folder
        names = [name for name in stores.names(there) if "/" not in name]
        stores.in_parallel(get, [name for name in names if not (folder / name).exists()])
    except OSError as error:
        _tell(there, "fetched", error)


class StoredPrograms:
    """Writes back the programs in the local copy of a workdir that the store lacks."""

    def __init__(self, address: str, copy: Path) -> None:
        """For a workdir and its local copy."""
        self._address, self._folder = _stored(address), folder_of(copy)
        self._there: set[str] | None = None
        self._told = False

    def push(self, *, quiet: float = QUIET) -> None:
        """Write back what has not changed for `quiet` seconds, if JAX caches programs there. Never raises OSError."""
        if not _is_used(self._folder):
            return
        try:
            if self._there is None:
                self._there = set(stores.names(self._address))
            for path in self._folder.iterdir():
                if path.name not in self._there and not path.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        if path.stat().st_mtime <= time.time() - quiet and self._written(path):
                            self._there.add(path.name)
        except OSError as error:
            if not self._told:
                _tell(self._address, "written back", error)
            self._told = True

    def _written(self, path: Path) -> bool:
        content = path.read_bytes()
        if _is_whole(content):
            stores.write(stores.join(self._address, path.name), content)
            return True
        path.unlink()  # truncated by a kill: JAX would never write it again
        return False


def _stored(address: str) -> str:
    """The folder of the programs for this kind of processor in a store."""
    return stores.join(address, FOLDER, compiled_programs.processor())


def _is_used(folder: Path) -> bool:
    settings: Any = jax.config  # JAX creates its attributes at start-up
    return settings.jax_compilation_cache_dir == str(folder) and folder.is_dir()


def _is_whole(content: bytes) -> bool:
    """Whether an entry of JAX's cache is complete, as far as its compression shows."""
    if content.startswith(ZSTANDARD):
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True


def _tell(address: str, action: str, error: OSError) -> None:
    tqdm.write(f"compiled programs in {address} could not be {action} ({error.strerror})", file=sys.stderr)
