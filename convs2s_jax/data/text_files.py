"""Read text files, plain or compressed, as lines."""

import bz2
import codecs
import contextlib
import functools
import gzip
import importlib
import io
import lzma
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from convs2s_jax.core import checksums, stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import open_regular
from convs2s_jax.core.places import scheme_of

T = TypeVar("T")

BLOCK = 1 << 16
"""Number of bytes that are read at once."""
LONGEST = 1 << 24
"""Maximum length of a line in bytes. Devices and files of zeros have no newline and would otherwise fill the memory."""


def read_lines(path: str | Path, *, again: bool = False, nul: bool = False) -> list[str]:
    """Return the lines of a text file. Arguments and errors are as in `each_line`."""
    return [*each_line(path, again=again, nul=nul)]


def each_line(path: str | Path, *, again: bool = False, nul: bool = False) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text file, plain or compressed, also in an object store; "-" reads standard input.

    Only \n and \r\n end a line. Other Unicode line separators (U+2028, U+0085, form feed) are text, so line numbers
    agree with those of other programs. A byte order mark is dropped.

    Args:
      path: of the file.
      again: whether the file will be read again, in which case it must not be a pipe or a device.
      nul: whether lines may contain NUL, as lists of words from such text do.

    Raises:
      UserError: the file is missing, a folder, unreadable, damaged or not UTF-8, or a line contains NUL or has more
        than `LONGEST` bytes.
    """
    return cast(Iterator[str], parsed(path, str, again=again, nul=nul))


def parsed(
    path: str | Path, parse: Callable[[str], T], *, skip: bool = False, again: bool = True, nul: bool = False
) -> Iterator[T | None]:
    """Yield what `parse` makes of each line. Other arguments and errors are as in `each_line`.

    Args:
      parse: raises UserError for a line that it cannot read, without the place of the line.
      skip: yield None for such a line, and for one that contains NUL or is not UTF-8, in place of an error.
    """
    name, number = name_of(path), 0
    with _opened(path, again=again) as file:
        for block in _blocks(file):
            texts = _texts(block, nul=nul)  # None: one of its lines has a fault
            if texts is not None and parse is str:
                number += len(texts)
                yield from cast(list[T], texts)
                continue
            for line in block.removesuffix(b"\n").split(b"\n") if texts is None else texts:
                number += 1
                if len(line) > LONGEST:
                    remedy = "use a file with one sentence per line"
                    raise UserError(f"{name}, line {number} has more than {LONGEST:,} bytes: {remedy}")
                found = None
                try:
                    found = parse(line if isinstance(line, str) else _decoded(line, nul=nul, first=number == 1))
                except UserError as error:
                    if not skip:
                        raise UserError(f"{name}, line {number}: {error}") from error
                yield found


def _blocks(file: io.BufferedReader) -> Iterator[bytes]:
    """Yield blocks of whole lines without a byte order mark; the last may have no end, or be too long."""
    rest, mark = b"", codecs.BOM_UTF8
    while data := file.read1(BLOCK):
        whole, end, rest = (rest + data).rpartition(b"\n")
        if end or len(rest) > LONGEST:
            yield (whole + end or rest).removeprefix(mark)
            mark = b""
    if rest := rest.removeprefix(mark):
        yield rest


def _texts(block: bytes, *, nul: bool) -> list[str] | None:
    """Return the lines of a block; None if it contains NUL, may have a line that is too long, or is not UTF-8."""
    if len(block) > LONGEST or (b"\0" in block and not nul):
        return None
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    lines = text.removesuffix("\n").split("\n")
    return [*map(without_end, lines)] if "\r" in text else lines


def _decoded(line: bytes, *, nul: bool, first: bool) -> str:
    """Return the text of a line without its end. Raises UserError if it is not UTF-8 or contains NUL."""
    text = utf_8(line)
    if b"\0" in line and not nul:
        order = "be" if first and line.startswith(b"\0") else "le"
        utf_16 = f"the file is UTF-16: convert it with iconv -f utf-16{order} -t utf-8"
        remedy = utf_16 if 3 * line.count(0) >= len(line) else "delete NULs, as with tr -d '\\000'"
        raise UserError(f"it contains NUL, which no text does: {remedy}")
    return without_end(text)


def utf_8(data: bytes) -> str:
    """Decode a text. Raises UserError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte 0x{data[error.start]:02x} is not UTF-8; convert the file, for example with iconv -t utf-8"
        ) from error


