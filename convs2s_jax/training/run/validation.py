"""Validation: the loss over every line, and a sample of the model's outputs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.files import replace_file
from convs2s_jax.data import loader, plan
from convs2s_jax.data.shapes import Shape, choose_shapes
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training import dispatch
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.run.config import AnyModel
from convs2s_jax.training.run.inputs import Split, batch_on

SHAPES = 3
"""Number of batch shapes for the validation and the test set together. Each is a separate program, which takes longer
to compile than a short validation to compute (docs/performance-log.md)."""

BEHIND = 2
"""Number of batches that the host may run ahead of the device."""


class Evaluation(NamedTuple):
    """Result of a validation.

    Attributes:
      loss: negative log-likelihood in nats per target token, without smoothing.
      tokens: number of target tokens.
    """

    loss: float
    tokens: int


def evaluate(
    evaluate_batch: Callable[[Tree, Batch], LossSums],
    params: Tree,
    cfg: AnyModel,
    mesh: Mesh,
    split: Split,
    *,
    shapes: tuple[Shape, ...],
    check: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Compute the loss over every line of a split; lines longer than the model's positions are truncated.

    Args:
      evaluate_batch: as `evaluator` returns it.
      params: merged kernels.
      cfg: the model.
      mesh: the devices over which batches are sharded.
      split: at least one line.
      shapes: of batches, as `held_out_shapes` chooses them.
      check: called after each batch; raises an error to end the evaluation.
    """
    everything = planned(cfg, split, shapes)

    def make(batch: plan.PlannedBatch) -> Batch:
        return batch_on(mesh, split, everything, batch)

    sums: list[LossSums] = []
    for prepared in loader.load(everything, make):
        sums.append(evaluate_batch(params, prepared.batch))
        jax.block_until_ready(sums[-1 - BEHIND :][:1])  # the device gets no more work than a signal should wait for
        check()
    fetched = jax.device_get(sums)
    count = sum(int(s.tokens) for s in fetched)
    return Evaluation(loss=sum(float(s.nll) for s in fetched) / count, tokens=count)


def held_out_shapes(cfg: AnyModel, splits: Sequence[Split], *, tokens: int) -> tuple[Shape, ...]:
    """Return shapes for batches of at most `tokens` tokens that fit all lines of these splits, which share programs."""
    if not splits:
        return ()
    src, tgt = (np.concatenate(side) for side in zip(*(_lengths(cfg, one) for one in splits), strict=True))
    return choose_shapes(src, tgt, tokens=tokens, count=SHAPES)


def planned(cfg: AnyModel, split: Split, shapes: tuple[Shape, ...]) -> plan.Plan:
    """The batches of a validation in shapes of `held_out_shapes`."""
    return plan.plan_all(*_lengths(cfg, split), shapes)


def _lengths(cfg: AnyModel, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each source and target, truncated to the model's positions."""
    src, tgt = split.lengths()
    return np.minimum(src, cfg.max_source), np.minimum(tgt, cfg.max_target)


merged = dispatch.jit(weight_norm.merge)
"""Return the kernels of a training state's parameters."""


@dispatch.jit
def all_finite(params: Tree) -> Array:
    """Whether no parameter is infinite or not a number."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def write_samples(folder: Path, step: int, split: Split, hypotheses: list[str]) -> None:
    """Write the first 50 translations, or labels, of a validation as JSON lines: source, hypothesis, reference."""
    folder.mkdir(exist_ok=True)
    lines = list(zip(split.text.src, hypotheses, split.text.tgt, strict=True))[:50]
    records = [{"source": s, "hypothesis": h, "reference": r} for s, h, r in lines]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    replace_file(folder / f"{step}.jsonl", text)
