"""SliceNet against its equations in numpy."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from tests.helpers import array, close
from tests.models.laws import filled

V, E, B, S, T = 13, 6, 2, 5, 7
VALUES = {
    "embedding_dim": E,
    "dropout": 0.2,
    "encoder": {"kind": "slicenet", "modules": 2, "kernels": [3, 2, 4, 9], "dilations": [1, 2, 1, 1]},
    "decoder": {"kind": "slicenet", "modules": 2, "kernels": [3, 2, 5, 9], "dilations": [1, 1, 2, 1]},
}


def setup():
    """A config and parameters in which nothing is zero and no normalisation is the identity."""
    cfg = build(ModelConfig, VALUES)
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)), 0.5)


SRC = array([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD]], jnp.int32)
TGT = array([[5, 9, 10, 11, 6, 7, EOS], [10, 11, EOS, PAD, PAD, PAD, PAD]], jnp.int32)
INPUTS = encoder_decoder.decoder_inputs(TGT)


# --- the reference: one sentence, float64, position by position


def normalised(p, x):
    return p.scale * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + p.bias


def step(p, x, dilation, first):
    """LN(separable(relu(x))); tap j of position t reads t + first + j * dilation."""
    x = np.maximum(x, 0)
    y = np.zeros_like(x)
    for t, at in np.ndindex(len(x), len(x)):
        offset = at - t - first
        if offset % dilation == 0 and 0 <= offset // dilation < len(p.conv.taps.w):
            y[t] += p.conv.taps.w[offset // dilation] * x[at]
    return normalised(p.norm, y @ p.conv.pointwise.w + p.conv.pointwise.b)


def centre(width, dilation):
    return -((width - 1) * dilation // 2)


def past(width, dilation):
    return -(width - 1) * dilation


def module(steps, shapes, x, begin):
    h = [step_of(s, k, d, begin) for s, (k, d) in zip(steps, shapes, strict=True)]
    hidden = x + h[1](h[0](x))
    return x + h[3](h[2](hidden))


def step_of(p, width, dilation, begin):
    return lambda x: step(p, x, dilation, begin(width, dilation))


def signal(n):
    """Of the n first places, which begin at row 2 of the sines and cosines."""
    half = E // 2
    rates = [10000 ** (-i / (half - 1)) for i in range(half)]
    return np.array([[f(p * r) for f in (math.sin, math.cos) for r in rates] for p in range(2, n + 2)])


def attend(p, x, m):
    q = x + signal(len(x))
    for one, (width, dilation) in zip(p.steps, ((5, 1), (5, 4)), strict=True):
        q = step(one, q, dilation, past(width, dilation))
    scores = q @ m.T / math.sqrt(E)
    a = np.exp(scores - scores.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return normalised(p.norm, x + a @ m), a


def reference(cfg, params, src, inputs):
    """Logits and attention of one pair without padding."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = p.encoder.embedding.table[src] * math.sqrt(E) + signal(len(src))
    for steps in p.encoder.modules:
        x = module(steps, cfg.encoder.shapes, x, centre)
    g = p.decoder.embedding.table[inputs] * math.sqrt(E)
    fetched, a = attend(p.decoder.attention, g, x)
    y, weights = step(p.decoder.merge[0], np.concatenate([fetched, g], axis=1), 1, past(3, 1)), [a]
    return x, decoded(cfg, p, x, y, weights)


def decoded(cfg, p, x, y, weights):
    for block in p.decoder.blocks:
        y = module(block.steps, cfg.decoder.shapes, y, past)
        fetched, a = attend(block.attention, y, x)
        y = y + fetched
        weights.append(a)
    return y @ p.decoder.embedding.table.T + p.decoder.output, np.mean(weights, axis=0)


encode, decode = (jax.jit(f, static_argnums=1) for f in (encoder_decoder.encode, encoder_decoder.decode))


def test_encoder_and_decoder_follow_the_equations():
    cfg, params = setup()
    memory = encode(params, cfg, SRC)
    logits, attention, _ = decode(params, cfg, memory, encoder_decoder.init_cache(params, cfg, memory, B), INPUTS)
    for b, (m, n) in enumerate(((5, 7), (3, 3))):
        keys, (expected, weights) = reference(cfg, params, np.asarray(SRC[b, :m]), np.asarray(INPUTS[b, :n]))
        close(memory.keys[b, :m], keys, 2e-5)
        close((logits[b, :n], attention[b, :n, :m]), (expected, weights), 2e-5)
    np.testing.assert_array_equal(memory.keys[1, 3:], 0.0)
    np.testing.assert_array_equal(attention[1, :, 3:], 0.0)
