"""The kinds of corpora. Each kind reads the two sides of a split from a different source."""

import dataclasses
import errno
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from convs2s_jax.core import stores
from convs2s_jax.core.checksums import stream
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, did_you_mean
from convs2s_jax.core.files import open_regular
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.core.text import visible
from convs2s_jax.data import cldr, text_files
from convs2s_jax.data.config import DataConfig, SplitFiles
from convs2s_jax.data.lines import BLOCK, Writer
from convs2s_jax.data.text_files import ENDS, each_line

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Aligned lines: `tgt[i]` is the translation, or the label, of `src[i]`.

    Attributes:
      src: source lines; all empty in a target-only corpus.
      tgt: target lines, the same number.
      name: name of the split.
      files: (name, number of lines) of each target file in order; empty if the corpus has no files.
      rows: positions of these lines in the concatenated files; None for all lines.
      copies: lines of train that repeat the pairs of a held-out split; they belong to no split.
      parts: number of lines of each part of a mixture, in order.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int], ...] = dataclasses.field(default=(), compare=False)
    rows: Sequence[int] | np.ndarray | None = dataclasses.field(default=None, compare=False)
    copies: int = dataclasses.field(default=0, compare=False)
    parts: tuple[int, ...] = dataclasses.field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def is_held_out(self) -> bool:
        """Whether these are validation lines that were taken from the training text."""
        return self.rows is not None and self.name == "valid"

    def where(self, i: int) -> str:
        """Return file and line of target i, for messages."""
        line, first = i if self.rows is None else self.rows[i], 0
        held = ", held out for validation" if self.is_held_out else ""
        for file, count in self.files:
            if line < first + count:
                return f"{file}, line {line - first + 1}{held}"
            first += count
        return f"{'train' if held else self.name} split, line {line + 1}{held}"


class Source(NamedTuple):
    """A part of a split, such as a pair of files.

    Attributes:
      name: of its target file, for messages; "" if it has none.
      pairs: returns its source and target lines in order. UserError if they cannot be read.
    """

    name: str
    pairs: Callable[[], Iterable[tuple[str, str]]]


def read(cfg: DataConfig, split: str, folder: Path | None = None) -> ParallelText | None:
    """Read a split of the corpus itself, source by source; None if it has no such split.

    Args:
      cfg: the corpus.
      split: its name.
      folder: for the lines of a long text (`lines.Writer`); None to keep them in memory.

    Raises:
      UserError: files are missing, damaged, not UTF-8, or not parallel.
    """
    parts = [(KINDS[one.corpus_kind].sources(one, split), tag) for one, tag in _parts(cfg, split)]
    src, tgt = Writer(folder), Writer(folder)
    files, sizes = list[tuple[str, int]](), [0] * len(parts)
    for i, (sources, tag) in enumerate(parts):
        for name, pairs in sources:
            count, rest = 0, iter(pairs())
            while block := [*itertools.islice(rest, BLOCK)]:
                # an empty line stays empty, so that its pair is not used
                src.extend(f"{tag} {line}" if tag and visible(line) else line for line, _ in block)
                count += tgt.extend(pair[1] for pair in block)
            files += [(name, count)] if name else []
            sizes[i] += count
    found = any(sources for sources, _ in parts)
    return ParallelText(src.lines(), tgt.lines(), split, tuple(files), parts=tuple(sizes)) if found else None


def _parts(cfg: DataConfig, split: str) -> list[tuple[DataConfig, str]]:
    """Return each part of a mixture as a corpus, with its tag; the corpus itself for other splits, or without mixture.

    Raises:
      UserError: the corpus has a training text besides its mixture.
    """
    if split != "train" or not cfg.mixture:
        return [(cfg, "")]
    for name, *_ in _files(dataclasses.replace(cfg, mixture=()), split):
        raise UserError(
            f"data.mixture is set, but {name} would not be read: list it as a part of the mixture, and valid and test "
            "in data.files instead of data.dir"
        )
    listed = [(SplitFiles(train=part.files), part.tag) for part in cfg.mixture]
    return [(dataclasses.replace(cfg, mixture=(), dir="", files=files), tag) for files, tag in listed]


def _listed(cfg: DataConfig, split: str) -> tuple[tuple[str, str], ...]:
    """Return the files that are listed for a split, those of a mixture included."""
    return getattr(cfg.files, split) or tuple(pair for part in cfg.mixture for pair in part.files if split == "train")


def _file_pairs(cfg: DataConfig, split: str) -> list[Source]:
    """The file pairs that `cfg.files` lists for the split, or the two files in `cfg.dir`."""
    return [Source(pair[-1], functools.partial(_parallel, *pair)) for pair in _files(cfg, split)]


