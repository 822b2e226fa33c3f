"""A decoder without an encoder: a language model, its loss and its laws."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import array, drills_but
from tests.models.laws import filled

V, E, B, T = 13, 6, 2, 6
VALUES = {
    "embedding_dim": E,
    "encoder": {"kind": "none"},
    "decoder": {"layers": [(8, 3)] * 3, "out_dim": 5, "max_positions": 16, "attention_layers": []},
}
TGT = array([[5, 9, 10, 11, 6, EOS], [10, 11, EOS, PAD, PAD, PAD]], jnp.int32)
SRC = jnp.full((B, 1), EOS, jnp.int32)


def setup(**fields):
    cfg = build(ModelConfig, {**VALUES, **fields})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)), 0.4)


def start(params, cfg, rows=B):
    memory = encoder_decoder.encode(params, cfg, SRC)
    return memory, encoder_decoder.init_cache(params, cfg, memory, rows)


def test_there_are_no_parameters_of_a_source_and_nothing_of_it_is_read():
    cfg, params = setup()
    assert jax.tree.leaves(params.encoder) == []
    assert cfg.decoder.gradient_scale == 1.0
    assert not cfg.reads_source
    memory, cache = start(params, cfg)
    assert not memory.mask.any()
    other = encoder_decoder.encode(params, cfg, jnp.full((B, 9), 7, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, memory, other)
    decode = jax.jit(encoder_decoder.decode, static_argnums=1)
    _, attention, _ = decode(params, cfg, memory, cache, encoder_decoder.decoder_inputs(TGT))
    np.testing.assert_array_equal(attention, np.zeros((B, T, 1)))


@pytest.mark.parametrize("dtype", drills_but(["float32", "bfloat16"], kept=["float32"]))
def test_every_parameter_is_trained_and_the_source_changes_nothing(dtype):
    cfg, params = setup(dtype=dtype)

    def gradient(src):
        return jax.jit(jax.grad(lambda p: loss(p, cfg, Batch(src=src, tgt=TGT)).loss))(params)

    gradients = gradient(SRC)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.any(leaf != 0)), gradients))
    jax.tree.map(np.testing.assert_array_equal, gradients, gradient(jnp.full((B, 4), 5, jnp.int32)))
