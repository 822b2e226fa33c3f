"""Dropout (section 4.2)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.types import Array, Key

THREEFRY = "threefry2x32"
"""JAX's default generator. Its numbers depend on nothing but the key, also under `vmap`."""
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


def row_keys(key: Key, count: int, first: Array | int = 0) -> Key:
    """Derive one key per row, [count], from `key` and the row numbers, which start at `first`.

    With these keys, a batch that is sharded over devices drops the same elements as on one device.
    """
    key = threefry(key)
    numbers = jnp.arange(count, dtype=jnp.uint32) + jnp.asarray(first, jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def split_key(key: Key | None, count: int) -> list[Key | None]:
    """Split a key, or each of the keys [B], into `count`; without a key, return None `count` times."""
    if key is None:
        return [None] * count
    key = threefry(key)
    if key.ndim == 0:
        return list(jax.random.split(key, count))
    return list(jax.vmap(lambda k: jax.random.split(k, count), out_axes=1)(key))


def check_key(key: Key) -> None:
    """Reject anything but a key, such as a seed."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"key is {key!r}: create one with jax.random.key(seed)")
    if key.dtype != np.uint32 and not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"key is an array of {key.dtype}: create one with jax.random.key(seed)")


def typed(key: Key) -> Key:
    """Return a typed key [...], as `jax.random.key` does. Wraps raw keys (`jax.random.PRNGKey`, uint32 [..., 2])."""
    check_key(key)
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key, impl=THREEFRY if key.shape[-1:] == (2,) else None)


def threefry(key: Key) -> Key:
    """Return a typed key [...] of JAX's default generator: of a key of another one, the first two words.

    Under `vmap` over keys, the generators "rbg" and "unsafe_rbg" use only the first key (documentation of
    `jax.random`), so that a row would depend on its neighbours.
    """
    key = typed(key)
    if jax.random.key_impl(key) == THREEFRY:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key)[..., :2], impl=THREEFRY)


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
