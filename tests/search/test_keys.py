"""The random keys of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.dropout import threefry
from convs2s_jax.search import keys
from convs2s_jax.search.requests import request
from convs2s_jax.training.run.compilations import CompileCounter


def data(key):
    return np.asarray(jax.random.key_data(key))


def test_keys_of_numbered_sentences():
    found = keys.numbered([3, 3, 2**32 - 1], [0, 2**32 - 1, 7])
    pairs = [(3, 0), (3, 2**32 - 1), (2**32 - 1, 7)]
    expected = [jax.random.fold_in(jax.random.key(seed), number) for seed, number in pairs]
    np.testing.assert_array_equal(found, np.stack([data(key) for key in expected]))
    for count in (0, 1, 65):
        numbered = keys.numbered(3, range(count))
        np.testing.assert_array_equal(numbered, data(keys.checked_keys(jax.random.key(3), count)))
        np.testing.assert_array_equal(keys.on_host(numbered, count), numbered)


def test_no_number_of_lines_compiles_a_program():
    keys.rows(keys.on_host(keys.numbered(1, [0]), 1), [0] * 8)
    with CompileCounter() as counter:
        for count in (2, 3, 8, 64):
            keys.rows(keys.on_host(keys.numbered(1, range(count)), count), [0] * 8)
    assert counter.count == 0


def test_rows_are_the_keys_of_their_sentences():
    """Of another generator, too."""
    own = jax.random.split(jax.random.key(1, impl="rbg"), 3)
    chosen = keys.rows(keys.on_host(own, 3), [2, None, 0])
    np.testing.assert_array_equal(data(chosen)[[0, 2]], data(threefry(own))[[2, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: keys.numbered(-1, [0]),
            r"^sentence 0 has seed -1 and number 0: use integers from 0 to 2\^32 - 1 for both$",
        ),
        (lambda: keys.numbered(0, [0, 2**32]), "^sentence 1 has seed 0 and number 4294967296: "),
        (lambda: keys.numbered(1.7, [0]), r"^sentence 0 has seed 1\.7 and number 0: use integers from 0 to"),
        (lambda: keys.numbered(2**70, [0]), r"^sentence 0 has seed 1180591620717411303424 and number 0: "),
        (lambda: keys.checked_keys(None, 2), r"^sampling needs a random key, .* pass key=jax.random.key\(0\)"),
        (
            lambda: keys.checked_keys(jax.random.split(jax.random.key(0), 3), 2),
            r"^key has shape \(3,\): pass a single key, or",
        ),
    ],
)
def test_odd_keys_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_keys_of_the_old_kind_are_taken():
    old, new = jax.random.PRNGKey(3), jax.random.key(3)
    for key in (old, np.asarray(old)):
        np.testing.assert_array_equal(data(keys.checked_keys(key, 4)), data(keys.checked_keys(new, 4)))
        np.testing.assert_array_equal(data(request([5] * 4, keys=key).keys), data(keys.checked_keys(new, 4)))
    split = data(jax.random.split(new, 4))
    np.testing.assert_array_equal(data(keys.checked_keys(jax.random.split(old, 4), 4)), split)


@pytest.mark.parametrize(("key", "kind"), [(3, "3"), (jnp.zeros(2), "an array of float32")])
def test_what_is_no_key_is_refused(key, kind):
    with pytest.raises(TypeError, match=rf"^key is {kind}: create one with jax.random.key\(seed\)$"):
        keys.checked_keys(key, 1)
