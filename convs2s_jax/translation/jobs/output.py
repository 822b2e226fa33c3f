"""Write the output file by whole windows, and the record beside it from which --resume continues.

`OUTPUT.resume.json` says what the output depends on and how far it got. It is written before the output is touched and
again after each window, when its results have been written. It covers a prefix of the output, with its number of lines,
size and checksum, and with digests of the lines that were read for it. The rest belongs to an unfinished window and is
computed again. Therefore windows begin where they would have begun without an interrupt, the batches are the same, and
so are the bytes (docs/decisions.md).
"""

import contextlib
import dataclasses
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core import checksums, files, stores
from convs2s_jax.core.checksums import DamagedError
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import held_interrupts, writing_remedy
from convs2s_jax.core.places import scheme_of

SUFFIX = ".resume.json"
ANEW = "delete the output, or choose another one"
STDOUT = ("-", "/dev/stdout", "/dev/fd/1")
_STREAMS = ("/dev/", "/proc/")

Dependencies = Mapping[str, Any]
"""What the bytes of an output depend on: flags ("--beam_size") with their values, and digests of whole contents."""
Write = Callable[..., None]
"""Appends the lines of each result of a window; a second argument are digests of all lines read for the output."""
_BLOCK = 1 << 20


@dataclasses.dataclass
class Finished:
    """The whole windows of an output. `opened` adds those that it writes.

    Attributes:
      lines: number of results.
      size: number of bytes.
      content: their checksum so far (`checksums.stream`).
      read: digests of the lines that were read for them, by label.
    """

    lines: int = 0
    size: int = 0
    content: Any = dataclasses.field(default_factory=checksums.stream)
    read: Mapping[str, int] = dataclasses.field(default_factory=dict)


def record_of(output: str) -> Path | None:
    """Return the path of the record; None if the output is standard output, a pipe or a device."""
    if output in STDOUT or (Path(output).exists() and not Path(output).is_file()):
        return None
    path = Path(os.path.realpath(output))
    return path.with_name(path.name + SUFFIX)


def check_writable(name: str) -> None:
    """Raise UserError before decoding starts if the output cannot be written. Nothing is changed."""
    path = Path(name)
    if name not in STDOUT and not path.is_fifo():  # opening one waits for a reader
        with files.writing(f"--output={name}", "choose another file"):
            if path.exists():
                os.close(os.open(path, os.O_WRONLY))
                names = path.stat().st_nlink if path.is_file() and not name.startswith(_STREAMS) else 1
                check(
                    names == 1,
                    f"--output={name} is one of {names} names of a file (hard links), which would all change: delete "
                    "it or choose another file",
                )
            if (record := record_of(name)) is not None:
                files.check_replaceable(record)


def check_not_overwriting(name: str, given: Iterable[str], whose: str) -> None:
    """Raise UserError if the output is one of these files, under any name; `whose` describes them in the message."""
    if Path(name).is_file():
        for file in given:
            if Path(file).is_file() and Path(name).samefile(file):
                raise UserError(f"--output={name} is {whose}, which would be overwritten; choose another file")


@contextlib.contextmanager
def opened(name: str, dependencies: Dependencies, done: Finished, total: int | None = None) -> Iterator[Write]:
    """Open a file to which windows of results are appended; "-" is standard output.

    `write` accepts the lines of each result of a window and returns when they have been written and recorded.
    Interrupts are deferred until then. If the disk is full, a part of a window is removed. The file is not touched
    before the first `write`, or before the block ends without an error.

    Args:
      name: name of the file.
      dependencies: what the output depends on.
      done: its first windows, to keep; the rest is removed. Windows are added to it.
      total: number of lines of the complete output; None if it is not known before the end.

    Yields:
      `write`.

    Raises:
      UserError: the file or its record cannot be written.
    """
    record, file = record_of(name), -1

    def note() -> None:
        if record is not None:
            files.replace_file(record, record_text(dependencies, done, total))

    def write(results: Sequence[str], read: Mapping[str, int] | None = None) -> None:
        nonlocal file
        data = "".join(results).encode()
        with held_interrupts():
            try:
                if name in STDOUT:
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                else:
                    if file < 0:
                        note()
                        file = _open(name, done.size)
                    _append(file, data)
                done.content.update(data)
                done.lines, done.size, done.read = done.lines + len(results), done.size + len(data), dict(read or {})
                note()
            except BrokenPipeError:
                raise
            except OSError as error:
                resumed = " (the lines written so far are complete, and --resume continues)" if record else ""
                remedy = writing_remedy(error, "choose another file")
                raise UserError(f"--output={name} cannot be written: {error.strerror}; {remedy}{resumed}") from error

    try:
        yield write
        total = done.lines
        write([], done.read)
    finally:
        if file >= 0:
            os.close(file)


