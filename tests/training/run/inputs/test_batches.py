"""Batches on a mesh: each side has its own length, and all devices have as many rows."""

import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.data.plan import Plan, PlannedBatch, plan_all
from convs2s_jax.data.shapes import Shape
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.inputs import Split, batch_on, padding_on

SPLIT = Split(
    text=None, src=[np.array([5, 6, 7]), np.array([], int), np.array([8])], tgt=[np.array([20 + i]) for i in range(3)]
)
PLAN = Plan(shapes=(Shape(9, 9, 9), Shape(4, 2, 3)), batches=(), padding=0.0)


@pytest.mark.parametrize(("devices", "rows"), [(1, 3), (2, 4), (8, 8)])
def test_source_and_target_have_their_own_lengths_and_rows_are_padded_for_all_devices(devices, rows):
    mesh = make(MeshConfig(data=devices))
    batch = batch_on(mesh, SPLIT, PLAN, PlannedBatch(1, np.array([1, 0])))
    assert batch.src.tolist() == [[EOS, PAD, PAD, PAD], [5, 6, 7, EOS]] + [[PAD] * 4] * (rows - 2)
    assert batch.tgt.tolist() == [[21, EOS], [20, EOS]] + [[PAD] * 2] * (rows - 2)
    assert {shard.data.shape for shard in batch.src.addressable_shards} == {(rows // devices, 4)}


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_share_of_padding_is_that_of_the_arrays(devices):
    mesh = make(MeshConfig(data=devices))
    plan = plan_all(np.array([4, 1, 2]), np.array([2, 2, 2]), (Shape(4, 2, 1), Shape(4, 2, 3)))
    batches = [batch_on(mesh, SPLIT, plan, planned) for planned in plan.batches]
    cells = np.concatenate([np.asarray(side).ravel() for batch in batches for side in (batch.src, batch.tgt)])
    assert padding_on(mesh, plan) == pytest.approx(np.mean(cells == PAD))
    assert (padding_on(mesh, plan) == plan.padding) == (devices == 1)
