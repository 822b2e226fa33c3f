"""The local copy of a workdir in an object store, and what is written back (decision 0025).

The run works in the copy as in any workdir. A checkpoint is written back file by file, the record of its position last.
It marks a checkpoint in the store as complete, so it is also deleted first.
"""

import contextlib
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from convs2s_jax.core import files, local_copies, stores
from convs2s_jax.core.checksums import DamagedError, parsed
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError
from convs2s_jax.training.run.reports import metrics_file, trackers
from convs2s_jax.training.run.run_folder import DAMAGED, FACTS, LOG, SCORES
from convs2s_jax.training.run.stores import written_back
from convs2s_jax.training.run.stores.stored_programs import FOLDER, StoredPrograms

PERIOD = 5.0
"""Seconds between two checks for changes."""
PATIENCE = 600.0
"""Seconds for which writing back is retried before a run fails."""
CHECKPOINTS, MARK = "checkpoints", "position/metadata"
READ_BACK = (
    *("config.json", SCORES, metrics_file.NAME, metrics_file.DAMAGED, LOG, FACTS, trackers.DATABASE, trackers.RUN_ID),
)
"""Files that a continued run needs, besides vocabularies and checkpoints."""
LOCAL = ("cache", CHECKPOINTS, FOLDER)
"""Folders that are not written back with the other files: tokenised text stays local, checkpoints have an order, and
compiled programs are not part of a run."""


def fetch(address: str, folder: Path, *, marker: str = "") -> dict[str, bytes | None]:
    """Create a local copy of a workdir: configuration, vocabularies, reports and checkpoints as the store has them.

    Args:
      address: of the workdir.
      folder: of the copy. Checkpoints left by an earlier start are reused if they are the same, else removed.
      marker: prefix of an object that is known to exist; without it, the listing is incomplete.

    Returns:
      The checkpoints in the store with their positions; None for one that is incomplete.

    Raises:
      OSError: something cannot be read or written.
    """
    found = stores.names(address)
    if marker and not any(name.startswith(marker) for name in found):
        raise stores.not_listed(address)
    wanted = [name for name in found if name in READ_BACK or name.startswith("vocab/")]
    shutil.rmtree(folder / "vocab", ignore_errors=True)
    for path in [*(folder / name for name in READ_BACK), *folder.glob(f"{trackers.DATABASE}-*")]:
        path.unlink(missing_ok=True)
    stores.in_parallel(lambda name: local_copies.fetch(address, folder, name), wanted)
    there = steps_of(found)
    known = {step: read_position(address, step) if MARK in names else None for step, names in there.items()}
    local = folder / CHECKPOINTS
    for place in local.iterdir() if local.is_dir() else ():
        if known.get(place.name) is None or known[place.name] != position_of(place):
            shutil.rmtree(place)
    for step, position in known.items():
        if position is not None and not step.endswith(DAMAGED) and not (local / step).exists():
            with files.new_folder(local / step) as new:
                base = stores.join(address, CHECKPOINTS, step)
                stores.in_parallel(lambda name: local_copies.fetch(base, new, name), there[step])  # noqa: B023
                new.rename(local / step)
    return known


def steps_of(names: list[str]) -> dict[str, list[str]]:
    """The folders of checkpoints among the names of a workdir, with the names inside each."""
    found: dict[str, list[str]] = {}
    for name in names:
        kind, _, rest = name.partition("/")
        step, _, file = rest.partition("/")
        if kind == CHECKPOINTS and file:
            found.setdefault(step, []).append(file)
    return found


def read_position(address: str, step: str) -> bytes | None:
    """The position of a checkpoint in the store; None if it has just been deleted."""
    with contextlib.suppress(FileNotFoundError):
        return stores.read(stores.join(address, CHECKPOINTS, step, MARK))
    return None


def position_of(place: Path) -> bytes | None:
    """The position of a checkpoint in the local copy; None if there is none."""
    with contextlib.suppress(OSError):
        return files.content(place / MARK)
    return None