def _parallel(*pair: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of lines of two files; with one file, sources are empty."""
    if len(pair) < 2:
        yield from (("", line) for line in each_line(pair[0], again=True))
        return
    sides = [each_line(file, again=True) for file in pair]
    for count, (src, tgt) in enumerate(itertools.zip_longest(*sides)):
        if src is None or tgt is None:
            counts = [
                count + (line is not None) + sum(1 for _ in side) for line, side in zip((src, tgt), sides, strict=True)
            ]
            raise UserError(
                f"{pair[0]} has {counted(counts[0], 'line')} but {pair[1]} has {counts[1]}: "
                "parallel files must have the same number of lines"
            )
        yield src, tgt


def _labelled_files(cfg: DataConfig, split: str) -> list[Source]:
    return [Source(path, functools.partial(_labelled, path)) for (path,) in _files(cfg, split)]


def _labelled(path: str) -> Iterator[tuple[str, str]]:
    """Yield the texts and labels of a file, plain or compressed."""
    for number, line in enumerate(each_line(path, again=True), 1):
        label, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{path}, line {number}: no TAB in {line[:40]!r}; expected a label, a TAB and a text")
        if not label.strip():
            raise UserError(f"{path}, line {number}: the label before the TAB is empty; add one, or delete the line")
        yield text, label.strip()


def _sides(cfg: DataConfig) -> list[str]:
    """Return the suffixes of the files of a split."""
    return ["tsv"] if cfg.corpus_kind == "tsv" else [side for side in (cfg.src, cfg.tgt) if side]


def _files(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    """Return the files of a split, (source, target) pairs or single files, listed or in the folder; [] for none."""
    if listed := getattr(cfg.files, split):
        return [pair if cfg.src else pair[1:] for pair in listed]
    there = _names(cfg.dir)
    found, gone = [], []
    for side in _sides(cfg):
        name = joined(cfg.dir, f"{split}.{side}")
        forms = [name + end for end in ENDS if f"{split}.{side}{end}" in there]
        check(
            len(forms) < 2,
            f"{' and '.join(forms)} both exist, but only one can be read: remove or rename the other",
        )
        found += forms
        gone += [] if forms else [name]
    if found and gone:
        raise UserError(f"{found[0]} has no counterpart: neither {gone[0]} nor {gone[0]}.gz exists")
    return [tuple(found)] if found else []


def _names(folder: str) -> Collection[str]:
    """Return the names in a folder, which may be in an object store; none for "".

    Raises:
      UserError: there is no such folder, or the store cannot be used.
    """
    if not folder:
        return ()
    if not scheme_of(folder):
        check(os.path.isdir(folder), f"data.dir is '{folder}': this folder does not exist")
        return {*os.listdir(folder)}
    try:
        names = {name.partition("/")[0] for name in stores.names(folder)}
    except OSError as error:
        raise stores.unusable("data.dir", folder, error) from error
    check(bool(names), f"data.dir is '{folder}': this folder does not exist")
    return names


def no_split(cfg: DataConfig, split: str) -> str:
    """Return the message that states what is missing if the corpus does not have a split."""
    places = KINDS[cfg.corpus_kind].places
    if not places:
        return f"data.corpus is '{cfg.corpus}': it has no split '{split}'"
    wanted = [f"{split}.{side}" for side in _sides(cfg)]
    if not cfg.dir:
        listed = f", or set data.files.{split}" if "files" in places else ""
        return f"data.dir is not set: set it to the folder of {' and '.join(wanted)}{listed}"
    names = ", ".join(f"{joined(cfg.dir, name)}[.gz]" for name in wanted)
    others = tuple(f"{one}." for one in SPLITS if one != split)
    there = {name.removesuffix(".gz") for name in _names(cfg.dir) if not name.startswith(others)}
    return f"there is no {names}{did_you_mean(wanted[0], there, otherwise='')}"


def check_places(cfg: DataConfig) -> None:
    """Reject a folder or files that this kind of corpus does not read, because training would use another text.

    Raises:
      UserError: such a field is set.
    """
    for name, given in (("dir", cfg.dir != ""), ("files", cfg.files != SplitFiles())):
        read_by = [one for one, each in KINDS.items() if name in each.places]
        check(
            not given or cfg.corpus_kind in read_by,
            f"data.{name} is set, but data.corpus '{cfg.corpus}' does not read it: remove it, or set data.corpus to "
            f"{' or '.join(read_by)}",
        )


def files_of(cfg: DataConfig) -> tuple[str, ...]:
    """Return the names and addresses of all files that a corpus may have: those listed, and those in its folder."""
    found = [file for split in SPLITS for pair in _listed(cfg, split) for file in pair]
    for split, side, end in itertools.product(SPLITS, _sides(cfg), ENDS) if cfg.dir else ():
        found.append(joined(cfg.dir, f"{split}.{side}{end}"))
    return tuple(found)


def missing(cfg: DataConfig, split: str) -> str:
    """Return the first listed file of a split, or the folder, that is missing on this machine; "" if none is."""
    listed = _listed(cfg, split)
    if not listed and cfg.dir and not scheme_of(cfg.dir) and not os.path.exists(cfg.dir):
        return cfg.dir
    if split == "valid" and cfg.hold_out and not listed and not _files(cfg, split):
        listed = cfg.files.train
    files = [file for pair in listed for file in (pair if cfg.src else pair[1:])]
    return next((file for file in files if not scheme_of(file) and not os.path.exists(file)), "")


def checksums(cfg: DataConfig, split: str) -> list[list[str]] | None:
    """Return checksums of the files of a split, (source, target) for each file pair. Equal files have equal text.

    Those of a mixture are followed by the number of pairs and the tag of each part.

    None for a corpus without files, for files in an object store, or if one cannot be read; reading then reports why.

    Raises:
      UserError: a file exists both plain and gzipped, or the folder does not exist.
    """
    of = functools.cache(_checksum)
    parts = [(KINDS[one.corpus_kind].files(one, split), tag) for one, tag in _parts(cfg, split)]
    files = [pair for part, _ in parts for pair in part]
    if any(scheme_of(file) for pair in files for file in pair):
        return None
    try:
        found = [[of(file) for file in pair] for pair in files]
    except OSError:
        return None
    if cfg.mixture and split == "train":
        found += [[str(len(part)), tag] for part, tag in parts]
    return [*found, [cfg.src, cfg.tgt]] if found and cfg.corpus_kind == "tfds" else found or None


def _checksum(path: str) -> str:
    """Return the checksum of a file. Raises OSError if it has no line end for long: files of zeros can be huge."""
    found, line = stream(), 0
    with open_regular(path) as file:
        while data := file.read(1 << 22):
            line = 0 if b"\n" in data else line + len(data)
            if line > text_files.LONGEST:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            found.update(data)
    return found.hexdigest()


# one stream of phrases for all splits, which are read one after another
_generate = functools.lru_cache(maxsize=1)(cldr.generate)
_generate_kinds = functools.lru_cache(maxsize=1)(cldr.generate_kinds)


def _cldr(cfg: DataConfig, split: str) -> list[Source]:
    # a target-only corpus has the phrases of a parallel one, so that no test phrase occurs in train
    return [Source("", lambda: zip(*_generate(cfg.src or "en", cfg.tgt, cfg.cldr)[split], strict=True))]


def _cldr_kinds(cfg: DataConfig, split: str) -> list[Source]:
    return [Source("", lambda: zip(*_generate_kinds(cfg.src, cfg.cldr)[split], strict=True))]


def _tfds(cfg: DataConfig, split: str) -> list[Source]:
    from convs2s_jax.data import tfds  # takes half a second, and few runs need it

    name = cfg.corpus.removeprefix("tfds:")
    pairs = tfds.pairs(name, split, src=cfg.src or cfg.tgt, tgt=cfg.tgt, folder=cfg.tfds_dir)
    return [] if pairs is None else [Source("", lambda: pairs)]


def _tfds_files(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    from convs2s_jax.data import tfds

    return [(file,) for file in tfds.files(cfg.corpus.removeprefix("tfds:"), split, folder=cfg.tfds_dir)]


class Kind(NamedTuple):
    """A kind of corpus.

    Attributes:
      sources: (cfg, split) -> the parts of a split in order; [] if it does not exist.
      files: (cfg, split) -> the files of a split, (source, target) pairs or single files; [] if there are none.
      places: fields of `DataConfig` that specify its text, from "dir" and "files".
    """

    sources: Callable[[DataConfig, str], Sequence[Source]]
    files: Callable[[DataConfig, str], Sequence[tuple[str, ...]]] = lambda *_: []
    places: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "files": Kind(_file_pairs, _files, ("dir", "files")),
        "tsv": Kind(_labelled_files, _files, ("dir",)),
        "cldr": Kind(_cldr),
        "cldr_kinds": Kind(_cldr_kinds),
        "tfds": Kind(_tfds, _tfds_files),
    }
)
