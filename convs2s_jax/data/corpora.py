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
from convs2s_jax.data.config import CORPORA, DataConfig, Files, SplitFiles
from convs2s_jax.data.filters import Dropped, Filter, FilterConfig
from convs2s_jax.data.lines import BLOCK, Writer, selected
from convs2s_jax.data.tables import Pair
from convs2s_jax.data.text_files import ENDS, each_line, parsed, suffix_of

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Aligned lines: `tgt[i]` is the translation, or the label, of `src[i]`.

    Attributes:
      src: source lines; all empty in a target-only corpus.
      tgt: target lines, the same number.
      name: name of the split.
      files: (name, number of pairs, lines before them) of each target file in order; empty if there are no files.
      rows: positions of these lines in the concatenated files; None for all lines.
      copies: lines of train that repeat the pairs of a held-out split; they belong to no split.
      parts: number of lines of each part of a mixture, in order.
      is_held_out: whether these are validation lines that were taken from the training text.
      dropped: what `DataConfig.skip_damaged` and `filters` left out.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int, int], ...] = dataclasses.field(default=(), compare=False)
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
        for file, count, before in self.files:
            if line < first + count:
                return f"{file}, line {line - first + before + 1}{held}"
            first += count
        return f"{'train' if held else self.name} split, line {line + 1}{held}"


class Source(NamedTuple):
    """A part of a split, such as a pair of files.

    Attributes:
      name: of its target file, for messages; "" if it has none.
      pairs: returns its source and target lines in order, None for damaged ones. UserError if they cannot be read.
      files: all of its files.
      columns: what selects its text within its files.
      before: number of lines of the target file before those of its pairs.
    """

    name: str
    pairs: Callable[[], Iterable[Pair]]
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    before: int = 0


def read(cfg: DataConfig, split: str, folder: Path | None = None) -> ParallelText | None:
    """Read a split of the corpus itself, source by source; None if it has no such split.

    Args:
      cfg: the corpus.
      split: its name.
      folder: for the lines of a long text (`lines.Writer`); None to keep them in memory.

    Raises:
      UserError: files are missing, damaged, not UTF-8, or not parallel.
    """
    parts = _parts(cfg, split)
    src, tgt, clean = Writer(folder), Writer(folder), normalizer(cfg.normalize)
    sides = [side for side, absent in enumerate((cfg.one_sided, cfg.labelled)) if not absent]
    filters = cfg.filters if split == "train" else FilterConfig()
    filtered = Filter(filters, sides, folder) if cfg.skip_damaged or filters != FilterConfig() else None
    files, sizes = list[tuple[str, int, int]](), [0] * len(parts)
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
            files += [(source.name, count, source.before)] if source.name else []
    text = ParallelText(src.lines(), tgt.lines(), split, tuple(files), parts=tuple(sizes))
    if filtered is not None:
        left, rows, dropped = filtered.finish(text.src, text.tgt)
        both = [side if left.all() else selected(side, left, folder) for side in (text.src, text.tgt)]
        sizes = [int(part.sum()) for part in np.split(left, np.cumsum(sizes)[:-1])]
        text = ParallelText(both[0], both[1], split, text.files, rows, parts=tuple(sizes), dropped=dropped)
    return text if any(sources for sources, _ in parts) else None


def _parts(cfg: DataConfig, split: str) -> list[tuple[Sequence[Source], str]]:
    """Return what is read of each part of a mixture, with its tag; of other splits, or without mixture, one part.

    UserError if there is another training text.
    """
    if split != "train" or not cfg.mixture:
        return [(SOURCES[cfg.corpus_kind](cfg, split), "")]
    for source in _in_folder(cfg, split):
        raise UserError(
            f"data.mixture is set, but {source.name} would not be read: list it as a part of the mixture, and valid "
            "and test in data.files instead of data.dir"
        )
    return [(_at(cfg, part.files), part.tag) for part in cfg.mixture]


def _files(cfg: DataConfig, split: str) -> list[Source]:
    """The files that `cfg.files` lists for the split, or those in `cfg.dir`."""
    return _at(cfg, getattr(cfg.files, split)) or _in_folder(cfg, split)


def _at(cfg: DataConfig, files: Files) -> list[Source]:
    """The files at places, which may be patterns."""
    found = []
    for entry in files:
        places = _used(cfg, entry)
        sides = [_matching(place) for place in places]
        counts = [counted(len(side), "file") for side in sides]
        check(len({*counts}) < 2, f"{places[0]} matches {counts[0]} but {places[-1]} {counts[-1]}: list pairs of files")
        found += [_source(cfg, one, table=isinstance(entry, str)) for one in zip(*sides, strict=True)]
    return found


def _used(cfg: DataConfig, entry: tuple[str, str] | str) -> tuple[str, ...]:
    """Return the places of an entry of a list of files that are read: without sources, its target file."""
    return (entry,) if isinstance(entry, str) else entry if cfg.src else entry[-1:]


def _source(cfg: DataConfig, files: tuple[str, ...], *, table: bool) -> Source:
    names, skip = tuple(_sides(cfg)), cfg.skip_damaged
    if cfg.labelled:
        return Source(files[0], lambda: tables.parsed_pairs(files[0], _labelled, skip=skip), files)
    if table:
        read = functools.partial(tables.pairs, files[0], names, skip=skip)
        return Source(files[0], read, files, names, before=int(tables.has_header(files[0], names)))
    return Source(files[-1], lambda: _parallel(*files, skip=skip), files)


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
    """Yield the lines of a text file, or the segments of one of WMT's SGML files, of which none is left out."""
    if suffix_of(file) != "sgm":
        return parsed(file, str, skip=skip)
    segments = (re.search("<seg[^>]*>(.*)</seg>", line) for line in each_line(file, again=True))
    return (html.unescape(one[1]).strip() for one in segments if one)


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


