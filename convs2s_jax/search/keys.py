"""Random keys of samples: each sentence has its own, so that no sample depends on the sentences beside it."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.config import LARGEST_SEED
from convs2s_jax.nn.types import Key


def numbered(seeds: int | Sequence[int], numbers: Sequence[int]) -> Key:
    """Keys [N] for numbered sentences: `fold_in(key(seed), number)`.

    Args:
      seeds: one for all sentences, or one for each.
      numbers: of the sentences, such as their places in a file.

    Raises:
      ValueError: a number or a seed that has not 32 bits.
    """
    found = np.broadcast_to(np.asarray(seeds, np.int64), len(numbers)), np.asarray(numbers, np.int64).reshape(-1)
    for i, (seed, number) in enumerate(zip(*found, strict=True)):
        if not (0 <= seed <= LARGEST_SEED and 0 <= number <= LARGEST_SEED):
            raise ValueError(f"sentence {i} draws with seed {seed} and number {number}: use 0 to 2^32 - 1 for both")
    return _folded(*(each.astype(np.uint32) for each in found))


def checked(key: Key | None, count: int) -> Key:
    """Keys [count]: those given, or one key that the numbers of the sentences are folded into.

    Keys of `jax.random.PRNGKey` are taken too, and traced ones.

    Raises:
      ValueError: no key, or keys that are not as many.
      TypeError: an array of another type.
    """
    if key is None:
        raise ValueError(
            "samples are drawn with random keys, and there is none: give key=jax.random.key(0), for example"
        )
    key = jnp.asarray(key) if isinstance(key, np.ndarray) else key
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim:
        key = jax.random.wrap_key_data(key)
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"key is {getattr(key, 'dtype', type(key).__name__)}: make it with jax.random.key")
    if key.shape not in ((), (count,)):
        raise ValueError(f"key has shape {key.shape}: give one key, or one for each of {count} sentences")
    return key if key.ndim else jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(count, dtype=np.uint32))


def rows(keys: Key, indices: Sequence[int | None]) -> Key:
    """The keys of these sentences; any for rows that hold none. Chosen on the host: no program for each shape."""
    data = np.asarray(jax.random.key_data(keys))[[i or 0 for i in indices]]
    return jax.random.wrap_key_data(jax.device_put(data), impl=jax.random.key_impl(keys))


@jax.jit
def _folded(seeds: np.ndarray, numbers: np.ndarray) -> Key:
    return jax.vmap(lambda seed, number: jax.random.fold_in(jax.random.key(seed), number))(seeds, numbers)
