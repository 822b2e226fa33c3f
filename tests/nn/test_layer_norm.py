"""Layer normalisation against numpy. Its gradients are those of fairseq (interop/test_light_golden.py)."""

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn import layer_norm
from convs2s_jax.nn.layer_norm import LayerNorm, normalise
from tests.helpers import array

RNG = np.random.default_rng(0)


def test_each_position_is_normalised_alone():
    x, scale, bias = (3.0 + 2.0 * RNG.normal(size=shape) for shape in ((2, 4, 6), (6,), (6,)))
    x[0, 0] = 7.0  # a constant gives the bias
    expected = scale * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + bias
    found = normalise(LayerNorm(scale=array(scale), bias=array(bias)), array(x))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_bfloat16_is_normalised_in_float32():
    """A mean of 1000 has no deviation left in eight bits."""
    x = array(1000.0 + RNG.choice([-8.0, 8.0], size=(5, 64)), jnp.bfloat16)
    fresh = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer_norm.init(64))
    y = normalise(fresh, x)
    assert y.dtype == jnp.bfloat16
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=0.01)
