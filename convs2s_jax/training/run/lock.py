"""One trainer in a workdir: a lock that ends with its process (docs/decisions.md).

In a folder it is `flock` on the file `lock`. File systems without flock, and object stores, get a claim: the record of
its holder, which is renewed every `BEAT` seconds. A claim is over once its process has ended or, if nobody here can
know, once it has not changed for `SILENCE` seconds of the reader's own clock: clocks are not compared. A new claim
replaces exactly the one that was read, so that only one of several processes takes it.
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
from typing import Any, NamedTuple, Self

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import LOST
from convs2s_jax.core.places import joined
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError

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
OVER = b"over\n"
"""Content of a claim in a folder that was given back."""


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
        except (ValueError, KeyError, TypeError, RecursionError):
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


def may_be_locked(workdir: Path) -> bool:
    """Whether a process may hold the lock of a folder. False if none does; also True if its holder was killed."""
    return (workdir / NAME).exists() or _InFolder(workdir).read().content is not None


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Hold the lock of a workdir in a folder. Folders created for it that are empty at the end are removed.

    Raises:
      UserError: another process holds it, or the workdir cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with run_folder.writing(workdir):
            run_folder.provide(workdir, stack)
            descriptor = _flock(workdir)
            if descriptor is None:
                stack.enter_context(_claimed(workdir, _InFolder(workdir)))
            else:
                stack.enter_context(_released(descriptor, workdir / NAME))
        yield


@contextlib.contextmanager
def claimed(address: str) -> Iterator[Callable[[], bool]]:
    """Hold a workdir in an object store. If another process takes it, which it can after `SILENCE`, this one ends.

    Yields:
      A function that returns whether the last renewal is so recent that nobody can have taken the workdir.

    Raises:
      UserError: another process holds it.
      OSError: the claim cannot be written or read.
    """
    with _claimed(address, _InStore(address)) as is_fresh:
        yield is_fresh


def _flock(workdir: Path) -> int | None:
    """Return a descriptor of the file `lock` with an exclusive flock; None if the file system has no flock."""
    path = workdir / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):  # its holder has just removed it: that lock guards nothing
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.write(descriptor, this_process().to_bytes())
            return descriptor
        except OSError as error:
            content = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            if error.errno in HELD:
                raise _in_use(workdir, content) from error
            if error.errno not in UNSUPPORTED:
                raise
            if not content:
                path.unlink(missing_ok=True)
            return None


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
            path.unlink()  # before it is released: nobody else can hold it yet
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class Claim(NamedTuple):
    """A claim as it was read or written.

    Attributes:
      content: its holder, then a line with the number of its renewals; None if nobody holds the workdir.
      version: what distinguishes it from earlier and later ones.
    """

    content: bytes | None
    version: Any


class _InFolder:
    """Claims in a folder: the files lock-1, lock-2 and so on, of which the last one counts; its number is the version.

    It is never removed, so no number is used twice, and the file system lets only one process create the next one.
    """

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir

    def read(self) -> Claim:
        """Return the claim that counts."""
        numbers = [path.name.removeprefix(f"{NAME}-") for path in self._workdir.glob(f"{NAME}-*")]
        number = max((int(text) for text in numbers if text.isascii() and text.isdigit()), default=0)
        try:
            content = self._path(number).read_bytes() if number else OVER
        except FileNotFoundError:  # a newer one has replaced it meanwhile
            return self.read()
        return Claim(None if content == OVER else content, number)

    def replace(self, claim: Claim, content: bytes) -> Claim | None:
        """Return a new claim in the place of one that counts; None if another process was quicker."""
        number = claim.version + 1
        try:
            with self._path(number).open("xb") as file:
                file.write(content)
        except FileExistsError:
            return None
        if self.read().version != number:  # it was claimed, and given back or lost, since `claim` was read
            self._path(number).unlink()
            return None
        for earlier in range(max(1, number - 10), number):
            self._path(earlier).unlink(missing_ok=True)
        return Claim(content, number)

    def renew(self, claim: Claim, content: bytes) -> Claim | None:
        """Change the content of a claim. Return it; None if it does not count any more."""
        if self.read().version != claim.version:
            return None
        with self._path(claim.version).open("r+b") as file:  # it is not created anew
            file.write(content)
        return Claim(content, claim.version)

    def give_back(self, claim: Claim) -> None:
        with self._path(claim.version).open("r+b") as file:
            file.truncate()
            file.write(OVER)

    def _path(self, number: int) -> Path:
        return self._workdir / f"{NAME}-{number}"


class _InStore:
    """The same in an object store: the object `lock`, written only if it still is the one that was read."""

    def __init__(self, workdir: str) -> None:
        self._address = joined(workdir, NAME)

    def read(self) -> Claim:
        return Claim(*stores.read_version(self._address))

    def replace(self, claim: Claim, content: bytes) -> Claim | None:
        taken = self.renew(claim, content)
        if taken and stores.write_if(self._address, content, claim.version):  # a version that it no longer has
            stores.delete(self._address)
            raise OSError(errno.ENOTSUP, "it ignores the conditions of writes, which the lock of a workdir needs")
        return taken

    def renew(self, claim: Claim, content: bytes) -> Claim | None:
        if version := stores.write_if(self._address, content, claim.version):
            return Claim(content, version)
        now = self.read()  # of a request that was repeated, the first one may have succeeded
        ours = now.content is not None and now.content.partition(b"\n")[0] == content.partition(b"\n")[0]
        return now if ours else None

    def give_back(self, claim: Claim) -> None:
        stores.write_if(self._address, None, claim.version)


@contextlib.contextmanager
def _claimed(workdir: Path | str, claims: _InFolder | _InStore) -> Iterator[Callable[[], bool]]:
    """Take, renew and give back the claim on a workdir. It stays after a second signal: its process has ended."""
    held = _Held(workdir, claims)
    stop = threading.Event()
    renewals = threading.Thread(target=held.renew, args=(stop,), daemon=True)
    renewals.start()
    at_once = False
    try:
        yield held.is_fresh
    except EndedAtOnceError:
        at_once = True  # as by a kill: what is being written may reach the store a moment later
        raise
    finally:
        stop.set()
        if not at_once:
            renewals.join()
            with contextlib.suppress(OSError):  # otherwise it is over when it has been silent
                claims.give_back(held.claim)


class _Held:
    """A claim of this process."""

    def __init__(self, workdir: Path | str, claims: _InFolder | _InStore) -> None:
        """Take a claim. Raises UserError if another process holds the workdir, OSError if it cannot be written."""
        self._workdir, self._claims, self._holder = workdir, claims, this_process().to_bytes()
        before = self._over()
        self._written = time.monotonic()
        taken = claims.replace(before, self._holder)
        if taken is None:
            raise _in_use(workdir, claims.read().content)
        self.claim = taken

    def is_fresh(self) -> bool:
        """Whether nobody can have taken the workdir: a margin is left for writes that have begun."""
        return time.monotonic() - self._written < SILENCE / 2

    def renew(self, stop: threading.Event) -> None:
        """Renew the claim until `stop`; end this process if another one has taken the workdir."""
        count = 0
        while not stop.wait(BEAT):
            with contextlib.suppress(OSError):  # a failing store does not end a run; others see the silence
                began, count = time.monotonic(), count + 1
                renewed = self._claims.renew(self.claim, self._holder + f"{count}\n".encode())
                if renewed is None:
                    self._end_lost()
                else:
                    self.claim, self._written = renewed, began

    def _over(self) -> Claim:
        """Return the claim to replace, once it is over. Raises UserError if it is not."""
        claim = self._claims.read()
        holder = Holder.from_bytes(claim.content or b"")
        alive = holder.is_alive if holder else None
        if alive:
            raise _in_use(self._workdir, claim.content)
        if claim.content is not None and alive is None:
            sys.stderr.write(
                f"--workdir={self._workdir}: {holder or 'another process'} claims it; waiting {SILENCE:.0f} s for a "
                "sign of life\n"
            )
            for _ in range(CHECKS):
                time.sleep(SILENCE / CHECKS)
                now = self._claims.read()
                if now.content is None:
                    return now
                if now != claim:
                    raise _in_use(self._workdir, now.content)
        return claim

    def _end_lost(self) -> None:
        """End this process, which was silent for so long that another one has taken its place."""
        taker = Holder.from_bytes(self._claims.read().content or b"")
        sys.stderr.write(
            f"--workdir={self._workdir}: this process was silent for more than {SILENCE:.0f} s, and "
            f"{taker or 'another process'} has taken its place; this process exits\n"
        )
        sys.stderr.flush()
        os._exit(LOST)


def _in_use(workdir: Path | str, content: bytes | None) -> UserError:
    """Return the error for a workdir whose lock, with this content, another process holds."""
    who = Holder.from_bytes(content or b"") or "another process"
    return UserError(
        f"--workdir={workdir} is in use: {who} is training there; stop it, wait until it ends, or use another workdir"
    )


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
