"""The layer list of a convolutional encoder or decoder: channels, kernel widths, residual connections."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.convolutions import CONVOLUTIONS, ConvolutionConfig
from convs2s_jax.models.execution import mark_product, save_for_backward
from convs2s_jax.models.protocols import fields_after
from convs2s_jax.nn import affine
from convs2s_jax.nn.activation_sharding import shard_channels
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.gate import glu
from convs2s_jax.nn.initialisation import init_each
from convs2s_jax.nn.types import SQRT_HALF, Array, Key


@record(kw_only=False)
class ConvLayer:
    """One convolution and GLU, written as (channels, width) or (channels, width, skip) in configs.

    Attributes:
      channels: output channels of the GLU.
      width: kernel width K.
      skip: how many layers back the residual connection starts, 0 for none (fairseq's third number; always 1 in the
        paper).
    """

    channels: int
    width: int
    skip: int = 1

    def __post_init__(self) -> None:
        check(self.channels >= 1, f"channels is {self.channels}: a layer has at least one channel; use 1 or more")
        check(self.width >= 1, f"width is {self.width}: a convolution sees at least one position; use 1 or more")
        check(self.skip >= 0, f"skip is {self.skip}: a residual starts 1 or more layers back; use 0 for none")


def check_layers(layers: Sequence[ConvLayer], convolution: ConvolutionConfig) -> None:
    """Reject an empty list, residual connections that start before the first layer, and unsuitable channels."""
    check(len(layers) > 0, "layers is empty: a convolutional stack has at least one layer, such as [(256, 3)]")
    for i, layer in enumerate(layers):
        rule = f"layers[{i}].skip is {layer.skip}: only {i + 1} earlier outputs exist there; use at most {i + 1}"
        check(layer.skip <= i + 1, rule)
    for size in layer_channels(layers):
        convolution.check_inputs(size.inputs)


class LayerChannels(NamedTuple):
    """Channel counts around one layer.

    Attributes:
      inputs: channels of its input.
      residual: channels where its residual connection starts; None if it has none.
    """

    inputs: int
    residual: int | None


def layer_channels(layers: Sequence[ConvLayer]) -> list[LayerChannels]:
    """Return the input and residual channels of each layer. The first input has the channels of the first layer."""
    outputs = [layers[0].channels]
    result = []
    for layer in layers:
        result.append(LayerChannels(outputs[-1], outputs[-layer.skip] if layer.skip else None))
        outputs.append(layer.channels)
    return result


def receptive_fields(layers: Sequence[ConvLayer], convolution: ConvolutionConfig) -> tuple[int, ...]:
    """Return how many inputs an output of each layer depends on:  1 + sum (K - 1) r  over the layers up to it."""
    reaches = [(layer.width - 1) * convolution.at(i).dilation for i, layer in enumerate(layers)]
    return fields_after(reaches)


def init_layer(
    key: Key, layer: ConvLayer, size: LayerChannels, keep: float, convolution: ConvolutionConfig
) -> tuple[Any, Affine | None]:
    """Initialise the convolution from C to 2D channels, and the residual's projection [C, D] if channels change."""
    conv_key, projection_key = jax.random.split(key)
    init = CONVOLUTIONS[convolution.kind].init
    conv = init(conv_key, convolution, layer.width, size.inputs, 2 * layer.channels, keep)
    if size.residual in (None, layer.channels):
        return conv, None
    return conv, affine.init(projection_key, size.residual, layer.channels)


def init_layers(
    keys: Key, layers: Sequence[ConvLayer], keep: float, convolution: ConvolutionConfig
) -> list[tuple[Any, Affine | None]]:
    """Call `init_layer` for each layer, with one key for each and the config of all layers."""

    def init(key: Key, described: tuple[ConvLayer, LayerChannels, ConvolutionConfig]) -> tuple[Any, Affine | None]:
        layer, size, own = described
        return init_layer(key, layer, size, keep, own)

    own = [convolution.at(i) for i in range(len(layers))]
    return init_each(init, keys, list(zip(layers, layer_channels(layers), own, strict=True)))


def residual(outputs: Sequence[Array], layer: ConvLayer, projection: Affine | None) -> Array | None:
    """Return the input of a layer's residual connection, projected if channels change (section 3.2), or None."""
    if layer.skip == 0:
        return None
    r = outputs[-layer.skip]
    return r if projection is None else linear(projection, r)


def mark_conv_output(y: Array, form: DenseForm) -> Array:
    """Mark y, the output of a convolution, for `with_remat`, so that layers that gather their kernels save it.

    They recompute everything else, since attention has a small part of the operations and half of the activations. In a
    loop ("products"), the outputs of all its layers would be in memory together, so `remat` has to request them.
    """
    return mark_product(y) if form == "products" else save_for_backward(y)


def gated(y: Array) -> Array:
    """Apply the GLU to a convolution's output: [B, T, 2D] to [B, T, D]."""
    return shard_channels(glu(y))


def add_residual(x: Array, r: Array | None) -> Array:
    """Return (x + r) * sqrt(0.5), which preserves the variance (section 3.4), or x if there is no residual."""
    return x if r is None else shard_channels((x + r) * SQRT_HALF)
