"""The kinds of corpora. Each kind reads the two sides of a split from a different source."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from convs2s_jax.core import stores
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, did_you_mean
from convs2s_jax.core.places import joined, scheme_of
from convs2s_jax.data import cldr, text_files
from convs2s_jax.data.config import DataConfig, SplitFiles
from convs2s_jax.data.text_files import ENDINGS, compressed, read_lines

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
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int], ...] = dataclasses.field(default=(), compare=False)
    rows: Sequence[int] | None = dataclasses.field(default=None, compare=False)
    copies: int = dataclasses.field(default=0, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def without_lines(self) -> "ParallelText":
        """Return the split without its lines, to free host memory."""
        return dataclasses.replace(self, src=(), tgt=(), rows=None)

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


def _read_files(cfg: DataConfig, split: str) -> ParallelText | None:
    """Concatenate the file pairs that `cfg.files` lists for the split, or read the two files in `cfg.dir`."""
    pairs = _pairs(cfg, split)
    lines_of = functools.cache(functools.partial(read_lines, again=True))  # read a file that is listed twice only once
    src: list[str] = []
    tgt: list[str] = []
    files: list[tuple[str, int]] = []
    for src_file, tgt_file in pairs:
        tgt_lines = lines_of(tgt_file)
        src_lines = lines_of(src_file) if cfg.src else tgt_lines
        if len(src_lines) != len(tgt_lines):
            raise UserError(
                f"{src_file} has {counted(len(src_lines), 'line')} but {tgt_file} has {len(tgt_lines)}: "
                "parallel files must have the same number of lines"
            )
        src += src_lines
        tgt += tgt_lines
        files.append((tgt_file, len(tgt_lines)))
    if pairs and not src:
        files_read = " and ".join(dict.fromkeys(pairs[0]))
        raise UserError(f"no text in {files_read}: a corpus needs at least one line")
    return ParallelText(src, tgt, split, tuple(files)) if pairs else None


def _text_files(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    return [pair if cfg.src else pair[1:] for pair in _pairs(cfg, split)]


def _listed(cfg: DataConfig) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Return the file pairs listed for each split."""
    listed: Mapping[str, tuple[tuple[str, str], ...]] = dataclasses.asdict(cfg.files)
    return listed


def _pairs(cfg: DataConfig, split: str) -> tuple[tuple[str, str], ...]:
    """Return the file pairs of a split, listed or in the folder."""
    return _listed(cfg)[split] or _pair_in_folder(cfg, split)


def _pair_in_folder(cfg: DataConfig, split: str) -> tuple[tuple[str, str], ...]:
    """Return DIR/SPLIT.SRC and DIR/SPLIT.TGT, each plain or gzipped, or () if neither side exists."""
    if not _has_folder(cfg):
        return ()
    names = (f"{split}.{cfg.src or cfg.tgt}", f"{split}.{cfg.tgt}")
    found = [_existing_file(_tried(cfg, name), f", or list the right one in data.files.{split}") for name in names]
    match found:
        case [None, None]:
            return ()
        case [str(src), str(tgt)]:
            check(
                cfg.src != cfg.tgt,
                f"src and tgt are both '{cfg.src}': both sides of {split} would be {src}; list its files in "
                f"data.files.{split}",
            )
            return ((src, tgt),)
        case _:
            side, other = (cfg.src, found[1]) if found[0] is None else (cfg.tgt, found[0])
            plain, zipped = _tried(cfg, f"{split}.{side}")
            raise UserError(
                f"{other} has no counterpart: neither {plain} nor {zipped} exists{_compression_hint(plain)}"
            )


def _existing_file(tried: tuple[str, str], remedy: str = "") -> str | None:
    """Return the plain or the gzipped file, whichever exists. UserError if both do, since they may differ."""
    found = [file for file in tried if _exists(file)]
    check(
        len(found) < 2,
        f"{tried[0]} and {tried[1]} both exist, but only one can be read: remove or rename the other{remedy}",
    )
    return found[0] if found else None


def _compression_hint(*plain: str) -> str:
    """Return advice about the first file with one of these names in an unsupported compression, or ""."""
    found = [compressed(f"{name}{end}", how) for name in plain for end, how in ENDINGS.items() if _exists(name + end)]
    return f"; {found[0]}" if found else ""