def count(path: str | Path) -> tuple[int, str]:
    """Return the number of lines of a file, as `each_line` counts them, and a digest of its decompressed bytes.

    Raises:
      UserError: it cannot be read, or not again.
    """
    lines, last, digest = 0, b"\n", checksums.stream()
    with _opened(path, again=True) as file:
        block = file.read(BLOCK).removeprefix(codecs.BOM_UTF8)
        while block:
            lines, last = lines + block.count(b"\n"), block[-1:]
            digest.update(block)
            block = file.read(BLOCK)
    return lines + (last != b"\n"), digest.hexdigest()


@contextlib.contextmanager
def _opened(path: str | Path, *, again: bool) -> Iterator[io.BufferedReader]:
    """Yield a file, an object or standard input to read decompressed bytes from. Errors within the block name it."""
    name, kind = name_of(path), ""
    try:
        with _bytes(str(path), again=again) as file:
            begin = file.peek(6)
            packed = (one for end, one in PACKED.items() if begin.startswith(one[1]) or str(path).endswith(end))
            kind, _, unpacked = next(packed, ("", b"", None))
            yield io.BufferedReader(unpacked(file)) if unpacked else file
    except UserError:
        raise
    except Exception as error:
        system = isinstance(error, OSError) and error.strerror
        if kind and not system and not isinstance(error, MemoryError):  # errors of decompressors have many classes
            raise UserError(
                f"{name} is not a complete {kind} file ({error}): copy it again, or rename it if it is plain text"
            ) from error
        if not isinstance(error, OSError | ValueError):
            raise
        raise UserError(f"{name} cannot be read: {system or error}; choose a text file") from error


@contextlib.contextmanager
def _bytes(path: str, *, again: bool) -> Iterator[io.BufferedReader]:
    raw: Any
    if path == "-":
        raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)  # read as far as there is something
    elif scheme_of(path):
        raw = stores.Reader(path)
    else:
        raw = open_regular(path) if again else open(path, "rb", buffering=0)  # noqa: SIM115
    file = io.BufferedReader(raw)
    try:
        yield file
    finally:
        file.detach()
        if path != "-":
            raw.close()


def _zstd(file: BinaryIO) -> Any:
    try:
        zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError as error:
        raise UserError("a file compressed by Zstandard needs backports.zstd: pip install '.[formats]'") from error
    return zstd.ZstdFile(file)


PACKED: Mapping[str, tuple[str, bytes, Callable[[BinaryIO], Any]]] = {
    ".gz": ("gzip", b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    ".bz2": ("bzip2", b"BZh", bz2.BZ2File),
    ".xz": ("xz", b"\xfd7zXZ\0", lzma.LZMAFile),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd", _zstd),
}
"""Suffix of compressed files -> their kind, their first bytes, and what opens them to read decompressed bytes."""
ENDS = ("", *PACKED)
"""Suffixes of the names of text files."""


def suffix_of(path: str) -> str:
    """Return the suffix of a file's name, which may be followed by that of a compression, without its dot."""
    return functools.reduce(str.removesuffix, ENDS, path).rpartition(".")[2]


def without_end(line: str) -> str:
    r"""Return a line without \n, \r\n or \r at its end, as `read_lines` does."""
    return line.removesuffix("\n").removesuffix("\r")


def encoded(text: str) -> bytes:
    """Encode a text so that `read_lines` restores it: before a first character U+FEFF, add a byte order mark."""
    return (f"\ufeff{text}" if text.startswith("\ufeff") else text).encode("utf-8")


def name_of(path: str | Path) -> str:
    """Return the name of a file, for messages."""
    return "standard input" if str(path) == "-" else str(path)
