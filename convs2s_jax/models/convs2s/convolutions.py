"""The table of the convolutions that blocks are made of."""

from convs2s_jax.models.convs2s import dense as conv_dense
from convs2s_jax.models.convs2s import dynamic as conv_dynamic
from convs2s_jax.models.convs2s import lightweight as conv_lightweight
from convs2s_jax.models.convs2s import separable as conv_separable
from convs2s_jax.models.convs2s.convolution import Convolution
from convs2s_jax.models.convs2s.dense import DenseConfig
from convs2s_jax.models.convs2s.dynamic import DynamicConfig
from convs2s_jax.models.convs2s.lightweight import LightweightConfig
from convs2s_jax.models.convs2s.separable import SeparableConfig

ConvolutionConfig = DenseConfig | SeparableConfig | LightweightConfig | DynamicConfig
"""Told apart by `kind`; without one, dense."""

CONVOLUTIONS: dict[str, Convolution] = {
    "dense": conv_dense.KIND,
    "separable": conv_separable.KIND,
    "lightweight": conv_lightweight.KIND,
    "dynamic": conv_dynamic.KIND,
}
