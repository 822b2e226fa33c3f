"""Parallel text, or texts with their labels: what each kind of corpus gives as the lines of a split."""

import dataclasses
import functools
import gzip
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.data import cldr
from convs2s_jax.data.config import DataConfig

SPLITS = ("train", "valid", "test")
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Lines that belong together: `tgt[i]` is the translation, or the label, of `src[i]`.

    All sources of a corpus of one side are empty. name: of the split; files: names of the target files, one after
    another, and how many lines each has, empty where the corpus has no files; rows: which of those lines these are,
    None for all (lines are held out, the others are not).
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int], ...] = dataclasses.field(default=(), compare=False)
    rows: Sequence[int] | None = dataclasses.field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def where(self, i: int) -> str:
        """In which line of which file the target i stands, for messages."""
        line, first = i if self.rows is None else self.rows[i], 0
        held = ", held out for validation" if self.rows is not None and self.name == "valid" else ""
        for file, count in self.files:
            if line < first + count:
                return f"{file}, line {line - first + 1}{held}"
            first += count
        return f"{'train' if held else self.name} split, line {line + 1}{held}"


def read(cfg: DataConfig, split: str, *, optional: bool = False) -> ParallelText:
    """Read a split ("train", "valid" or "test") of the corpus that `cfg` names.

    Args:
      optional: a split that the corpus does not have comes back without lines instead of as an error.

    Raises:
      UserError: files that are missing, damaged, not UTF-8, empty, or not parallel.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, not one of {SPLITS}")
    sides = _sides(cfg, split)
    if sides is None:
        if optional:
            return ParallelText((), (), split)
        way = (
            "; data.hold_out=0.05 takes a part of train for it, data.hold_out=0 does without"
            if split == "valid"
            else ""
        )
        raise UserError(_missing(cfg, split) + way)
    if len(sides.tgt) == 0:
        raise UserError(f"the {split} split of the corpus is empty: it needs at least one line")
    src = [""] * len(sides.tgt) if cfg.one_sided else sides.src
    return ParallelText(src, sides.tgt, split, sides.files, sides.rows)


def read_lines(path: str | Path) -> list[str]:
    r"""Lines of a UTF-8 text file, plain or gzipped; "-" reads standard input.

    Only \n and \r\n end a line: other characters that Unicode counts as line ends (U+2028, U+0085, form feed) are
    text, so files keep the line numbers that other programs give them. A byte order mark is dropped.

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


class Sides(NamedTuple):
    """The two sides of a split; `files` and `rows` as of `ParallelText`."""

    src: Sequence[str]
    tgt: Sequence[str]
    files: tuple[tuple[str, int], ...] = ()
    rows: Sequence[int] | None = None


def _sides(cfg: DataConfig, split: str) -> Sides | None:
    """What the corpus has, or the part of train that is held out where it has no split "valid", or the rest of it."""
    kind, _, _ = cfg.corpus.partition(":")
    read = _KINDS[kind]
    sides = read(cfg, split)
    if not cfg.hold_out or split == "test":
        return sides
    own = sides if split == "valid" else read(cfg, "valid")
    whole = sides if split == "train" else read(cfg, "train")
    return sides if own is not None or whole is None else _cut(whole, cfg.hold_out)[split]


def _cut(whole: Sides, share: float) -> Mapping[str, Sides]:
    """Two parts of train, drawn at random; all lines stay in their order."""
    count = len(whole.src)
    held = np.zeros(count, bool)
    held[np.random.default_rng(0).permutation(count)[: max(1, round(share * count))]] = True

    def part(rows: np.ndarray) -> Sides:
        return Sides([whole.src[i] for i in rows], [whole.tgt[i] for i in rows], whole.files, rows.tolist())

    return {"train": part(np.flatnonzero(~held)), "valid": part(np.flatnonzero(held))}


def _read_files(cfg: DataConfig, split: str) -> Sides | None:
    """Join the pairs of files that `cfg.files` lists for the split, else read the two files in `cfg.dir`."""
    listed: Mapping[str, tuple[tuple[str, str], ...]] = dataclasses.asdict(cfg.files)
    pairs = listed[split] or _pair_in_folder(cfg, split)
    src: list[str] = []
    tgt: list[str] = []
    files: list[tuple[str, int]] = []
    for src_file, tgt_file in pairs:
        tgt_lines = read_lines(tgt_file)
        src_lines = read_lines(src_file) if cfg.src else tgt_lines
        if len(src_lines) != len(tgt_lines):
            raise UserError(
                f"{src_file} has {len(src_lines)} lines, {tgt_file} {len(tgt_lines)}: "
                "parallel files need one line for each line"
            )
        src += src_lines
        tgt += tgt_lines
        files.append((tgt_file, len(tgt_lines)))
    if pairs and not src:
        raise UserError(f"{pairs[0][0]} and {pairs[0][1]} are empty: a corpus needs at least one line")
    return Sides(src, tgt, tuple(files)) if pairs else None


