"""Tokenised text on disk: encoded once, then verified by its checksum and read through a memory map."""

import array
import dataclasses
import functools
import hashlib
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tqdm

from convs2s_jax.core.checksums import DamagedError, checksum
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import open_regular, replacing, writing
from convs2s_jax.data import processes
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
    workers: int = 1,
) -> TokenizedText:
    """Encode `texts`, with a progress bar if standard error is a terminal, or open the file of an earlier call.

    The file name contains a hash of the texts and the vocabulary. A file is verified by its checksum before use, and
    rewritten if it is damaged. Several processes may write the same file at the same time, because each replaces it
    atomically. A text of more than `RANGE` lines is encoded in ranges, each in a file of its own until all are done, so
    that a process that is killed loses at most a range.

    Args:
      folder: folder of the files; created if missing.
      name: readable prefix of the file name, such as "train.de".
      tell: called with a message about a damaged file.
      workers: maximum number of processes that encode ranges; with 1, this process does.

    Raises:
      UnwritableError: the folder cannot be written.
      UserError: a process that encodes a range was killed.
    """
    key = _key(texts, vocabulary)
    path = _place(folder, name, key)
    try:
        return _open(path, key)
    except DamagedError as error:
        tell(f"{path} is damaged ({error}): the text is tokenised again")
    except OSError:
        pass  # missing or unreadable
    job = Ranges(texts, vocabulary, path, key, RANGE)
    with (
        writing(path, "choose another data.cache_dir", kind=UnwritableError),
        tqdm.tqdm(desc=path.stem, total=len(texts), unit=" lines", disable=None) as bar,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(job) == 1:
            _write(path, key, [job.encode(0, bar.update)])
        else:
            processes.share(job, min(workers, len(job)), bar.update)
            parts = [job.part(i) for i in range(len(job))]
            _write(path, key, [_open(part, key) for part, key in parts])
            for part, _ in parts:
                part.unlink()
    return _open(path, key)


RANGE = 1 << 19
"""Number of lines of a range."""


class Ranges(NamedTuple):
    """A text in ranges that are encoded one by one.

    Attributes:
      texts: the lines.
      vocabulary: that encodes them.
      path: of the file of the whole text.
      key: of that file.
      size: number of lines of a range.
    """

    texts: Sequence[str]
    vocabulary: Vocabulary
    path: Path
    key: bytes
    size: int

    def __len__(self) -> int:
        return max(1, -(-len(self.texts) // self.size))

    def part(self, i: int) -> tuple[Path, bytes]:
        """File and key of a range."""
        return self.path.with_suffix(f".{i:05}.tokens"), hashlib.sha256(self.key + i.to_bytes(8, "little")).digest()

    def encode(self, i: int, progress: Callable[[int], Any]) -> TokenizedText:
        """Encode a range; `progress` gets the numbers of lines that were done."""

        def sentences() -> Iterator[list[int]]:
            end = min(len(self.texts), (i + 1) * self.size)
            for first in range(i * self.size, end, _CHUNK):
                ids = self.vocabulary.encode(self.texts[first : min(end, first + _CHUNK)])
                yield from ids
                progress(len(ids))

        return in_memory(sentences(), size=self.vocabulary.size)

    def write(self, i: int, progress: Callable[[int], Any]) -> None:
        """Write the file of a range, unless it is there."""
        part, key = self.part(i)
        try:
            progress(len(_open(part, key)))
        except (DamagedError, OSError):
            _write(part, key, [self.encode(i, progress)])


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


def _write(path: Path, key: bytes, parts: Sequence[TokenizedText]) -> None:
    """Write the file of a text atomically, from its parts in order."""
    total, sentences, width = sum(len(part.tokens) for part in parts), sum(map(len, parts)), parts[0].tokens.itemsize
    header = _UNSUMMED.pack(_MAGIC, key, sentences, total, width)

    def content() -> Iterator[Any]:
        yield from (part.tokens for part in parts)
        yield bytes(-total * width % 8 + 8)  # the first offset is 0
        before = 0
        for part in parts:
            yield part.offsets[1:] + before
            before += len(part.tokens)

    with replacing(path) as new, new.open("wb") as file:
        for block in itertools.chain((header, checksum(*content(), header).encode()), content()):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
