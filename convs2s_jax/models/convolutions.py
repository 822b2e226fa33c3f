"""The table of the convolutions that blocks are made of."""

from convs2s_jax.models import conv_dense
from convs2s_jax.models.conv_dense import DenseConfig
from convs2s_jax.models.conv_kinds import Convolution

ConvolutionConfig = DenseConfig
"""Told apart by `kind`; without one, dense."""

CONVOLUTIONS: dict[str, Convolution] = {"dense": conv_dense.KIND}
