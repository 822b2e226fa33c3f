"""Few (S, T) rectangles that hold all sentence pairs with little padding."""

from typing import NamedTuple

import numpy as np

LEVELS = 48
"""Lengths a side is rounded up to while rectangles are chosen: bounds the work on long-tailed corpora."""


class Shape(NamedTuple):
    """A batch of `rows` pairs, sources padded to `src` and targets to `tgt` tokens."""

    src: int
    tgt: int
    rows: int

    def fits_in(self, other: "Shape") -> bool:
        """Whether every pair of this shape also fits into the other."""
        return self.src <= other.src and self.tgt <= other.tgt


def rows_within(tokens: int, longest: int) -> int:
    """Rows whose longest side stays within the budget: at least 1, and where more than 8 fit a multiple of 8."""
    rows = max(1, tokens // longest)
    return rows // 8 * 8 if rows > 8 else rows


def fitting(src: np.ndarray, tgt: np.ndarray, shapes: tuple[Shape, ...]) -> np.ndarray:
    """Index of the smallest shape (least S + T) that holds each pair: [n]; ValueError where none does."""
    if len(src) == 0:
        return np.zeros(0, np.intp)
    cost = np.array([shape.src + shape.tgt for shape in shapes])
    fits = (src[:, None] <= [shape.src for shape in shapes]) & (tgt[:, None] <= [shape.tgt for shape in shapes])
    if not fits.any(axis=1).all():
        raise ValueError("there are pairs that no shape holds; choose the shapes from the same rows")
    return np.argmin(np.where(fits, cost, np.iinfo(np.int64).max), axis=1)


def choose_shapes(src: np.ndarray, tgt: np.ndarray, *, tokens: int, count: int) -> tuple[Shape, ...]:
    """Choose at most `count` rectangles that together hold all pairs, greedily, then improve each in turn.

    A pair costs S + T of the smallest rectangle that holds it. The first rectangle holds everything; each further one
    is the rectangle that saves most. Then each but the largest is taken out and chosen anew until nothing is gained.

    Args:
      src, tgt: lengths [n] in tokens, end symbol included.
      tokens: budget, rows * max(S, T) <= tokens; a shape longer than that has one row.
      count: at most this many rectangles.

    Returns:
      Shapes, smallest S + T first.
    """
    if len(src) == 0:
        return ()
    src_levels, tgt_levels = _levels(src), _levels(tgt)
    counts = np.zeros((len(src_levels), len(tgt_levels)))
    np.add.at(counts, (np.searchsorted(src_levels, src), np.searchsorted(tgt_levels, tgt)), 1)
    size = src_levels[:, None] + tgt_levels[None, :]
    largest = (len(src_levels) - 1, len(tgt_levels) - 1)
    chosen = [largest]
    while len(chosen) < count:
        best, gain = _best(counts, size, chosen)
        if gain <= 0:
            break
        chosen.append(best)
    improved = True
    while improved:
        improved = False
        for old in chosen[1:]:
            others = [c for c in chosen if c != old]
            best, _ = _best(counts, size, others)
            if best not in chosen:
                chosen = [*others, best]
                improved = True
    pairs = sorted({(int(src_levels[i]), int(tgt_levels[j])) for i, j in chosen}, key=lambda p: (sum(p), p))
    return tuple(Shape(s, t, rows_within(tokens, max(s, t))) for s, t in pairs)


def _levels(lengths: np.ndarray) -> np.ndarray:
    """Sorted lengths to round up to: all that occur, or quantiles of them where there are too many."""
    values = np.unique(lengths)
    if len(values) <= LEVELS:
        return values
    return np.unique(np.quantile(lengths, np.linspace(0, 1, LEVELS), method="higher"))


def _best(counts: np.ndarray, size: np.ndarray, chosen: list[tuple[int, int]]) -> tuple[tuple[int, int], float]:
    """The rectangle (i, j) that saves most beside those chosen, and how many cells it saves."""
    cost = np.full(counts.shape, np.inf)
    for i, j in chosen:
        cost[: i + 1, : j + 1] = np.minimum(cost[: i + 1, : j + 1], size[i, j])
    best, most = chosen[0], 0.0
    for i in range(counts.shape[0]):
        for j in range(counts.shape[1]):
            corner = np.s_[: i + 1, : j + 1]
            gain = float(np.sum(counts[corner] * np.maximum(cost[corner] - size[i, j], 0)))
            if gain > most:
                best, most = (i, j), gain
    return best, most
