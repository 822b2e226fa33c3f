"""Dropout: its statistics, and that randomness is the key alone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.dropout import LEVELS, dropout, row_keys, split_key, threefry
from tests.helpers import drills_but


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_dropout_zeroes_a_share_and_keeps_the_mean(rate):
    """100,000 draws: the share is known to 0.16 %, so 0.01 is six deviations and more."""
    y = np.asarray(dropout(jnp.full((100, 1000), 3.0), rate, jax.random.key(0)))
    assert np.mean(y == 0) == pytest.approx(rate, abs=0.01)
    np.testing.assert_allclose(y[y != 0], 3.0 / (1 - rate), rtol=1 / LEVELS / (1 - rate))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_a_rate_that_keeps_all_or_nothing_is_refused(rate):
    """A rate of 1 would scale what it keeps, one element in 65536, by 65536."""
    with pytest.raises(ValueError, match=f"^rate is {rate}: use 0 or more and less than 1$"):
        dropout(jnp.ones((2, 3)), rate, jax.random.key(0))


def test_neighbours_in_a_row_are_dropped_independently():
    """Two elements come from one random number: of 100,000 pairs a quarter each, known to 0.14 %."""
    kept = np.asarray(dropout(jnp.ones((200, 1000)), 0.5, jax.random.key(3))) != 0
    pairs = kept[:, 0::2] * 2 + kept[:, 1::2]
    np.testing.assert_allclose(np.bincount(pairs.ravel()) / pairs.size, 0.25, atol=0.01)
    assert np.corrcoef(kept[0], kept[1])[0, 1] == pytest.approx(0, abs=0.15)


def excess(a, b):
    """Covariance of two masks, in its standard deviations were they independent."""
    return abs(np.mean(a * b) - np.mean(a) * np.mean(b)) / (np.std(a) * np.std(b)) * np.sqrt(a.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_say_nothing_of_each_other(rate):
    """Of elements some way apart, of rows, places and seeds; 5 deviations come once in 1.7 million."""
    keys = row_keys(jax.random.key(7), 64)
    x = jnp.ones((64, 32, 128))
    mask, *others = (np.asarray(dropout(x, rate, k)) == 0 for k in (keys, *split_key(keys, 3)))
    for axis, lag in itertools.product(range(3), (1, 2, 3, 4, 8, 16, 31)):
        size = mask.shape[axis] - lag
        apart = np.take(mask, range(size), axis), np.take(mask, range(lag, lag + size), axis)
        assert excess(*apart) < 5, (axis, lag)
    seeds = [np.asarray(dropout(x, rate, jax.random.key(seed))) == 0 for seed in range(4)]
    for group in ([mask, *others], seeds):
        assert max(excess(a, b) for a, b in itertools.combinations(group, 2)) < 5
    sums = mask.sum(axis=-1)
    assert np.var(sums) == pytest.approx(128 * rate * (1 - rate), rel=0.15)  # 2048 sums: known to 3 %


def test_masks_are_those_of_the_equations():
    """Number by number: a run that is continued drops what it would have dropped."""
    key, rate, shape = jax.random.key(1234567), 0.3, (3, 5, 7)

    def mixed(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    def kept(a, b, c):
        number = (a * 5 + b) * 4 + c // 2  # of the pair: seven elements are four of them
        for word in np.asarray(jax.random.key_data(key)).tolist():
            number = mixed((number + word + 0x9E3779B9) % 2**32)
        return (number >> 16 * (c % 2)) % 2**16 < round(0.7 * 2**16)

    expected = [[[kept(a, b, c) for c in range(7)] for b in range(5)] for a in range(3)]
    np.testing.assert_array_equal(np.asarray(dropout(jnp.ones(shape), rate, key)) != 0, expected)


@pytest.mark.parametrize("shape", drills_but([((6, 3, 4),), ((6, 5),)], kept=[((6, 5),)]))
def test_with_a_key_for_each_row_a_row_depends_on_no_other(shape):
    x, key = jnp.ones(shape), jax.random.key(5)
    whole = dropout(x, 0.5, row_keys(key, 6))
    for first, count in ((0, 2), (2, 3), (5, 1)):
        part = dropout(x[first : first + count], 0.5, row_keys(key, count, first))
        np.testing.assert_array_equal(part, whole[first : first + count])
    np.testing.assert_array_equal(dropout(x, 0.5, row_keys(key, 8)[:6]), whole)
    assert len({row.tobytes() for row in np.asarray(whole)}) > 1


def test_keys_of_rows_split_as_each_alone():
    keys = row_keys(jax.random.key(2), 3)
    for i, parts in enumerate(zip(*split_key(keys, 2), strict=True)):
        alone = split_key(keys[i], 2)
        for part, other in zip(parts, alone, strict=True):
            np.testing.assert_array_equal(jax.random.key_data(part), jax.random.key_data(other))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_rows_depend_on_no_other_with_keys_of_other_generators(impl):
    """Under `vmap`, these generators use the first key only."""
    key = jax.random.key(5, impl=impl)
    np.testing.assert_array_equal(*(jax.random.key_data(k) for k in (row_keys(key, 4)[2:], row_keys(key, 2, 2))))
    own = jax.random.split(key, 3)
    for whole, alone in zip(
        split_key(own, 2), zip(*(split_key(own[i], 2) for i in range(3)), strict=True), strict=True
    ):
        np.testing.assert_array_equal(jax.random.key_data(whole), [jax.random.key_data(k) for k in alone])


def test_every_word_of_a_key_of_another_generator_counts():
    """They are folded in, one after the other."""
    words = jnp.asarray([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 9, 4], [9, 2, 3, 4]], jnp.uint32)
    keys = threefry(jax.random.wrap_key_data(words, impl="rbg"))
    assert jax.random.key_impl(keys) == "threefry2x32"
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 4
    first = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(words[0, :2]), words[0, 2]), words[0, 3])
    np.testing.assert_array_equal(jax.random.key_data(keys[0]), jax.random.key_data(first))


def test_without_key_or_rate_nothing_changes():
    x = jnp.arange(5.0)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_the_key_is_all_there_is_to_chance():
    x = jnp.ones((20, 20))
    first, again, other = (dropout(x, 0.5, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_gradient_passes_where_values_do():
    x, key = jnp.ones(50), jax.random.key(0)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(dropout(x, 0.5, key)))(x), dropout(x, 0.5, key))


def test_split_gives_different_keys_or_none():
    assert split_key(None, 3) == [None] * 3
    keys = [tuple(jax.random.key_data(k).tolist()) for k in split_key(jax.random.key(0), 3)]
    assert len(set(keys)) == 3
