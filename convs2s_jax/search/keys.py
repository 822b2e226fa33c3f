"""Random keys for sampling: each sentence has its own, so that no sample depends on the other sentences."""

from collections.abc import Sequence
from numbers import Integral

import jax
import numpy as np
from jax import Array

from convs2s_jax.core.config import LARGEST_SEED
from convs2s_jax.nn.dropout import THREEFRY, threefry
from convs2s_jax.nn.types import Key
from convs2s_jax.search.config import SearchConfig

FEWEST = 64
"""Keys are created for at least this many sentences at once, so that a server compiles nothing for new line counts."""


def numbered(seeds: int | Sequence[int], numbers: Sequence[int]) -> np.ndarray:
    """Return raw keys [N, 2] uint32 for numbered sentences: `fold_in(key(seed), number)`.

    Args:
      seeds: one for all sentences, or one for each.
      numbers: numbers of the sentences, such as their positions in a file.

    Raises:
      ValueError: a number or a seed is not an unsigned 32-bit integer.
    """
    each, count = np.asarray(seeds), len(numbers)
    if each.ndim and len(each) not in (1, count):
        raise ValueError(f"got {len(each)} seeds for {count} sentences: pass one for each")
    found = np.broadcast_to(each, (count,)), np.asarray(numbers)
    for i, (seed, number) in enumerate(zip(*found, strict=True)):
        if not all(isinstance(one, Integral) and 0 <= int(one) <= LARGEST_SEED for one in (seed, number)):
            raise ValueError(
                f"sentence {i} has seed {seed} and number {number}: use integers from 0 to 2^32 - 1 for both"
            )
    size = max(FEWEST, 1 << max(0, count - 1).bit_length())
    padded = jax.device_put([np.pad(one.astype(np.uint32), (0, size - count)) for one in found])
    return np.asarray(_folded(*padded))[:count]


def for_search(search: SearchConfig, seeds: int | Sequence[int], numbers: Sequence[int]) -> np.ndarray | None:
    """Return the keys of `numbered` if the search samples, otherwise None, as `translate` expects."""
    return numbered(seeds, numbers) if search.sampling else None


def checked_keys(key: Key | np.ndarray | None, count: int) -> Key:
    """Return keys [count] of JAX's default generator (`nn.dropout.threefry`), one per sentence.

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
    """Return the keys of `checked_keys` as raw keys in host memory, where selecting rows compiles nothing.

    Raises ValueError and TypeError as `checked_keys` does.
    """
    return np.asarray(jax.random.key_data(checked_keys(key, count)))


def rows(keys: np.ndarray, indices: Sequence[int | None]) -> Key:
    """Return the keys of these sentences on the device; rows without a sentence get an arbitrary key."""
    return jax.random.wrap_key_data(jax.device_put(keys[[i or 0 for i in indices]]), impl=THREEFRY)


@jax.jit
def _folded(seeds: Array, numbers: Array) -> Array:
    def fold(seed: Array, number: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl=THREEFRY), number))

    return jax.vmap(fold)(seeds, numbers)
