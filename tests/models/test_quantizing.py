"""Which kernels of each kind of model become integers, and that preparing such a model again leaves them so."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn.quantized import is_quantized
from convs2s_jax.nn.trees import path_of
from tests.helpers import drills_but
from tests.models.kinds import pair, together
from tests.nn.test_quantized import by_hand, drawn

CONV, POINTWISE, OUTPUT = "blocks/conv", "blocks/conv/pointwise", "output"
LIGHT = {f"blocks/{part}/{name}" for part in ("convolution", "feed_forward") for name in ("map_in", "map_out")}
ENCODERS = {"conv": {CONV}, "lightconv": LIGHT, "dynamicconv": LIGHT}
ENCODERS |= dict.fromkeys(("separable", "lightweight", "dynamic"), frozenset({POINTWISE}))
DECODERS = {"conv": {CONV, OUTPUT}, "language": {CONV, OUTPUT}}
DECODERS |= dict.fromkeys(("lightconv", "dynamicconv"), frozenset({*LIGHT, "output_kernel"}))
DECODERS |= dict.fromkeys(("separable", "lightweight", "dynamic"), frozenset({POINTWISE, OUTPUT}))
DECODERS |= dict.fromkeys(("bahdanau", "gnmt", "luong", "feeding"), frozenset({OUTPUT}))
"""By kind; the others keep floats. Softmax layers of SliceNet and `cho` are tied to a table here."""


def made(encoder, decoder, **more):
    cfg = build(ModelConfig, {"embedding_dim": 32, **pair(encoder, decoder), **more})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=24, target_vocabulary=20)
    return cfg, conversion.quantize_kernels(conversion.precompute(params, cfg))


def kernels(params):
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_quantized)
    return {path_of(path): leaf for path, leaf in leaves if is_quantized(leaf)}


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(together(), kept=[("conv", "conv")]))
def test_each_kind_has_its_convolutions_and_softmax_in_integers(encoder, decoder):
    _, params = made(encoder, decoder)
    found = {re.sub(r"/plain|/\d+|/w$", "", name) for name in kernels(params)}
    expected = {f"encoder/{name}" for name in ENCODERS.get(encoder, ())}
    expected |= {f"decoder/{name}" for name in DECODERS.get(decoder, ())}
    assert found == expected
    assert conversion.has_integers(params) == bool(expected)


def test_a_softmax_without_a_bias_is_the_product_of_the_integers():
    cfg, params = made("lightconv", "lightconv")
    x, w = drawn(2, 3, 32), drawn(32, 20, seed=1)
    params = params.replace(decoder=params.decoder.replace(output_kernel=jnp.asarray(w)))
    found = encoder_decoder.logits(conversion.quantize_kernels(params), cfg, jnp.asarray(x))
    np.testing.assert_allclose(found.reshape(6, 20), by_hand(x.reshape(6, 32), w), rtol=1e-5, atol=1e-5)


def test_integers_stay_integers_where_a_model_is_prepared_again():
    """LightConv has no tables for decoding, so it is cast again to the dtype of the computation."""
    cfg, params = made("lightconv", "lightconv", dtype="bfloat16")
    again = kernels(conversion.quantize_kernels(conversion.precompute(params, cfg)))
    before = kernels(params)
    assert again.keys() == before.keys()
    for name, kernel in again.items():
        assert kernel.values.dtype == jnp.int8
        assert kernel.scale.dtype == jnp.float32
        assert kernel.dtype == jnp.bfloat16
        np.testing.assert_array_equal(kernel.values, before[name].values)
