"""Layer normalisation (Ba et al. 2016)."""

import jax.numpy as jnp

from convs2s_jax.nn import cpu, struct
from convs2s_jax.nn.affine import expand_leading
from convs2s_jax.nn.types import Array, accumulation_dtype


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
    scale, shift = (expand_leading(p.astype(z.dtype), z.ndim) for p in (params.scale, params.bias))
    return cpu.normalised(z, scale, shift).astype(x.dtype)
