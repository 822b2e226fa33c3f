"""The convolutions of blocks against loops, their table of parameters, and the models they make."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convolutions import (
    DenseConfig,
    DynamicConfig,
    LightweightConfig,
    SeparableConfig,
)
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn import convolution, weight_norm
from convs2s_jax.training.loss import Batch
from tests.helpers import array, close, drills_but
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


K, O, N = 3, 512, 1024


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (DenseConfig(), K * O * N),
        (SeparableConfig(), K * O + O * N),
        (SeparableConfig(dilations=(4,)), K * O + O * N),
        (LightweightConfig(heads=8), K * 8 + O * N),
        (DynamicConfig(heads=8), O * K * 8 + O * N),
    ],
)
def test_weights_are_those_of_table_11_1(cfg, expected):
    """Of Xiao and Zhu, Machine Translation, chapter 11: K the width, O channels in, N out; biases are not counted."""
    kind = cfg.functions
    leaves = jax.tree.leaves(jax.eval_shape(lambda key: kind.init(key, cfg, K, O, N, 1.0), jax.random.key(0)))
    assert sum(leaf.size for leaf in leaves) == expected + N


V, E, B, S, T = 13, 6, 3, 5, 6
KINDS = {
    "dense": {"kind": "dense"},
    "separable": {"kind": "separable"},
    "dilated": {"kind": "separable", "dilations": [1, 1, 2]},
    "lightweight": {"kind": "lightweight", "heads": 2},
    "dynamic": {"kind": "dynamic", "heads": 2},
}


def model(name, *, layers=((8, 3),) * 3, execution=None, **fields):
    sides = {"layers": [list(x) for x in layers], "convolution": KINDS[name], "max_positions": 16}
    values = {"encoder": sides, "decoder": {**sides, "out_dim": 5}, **fields}
    execution = to_dict(execution or ExecutionConfig())
    return build(ModelConfig, {"embedding_dim": E, "dropout": 0.3, "execution": execution, **values})


def setup(cfg):
    rng = np.random.default_rng(0)
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    params = filled(jax.eval_shape(init, jax.random.key(0)), 0.4)
    src, tgt = rng.integers(4, V, size=(B, S)), rng.integers(4, V, size=(B, T))
    src[1, 3:], tgt[2, 2:] = PAD, PAD
    return params, Batch(src=array(src, jnp.int32), tgt=array(tgt, jnp.int32))


def test_depthwise_kernels_have_a_length_for_each_channel_and_softmaxed_ones_none():
    split = conversion.split(setup(model("separable"))[0], model("separable"))
    normed = split.encoder.blocks[0].conv.taps.w
    assert (normed.v.shape, normed.g.shape) == ((3, 8), (1, 8))
    np.testing.assert_allclose(normed.g[0], np.sqrt((np.asarray(normed.v) ** 2).sum(0)), rtol=1e-6)
    close(weight_norm.merge(split), setup(model("separable"))[0])
    for name, field in (("lightweight", "scores"), ("dynamic", "maker")):
        conv = conversion.split(setup(model(name))[0], model(name)).decoder.blocks[0].conv
        assert isinstance(getattr(conv.taps, field), jax.Array)
        assert isinstance(conv.pointwise.w, weight_norm.Normed)


@pytest.mark.parametrize("cfg", [DenseConfig(), SeparableConfig()])
def test_fresh_layers_keep_the_variance_before_the_gate(cfg):
    """Both four times that of the input (appendix A of the paper), less dropout: of 100,000 numbers known to 3 %."""
    kind = cfg.functions
    params = kind.init(jax.random.key(0), cfg, 5, 256, 200, 0.8)
    x = jax.random.normal(jax.random.key(1), (10, 60, 256))
    y = centred(kind, cfg, params, x, 5)[:, 2:-2]
    assert float(jnp.var(y)) == pytest.approx(4 * 0.8, rel=0.05)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "separabel"}, r"^model\.encoder\.convolution\.kind is 'separabel'; did you mean 'separable'\?"),
        (
            {"kind": "separable", "dilations": []},
            r"^model\.encoder\.convolution\.dilations is empty: use at least one",
        ),
        (
            {"kind": "separable", "dilations": [1, 0]},
            r"^model\.encoder\.convolution\.dilations contains 0: use 1 \(no ",
        ),
        ({"kind": "dynamic", "heads": 0}, r"^model\.encoder\.convolution\.heads is 0: .*use 1 or more"),
        ({"kind": "dynamic", "heads": 3}, r"^model\.encoder\.convolution\.heads is 3, but a layer has 256 channels: "),
        ({"kind": "lightweight", "heads": 7}, r"^model\.encoder\.convolution\.heads is 7, .* use a divisor"),
        (
            {"kind": "lightweight", "dilations": [1]},
            r"^model\.encoder\.convolution sets 'dilations', a field of kind sep",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig, {"encoder": {"convolution": values}}, "model")
