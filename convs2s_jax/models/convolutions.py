"""The table of the convolutions that blocks are made of."""

from convs2s_jax.models import conv_dense, conv_dynamic, conv_lightweight, conv_separable
from convs2s_jax.models.conv_dense import DenseConfig
from convs2s_jax.models.conv_dynamic import DynamicConfig
from convs2s_jax.models.conv_kinds import Convolution
from convs2s_jax.models.conv_lightweight import LightweightConfig
from convs2s_jax.models.conv_separable import SeparableConfig

ConvolutionConfig = DenseConfig | SeparableConfig | LightweightConfig | DynamicConfig
"""Told apart by `kind`; without one, dense."""

CONVOLUTIONS: dict[str, Convolution] = {
    "dense": conv_dense.KIND,
    "separable": conv_separable.KIND,
    "lightweight": conv_lightweight.KIND,
    "dynamic": conv_dynamic.KIND,
}