def _in_folder(cfg: DataConfig, split: str) -> list[Source]:
    """Return the files of a split in the folder; none if they are not there."""
    there, sides = _names(cfg.dir), _sides(cfg)

    def files(kind: str) -> list[str]:
        return [joined(cfg.dir, name) for end in ENDS if (name := f"{split}.{kind}{end}") in there]

    texts = [files(side) for side in sides]
    others = () if cfg.labelled else (file for kind in tables.SUFFIXES if kind not in sides for file in files(kind))
    found, table = [file for side in texts for file in side], [*others]
    for same in (*texts, [*found[:1], *table]):
        check(
            len(same) < 2, f"{' and '.join(same[:2])} both exist, but only one can be read: remove or rename the other"
        )
    for side, same in zip(sides, texts, strict=True):
        gone = joined(cfg.dir, f"{split}.{side}")
        check(bool(same or not found), f"{''.join(found[:1])} has no counterpart: there is no {gone}, {_FORMS}")
    return [_source(cfg, tuple(one), table=one is table) for one in (found, table) if one]


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
    places = CORPORA[cfg.corpus_kind].places
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
        read_by = [kind for kind, one in CORPORA.items() if name in one.places]
        check(
            not given or cfg.corpus_kind in read_by,
            f"data.{name} is set, but data.corpus '{cfg.corpus}' does not read it: remove it, or set data.corpus to "
            f"{' or '.join(read_by)}",
        )


def _listed(cfg: DataConfig, split: str) -> list[tuple[str, str] | str]:
    """Return the places listed for a split, those of a mixture included."""
    return [*getattr(cfg.files, split), *(one for part in cfg.mixture for one in part.files if split == "train")]


def files_of(cfg: DataConfig) -> tuple[str, ...]:
    """Return the names and addresses of all files that a corpus may have: those listed, and those in its folder."""
    listed = [entry for split in SPLITS for entry in _listed(cfg, split)]
    places = [place for entry in listed for place in ((entry,) if isinstance(entry, str) else entry)]
    found = [file for place in places for file in (place, *glob.glob(place))]
    for split, side, end in itertools.product(SPLITS, (*_sides(cfg), *tables.SUFFIXES), ENDS) if cfg.dir else ():
        found.append(joined(cfg.dir, f"{split}.{side}{end}"))
    return tuple(found)


def missing(cfg: DataConfig, split: str) -> str:
    """Return the first listed file of a split, or the folder, that is missing on this machine; "" if none is."""
    listed = _listed(cfg, split)
    places = [place for entry in listed for place in _used(cfg, entry)] if listed or not cfg.dir else [cfg.dir]
    gone = next((one for one in places if not (scheme_of(one) or os.path.exists(one) or glob.glob(one))), "")
    held_out = split == "valid" and cfg.hold_out and not (gone or listed or _in_folder(cfg, split))
    return missing(cfg, "train") if held_out else gone


def checksums(cfg: DataConfig, split: str) -> list[list[str]] | None:
    """Return checksums of the files of each source of a split, and what selects or changes their text.

    Equal ones: equal text.

    Those of a mixture are followed by the number of pairs and the tag of each part.
    None for a corpus without files, for files in an object store, or if one cannot be read; reading then reports why.

    Raises:
      UserError: a file exists in two forms, or the folder does not exist.
    """
    parts = _parts(cfg, split)
    sources = [source for part, _ in parts for source in part if source.files]
    if not sources or any(scheme_of(file) for source in sources for file in source.files):
        return None
    skips = ["skip_damaged"] * cfg.skip_damaged
    files = dict.fromkeys(file for source in sources for file in source.files)
    try:
        sums = dict(zip(files, stores.in_parallel(_checksum, files), strict=True))
    except OSError:
        return None
    found = [[*map(sums.__getitem__, source.files), *source.columns, *skips] for source in sources]
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
    def pairs() -> Iterable[Pair]:
        if cfg.labelled:
            return zip(*_generate_kinds(cfg.src, cfg.cldr)[split], strict=True)
        # a target-only corpus has the phrases of a parallel one, so that no test phrase occurs in train
        return zip(*_generate(cfg.src or "en", cfg.tgt, cfg.cldr)[split], strict=True)

    return [Source("", pairs)]


def _tfds(cfg: DataConfig, split: str) -> list[Source]:
    from convs2s_jax.data import tfds  # takes half a second, and few runs need it

    name, names = cfg.corpus.removeprefix("tfds:"), tuple(_sides(cfg))
    found = tfds.read(name, split, names, folder=cfg.tfds_dir, skip=cfg.skip_damaged)
    return [Source("", lambda: found[0], found[1], names)] if found else []


def _hugging_face(cfg: DataConfig, split: str) -> list[Source]:
    name, names = cfg.corpus.removeprefix("hf:"), tuple(_sides(cfg))
    found = hugging_face.read(name, split, names, skip=cfg.skip_damaged)
    return [Source("", lambda: found[0], found[1], (*name.split(":")[1:], split, *names))] if found else []


SOURCES: Mapping[str, Callable[[DataConfig, str], Sequence[Source]]] = {
    "files": _files,
    "tsv": _in_folder,
    "cldr": _cldr,
    "cldr_kinds": _cldr,
    "tfds": _tfds,
    "hf": _hugging_face,
}
"""Kind of corpus -> function: (cfg, split) -> the parts of a split in order; [] if it does not exist."""
