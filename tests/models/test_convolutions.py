"""The convolutions of blocks against loops, and their table of parameters."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.models.convolutions import DenseConfig
from convs2s_jax.models.factored_convolutions import DynamicConfig, LightweightConfig, SeparableConfig
from convs2s_jax.nn import convolution
from tests.helpers import array, drills_but
from tests.models.laws import filled

LAYERS = {
    "dense": DenseConfig(),
    "separable": SeparableConfig(),
    "dilated": SeparableConfig(dilations=(2,)),
    "lightweight": LightweightConfig(heads=3),
    "dynamic": DynamicConfig(heads=2),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
C, D = 6, 4


def layer(name, width):
    """Kind, config and parameters of one layer."""
    cfg = LAYERS[name]
    kind = cfg.functions
    fresh = kind.init(jax.random.key(0), cfg, width, C, D, 1.0)
    return kind, cfg, filled(fresh, 0.5)


@partial(jax.jit, static_argnums=(0, 1, 4))
def centred(kind, cfg, params, x, width):
    return convolution.centred(kind.convolve(params, cfg, x, "xla"), x, (width - 1) * cfg.dilation)


@partial(jax.jit, static_argnums=(0, 1))
def causal(kind, cfg, params, history, x):
    return convolution.causal(kind.convolve(params, cfg, x, "xla"), history, x)


def softmax(u):
    """Over the taps, axis 0."""
    e = np.exp(u - u.max(0))
    return e / e.sum(0)


def taps(name, params, x):
    """What a position x [C] gives each tap: [K, C, D] in float64, written from the equations."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    if name == "dense":
        return params.w, params.b
    if name in ("separable", "dilated"):
        along_time = params.taps.w
    else:
        heads = LAYERS[name].heads
        u = params.taps.scores if name == "lightweight" else np.einsum("C,CKH->KH", x, params.taps.maker)
        along_time = np.stack([softmax(u)[:, c // (C // heads)] for c in range(C)], axis=1)
    return np.einsum("KC,CD->KCD", along_time, params.pointwise.w), params.pointwise.b


def looped(name, params, x, first):
    """y_t = b + sum_j x[t + first + j r] w_j, position by position; zeros outside."""
    x = np.asarray(x, np.float64)
    dilation = 2 if name == "dilated" else 1
    y = np.zeros((*x.shape[:2], D))
    for b, t in np.ndindex(x.shape[:2]):
        w, bias = taps(name, params, x[b, t])
        y[b, t] = bias
        for j in range(len(w)):
            at = t + first + j * dilation
            if 0 <= at < x.shape[1]:
                y[b, t] += x[b, at] @ w[j]
    return y


@pytest.mark.parametrize("width", drills_but([1, 2, 3, 9], kept=[2, 9]))
@every_layer
def test_each_kind_equals_a_loop(name, width):
    """Centred and causal, the latter in every way that it can be cut."""
    kind, cfg, params = layer(name, width)
    x = array(np.random.default_rng(1).normal(size=(2, 7, C)))
    reach = (width - 1) * cfg.dilation
    np.testing.assert_allclose(centred(kind, cfg, params, x, width), looped(name, params, x, -(reach // 2)), atol=1e-5)
    expected = looped(name, params, x, -reach)
    for cuts in ([7], [1] * 7, [3, 1, 3]):
        history, at, parts = jnp.zeros((2, reach, C)), 0, []
        for cut in cuts:
            part = x[:, at : at + cut]
            y, history = causal(kind, cfg, params, history, part)
            parts.append(y)
            at += cut
        np.testing.assert_allclose(jnp.concatenate(parts, axis=1), expected, atol=1e-5)
        assert history.shape == (2, reach, C)


@every_layer
def test_the_dense_convolution_of_equal_results_has_equal_results(name):
    kind, cfg, params = layer(name, 3)
    found = kind.dense(params, cfg)
    assert (found is None) == (name in ("dilated", "dynamic"))
    if found is not None:
        x = array(np.random.default_rng(1).normal(size=(2, 7, C)))
        y = convolution.centred(partial(convolution.dense, found), x, 2)
        np.testing.assert_allclose(y, centred(kind, cfg, params, x, 3), atol=1e-5)
