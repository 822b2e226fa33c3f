"""One process at a time: a lock on a workdir or an output that ends with its process (docs/decisions.md).

In a folder it is `flock` on a file. File systems without flock get the file alone, which counts until its
process is known to have ended. An object store gets a claim: the record of its holder, which is renewed every `BEAT`
seconds. It is over once its process has ended or, if nobody here can know, once it has not changed for `SILENCE`
seconds of the reader's own clock: clocks are not compared. A new claim replaces exactly the one that was read, so that
only one of several processes takes it.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from convs2s_jax.core import files, stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import LOST
from convs2s_jax.core.places import joined
from convs2s_jax.training.run import run_folder

NAME = "lock"
UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
"""Error numbers of `flock` on file systems that do not have it."""
HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
BEAT = 10.0
"""Seconds between two renewals of a claim."""
SILENCE = 60.0
"""Seconds without a renewal after which a claim is over, unless its process is known to live or to have ended."""
CHECKS = 30
"""Number of checks in these seconds. Checks are counted: a process that is stopped meanwhile makes as many."""


class InUseError(UserError):
    """Another process holds a lock."""


TRAINING = "training there; stop it, wait until it ends, or use another workdir"


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that holds a lock.

    Attributes:
      host: name of its machine.
      process: its process id.
      since: time at which it took the lock, with the offset from UTC.
      machine: the boot and the namespaces in which the process id is valid; "" if they are unknown.
      started: start time of the process in the clock ticks of its machine; "" if it is unknown.
    """

    host: str
    process: int
    since: str
    machine: str
    started: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since},"

    def to_bytes(self) -> bytes:
        """Return the holder as one line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Return the holder in the first line of a file `lock` or of a claim; None if there is none."""
        try:
            values: dict[str, Any] = json.loads(content.partition(b"\n")[0])
            texts = {name: str(values[name]) for name in ("host", "since", "machine", "started")}
            return cls(process=int(values["process"]), **texts)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return None

    @property
    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if this one cannot know: on another machine or in another container."""
        if not (self.machine and self.started) or self.machine != _machine():
            return None
        return _started(self.process) == self.started


def this_process() -> Holder:
    """Return the calling process as a holder from now on."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    process = os.getpid()
    return Holder(socket.gethostname(), process, since, _machine(), _started(process) or "")


def holder_of(workdir: str) -> Holder | None:
    """Return who holds the workdir at a path or address, if that is known. Nothing is locked.

    Raises:
      OSError: its lock cannot be read, or there is none.
    """
    address = joined(workdir, NAME)
    return Holder.from_bytes(stores.read(address) if "://" in address else Path(address).read_bytes())


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a workdir in a folder. Folders created for it that are empty at the end are removed.

    Yields:
      A function that returns whether the workdir is still at its path.

    Raises:
      UserError: another process holds it, its file is not a lock, or the workdir cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with run_folder.writing(workdir):
            run_folder.provide(workdir, stack)
            is_there = stack.enter_context(held(str(workdir / NAME), f"--workdir={workdir}", TRAINING))
        yield is_there


