"""Attention of recurrent states against loops, sentence by sentence and without padding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import recurrent_attention
from convs2s_jax.nn.recurrent_attention import ATTENTIONS, MappedMemory
from tests.helpers import array

B, W, S, E, U = 2, 3, 5, 4, 4
LENGTHS = [5, 2]


def setup(name, steps):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return array(rng.normal(size=shape))

    kind = ATTENTIONS[name]
    shapes = jax.eval_shape(lambda key: kind.init(key, U, E), jax.random.key(0))
    params = jax.tree.map(lambda leaf: normal(*leaf.shape), shapes)
    mask = jnp.arange(S)[None] < jnp.asarray(LENGTHS)[:, None]
    keys, values = normal(B, S, E), normal(B, S, E)
    source = MappedMemory(keys=kind.keys(params, keys), values=values, mask=mask, summary=normal(B, E))
    return params, source, np.float64(keys), np.float64(values), normal(B * W, steps, U)


def additive(params, s, h):
    return np.dot(params.score, np.tanh(s @ params.query.w + params.query.b + h @ params.key))


SCORES = {"additive": additive, "dot": lambda _, s, h: np.dot(s, h), "general": lambda p, s, h: h @ p.key @ s}


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("name", SCORES)
def test_attention_equals_a_loop_over_each_sentence(name, steps):
    """Three hypotheses a sentence, read side by side; with 7 steps tanh of additive attention is made in chunks."""
    params, source, keys, values, queries = setup(name, steps)
    c, a = jax.jit(partial(recurrent_attention.attend, ATTENTIONS[name]))(params, source, queries)
    params = jax.tree.map(np.asarray, params)
    for n, t in np.ndindex(B * W, steps):
        length = LENGTHS[n // W]
        each = [SCORES[name](params, queries[n, t], keys[n // W, j]) for j in range(length)]
        weights = np.exp(each) / np.sum(np.exp(each))
        np.testing.assert_allclose(a[n, t, :length], weights, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(c[n, t], weights @ values[n // W, :length], rtol=2e-5, atol=1e-5)
        np.testing.assert_array_equal(a[n, t, length:], 0.0)


@pytest.mark.parametrize("steps", [1, 7])
def test_no_attention_is_the_summary_and_no_weight(steps):
    _, source, _, _, queries = setup("none", steps)
    c, a = recurrent_attention.attend(ATTENTIONS["none"], None, source, queries)
    np.testing.assert_array_equal(c, np.repeat(np.repeat(source.summary, W, axis=0)[:, None], steps, axis=1))
    np.testing.assert_array_equal(a, np.zeros((B * W, steps, S)))


def test_gradients_through_chunks_are_those_of_the_whole(monkeypatch):
    params, source, _, _, queries = setup("additive", 7)

    def gradient():
        def total(*args):
            return jnp.sum(jnp.sin(recurrent_attention.attend(ATTENTIONS["additive"], *args)[0]))

        return jax.jit(jax.grad(total, (0, 2)))(params, source, queries)

    chunked = gradient()
    monkeypatch.setattr(recurrent_attention, "CHUNK", 100)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), chunked, gradient())
