"""Kernels of 8-bit integers against loops of Python integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import affine, convolution, quantized
from convs2s_jax.nn.affine import Affine

linear, dense, quantize = map(jax.jit, (affine.linear, convolution.dense, quantized.quantize))
product = jax.jit(quantized.product, static_argnums=2)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rounded(values):
    """Integers and their step, for one row or one output."""
    largest = max(abs(float(v)) for v in values)
    step = np.float32(largest) / np.float32(127)
    return [round(float(np.float32(v) / step)) if step else 0 for v in values], step


def by_hand(x, w):
    """[N, C] and [C, D]: Python's integers, so that no sum overflows."""
    columns = [rounded(w[:, d]) for d in range(w.shape[1])]
    out = np.zeros((len(x), w.shape[1]))
    for n, row in enumerate(x):
        p, r = rounded(row)
        for d, (q, s) in enumerate(columns):
            out[n, d] = sum(a * b for a, b in zip(p, q, strict=True)) * float(r) * float(s)
    return out


@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 40, 2)])
def test_a_product_is_that_of_the_integers(shape):
    rows, inputs, outputs = shape
    x, w = drawn(rows, inputs), 3 * drawn(inputs, outputs, seed=1)
    w[:, 0] *= 1e-3  # each output has a step of its own
    x[0, :] *= rows > 1  # zeros stay zeros
    w[:, 1] = 0
    np.testing.assert_allclose(product(x, quantize(jnp.asarray(w))), by_hand(x, w), rtol=1e-5, atol=1e-9)


def test_weights_are_within_half_a_step():
    w = drawn(3, 16, 8)
    made = quantize(jnp.asarray(w))
    assert made.values.dtype == jnp.int8
    assert made.shape == w.shape
    np.testing.assert_allclose(made.scale, np.abs(w).max((0, 1)) / 127, rtol=1e-6)
    assert np.all(np.abs(np.float64(made.values) * np.float64(made.scale) - w) <= np.float64(made.scale) * 0.50001)


def test_sums_do_not_overflow():
    """The largest integers, more of them than any convolution of the presets has inputs."""
    inputs = 5 * 4096
    x, w = np.ones((1, inputs), np.float32), np.ones((inputs, 1), np.float32)
    np.testing.assert_allclose(product(x, quantize(jnp.asarray(w))), [[inputs]], rtol=1e-6)


@pytest.mark.parametrize("length", [3, 9])
def test_a_convolution_is_the_product_of_its_windows(length):
    """One position, as in decoding, and several."""
    x, w, b = drawn(2, length, 4), drawn(3, 4, 6, seed=1), drawn(6, seed=2)
    found = dense(Affine(w=quantize(jnp.asarray(w)), b=jnp.asarray(b)), jnp.asarray(x))
    windows = np.stack([x[:, t : t + 3].reshape(2, -1) for t in range(length - 2)], axis=1)
    expected = by_hand(windows.reshape(-1, 12), w.reshape(12, 6)).reshape(2, length - 2, 6) + b
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_outputs_are_chosen():
    x, w = drawn(2, 4), quantize(jnp.asarray(drawn(4, 6)))
    chosen = jnp.asarray([5, 0, 0])
    np.testing.assert_array_equal(product(x, w.columns(chosen)), np.asarray(product(x, w))[:, [5, 0, 0]])