def record_text(dependencies: Dependencies, finished: Finished, total: int | None = None) -> str:
    """Return the text of the record of an output."""
    content = {**vars(finished), "content": finished.content.hexdigest()}
    sealed = checksums.seal({"made_of": dependencies, "of": total, **content})
    return json.dumps(sealed, indent=1, ensure_ascii=False) + "\n"


def _open(name: str, keep: int) -> int:
    """Open a file and keep its first bytes. A stream of this process may be a file of others too: nothing is cut."""
    if name.startswith(_STREAMS):
        return os.open(name, os.O_WRONLY | os.O_APPEND)
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o666)
    if stat.S_ISREG(os.fstat(file).st_mode):
        os.ftruncate(file, keep)
        os.lseek(file, keep, os.SEEK_SET)
    return file


def _append(file: int, data: bytes) -> None:
    """Write all bytes or, to a regular file, none."""
    status = os.fstat(file)
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
        if stat.S_ISREG(status.st_mode):
            os.fsync(file)  # before the record says that they are there
    except OSError:
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(file, status.st_size)
        raise


def read_record(record: Path | str) -> dict[str, Any] | None:
    """Return the record at a path or address, None if there is none. Raises UserError if it is damaged."""
    try:
        content = stores.read(str(record)) if scheme_of(str(record)) else files.content(record)
        return checksums.unseal(checksums.parsed(content))
    except FileNotFoundError:
        return None
    except (DamagedError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{record} is damaged ({why}); {ANEW}") from error


def finished(output: str, dependencies: Dependencies) -> Finished:
    """Return what an interrupted command left in its output, if it was the same command.

    Args:
      output: name of the output file.
      dependencies: what the output of this command depends on.

    Raises:
      UserError: the output is a pipe or device, has no intact record, is that of another command, or was changed.
    """
    path, record = Path(output), record_of(output)
    if record is None:
        raise UserError(
            f"--resume with --output={output}: what went into a pipe or device cannot be read back; choose a file"
        )
    if not path.exists() or not path.stat().st_size:
        return Finished()
    found = read_record(record)
    if found is None:
        raise UserError(f"there is no {record}, which records the input, model and flags of {output}; {ANEW}")
    check_same(output, found["made_of"], dependencies)
    state, size = checksums.stream(), found["size"]
    for block in blocks(path, size):
        state.update(block)
    if path.stat().st_size < size or state.hexdigest() != found["content"]:
        raise UserError(f"the first {size} bytes of {output} have changed since they were written; {ANEW}")
    if found["lines"] == found["of"] and path.stat().st_size > size:  # no unfinished window
        raise UserError(f"{output} has more than the {found['lines']} lines that were written; {ANEW}")
    return Finished(found["lines"], size, state, found["read"])


def blocks(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, or all that it has."""
    with open(path, "rb") as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            yield block
            size -= len(block)


def lines_in(output: str) -> Iterator[str]:
    """Yield the lines of a file, which end at line feeds only. What follows the whole windows may be torn."""
    with open(output, encoding="utf-8", errors="replace", newline="\n") as file:
        yield from (line.removesuffix("\n") for line in file)


def check_same(output: str, before: Dependencies, now: Dependencies) -> None:
    """Reject the output of another command; the message states the first difference."""
    now = json.loads(json.dumps(now))  # tuples become lists, as in the record
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            was, given = (values.get(name, "not set") for values in (before, now))
            what = f"{name} was {was} and is now {given}" if name.startswith("--") else f"{name} has changed"
            raise of_another(output, what)


def of_another(output: str, what: str) -> UserError:
    """Return the error for the output of another command; `what` is the difference."""
    return UserError(
        f"{output} is the output of another command: {what}; use the same input, model and flags as before, or {ANEW}"
    )
