"""Layers of equal size are drawn in one loop: the values are those of each layer drawn alone."""

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import init_each
from tests.helpers import drills_but
from tests.models.kinds import pair, together

LAYERS = [(6, 3), (6, 3), (8, 1), (6, 3), (6, 3)]


def test_equal_sizes_share_a_loop_and_each_layer_has_its_own_key():
    keys = jax.random.split(jax.random.key(3), 5)
    made = init_each(lambda key, size: jax.random.normal(key, (size,)), keys, [4, 7, 4, 4, 7])
    for key, size, drawn in zip(keys, [4, 7, 4, 4, 7], made, strict=True):
        np.testing.assert_array_equal(drawn, jax.random.normal(key, (size,)))


def test_a_seed_gives_the_parameters_that_it_always_gave():
    """The keys in the order in which the first version split them, one draw for each kernel."""
    cfg = build(
        ModelConfig,
        {
            "embedding_dim": 5,
            "dropout": 0.2,
            "encoder": {"layers": LAYERS},
            "decoder": {"layers": LAYERS, "attention_layers": [1, 2, 5]},
        },
    )
    params = jax.jit(lambda key: encoder_decoder.init(key, cfg, source_vocabulary=7, target_vocabulary=9))(
        jax.random.key(1)
    )
    encoder_key, decoder_key = jax.random.split(jax.random.key(1))
    encoder_keys, decoder_keys = jax.random.split(encoder_key, 5 + 3), jax.random.split(decoder_key, 2 * 5 + 4)
    inputs = [6, 6, 6, 8, 6]
    for i, (channels, width) in enumerate(LAYERS):
        deviation = (4 * 0.8 / (width * inputs[i])) ** 0.5
        shape = (width, inputs[i], 2 * channels)
        for side, key in ((params.encoder, encoder_keys[3 + i]), (params.decoder, decoder_keys[4 + 2 * i])):
            conv_key, projection_key = jax.random.split(key)
            block = side.blocks[i]
            _same(block.conv.w, deviation * jax.random.normal(conv_key, shape))
            if inputs[i] == channels:
                assert block.projection is None
            else:
                _same(block.projection.w, inputs[i] ** -0.5 * jax.random.normal(projection_key, (inputs[i], channels)))
        attention = params.decoder.blocks[i].attention
        if i + 1 in (1, 2, 5):
            query_key, context_key = jax.random.split(decoder_keys[5 + 2 * i])
            _same(attention.query.w, channels**-0.5 * jax.random.normal(query_key, (channels, 5)))
            _same(attention.context.w, 5**-0.5 * jax.random.normal(context_key, (5, channels)))
        else:
            assert attention is None


DEEPER = {"conv": {"layers": [(32, 3)] * 3}, "light": {"layers": [3, 9, 3]}, "slicenet": {"modules": 3}}
RECURRENT = {"layers": 3}


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(together(), kept=[("conv", "conv"), ("gru", "bahdanau")]))
def test_no_two_kernels_are_drawn_with_the_same_key(encoder, decoder):
    """Numbers of one key are correlated, also of different distributions. JAX clips an index beyond the last key."""
    if encoder == "none":
        sides = pair(encoder, decoder)
    else:
        sides = {
            side: {**fields, **DEEPER.get(fields["kind"], RECURRENT)} for side, fields in pair(encoder, decoder).items()
        }
    cfg = build(ModelConfig, {"embedding_dim": 32, **sides})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=20, target_vocabulary=20)
    leaves = [np.ravel(leaf)[:32] for leaf in jax.tree.leaves(params) if np.size(leaf) >= 32]
    random = np.stack([leaf for leaf in leaves if np.ptp(leaf[:4]) > 0 and np.ptp(leaf) > 0])
    assert len(random) >= 6
    correlations = np.abs(np.corrcoef(random)) - np.eye(len(random))
    assert np.max(correlations) < 0.85


def _same(ours: jax.Array, expected: jax.Array) -> None:
    """Equal but for the last bit, which a compiler may round another way."""
    np.testing.assert_allclose(ours, expected, rtol=3e-7, atol=0)
