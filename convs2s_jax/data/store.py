"""Tokenised text on disk: encoded once, then read through a memory map."""

import dataclasses
import functools
import hashlib
import itertools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tqdm

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import replacing
from convs2s_jax.data.vocabulary import Vocabulary

# A file is: header, token ids, zeros up to a multiple of 8 bytes, int64 offsets.
# Header: magic with the format's version, sha256 of what is stored, sentences, tokens, bytes per token.
_HEADER = struct.Struct("<8s32sQQQ")
_MAGIC = b"tokens\x00\x01"
_CHUNK = 4096  # sentences encoded at once


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Token ids of sentences, without EOS: sentence i is `tokens[offsets[i] : offsets[i + 1]]`.

    Attributes:
      tokens: [tokens], ids of all sentences one after another.
      offsets: [sentences + 1], where each sentence begins.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, without EOS: int32 [sentences]."""
        return np.diff(self.offsets).astype(np.int32)


def tokenize(
    texts: Sequence[str], vocabulary: Vocabulary, folder: str | Path, name: str, *, progress: bool = True
) -> TokenStore:
    """Encode `texts`, or open the file of an earlier call.

    The file name contains a hash of the texts, the vocabulary and the format. An incomplete file is written again.
    Several processes may write the same file at the same time: each replaces it atomically.

    Args:
      folder: folder of the files; created if missing.
      name: readable beginning of the file's name, such as "train.de".
      progress: show a bar on standard error, if that is a terminal.

    Raises:
      UserError: the folder cannot be written.
    """
    key = _key(texts, vocabulary)
    path = Path(folder) / f"{name}-{key.hex()[:16]}.tokens"
    try:
        return _open(path, key)
    except (_NotWholeError, OSError):
        pass  # missing, incomplete or not readable
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, key, texts, vocabulary, progress)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; make room for it or give another data.cache_dir"
        ) from error
    return _open(path, key)


def _replace(path: Path, key: bytes, texts: Sequence[str], vocabulary: Vocabulary, progress: bool) -> None:
    """Write a file atomically, with a progress bar."""
    bar = tqdm.tqdm(desc=path.stem, total=len(texts), unit=" lines", disable=None if progress else True)
    with replacing(path) as part, bar, part.open("xb") as file:
        _write(file, key, texts, vocabulary, bar)


class _NotWholeError(Exception):
    """A file is incomplete or has another key."""


def _key(texts: Sequence[str], vocabulary: Vocabulary) -> bytes:
    digest = hashlib.sha256(_MAGIC + vocabulary.fingerprint.encode())
    for text in texts:
        data = text.encode("utf-8")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _open(path: Path, key: bytes) -> TokenStore:
    """Map a file that is complete and has this key."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _HEADER.size:
            raise _NotWholeError
        data = np.asarray(np.memmap(file, np.uint8, mode="r"))  # a plain view: slices of a memmap object are slow
    magic, stored, sentences, total, width = _HEADER.unpack(bytes(data[: _HEADER.size]))
    start = _offsets_start(total, width)
    if (magic, stored, len(data)) != (_MAGIC, key, start + 8 * (sentences + 1)):
        raise _NotWholeError
    tokens = data[_HEADER.size : _HEADER.size + total * width].view(f"<u{width}")
    return TokenStore(tokens, data[start:].view("<i8"))


def _offsets_start(total: int, width: int) -> int:
    return _HEADER.size + -(-total * width // 8) * 8


def _write(file: BinaryIO, key: bytes, texts: Sequence[str], vocabulary: Vocabulary, bar: Any) -> None:
    """Write the content and then, at its front, the header that makes it valid."""
    dtype = np.dtype("<u2" if vocabulary.size <= 1 << 16 else "<u4")
    lengths = []
    file.write(bytes(_HEADER.size))
    for first in range(0, len(texts), _CHUNK):
        ids = vocabulary.encode(texts[first : first + _CHUNK])
        lengths += [len(sentence) for sentence in ids]
        file.write(np.fromiter(itertools.chain.from_iterable(ids), dtype).tobytes())
        bar.update(len(ids))
    offsets = np.cumsum([0, *lengths], dtype="<i8")
    total = int(offsets[-1])
    file.write(bytes(_offsets_start(total, dtype.itemsize) - file.tell()))
    file.write(offsets.tobytes())
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    file.write(_HEADER.pack(_MAGIC, key, len(texts), total, dtype.itemsize))
