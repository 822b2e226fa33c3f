"""Convolutions against loops over time and taps, gradients included, and the gated linear unit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import convolution
from convs2s_jax.nn.affine import Affine
from tests.helpers import array, close, drills_but

every_form = pytest.mark.parametrize("form", ["xla", "products", "winograd"])
every_width = pytest.mark.parametrize("width", [1, 2, 3, 4])


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def kernel(width, inputs=3, outputs=4):
    w, b = random(width, inputs, outputs), random(outputs, seed=1)
    return Affine(w=array(w), b=array(b)), w, b


def loops(w, b, x, left, right):
    """y_t = b + sum_j x_{t + j - left} w_j, where x outside its length is zero."""
    padded = np.pad(x, ((0, 0), (left, right), (0, 0)))
    length = padded.shape[1] - len(w) + 1
    return b + sum(padded[:, j : j + length] @ w[j] for j in range(len(w)))


@pytest.mark.parametrize("length", drills_but([1, 6], kept=[6]))
@every_width
@every_form
def test_dense_and_its_gradients_equal_loops(form, width, length):
    """For y_t = b + sum_j x_{t+j} w_j and L = sum c y:  dx_{t+j} += c_t w_j',  dw_j += x_{t+j}' c_t,  db = sum c."""
    params, w, b = kernel(width)
    x, c = random(2, length + width - 1, 3), random(2, length, 4)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for t in range(length):
        for j in range(width):
            dx[:, t + j] += c[:, t] @ w[j].T
            dw[j] += x[:, t + j].T @ c[:, t]

    @jax.jit
    def pulled(params, x):
        y, pull = jax.vjp(partial(convolution.dense, form=form), params, x)
        return y, pull(array(c))

    expected = loops(w, b, x, 0, 0), (Affine(w=dw, b=c.sum((0, 1))), dx)
    close(pulled(params, array(x)), expected)


@pytest.mark.parametrize("length", [1, 6])
@every_width
def test_centred_pads_half_the_width_and_the_smaller_half_on_the_left(width, length):
    params, w, b = kernel(width)
    x = random(2, length, 3)
    left = {1: 0, 2: 0, 3: 1, 4: 1}[width]
    y = convolution.centred(partial(convolution.dense, params), array(x), width - 1)
    close(y, loops(w, b, x, left, width - 1 - left))


@pytest.mark.parametrize("cuts", drills_but([[6], [1] * 6, [2, 1, 3], [5, 1]], kept=[[2, 1, 3]]))
@every_width
def test_causal_equals_loops_in_any_cut(width, cuts):
    params, w, b = kernel(width)
    x = random(2, 6, 3)

    @jax.jit
    def in_cuts(params, x):
        history, parts, at = jnp.zeros((2, width - 1, 3)), [], 0
        for cut in cuts:
            y, history = convolution.causal(partial(convolution.dense, params), history, x[:, at : at + cut])
            parts.append(y)
            at += cut
        return jnp.concatenate(parts, axis=1), history

    y, history = in_cuts(params, array(x))
    close(y, loops(w, b, x, width - 1, 0))
    close(history, np.concatenate([np.zeros((2, 4, 3)), x], axis=1)[:, 10 - (width - 1) :])


@every_form
def test_bfloat16_stays_bfloat16_and_within_its_rounding(form):
    """Both gradients too: 0.01 of the largest element is about a rounding of 8 bits."""
    w, x, c = (array(random(*shape), jnp.bfloat16) for shape in ((3, 64, 32), (2, 34, 64), (2, 32, 32)))
    y, pull = jax.vjp(convolution.DENSE_FORMS[form], w, x)
    exact, exact_pull = jax.vjp(convolution.xla, w.astype(jnp.float32), x.astype(jnp.float32))
    assert {a.dtype for a in (y, *pull(c))} == {jnp.dtype("bfloat16")}
    close((y, *pull(c)), (exact, *exact_pull(c.astype(jnp.float32))), 0.01)


@pytest.mark.parametrize("width", [1, 3])
def test_one_output_position_is_a_matrix_product(width):
    """A convolution inside a loop is slow on CPU: decoding must not meet one."""
    program = jax.make_jaxpr(convolution.dense)(kernel(width)[0], jnp.zeros((2, width, 3)))
    assert "conv_general_dilated" not in str(program)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_fresh_kernel_has_the_deviation_of_section_3_5(keep):
    """90,000 draws: 2 % is far outside chance."""
    params = convolution.init(jax.random.key(0), 3, 100, 300, keep=keep)
    assert float(jnp.std(params.w)) == pytest.approx((4 * keep / (3 * 100)) ** 0.5, rel=0.02)
    np.testing.assert_array_equal(params.b, 0.0)


def test_glu_gates_the_first_half_with_the_second():
    x = random(2, 3, 8)
    close(convolution.glu(array(x)), x[..., :4] / (1 + np.exp(-x[..., 4:])))
