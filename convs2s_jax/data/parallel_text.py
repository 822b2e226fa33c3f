"""The splits of a corpus of parallel or labelled text. Validation lines may be held out from train."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import visible
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
    pairs = {pair for text in texts for pair in _pairs(text)} - {("", "")}
    found = {pair for pair in _pairs(train) if pair in pairs}  # one pass for all splits
    return [sum(pair in found for pair in _pairs(text)) for text in texts]


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

    Sampled pairs are held out as long as their lines, with all copies, are no more than the lines to sample; if each
    pair has more, the rarest is. A held-out pair is in "valid" once and not in "train". With labels, "train" keeps at
    least one line of each, if any label has two different texts.
    """
    count = len(whole.src)
    order = np.random.default_rng(0).permutation(count)
    labels = [visible(tgt).strip() for tgt in whole.tgt]
    remaining = Counter(labels) if cfg.labelled else None
    if remaining:
        texts = Counter(label for _, label in set(zip(whole.src, labels, strict=True)))
        spare = np.array([texts[labels[i]] > 1 for i in order])
        order, remaining = (order[spare], remaining) if spare.any() else (order, None)
    assert cfg.hold_out is not None
    drawn = order[: max(1, round(cfg.hold_out * count))].tolist()
    lines: dict[tuple[str, str], list[int]] = {(whole.src[i], whole.tgt[i]): [] for i in drawn}
    for i, pair in enumerate(_pairs(whole)):
        if pair in lines:
            lines[pair].append(i)
    held, left = list[list[int]](), len(drawn)
    for copies in lines.values():
        label = labels[copies[0]]
        if len(copies) <= left and not (remaining and remaining[label] == len(copies)):
            held.append(copies)
            left -= len(copies)
            if remaining:
                remaining[label] -= len(copies)
    held = held or [min(lines.values(), key=len)]
    taken = {i for copies in held for i in copies}
    kept = [i for i in range(count) if i not in taken]
    check(
        bool(kept),
        f"data.hold_out takes validation lines from train, whose {count} lines are all the same pair: add a different "
        "one",
    )
    first = sorted(copies[0] for copies in held)
    return _part(whole, "train", kept), _part(whole, "valid", first, len(taken) - len(held))


def _pairs(text: ParallelText) -> Iterator[tuple[str, str]]:
    return zip(text.src, text.tgt, strict=True)


def _part(whole: ParallelText, name: str, rows: Sequence[int], copies: int = 0) -> ParallelText:
    src, tgt = ([side[i] for i in rows] for side in (whole.src, whole.tgt))
    return ParallelText(src, tgt, name, whole.files, rows, copies)
