"""Convolutions with fewer products: against sums over taps in float64, and the number of products by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.cpu import transforms, winograd
from tests.helpers import drills_but


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def sums(w, x):
    """y_t = sum_j x_{t+j} w_j."""
    length = x.shape[1] - len(w) + 1
    return sum(x[:, j : j + length] @ w[j] for j in range(len(w)))


def gradients_of_sums(w, x, c):
    """Of sum c y:  dw_j = sum_t x_{t+j}' c_t  and  dx_{t+j} += c_t w_j'."""
    dw, dx = np.zeros_like(w), np.zeros_like(x)
    for j in range(len(w)):
        part = x[:, j : j + c.shape[1]]
        dw[j] = np.einsum("btc,btd->cd", part, c)
        dx[:, j : j + c.shape[1]] += c @ w[j].T
    return dw, dx


@pytest.mark.parametrize(("outputs", "width"), [(m, k) for k in range(2, 6) for m in range(1, 8 - k)])
def test_a_tile_is_the_sum_over_taps(outputs, width):
    """In float64, where the constants of the transforms are exact to 1e-16."""
    by = [np.asarray(matrix) for matrix in transforms(outputs, width)]
    x, w = random(outputs + width - 1), random(width, seed=1)
    y = by[2] @ ((by[0] @ x) * (by[1] @ w))
    np.testing.assert_allclose(y, [w @ x[t : t + width] for t in range(outputs)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", drills_but([2, 4, 5, 9, 11], kept=[4, 11]))
@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_every_length_and_width_with_both_gradients(width, length):
    w, x, c = random(width, 3, 4), random(2, length + width - 1, 3), random(2, length, 4)
    with jax.enable_x64(True):
        y, pull = jax.vjp(winograd, jnp.asarray(w), jnp.asarray(x))
        found = y, *pull(jnp.asarray(c))
    for a, b in zip(found, (sums(w, x), *gradients_of_sums(w, x, c)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_in_float32_errors_are_a_few_millionths_of_the_largest_output():
    """In the sizes of a model; the plain sum has 4e-7."""
    w, x, c = (a.astype(np.float32) for a in (random(3, 256, 64), random(4, 26, 256), random(4, 24, 64)))
    y, pull = jax.vjp(winograd, w, x)
    exact = [a.astype(np.float64) for a in (w, x, c)]
    for a, b in zip((y, *pull(c)), (sums(*exact[:2]), *gradients_of_sums(*exact)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=6e-6 * np.max(np.abs(b)))
