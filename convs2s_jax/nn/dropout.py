"""Dropout (section 4.2)."""

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array, Key


def dropout(x: Array, rate: float, key: Key | None) -> Array:
    """Zero each element with probability `rate` and divide the others by 1 - rate; without a key return x."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def split(key: Key | None, count: int) -> list[Key | None]:
    """`count` keys from one, or as many times no key."""
    return [None] * count if key is None else list(jax.random.split(key, count))