def _pair_in_folder(cfg: DataConfig, split: str) -> tuple[tuple[str, str], ...]:
    """DIR/SPLIT.SRC and DIR/SPLIT.TGT, each plain (preferred) or gzipped; nothing if neither side is there."""
    if not _has_folder(cfg):
        return ()
    sides = (cfg.src or cfg.tgt, cfg.tgt)
    found = [next((p for p in _tried(cfg, split, side) if Path(p).exists()), None) for side in sides]
    match found:
        case [None, None]:
            return ()
        case [str(src), str(tgt)]:
            return ((src, tgt),)
        case _:
            side, other = (cfg.src, found[1]) if found[0] is None else (cfg.tgt, found[0])
            plain, zipped = _tried(cfg, split, side)
            raise UserError(f"{other} has no other side: neither {plain} nor {zipped} exists")


def _has_folder(cfg: DataConfig) -> bool:
    """Whether a folder is given, which then is there."""
    if cfg.dir and not Path(cfg.dir).is_dir():
        raise UserError(f"data.dir is '{cfg.dir}': there is no such folder")
    return bool(cfg.dir)


def _tried(cfg: DataConfig, split: str, side: str) -> tuple[str, str]:
    plain = str(Path(cfg.dir) / f"{split}.{side}")
    return plain, f"{plain}.gz"


def _read_tsv(cfg: DataConfig, split: str) -> Sides | None:
    """DIR/SPLIT.tsv, plain (preferred) or gzipped: a label, TAB and a text on each line."""
    if not _has_folder(cfg):
        return None
    path = next((p for p in _tried_tsv(cfg, split) if Path(p).exists()), None)
    if path is None:
        return None
    texts, labels = [], []
    for number, line in enumerate(read_lines(path), 1):
        label, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{path}, line {number}: there is no TAB in {line[:40]!r}; write label, TAB, text")
        if not label.strip():
            raise UserError(f"{path}, line {number}: the label before the TAB is empty; write one, or drop the line")
        texts.append(text)
        labels.append(label.strip())
    return Sides(texts, labels, ((path, len(labels)),))


def _tried_tsv(cfg: DataConfig, split: str) -> tuple[str, str]:
    plain = str(Path(cfg.dir) / f"{split}.tsv")
    return plain, f"{plain}.gz"


_OTHER = "en"
"""A corpus of one side is that side of the phrases from this language: in training it sees nothing of their test."""


def _read_cldr(cfg: DataConfig, split: str) -> Sides | None:
    return Sides(*_generate(cfg.src or _OTHER, cfg.tgt, cfg.cldr)[split])


def _read_cldr_kinds(cfg: DataConfig, split: str) -> Sides | None:
    return Sides(*_generate_kinds(cfg.src, cfg.cldr)[split])


# the splits are made together but read one by one
_generate = functools.lru_cache(maxsize=1)(cldr.generate)
_generate_kinds = functools.lru_cache(maxsize=1)(cldr.generate_kinds)


def _read_tfds(cfg: DataConfig, split: str) -> Sides | None:
    from convs2s_jax.data import tfds  # half a second to import, and few runs need it

    _, _, name = cfg.corpus.partition(":")
    sides = tfds.read(name, split, src=cfg.src or cfg.tgt, tgt=cfg.tgt, folder=cfg.tfds_dir)
    return None if sides is None else Sides(*sides)


def _missing(cfg: DataConfig, split: str) -> str:
    if cfg.corpus == "tsv":
        plain, zipped = _tried_tsv(cfg, split)
        return f"there is no {plain} and no {zipped}" if cfg.dir else "data.dir is empty: name the folder of the files"
    if cfg.corpus != "files":
        return f"data.corpus is '{cfg.corpus}': it has no split '{split}'"
    if not cfg.dir:
        return f"data.dir and data.files.{split} are empty: name a folder or the files of the {split} split"
    sides = [side for side in (cfg.src, cfg.tgt) if side]
    names = ", ".join(f"{plain}[.gz]" for plain, _ in (_tried(cfg, split, side) for side in sides))
    there = sorted(path.name.removesuffix(".gz") for path in Path(cfg.dir).iterdir())
    others = [name for name in there if not name.startswith(tuple(f"{one}." for one in SPLITS if one != split))]
    return f"there is no {names}{did_you_mean(f'{split}.{sides[0]}', others)}"


# Each kind reads a split's two sides, or gives None where the corpus has no such split.
_KINDS: Mapping[str, Callable[[DataConfig, str], Sides | None]] = MappingProxyType(
    {
        "files": _read_files,
        "tsv": _read_tsv,
        "cldr": _read_cldr,
        "cldr_kinds": _read_cldr_kinds,
        "tfds": _read_tfds,
    }
)
