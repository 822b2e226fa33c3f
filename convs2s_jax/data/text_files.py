"""Text files, plain or gzipped, as lines."""

import gzip
import sys
import zlib
from pathlib import Path

from convs2s_jax.core.errors import UserError

_GZIP = b"\x1f\x8b"


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a UTF-8 text file, plain or gzipped; "-" reads standard input.

    Only \n and \r\n end a line. Other Unicode line separators (U+2028, U+0085, form feed) are text, so line numbers
    agree with those of other programs. A byte order mark is dropped.

    Raises:
      UserError: no such file, a folder, no permission, damaged gzip, or bytes that are not UTF-8.
    """
    data = _unzip(_read_bytes(path), path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"0x{data[error.start]:02x}"
        raise UserError(
            f"{_name(path)}, line {line}: byte {byte} is not UTF-8; convert the file, for example with iconv -t utf-8"
        ) from error
    lines = text.removeprefix("\ufeff").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _name(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _read_bytes(path: str | Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder: give the name of a text file") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the name of a text file") from error


def _unzip(data: bytes, path: str | Path) -> bytes:
    named = Path(path).suffix == ".gz"
    if not data.startswith(_GZIP) and not named:
        return data
    try:
        if not data.startswith(_GZIP):
            raise gzip.BadGzipFile("it does not start like one")
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{_name(path)} is not a whole gzip file ({error}): copy it again, or drop .gz from a plain text's name"
        ) from error
