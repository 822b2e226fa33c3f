"""Layer normalisation against its formula in numpy and against PyTorch's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import layer_norm
from convs2s_jax.nn.layer_norm import LayerNorm, normalise
from tests.helpers import array, barriers

RNG = np.random.default_rng(0)
X, SCALE, BIAS, DY = (3.0 + 2.0 * RNG.normal(size=shape) for shape in ((2, 4, 6), (6,), (6,), (2, 4, 6)))


def params(dtype=jnp.float32):
    return LayerNorm(scale=array(SCALE, dtype), bias=array(BIAS, dtype))


def test_each_position_is_normalised_alone():
    expected = np.zeros_like(X)
    for at in np.ndindex(2, 4):
        x = X[at]
        expected[at] = SCALE * (x - x.mean()) / np.sqrt(x.var() + 1e-5) + BIAS
    np.testing.assert_allclose(normalise(params(), array(X)), expected, rtol=1e-5)


@pytest.mark.drill
def test_gradients_are_those_of_pytorch():
    """A second proof: models with it have the gradients of fairseq (interop/test_light_golden.py)."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(a, requires_grad=True) for a in (X, SCALE, BIAS)]
    torch.nn.functional.layer_norm(leaves[0], (6,), *leaves[1:]).backward(torch.tensor(DY))
    dy = array(DY)
    by_params, by_x = jax.grad(lambda p, x: jnp.sum(dy * normalise(p, x)), (0, 1))(params(), array(X))
    for ours, leaf in zip((by_x, by_params.scale, by_params.bias), leaves, strict=True):
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_forward_mode_is_the_difference_quotient_of_the_formula():
    def formula(x, scale, shift):
        z = x - x.mean(-1, keepdims=True)
        return scale * z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-5) + shift

    primals, tangents, step = (X, SCALE, BIAS), (DY, BIAS, SCALE), 1e-5
    ends = (formula(*(p + sign * t for p, t in zip(primals, tangents, strict=True))) for sign in (step, -step))
    expected = np.subtract(*ends) / (2 * step)
    dx, dscale, dshift = (array(t) for t in tangents)
    _, dy = jax.jvp(normalise, (params(), array(X)), (LayerNorm(scale=dscale, bias=dshift), dx))
    np.testing.assert_allclose(dy, expected, rtol=1e-4, atol=1e-4)


def test_its_result_stands_behind_a_barrier_on_cpus_where_a_gradient_is_taken():
    params, x = LayerNorm(scale=jnp.ones(4), bias=jnp.zeros(4)), jnp.ones((2, 4))
    assert barriers(jax.grad(lambda x: jnp.sum(normalise(params, x) ** 2)), x) == {"cpu": 1, "cuda": 0, "tpu": 0}
    assert set(barriers(partial(normalise, params), x).values()) == {0}


def test_bfloat16_is_normalised_in_float32():
    """A mean of 1000 has no deviation left in eight bits."""
    x = array(1000.0 + RNG.choice([-8.0, 8.0], size=(5, 64)), jnp.bfloat16)
    fresh = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer_norm.init(64))
    y = normalise(fresh, x)
    assert y.dtype == jnp.bfloat16
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=0.01)


def test_a_constant_input_gives_the_bias():
    np.testing.assert_allclose(normalise(params(), jnp.full((1, 6), 7.0)), BIAS[None], rtol=1e-6)
