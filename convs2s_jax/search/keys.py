"""Random keys for sampling: each sentence has its own, so that no sample depends on the other sentences."""

from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from convs2s_jax.nn.keys import THREEFRY, threefry
from convs2s_jax.nn.types import Key
from convs2s_jax.search.config import SearchConfig

FEWEST = 64
"""Keys are created for at least this many sentences at once, so that a server compiles nothing for new line counts."""


def for_search(search: SearchConfig, seeds: int | Sequence[int], numbers: Sequence[int]) -> np.ndarray | None:
    """Return raw keys [N, 2] uint32 for numbered sentences, `fold_in(key(seed), number)`; None without sampling.

    Args:
      search: the options of the search.
      seeds: one for all sentences, or one for each, from 0 to 2^32 - 1.
      numbers: numbers of the sentences, such as their positions in a file, from 0 to 2^32 - 1.
    """
    if not search.sampling:
        return None
    count = len(numbers)
    size = max(FEWEST, 1 << max(0, count - 1).bit_length())
    given = np.broadcast_to(np.asarray(seeds, np.uint32), (count,)), np.asarray(numbers, np.uint32)
    return np.asarray(_folded(*jax.device_put([np.pad(one, (0, size - count)) for one in given])))[:count]


@jax.jit
def _folded(seeds: Array, numbers: Array) -> Array:
    def fold(seed: Array, number: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl=THREEFRY), number))

    return jax.vmap(fold)(seeds, numbers)


def checked_keys(key: Key | np.ndarray | None, count: int) -> Key:
    """Return keys [count] of JAX's default generator (`nn.keys.threefry`), one per sentence.

    These are the given ones, or a single key with the index of each sentence folded into it.

    Args:
      key: one or several from `jax.random.key`, which may be traced, or raw ones from `jax.random.PRNGKey`.
      count: number of sentences.

    Raises:
      ValueError: there is no key, or not one per sentence.
      TypeError: `key` is not a random key.
    """
    if key is None:
        raise ValueError("sampling needs a random key, but key is None: pass key=jax.random.key(0), for example")
    found = threefry(jax.device_put(key) if isinstance(key, np.ndarray) else key)
    if found.shape not in ((), (count,)):
        raise ValueError(f"key has shape {found.shape}: pass a single key, or one for each of {count} sentences")
    return found if found.ndim else jax.vmap(jax.random.fold_in, (None, 0))(found, np.arange(count, dtype=np.uint32))


def on_host(key: Key | np.ndarray | None, count: int) -> np.ndarray:
    """Return the keys of `checked_keys` as raw keys in host memory, where selecting rows compiles nothing."""
    return np.asarray(jax.random.key_data(checked_keys(key, count)))


def rows(keys: np.ndarray, indices: Sequence[int | None]) -> Key:
    """Return the keys of these sentences on the device; rows without a sentence get an arbitrary key."""
    return jax.random.wrap_key_data(jax.device_put(keys[[i or 0 for i in indices]]), impl=THREEFRY)
