"""Read text files, plain or gzipped, as lines."""

import codecs
import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import open_regular
from convs2s_jax.core.places import scheme_of

LONGEST = 1 << 24
"""Maximum length of a line in bytes. Devices and files of zeros have no newline and would otherwise fill the memory."""
_GZIP = b"\x1f\x8b"


def read_lines(path: str | Path, *, again: bool = False, nul: bool = False) -> list[str]:
    r"""Return the lines of a UTF-8 text file, plain or gzipped, also in an object store; "-" reads standard input.

    Only \n and \r\n end a line. Other Unicode line separators (U+2028, U+0085, form feed) are text, so line numbers
    agree with those of other programs. A byte order mark is dropped.

    Args:
      path: of the file.
      again: whether the file will be read again, in which case it must not be a pipe or a device.
      nul: whether lines may contain NUL, as lists of words from such text do.

    Raises:
      UserError: the file is missing, a folder, unreadable, damaged gzip or not UTF-8, or a line contains NUL or has
        more than `LONGEST` bytes.
    """
    name, lines = name_of(path), list[str]()
    try:
        with _opened(str(path), again=again) as file:
            line = file.readline(LONGEST + 1).removeprefix(codecs.BOM_UTF8)
            while line:
                if len(line) > LONGEST:
                    raise UserError(
                        f"{name}, line {len(lines) + 1} has more than {LONGEST:,} bytes: use a file with one sentence "
                        "per line"
                    )
                text = line.decode()
                if b"\0" in line and not nul:
                    order = "be" if line.startswith(b"\0") and not lines else "le"
                    utf_16 = f"the file is UTF-16: convert it with iconv -f utf-16{order} -t utf-8"
                    remedy = utf_16 if 3 * line.count(0) >= len(line) else "delete NULs, as with tr -d '\\000'"
                    raise UserError(f"{name}, line {len(lines) + 1} contains NUL, which no text does: {remedy}")
                lines.append(without_end(text))
                line = file.readline(LONGEST + 1)
    except UserError:
        raise
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {len(lines) + 1}: byte 0x{error.object[error.start]:02x} is not UTF-8; convert the file, "
            "for example with iconv -t utf-8, or decompress it"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{name} is not a complete gzip file ({error}): copy it again, or rename it without .gz if it is plain text"
        ) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{name} cannot be read: {why}; choose a text file") from error
    return lines


@contextlib.contextmanager
def _opened(path: str, *, again: bool) -> Iterator[BinaryIO]:
    """Yield a file, an object or standard input to read bytes from, decompressed if it is gzipped."""
    raw: Any
    if path == "-":
        raw = sys.stdin.buffer
    elif scheme_of(path):
        raw = io.BytesIO(stores.read(path))
    else:
        raw = open_regular(path) if again else open(path, "rb")  # noqa: SIM115
    file = io.BufferedReader(raw)
    try:
        packed = path.endswith(".gz") or file.peek(2).startswith(_GZIP)
        yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if packed else file
    finally:
        file.detach()
        if path != "-":
            raw.close()


def without_end(line: str) -> str:
    r"""Return a line without \n, \r\n or \r at its end, as `read_lines` does."""
    return line.removesuffix("\n").removesuffix("\r")


def encoded(text: str) -> bytes:
    """Encode a text so that `read_lines` restores it: before a first character U+FEFF, add a byte order mark."""
    return (f"\ufeff{text}" if text.startswith("\ufeff") else text).encode("utf-8")


def name_of(path: str | Path) -> str:
    """Return the name of a file, for messages."""
    return "standard input" if str(path) == "-" else str(path)
