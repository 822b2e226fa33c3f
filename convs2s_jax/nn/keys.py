"""Random keys: of which kind they are, and one per row of a batch."""

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.types import Array, Key

THREEFRY = "threefry2x32"
"""JAX's default generator. Its numbers depend on nothing but the key, also under `vmap`."""


def row_keys(key: Key, count: int, first: Array | int = 0) -> Key:
    """Derive one key per row, [count], from `key` and the row numbers, which start at `first`.

    With these keys, a batch that is sharded over devices drops the same elements as on one device.
    """
    key = threefry(key)
    numbers = jnp.arange(count, dtype=jnp.uint32) + jnp.asarray(first, jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def threefry(key: Key) -> Key:
    """Return a typed key [...] of JAX's default generator, as `jax.random.key` does. Raw keys are wrapped.

    Raw keys are those of `jax.random.PRNGKey`, uint32 [..., 2]. Of a key of another generator the first two words are
    used: under `vmap` over keys, "rbg" and "unsafe_rbg" use only the first key (documentation of `jax.random`), so
    that a row would depend on its neighbours.
    """
    check_key(key)
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key, impl=THREEFRY if key.shape[-1:] == (2,) else None)
    if jax.random.key_impl(key) == THREEFRY:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key)[..., :2], impl=THREEFRY)


def check_key(key: Key) -> None:
    """Reject anything but a key, such as a seed."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"key is {key!r}: create one with jax.random.key(seed)")
    if key.dtype != np.uint32 and not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"key is an array of {key.dtype}: create one with jax.random.key(seed)")
