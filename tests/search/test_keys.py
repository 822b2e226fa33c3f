"""The random keys of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.keys import threefry
from convs2s_jax.search import keys
from convs2s_jax.search.config import SearchConfig

SAMPLING = SearchConfig(sampling=True)


def data(key):
    return np.asarray(jax.random.key_data(key))


def test_keys_of_numbered_sentences():
    found = keys.for_search(SAMPLING, [3, 3, 2**32 - 1], [0, 2**32 - 1, 7])
    pairs = [(3, 0), (3, 2**32 - 1), (2**32 - 1, 7)]
    expected = [jax.random.fold_in(jax.random.key(seed), number) for seed, number in pairs]
    np.testing.assert_array_equal(found, np.stack([data(key) for key in expected]))
    for count in (0, 1, 65):
        numbered = keys.for_search(SAMPLING, 3, range(count))
        np.testing.assert_array_equal(numbered, data(keys.checked_keys(jax.random.key(3), count)))
        np.testing.assert_array_equal(keys.on_host(numbered, count), numbered)
    assert keys.for_search(SearchConfig(), 3, [0]) is None


def test_rows_are_the_keys_of_their_sentences():
    """Of another generator, too."""
    own = jax.random.split(jax.random.key(1, impl="rbg"), 3)
    chosen = keys.rows(keys.on_host(own, 3), [2, None, 0])
    np.testing.assert_array_equal(data(chosen)[[0, 2]], data(threefry(own))[[2, 0]])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, r"^sampling needs a random key, .* pass key=jax.random.key\(0\)"),
        (jax.random.split(jax.random.key(0), 3), r"^key has shape \(3,\): pass a single key, or one for each of 2"),
        (jnp.zeros(2), r"^key is an array of float32: create one with jax.random.key\(seed\)$"),
    ],
)
def test_odd_keys_are_refused(key, message):
    with pytest.raises((TypeError, ValueError), match=message):
        keys.checked_keys(key, 2)