def _has_folder(cfg: DataConfig) -> bool:
    """Whether a folder is set. Raises UserError if it does not exist, or is a file."""
    if cfg.dir and not (_names(cfg.dir) if scheme_of(cfg.dir) else Path(cfg.dir).is_dir()):
        is_file = not scheme_of(cfg.dir) and Path(cfg.dir).exists()
        why = f"this is a file; set its folder, {Path(cfg.dir).parent}" if is_file else "this folder does not exist"
        raise UserError(f"data.dir is '{cfg.dir}': {why}")
    return bool(cfg.dir)


def _names(folder: str) -> list[str]:
    """Return the names of the files in a folder. Raises UserError for an object store that cannot be used."""
    if not scheme_of(folder):
        return [path.name for path in Path(folder).iterdir()]
    try:
        return sorted({name.partition("/")[0] for name in stores.names(folder)})
    except OSError as error:
        raise stores.unusable("data.dir", folder, error) from error


def _exists(file: str) -> bool:
    """Whether a file exists in the folder of the corpus."""
    folder, _, name = file.rpartition("/")
    return name in _names(folder) if scheme_of(file) else Path(file).exists()


def _tried(cfg: DataConfig, name: str) -> tuple[str, str]:
    plain = joined(cfg.dir, name)
    return plain, f"{plain}.gz"


def _read_tsv(cfg: DataConfig, split: str) -> ParallelText | None:
    """Read DIR/SPLIT.tsv, plain or gzipped, with a label, a TAB and a text on each line."""
    path = _tsv(cfg, split)
    if path is None:
        return None
    texts, labels = [], []
    for number, line in enumerate(read_lines(path, again=True), 1):
        label, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{path}, line {number}: no TAB in {line[:40]!r}; expected a label, a TAB and a text")
        if not label.strip():
            raise UserError(f"{path}, line {number}: the label before the TAB is empty; add one, or delete the line")
        texts.append(text)
        labels.append(label.strip())
    return ParallelText(texts, labels, split, ((path, len(labels)),))


