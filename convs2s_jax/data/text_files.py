"""Read text files, plain or gzipped, as lines."""

import codecs
import errno
import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from convs2s_jax.core import stores
from convs2s_jax.core.checksums import stream
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import open_regular
from convs2s_jax.core.places import scheme_of

LONGEST = 1 << 22
"""Maximum line length in characters. Devices and files of zeros have no newline and would otherwise fill the memory."""
_CHUNK = 1 << 22
_GZIP = b"\x1f\x8b"
_OTHERS = MappingProxyType(
    {
        "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        "xz": re.compile(rb"\xfd7zXZ\0"),
        "zstandard": re.compile(rb"\x28\xb5\x2f\xfd"),
    }
)
"""First bytes of files in unsupported compressions."""
ENDINGS: Mapping[str, str] = MappingProxyType({".bz2": "bzip2", ".xz": "xz", ".zst": "zstandard"})
"""File name extensions of unsupported compressions."""
_RATIO = 200
"""Maximum compression ratio of a gzip file that unpacks to more than `_BOMB` bytes; that of text is 3 to 5."""
_BOMB = 1 << 28


def read_lines(path: str | Path, *, again: bool = False) -> list[str]:
    r"""Return the lines of a UTF-8 text file, plain or gzipped, also in an object store; "-" reads standard input.

    Only \n and \r\n end a line. Other Unicode line separators (U+2028, U+0085, form feed) are text, so line numbers
    agree with those of other programs. A byte order mark is dropped.

    Args:
      path: of the file.
      again: whether the file will be read again, in which case it must not be a pipe or a device.

    Raises:
      UserError: the file is missing, a folder, unreadable, damaged gzip, in another compression, or not
        UTF-8; or a line has more than `LONGEST` characters.
    """
    try:
        if str(path) == "-":
            return _lines(_pieces(sys.stdin.buffer, path), path)
        if scheme_of(str(path)):
            return _lines(_pieces(io.BytesIO(stores.read(str(path))), path), path)
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder: choose a text file")
        if stat.S_ISBLK(mode) or (again and not stat.S_ISREG(mode)):
            raise UserError(f"{path} is a device or a pipe: choose a text file, which can be read again")
        with open(path, "rb") as file:
            return _lines(_pieces(file, path), path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{name_of(path)} cannot be read: {why}; choose a text file") from error


def without_end(line: str) -> str:
    r"""Return a line without \n, \r\n or \r at its end, as `read_lines` does."""
    return line.removesuffix("\n").removesuffix("\r")


def checksum_of(path: str | Path) -> str:
    """Return the checksum of a file's bytes on disk, compressed or not.

    Raises:
      OSError: it cannot be read, or has a line that is too long for `read_lines`, since files of zeros can be huge.
    """
    found, line, packed = stream(), 0, False
    with open_regular(path) as file:
        while data := file.read(_CHUNK):
            packed = packed or (file.tell() <= _CHUNK and data.startswith(_GZIP))
            end = data.rfind(b"\n")
            line = line + len(data) if end < 0 else len(data) - end - 1
            if line > 4 * LONGEST and not packed:  # characters have up to four bytes
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            found.update(data)
    return found.hexdigest()


def compressed(name: str, how: str) -> str:
    """Return the message for a file in an unsupported compression; `how` is one of `ENDINGS`."""
    return f"{name} is compressed with {how}: decompress it, or use gzip"


def encoded(text: str) -> bytes:
    """Encode a text so that `read_lines` restores it: before a first character U+FEFF, add a byte order mark."""
    return (f"\ufeff{text}" if text.startswith("\ufeff") else text).encode("utf-8")


def _lines(pieces: Iterator[bytes], path: str | Path) -> list[str]:
    """Return the lines of a text that arrives in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines: list[str] = []
    rest = ""
    for data in pieces:
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line = len(lines) + error.object.count(b"\n", 0, error.start) + 1
            raise UserError(
                f"{name_of(path)}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; convert the file, "
                "for example with iconv -t utf-8"
            ) from error
        first, *others = (rest + text if lines or rest else text.removeprefix("\ufeff")).split("\n")
        if len(first) > LONGEST:
            raise UserError(
                f"{name_of(path)}, line {len(lines) + 1} has more than {LONGEST:,} characters: use a text file with "
                "one sentence per line"
            )
        lines += [first, *others][:-1]
        rest = others[-1] if others else first
    if rest:
        lines.append(rest)
    return [line.removesuffix("\r") for line in lines]


def name_of(path: str | Path) -> str:
    """Return the name of a file, for messages."""
    return "standard input" if str(path) == "-" else str(path)


def _pieces(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces, decompressed if it is gzipped. The last piece is empty."""
    packed = _Counted(file)
    packed.first = first = file.read(_CHUNK)
    for how, beginning in _OTHERS.items():
        if beginning.match(first):
            raise UserError(compressed(name_of(path), how))
    named = Path(path).suffix == ".gz"
    if not first.startswith(_GZIP) and not named:
        while data := packed.read(_CHUNK):
            yield data
        yield b""
        return
    try:
        if not first.startswith(_GZIP):
            raise gzip.BadGzipFile("it does not begin like one")
        unpacked = 0
        with gzip.GzipFile(fileobj=packed, mode="rb") as text:
            while data := text.read(_CHUNK):
                unpacked += len(data)
                if unpacked > max(_BOMB, _RATIO * packed.count):
                    raise UserError(
                        f"{name_of(path)} unpacks to more than {_RATIO} times its size, which is unlikely for text; if "
                        "it is text, decompress it yourself"
                    )
                yield data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{name_of(path)} is not a complete gzip file ({error}): copy it again, or rename it without .gz if it is "
            "plain text"
        ) from error
    yield b""


class _Counted(io.BufferedIOBase):
    """Wraps, for `gzip`, a file whose first bytes were already read, and counts the bytes returned."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.first, self.count, self._file = b"", 0, file

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes."""
        if self.first:
            data, self.first = (self.first, b"") if size is None or size < 0 else (self.first[:size], self.first[size:])
        else:
            data = self._file.read(-1 if size is None else size)
        self.count += len(data)
        return data
