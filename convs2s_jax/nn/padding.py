"""Masking of padded positions with zeros."""

import jax.numpy as jnp

from convs2s_jax.nn.types import Array


def zero_padding(x: Array, mask: Array) -> Array:
    """Keep x [B, S, C] where mask [B, S] is True and set it to zero elsewhere."""
    return jnp.where(mask[:, :, None], x, jnp.zeros_like(x))
