"""The kinds of corpora. Each kind reads the two sides of a split from a different source."""

import dataclasses
import errno
import functools
import glob
import html
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core import stores
from convs2s_jax.core.checksums import stream
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, did_you_mean
from convs2s_jax.core.files import open_regular
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.core.text import normalizer, visible
from convs2s_jax.data import cldr, hugging_face, tables, text_files
from convs2s_jax.data.config import DataConfig, SplitFiles
from convs2s_jax.data.filters import Dropped, Filter, FilterConfig
from convs2s_jax.data.lines import BLOCK, Writer, selected
from convs2s_jax.data.tables import Pair
from convs2s_jax.data.text_files import ENDS, parsed

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
      is_held_out: whether these are validation lines that were taken from the training text.
      dropped: what `DataConfig.skip_damaged` and `filters` left out.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int], ...] = dataclasses.field(default=(), compare=False)
    rows: np.ndarray | None = dataclasses.field(default=None, compare=False)
    copies: int = dataclasses.field(default=0, compare=False)
    parts: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    is_held_out: bool = dataclasses.field(default=False, compare=False)
    dropped: Dropped = dataclasses.field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def where(self, i: int) -> str:
        """Return file and line of target i, for messages."""
        return self.place(i if self.rows is None else int(self.rows[i]))

    def place(self, line: int) -> str:
        """Return file and line of a position in the concatenated files, for messages."""
        first = 0
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
      pairs: returns its source and target lines in order, None for damaged ones. UserError if they cannot be read.
      files: all of its files.
      columns: what selects its text within its files.
    """

    name: str
    pairs: Callable[[], Iterable[Pair]]
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


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
    src, tgt, clean = Writer(folder), Writer(folder), normalizer(cfg.normalize)
    sides = [side for side, absent in enumerate((cfg.one_sided, cfg.labelled)) if not absent]
    filters = cfg.filters if split == "train" else FilterConfig()
    filtered = Filter(filters, sides, folder) if cfg.skip_damaged or filters != FilterConfig() else None
    files, sizes = list[tuple[str, int]](), [0] * len(parts)
    for i, (sources, tag) in enumerate(parts):
        for source in sources:
            count, rest = 0, iter(source.pairs())
            while block := [*itertools.islice(rest, BLOCK)]:
                count += len(block)
                if cfg.normalize:
                    block = [(a and clean(a), b if cfg.labelled else b and clean(b)) for a, b in block]
                whole: Any = block if filtered is None else filtered.keep(block, tag)  # without None
                texts, targets = zip(*whole, strict=True) if whole else ((), ())
                src.extend(f"{tag} {line}" if visible(line) else line for line in texts) if tag else src.extend(texts)
                sizes[i] += tgt.extend(targets)
            files += [(source.name, count)] if source.name else []
    text = ParallelText(src.lines(), tgt.lines(), split, tuple(files), parts=tuple(sizes))
    if filtered is not None:
        left, rows, dropped = filtered.finish(text.src, text.tgt)
        both = [side if left.all() else selected(side, left, folder) for side in (text.src, text.tgt)]
        sizes = [int(part.sum()) for part in np.split(left, np.cumsum(sizes)[:-1])]
        text = ParallelText(both[0], both[1], split, text.files, rows, parts=tuple(sizes), dropped=dropped)
    return text if any(sources for sources, _ in parts) else None


def _parts(cfg: DataConfig, split: str) -> list[tuple[DataConfig, str]]:
    """Return each part of a mixture as a corpus, with its tag; the corpus itself for other splits, or without mixture.

    Sources without text get no tag, so that their pairs stay empty. UserError if there is another training text.
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


