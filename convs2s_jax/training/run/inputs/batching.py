"""Which training pairs are used, and the shapes of their batches."""

import numpy as np

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data import plan, shapes
from convs2s_jax.data.shapes import Shape
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs.dataset import Split


def longest(cfg: Config) -> tuple[int, int]:
    """Maximum number of tokens of a source and of a target in training."""
    most = cfg.data.batch.max_length
    return min(most, cfg.model.max_source), min(most, cfg.model.max_target)


def by_side(cfg: Config, source: int, target: int) -> dict[str, int]:
    """Lengths of a source and of a target, by the names of their sides in messages.

    A language model has no source, and a target of a classifier is a label: the only length then has the name "".
    """
    if cfg.data.one_sided:
        return {"": target}
    return {"": source} if cfg.classifies else {"source": source, "target": target}


def limits(cfg: Config, source: int, target: int) -> str:
    """Describe maximum lengths, as in "62 source or 62 target tokens"."""
    return " or ".join(f"{most} {side}".strip() for side, most in by_side(cfg, source, target).items()) + " tokens"


def batch_shapes(cfg: Config, src: np.ndarray, tgt: np.ndarray) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Return shapes for pairs of these lengths: with the least padding, and rounded to the multiples the run sets."""
    batch, (max_source, max_target) = cfg.data.batch, longest(cfg)
    tight = shapes.choose_shapes(src, tgt, tokens=batch.tokens, count=batch.shapes)
    most = (1 if cfg.data.one_sided else max_source, max_target)
    return tight, shapes.rounded(
        tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=most
    )


def usable_rows(cfg: Config, train: Split, tell: Tell) -> np.ndarray:
    """Return the indices of the examples that are neither empty nor too long: [n]. Report how many are skipped.

    Raises:
      UserError: none is left.
    """
    max_source, max_target = longest(cfg)
    src, tgt = train.lengths()
    rows, skipped = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    has, skips = ("has an empty side", "with an empty side") if cfg.examples == "pairs" else ("is empty", "as empty")
    tell(
        f"training {cfg.examples}: {len(rows)} used, {skipped.empty} skipped {skips}, {skipped.too_long} skipped as "
        f"longer than {limits(cfg, max_source, max_target)}"
    )
    if len(rows) == 0:
        most, by, what = cfg.data.batch.max_length, "data.batch.max_length", "it"
        if (shortest := min(by_side(cfg, max_source, max_target).values())) < most:
            most, by, what = shortest, "the model's positions", "them"
        raise UserError(
            f"no training {cfg.examples.removesuffix('s')} is left: each {has} or is longer than the {most} tokens "
            f"of {by}; raise {what}"
        )
    return rows
