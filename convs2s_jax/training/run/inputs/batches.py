"""Planned batches as arrays on the mesh: each process only reads the rows of its own devices."""

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.rows import round_up
from convs2s_jax.data.loader import Sentences, fill
from convs2s_jax.data.plan import Plan, PlannedBatch
from convs2s_jax.training import sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run.inputs.dataset import Split


def batch_on(mesh: Mesh, split: Split, plan: Plan, planned: PlannedBatch) -> Batch:
    """Return a planned batch, its rows sharded over the mesh; padding rows make the number of rows divisible.

    Padding rows add nothing to sums. So the last batch of an epoch or a validation set need not be dropped.
    """
    shape, shards = plan.shapes[planned.shape], row_shards(mesh)
    rows = round_up(shape.rows, shards)
    return Batch(
        src=_side(mesh, split.src, planned.rows, (rows, shape.src)),
        tgt=_side(mesh, split.tgt, planned.rows, (rows, shape.tgt)),
    )


def padding_on(mesh: Mesh, plan: Plan) -> float:
    """Share of padding in the batches of a plan as `batch_on` builds them, padding rows included, in [0, 1]."""
    shards = row_shards(mesh)
    if not any(shape.rows % shards for shape in plan.shapes):
        return plan.padding
    shapes = [plan.shapes[batch.shape] for batch in plan.batches]
    planned = sum(shape.rows * (shape.src + shape.tgt) for shape in shapes)
    whole = sum(round_up(shape.rows, shards) * (shape.src + shape.tgt) for shape in shapes)
    return 1.0 - (1.0 - plan.padding) * planned / whole


def _side(mesh: Mesh, sentences: Sentences, rows: np.ndarray, shape: tuple[int, int]) -> jax.Array:
    """[B, T]; each shard is read once, though several devices may hold it."""
    read: dict[int, np.ndarray] = {}

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        begin, end, _ = (index[0] if index else slice(None)).indices(shape[0])
        if begin not in read:
            read[begin] = fill(sentences, rows[begin:end], (end - begin, shape[1]))
        return read[begin]

    return jax.make_array_from_callback(shape, sharding.batch_sharding(mesh), part)
