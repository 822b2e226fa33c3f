"""Parallel text, or texts with labels: the lines of a split, where validation may be held out from train."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import KINDS, SPLITS, Kind, Sides


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Aligned lines: `tgt[i]` is the translation, or the label, of `src[i]`.

    Attributes:
      src: source lines; all empty in a target-only corpus.
      tgt: target lines.
      name: name of the split.
      files: (name, number of lines) of each target file, in order; empty if the corpus has no files.
      rows: positions of these lines in the concatenated files; None for all lines.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    name: str
    files: tuple[tuple[str, int], ...] = dataclasses.field(default=(), compare=False)
    rows: Sequence[int] | None = dataclasses.field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def where(self, i: int) -> str:
        """File and line of target i, for messages."""
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
      optional: return a missing split without lines instead of raising an error.

    Raises:
      UserError: files are missing, damaged, not UTF-8, empty, or not parallel.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, not one of {SPLITS}")
    kind = _kind(cfg)
    if not cfg.hold_out or split == "test":
        return _text(cfg, split, kind.read(cfg, split), optional=optional)
    own = kind.read(cfg, "valid")
    if split == "valid" and own is not None:
        return _text(cfg, split, own)
    return _text(cfg, split, _held_out(cfg, kind.read(cfg, "train"), own)[split], optional=optional)


def read_train_and_valid(cfg: DataConfig) -> tuple[ParallelText, ParallelText]:
    """Both splits as `read` has them, with each file read once; without `hold_out` the second may have no lines.

    Raises:
      UserError: as `read`.
    """
    kind = _kind(cfg)
    whole = kind.read(cfg, "train")
    parts = _held_out(cfg, whole, None if whole is None else kind.read(cfg, "valid"))
    return _text(cfg, "train", parts["train"]), _text(cfg, "valid", parts["valid"], optional=cfg.hold_out == 0)


def _kind(cfg: DataConfig) -> Kind:
    return KINDS[cfg.corpus.partition(":")[0]]


def _text(cfg: DataConfig, split: str, sides: Sides | None, *, optional: bool = False) -> ParallelText:
    """A split from what the corpus has of it, None for nothing. Raises UserError as `read`."""
    if sides is None:
        if optional:
            return ParallelText((), (), split)
        way = (
            "; data.hold_out=0.05 takes a part of train for it, data.hold_out=0 does without"
            if split == "valid"
            else ""
        )
        raise UserError(_kind(cfg).missing(cfg, split) + way)
    if len(sides.tgt) == 0:
        raise UserError(f"the {split} split of the corpus is empty: it needs at least one line")
    src = [""] * len(sides.tgt) if cfg.one_sided else sides.src
    return ParallelText(src, sides.tgt, split, sides.files, sides.rows)


def _held_out(cfg: DataConfig, whole: Sides | None, own: Sides | None) -> Mapping[str, Sides | None]:
    """The splits "train" and "valid" of a corpus; without its own "valid" that is a part of train, if `hold_out`."""
    if not cfg.hold_out or own is not None or whole is None:
        return {"train": whole, "valid": own}
    return _cut(whole, cfg.hold_out)


def _cut(whole: Sides, share: float) -> Mapping[str, Sides]:
    """Split train into two parts at random; lines stay in their original order. UserError if one would be empty."""
    count = len(whole.src)
    check(count != 1, "data.hold_out takes validation lines from train, which has a single line: set it to 0")
    held = np.zeros(count, bool)
    held[np.random.default_rng(0).permutation(count)[: max(1, round(share * count))]] = True

    def part(rows: np.ndarray) -> Sides:
        return Sides([whole.src[i] for i in rows], [whole.tgt[i] for i in rows], whole.files, rows.tolist())

    return {"train": part(np.flatnonzero(~held)), "valid": part(np.flatnonzero(held))}
