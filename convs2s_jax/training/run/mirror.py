"""A workdir that is open for a training: a folder, or the local copy of a workdir in an object store.

The run works in the copy as in any workdir, and process 0 writes back what changes. A checkpoint is written back file
by file, its position last. JAX caches the programs that it compiles in the copy too (docs/decisions.md). They are
written back at the end, so that other machines, which fetch them when they start, need not compile them.
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from convs2s_jax.core import compiled_programs, local_copies, stores
from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import NO_ROOM, writing_remedy
from convs2s_jax.core.places import check_utf8, joined, scheme_of
from convs2s_jax.training.run import lock, store_copy
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.reports.trackers import DATABASE
from convs2s_jax.training.run.run_folder import DAMAGED, FILES
from convs2s_jax.training.run.store_copy import CHECKPOINTS, MARK, position_of
from convs2s_jax.training.step import TrainState

PERIOD = 5.0
"""Seconds between two checks for changes."""
PATIENCE = 600.0
"""Seconds for which writing back is retried before a run fails."""
PROGRAMS = "compiled"
"""Folder of compiled programs; each kind of processor has its own inside."""
Stamp = tuple[int, int]
"""Size of a file and time of its last change: different once it has changed."""
LOCAL = ("cache", CHECKPOINTS)
"""Folders that are not written back with the other files: tokenised text stays local, and checkpoints have an order."""
LEFT = (".", lock.NAME, f"{DATABASE}-")
"""Prefixes of files that are not written back: temporary ones, the lock, what SQLite keeps beside a database in use."""


@dataclasses.dataclass
class Workdir:
    """A workdir that is open for a training.

    Attributes:
      folder: where its files are on this machine.
      address: of the workdir in an object store; "" if the folder is the workdir.
      mirror: writes them back into an object store; None if the folder is the workdir, and on all processes but the
        primary one.
      shared: whether all processes share the folder. Otherwise each has a copy, and the primary process saves.
    """

    folder: Path
    address: str = ""
    mirror: "Mirror | None" = None
    shared: bool = True
    _settled: int = 0

    def settle(self) -> None:
        """Wait until all earlier checkpoints are in the workdir. Raises UserError as `Mirror.settle`."""
        if self.address:
            self._settled += 1
            distributed.primary_only(f"settled {self._settled}", self.mirror.settle if self.mirror else lambda: None)

    def refresh(self) -> None:
        """Make the finished checkpoints readable on all processes."""
        self.settle()
        self.fetch()

    def fetch(self) -> None:
        """Update the copies of the other processes. Raises UserError on all processes if one cannot do it."""
        refused = None
        if not (self.shared or distributed.is_primary()):
            try:
                _make(self.folder)
                fetch(self.address, self.folder)
            except OSError as error:
                refused = _unusable(self.address, self.folder, error)
        if not distributed.true_on_all(refused is None):
            raise refused or UserError(f"--workdir={self.address} cannot be copied by another process: it reports why")

    def to_save(self, mesh: Mesh, state: TrainState) -> TrainState:
        """Return a state as it is saved: each process's shards in a shared folder, otherwise all of it, on the host."""
        if self.shared:
            return state
        return jax.tree.map(lambda x: np.asarray(jax.device_get(distributed.local(mesh, x))), state)


@contextlib.contextmanager
def opened(workdir: Path | str) -> Iterator[Workdir]:
    """Open a workdir for training. One in an object store is locked and copied; `Mirror.start` starts writing back.

    At the end the other processes wait until the primary one has written everything, which may take longer than the
    time after which a silent process counts as lost.

    Raises:
      UserError: the store cannot be used, or another process trains there.
    """
    address = str(workdir)
    check_utf8("--workdir", address)
    if not scheme_of(address):
        yield Workdir(Path(workdir))
        distributed.barrier("done")
        return
    address = address.rstrip("/")
    folder = folder_of(address, os.environ)
    with contextlib.ExitStack() as stack:
        stack.enter_context(local_copies.address_in_errors(folder, address))
        found = distributed.primary_only("fetched", lambda: stack.enter_context(_held(address, folder)))
        place = Workdir(folder, address=address, mirror=found, shared=not distributed.is_multi_process())
        place.fetch()
        yield place
        distributed.primary_only("written back", found.close if found else lambda: None)


