"""Convolutions against loops over time and taps, gradients included."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import convolution, cpu
from convs2s_jax.nn.affine import Affine
from tests.helpers import array, drills_but

WIDTHS = [1, 2, 3, 4]
every_form = pytest.mark.parametrize("form", list(convolution.DENSE_FORMS))


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def kernel(width, inputs=3, outputs=4):
    return random(width, inputs, outputs), random(outputs, seed=1)


def ours(w, b):
    return Affine(w=array(w), b=array(b))


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


@pytest.mark.parametrize("length", drills_but([1, 6], kept=[6]))
@pytest.mark.parametrize("width", WIDTHS)
@every_form
def test_dense_equals_loops(form, width, length):
    w, b = kernel(width)
    x = random(2, length + width - 1, 3)
    close(convolution.dense(ours(w, b), array(x), form), loops(w, b, x, 0, 0))


@pytest.mark.parametrize("length", drills_but([1, 6], kept=[6]))
@pytest.mark.parametrize("width", WIDTHS)
@every_form
def test_gradients_of_dense_are_those_of_the_loops(form, width, length):
    """For y_t = b + sum_j x_{t+j} w_j and L = sum c y:  dx_{t+j} += c_t w_j',  dw_j += x_{t+j}' c_t,  db = sum c."""
    w, b = kernel(width)
    x, c = random(2, length + width - 1, 3), random(2, length, 4)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for t in range(length):
        for j in range(width):
            dx[:, t + j] += c[:, t] @ w[j].T
            dw[j] += x[:, t + j].T @ c[:, t]
    weight = array(c)
    gradients = jax.jit(jax.grad(lambda p, x: jnp.sum(weight * convolution.dense(p, x, form)), (0, 1)))
    params_bar, x_bar = gradients(ours(w, b), array(x))
    close(x_bar, dx)
    close(params_bar.w, dw)
    close(params_bar.b, c.sum((0, 1)))


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_centred_pads_half_the_width_and_the_smaller_half_on_the_left(width, length):
    w, b = kernel(width)
    x = random(2, length, 3)
    left = {1: 0, 2: 0, 3: 1, 4: 1}[width]
    y = convolution.centred(partial(convolution.dense, ours(w, b)), array(x), width - 1)
    assert y.shape == (2, length, 4)
    close(y, loops(w, b, x, left, width - 1 - left))


@pytest.mark.parametrize("cuts", drills_but([[6], [1] * 6, [2, 1, 3], [5, 1]], kept=[[2, 1, 3]]))
@pytest.mark.parametrize("width", WIDTHS)
def test_causal_equals_loops_in_any_cut(width, cuts):
    w, b = kernel(width)
    x = random(2, 6, 3)

    @jax.jit
    def in_cuts(params, x):
        history, parts, at = jnp.zeros((2, width - 1, 3)), [], 0
        for cut in cuts:
            convolve = partial(convolution.dense, params)
            y, history = convolution.causal(convolve, history, x[:, at : at + cut])
            parts.append(y)
            at += cut
        return jnp.concatenate(parts, axis=1), history

    y, history = in_cuts(ours(w, b), array(x))
    close(y, loops(w, b, x, width - 1, 0))
    close(history, np.concatenate([np.zeros((2, 4, 3)), x], axis=1)[:, 10 - (width - 1) :])


def test_products_and_their_gradients_are_those_of_xlas_convolution_in_the_sizes_of_a_model():
    w, x = (array(random(*shape)) for shape in ((3, 64, 128), (4, 22, 64)))
    c = array(random(4, 20, 128))
    forms = convolution.xla, cpu.convolution
    for a, b in zip(*(jax.vjp(form, w, x)[1](c) for form in forms), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * float(jnp.max(jnp.abs(b))))


def test_products_have_no_convolution_in_their_gradient_and_keep_no_windows():
    """What is kept for the gradients is as large as w and x."""
    w, x = jnp.ones((3, 5, 8)), jnp.ones((2, 12, 5))
    program = jax.make_jaxpr(jax.grad(lambda w, x: jnp.sum(cpu.convolution(w, x) ** 2), (0, 1)))(w, x)
    assert "dot_general" in str(program)
    assert "conv_general_dilated" not in str(program)
    kept = jax.eval_shape(lambda w, x: jax.vjp(cpu.convolution, w, x)[1], w, x)
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) == w.size + x.size


@every_form
def test_bfloat16_stays_bfloat16_and_within_its_rounding(form):
    """Both gradients too: 0.01 of the largest element is about a rounding of 8 bits."""
    w, x = (array(random(*shape), jnp.bfloat16) for shape in ((3, 64, 32), (2, 34, 64)))
    c = array(random(2, 32, 32), jnp.bfloat16)
    y, pull = jax.vjp(convolution.DENSE_FORMS[form], w, x)
    expected, expected_pull = jax.vjp(convolution.xla, w.astype(jnp.float32), x.astype(jnp.float32))
    for a, b in zip((y, *pull(c)), (expected, *expected_pull(c.astype(jnp.float32))), strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0, atol=0.01 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize("width", [1, 3])
def test_one_output_position_is_a_matrix_product(width):
    """A convolution inside a loop is slow on CPU: decoding must not meet one."""
    program = jax.make_jaxpr(convolution.dense)(ours(*kernel(width)), jnp.zeros((2, width, 3)))
    assert "conv_general_dilated" not in str(program)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_fresh_kernel_has_the_deviation_of_section_3_5(keep):
    """90,000 draws: 2 % is far outside chance."""
    params = convolution.init(jax.random.key(0), 3, 100, 300, keep=keep)
    assert float(jnp.std(params.w)) == pytest.approx((4 * keep / (3 * 100)) ** 0.5, rel=0.02)
    np.testing.assert_array_equal(params.b, 0.0)
