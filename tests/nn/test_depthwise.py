"""Depthwise, lightweight and dynamic convolutions against loops over time, taps and channels, gradients included."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import depthwise as module
from convs2s_jax.nn.depthwise import depthwise
from tests.helpers import array, drills_but

B, C = 2, 6
KERNELS = {"shared": (), "moving": (B, None), "by row": (B, 1)}
"""Leading axes of the taps; None for the number of positions."""


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def kernel(name, width, length, heads):
    return random(*(length if axis is None else axis for axis in KERNELS[name]), width, heads)


def loops(w, x, dilation, dy):
    """y_{t,c} = sum_j w_{j,h(c)} x_{t+jr,c}, the taps of position t if w has any; dw, dx of sum(dy * y)."""
    K, H = w.shape[-2:]
    y, dw, dx = np.zeros_like(dy), np.zeros_like(w), np.zeros_like(x)
    for b, t, j, c in np.ndindex(len(x), dy.shape[1], K, x.shape[2]):
        head, u = c // (x.shape[2] // H), t + j * dilation
        at = (j, head) if w.ndim == 2 else (b, t % w.shape[1], j, head)
        y[b, t, c] += w[at] * x[b, u, c]
        dw[at] += dy[b, t, c] * x[b, u, c]
        dx[b, u, c] += dy[b, t, c] * w[at]
    return y, dw, dx


@partial(jax.jit, static_argnums=0)
def pulled(function, w, x, dy):
    """y, dw, dx. One program: operation by operation compiles for ten times as long."""
    y, pull = jax.vjp(function, w, x)
    return y, *pull(dy)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("heads", drills_but([6, 3, 1], kept=[3]))
@pytest.mark.parametrize(
    ("width", "dilation", "padding", "length"),
    [
        *[(1, 1, (0, 0), 3), (2, 1, (0, 0), 5), (9, 1, (0, 0), 4), (4, 3, (0, 0), 1), (9, 2, (0, 0), 7)],
        *[(3, 1, (0, 0), 23), (9, 1, (4, 4), 1), (9, 1, (8, 0), 2), (4, 2, (0, 6), 7), (2, 3, (1, 2), 11)],
    ],
)
def test_outputs_and_gradients_equal_loops(name, heads, width, dilation, padding, length, monkeypatch):
    """One position, fewer positions than taps, more, several blocks of 3; padding acts as zeros."""
    monkeypatch.setattr(module, "BLOCK", 3)
    w = kernel(name, width, length, heads)
    x, dy = random(B, length + (width - 1) * dilation - sum(padding), C), random(B, length, C, seed=1)
    y, dw, dx = loops(w, np.pad(x, ((0, 0), padding, (0, 0))), dilation, dy)
    expected = y, dw, dx[:, padding[0] : padding[0] + x.shape[1]]
    found = pulled(partial(depthwise, dilation=dilation, padding=padding), array(w), array(x), array(dy))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["shared", "moving"])
def test_bfloat16_stays_bfloat16_and_within_its_rounding(name):
    """Sums are taken in float32: 0.01 of the largest element is about a rounding of 8 bits."""
    given = kernel(name, 15, 32, 3), random(B, 46, C), random(B, 32, C)
    half = [array(a, jnp.bfloat16) for a in given]
    exact = pulled(depthwise, *(a.astype(jnp.float32) for a in half))
    for a, b in zip(pulled(depthwise, *half), exact, strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0, atol=0.01 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 5, 3)])
def test_softmax_sums_to_one_over_the_taps_of_each_head(shape):
    scores = random(*shape)
    expected = np.exp(scores) / np.exp(scores).sum(-2, keepdims=True)
    np.testing.assert_allclose(module.softmax(array(scores)), expected, rtol=1e-5, atol=1e-5)
    assert module.softmax(jnp.zeros(shape, jnp.bfloat16)).dtype == jnp.bfloat16
