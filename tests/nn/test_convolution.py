"""Convolutions against loops over time and taps, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import convolution
from convs2s_jax.nn.affine import Affine

WIDTHS = [1, 2, 3, 4]


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def kernel(width, inputs=3, outputs=4):
    return random(width, inputs, outputs), random(outputs, seed=1)


def ours(w, b):
    return Affine(w=jnp.asarray(w, jnp.float32), b=jnp.asarray(b, jnp.float32))


def loops(w, b, x, left, right):
    """y_t = b + sum_j x_{t + j - left} w_j, where x outside its length is zero."""
    width, length = len(w), x.shape[1]
    y = np.zeros((len(x), length + left + right - width + 1, w.shape[2]))
    for t in range(y.shape[1]):
        y[:, t] = b
        for j in range(width):
            if 0 <= t + j - left < length:
                y[:, t] += x[:, t + j - left] @ w[j]
    return y


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_valid_equals_loops(width, length):
    w, b = kernel(width)
    x = random(2, length + width - 1, 3)
    close(convolution.valid(ours(w, b), jnp.asarray(x, jnp.float32)), loops(w, b, x, 0, 0))


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_of_valid_are_those_of_the_loops(width, length):
    """For y_t = b + sum_j x_{t+j} w_j and L = sum c y:  dx_{t+j} += c_t w_j',  dw_j += x_{t+j}' c_t,  db = sum c."""
    w, b = kernel(width)
    x, c = random(2, length + width - 1, 3), random(2, length, 4)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for t in range(length):
        for j in range(width):
            dx[:, t + j] += c[:, t] @ w[j].T
            dw[j] += x[:, t + j].T @ c[:, t]
    weight = jnp.asarray(c, jnp.float32)
    gradients = jax.grad(lambda p, x: jnp.sum(weight * convolution.valid(p, x)), (0, 1))
    params_bar, x_bar = gradients(ours(w, b), jnp.asarray(x, jnp.float32))
    close(x_bar, dx)
    close(params_bar.w, dw)
    close(params_bar.b, c.sum((0, 1)))


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_centred_pads_half_the_width_and_the_smaller_half_on_the_left(width, length):
    w, b = kernel(width)
    x = random(2, length, 3)
    left = {1: 0, 2: 0, 3: 1, 4: 1}[width]
    y = convolution.centred(ours(w, b), jnp.asarray(x, jnp.float32))
    assert y.shape == (2, length, 4)
    close(y, loops(w, b, x, left, width - 1 - left))


@pytest.mark.parametrize("cuts", [[6], [1] * 6, [2, 1, 3], [5, 1]])
@pytest.mark.parametrize("width", WIDTHS)
def test_causal_equals_loops_in_any_cut(width, cuts):
    w, b = kernel(width)
    x = random(2, 6, 3)
    history, parts, at = jnp.zeros((2, width - 1, 3)), [], 0
    for cut in cuts:
        y, history = convolution.causal(ours(w, b), history, jnp.asarray(x[:, at : at + cut], jnp.float32))
        parts.append(y)
        at += cut
    close(jnp.concatenate(parts, axis=1), loops(w, b, x, width - 1, 0))
    close(history, np.concatenate([np.zeros((2, 4, 3)), x], axis=1)[:, 10 - (width - 1) :])


@pytest.mark.parametrize("width", [1, 3])
def test_one_output_position_is_a_matrix_product(width):
    """A convolution inside a loop is slow on CPU: decoding must not meet one."""
    program = jax.make_jaxpr(convolution.valid)(ours(*kernel(width)), jnp.zeros((2, width, 3)))
    assert "conv_general_dilated" not in str(program)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_fresh_kernel_has_the_deviation_of_section_3_5(keep):
    """90,000 draws: 2 % is far outside chance."""
    params = convolution.init(jax.random.key(0), 3, 100, 300, keep=keep)
    assert float(jnp.std(params.w)) == pytest.approx((4 * keep / (3 * 100)) ** 0.5, rel=0.02)
    np.testing.assert_array_equal(params.b, 0.0)
