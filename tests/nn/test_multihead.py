"""Multi-head attention against loops over heads. Its gradients are fairseq's (interop/test_light_golden.py)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import multihead
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.multihead import Multihead
from tests.helpers import array

B, W, T, S, E, H = 2, 3, 4, 5, 8, 2
RNG = np.random.default_rng(0)
X, MEMORY, VALUES = (RNG.normal(size=shape).astype(np.float32) for shape in ((B * W, T, E), (B, S, E), (B, S, E)))
MASK = np.arange(S)[None] < np.array([[S], [2]])


def params():
    """Nothing is zero: biases would hide mistakes."""
    shapes = jax.eval_shape(lambda: multihead.init(jax.random.key(0), E))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: array(rng.normal(size=leaf.shape)), shapes)


def ours(params, x, keys, values, **options):
    source = multihead.map_source(params, H, jnp.asarray(keys), jnp.asarray(values))
    return multihead.attend(params, source, jnp.asarray(x), jnp.asarray(MASK), **options)


def affine(map: Affine, x):
    return x @ np.asarray(map.w) + np.asarray(map.b)


def test_outputs_and_weights_equal_loops_over_heads_and_queries():
    maps = params()
    y, a = ours(maps, X, MEMORY, VALUES)
    q, k, v = affine(maps.query, X), affine(maps.key, MEMORY), affine(maps.value, VALUES)
    for n, t in np.ndindex(B * W, T):
        b, parts, weights = n // W, [], []
        for head in range(H):
            block = slice(head * E // H, (head + 1) * E // H)
            scores = np.array([q[n, t, block] @ k[b, s, block] / np.sqrt(E / H) for s in range(S)])
            p = np.where(MASK[b], np.exp(scores), 0.0)
            weights.append(p / p.sum())
            parts.append(weights[-1] @ v[b, :, block])
        np.testing.assert_allclose(y[n, t], affine(maps.out, np.concatenate(parts)), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(a[n, t], np.mean(weights, axis=0), rtol=1e-4, atol=1e-6)


def test_hypotheses_attend_in_bfloat16_as_in_float32():
    """In a compiled program, with more than a few positions: XLA's CPU refused to run it (beam search of LightConv)."""
    rng = np.random.default_rng(2)
    x, memory = (array(rng.normal(size=shape)) for shape in ((12, 1, 32), (4, 16, 32)))
    maps = multihead.init(jax.random.key(0), 32)

    def attended(maps, x, memory):
        source = multihead.map_source(maps, 4, memory, memory)
        return jax.jit(multihead.attend)(maps, source, x, jnp.ones((4, 16), bool))

    half = attended(*jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (maps, x, memory)))
    for near, exact in zip(half, attended(maps, x, memory), strict=True):
        np.testing.assert_allclose(near.astype(jnp.float32), exact, atol=0.02)


def test_dropout_falls_on_weights_and_not_on_those_returned():
    """At rate 1/2 with values of one, what is fetched of a head is the sum of twice the weights that are kept."""
    maps = dataclasses.replace(params(), value=Affine(w=jnp.zeros((E, E)), b=jnp.ones(E)))
    maps = dataclasses.replace(maps, out=Affine(w=jnp.eye(E), b=jnp.zeros(E)))
    plain, a = ours(maps, X, MEMORY, VALUES)
    dropped, same = ours(maps, X, MEMORY, VALUES, rate=0.5, key=jax.random.key(0))
    np.testing.assert_allclose(plain, 1.0, rtol=1e-5)
    np.testing.assert_array_equal(a, same)
    assert np.std(dropped) > 0.2
    assert np.mean(dropped) == pytest.approx(1.0, abs=0.2)


def test_fresh_maps_are_smaller_by_the_root_of_a_half_but_for_the_last():
    """U(-r, r) has the deviation r / sqrt(3): 40,000 draws, known to 0.5 %."""
    fresh = multihead.init(jax.random.key(0), 200)
    assert isinstance(fresh, Multihead)
    for map, gain in ((fresh.query, 0.5), (fresh.key, 0.5), (fresh.value, 0.5), (fresh.out, 1.0)):
        assert float(jnp.std(map.w)) == pytest.approx((gain * 6 / 400 / 3) ** 0.5, rel=0.02)
        np.testing.assert_array_equal(map.b, 0.0)
