"""Padding counts as nothing: what stands at padded positions is set to zero."""

import jax.numpy as jnp

from convs2s_jax.nn.types import Array


def zero_padding(x: Array, mask: Array) -> Array:
    """X [B, S, C] where mask [B, S] holds, zero elsewhere."""
    return jnp.where(mask[:, :, None], x, jnp.zeros_like(x))
