"""Lines of a text: in memory if there are few, otherwise in a temporary file from which they are read by number."""

import functools
import itertools
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from convs2s_jax.core.files import writing

FEW = 200_000
"""Maximum number of lines of a text that is kept in memory."""
BLOCK = 4096
"""Number of lines that are read or written at once."""
_PREFIX = f"lines-{socket.gethostname()}-"


class Lines(Sequence[str]):
    """Lines in a temporary file, which is deleted with the object, or at the latest when the process ends.

    A copy in another process (by pickle) reads the same file, for as long as it exists. Slices are lists.
    """

    def __init__(self, place: str, owner: Any = None) -> None:
        """Read the file that `Writer` has written at this place, which exists as long as `owner`."""
        self._place, self._owner = place, owner

    def __reduce__(self) -> tuple[Any, ...]:
        return Lines, (self._place,)

    @functools.cached_property
    def text(self) -> np.ndarray:
        """The bytes of all lines, each with a line feed, [bytes]."""
        return np.memmap(self._place, np.uint8, mode="r")

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """[lines + 1], where each line ends in the file, from 0."""
        return np.memmap(f"{self._place}.ends", "<i8", mode="r")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: Any) -> Any:
        if not isinstance(i, slice):
            i = range(len(self))[i]
            return self[i : i + 1][0]
        begin, end, step = i.indices(len(self))
        if begin >= end or step < 1:
            return [self[j] for j in range(begin, end, step)]
        return self.text[self._ends[begin] : self._ends[end]].tobytes().decode().split("\n")[:-1][::step]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            yield from self[first : first + BLOCK]


class TemporaryFolder:
    """A folder in `folder` that is deleted with this object; those of killed processes are deleted when it is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for place in folder.glob(f"{_PREFIX}*-*"):
            process = place.name.removeprefix(_PREFIX).partition("-")[0]
            if os.path.exists("/proc/self") and not os.path.exists(f"/proc/{process}"):
                shutil.rmtree(place, ignore_errors=True)
        self.name = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=folder)
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


class Writer:
    """Collects lines, in memory until there are more than `FEW`."""

    def __init__(self, folder: Path | None) -> None:
        """Write to a temporary folder in `folder`, which is created if it is needed. None: keep all in memory."""
        self._folder, self._lines, self._place, self._size = folder, list[str](), "", 0
        self._owner: TemporaryFolder | None = None

    def extend(self, lines: Iterable[str]) -> int:
        """Add lines without line ends, and return their number. Raises UserError if they cannot be written."""
        count, rest = 0, iter(lines)
        while block := [*itertools.islice(rest, BLOCK)]:
            self._lines += block
            count += len(block)
            if len(self._lines) > (0 if self._place else FEW) and self._folder is not None:
                self._write(self._folder)
        return count

    def _write(self, folder: Path) -> None:
        """Move the lines in memory to the file."""
        with writing(folder, "choose another data.cache_dir"):
            if not self._place:
                self._owner = TemporaryFolder(folder)
                self._place = f"{self._owner.name}/text"
            data = "\n".join([*self._lines, ""]).encode()
            found = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
            ends = np.concatenate([[self._size], self._size + 1 + found]).astype("<i8")
            with open(self._place, "ab") as text, open(f"{self._place}.ends", "ab") as file:
                text.write(data)
                file.write(ends[1 if self._size else 0 :].tobytes())
            self._size, self._lines = int(ends[-1]), []

    def lines(self) -> Sequence[str]:
        """Return all lines. Raises UserError if they cannot be written."""
        if not self._place or self._folder is None:
            return self._lines
        self._write(self._folder)
        return Lines(self._place, self._owner)


def digest(lines: Sequence[str]) -> bytes:
    """Return a 128-bit hash of all lines."""
    found = xxhash.xxh3_128()
    for piece in [lines.text.data] if isinstance(lines, Lines) else (line.encode() + b"\n" for line in lines):
        found.update(piece)
    return found.digest()


def selected(lines: Iterable[str], wanted: np.ndarray, folder: Path | None) -> Sequence[str]:
    """Return the lines that are `wanted`, [lines] bool. Arguments and errors are as in `Writer`."""
    writer = Writer(folder)
    writer.extend(itertools.compress(lines, wanted))
    return writer.lines()
