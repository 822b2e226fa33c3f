"""Layer normalisation (Ba et al. 2016)."""

from functools import partial

import jax
import jax.numpy as jnp

from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import expand_leading
from convs2s_jax.nn.gradient import materialise_on_cpu
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
    scale, shift = (expand_leading(p.astype(z.dtype), z.ndim) for p in (params.scale, params.bias))
    return _normalised(z, scale, shift).astype(x.dtype)


@jax.custom_jvp
def _normalised(x: Array, scale: Array, shift: Array) -> Array:
    """Compute scale r z + shift,  z = x - mean(x),  r = 1 / sqrt(mean(z^2) + 1e-5).

    The backward pass saves z and r.
    """
    z, r = _centred(x)
    return z * r * scale + shift


@_normalised.defjvp
def _normalised_tangent(
    primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    x, scale, shift = primals
    z, r = _centred(x)
    # otherwise XLA's CPU compiler would recompute the result in each of its uses
    return materialise_on_cpu(z * r * scale + shift), _linear_in_tangents(z, r, scale, *tangents)


@partial(jax.checkpoint, prevent_cse=False)
def _linear_in_tangents(z: Array, r: Array, scale: Array, dx: Array, dscale: Array, dshift: Array) -> Array:
    """Compute dy = scale r (dx - mean(dx) - n mean(n dx)) + n dscale + dshift,  n = r z.

    Its transpose is the gradient of x in few passes:  dx = g - mean(g) - n mean(n g)  with g = r scale dy.
    """
    n = z * r
    along = jnp.mean(n * dx, axis=-1, keepdims=True)
    return scale * r * (dx - jnp.mean(dx, axis=-1, keepdims=True) - n * along) + n * dscale + dshift


def _centred(x: Array) -> tuple[Array, Array]:
    """Compute z = x - mean(x) and r = 1 / sqrt(mean(z^2) + 1e-5) over the last axis."""
    z = x - jnp.mean(x, axis=-1, keepdims=True)
    return z, jax.lax.rsqrt(jnp.mean(jnp.square(z), axis=-1, keepdims=True) + EPSILON)
