"""The linear map against a loop, and its initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine
from tests.helpers import array, drills_but, same


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 3, 2)])
def test_linear_equals_a_loop(leading):
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(*leading, 4)), rng.normal(size=(4, 5)), rng.normal(size=5)
    expected = b + sum(x[..., c, None] * w[c] for c in range(4))
    same(affine.linear(Affine(w=array(w), b=array(b)), array(x)), expected)


def test_linear_computes_in_the_dtype_of_its_kernel():
    params = Affine(w=jnp.ones((2, 3), jnp.bfloat16), b=jnp.zeros(3, jnp.bfloat16))
    assert affine.linear(params, jnp.ones((1, 2), jnp.float32)).dtype == jnp.bfloat16


@pytest.mark.parametrize("leading", drills_but([((3,),), ((2, 3),), ((2, 3, 2),)], kept=[((2, 3, 2),)]))
def test_its_derivatives_in_bfloat16_are_those_in_float32(leading):
    """Small whole numbers, which bfloat16 holds exactly: both modes, reverse mode twice, and forward over reverse."""
    draws = iter(jax.random.split(jax.random.key(0), 6))

    def whole(*shape):
        return jax.random.randint(next(draws), shape, -2, 3).astype(jnp.float32)

    (x, w), tangents = (whole(*leading, 4), whole(4, 5)), (whole(*leading, 4), whole(4, 5))
    dy = whole(*leading, 5)

    def derivatives(dtype):
        at, along, back = jax.tree.map(lambda a: a.astype(dtype), ((x, w), tangents, dy))
        y, pushed = jax.jvp(affine.matmul, at, along)
        pulled = jax.vjp(affine.matmul, *at)[1](back)
        twice = jax.grad(lambda x, w: jnp.sum(jax.vjp(affine.matmul, x, w)[1](back)[1] * along[1]))(*at)
        slope = jax.grad(lambda x, w: jnp.sum(affine.matmul(x, w) * affine.matmul(x, along[1])), argnums=(0, 1))
        mixed = jax.jvp(slope, at, along)
        return y, pushed, pulled, twice, mixed

    half, single = (jax.jit(derivatives, static_argnums=0)(dtype) for dtype in (jnp.bfloat16, jnp.float32))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a, np.float32), b), half, single)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_fresh_kernel_has_the_deviation_of_section_3_5(keep):
    """60,000 draws: the deviation is known to 0.3 %, so 2 % is far outside chance."""
    params = affine.init(jax.random.key(0), 200, 300, keep=keep)
    assert float(jnp.std(params.w)) == pytest.approx((keep / 200) ** 0.5, rel=0.02)
    assert abs(float(jnp.mean(params.w))) < 0.02 * (keep / 200) ** 0.5
    np.testing.assert_array_equal(params.b, 0.0)
