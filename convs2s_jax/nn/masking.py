"""Masking of padded positions, and the mean over the others."""

import jax.numpy as jnp

from convs2s_jax.nn.types import Array, accumulation_dtype


def zero_padding(x: Array, mask: Array) -> Array:
    """Keep x [B, S, C] where mask [B, S] is True and set it to zero elsewhere."""
    return jnp.where(mask[:, :, None], x, jnp.zeros_like(x))


def mean(x: Array, mask: Array) -> Array:
    """Mean of x [B, S, E] over the positions where mask [B, S] is True: [B, E]; zero in rows without any."""
    dtype = accumulation_dtype(x.dtype)
    total = jnp.sum(zero_padding(x, mask), axis=1, dtype=dtype)
    count = jnp.maximum(jnp.sum(mask, axis=1), 1).astype(dtype)
    return (total / count[:, None]).astype(x.dtype)
