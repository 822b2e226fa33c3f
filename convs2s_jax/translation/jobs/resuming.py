"""The record beside an output: what the output depends on and how far it got, so that --resume continues only that.

`OUTPUT.resume.json` is written before the output is touched and again after each window, when its results have been
written. It covers a prefix of the output, with its number of lines, size and checksum. The rest belongs to an
unfinished window and is computed again. Therefore windows begin where they would have begun without an interrupt, the
batches are the same, and so are the bytes (docs/decisions.md).
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convs2s_jax.core import checksums, files
from convs2s_jax.core.checksums import DamagedError
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.translation.jobs.output import can_be_resumed

SUFFIX = ".resume.json"
VERSION = 1
ANEW = "start over without --resume, or choose another --output"
FLAGS = ("format", "batch_size", "batch_tokens", "window")
"""Options of every kind of model that affect the bytes. Batching options affect the last digits of scores."""
_UNRECORDED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Error numbers if no file can be created beside the output."""

Dependencies = Mapping[str, Any]
"""Everything that the bytes of an output depend on: flags ("--beam_size") with their values, contents with digests."""


class FinishedPart(NamedTuple):
    """The finished part of an output.

    Attributes:
      lines: number of lines whose results have been written, in whole windows.
      data: the bytes of their results.
    """

    lines: int
    data: bytes


NOTHING = FinishedPart(0, b"")


def record_of(output: str) -> Path | None:
    """Return the path of the record; None if the output is standard output, a pipe or a device."""
    if not can_be_resumed(output):
        return None
    path = Path(os.path.realpath(output))
    return path.with_name(path.name + SUFFIX)


def digest_of(lines: Iterable[str]) -> str:
    """Return a digest of lines of text."""
    state = checksums.stream()
    for line in lines:
        state.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return state.hexdigest()


def flags_of(options: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of a record of options by their names as flags."""
    return {f"--{name}": getattr(options, name) for name in names}


def read(output: str, dependencies: Dependencies, total: int) -> FinishedPart:
    """Return what an interrupted command left in its output, provided that it was the same command.

    Args:
      output: name of the output file.
      dependencies: what the output of this command depends on.
      total: number of lines that this command translates.

    Raises:
      UserError: the output is a pipe or device, has no intact record, is that of another command, or was changed.
    """
    path, record = Path(output), record_of(output)
    if record is None:
        raise UserError(
            f"--resume with --output={output}: what went into a pipe or device cannot be read back; choose a file"
        )
    if not path.exists() or not path.stat().st_size:
        return NOTHING
    found = _read_record(output, record)
    _check_same(output, found["made_of"], dependencies)
    data = path.read_bytes()
    lines, size = found["lines"], found["size"]
    if len(data) < size or checksums.checksum(data[:size]) != found["content"]:
        raise UserError(f"--resume: the first {size} bytes of {output} have changed since they were written; {ANEW}")
    if lines == total and len(data) > size:  # an interrupted command may have written more than it has recorded
        raise UserError(f"--resume: {output} has more than the {total} lines that were written; {ANEW}")
    return FinishedPart(lines, data[:size])


def recorder(
    output: str, dependencies: Dependencies, begun: FinishedPart, tell: Tell
) -> Callable[[Sequence[bytes]], None]:
    """Return a function that records results, one per line, once they are in the output file.

    Args:
      output: name of the output file.
      dependencies: what the output depends on.
      begun: the finished part of the output.
      tell: receives a message if no record can be kept beside the output.

    Returns:
      The function. It raises OSError if the record cannot be written, except if no file can be created beside the
      output.
    """
    state = checksums.stream()
    state.update(begun.data)
    lines, size, record = begun.lines, len(begun.data), record_of(output)

    def note(results: Sequence[bytes]) -> None:
        nonlocal lines, size, record
        for result in results:
            state.update(result)
            lines, size = lines + 1, size + len(result)
        if record is None:
            return
        content = {
            "version": VERSION,
            "made_of": dependencies,
            "lines": lines,
            "size": size,
            "content": state.hexdigest(),
        }
        try:
            files.replace_file(record, json.dumps(checksums.seal(content), indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            if error.errno not in _UNRECORDED:
                raise
            tell(f"{record} cannot be written ({error.strerror}), so --resume will not be able to continue {output}")
            record = None

    return note


def _read_record(output: str, record: Path) -> dict[str, Any]:
    """Return the content of the record of an output."""
    try:
        found = checksums.unseal(checksums.parsed(files.content(record)))
    except FileNotFoundError as error:
        raise UserError(
            f"--resume: there is no {record}, which records the input, model and flags of {output}; {ANEW}"
        ) from error
    except DamagedError as error:
        raise UserError(f"--resume: {record} is damaged ({error}); {ANEW}") from error
    except OSError as error:
        raise UserError(f"--resume: {record} cannot be read ({error.strerror}); {ANEW}") from error
    if found.get("version") != VERSION:
        raise UserError(f"--resume: {record} was written by another version of this program; {ANEW}")
    return found


def _check_same(output: str, before: Dependencies, now: Dependencies) -> None:
    """Reject the output of another command; the message states the first difference."""
    now = json.loads(json.dumps(now))  # tuples become lists, as in the record
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            was, given = (values.get(name, "not set") for values in (before, now))
            was = f"{name} was {was} and is now {given}" if name.startswith("--") else f"{name} has changed"
            raise UserError(
                f"--resume: {output} is the output of another command: {was}; use the same input, model and flags as "
                f"before, or {ANEW}"
            )
