"""The splits of a corpus of parallel or labelled text. Validation lines may be held out from train."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import KINDS, SPLITS, ParallelText, no_split


def read(cfg: DataConfig, split: str, *, optional: bool = False) -> ParallelText:
    """Read a split ("train", "valid" or "test") of the corpus that `cfg` specifies.

    Args:
      cfg: the corpus.
      split: its name.
      optional: return a missing split without lines instead of raising an error.

    Raises:
      UserError: files are missing, damaged, not UTF-8, empty, or not parallel.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: expected one of {SPLITS}")
    if not cfg.hold_out or split == "test":
        return _own(cfg, split, optional=optional)
    valid = read_own_valid(cfg)
    if split == "valid" and valid is not None:
        return valid
    train = _own(cfg, "train", optional=optional)
    return train if valid is not None or not len(train) else _cut(cfg, train)[split == "valid"]


def read_own_valid(cfg: DataConfig) -> ParallelText | None:
    """Return "valid" as `read` does, or None if it would be held out from train.

    Raises:
      UserError: as in `read`.
    """
    found = _own(cfg, "valid", optional=cfg.hold_out is not None)
    return found if len(found) or not cfg.hold_out else None


def read_train_and_valid(cfg: DataConfig) -> tuple[ParallelText, ParallelText]:
    """Return both splits as `read` does, reading each file once. With `hold_out` 0, "valid" may have no lines.

    Raises:
      UserError: as in `read`.
    """
    train, valid = _own(cfg, "train"), read_own_valid(cfg)
    return (train, valid) if valid is not None else _cut(cfg, train)


def shared_pairs(train: ParallelText, *texts: ParallelText) -> list[int]:
    """Count the pairs of each split that are also in the training text, including copies but not empty pairs."""
    pairs = {pair for text in texts for pair in zip(text.src, text.tgt, strict=True)} - {("", "")}
    found = {pair for pair in zip(train.src, train.tgt, strict=True) if pair in pairs}  # one pass for all splits
    return [sum(pair in found for pair in zip(text.src, text.tgt, strict=True)) for text in texts]


def _own(cfg: DataConfig, split: str, *, optional: bool = False) -> ParallelText:
    """Return a split of the corpus itself, with no lines if it is missing and optional. UserError as in `read`."""
    text = KINDS[cfg.corpus_kind].read(cfg, split)
    if text is None:
        if optional:
            return ParallelText((), (), split)
        remedy = (
            "; set data.hold_out=0.05 to hold out a part of train, or data.hold_out=0 to train without validation"
            if split == "valid"
            else ""
        )
        raise UserError(no_split(cfg, split) + remedy)
    check(len(text.tgt) > 0, f"the {split} split of the corpus is empty: it needs at least one line")
    return dataclasses.replace(text, src=[""] * len(text)) if cfg.one_sided else text


def _cut(cfg: DataConfig, whole: ParallelText) -> tuple[ParallelText, ParallelText]:
    """Split train into "train" and "valid" at random, keeping the original order. UserError if one would be empty.

    A held-out pair is in "valid" once and not in "train". With labels, "train" keeps at least one line of each, if any
    label has two different texts.
    """
    count = len(whole.src)
    labels = [tgt.strip() for tgt in whole.tgt] if cfg.labelled else []
    order = np.random.default_rng(0).permutation(count)
    if labels:
        texts = Counter(label for _, label in set(zip(whole.src, labels, strict=True)))
        spare = np.array([texts[labels[i]] > 1 for i in order])
        order, labels = (order[spare], labels) if spare.any() else (order, [])
    assert cfg.hold_out is not None
    held, taken = _distinct(whole, order[: max(1, round(cfg.hold_out * count))], labels)
    kept = np.ones(count, bool)
    kept[taken] = False
    check(
        bool(kept.any()),
        f"data.hold_out takes validation lines from train, whose {count} lines are all the same pair: add a different "
        "one",
    )

    def part(name: str, rows: np.ndarray, copies: int = 0) -> ParallelText:
        src, tgt = ([side[i] for i in rows] for side in (whole.src, whole.tgt))
        return ParallelText(src, tgt, name, whole.files, rows.tolist(), copies)

    return part("train", np.flatnonzero(kept)), part("valid", held, len(taken) - len(held))


def _distinct(whole: ParallelText, drawn: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Choose sampled pairs whose lines, with all copies, are no more than were sampled; one pair if each has more.

    Args:
      whole: the training text.
      drawn: sampled line numbers; their order decides which pairs are chosen.
      labels: the label of each line; at least one line of each label is kept. Empty for parallel text.

    Returns:
      The first line of each chosen pair, and all lines of chosen pairs; both ascending.
    """
    numbers: dict[tuple[str, str], int] = {}
    for i in drawn.tolist():
        numbers.setdefault((whole.src[i], whole.tgt[i]), len(numbers))
    pairs = zip(whole.src, whole.tgt, strict=True)
    number = np.fromiter((numbers.get(pair, -1) for pair in pairs), np.int64, len(whole.src))
    lines = np.flatnonzero(number >= 0)
    copies, left = np.bincount(number[lines]), len(drawn)
    held = np.zeros(len(numbers), bool)
    remaining = Counter(labels)
    for (_, tgt), pair in numbers.items():
        count = int(copies[pair])
        if count > left or (labels and remaining[tgt.strip()] == count):
            continue
        held[pair], left = True, left - count
        if labels:
            remaining[tgt.strip()] -= count
    if not held.any():
        held[np.argmin(copies)] = True
    taken = lines[held[number[lines]]]
    first = np.unique(number[taken], return_index=True)[1]
    return taken[np.sort(first)], taken
