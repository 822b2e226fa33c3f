"""The record beside an output: what the output is made of and how far it got, so that --resume continues only that.

`OUTPUT.resume.json` is written before the output is touched and again after each window, when its results have left the
program. It vouches for a prefix of the output, by number of lines, size and checksum; what lies behind that prefix is
part of a window that was not finished, and is computed again. So windows begin where they would have begun without an
interrupt, batches are the same, and so are the bytes (docs/decisions/0019).
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convs2s_jax.core import checksums, files
from convs2s_jax.core.checksums import DamagedError
from convs2s_jax.core.errors import UserError

SUFFIX = ".resume.json"
VERSION = 1
ANEW = "begin anew without --resume, or give another --output"
FLAGS = ("format", "batch_size", "batch_tokens", "window")
"""Options of every kind of model that decide the bytes: those of batches decide the last digits of scores."""
_UNRECORDED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
"""Error numbers where no file can be made beside the output."""

MadeOf = Mapping[str, Any]
"""What decides the bytes of an output: flags by name ("--beam_size") with their values, and contents with digests."""


class Begun(NamedTuple):
    """What of an output is done.

    Attributes:
      lines: number of lines whose results are there, whole windows.
      data: their bytes.
    """

    lines: int
    data: bytes


NOTHING = Begun(0, b"")


def record_of(output: str) -> Path | None:
    """The file of the record; None where the output is standard output, a pipe or a device."""
    path = Path(os.path.realpath(output))
    if output == "-" or (path.exists() and not path.is_file()):
        return None
    return path.with_name(path.name + SUFFIX)


def digest_of(lines: Iterable[str]) -> str:
    """A digest of lines of text."""
    state = checksums.stream()
    for line in lines:
        state.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return state.hexdigest()


def flags_of(options: Any, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a record of options, under their names as flags."""
    return {f"--{name}": getattr(options, name) for name in names}


def read(output: str, made_of: MadeOf) -> Begun:
    """What an interrupted command left in its output, if it was this very command.

    Args:
      output: name of the output file.
      made_of: what this command makes its output of.

    Raises:
      UserError: the output is a pipe or device, has no intact record, was made of something else, or was changed.
    """
    path, record = Path(output), record_of(output)
    if record is None:
        raise UserError(f"--resume with --output={output}: what went into a pipe or device cannot be read back")
    if not path.exists() or not path.stat().st_size:
        return NOTHING
    found = _read_record(output, record)
    _check_same(output, found["made_of"], made_of)
    data = path.read_bytes()
    lines, size = found["lines"], found["size"]
    if len(data) < size or checksums.checksum(data[:size]) != found["content"]:
        raise UserError(f"--resume: {output} is not what was written: its first {size} bytes were changed; {ANEW}")
    return Begun(lines, data[:size])


def recorder(
    output: str, made_of: MadeOf, begun: Begun, tell: Callable[[str], None]
) -> Callable[[Sequence[bytes]], None]:
    """A function that records the results that were written, one for each line, once they are in the output file.

    Args:
      output: name of the output file.
      made_of: what it is made of.
      begun: what of it is done.
      tell: receives a sentence where no record can be kept beside the output.

    Returns:
      The function. It raises OSError where the record cannot be written, but for a folder without permission.
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
        content = {"version": VERSION, "made_of": made_of, "lines": lines, "size": size, "content": state.hexdigest()}
        try:
            files.replace_file(record, json.dumps(checksums.seal(content), indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            if error.errno not in _UNRECORDED:
                raise
            tell(f"{record} cannot be written ({error.strerror}): --resume will not be able to continue {output}")
            record = None

    return note


def _read_record(output: str, record: Path) -> dict[str, Any]:
    """The content of the record of an output."""
    try:
        found = checksums.unseal(checksums.parsed(files.content(record)))
    except FileNotFoundError as error:
        raise UserError(
            f"--resume: there is no {record} that says of which input, model and flags {output} was made; {ANEW}"
        ) from error
    except DamagedError as error:
        raise UserError(f"--resume: {record} is damaged ({error}); {ANEW}") from error
    except OSError as error:
        raise UserError(f"--resume: {record} cannot be read ({error.strerror}); {ANEW}") from error
    if found.get("version") != VERSION:
        raise UserError(f"--resume: {record} was written by another version of this program; {ANEW}")
    return found


def _check_same(output: str, before: MadeOf, now: MadeOf) -> None:
    """Refuse an output that was made of something else; the message names the first difference."""
    now = json.loads(json.dumps(now))  # tuples as lists, as they were read
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            was, given = (values.get(name, "not given") for values in (before, now))
            was = f"{name} was {was} and is {given}" if name.startswith("--") else f"{name} changed"
            raise UserError(
                f"--resume: {output} is the output of another command: {was}; give the same input, model and flags as "
                f"before, or {ANEW}"
            )
