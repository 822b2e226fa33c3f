"""One trainer in a workdir: a lock that ends with its process (decision 0015).

It is `flock` on the file `lock`. File systems without flock get claims with a heartbeat (`lease`).
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.locks import lease
from convs2s_jax.training.run.processes.holder import Holder, in_use, this_process

NAME = "lock"
UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
"""Error numbers of `flock` on file systems that do not have it."""
HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Hold the lock of a workdir. Folders created for it that are empty at the end are removed.

    Raises:
      UserError: another process holds it, or the workdir cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with run_folder.writing(workdir):
            run_folder.provide(workdir, stack)
            descriptor = _flock(workdir)
            if descriptor is None:
                stack.enter_context(lease.held(workdir, NAME))
            else:
                stack.callback(_release, descriptor, workdir / NAME)
                stack.enter_context(_not_in_children(descriptor))
        yield


def may_be_locked(workdir: Path) -> bool:
    """Whether a process may hold the lock. False if none does; also True if its holder was killed."""
    return (workdir / NAME).exists() or lease.is_claimed(workdir, NAME)


def _flock(workdir: Path) -> int | None:
    """A descriptor of the file `lock` with an exclusive flock; None if the file system has no flock."""
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
                raise in_use(workdir, Holder.from_bytes(content)) from error
            if error.errno not in UNSUPPORTED:
                raise
            if not content:
                path.unlink(missing_ok=True)
            return None


def _release(descriptor: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()  # before it is released: nobody else can hold it yet
    os.close(descriptor)


@contextlib.contextmanager
def _not_in_children(descriptor: int) -> Iterator[None]:
    """Close a descriptor in children that are forked inside: one that outlives this process would keep the lock."""
    kept = [descriptor]

    def close() -> None:
        while kept:  # a child of the child has nothing to close: the number may be another file's by then
            os.close(kept.pop())

    os.register_at_fork(after_in_child=close)
    try:
        yield
    finally:
        kept.clear()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
