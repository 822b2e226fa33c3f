"""Choose a few (S, T) shapes that fit all sentence pairs with little padding."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from convs2s_jax.core.rows import round_up

LEVELS = 48
"""Maximum number of distinct lengths per side when choosing shapes; rounding lengths up to them bounds the work."""
BLOCK = 1 << 20
"""Number of pairs whose lengths are looked at together."""


class Shape(NamedTuple):
    """The shape of a batch.

    Attributes:
      src: length in tokens to which sources are padded.
      tgt: length in tokens to which targets are padded.
      rows: number of pairs.
    """

    src: int
    tgt: int
    rows: int

    def __str__(self) -> str:
        """Rows x (source, target) lengths: 64 x (32, 32)."""
        return f"{self.rows} x ({self.src}, {self.tgt})"

    def fits_in(self, other: "Shape") -> bool:
        """Whether every pair of this shape also fits into the other."""
        return self.src <= other.src and self.tgt <= other.tgt


def rows_within(tokens: int, longest: int, *, pairs: int | None = None) -> int:
    """Return the number of rows of this length within the budget: at least 1, and a multiple of 8 if more than 8 fit.

    If `pairs` is set, there are no more rows than this number of pairs needs.
    """
    rows = max(1, tokens // longest)
    if pairs is not None:
        rows = min(rows, pairs if pairs <= 8 else round_up(pairs, 8))
    return rows // 8 * 8 if rows > 8 else rows


def fitting(src: np.ndarray, tgt: np.ndarray, shapes: tuple[Shape, ...]) -> np.ndarray:
    """Return the index of the smallest shape (by S + T) that fits each pair: [n]. ValueError if none fits a pair.

    Pairs between the same shape lengths fit the same shapes, so a table of these lengths contains the answers.
    """
    if len(src) == 0:
        return np.zeros(0, np.intp)
    levels = [np.unique([shape[side] for shape in shapes]) for side in (0, 1)]
    table = np.full([len(side) + 1 for side in levels], -1, np.intp)  # the last row and column: too long for all
    for i in sorted(range(len(shapes)), key=lambda i: (-shapes[i].src - shapes[i].tgt, -i)):  # the smallest is last
        table[tuple(slice(np.searchsorted(side, n) + 1) for side, n in zip(levels, shapes[i][:2], strict=True))] = i
    found = table[np.searchsorted(levels[0], src), np.searchsorted(levels[1], tgt)]
    if (found < 0).any():
        raise ValueError("some pairs do not fit into any shape; choose the shapes from the same rows")
    return found


def choose_shapes(src: np.ndarray, tgt: np.ndarray, *, tokens: int, count: int) -> tuple[Shape, ...]:
    """Greedily choose at most `count` rectangles that together fit all pairs, then improve each in turn.

    The cost of a pair is S + T of the smallest rectangle that fits it. The first rectangle fits all pairs, and each
    further one is the one that saves most. Then all but the largest are replaced by better ones as long as possible.

    Args:
      src, tgt: lengths [n] in tokens, including the end symbol.
      tokens: budget, rows * max(S, T) <= tokens. A shape longer than that has one row; none has more than n needs.
      count: maximum number of rectangles.

    Returns:
      Shapes in ascending order of S + T.
    """
    if len(src) == 0:
        return ()
    src_levels, tgt_levels = _levels(src), _levels(tgt)
    counts = np.zeros((len(src_levels), len(tgt_levels)))
    for part in blocks(len(src)):
        cells = np.searchsorted(src_levels, src[part]) * len(tgt_levels) + np.searchsorted(tgt_levels, tgt[part])
        counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
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
    return tuple(Shape(s, t, rows_within(tokens, max(s, t), pairs=len(src))) for s, t in pairs)


def rounded(
    shapes: tuple[Shape, ...], *, tokens: int, rows: int, length: int, most: tuple[int, int]
) -> tuple[Shape, ...]:
    """Round rows and lengths of shapes to multiples, such as a TPU's tile sizes; shapes that become equal are merged.

    Args:
      shapes: as returned by `choose_shapes`.
      tokens: budget, as there. A shape has at least `rows` rows, even if that exceeds the budget.
      rows: round rows down to a multiple of this within the budget.
      length: round lengths up to a multiple of this, but not above `most`.
      most: maximum source and target lengths of the model.

    Returns:
      Shapes in ascending order of S + T; unchanged if both multiples are 1.
    """
    if rows == length == 1:
        return shapes
    raised = {tuple(min(round_up(n, length), m) for n, m in zip(shape[:2], most, strict=True)) for shape in shapes}
    pairs = sorted(raised, key=lambda p: (sum(p), p))
    most_rows = round_up(max(shape.rows for shape in shapes), rows)  # with few pairs, the rows that they fill
    within = [min(most_rows, rows_within(tokens, max(pair))) for pair in pairs]
    return tuple(Shape(s, t, max(rows, n // rows * rows)) for (s, t), n in zip(pairs, within, strict=True))


def _levels(lengths: np.ndarray) -> np.ndarray:
    """Return the sorted lengths to round up to: all that occur, or quantiles if there are more than `LEVELS`."""
    size = int(lengths.max()) + 1
    counts = sum(np.bincount(lengths[part], minlength=size) for part in blocks(len(lengths)))
    values = np.flatnonzero(counts)
    if len(values) <= LEVELS:
        return values
    places = np.ceil(np.linspace(0, 1, LEVELS) * (len(lengths) - 1))
    return np.unique(np.searchsorted(np.cumsum(counts), places, side="right"))


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` pairs, since numpy's intermediate results take more memory than the lengths."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


def _best(counts: np.ndarray, size: np.ndarray, chosen: list[tuple[int, int]]) -> tuple[tuple[int, int], float]:
    """Return the rectangle (i, j) that saves most when added to the chosen ones, and the number of cells saved."""
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
