"""The attention of each layer against loops over sentences, layers and positions, and its invariances."""

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import layer_attention
from tests.helpers import padded, same
from tests.models.laws import config, filled, parameters

E, C, V, LAYERS = 6, 8, 12, 4
SOURCES = [[5, 6, 7, 8, EOS], [9, 4, EOS]]
TARGETS = [[4, 5, 6, 7, 8, 9, EOS], [10, 11, EOS]]
CONFIG = {
    "embedding_dim": E,
    "encoder": {"kind": "conv", "layers": [(C, 3)]},
    "decoder": {"kind": "conv", "layers": [(C, 3)] * LAYERS, "attention_layers": [1, 2, 4], "out_dim": 5},
}


def numpy_loops(p, keys, values, target):
    """The attention a^l [T, S] of each layer for one sentence, position by position (sections 3.1 to 3.4)."""
    half, inputs = np.sqrt(0.5), [EOS, *target[:-1]]
    g = [p.embedding.table[w] + p.embedding.positions[PAD + 1 + t] for t, w in enumerate(inputs)]
    x = [e @ p.map_in.w + p.map_in.b for e in g]
    found = []
    for block in p.blocks:
        outputs, weights = [], []
        for t in range(len(inputs)):
            seen = [x[t - back] if t >= back else np.zeros(C) for back in (2, 1, 0)]
            y = sum(v @ w for v, w in zip(seen, block.conv.w, strict=True)) + block.conv.b
            h = y[:C] / (1 + np.exp(-y[C:]))
            if block.attention is not None:
                query, context = block.attention.query, block.attention.context
                d = (h @ query.w + query.b + g[t]) * half
                scores = np.exp([d @ z for z in keys])
                a = scores / scores.sum()
                c = sum(weight * v for weight, v in zip(a, values, strict=True)) * np.sqrt(len(keys))
                h = (c @ context.w + context.b + h) * half
                weights.append(a)
            outputs.append((h + x[t]) * half)
        x = outputs
        if weights:
            found.append(np.array(weights))
    return np.array(found)


def test_attention_of_each_layer_equals_loops_over_the_equations():
    """Of sentences side by side, whole and token by token; layer 3 does not attend."""
    cfg = build(ModelConfig, CONFIG)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), cfg, source_vocabulary=V, target_vocabulary=V))
    params, src, tgt = filled(shapes), padded(SOURCES, 5), padded(TARGETS, 7)
    found = jax.jit(layer_attention, static_argnums=1)(params, cfg, src, tgt)
    assert cfg.decoder.attention_names == ("layer 1", "layer 2", "layer 4")
    memory = jax.jit(model.encode, static_argnums=1)(params, cfg, src)
    doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params.decoder)
    for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        keys, values = (np.asarray(x[b, : len(source)], np.float64) for x in (memory.keys, memory.values))
        expected = numpy_loops(doubles, keys, values, target)
        assert np.abs(expected[0] - expected[1]).max() > 0.05, "layers so alike would hide an exchange"
        np.testing.assert_allclose(found[b, :, : len(target), : len(source)], expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(found[b, :, len(target) :], 0.0)
        np.testing.assert_array_equal(found[b, :, :, len(source) :], 0.0)
    same(jax.jit(lambda params: layer_attention(conversion.precompute(params, cfg), cfg, src, tgt))(params), found)


def test_a_decoder_without_attention_is_refused():
    cfg = config(decoder="cho")
    with pytest.raises(ValueError, match=r"^decoder\.kind is 'recurrent' without attention"):
        layer_attention(parameters(cfg), cfg, padded(SOURCES, 5), padded(TARGETS, 7))