class Mirror:
    """Writes back what a run changes in the local copy of its workdir."""

    def __init__(
        self, address: str, folder: Path, known: dict[str, bytes | None], may_write: Callable[[], bool]
    ) -> None:
        """Start with a copy that matches the store.

        Args:
          address: of the workdir.
          folder: of the copy.
          known: the checkpoints in the store, as `fetch` returns them.
          may_write: whether the workdir is still held by this process.
        """
        self._address, self._folder, self._known, self._may_write = address, folder, known, may_write
        self._sent = {
            name: stamp
            for name, stamp in written_back.stamps(folder, local=LOCAL).items()
            if name.partition("/")[0] in _FETCHED
        }
        self._programs = StoredPrograms(address, folder)
        self._guard, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close. After a second signal, what the store lacks is left to the next start."""
        if kind is EndedAtOnceError:
            self._stop.set()
        else:
            self.close()

    def start(self) -> None:
        """Start writing back in the background."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until all finished checkpoints are in the store: with a slow network, the next one has to wait.

        Raises:
          UserError: they could not be written for `PATIENCE` seconds.
        """
        end, told = time.monotonic() + PATIENCE, False
        while (error := self._tried()) is not None:
            if not told:
                told = True
                self._tell(f"cannot be written ({error.strerror}); retrying for up to {PATIENCE / 60:.0f} minutes")
            if time.monotonic() > end:
                raise UserError(
                    f"--workdir={self._address} cannot be written: {error.strerror}; the checkpoints written so far "
                    "are intact. Once the store can be reached, run the same command again"
                ) from error
            time.sleep(PERIOD)

    def close(self) -> None:
        """Write back the rest. Does nothing before `start`, or when called again. Errors are those of `settle`."""
        if self._thread is not None and not self._closed:
            self._closed = True
            self._stop.set()
            self._thread.join()
            self.settle()
            self._programs.push(quiet=0)

    def push(self) -> None:
        """Write back what has changed. Raises OSError if it cannot be written."""
        with self._guard:
            if not self._may_write():
                raise OSError(0, "the lock could not be renewed: is the store reachable?")
            steps = _checkpoints(self._folder)  # listed first: the reports before a checkpoint are written before it
            now = written_back.stamps(self._folder, local=LOCAL)
            for name in sorted((name for name in now if self._sent.get(name) != now[name]), key=_rank):
                with contextlib.suppress(FileNotFoundError, sqlite3.Error):  # removed just now, or in use
                    content, address = written_back.content(self._folder / name), stores.join(self._address, name)
                    stores.write(address, content) if content else stores.delete(address)
                    self._sent[name] = now[name]
            written = [self._push_checkpoint(step, steps[step]) for step in steps]
            if written and all(written):
                for step in [step for step in self._known if step not in steps and not step.endswith(DAMAGED)]:
                    self._delete(step)

    def _push_checkpoint(self, step: str, position: bytes) -> bool:
        """Write back a checkpoint; return False if it was deleted meanwhile, since newer ones exist."""
        before = self._known.get(step)
        if before == position:
            return True
        address, place = stores.join(self._address, CHECKPOINTS, step), self._folder / CHECKPOINTS / step
        if before is None or _digests(before) != _digests(position):
            if step in self._known:
                self._delete(step)
            self._known[step] = None
            names = [name for name in written_back.stamps(place) if name != MARK]
            try:
                stores.in_parallel(
                    lambda name: stores.write(stores.join(address, name), (place / name).read_bytes()), names
                )
            except FileNotFoundError:
                return False
            if (position_of(place) or b"") != position:
                return False
        if position:
            stores.write(stores.join(address, MARK), position)
        self._known[step] = position
        return True

    def _delete(self, step: str) -> None:
        """Delete a checkpoint in the store, its position first."""
        address = stores.join(self._address, CHECKPOINTS, step)
        stores.delete(stores.join(address, MARK))
        stores.delete_all(address, stores.names(address))
        del self._known[step]

    def _tell(self, what: str) -> None:
        tqdm.write(f"--workdir={self._address} {what}", file=sys.stderr)

    def _tried(self) -> OSError | None:
        try:
            self.push()
        except OSError as error:
            return error
        return None

    def _run(self) -> None:
        """Write back until the end; a failing store is reported once and retried."""
        failing = False
        while not self._stop.wait(PERIOD):
            error = self._tried()
            if error is not None and not failing:
                self._tell(f"cannot be written now ({error.strerror})")
            if error is None and failing:
                self._tell("can be written again")
            failing = error is not None
            if not failing:
                self._programs.push()


_FETCHED = {"vocab", *READ_BACK}


def _rank(name: str) -> tuple[bool, bool, str]:
    """The order of writing: first what a checkpoint needs."""
    return name != "config.json", not name.startswith("vocab/"), name


def _checkpoints(folder: Path) -> dict[str, bytes]:
    """The checkpoints of the local copy that are complete, with their positions, and those put aside as damaged."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for place in sorted((folder / CHECKPOINTS).iterdir()):
            if place.name.removesuffix(DAMAGED).isdigit():
                position = position_of(place)
                if position is not None or place.name.endswith(DAMAGED):
                    found[place.name] = position or b""
    return found


def _digests(position: bytes) -> object:
    """The digests of the arrays of a checkpoint; if the position is damaged, an object that equals no other."""
    with contextlib.suppress(DamagedError, TypeError, KeyError):
        digests = parsed(position)["digests"]
        return digests["params"], digests["optimizer"]
    return object()
