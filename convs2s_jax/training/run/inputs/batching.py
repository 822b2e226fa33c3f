"""Which training pairs are used, and the shapes of their batches."""

from collections.abc import Callable

import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import plan, shapes
from convs2s_jax.data.shapes import Shape
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs.dataset import Split


def longest(cfg: Config) -> tuple[int, int]:
    """Maximum number of tokens of a source and of a target in training."""
    most = cfg.data.batch.max_length
    return min(most, cfg.model.max_source), min(most, cfg.model.max_target)


def batch_shapes(cfg: Config, src: np.ndarray, tgt: np.ndarray) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Return shapes for pairs of these lengths: with the least padding, and rounded to the multiples the run sets."""
    batch, (max_source, max_target) = cfg.data.batch, longest(cfg)
    tight = shapes.choose_shapes(src, tgt, tokens=batch.tokens, count=batch.shapes)
    most = (1 if cfg.data.one_sided else max_source, max_target)
    return tight, shapes.rounded(
        tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=most
    )


def usable_rows(cfg: Config, train: Split, tell: Callable[[str], None]) -> np.ndarray:
    """Return the indices of the training pairs that are neither empty nor too long: [n]. Report how many are skipped.

    Raises:
      UserError: none is left.
    """
    max_source, max_target = longest(cfg)
    src, tgt = train.lengths()
    rows, skipped = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    tell(
        f"training pairs: {len(rows)} used, {skipped.empty} skipped with an empty side, {skipped.too_long} skipped as "
        f"longer than {max_source} source or {max_target} target tokens"
    )
    if len(rows) == 0:
        most, by, what = cfg.data.batch.max_length, "data.batch.max_length", "it"
        if min(max_source, max_target) < most:
            most, by, what = min(max_source, max_target), "the model's positions", "them"
        raise UserError(
            f"no training pair is left: each has an empty side or is longer than the {most} tokens of {by}; "
            f"raise {what}"
        )
    return rows
