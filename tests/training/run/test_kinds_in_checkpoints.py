"""Every kind of encoder and decoder goes through a checkpoint: parameters, optimiser and all, bit by bit."""

from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.optimizer import AdamConfig
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import fresh_state
from tests.helpers import drills_but
from tests.models.kinds import pair, together


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(together(), [("lstm", "gnmt")]))
def test_a_state_comes_back_bit_by_bit(encoder, decoder, tmp_path):
    cfg = build(ModelConfig, {"embedding_dim": 32, **pair(encoder, decoder)})
    training = TrainingConfig(optimizer=AdamConfig())
    init = partial(fresh_state, model=cfg, training=training, source=24, target=20)
    abstract = jax.eval_shape(init, jax.random.key(0))
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: jax.numpy.asarray(rng.integers(1, 100, x.shape), x.dtype), abstract)
    with checkpoint.manager(tmp_path, keep=1) as checkpoints:
        checkpoint.save(checkpoints, state, {"epoch": 1}, scores={"loss": 1.0})
        checkpoint.wait(checkpoints)
    found = restoring.restore(tmp_path, abstract, check=lambda _: None, tell=print)
    assert found is not None
    assert jax.tree.structure(found[0]) == jax.tree.structure(state)
    for ours, theirs in zip(jax.tree.leaves(found[0]), jax.tree.leaves(state), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
