"""The batch plan: which sentence pairs are in each batch, and in which of a few shapes.

The plan is a pure function of (lengths, budget, number of shapes, seed, epoch). Every process computes the same plan
and loads its share. It does not depend on the number of processes or devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convs2s_jax.data.shapes import Shape, blocks, fitting


class PlannedBatch(NamedTuple):
    """One batch.

    Attributes:
      shape: index into the plan's shapes.
      rows: [n], indices of its sentence pairs in the corpus; n is at most the number of rows of the shape.
    """

    shape: int
    rows: np.ndarray


class Plan(NamedTuple):
    """The batches of one epoch.

    Attributes:
      shapes: the shapes of all batches.
      batches: the batches, in order of use.
    """

    shapes: tuple[Shape, ...]
    batches: tuple[PlannedBatch, ...]

    def first_uses(self, start: int = 0) -> tuple[Shape, ...]:
        """Return the shapes of the batches from `start` on, in order of first use."""
        return tuple(dict.fromkeys(self.shapes[batch.shape] for batch in self.batches[start:]))


def usable(
    src: np.ndarray, tgt: np.ndarray, *, max_source: int, max_target: int, one_sided: bool = False
) -> tuple[np.ndarray, int, int]:
    """Return the indices of the pairs to train on, and the numbers of pairs with an empty side and of too long ones.

    Args:
      src, tgt: lengths [n] in tokens, including the end symbol (1 is an empty side).
      max_source, max_target: maximum lengths.
      one_sided: sources are empty in this corpus.
    """
    empty = ((src <= 1) & (not one_sided)) | (tgt <= 1)
    too_long = ~empty & ((src > max_source) | (tgt > max_target))
    rows = np.flatnonzero(~empty & ~too_long)
    return rows.astype(np.int32) if len(src) < 1 << 31 else rows, int(empty.sum()), int(too_long.sum())


def mixed(rows: np.ndarray, sizes: Sequence[int], weights: Sequence[float], *, seed: int, epoch: int) -> np.ndarray:
    """Return the rows of an epoch of a mixture, part after part: as many as all parts have together.

    A part that gets k rows an epoch gets number (epoch - 1) k to epoch k - 1 of an endless sequence, permutation after
    permutation of its rows. So while the weights stay, each row is used once before any is used again.

    Args:
      rows: indices of the pairs to use, ascending; at least one of each part.
      sizes: number of pairs of each part of the corpus.
      weights: of the parts; without any, `rows` are returned.
      seed, epoch: determine the rows.
    """
    if not len(weights):
        return rows
    exact = len(rows) * np.array(weights) / sum(weights)
    counts = exact.astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: len(rows) - counts.sum()]] += 1  # the largest remainders
    parts, mixture, at = np.split(rows, np.searchsorted(rows, np.cumsum(sizes[:-1]))), np.empty_like(rows), 0
    for i, (part, k) in enumerate(zip(parts, counts.tolist(), strict=True)):
        first, n = (epoch - 1) * k, len(part)
        for cycle in range(first // n, -(-(first + k) // n)):
            begin, end = max(first - cycle * n, 0), min(first + k - cycle * n, n)
            rng = np.random.default_rng([seed, i + 1, cycle + 1])  # numpy reads a last 0 as if it were not there
            mixture[at : at + end - begin] = rng.permutation(part)[begin:end]
            at += end - begin
    return mixture


def plan_epoch(
    src: np.ndarray, tgt: np.ndarray, rows: np.ndarray, shapes: tuple[Shape, ...], *, seed: int, epoch: int
) -> Plan:
    """Shuffle the rows and split them into batches.

    Each pair goes to the smallest shape that fits it. Pairs that do not fill a batch move to the next larger shape, so
    that few batches are incomplete.

    Args:
      src, tgt: lengths [n] of the whole corpus, including the end symbol.
      rows: indices of the pairs to use.
      shapes: as returned by `choose_shapes`, smallest first.
      seed, epoch: determine the order.
    """
    rng = np.random.default_rng([seed, epoch])
    batches = _fill(src, tgt, rng.permutation(rows), shapes)
    return Plan(shapes=shapes, batches=tuple(batches[i] for i in rng.permutation(len(batches))))


def plan_all(src: np.ndarray, tgt: np.ndarray, shapes: tuple[Shape, ...], rows: np.ndarray | None = None) -> Plan:
    """Return a plan over all rows in a fixed order, for validation. Nothing is skipped or shuffled.

    `plan_epoch` returns as many batches of each shape for these rows.

    Args:
      src, tgt: lengths [n] in tokens, including the end symbol.
      shapes: shapes that fit all pairs.
      rows: indices of the pairs to use; None for all.
    """
    rows = np.arange(len(src)) if rows is None else rows
    return Plan(shapes=shapes, batches=tuple(_fill(src, tgt, rows, shapes)))


def _fill(src: np.ndarray, tgt: np.ndarray, rows: np.ndarray, shapes: tuple[Shape, ...]) -> list[PlannedBatch]:
    """Split rows into batches in order. Leftovers move to larger shapes."""
    if not shapes:
        return []
    parts = [rows[part] for part in blocks(len(rows))]
    home = np.concatenate([fitting(src[part], tgt[part], shapes).astype(np.uint16) for part in [*parts, rows[:0]]])
    waiting = [rows[home == i] for i in range(len(shapes))]
    batches = []
    for i, shape in enumerate(shapes):
        here = waiting[i]
        full = len(here) // shape.rows * shape.rows
        batches += [PlannedBatch(i, part) for part in here[:full].reshape(-1, shape.rows)]
        rest = here[full:]
        if len(rest) == 0:
            continue
        larger = next((j for j in range(i + 1, len(shapes)) if shape.fits_in(shapes[j])), None)
        if larger is None:
            batches.append(PlannedBatch(i, rest))
        else:
            waiting[larger] = np.concatenate([waiting[larger], rest])
    return batches


def padding(src: np.ndarray, tgt: np.ndarray, rows: np.ndarray, plan: Plan) -> float:
    """Return the fraction of padding in the batches of these rows, in [0, 1]."""
    cells = sum(shape.rows * (shape.src + shape.tgt) for shape in (plan.shapes[b.shape] for b in plan.batches))
    return 1.0 - int(src[rows].sum() + tgt[rows].sum()) / cells if cells else 0.0
