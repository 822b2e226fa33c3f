"""The splits of a corpus of parallel or labelled text. Validation lines may be held out from train."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import visible
from convs2s_jax.data import corpora
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import SPLITS, ParallelText, no_split
from convs2s_jax.data.filters import describe
from convs2s_jax.data.lines import selected


def read(cfg: DataConfig, split: str, *, optional: bool = False, folder: Path | None = None) -> ParallelText:
    """Read a split ("train", "valid" or "test") of the corpus that `cfg` specifies.

    Args:
      cfg: the corpus.
      split: its name.
      optional: return a missing split without lines instead of raising an error.
      folder: for the lines of a long text (`lines.Writer`); None to keep them in memory.

    Raises:
      UserError: files are missing, damaged, not UTF-8, empty, or not parallel.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: expected one of {SPLITS}")
    if not cfg.hold_out or split == "test":
        return _own(cfg, split, folder, optional=optional)
    valid = read_own_valid(cfg, folder)
    if split == "valid" and valid is not None:
        return valid
    train = _own(cfg, "train", folder, optional=optional)
    return train if valid is not None or not len(train) else _cut(cfg, train, folder)[split == "valid"]


def read_own_valid(cfg: DataConfig, folder: Path | None = None) -> ParallelText | None:
    """Return "valid" as `read` does, or None if it would be held out from train.

    Raises:
      UserError: as in `read`.
    """
    found = _own(cfg, "valid", folder, optional=cfg.hold_out is not None)
    return found if len(found) or not cfg.hold_out else None


def read_train_and_valid(cfg: DataConfig, folder: Path | None = None) -> tuple[ParallelText, ParallelText]:
    """Return both splits as `read` does, reading each file once. With `hold_out` 0, "valid" may have no lines.

    Raises:
      UserError: as in `read`.
    """
    train, valid = _own(cfg, "train", folder), read_own_valid(cfg, folder)
    return (train, valid) if valid is not None else _cut(cfg, train, folder)


def shared_pairs(train: ParallelText, *texts: ParallelText) -> list[int]:
    """Count the pairs of each split that are also in the training text, including copies but not empty pairs."""
    pairs = {pair for text in texts for pair in _pairs(text)} - {("", "")}
    src, tgt = ({pair[side] for pair in pairs} for side in (0, 1))
    lines, wanted = (train.src, src) if len(src) > len(tgt) else (train.tgt, tgt)  # the side that tells more
    rows = [i for i, line in enumerate(lines) if line in wanted]  # one pass for all splits
    found = {(train.src[i], train.tgt[i]) for i in rows} & pairs
    return [sum(pair in found for pair in _pairs(text)) for text in texts]


def _own(cfg: DataConfig, split: str, folder: Path | None, *, optional: bool = False) -> ParallelText:
    """Return a split of the corpus itself, with no lines if it is missing and optional. UserError as in `read`."""
    text = corpora.read(cfg, split, folder)
    if text is None:
        if optional:
            return ParallelText((), (), split)
        remedy = (
            "; set data.hold_out=0.05 to hold out a part of train, or data.hold_out=0 to train without validation"
            if split == "valid"
            else ""
        )
        raise UserError(no_split(cfg, split) + remedy)
    why = f"; {describe(split, text.dropped)}" if text.dropped else ""
    check(len(text.tgt) > 0, f"the {split} split of the corpus is empty: it needs at least one line{why}")
    return dataclasses.replace(text, src=[""] * len(text.tgt)) if cfg.one_sided else text


def _cut(cfg: DataConfig, whole: ParallelText, folder: Path | None = None) -> tuple[ParallelText, ParallelText]:
    """Split train into "train" and "valid" at random, keeping the original order. UserError if one would be empty.

    Sampled pairs are held out as long as their lines, with all copies, are no more than the lines to sample; if each
    pair has more, the rarest is. A held-out pair is in "valid" once and not in "train". With labels, "train" keeps at
    least one line of each, if any label has two different texts.
    """
    count = len(whole.src)
    order = np.random.default_rng(0).permutation(count)
    labels = [visible(tgt).strip() for tgt in whole.tgt] if cfg.labelled else []
    remaining = Counter(labels)
    if remaining:
        texts = Counter(label for _, label in set(zip(whole.src, labels, strict=True)))
        spare = np.array([texts[labels[i]] > 1 for i in order])
        order, remaining = (order[spare], remaining) if spare.any() else (order, Counter())
    assert cfg.hold_out is not None
    drawn = order[: max(1, round(cfg.hold_out * count))].tolist()
    lines: dict[tuple[str, str], list[int]] = {(whole.src[i], whole.tgt[i]): [] for i in drawn}
    for i, pair in enumerate(_pairs(whole)):
        if pair in lines:
            lines[pair].append(i)
    held, left = list[list[int]](), len(drawn)
    for copies in lines.values():
        label = labels[copies[0]] if labels else ""
        if len(copies) <= left and remaining[label] != len(copies):
            held.append(copies)
            left -= len(copies)
            remaining[label] -= len(copies)
    held = held or [min(lines.values(), key=len)]
    taken = [i for copies in held for i in copies]
    kept = np.delete(np.arange(count), taken)
    check(
        len(kept) > 0,
        f"data.hold_out takes validation lines from train, whose {count} lines are all the same pair: add a different "
        "one",
    )
    first = sorted(copies[0] for copies in held)
    return _part(whole, "train", kept, folder), _part(whole, "valid", first, folder, len(taken) - len(held))


def _pairs(text: ParallelText) -> Iterator[tuple[str, str]]:
    return zip(text.src, text.tgt, strict=True)


def _part(
    whole: ParallelText, name: str, rows: Sequence[int] | np.ndarray, folder: Path | None, copies: int = 0
) -> ParallelText:
    wanted = np.zeros(len(whole), bool)
    wanted[rows] = True
    src, tgt = (selected(lines, wanted, folder) for lines in (whole.src, whole.tgt))
    places, held = np.asarray(rows) if whole.rows is None else whole.rows[rows], name == "valid"
    dropped = {} if held else whole.dropped
    return ParallelText(src, tgt, name, whole.files, places, copies, is_held_out=held, dropped=dropped)
