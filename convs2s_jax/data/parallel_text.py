"""The splits of a corpus of parallel or labelled text. Validation lines may be held out from train."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import KINDS, SPLITS, Kind, ParallelText


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
    kind = _kind(cfg)
    if not cfg.hold_out or split == "test":
        return _checked(cfg, split, kind.read(cfg, split), optional=optional)
    own = kind.read(cfg, "valid")
    if split == "valid" and own is not None:
        return _checked(cfg, split, own)
    return _checked(cfg, split, _held_out(cfg, kind.read(cfg, "train"), own)[split], optional=optional)


def read_own(cfg: DataConfig, split: str) -> ParallelText | None:
    """Return a split as `read` does, or None for a "valid" that would be held out from train.

    Raises:
      UserError: as in `read`.
    """
    sides = _kind(cfg).read(cfg, split)
    if sides is None and split == "valid" and cfg.hold_out:
        return None
    return _checked(cfg, split, sides, optional=split == "test" or cfg.hold_out == 0)


def read_train_and_valid(cfg: DataConfig) -> tuple[ParallelText, ParallelText]:
    """Return both splits as `read` does, reading each file once. With `hold_out` 0, "valid" may have no lines.

    Raises:
      UserError: as in `read`.
    """
    kind = _kind(cfg)
    whole = kind.read(cfg, "train")
    parts = _held_out(cfg, whole, None if whole is None else kind.read(cfg, "valid"))
    return _checked(cfg, "train", parts["train"]), _checked(cfg, "valid", parts["valid"], optional=cfg.hold_out == 0)


def shared_pairs(train: ParallelText, *texts: ParallelText) -> list[int]:
    """Count the pairs of each split that are also in the training text, including copies but not empty pairs."""
    pairs = {pair for text in texts for pair in zip(text.src, text.tgt, strict=True)} - {("", "")}
    found = {pair for pair in zip(train.src, train.tgt, strict=True) if pair in pairs}  # one pass for all splits
    return [sum(pair in found for pair in zip(text.src, text.tgt, strict=True)) for text in texts]


def _kind(cfg: DataConfig) -> Kind:
    return KINDS[cfg.corpus_kind]


def _checked(cfg: DataConfig, split: str, text: ParallelText | None, *, optional: bool = False) -> ParallelText:
    """Return a split, which is None if the corpus does not have it. Raises UserError as `read` does."""
    if text is None:
        if optional:
            return ParallelText((), (), split)
        remedy = (
            "; set data.hold_out=0.05 to hold out a part of train, or data.hold_out=0 to train without validation"
            if split == "valid"
            else ""
        )
        raise UserError(_kind(cfg).missing(cfg, split) + remedy)
    check(len(text.tgt) > 0, f"the {split} split of the corpus is empty: it needs at least one line")
    return dataclasses.replace(text, src=[""] * len(text)) if cfg.one_sided else text


def _held_out(
    cfg: DataConfig, whole: ParallelText | None, own: ParallelText | None
) -> Mapping[str, ParallelText | None]:
    """Return "train" and "valid" of a corpus. Without its own "valid", hold out a part of train if `hold_out` > 0."""
    if not cfg.hold_out or own is not None or not whole or not whole.tgt:
        return {"train": whole, "valid": own}
    return _cut(whole, cfg.hold_out, labelled=cfg.labelled)


def _cut(whole: ParallelText, share: float, *, labelled: bool) -> Mapping[str, ParallelText]:
    """Split train into two parts at random, keeping the original order. UserError if one would be empty.

    A held-out pair is in "valid" once and not in "train".

    Args:
      whole: the training text.
      share: fraction of it to hold out.
      labelled: whether targets are labels. Then "train" keeps at least one line of each, if any label has two different
        texts.
    """
    count = len(whole.src)
    check(
        count != 1,
        "data.hold_out takes validation lines from train, which has only one line: add lines, since holding one out "
        "requires at least two",
    )
    order = np.random.default_rng(0).permutation(count)
    labels = [tgt.strip() for tgt in whole.tgt] if labelled else []
    if labels:
        texts = Counter(label for _, label in set(zip(whole.src, labels, strict=True)))
        spare = np.array([texts[labels[i]] > 1 for i in order])
        order, labels = (order[spare], labels) if spare.any() else (order, [])
    drawn = order[: max(1, round(share * count))]
    held, taken = _distinct(whole, drawn, labels)
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

    return {"train": part("train", np.flatnonzero(kept)), "valid": part("valid", held, len(taken) - len(held))}


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
