"""Pooling over time: one vector of a text, whatever its length (Collobert et al. 2011; Kim 2014)."""

import jax.numpy as jnp

from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.types import Array, wide


def maximum(x: Array, mask: Array) -> Array:
    """The largest x [B, S, E] where mask [B, S] holds: [B, E]; zero in rows where it never does.

    It is read at its position, the first of equal ones, and the gradient goes there. That of `jnp.max` looks for x that
    equal the largest: where XLA computes x twice and rounds it in two ways there is none, and 0 / 0 is what comes out.
    """
    least = jnp.full_like(x, jnp.finfo(x.dtype).min)
    place = jnp.argmax(jnp.where(mask[:, :, None], x, least), axis=1, keepdims=True)
    largest = jnp.take_along_axis(x, place, axis=1)[:, 0]
    return jnp.where(jnp.any(mask, axis=1)[:, None], largest, jnp.zeros_like(largest))


def mean(x: Array, mask: Array) -> Array:
    """The mean of x [B, S, E] where mask [B, S] holds: [B, E]; zero in rows where it never does."""
    dtype = wide(x.dtype)
    total = jnp.sum(zero_padding(x, mask), axis=1, dtype=dtype)
    count = jnp.maximum(jnp.sum(mask, axis=1), 1).astype(dtype)
    return (total / count[:, None]).astype(x.dtype)
