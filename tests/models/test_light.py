"""Light models beside their laws: dropout and fresh parameters."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder, light
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn import depthwise
from convs2s_jax.nn.depthwise import PredictedTaps, SharedTaps
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import array, drills_but
from tests.models.laws import filled

V, E = 13, 8
RATES = {"input_dropout": 0.2, "relu_dropout": 0.3, "weight_dropout": 0.4}
SIDE = {"kind": "light", "layers": [3, 1], "conv_dim": 12, "heads": 4, "ffn_dim": 10, "max_positions": 32, **RATES}
TOKENS = array([[EOS, 5, 6, 7, 8, 9, 10], [EOS, 11, 12, 5, PAD, PAD, PAD]], jnp.int32)
SOURCE = array([[4, 5, 6, 7, EOS], [8, 9, EOS, PAD, PAD]], jnp.int32)


def test_dropout_stands_where_fairseq_puts_it(monkeypatch):
    """Embeddings and parts of layers at the model's rate, the rates of a side where they are named; no key twice."""
    sides = {"encoder": SIDE, "decoder": {**SIDE, "attention_dropout": 0.5}}
    cfg = build(ModelConfig, {"embedding_dim": E, "dropout": 0.1, **sides})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    params = filled(jax.eval_shape(init, jax.random.key(0)))
    places = []

    @jax.jit
    def keys(params):
        seen = []

        def record(x, rate, key):
            places.append((x.shape, rate))
            seen.append(jax.random.key_data(key))
            return x

        for module in (light, light.multihead, depthwise):
            monkeypatch.setattr(module, "dropout", record)
        loss(params, cfg, Batch(src=SOURCE, tgt=TOKENS), key=jax.random.key(0))
        return seen

    seen = keys(params)

    def layer(length, width, *attention):
        before = [((2, length, E), 0.2), ((2, length, width, 4), 0.4), ((2, length, E), 0.1), *attention]
        return [*before, ((2, length, 10), 0.3), ((2, length, E), 0.1)]

    attention = [((2, 4, 7, 5), 0.5), ((2, 7, E), 0.1)]
    encoder = [((2, 5, E), 0.1), *layer(5, 3), *layer(5, 1)]
    decoder = [((2, 7, E), 0.1), *layer(7, 3, *attention), *layer(7, 1, *attention)]
    assert places == encoder + decoder
    assert len({tuple(key.tolist()) for key in seen}) == len(places)


@pytest.mark.parametrize("convolution", drills_but(["lightweight", "dynamic"], kept=["dynamic"]))
def test_fresh_parameters_are_those_of_fairseq(convolution):
    """Deviations of uniform numbers U(-r, r) are r / sqrt(3). From 1,000 draws on 10 % is far outside chance."""
    side = {"kind": "light", "convolution": convolution, "layers": [31], "conv_dim": 120, "heads": 40, "ffn_dim": 300}
    side |= {"positions": "learned", "norm_before": True}
    cfg = build(ModelConfig, {"embedding_dim": 80, "encoder": side, "decoder": side})
    params = encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=500, target_vocabulary=400)
    block = params.decoder.blocks[0]
    kernel = block.convolution.taps
    taps, bound = (
        (kernel.scores, math.sqrt(6 / (31 + 40 * 31))) if convolution == "lightweight" else (kernel.maker, 120**-0.5)
    )
    assert isinstance(kernel, SharedTaps if convolution == "lightweight" else PredictedTaps)
    assert float(jnp.max(jnp.abs(taps))) <= bound
    expected = [
        (taps, bound / math.sqrt(3)),
        (params.encoder.embedding.table, 80**-0.5),
        (params.decoder.embedding.positions, 80**-0.5),
        (block.convolution.map_in.w, math.sqrt(2 / (80 + 240))),
        (block.convolution.map_out.w, math.sqrt(2 / (120 + 80))),
        (block.attention.heads.query.w, math.sqrt(1 / 160)),
        (block.attention.heads.out.w, math.sqrt(2 / 160)),
        (block.feed_forward.map_in.w, math.sqrt(2 / 380)),
        (params.decoder.output_kernel, 80**-0.5),
    ]
    for weights, deviation in expected:
        assert float(jnp.std(weights)) == pytest.approx(deviation, rel=0.1)
    np.testing.assert_array_equal(params.decoder.embedding.table[PAD], 0.0)
    np.testing.assert_array_equal(params.decoder.norm.scale, 1.0)
    np.testing.assert_array_equal(block.feed_forward.map_out.b, 0.0)
