"""What gradients compute again, in all families: each policy gives the same gradients and keeps what it says."""

import itertools
from functools import lru_cache

import jax
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS
from convs2s_jax.training.flops import count
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import drills_but, padded
from tests.models.kinds import together
from tests.models.laws import SENTENCES, config, parameters

BATCH = Batch(src=padded(SENTENCES, 7), tgt=padded([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]], 5))
ORDER = ("block", "dots", "none")
POLICIES = ("block", "dots", "offload")
KEPT = [("conv", "conv", "block")]


def summed(cfg):
    return lambda params: loss(params, cfg, BATCH, key=jax.random.key(1)).loss


def of(encoder, decoder, remat, **execution):
    return config(encoder, decoder, dropout=0.1, execution={"remat": remat, **execution})


@lru_cache
def gradients(encoder, decoder, remat):
    cfg = of(encoder, decoder, remat)
    return jax.jit(jax.grad(summed(cfg)))(parameters(cfg))


@pytest.mark.parametrize(
    ("encoder", "decoder", "remat"),
    drills_but([(*pair, remat) for pair, remat in itertools.product(together(), POLICIES)], kept=KEPT),
)
def test_each_policy_gives_the_same_gradients(encoder, decoder, remat):
    expected, found = gradients(encoder, decoder, "none"), gradients(encoder, decoder, remat)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), found, expected)


def residuals(encoder, decoder, remat):
    """Elements kept between the passes. Nothing is compiled."""
    cfg = of(encoder, decoder, remat)
    kept = jax.eval_shape(lambda params: jax.vjp(summed(cfg), params)[1], parameters(cfg))
    return sum(leaf.size for leaf in jax.tree.leaves(kept))


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    drills_but([("slicenet", "slicenet"), ("lstm", "gnmt"), ("gru", "feeding")], kept=[("slicenet", "slicenet")]),
)
def test_products_are_kept_by_dots_and_inputs_alone_by_block(encoder, decoder):
    """As `test_stack.py` says of ConvS2S; here of the families whose layers are loops or modules."""
    few, more, all_ = (residuals(encoder, decoder, remat) for remat in ORDER)
    assert few < more < all_


@pytest.mark.drill
@pytest.mark.parametrize("form", ["xla", "products", "winograd"])
def test_with_dots_no_convolution_is_computed_again(form):
    """Operations of the traced program."""

    def again(remat):
        cfg = of("conv", "conv", remat, convolution=form)
        return count(jax.grad(summed(cfg)), jax.eval_shape(lambda: parameters(cfg))).recomputed

    assert again("none") == again("dots") < again("block")
    assert again("offload") < again("block")
