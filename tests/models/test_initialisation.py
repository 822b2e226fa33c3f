"""Layers of equal size are drawn in one loop: the values are those of each layer drawn alone."""

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from tests.helpers import drills_but
from tests.models.kinds import pair, together

DEEPER = {"conv": {"layers": [(32, 3)] * 3}, "light": {"layers": [3, 9, 3]}, "slicenet": {"modules": 3}}


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(together(), kept=[("conv", "conv"), ("gru", "bahdanau")]))
def test_no_two_kernels_are_drawn_with_the_same_key(encoder, decoder):
    """Numbers of one key are correlated, also of different distributions. JAX clips an index beyond the last key."""
    sides = pair(encoder, decoder)
    if encoder != "none":
        sides = {side: {**fields, **DEEPER.get(fields["kind"], {"layers": 3})} for side, fields in sides.items()}
    cfg = build(ModelConfig, {"embedding_dim": 32, **sides})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=20, target_vocabulary=20)
    leaves = [np.ravel(leaf)[:32] for leaf in jax.tree.leaves(params) if np.size(leaf) >= 32]
    random = np.stack([leaf for leaf in leaves if np.ptp(leaf[:4]) > 0 and np.ptp(leaf) > 0])
    assert len(random) >= 6
    correlations = np.abs(np.corrcoef(random)) - np.eye(len(random))
    assert np.max(correlations) < 0.85


def test_a_seed_gives_the_parameters_that_it_always_gave():
    """A pinned sum: if it moves, the order of the keys has changed, and a run does not repeat an earlier one."""
    cfg = build(ModelConfig, {"embedding_dim": 32, **pair("conv", "conv")})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=20, target_vocabulary=20)
    total = sum((i + 1) * np.abs(np.float64(leaf)).sum() for i, leaf in enumerate(jax.tree.leaves(params)))
    assert total == pytest.approx(101_833.0867, rel=1e-6)
