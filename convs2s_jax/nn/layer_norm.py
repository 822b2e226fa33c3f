"""Layer normalisation (Ba et al. 2016)."""

import jax
import jax.numpy as jnp

from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import expand_leading
from convs2s_jax.nn.types import Array, accumulation_dtype

EPSILON = 1e-5
"""Added to the variance. It is PyTorch's default, which fairseq uses."""


@struct.dataclass
class LayerNorm:
    """Parameters of a layer normalisation.

    Attributes:
      scale: [C], the factor after normalising.
      bias: [C], added last.
    """

    scale: Array
    bias: Array


def init(channels: int) -> LayerNorm:
    """Initialise the scale to one and the bias to zero."""
    return LayerNorm(scale=jnp.ones(channels), bias=jnp.zeros(channels))


def normalise(params: LayerNorm, x: Array) -> Array:
    """Compute scale (x - mean) / sqrt(variance + 1e-5) + bias over the last axis of x [..., C].

    Computed in float32 or better and returned in the dtype of x.
    """
    z = x.astype(accumulation_dtype(x.dtype))
    scale, bias = (expand_leading(p.astype(z.dtype), z.ndim) for p in (params.scale, params.bias))
    z -= jnp.mean(z, axis=-1, keepdims=True)
    z *= jax.lax.rsqrt(jnp.mean(jnp.square(z), axis=-1, keepdims=True) + EPSILON)
    return (z * scale + bias).astype(x.dtype)
