"""Compiled programs of a run whose workdir lies in an object store: kept in the local copy, and beside the run.

JAX keeps programs in a folder, not in a store. So a start fetches what earlier ones have compiled, also on other
machines, and what process 0 compiles is written back (decision 0040).
"""

import contextlib
import os
import time
from pathlib import Path

from convs2s_jax.core import stores

FOLDER = "compiled"
QUIET = 5.0
"""Seconds for which a file has not changed when it is written back: JAX writes it in place."""


def fetch(address: str, copy: Path) -> None:
    """Copy the programs of a workdir that its local copy lacks. Raises OSError where one cannot be read or written."""

    def get(name: str) -> None:
        content, place = stores.read(stores.join(address, name)), copy / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(place)

    lacking = [name for name in _stored(address) if not (copy / name).exists()]
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
        stores.in_parallel(get, lacking)


class StoredPrograms:
    """Writes back the programs that the local copy of a workdir has and the store has not."""

    def __init__(self, address: str, copy: Path) -> None:
        """For a workdir and its local copy."""
        self._address, self._copy = address, copy
        self._there: set[str] | None = None

    def push(self, *, quiet: float = QUIET) -> None:
        """Write back what has not changed for so many seconds. Raises OSError where it cannot be written."""
        if self._there is None:
            self._there = set(_stored(self._address))
        before = time.time() - quiet
        found = [path for path in (self._copy / FOLDER).rglob("*") if path.is_file() and not path.name.startswith(".")]
        for path in found:
            name = path.relative_to(self._copy).as_posix()
            with contextlib.suppress(FileNotFoundError):
                if name not in self._there and path.stat().st_mtime <= before:
                    stores.write(stores.join(self._address, name), path.read_bytes())
                    self._there.add(name)


def _stored(address: str) -> list[str]:
    """Names of the programs in the store, relative to the workdir."""
    return [f"{FOLDER}/{name}" for name in stores.names(stores.join(address, FOLDER))]
