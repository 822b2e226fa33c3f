"""Scaling of gradients, and sums over positions and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.gradient import add_broadcast, broadcast, forward_only, scale_gradient
from convs2s_jax.nn.loops import scan

EQUAL = 1000
"""Summands of one, of which a sum in bfloat16 would give 256."""


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["plain", "jit", "vmap"])
def test_both_modes_scale_the_derivative_of_what_lies_below_and_keep_the_value(transform):
    x = jnp.arange(4.0)

    def f(x):
        return jnp.sum(scale_gradient(x, 0.25) ** 3 + x)

    value, gradient = transform(jax.value_and_grad(f))(x)
    np.testing.assert_array_equal(np.sum(value), 42.0)
    np.testing.assert_allclose(gradient, 0.25 * 3 * x**2 + 1)
    np.testing.assert_allclose(transform(jax.jacfwd(f))(x), gradient)


def test_the_gradient_of_what_is_broadcast_is_summed_in_float32():
    y, x = jnp.zeros((EQUAL, 2), jnp.bfloat16), jnp.ones((1, 2), jnp.bfloat16)
    for function in (lambda x: add_broadcast(y, x), lambda x: broadcast(x, y.shape)):
        value, back = jax.vjp(function, x)
        assert value.dtype == back(y + 1)[0].dtype == jnp.bfloat16
        np.testing.assert_array_equal(value, jnp.ones_like(y))
        np.testing.assert_array_equal(back(y + 1)[0], jnp.full((1, 2), EQUAL, jnp.bfloat16))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_what_all_steps_read_is_summed_in_float32(reverse):
    """With integers among the parameters, as in kernels of decoding; it is the scan of JAX otherwise."""
    params = {"w": jnp.ones((), jnp.bfloat16), "index": jnp.int32(3)}
    items = jnp.arange(EQUAL, dtype=jnp.float32)

    def body(params, carry, item):
        assert params["w"].dtype == jnp.bfloat16
        w, index = (params[name].astype(jnp.float32) for name in ("w", "index"))
        return carry + w * index, carry * item

    gradient = jax.grad(lambda w: scan(body, {**params, "w": w}, jnp.float32(0), items, reverse=reverse)[0])
    np.testing.assert_array_equal(gradient(params["w"]), jnp.bfloat16(3 * EQUAL))
    ours = scan(body, params, jnp.float32(0), items, reverse=reverse)
    expected = jax.lax.scan(lambda carry, item: body(params, carry, item), jnp.float32(0), items, reverse=reverse)
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_reverse_mode_is_refused_where_only_forward_mode_works():
    def powers(a):
        """[a^3, a^3]: a loop that runs until a count is reached, which JAX cannot reverse."""
        loop = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * a), (0, jnp.ones(2)))
        return forward_only(loop, "only forwards")[1]

    a = jnp.float32(2.0)
    for transform in (lambda f: f, jax.jit, lambda f: lambda a: jax.vmap(f)(a[None])[0]):
        np.testing.assert_array_equal(transform(powers)(a), [8.0, 8.0])
        np.testing.assert_array_equal(transform(jax.jacfwd(powers))(a), [12.0, 12.0])
        with pytest.raises(ValueError, match=r"^only forwards"):
            transform(jax.grad(lambda a: jnp.sum(powers(a))))(a)
