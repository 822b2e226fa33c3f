"""Parameters that are converted: the mean of several models, and kernels of integers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.conversion import average
from convs2s_jax.models.encoder_decoder import PrecomputedParams
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.quantized import Quantized, quantize
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.weight_norm import Normed
from tests.helpers import array, drills_but
from tests.models.kinds import pair
from tests.nn.test_quantized import by_hand, drawn


def model(seed):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return array(random.normal(size=shape))

    conv = Affine(w=Normed(v=draw(3, 4, 6), g=draw(1, 1, 6)), b=draw(6))
    return {"table": draw(7, 4), "layers": (Affine(w=Normed(v=draw(4, 5), g=draw(1, 5)), b=draw(5)), conv)}


def kernel(normed):
    v, g = np.asarray(normed.v, np.float64), np.asarray(normed.g, np.float64)
    columns = v.reshape(-1, v.shape[-1])
    w = np.stack([g.ravel()[d] * columns[:, d] / np.linalg.norm(columns[:, d]) for d in range(v.shape[-1])], axis=1)
    return w.reshape(v.shape)


def test_the_mean_is_that_of_kernels():
    trees = [model(seed) for seed in range(3)]
    found = jax.jit(average)(trees)
    for i in range(2):
        expected = np.mean([kernel(tree["layers"][i].w) for tree in trees], axis=0)
        np.testing.assert_allclose(found["layers"][i].w, expected, rtol=1e-5, atol=1e-6)
        biases = np.mean([tree["layers"][i].b for tree in trees], axis=0)
        np.testing.assert_allclose(found["layers"][i].b, biases, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["table"], np.mean([t["table"] for t in trees], axis=0), rtol=1e-6, atol=1e-7)


ONE = model(0)
REFUSED = {
    "other shapes": ([ONE, {**ONE, "table": ONE["table"][:1]}], r"shapes \[\(1, 4\), \(7, 4\)\] cannot be averaged"),
    "other structures": ([ONE, {"table": ONE["table"]}], "^trees have different structures: only parameters of one"),
    "none": ([], "trees is empty"),
    "products": ([ONE, PrecomputedParams(encoder=ONE, decoder=ONE)], r"average the parameters first, then precompute$"),
    "integers": ([{**ONE, "table": quantize(ONE["table"])}] * 2, r"average the parameters first, then precompute$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_average_is_refused(name):
    trees, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        average(trees)


LIGHT = {f"blocks/{part}/{name}" for part in ("convolution", "feed_forward") for name in ("map_in", "map_out")}
INTEGERS = {
    ("conv", "conv"): ({"blocks/conv"}, {"blocks/conv", "output"}),
    ("lightconv", "lightconv"): (LIGHT, {*LIGHT, "output_kernel"}),
    ("gru", "bahdanau"): ((), {"output"}),
    ("gru", "cho"): ((), ()),
}
"""Kernels of encoder and decoder. The softmax layer of `cho` is tied to a table here."""


def made(encoder, decoder, **more):
    cfg = build(ModelConfig, {"embedding_dim": 32, **pair(encoder, decoder), **more})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=24, target_vocabulary=20)
    return cfg, conversion.quantize_kernels(conversion.precompute(params, cfg))


def integers(params):
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, Quantized))
    return {path_of(path): leaf for path, leaf in leaves if isinstance(leaf, Quantized)}


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(INTEGERS, kept=[("conv", "conv")]))
def test_each_kind_has_its_convolutions_and_softmax_in_integers(encoder, decoder):
    _, params = made(encoder, decoder)
    found = {re.sub(r"/\d+|/w$", "", name) for name in integers(params)}
    sides = zip(("encoder", "decoder"), INTEGERS[encoder, decoder], strict=True)
    assert found == {f"{side}/{name}" for side, names in sides for name in names}
    assert conversion.has_integers(params) == bool(found)


def test_a_softmax_without_a_bias_is_the_product_of_the_integers():
    cfg, params = made("lightconv", "lightconv")
    x, w = drawn(2, 3, 32), drawn(32, 20, seed=1)
    params = params.replace(decoder=params.decoder.replace(output_kernel=jnp.asarray(w)))
    found = encoder_decoder.logits(conversion.quantize_kernels(params), cfg, jnp.asarray(x))
    np.testing.assert_allclose(found.reshape(6, 20), by_hand(x.reshape(6, 32), w), rtol=1e-5, atol=1e-5)
