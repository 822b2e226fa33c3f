"""Write the output file: complete lines only, in the order of the input, even after errors and interrupts."""

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from convs2s_jax.core import guard
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import check_replaceable
from convs2s_jax.core.guard import held_interrupts, writing_remedy

Write = Callable[[Sequence[str]], None]
Note = Callable[[Sequence[bytes]], None]


_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"(?:/dev|/proc/self|/proc/thread-self)/fd/(\d+)")


def descriptor_of(name: str) -> int | None:
    """Return the open descriptor that a name such as /dev/stdout stands for.

    It may be a file to which others write as well, so it must not be opened again or truncated.
    """
    found = _DESCRIPTOR.fullmatch(name)
    return int(found[1]) if found else _STREAMS.get(name)


def check_writable(name: str) -> None:
    """Raise UserError before decoding starts if the output cannot be written. Nothing is changed."""
    path = Path(name)
    descriptor = descriptor_of(name)
    if name == "-" or descriptor == 1:
        guard.check_open(sys.stdout)
        return
    if path.is_fifo():
        return
    try:
        if descriptor is not None:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "it is open for reading only")
        elif path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:
            check_replaceable(path)
    except OSError as error:
        raise UserError(f"--output={name} cannot be written: {error.strerror}; choose another file") from error


def check_not_overwriting(name: str, files: Iterable[str], whose: str) -> None:
    """Raise UserError if the output is one of these files, under any name; `whose` describes them in the message."""
    target = Path(name)
    if name == "-" or not target.is_file():
        return
    for file in files:
        if Path(file).is_file() and target.samefile(file):
            raise UserError(f"--output={name} is a file of {whose}, which would be overwritten; choose another file")


@contextlib.contextmanager
def opened(name: str, *, keep: int = 0, note: Note = lambda _: None) -> Iterator[Write]:
    """Open a file to which results are appended; "-" is standard output.

    `write` accepts one string of complete lines per result and returns when they have been written. Interrupts are
    deferred until then. If the disk is full, complete results are kept and a partial one is removed. The file is not
    touched before the first `write`, or before the block ends without an error.

    Args:
      name: name of the file.
      keep: number of bytes to keep at the beginning; the rest is removed.
      note: called with results once they are in the file, and with none before the file is first touched.

    Yields:
      `write`.

    Raises:
      UserError: the file cannot be written.
    """
    if name == "-":
        yield _to_stdout
        return
    with contextlib.ExitStack() as stack:
        file: list[int] = []

        def write(results: Sequence[str]) -> None:
            with held_interrupts():
                try:
                    if not file:
                        note([])
                        file.append(_open(name, keep))
                        stack.callback(os.close, file[0])
                    data = [result.encode() for result in results]
                    _append(file[0], data, regular=descriptor_of(name) is None and _is_regular(file[0]))
                    note(data)
                except BrokenPipeError:
                    raise
                except OSError as error:
                    raise _unwritable(name, error) from error

        yield write
        write([])


def _to_stdout(results: Sequence[str]) -> None:
    with held_interrupts():
        for result in results:
            sys.stdout.buffer.write(result.encode())
        sys.stdout.buffer.flush()


def _is_regular(file: int) -> bool:
    """Return whether a descriptor is a regular file: devices and pipes cannot be truncated."""
    return stat.S_ISREG(os.fstat(file).st_mode)


def _open(name: str, keep: int) -> int:
    if (given := descriptor_of(name)) is not None:
        return os.dup(given)
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o666)
    if _is_regular(file):
        os.ftruncate(file, keep)
        os.lseek(file, keep, os.SEEK_SET)
    return file


def _append(file: int, results: Sequence[bytes], *, regular: bool) -> None:
    """Write all results; if that fails on a regular file, as many complete ones as fit."""
    begin = os.fstat(file).st_size
    data = memoryview(b"".join(results))
    try:
        while data:
            data = data[os.write(file, data) :]
        if regular:
            os.fsync(file)  # before anything records the results as written
    except BaseException:
        if regular:
            end, size = begin, os.fstat(file).st_size
            for result in results:
                if end + len(result) > size:
                    break
                end += len(result)
            os.ftruncate(file, end)
        raise


def can_be_resumed(name: str) -> bool:
    """Return whether --resume can continue an output. What went into a pipe or device cannot be read back."""
    return name != "-" and descriptor_of(name) is None and (Path(name).is_file() or not Path(name).exists())


def _unwritable(name: str, error: OSError) -> UserError:
    goes_on = " (the lines written so far are complete, and --resume continues)" if can_be_resumed(name) else ""
    remedy = writing_remedy(error, "choose another file")
    return UserError(f"--output={name} cannot be written: {error.strerror}; {remedy}{goes_on}")
