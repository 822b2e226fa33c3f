"""The linear map against a loop, and its initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 3, 2)])
def test_linear_equals_a_loop(leading):
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(*leading, 4)), rng.normal(size=(4, 5)), rng.normal(size=5)
    expected = np.zeros((*leading, 5))
    for at in np.ndindex(*leading):
        for d in range(5):
            expected[*at, d] = b[d] + sum(x[*at, c] * w[c, d] for c in range(4))
    params = Affine(w=jnp.asarray(w, jnp.float32), b=jnp.asarray(b, jnp.float32))
    np.testing.assert_allclose(affine.linear(params, jnp.asarray(x, jnp.float32)), expected, rtol=1e-5, atol=1e-5)


def test_linear_computes_in_the_dtype_of_its_kernel():
    params = Affine(w=jnp.ones((2, 3), jnp.bfloat16), b=jnp.zeros(3, jnp.bfloat16))
    assert affine.linear(params, jnp.ones((1, 2), jnp.float32)).dtype == jnp.bfloat16


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_fresh_kernel_has_the_deviation_of_section_3_5(keep):
    """60,000 draws: the deviation is known to 0.3 %, so 2 % is far outside chance."""
    params = affine.init(jax.random.key(0), 200, 300, keep=keep)
    assert float(jnp.std(params.w)) == pytest.approx((keep / 200) ** 0.5, rel=0.02)
    assert abs(float(jnp.mean(params.w))) < 0.02 * (keep / 200) ** 0.5
    np.testing.assert_array_equal(params.b, 0.0)
