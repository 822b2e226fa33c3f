"""Scaling of gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.gradient import once, scale_gradient


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_scale_gradient_keeps_the_value_and_scales_the_gradient(wrap):
    x = jnp.arange(4.0)
    value, gradient = wrap(jax.value_and_grad(lambda x: jnp.sum(scale_gradient(x, 0.25) ** 3)))(x)
    assert float(value) == 36.0
    np.testing.assert_allclose(gradient, 0.25 * 3 * x**2)


def test_scale_gradient_acts_on_each_example_under_vmap():
    x = jnp.arange(6.0).reshape(2, 3)
    each = jax.vmap(jax.grad(lambda x: jnp.sum(scale_gradient(x, 0.5) ** 2)))(x)
    np.testing.assert_allclose(each, x)


def test_only_what_lies_below_is_scaled():
    gradient = jax.grad(lambda x: jnp.sum(scale_gradient(x, 0.125) + x))(jnp.ones(2))
    np.testing.assert_allclose(gradient, 1.125)


def test_forward_mode_scales_the_tangent_as_reverse_mode_scales_the_cotangent():
    x, dx = jnp.arange(3.0), jnp.ones(3)
    value, tangent = jax.jvp(lambda x: scale_gradient(x, 0.25) ** 2, (x,), (dx,))
    np.testing.assert_array_equal(value, x**2)
    np.testing.assert_allclose(tangent, 0.25 * 2 * x)


def test_a_gradient_that_is_computed_once_is_the_same_in_both_modes():
    def function(x, through):
        return jnp.sum(jnp.sin(through(x)) * x)

    x = jnp.array([0.5, -2.0])
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        expected = derivative(lambda x: function(x, lambda a: a))(x)
        np.testing.assert_allclose(derivative(lambda x: function(x, once))(x), expected, rtol=1e-6)


def test_a_gradient_that_is_computed_once_stands_behind_a_barrier():
    """Without it XLA computes the product with the mask twice (docs/performance-log.md)."""
    gradient = jax.grad(lambda x: jnp.sum(once(x) ** 2))
    assert str(jax.make_jaxpr(gradient)(jnp.ones(2))).count("optimization_barrier") == 1