def claimed(workdir: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """Hold a workdir in an object store, by its address, as `held` does."""
    return held(joined(workdir, NAME), f"--workdir={workdir}", TRAINING)


@contextlib.contextmanager
def held(place: str, name: str, use: str, *, patient: bool = True) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a path or address.

    If another process takes a lock in an object store, which it can after `SILENCE`, this one ends.

    Args:
      place: of the lock. Its folder exists.
      name: what it guards, for messages: flag and place, as in --workdir=runs/a.
      use: what its holder does, and what to do if that is another process, for messages.
      patient: whether to wait for a sign of life of a holder in an object store about which nothing is known.

    Yields:
      A function that returns whether it is still held: its file is at its path, or the last renewal is so recent that
      nobody can have taken it.

    Raises:
      InUseError: another process holds it.
      UserError: its file is not a lock.
      OSError: it cannot be written or read.
    """
    if "://" not in place:
        path = Path(place)
        descriptor = _taken(path, name, use)
        with _released(descriptor, path):
            yield lambda: files.is_at(descriptor, path)
        return
    claim, stop = _Claim(place, name, use, patient=patient), threading.Event()
    renewals = threading.Thread(target=claim.renew, args=(stop,), daemon=True)
    renewals.start()
    try:
        yield claim.is_fresh
    finally:
        stop.set()
        renewals.join()
        with contextlib.suppress(OSError):  # otherwise it is over when it has been silent
            claim.give_back()


def _taken(path: Path, name: str, use: str) -> int:
    """Return a descriptor of a lock, which names this process. Raises InUseError if another one holds it."""
    while True:
        descriptor, is_new = _opened(path)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                content = os.pread(descriptor, 4096, 0)
                if error.errno in HELD:
                    raise _in_use(name, use, content) from error
                if error.errno not in UNSUPPORTED:
                    raise
                if not is_new:
                    holder = Holder.from_bytes(content)
                    if holder is None or holder.is_alive is not False:
                        raise InUseError(f"{_in_use(name, use, content)}; if it has ended, delete {path}") from error
                    path.unlink(missing_ok=True)
            content = os.pread(descriptor, 4096, 0)
            if content and Holder.from_bytes(content) is None:
                raise UserError(f"{name}: its file {path.name} is not a lock: rename it")
            if not files.is_at(descriptor, path):  # its holder has just removed it: that lock guards nothing
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.write(descriptor, this_process().to_bytes())
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise


def _opened(path: Path) -> tuple[int, bool]:
    """Return a descriptor of a file, and whether it is new."""
    while True:
        with contextlib.suppress(FileExistsError):
            return files.no_link(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL), True
        with contextlib.suppress(FileNotFoundError):
            return files.no_link(str(path), os.O_RDWR), False


@contextlib.contextmanager
def _released(descriptor: int, path: Path) -> Iterator[None]:
    """Release a lock at the end. Forked children close it: one that outlives this process would keep it."""
    kept = [descriptor]

    def close() -> None:
        while kept:  # a child of the child has nothing to close: the number may be another file's by then
            os.close(kept.pop())

    os.register_at_fork(after_in_child=close)
    try:
        yield
    finally:
        kept.clear()
        with contextlib.suppress(OSError):
            if files.is_at(descriptor, path):  # not in another workdir of that name
                path.unlink()  # before it is released: nobody else can hold it yet
        os.close(descriptor)


class _Claim:
    """A claim of this process in an object store: an object whose first line is the holder."""

    def __init__(self, address: str, name: str, use: str, *, patient: bool = True) -> None:
        """Take a claim. Raises InUseError if another process has it, OSError if it cannot be written."""
        self._address, self._name, self._use = address, name, use
        self._holder = this_process().to_bytes()
        before = self._over(patient)
        self._written = time.monotonic()
        self._version = self._write(self._holder, before)
        if not self._version:
            raise _in_use(name, use, stores.read_version(self._address)[0])
        if stores.write_if(self._address, self._holder, before):  # a version that it no longer has
            stores.delete(self._address)
            raise OSError(errno.ENOTSUP, "it ignores the conditions of writes, which a lock needs")

    def is_fresh(self) -> bool:
        """Whether nobody can have taken the claim: a margin is left for writes that have begun."""
        return time.monotonic() - self._written < SILENCE / 2

    def renew(self, stop: threading.Event) -> None:
        """Renew the claim until `stop`; end this process if another one has taken it."""
        count = 0
        while not stop.wait(BEAT):
            with contextlib.suppress(OSError):  # a failing store does not end a run; others see the silence
                began, count = time.monotonic(), count + 1
                renewed = self._write(self._holder + f"{count}\n".encode(), self._version)
                if not renewed:
                    self._end_lost()
                else:
                    self._version, self._written = renewed, began

    def give_back(self) -> None:
        """Delete the claim. Raises OSError."""
        stores.write_if(self._address, None, self._version)

    def _write(self, content: bytes, version: bytes) -> bytes:
        """Replace a version of the claim; return the new one, or b"" if another process has replaced it."""
        if written := stores.write_if(self._address, content, version):
            return written
        now, newest = stores.read_version(
            self._address
        )  # of a request that was repeated, the first one may have succeeded
        ours = now is not None and now.partition(b"\n")[0] == content.partition(b"\n")[0]
        return newest if ours else b""

    def _over(self, patient: bool) -> bytes:
        """Return the version of the claim to replace, once it is over. Raises InUseError if it is not."""
        content, version = stores.read_version(self._address)
        holder = Holder.from_bytes(content or b"")
        alive = holder.is_alive if holder else None
        if alive or (content is not None and alive is None and not patient):
            raise _in_use(self._name, self._use, content)
        if content is not None and alive is None:
            sys.stderr.write(
                f"{self._name}: {holder or 'another process'} claims it; waiting {SILENCE:.0f} s for a sign of life\n"
            )
            for _ in range(CHECKS):
                time.sleep(SILENCE / CHECKS)
                now, newest = stores.read_version(self._address)
                if now is None:
                    return newest
                if newest != version:
                    raise _in_use(self._name, self._use, now)
        return version

    def _end_lost(self) -> None:
        """End this process, which was silent for so long that another one has taken its place."""
        taker = Holder.from_bytes(stores.read_version(self._address)[0] or b"")
        sys.stderr.write(
            f"{self._name}: this process was silent for more than {SILENCE:.0f} s, and "
            f"{taker or 'another process'} has taken its place; this process exits\n"
        )
        sys.stderr.flush()
        os._exit(LOST)


def _in_use(name: str, use: str, content: bytes | None) -> InUseError:
    """Return the error for a lock, with this content, that another process holds."""
    return InUseError(f"{name} is in use: {Holder.from_bytes(content or b'') or 'another process'} is {use}")


def _machine() -> str:
    """Return this boot of this machine, and the namespaces of process ids and of clocks; "" if one is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time"))])
    except OSError:
        return ""


def _started(process: int) -> str | None:
    """Return the start time of a process of this machine in clock ticks; None if it has ended."""
    try:
        line = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()  # after the name of the program, which may contain anything
    return None if fields[0] in "ZX" else fields[19]
