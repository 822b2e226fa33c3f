"""The batch plan of a run: shapes, with the number of batches and pairs and the share of padding for each."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convs2s_jax.data import plan, tokens_on_disk
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import fingerprint
from convs2s_jax.training.run.prepare import batch_shapes, longest

CELLS = 60
"""Maximum number of cells per axis in the chart of lengths."""


@dataclass(frozen=True)
class Row:
    """The batches of one shape in the first epoch.

    Attributes:
      shape: rows and lengths.
      batches: number of batches.
      pairs: number of sentence pairs in them.
      padding: share of their cells that is padding.
    """

    shape: Shape
    batches: int
    pairs: int
    padding: float


@dataclass(frozen=True)
class BatchPlan:
    """The first epoch of a run.

    Attributes:
      rows: one for each shape, smallest first.
      padding: share of all cells that is padding.
      lengths: (source from, source to, target from, target to, pairs): the number of pairs with lengths in these
        ranges, whose ends are exclusive.
    """

    rows: tuple[Row, ...]
    padding: float
    lengths: tuple[tuple[int, int, int, int, int], ...]


def of_run(cfg: Config, workdir: Path) -> BatchPlan | None:
    """The batch plan for the tokenised text in the run's cache; None if there is none. Nothing is tokenised.

    If the cache contains texts of several runs, the checkpoints identify the text of this run; without them there is no
    plan. Nor is there one with `data.subword_sampling`, since the cache has no segmentation of a single epoch.
    """
    if cfg.data.subword_sampling:
        return None
    folder = run_folder.cache(workdir, cfg.data.cache_dir)
    sources, targets = (_stores(folder, side) for side in ("src", "tgt"))
    pairs = sorted(  # both sides of a run are written one after the other
        (pair for pair in itertools.product(sources, targets) if len(pair[0].tokens) == len(pair[1].tokens)),
        key=lambda pair: abs(pair[0].written - pair[1].written),
    )
    known = position_file.known_splits(workdir).get("train")
    if known is None and len(pairs) > 1:
        return None  # nothing tells which one belongs to this run
    for src, tgt in pairs:
        if known is None or known == fingerprint(src.tokens, tgt.tokens):
            return planned(cfg, src.tokens.lengths + 1, tgt.tokens.lengths + 1)  # the end symbols
    return None


class _Stored(NamedTuple):
    """Tokenised text in the cache, and the time when it was written, in seconds."""

    tokens: TokenizedText
    written: float


def _stores(folder: Path, side: str) -> list[_Stored]:
    found = [(tokens_on_disk.peek(path), path.stat().st_mtime) for path in folder.glob(f"train.{side}-*.tokens")]
    return [_Stored(tokens, written) for tokens, written in found if tokens is not None]


def planned(cfg: Config, src: np.ndarray, tgt: np.ndarray) -> BatchPlan:
    """Plan the first epoch over pairs of these lengths [n], including end symbols, as training does."""
    max_source, max_target = longest(cfg)
    if cfg.data.batch.cut_source:
        src = np.minimum(src, max_source)
    rows, _ = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    _, shapes = batch_shapes(cfg, src[rows], tgt[rows])
    epoch = plan.plan_epoch(src, tgt, rows, shapes, seed=cfg.seed, epoch=1)
    found = []
    for i, shape in enumerate(shapes):
        own = [batch.rows for batch in epoch.batches if batch.shape == i]
        pairs = np.concatenate(own) if own else np.zeros(0, np.intp)
        cells = len(own) * shape.rows * (shape.src + shape.tgt)
        padding = 1 - float(src[pairs].sum() + tgt[pairs].sum()) / cells if cells else 0.0
        found.append(Row(shape, len(own), len(pairs), padding))
    return BatchPlan(tuple(found), epoch.padding, _counted(src[rows], tgt[rows]))


def _counted(src: np.ndarray, tgt: np.ndarray) -> tuple[tuple[int, int, int, int, int], ...]:
    """Count pairs by length, in cells of equal width."""
    widths = [max(1, -(-int(side.max(initial=1)) // CELLS)) for side in (src, tgt)]
    cells, counts = np.unique(
        np.stack([(side - 1) // width for side, width in zip((src, tgt), widths, strict=True)], 1),
        axis=0,
        return_counts=True,
    )
    a, b = widths
    return tuple(
        (int(s) * a + 1, (int(s) + 1) * a + 1, int(t) * b + 1, (int(t) + 1) * b + 1, int(count))
        for (s, t), count in zip(cells, counts, strict=True)
    )
