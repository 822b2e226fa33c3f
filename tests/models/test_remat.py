"""How layers are executed changes no gradient; recomputation keeps what it says."""

import itertools
from functools import lru_cache

import jax
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import drills_but, padded
from tests.models.kinds import together
from tests.models.laws import SENTENCES, config, parameters

BATCH = Batch(src=padded(SENTENCES, 7), tgt=padded([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]], 5))
POLICIES = ("block", "dots")


def summed(cfg):
    return lambda params: loss(params, cfg, BATCH, key=jax.random.key(1)).loss


def of(encoder, decoder, remat, **execution):
    return config(encoder, decoder, dropout=0.1, execution={"remat": remat, **execution})


@lru_cache
def gradients(cfg):
    return jax.jit(jax.grad(summed(cfg)))(parameters(cfg))


@pytest.mark.parametrize(
    ("encoder", "decoder", "remat"),
    drills_but(
        [(*pair, remat) for pair, remat in itertools.product(together(), POLICIES)], kept=[("conv", "conv", "block")]
    ),
)
def test_each_policy_gives_the_same_gradients(encoder, decoder, remat):
    found, whole = (gradients(of(encoder, decoder, each)) for each in (remat, "none"))
    # what is added to all weights under a softmax has no gradient but rounding (1e-10), so zero has a size too
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(np.abs(b).max(), 1e-5 * largest))


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    drills_but(
        [("conv", "conv"), ("slicenet", "slicenet"), ("lstm", "gnmt"), ("gru", "feeding")],
        kept=[("conv", "conv"), ("slicenet", "slicenet")],
    ),
)
def test_products_are_kept_by_dots_and_inputs_alone_by_block(encoder, decoder):
    """Elements that are kept between the passes. Nothing is compiled."""
    kept = []
    for remat in ("block", "dots", "none"):
        cfg = of(encoder, decoder, remat)
        found = jax.eval_shape(lambda params, cfg=cfg: jax.vjp(summed(cfg), params)[1], parameters(cfg))
        kept.append(sum(leaf.size for leaf in jax.tree.leaves(found)))
    assert kept[0] < kept[1] < kept[2]
