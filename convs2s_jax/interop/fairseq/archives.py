"""Read untrusted archives of torch and NumPy. Each entry is checked against its checksum before it is used."""

import contextlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from convs2s_jax.core.errors import first_line

_MOST_PARTS = 100_000
_MOST_GROWTH, _SLACK = 20, 2**24
_CHUNK = 2**22
_MARK, _DIRECTORY = b"PK\x03\x04", b"PK\x01\x02"


class UnusableError(ValueError):
    """The archive cannot be used. The message continues "FILE ..."."""


def is_archive(path: Path) -> bool:
    """Whether the file begins like an archive."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive whose entries are not much larger than the file.

    Raises:
      UnusableError: the archive is damaged, has too many entries, or unpacks to far more than its own size. Errors of
        `zipfile` within the block are converted to this one.
    """
    try:
        with path.open("rb") as file:
            _check_count(file)
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive, path.stat().st_size)
                yield archive
    except UnusableError:
        raise
    except Exception as error:  # zipfile raises errors of many kinds for damaged files
        raise UnusableError(f"is damaged or truncated: {first_line(error)}") from error


def has_checksums(archive: zipfile.ZipFile) -> bool:
    """Whether the entries have checksums. torch can be configured to write zeros instead."""
    return any(part.CRC for part in archive.infolist())


def copied(archive: zipfile.ZipFile) -> io.BytesIO:
    """Copy the archive, uncompressed, so that a reader sees only the entries that were checked."""
    content = io.BytesIO()
    checked = has_checksums(archive)
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as copy:
        for part in archive.infolist():
            if not checked:
                del part.CRC  # zipfile then does not compare checksums
            with archive.open(part) as source, copy.open(zipfile.ZipInfo(part.filename), "w") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
    content.seek(0)
    return content


def arrays(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    """The arrays of an .npz file.

    Raises:
      UnusableError: an entry is not an array of numbers, or does not have the size that it claims.
    """
    found = {}
    for part in archive.infolist():
        content = archive.read(part)
        found[part.filename.removesuffix(".npy")] = _array(content, part.filename[:80])
    return found


def _array(content: bytes, name: str) -> np.ndarray:
    """Read an array in NumPy's format. Its header is compared with the size before memory is allocated."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise UnusableError(f"has an entry {name!r} that is not an array of numbers")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(stream)
    if dtype.kind not in "fiub":
        raise UnusableError(f"has an entry {name!r} that is not an array of numbers")
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(content) - stream.tell():
        raise UnusableError(f"has an entry {name!r} whose size does not match its header")
    values = np.frombuffer(content, dtype, count, stream.tell())
    return values.reshape(shape, order="F" if by_columns else "C")


def _check_count(file: IO[bytes]) -> None:
    """Refuse millions of entries before their directory is read into memory."""
    count, tail = 0, b""
    while chunk := file.read(_CHUNK):
        count += (tail + chunk).count(_DIRECTORY)
        tail = chunk[1 - len(_DIRECTORY) :]
        if count > _MOST_PARTS:
            raise UnusableError(f"has more than {_MOST_PARTS} entries; a checkpoint has one for each tensor")
    file.seek(0)


def _check_sizes(archive: zipfile.ZipFile, length: int) -> None:
    parts = archive.infolist()
    if len({part.filename for part in parts}) < len(parts):
        raise UnusableError("has two entries of the same name")
    if sum(part.compress_size for part in parts) > length:
        raise UnusableError("is damaged: its entries are longer than the file")
    whole = sum(part.file_size for part in parts)
    if whole > _MOST_GROWTH * length + _SLACK:
        raise UnusableError(
            f"is {length} bytes long but unpacks to {whole}, and parameters do not compress by a factor of "
            f"{_MOST_GROWTH}; write it again uncompressed"
        )
