"""Tokenised text on disk: encoded once, then verified by its checksum and read through a memory map."""

import array
import contextlib
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

from convs2s_jax.core import local_copies, stores
from convs2s_jax.core.checksums import DamagedError, checksum
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import open_regular, replace_file, replacing, writing
from convs2s_jax.core.places import joined
from convs2s_jax.data import processes
from convs2s_jax.data.lines import BLOCK, digest
from convs2s_jax.data.symbols import Vocabulary

# A file is: header, token ids, zeros up to a multiple of 8 bytes, int64 offsets.
# Header: magic with the format's version, SHA-256 of the stored text, sentences, tokens, bytes per token; then the
# checksum of the whole file except itself.
_HEADER = struct.Struct("<8s32sQQQ16s")
_UNSUMMED = struct.Struct("<8s32sQQQ")
_MAGIC = b"tokens\x00\x02"


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

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence, without EOS: int32 [sentences]."""
        return np.diff(self.offsets).astype(np.int32)


RANGE = 1 << 19
"""Number of lines of a range."""


class Cache(NamedTuple):
    """Where token files are kept.

    Attributes:
      folder: on this machine; created if missing.
      address: of a folder in an object store, which gets a copy of each file that is encoded; "" for none.
    """

    folder: Path
    address: str = ""

    def path(self, name: str) -> Path:
        """Return the path of a file, which is fetched from the store if it is not here. Raises OSError."""
        if self.address and not (self.folder / name).exists():
            local_copies.fetch(self.address, self.folder, name)
        return self.folder / name

    def keep(self, name: str, content: bytes | None = None) -> None:
        """Write a file, or only its copy in the store if it is here. Raises OSError."""
        if content is not None:
            replace_file(self.folder / name, content)
        if self.address:
            stores.write(joined(self.address, name), (self.folder / name).read_bytes())


class Side(NamedTuple):
    """A text to encode.

    Attributes:
      name: readable beginning of the names of its files, such as "train.de".
      texts: the lines.
      vocabulary: that encodes them.
    """

    name: str
    texts: Sequence[str]
    vocabulary: Vocabulary


def tokenize(
    sides: Sequence[Side], cache: Cache, *, tell: Tell = lambda _: None, share: processes.Share = processes.share
) -> list[TokenizedText]:
    """Encode texts, with a progress bar if standard error is a terminal, or open the files of an earlier call.

    The name of a file contains a hash of the text and the vocabulary. A file is verified by its checksum before use,
    and rewritten if it is damaged. Several processes may write the same file at the same time, because each replaces it
    atomically. A text of more than `RANGE` lines is encoded in ranges, each in a file of its own until all are done, so
    that a process that is killed loses at most a range.

    Args:
      sides: the texts.
      cache: where the files are kept.
      tell: called with a message about a damaged file.
      share: does the ranges, in this process or in others.

    Raises:
      UnwritableError: the folder cannot be written.
      UserError: a process that encodes a range was killed.
    """
    files = [_file(side.name, _key(side), len(side.texts)) for side in sides]
    found = [_found(cache, file, tell) for file in files]
    missing = [
        (side, one) for side, file, text in zip(sides, files, found, strict=True) if text is None for one in file.ranges
    ]
    if not missing:
        return [text for text in found if text is not None]
    sizes = {i: len(one.rows) for i, (_, one) in enumerate(missing)}
    work = processes.Parts(sizes, *(functools.partial(do, cache, missing) for do in (_task, _save)))
    with (
        writing(cache.folder / missing[0][1].name, "choose another data.cache_dir", kind=UnwritableError),
        tqdm.tqdm(desc="tokenising", total=sum(sizes.values()), unit=" lines", disable=None) as bar,
    ):
        cache.folder.mkdir(parents=True, exist_ok=True)
        share(work, bar.update)
        return [_joined(cache, file) if text is None else text for text, file in zip(found, files, strict=True)]


class _File(NamedTuple):
    """The file of a text or of a range of it: its name, its key, and the lines."""

    name: str
    key: bytes
    rows: range

    @property
    def ranges(self) -> "list[_File]":
        """The files of the ranges of a text; this one if it is short."""
        if len(self.rows) <= RANGE:
            return [self]
        return [
            _File(
                f"{self.name.removesuffix('tokens')}{i:05}.tokens",
                hashlib.sha256(self.key + i.to_bytes(8, "little")).digest(),
                self.rows[begin : begin + RANGE],
            )
            for i, begin in enumerate(self.rows[::RANGE])
        ]


def _file(begin: str, key: bytes, lines: int) -> _File:
    return _File(f"{begin}-{key.hex()[:16]}.tokens", key, range(lines))


def _task(
    cache: Cache, work: Sequence[tuple[Side, _File]], i: int
) -> Callable[[processes.Progress], TokenizedText] | None:
    """Return the encoding of a range; None if its file is there."""
    side, file = work[i]
    with contextlib.suppress(DamagedError, OSError):
        _open(cache.path(file.name), file.key)
        return None
    return functools.partial(_encode, side.vocabulary, _Blocks(side.texts, file.rows))


def _save(cache: Cache, work: Sequence[tuple[Side, _File]], i: int, text: TokenizedText) -> None:
    """Write the file of a range. Raises OSError if it cannot be written."""
    file = work[i][1]
    _write(cache.folder / file.name, file.key, [text])
    cache.keep(file.name)


class PartDone(Exception):
    """Part of a text is tokenised, as `only` was asked to."""


def only(part: int, of: int, share: processes.Share) -> processes.Share:
    """Return a function that does every `of`-th range, from range `part` - 1 on, and raises `PartDone`."""

    def do(work: processes.Parts, progress: processes.Progress) -> None:
        mine = dict([*work.sizes.items()][part - 1 :: of])
        share(work._replace(sizes=mine), progress)
        raise PartDone(
            f"part {part} of {of} is done ({len(mine)} of {len(work.sizes)} ranges): when all parts are, run the same "
            "command without --part, or convs2s train"
        )

    return do


def find(cache: Cache, name: str, key: str, lines: int) -> TokenizedText | None:
    """Open the file of `tokenize`, or join its ranges in the store. None if not all is there, intact.

    Args:
      cache: where the files are kept.
      name: of the side.
      key: as in `TokenizedText`.
      lines: number of lines.
    """
    file = _file(name, bytes.fromhex(key), lines)
    found = _found(cache, file, lambda _: None)
    if found is None and cache.address:
        with contextlib.suppress(DamagedError, OSError):
            return _joined(cache, file)
    return found


def _found(cache: Cache, file: _File, tell: Tell) -> TokenizedText | None:
    """Open the file of a text; None if it is missing or damaged. Ranges in a store are not looked for."""
    try:
        return _open(cache.path(file.name), file.key)
    except DamagedError as error:
        tell(f"{cache.folder / file.name} is damaged ({error}): the text is tokenised again")
    except OSError:
        pass  # missing or unreadable
    return None


def _joined(cache: Cache, file: _File) -> TokenizedText:
    """Join the ranges of a text, whose files are removed here. Raises OSError or DamagedError."""
    if len(parts := file.ranges) > 1:
        _write(cache.folder / file.name, file.key, [_open(cache.path(part.name), part.key) for part in parts])
        for part in parts:
            (cache.folder / part.name).unlink(missing_ok=True)
    return _open(cache.path(file.name), file.key)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Blocks of these lines of a text, which are read as they are used. They are pickled as lists."""

    texts: Sequence[str]
    rows: range

    def __iter__(self) -> Iterator[Sequence[str]]:
        return (self.texts[i : min(self.rows.stop, i + BLOCK)] for i in self.rows[::BLOCK])

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*iter(self)],)


def _encode(vocabulary: Vocabulary, texts: Iterable[Sequence[str]], progress: processes.Progress) -> TokenizedText:
    """Encode blocks of lines; `progress` gets the numbers of lines that were done."""

    def sentences() -> Iterator[list[int]]:
        for block in texts:
            yield from vocabulary.encode(block)
            progress(len(block))

    return in_memory(sentences(), size=vocabulary.size)


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


def _key(side: Side) -> bytes:
    return hashlib.sha256(_MAGIC + side.vocabulary.fingerprint.encode() + digest(side.texts)).digest()


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