def folder_of(address: str, environment: Mapping[str, str]) -> Path:
    """The folder of this process's copy of a workdir: in the user's cache folder, which XDG_CACHE_HOME sets."""
    try:
        caches = compiled_programs.folder_of(environment).with_name("convs2s_jax-stores")
    except RuntimeError as error:
        raise UserError(f"--workdir={address}: no home folder for its local copy; set XDG_CACHE_HOME") from error
    own = "" if distributed.is_primary() else f"-{jax.process_index()}"
    return caches / f"{address.rpartition('/')[2][:100]}-{checksum(address.encode())}{own}"


def keep_programs(workdir: str, environment: Mapping[str, str]) -> None:
    """Cache what this process compiles in the local copy of a workdir in a store, from where it is written back.

    Call this before the first program. JAX's own settings take precedence, as in `compiled_programs.keep`.
    """
    folder = folder_of(workdir.rstrip("/"), environment)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = compiled_programs.keep(environment, folder / PROGRAMS)
    # otherwise the path of the copy, which differs between machines, would be part of a program's key
    if kept is not None and "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES" not in environment:
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def fetch(address: str, folder: Path) -> tuple[list[str], dict[str, bytes | None]]:
    """Update the local copy of a workdir to what the store has: what a run reads when it continues.

    Args:
      address: of the workdir, which a process of this run holds.
      folder: of the copy. Programs and checkpoints of an earlier start are reused; other checkpoints are removed.

    Returns:
      The names of the objects in the store, and its checkpoints as `store_copy.update` returns them.

    Raises:
      OSError: something cannot be read or written, or the lock is not listed, as little as other objects then.
    """
    found = stores.names(address)
    if lock.NAME not in found:
        raise stores.not_listed(address)
    for path in [*(folder / name for name in {*FILES} - {*LOCAL}), *folder.glob(f"{DATABASE}-*")]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    programs = f"{PROGRAMS}/{compiled_programs.processor()}/"
    cached: Any = jax.config  # its attributes are created when JAX starts
    uses_programs = cached.jax_compilation_cache_dir == str(folder / programs)

    def wanted(name: str) -> bool:
        if name.startswith(programs):
            return uses_programs and not (folder / name).exists()
        return (name in FILES and name != lock.NAME) or name.startswith("vocab/")

    stores.in_parallel(lambda name: local_copies.fetch(address, folder, name), filter(wanted, found))
    store_copy.set_origin(folder, "--workdir", address)
    return found, store_copy.update(folder, address, found)


