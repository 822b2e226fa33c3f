"""Dropout (section 4.2)."""

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.types import Array, Key

LEVELS = 2**16
"""Probabilities are multiples of 1 / LEVELS: two draws from each 32 random bits, which are what dropout costs."""
GOLDEN = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio: the first number of a key of zeros is not mixed from zero, which would stay zero."""


def dropout(x: Array, rate: float, key: Key | None) -> Array:
    """Zero each element with probability `rate` and divide the others by 1 - rate; without a key return x.

    Args:
      x: [B, ..., C].
      rate: rounded to a multiple of 1 / 65536.
      key: one for all rows, or [B] of `row_keys`: then what a row loses depends on no other row.

    Returns:
      The shape and dtype of x.
    """
    if key is None or rate == 0.0:
        return x
    key = typed(key)
    kept = min(max(round((1.0 - rate) * LEVELS), 1), LEVELS - 1)
    draw = jax.vmap(_levels, (0, None)) if key.ndim else _levels
    keep = draw(key, x.shape[key.ndim :]) < jnp.uint16(kept)
    return jnp.where(keep, x / (kept / LEVELS), jnp.zeros_like(x))


def row_keys(key: Key, count: int, first: Array | int = 0) -> Key:
    """A key for each of `count` rows, made of `key` and the row's number, counted from `first`: [count].

    A batch that is spread over devices drops the same elements as on one.
    """
    key = typed(key)
    numbers = jnp.arange(count, dtype=jnp.uint32) + jnp.asarray(first, jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def split_key(key: Key | None, count: int) -> list[Key | None]:
    """`count` keys from one (or `count` times [B] from [B]), or as many times no key."""
    if key is None:
        return [None] * count
    key = typed(key)
    if key.ndim == 0:
        return list(jax.random.split(key, count))
    return list(jax.vmap(lambda k: jax.random.split(k, count), out_axes=1)(key))


def typed(key: Key) -> Key:
    """A typed key [...] of `jax.random.key`, made of a raw one of `jax.random.PRNGKey`, uint32 [..., 2], if need be."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"key is {key!r}: make one with jax.random.key(seed)")
    return key if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _levels(key: Key, shape: tuple[int, ...]) -> Array:
    """Uniform integers in [0, 65536): the number of each pair of elements, mixed with each word of the key in turn.

    A mask needs no cipher: with this in place of `jax.random.bits` LightConv compiles in half the time (decision 0012).
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
    """Each bit of the result hangs on each bit of x; no two x have one result (Wellons, hash-prospector: lowbias32)."""
    x = (x ^ x >> 16) * jnp.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * jnp.uint32(0x846CA68B)
    return x ^ x >> 16
