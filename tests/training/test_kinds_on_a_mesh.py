"""Every kind of encoder and decoder on a mesh: each parameter's gradient is that of one device."""

from functools import partial

import jax
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training import sharding
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state
from tests.meshes import assert_equal_each, batch, mesh_of
from tests.models.kinds import pair, together
from tests.models.laws import filled

TRAINING = TrainingConfig(clip=0.1)
BATCH = batch(0, 8, 7, 9)
KEY = jax.random.key(7)
LEAST = 1e-3
"""What adds the same to all scores of an attention has no gradient but rounding: such a one is compared with all."""


def gradients(cfg, mesh=None):
    """Of the first part of an update, with dropout."""
    init = partial(fresh_state, model=cfg, training=TRAINING, source=24, target=20)
    params, given = filled(jax.eval_shape(init, jax.random.key(1)).params), BATCH
    if mesh is not None:
        params = jax.device_put(params, sharding.shardings(params, mesh))
        given = jax.device_put(given, sharding.batch_sharding(mesh))
    return jax.device_get(compile_run(ProgramKey(cfg, TRAINING), mesh).first(params, given, KEY))


@pytest.mark.drill
@pytest.mark.parametrize(("encoder", "decoder"), together())
def test_gradients_on_a_mesh_are_those_of_one_device(encoder, decoder):
    cfg = build(ModelConfig, {"embedding_dim": 32, "dropout": 0.3, **pair(encoder, decoder)})
    assert_equal_each(gradients(cfg, mesh_of((2, 2, 2))), gradients(cfg), least=LEAST)