def _listed(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    """Return the places listed for a split, those of a mixture included: (source, target) of text files, (table,)."""
    entries = [*getattr(cfg.files, split), *(one for part in cfg.mixture for one in part.files if split == "train")]
    return [(entry,) if isinstance(entry, str) else entry for entry in entries]


def _used(cfg: DataConfig, entry: tuple[str, ...]) -> tuple[str, ...]:
    return entry if cfg.src else entry[-1:]


def _files(cfg: DataConfig, split: str) -> list[Source]:
    """The files that `cfg.files` lists for the split, or those in `cfg.dir`."""
    found = []
    for entry in _listed(cfg, split):
        sides = [_matching(place) for place in _used(cfg, entry)]
        counts = [counted(len(side), "file") for side in sides]
        check(len({*counts}) < 2, f"{entry[0]} matches {counts[0]} but {entry[-1]} {counts[-1]}: list pairs of files")
        found += [_source(cfg, files, table=len(entry) < 2) for files in zip(*sides, strict=True)]
    texts, table = ((), ()) if found else _in_folder(cfg, split)
    return found or [_source(cfg, files, table=files is table) for files in (texts, table) if files]


def _source(cfg: DataConfig, files: tuple[str, ...], *, table: bool) -> Source:
    names = tuple(_sides(cfg))
    if table:
        return Source(files[0], lambda: tables.pairs(files[0], names, skip=cfg.skip_damaged), files, names)
    return Source(files[-1], lambda: _parallel(*files, skip=cfg.skip_damaged), files)


def _matching(place: str) -> list[str]:
    """Return the places that match one with *, ? or [...], sorted. UserError if there are none."""
    pattern = re.search(r"[*?[]", place)
    if not pattern or os.path.exists(place):
        return [place]
    found = sorted(glob.glob(place))
    if scheme_of(place):
        folder = place[: pattern.start()].rpartition("/")[0]
        there = [one for one in _objects("data.files", folder) if one.count("/") == place.count("/")]
        found = [place] if place in there else [one for one in there if PurePosixPath(one).match(place)]
    check(bool(found), f"no file matches {place}: check folder and pattern")
    return found


def _parallel(*files: str, skip: bool) -> Iterator[Pair]:
    """Yield the pairs of lines of two files; with one file, sources are empty."""
    sides: list[Iterator[Any]] = [_side(file, skip) for file in files]
    if len(sides) < 2:
        yield from (("", line) for line in sides[0])
        return
    for count, (src, tgt) in enumerate(itertools.zip_longest(*sides, fillvalue=...)):
        if src is ... or tgt is ...:
            counts = [
                count + (line is not ...) + sum(1 for _ in side) for line, side in zip((src, tgt), sides, strict=True)
            ]
            raise UserError(
                f"{files[0]} has {counted(counts[0], 'line')} but {files[1]} has {counts[1]}: "
                "parallel files must have the same number of lines"
            )
        yield src, tgt


def _side(file: str, skip: bool) -> Iterator[str | None]:
    """Yield the lines of a text file, or the segments of one of WMT's SGML files."""
    lines = parsed(file, str, skip=skip)
    if not file.endswith(".sgm"):
        return lines
    segments = (re.search("<seg[^>]*>(.*)</seg>", line or "") for line in lines)
    return (html.unescape(one[1]).strip() for one in segments if one)


def _labelled_files(cfg: DataConfig, split: str) -> list[Source]:
    files, _ = _in_folder(cfg, split)
    read = functools.partial(tables.parsed_pairs, parse=_labelled, skip=cfg.skip_damaged)
    return [Source(file, functools.partial(read, file), files) for file in files]


def _labelled(line: str) -> tuple[str, str]:
    """Return the text and the label of a line. Raises UserError if it has no label."""
    label, tab, text = line.partition("\t")
    if not tab:
        raise UserError(f"no TAB in {line[:40]!r}; expected a label, a TAB and a text")
    check(label.strip() != "", "the label before the TAB is empty; add one, or delete the line")
    return text, label.strip()


def _sides(cfg: DataConfig) -> list[str]:
    """Return the suffixes of the text files of a split, which are also names of columns."""
    return ["tsv"] if cfg.corpus_kind == "tsv" else [side for side in (cfg.src, cfg.tgt) if side]


def _in_folder(cfg: DataConfig, split: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the text files of a split in the folder, one for each side, and its table; () for those not there."""
    there, sides = _names(cfg.dir), _sides(cfg)
    kinds = [*sides, *(kind for kind in tables.SUFFIXES if kind not in sides and not cfg.labelled)]
    forms = [[f"{split}.{kind}{end}" for end in ENDS if f"{split}.{kind}{end}" in there] for kind in kinds]
    texts, others = forms[: len(sides)], [name for names in forms[len(sides) :] for name in names]
    found = [name for names in texts for name in names]
    for names in (*texts, [*found[:1], *others]):
        both = " and ".join(joined(cfg.dir, name) for name in names[:2])
        check(len(names) < 2, f"{both} both exist, but only one can be read: remove or rename the other")
    for side in (side for side, names in zip(sides, texts, strict=False) if found and not names):
        first, gone = joined(cfg.dir, found[0]), joined(cfg.dir, f"{split}.{side}")
        raise UserError(f"{first} has no counterpart: there is no {gone}, {_FORMS}")
    return tuple(joined(cfg.dir, name) for name in found), tuple(joined(cfg.dir, name) for name in others)


_FORMS = f"plain or compressed ({', '.join(ENDS[1:])})"


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
    names = {address[len(joined(folder, "")) :].partition("/")[0] for address in _objects("data.dir", folder)}
    check(bool(names), f"data.dir is '{folder}': this folder does not exist")
    return names


def _objects(field: str, folder: str) -> list[str]:
    """Return the addresses of all objects in a folder, sorted. UserError with the field if they cannot be listed."""
    try:
        return [joined(folder, name) for name in stores.names(folder)]
    except OSError as error:
        raise stores.unusable(field, folder, error) from error


def no_split(cfg: DataConfig, split: str) -> str:
    """Return the message that states what is missing if the corpus does not have a split."""
    places = KINDS[cfg.corpus_kind].places
    if not places:
        return f"data.corpus is '{cfg.corpus}': it has no split '{split}'"
    wanted = [f"{split}.{side}" for side in _sides(cfg)]
    if not cfg.dir:
        listed = f", or set data.files.{split}" if "files" in places else ""
        return f"data.dir is not set: set it to the folder of {' and '.join(wanted)}{listed}"
    names = " and ".join(joined(cfg.dir, name) for name in wanted)
    table = "" if cfg.labelled else f", and no table {split}.{'/'.join(tables.SUFFIXES)}"
    others = tuple(f"{one}." for one in SPLITS if one != split)
    there = {functools.reduce(str.removesuffix, ENDS, name) for name in _names(cfg.dir) if not name.startswith(others)}
    return f"there is no {names}, {_FORMS}{table}{did_you_mean(wanted[0], there, otherwise='')}"


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
    places = [place for split in SPLITS for entry in _listed(cfg, split) for place in entry]
    found = [file for place in places for file in (place, *glob.glob(place))]
    for split, side, end in itertools.product(SPLITS, (*_sides(cfg), *tables.SUFFIXES), ENDS) if cfg.dir else ():
        found.append(joined(cfg.dir, f"{split}.{side}{end}"))
    return tuple(found)


def missing(cfg: DataConfig, split: str) -> str:
    """Return the first listed file of a split, or the folder, that is missing on this machine; "" if none is."""
    listed = _listed(cfg, split)
    if not listed and cfg.dir and not scheme_of(cfg.dir) and not os.path.exists(cfg.dir):
        return cfg.dir
    if split == "valid" and cfg.hold_out and not listed and not any(_in_folder(cfg, split)):
        listed = _listed(cfg, "train")
    places = [place for entry in listed for place in _used(cfg, entry)]
    return next((one for one in places if not (scheme_of(one) or os.path.exists(one) or glob.glob(one))), "")


def checksums(cfg: DataConfig, split: str) -> list[list[str]] | None:
    """Return checksums of the files of each source of a split, and what selects or changes their text.

    Equal ones: equal text.

    Those of a mixture are followed by the number of pairs and the tag of each part.
    None for a corpus without files, for files in an object store, or if one cannot be read; reading then reports why.

    Raises:
      UserError: a file exists in two forms, or the folder does not exist.
    """
    of = functools.cache(_checksum)
    parts = [(KINDS[one.corpus_kind].sources(one, split), tag) for one, tag in _parts(cfg, split)]
    sources = [source for part, _ in parts for source in part if source.files]
    if not sources or any(scheme_of(file) for source in sources for file in source.files):
        return None
    skips = ["skip_damaged"] * cfg.skip_damaged
    try:
        found = [[*map(of, source.files), *source.columns, *skips] for source in sources]
    except OSError:
        return None
    changes = [str(cfg.normalize), str(cfg.filters), unicodedata.unidata_version]
    found += [changes] if cfg.normalize or cfg.filters != FilterConfig() else []
    return [*found, *([str(len(part)), tag] for part, tag in parts if cfg.mixture and split == "train")]


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

    name, names = cfg.corpus.removeprefix("tfds:"), tuple(_sides(cfg))
    found = tfds.read(name, split, names, folder=cfg.tfds_dir, skip=cfg.skip_damaged)
    return [Source("", lambda: found[0], found[1], names)] if found else []


def _hugging_face(cfg: DataConfig, split: str) -> list[Source]:
    name, names = cfg.corpus.removeprefix("hf:"), tuple(_sides(cfg))
    found = hugging_face.read(name, split, names, skip=cfg.skip_damaged)
    return [Source("", lambda: found[0], found[1], (*name.split(":")[1:], split, *names))] if found else []


class Kind(NamedTuple):
    """A kind of corpus.

    Attributes:
      sources: (cfg, split) -> the parts of a split in order; [] if it does not exist.
      places: fields of `DataConfig` that specify its text, from "dir" and "files".
    """

    sources: Callable[[DataConfig, str], Sequence[Source]]
    places: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "files": Kind(_files, ("dir", "files")),
        "tsv": Kind(_labelled_files, ("dir",)),
        "cldr": Kind(_cldr),
        "cldr_kinds": Kind(_cldr_kinds),
        "tfds": Kind(_tfds),
        "hf": Kind(_hugging_face),
    }
)
