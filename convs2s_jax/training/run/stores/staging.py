"""A workdir as a folder on this machine: the folder itself, or the local copy of one in an object store."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core import compiled_programs, stores
from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import writing_remedy
from convs2s_jax.core.local_copies import address_in_errors
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run.locks import store_lock
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.stores import mirror, stored_programs
from convs2s_jax.training.run.stores.mirror import Mirror
from convs2s_jax.training.step import TrainState


@dataclasses.dataclass
class Workdir:
    """A workdir that is open for a training.

    Attributes:
      folder: where its files are on this machine.
      address: of the workdir in an object store; "" if the folder is the workdir.
      mirror: writes them back into an object store; None if the folder is the workdir, and on all processes but the
        primary one.
      shared: whether all processes share one folder. Otherwise there are several copies, and the primary process saves.
      fetches: whether this process fetches the copy that it shares with others on its machine. That of the primary
        process is fetched when the run is opened.
    """

    folder: Path
    address: str = ""
    mirror: Mirror | None = None
    shared: bool = True
    fetches: bool = False
    _settled: int = 0

    def settle(self) -> None:
        """Wait until all earlier checkpoints are in the workdir. Raises UserError as `Mirror.settle`."""
        if self.address:
            self._settled += 1
            distributed.primary_only(f"settled {self._settled}", self.mirror.settle if self.mirror else lambda: None)

    def refresh(self) -> None:
        """Make the finished checkpoints readable on all processes."""
        self.settle()
        if not self.shared:
            _fetched_everywhere(self.address, self.folder, fetches=self.fetches)

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
    if not scheme_of(address):
        yield Workdir(Path(workdir))
        distributed.barrier("done")
        return
    address = address.rstrip("/")
    folder = folder_of(address, os.environ)
    with contextlib.ExitStack() as stack:
        stack.enter_context(address_in_errors(folder, address))
        found = distributed.primary_only("fetched", lambda: stack.enter_context(_held(address, folder)))
        _made_everywhere(address, folder)
        together = distributed.sharing(folder)
        shared = distributed.true_on_all(len(together) == jax.process_count())
        first = together[0] == jax.process_index()
        fetches = first and not distributed.is_primary()
        if not shared:
            _fetched_everywhere(address, folder, fetches=fetches)
        if first:
            stored_programs.fetch(address, folder)
        yield Workdir(folder, address=address, mirror=found, shared=shared, fetches=fetches)
        distributed.primary_only("written back", found.close if found else lambda: None)


def folder_of(address: str, environment: Mapping[str, str]) -> Path:
    """The folder of the local copy of a workdir: in the user's cache folder, which XDG_CACHE_HOME sets."""
    try:
        caches = compiled_programs.folder_of(environment).with_name("convs2s_jax-stores")
    except RuntimeError as error:
        raise UserError(f"--workdir={address}: no home folder for its local copy; set XDG_CACHE_HOME") from error
    return caches / f"{address.rpartition('/')[2][:100]}-{checksum(address.encode())}"


def keep_programs(workdir: str, environment: Mapping[str, str]) -> None:
    """Cache what this process compiles in the local copy of a workdir in a store, from where it is written back.

    Call this before the first program. JAX's own settings take precedence, as in `compiled_programs.keep`.
    """
    folder = folder_of(workdir.rstrip("/"), environment)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = compiled_programs.keep(environment, folder / stored_programs.FOLDER)
    # otherwise the path of the copy, which differs between machines, would be part of a program's key
    if kept is not None and "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES" not in environment:
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


@contextlib.contextmanager
def _held(address: str, folder: Path) -> Iterator[Mirror]:
    """Hold the lock of a workdir in a store, copy the workdir, and write back what has changed at the end."""
    try:
        with contextlib.ExitStack() as stack:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_fresh = stack.enter_context(store_lock.held(address))
            found = Mirror(address, folder, mirror.fetch(address, folder, marker=store_lock.PREFIX), is_fresh)
            stack.enter_context(found)
            entered = stack.pop_all()
    except OSError as error:
        raise stores.unusable("--workdir", address, error) from error
    with entered:
        yield found


def _made_everywhere(address: str, folder: Path) -> None:
    """Create the folder of the copy on all processes. All raise UserError if one cannot write there."""
    refused = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = writing_remedy(error, "set XDG_CACHE_HOME to another folder")
        refused = UserError(
            f"--workdir={address}: its local copy in {folder} cannot be written: {error.strerror}; {remedy}"
        )
    _agree(refused, address)


def _agree(refused: UserError | None, address: str) -> None:
    """Raise UserError on all processes if one has an error."""
    if not distributed.true_on_all(refused is None):
        raise refused or UserError(f"--workdir={address} cannot be copied by another process, which reports why")


def _fetched_everywhere(address: str, folder: Path, *, fetches: bool) -> None:
    """Copy a workdir into each folder but that of the primary process, which has it: one process per folder `fetches`.

    Raises:
      UserError: on all processes, if one cannot copy it.
    """
    refused = None
    if fetches:
        try:
            mirror.fetch(address, folder, marker=store_lock.PREFIX)
        except OSError as error:
            refused = stores.unusable("--workdir", address, error)
    _agree(refused, address)