def _tsv_files(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    path = _tsv(cfg, split)
    return [] if path is None else [(path,)]


def _tsv(cfg: DataConfig, split: str) -> str | None:
    """Return DIR/SPLIT.tsv, plain or gzipped, or None if it does not exist."""
    return _existing_file(_tried(cfg, f"{split}.tsv")) if _has_folder(cfg) else None


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
    listed = _listed(cfg)
    found = [file for split in SPLITS for pair in listed[split] for file in pair]
    if cfg.dir:
        sides = ("tsv",) if cfg.corpus_kind == "tsv" else (cfg.src, cfg.tgt)
        found += [file for split in SPLITS for side in sides for file in _tried(cfg, f"{split}.{side}")]
    return tuple(found)


def missing(cfg: DataConfig, split: str) -> str:
    """Return the first listed file of a split, or the folder, that is missing on this machine; "" if none is."""
    listed = _listed(cfg)
    in_folder = cfg.dir and (not cfg.hold_out or any(map(_exists, _tried(cfg, f"{split}.{cfg.tgt}"))))
    from_train = listed["train"] if split == "valid" and not in_folder else ()
    places = [file for pair in listed[split] or from_train for file in (pair if cfg.src else pair[1:])] or [cfg.dir]
    return next((place for place in places if place and not scheme_of(place) and not Path(place).exists()), "")


def checksums(cfg: DataConfig, split: str) -> list[list[str]] | None:
    """Return checksums of the files of a split, (source, target) for each file pair. Equal files have equal text.

    None for a corpus without files, for files in an object store, or if one cannot be read; reading then reports why.

    Raises:
      UserError: a file exists both plain and gzipped, or the folder does not exist.
    """
    of = functools.cache(text_files.checksum_of)
    files = KINDS[cfg.corpus_kind].files(cfg, split)
    if any(scheme_of(file) for pair in files for file in pair):
        return None
    try:
        found = [[of(file) for file in pair] for pair in files]
    except OSError:
        return None
    return [*found, [cfg.src, cfg.tgt]] if found and cfg.corpus_kind == "tfds" else found or None


def with_counts(cfg: DataConfig, split: str, counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return `ParallelText.files` of a split with these line counts, one per file. ValueError for another number."""
    if not counts:
        return ()
    return tuple(
        (pair[-1], int(count)) for pair, count in zip(KINDS[cfg.corpus_kind].files(cfg, split), counts, strict=True)
    )


FEW = 8
"""Maximum number of files of a split that a message lists."""
_OTHER = "en"
"""Source language of the phrases in a target-only corpus, so that no test phrase occurs in train."""


def _read_cldr(cfg: DataConfig, split: str) -> ParallelText | None:
    return ParallelText(*_generate(cfg.src or _OTHER, cfg.tgt, cfg.cldr)[split], split)


def _read_cldr_kinds(cfg: DataConfig, split: str) -> ParallelText | None:
    return ParallelText(*_generate_kinds(cfg.src, cfg.cldr)[split], split)


# one stream of phrases for all splits, which are read one after another
_generate = functools.lru_cache(maxsize=1)(cldr.generate)
_generate_kinds = functools.lru_cache(maxsize=1)(cldr.generate_kinds)


def _read_tfds(cfg: DataConfig, split: str) -> ParallelText | None:
    from convs2s_jax.data import tfds  # takes half a second, and few runs need it

    sides = tfds.read(_tfds_name(cfg), split, src=cfg.src or cfg.tgt, tgt=cfg.tgt, folder=cfg.tfds_dir)
    return None if sides is None else ParallelText(*sides, split)


def _tfds_files(cfg: DataConfig, split: str) -> list[tuple[str, ...]]:
    from convs2s_jax.data import tfds

    return [(file,) for file in tfds.files(_tfds_name(cfg), split, folder=cfg.tfds_dir)]


def _tfds_name(cfg: DataConfig) -> str:
    return cfg.corpus.removeprefix("tfds:")


def _no_files(cfg: DataConfig, split: str) -> str:
    sides = {f"data.{name}": side for name, side in (("src", cfg.src), ("tgt", cfg.tgt)) if side}
    wanted = [f"{split}.{side}" for side in sides.values()]
    if not cfg.dir:
        return f"data.dir is not set: set it to the folder of {' and '.join(wanted)}, or set data.files.{split}"
    plain = [joined(cfg.dir, name) for name in wanted]
    there = sorted({name.removesuffix(".gz") for name in _names(cfg.dir) if not name.endswith(tuple(ENDINGS))})
    others = [name for name in there if not name.startswith(tuple(f"{one}." for one in SPLITS if one != split))]
    names = ", ".join(f"{name}[.gz]" for name in plain)
    hint = _compression_hint(*plain) or _suffix_hint(
        list(sides), [name for name in others if name.startswith(f"{split}.")]
    )
    return f"there is no {names}{hint or did_you_mean(wanted[0], others)}"


def _suffix_hint(fields: Sequence[str], there: Sequence[str]) -> str:
    """Return advice to set the fields of the sides to suffixes of the files of a split, "" unless there are a few."""
    if not len(fields) <= len(there) <= FEW:
        return ""
    count = "two" if len(fields) > 1 else "one"
    return f"; the folder contains {', '.join(there)}: set {' and '.join(fields)} to {count} of these suffixes"


def _no_tsv(cfg: DataConfig, split: str) -> str:
    if not cfg.dir:
        return f"data.dir is not set: set it to the folder of {split}.tsv"
    plain, zipped = _tried(cfg, f"{split}.tsv")
    return f"there is no {plain} and no {zipped}{_compression_hint(plain)}"


def _no_split(cfg: DataConfig, split: str) -> str:
    return f"data.corpus is '{cfg.corpus}': it has no split '{split}'"


class Kind(NamedTuple):
    """A kind of corpus.

    Attributes:
      read: (cfg, split) -> the two sides of a split, or None if the corpus does not have the split.
      missing: (cfg, split) -> a message that states what is missing.
      files: (cfg, split) -> the files of a split, (source, target) pairs or single files; [] if there are none.
      places: fields of `DataConfig` that specify its text, from "dir" and "files".
    """

    read: Callable[[DataConfig, str], ParallelText | None]
    missing: Callable[[DataConfig, str], str]
    files: Callable[[DataConfig, str], Sequence[tuple[str, ...]]] = lambda *_: []
    places: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "files": Kind(_read_files, _no_files, _text_files, ("dir", "files")),
        "tsv": Kind(_read_tsv, _no_tsv, _tsv_files, ("dir",)),
        "cldr": Kind(_read_cldr, _no_split),
        "cldr_kinds": Kind(_read_cldr_kinds, _no_split),
        "tfds": Kind(_read_tfds, _no_split, _tfds_files),
    }
)
