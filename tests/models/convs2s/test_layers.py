"""The layer list: channels around each layer, residual connections, rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import layers
from convs2s_jax.models.convs2s.convolutions import DenseConfig
from convs2s_jax.models.convs2s.layers import ConvLayer, LayerChannels
from convs2s_jax.nn.affine import Affine


def test_sizes_follow_the_outputs_that_a_skip_reaches():
    """Outputs before layer i: that of the map in (8), then the layers': 8, 12, 6."""
    stack = [ConvLayer(8, 3), ConvLayer(12, 3, 2), ConvLayer(6, 1, 3), ConvLayer(6, 3, 0)]
    assert layers.layer_channels(stack) == [
        LayerChannels(8, 8),
        LayerChannels(8, 8),
        LayerChannels(12, 8),
        LayerChannels(6, None),
    ]


def test_a_projection_exists_where_channels_change_only():
    """At least 20,000 draws each: 3 % is far outside chance. The projection has no dropout before it."""
    key = jax.random.key(0)
    conv, projection = layers.init_layer(key, ConvLayer(150, 3), LayerChannels(100, 160), 0.6, DenseConfig())
    assert conv.w.shape == (3, 100, 300)
    assert float(jnp.std(conv.w)) == pytest.approx((4 * 0.6 / 300) ** 0.5, rel=0.03)
    assert projection.w.shape == (160, 150)
    assert float(jnp.std(projection.w)) == pytest.approx(160**-0.5, rel=0.03)
    assert layers.init_layer(key, ConvLayer(4, 3), LayerChannels(5, 4), 1.0, DenseConfig())[1] is None
    assert layers.init_layer(key, ConvLayer(4, 3, 0), LayerChannels(5, None), 1.0, DenseConfig())[1] is None


def test_residual_reads_the_output_that_many_layers_back():
    outputs = [jnp.full((1, 2, 3), float(i)) for i in range(4)]
    assert layers.residual(outputs, ConvLayer(3, 1, 0), None) is None
    for skip in (1, 2, 4):
        np.testing.assert_array_equal(layers.residual(outputs, ConvLayer(3, 1, skip), None), 4.0 - skip)
    projection = Affine(w=2.0 * jnp.eye(3), b=jnp.ones(3))
    np.testing.assert_array_equal(layers.residual(outputs, ConvLayer(3, 1, 2), projection), 5.0)


def test_add_residual_halves_the_variance_of_the_sum():
    x, r = np.random.default_rng(0).normal(size=(2, 1, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(layers.add_residual(jnp.asarray(x), jnp.asarray(r)), (x + r) / np.sqrt(2), rtol=1e-6)
    assert layers.add_residual(x, None) is x


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ([], r"^model\.encoder\.layers is empty: a convolutional stack has at least one layer, such as \[\(256, 3\)\]"),
        (
            [(8, 0)],
            r"^model\.encoder\.layers\[0\]\.width is 0: a convolution sees at least one position; use 1 or more",
        ),
        ([(8, 3), (0, 3)], r"^model\.encoder\.layers\[1\]\.channels is 0: .*use 1 or more"),
        ([(8, 3, -1)], r"^model\.encoder\.layers\[0\]\.skip is -1: .*use 0 for none"),
        ([(8, 3), (8, 3, 3)], r"^model\.encoder\.layers\[1\]\.skip is 3: only 2 earlier outputs .*use at most 2"),
        ([(8, 3, 1, 1)], r"^model\.encoder\.layers\[0\] is \(8, 3, 1, 1\): at most 3 values \(channels, width, skip\)"),
        ([(8,)], r"^model\.encoder\.layers\[0\]: width must be set"),
        ([(8, "3")], r"^model\.encoder\.layers\[0\]\.width is '3': expected an integer"),
        (3, r"^model\.encoder\.layers is 3: expected a list of \(channels, width, \[skip\]\)$"),
        ("[(8, 3)] * 2", r"^model\.encoder\.layers is '\[\(8, 3\)\] \* 2': expected a list of \(channels"),
    ],
)
def test_a_wrong_layer_is_refused_with_its_place(stack, message):
    with pytest.raises(UserError, match=message):
        build(ModelConfig, {"encoder": {"layers": stack}}, "model")


def test_both_sides_have_the_rules():
    with pytest.raises(UserError, match=r"^model\.decoder\.layers\[0\]\.skip is 2: only 1 earlier"):
        build(ModelConfig, {"decoder": {"layers": [(8, 3, 2)]}}, "model")
