"""Dropout (section 4.2)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.keys import threefry
from convs2s_jax.nn.types import Array, Key

LEVELS = 2**16
"""Probabilities are multiples of 1 / LEVELS, so 32 random bits, the main cost of dropout, suffice for two elements."""
GOLDEN = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio, added before mixing, which maps zero to zero."""


def dropout(x: Array, rate: float, key: Key | None) -> Array:
    """Zero each element with probability `rate` and divide the others by 1 - rate; without a key, return x.

    Args:
      x: [B, ..., C].
      rate: dropout rate in [0, 1), rounded to a multiple of 1 / 65536.
      key: one key for all rows, or the keys [B] of `row_keys`, with which the mask of a row depends on no other row.

    Returns:
      An array with the shape and dtype of x.
    """
    if key is None or rate == 0.0:
        return x
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate is {rate}: use 0 or more and less than 1")
    key = threefry(key)
    if key.ndim and key.shape != x.shape[:1]:
        raise ValueError(f"keys have shape {key.shape} for {len(x)} rows: pass one key, or one per row (`row_keys`)")
    kept = min(max(round((1.0 - rate) * LEVELS), 1), LEVELS - 1)
    draw = jax.vmap(_levels, (0, None)) if key.ndim else _levels
    keep = draw(key, x.shape[key.ndim :]) < jnp.uint16(kept)
    return jnp.where(keep, x / (kept / LEVELS), jnp.zeros_like(x))


def split_key(key: Key | None, count: int) -> list[Key | None]:
    """Split a key, or each of the keys [B], into `count`; without a key, return None `count` times."""
    if key is None:
        return [None] * count
    key = threefry(key)
    if key.ndim == 0:
        return list(jax.random.split(key, count))
    return list(jax.vmap(lambda k: jax.random.split(k, count), out_axes=1)(key))


@partial(jax.jit, static_argnums=1)
def _levels(key: Key, shape: tuple[int, ...]) -> Array:
    """Sample uniform integers in [0, 65536) by mixing the index of each pair of elements with each word of the key.

    A mask does not need a cipher. With this instead of `jax.random.bits`, LightConv compiles in half the time.
    Jitted, so that JAX traces masks of equal shape once. A LightConv of 13 layers has 53 in 7 shapes.
    """
    *rest, last = shape
    shape = *rest, -(-last // 2)
    pairs = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        pairs = pairs * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    for word in jax.random.key_data(key):
        pairs = _mixed(pairs + word + GOLDEN)
    return jax.lax.bitcast_convert_type(pairs, jnp.uint16).reshape(*rest, -1)[..., :last]


def _mixed(x: Array) -> Array:
    """Bijective hash in which each bit of x affects every bit of the result (Wellons, hash-prospector: lowbias32)."""
    x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
    return x ^ x >> 16
