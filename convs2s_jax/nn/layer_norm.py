"""Layer normalisation (Ba et al. 2016)."""

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn.affine import bias
from convs2s_jax.nn.types import Array, wide

EPSILON = 1e-5
"""Added to the variance; the default of PyTorch, which fairseq uses."""


@flax.struct.dataclass
class LayerNorm:
    """Parameters of a layer normalisation.

    Attributes:
      scale: [C], the factor after normalising.
      bias: [C], added last.
    """

    scale: Array
    bias: Array


def init(channels: int) -> LayerNorm:
    """Scale one, bias zero."""
    return LayerNorm(scale=jnp.ones(channels), bias=jnp.zeros(channels))


def normalise(params: LayerNorm, x: Array) -> Array:
    """scale (x - mean) / sqrt(variance + 1e-5) + bias over the last axis of x [..., C].

    Computed in float32 or better and returned in the dtype of x.
    """
    z = x.astype(wide(x.dtype))
    z = z - jnp.mean(z, axis=-1, keepdims=True)
    z = z * jax.lax.rsqrt(jnp.mean(jnp.square(z), axis=-1, keepdims=True) + EPSILON)
    scale, shift = (bias(p.astype(z.dtype), z.ndim) for p in (params.scale, params.bias))
    return (z * scale + shift).astype(x.dtype)
