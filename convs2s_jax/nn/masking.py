"""Masking of padded positions, and pooling over time: from a sequence of any length to one vector (Kim 2014)."""

import jax.numpy as jnp

from convs2s_jax.nn.types import Array, accumulation_dtype


def zero_padding(x: Array, mask: Array) -> Array:
    """Keep x [B, S, C] where mask [B, S] is True and set it to zero elsewhere."""
    return jnp.where(mask[:, :, None], x, jnp.zeros_like(x))


def maximum(x: Array, mask: Array) -> Array:
    """Maximum of x [B, S, E] over the positions where mask [B, S] is True: [B, E]; zero in rows without any.

    The maximum is gathered at its argmax, the first one among ties, and only this element receives a gradient. The
    gradient of `jnp.max` instead compares x with the maximum. XLA may compute x twice and round it differently. Then no
    element is equal, and the gradient is 0 / 0.
    """
    least = jnp.full_like(x, jnp.finfo(x.dtype).min)
    place = jnp.argmax(jnp.where(mask[:, :, None], x, least), axis=1, keepdims=True)
    largest = jnp.take_along_axis(x, place, axis=1)[:, 0]
    return jnp.where(jnp.any(mask, axis=1)[:, None], largest, jnp.zeros_like(largest))


def mean(x: Array, mask: Array) -> Array:
    """Mean of x [B, S, E] over the positions where mask [B, S] is True: [B, E]; zero in rows without any."""
    dtype = accumulation_dtype(x.dtype)
    total = jnp.sum(zero_padding(x, mask), axis=1, dtype=dtype)
    count = jnp.maximum(jnp.sum(mask, axis=1), 1).astype(dtype)
    return (total / count[:, None]).astype(x.dtype)
