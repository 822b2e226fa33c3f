"""Tokenised text on disk: encoded once, then verified by its checksum and read through a memory map."""

import array
import dataclasses
import functools
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from convs2s_jax.core.checksums import DamagedError, checksum
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import open_regular, replacing, writing
from convs2s_jax.data.symbols import Vocabulary

# A file is: header, token ids, zeros up to a multiple of 8 bytes, int64 offsets.
# Header: magic with the format's version, SHA-256 of the stored text, sentences, tokens, bytes per token; then the
# checksum of the whole file except itself.
_HEADER = struct.Struct("<8s32sQQQ16s")
_UNSUMMED = struct.Struct("<8s32sQQQ")
_MAGIC = b"tokens\x00\x02"
_CHUNK = 4096  # number of sentences encoded at once


class UnwritableError(UserError):
    """The folder of tokenised text cannot be written."""


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """Token ids of sentences, without EOS: sentence i is `tokens[offsets[i] : offsets[i + 1]]`.

    Attributes:
      tokens: [tokens], concatenated ids of all sentences.
      offsets: [sentences + 1], start of each sentence.
      key: of the file (`find`); "" if not on disk.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    key: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence, without EOS: int32 [sentences]."""
        return np.diff(self.offsets).astype(np.int32)


def tokenize(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    folder: str | Path,
    name: str,
    *,
    tell: Tell = lambda _: None,
) -> TokenizedText:
    """Encode `texts`, with a progress bar if standard error is a terminal, or open the file of an earlier call.

    The file name contains a hash of the texts and the vocabulary. A file is verified by its checksum before use, and
    rewritten if it is damaged. Several processes may write the same file at the same time, because each replaces it
    atomically.

    Args:
      folder: folder of the files; created if missing.
      name: readable prefix of the file name, such as "train.de".
      tell: called with a message about a damaged file.

    Raises:
      UnwritableError: the folder cannot be written.
    """
    key = _key(texts, vocabulary)
    path = _place(folder, name, key)
    try:
        return _open(path, key)
    except DamagedError as error:
        tell(f"{path} is damaged ({error}): the text is tokenised again")
    except OSError:
        pass  # missing or unreadable
    found = in_memory(_encoded(texts, vocabulary, path.stem), size=vocabulary.size)
    with writing(path, "choose another data.cache_dir", kind=UnwritableError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, key, found)
    return _open(path, key)


def find(folder: str | Path, name: str, key: str) -> TokenizedText | None:
    """Open the file that `tokenize` wrote for the text with this `key`. None if it is missing or damaged."""
    try:
        wanted = bytes.fromhex(key)
        return _open(_place(folder, name, wanted), wanted)
    except (DamagedError, OSError, ValueError):
        return None


def in_memory(sentences: Iterable[Sequence[int]], *, size: int) -> TokenizedText:
    """Return token ids in memory.

    Args:
      sentences: token ids without EOS.
      size: size of the vocabulary.
    """
    dtype = np.dtype("<u2" if size <= 1 << 16 else "<u4")
    ids, lengths = array.array(dtype.char), array.array("q", [0])
    for sentence in sentences:
        ids.extend(sentence)
        lengths.append(len(sentence))
    return TokenizedText(np.frombuffer(ids, dtype), np.cumsum(np.frombuffer(lengths, np.int64)))


def _encoded(texts: Sequence[str], vocabulary: Vocabulary, name: str) -> Iterator[list[int]]:
    """Yield the token ids of each text, with a progress bar."""
    with tqdm.tqdm(desc=name, total=len(texts), unit=" lines", disable=None) as bar:
        for first in range(0, len(texts), _CHUNK):
            ids = vocabulary.encode(texts[first : first + _CHUNK])
            yield from ids
            bar.update(len(ids))


def _key(texts: Sequence[str], vocabulary: Vocabulary) -> bytes:
    digest = hashlib.sha256(_MAGIC + vocabulary.fingerprint.encode())
    for text in texts:
        data = vocabulary.read(text).encode("utf-8")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _place(folder: str | Path, name: str, key: bytes) -> Path:
    return Path(folder) / f"{name}-{key.hex()[:16]}.tokens"


def _open(path: Path, key: bytes) -> TokenizedText:
    """Memory-map an intact file with this key.

    Raises:
      DamagedError: it is damaged, or has another key.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # a plain view: slices of a memmap object are slow
        data = np.asarray(np.memmap(file, np.uint8, mode="r")) if size else np.zeros(0, np.uint8)
    if size < _HEADER.size:
        raise DamagedError("it is incomplete")
    magic, stored, sentences, total, width, written = _HEADER.unpack(bytes(data[: _HEADER.size]))
    if written != checksum(data[_HEADER.size :], data[: _UNSUMMED.size]).encode():
        raise DamagedError("its checksum does not match its content")
    start = _HEADER.size + total * width + -total * width % 8
    if (magic, stored, len(data)) != (_MAGIC, key, start + 8 * (sentences + 1)):
        raise DamagedError("it contains another text")
    tokens = data[_HEADER.size : _HEADER.size + total * width].view(f"<u{width}")
    return TokenizedText(tokens, data[start:].view("<i8"), stored.hex())


def _write(path: Path, key: bytes, text: TokenizedText) -> None:
    """Write a file atomically."""
    tokens = text.tokens
    header = _UNSUMMED.pack(_MAGIC, key, len(text), len(tokens), tokens.itemsize)
    content: tuple[Any, ...] = (tokens, bytes(-tokens.nbytes % 8), text.offsets)
    with replacing(path) as part, part.open("wb") as file:
        for block in (header, checksum(*content, header).encode(), *content):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