class Mirror:
    """Writes back what a run changes in the local copy of its workdir."""

    def __init__(
        self,
        address: str,
        folder: Path,
        fetched: tuple[list[str], dict[str, bytes | None]],
        may_write: Callable[[], bool],
    ) -> None:
        """Start with a copy that matches the store.

        Args:
          address: of the workdir.
          folder: of the copy.
          fetched: the result of `fetch`.
          may_write: whether the workdir is still held by this process.
        """
        self._address, self._folder, self._may_write = address, folder, may_write
        names, self._known = fetched
        self._sent = {name: stamp for name, stamp in _changing(folder).items() if name in {*names}}
        self._guard, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

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
                what = f"cannot be written ({error.strerror}); retrying for up to {PATIENCE / 60:.0f} minutes"
                tqdm.write(f"--workdir={self._address} {what}", file=sys.stderr)
            if time.monotonic() > end:
                raise UserError(
                    f"--workdir={self._address} cannot be written: {error.strerror}; the checkpoints written so far "
                    "are intact. Once the store can be reached, run the same command again"
                ) from error
            time.sleep(PERIOD)

    def close(self) -> None:
        """Write back the rest. Does nothing before `start`, or when called again. Errors are those of `settle`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()
            self.settle()
            with contextlib.suppress(OSError):  # these only save time, or are a tracker's
                self._write({name: stamp for name, stamp in _changing(self._folder).items() if _is_for_end(name)})

    def push(self) -> None:
        """Write back what has changed. Raises OSError if it cannot be written."""
        with self._guard:
            if not self._may_write():
                raise OSError(0, "the lock could not be renewed: is the store reachable?")
            steps = _checkpoints(self._folder)  # listed first: the reports before a checkpoint are written before it
            now = {name: stamp for name, stamp in _changing(self._folder).items() if not _is_for_end(name)}
            # first what a checkpoint needs
            order = sorted(now, key=lambda name: (name != "config.json", not name.startswith("vocab/"), name))
            self._write({name: now[name] for name in order})
            written = [self._push_checkpoint(step, steps[step]) for step in steps]
            if written and all(written):
                for step in [step for step in self._known if step not in steps and not step.endswith(DAMAGED)]:
                    self._delete(step)

    def _write(self, files: dict[str, Stamp]) -> None:
        """Write back files if they have changed. Raises OSError if one cannot be written."""
        for name, stamp in files.items():
            if self._sent.get(name) != stamp:
                with contextlib.suppress(FileNotFoundError):  # removed just now
                    content, address = (self._folder / name).read_bytes(), joined(self._address, name)
                    if name.endswith((".jsonl", ".log")):  # these grow: only their complete lines
                        content = content[: content.rfind(b"\n") + 1]
                    stores.write(address, content) if content else stores.delete(address)
                    self._sent[name] = stamp

    def _push_checkpoint(self, step: str, position: bytes) -> bool:
        """Write back a checkpoint; return False if it was deleted meanwhile, since newer ones exist."""
        before = self._known.get(step)
        if before == position:
            return True
        address, place = joined(self._address, CHECKPOINTS, step), self._folder / CHECKPOINTS / step
        if step in self._known:
            self._delete(step)
        self._known[step] = None
        files = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
        names = [name for name in files if name != MARK]
        try:
            stores.in_parallel(lambda name: stores.write(joined(address, name), (place / name).read_bytes()), names)
        except FileNotFoundError:
            return False
        if (position_of(place) or b"") != position:
            return False
        if position:
            stores.write(joined(address, MARK), position)
        self._known[step] = position
        return True

    def _delete(self, step: str) -> None:
        """Delete a checkpoint in the store, its position first."""
        address = joined(self._address, CHECKPOINTS, step)
        stores.delete(joined(address, MARK))
        stores.in_parallel(lambda name: stores.delete(joined(address, name)), stores.names(address))
        del self._known[step]

    def _tried(self) -> OSError | None:
        try:
            self.push()
        except OSError as error:
            return error
        return None

    def _run(self) -> None:
        """Write back until the end. What fails is tried again; `settle` reports it."""
        while not self._stop.wait(PERIOD):
            self._tried()


@contextlib.contextmanager
def _held(address: str, folder: Path) -> Iterator[Mirror]:
    """Hold the lock of a workdir in a store, copy the workdir, and write back what has changed at the end."""
    with contextlib.ExitStack() as stack:
        try:
            _make(folder)
            is_fresh = stack.enter_context(lock.claimed(address))
            found = Mirror(address, folder, fetch(address, folder), is_fresh)
        except OSError as error:
            raise _unusable(address, folder, error) from error
        with contextlib.closing(found):
            yield found


def _make(folder: Path) -> None:
    """Create the folder of the copy. Raises OSError if this process cannot write there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _unusable(address: str, folder: Path, error: OSError) -> UserError:
    """Return the error for a copy that cannot be written, or a store that cannot be used."""
    if error.errno in NO_ROOM or str(error.filename).startswith(str(folder)):
        remedy = writing_remedy(error, "set XDG_CACHE_HOME to another folder")
        what = f"its local copy in {folder.parent} cannot be written: {error.strerror}; {remedy}"
        return UserError(f"--workdir={address}: {what}")
    return stores.unusable("--workdir", address, error)


def _changing(folder: Path) -> dict[str, Stamp]:
    """Return the stamps of the files in a copy that are written back, by their paths there."""
    found = {}
    for root, folders, names in os.walk(folder):
        if Path(root) == folder:
            folders[:] = [name for name in folders if name not in LOCAL]
        for path in (Path(root, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if not name.startswith(LEFT) and "/." not in name:
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    found[name] = status.st_size, status.st_mtime_ns
    return dict(sorted(found.items()))


def _is_for_end(name: str) -> bool:
    """Whether a file is written back at the end only, since it may be half written before: programs, a database."""
    return name.startswith(f"{PROGRAMS}/") or name == DATABASE


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
