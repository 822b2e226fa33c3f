"""Dropout: its statistics, and that randomness is the key alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.dropout import LEVELS, dropout, split_key
from convs2s_jax.nn.keys import row_keys

data = jax.random.key_data


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


def test_masks_are_those_of_the_equations():
    """Number by number: a run that is continued drops what it would have dropped."""
    key, rate, shape = jax.random.key(1234567), 0.3, (3, 5, 7)

    def mixed(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    def kept(a, b, c):
        number = (a * 5 + b) * 4 + c // 2  # of the pair: seven elements are four of them
        for word in np.asarray(data(key)).tolist():
            number = mixed((number + word + 0x9E3779B9) % 2**32)
        return (number >> 16 * (c % 2)) % 2**16 < round(0.7 * 2**16)

    expected = [[[kept(a, b, c) for c in range(7)] for b in range(5)] for a in range(3)]
    np.testing.assert_array_equal(np.asarray(dropout(jnp.ones(shape), rate, key)) != 0, expected)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_row_depends_on_no_other(impl):
    """Neither its mask nor its keys. Under `vmap`, the last two generators use the first key only."""
    x, key = jnp.ones((6, 5)), jax.random.key(5, impl=impl)
    whole = dropout(x, 0.5, row_keys(key, 6))
    for first, count in ((0, 2), (2, 3), (5, 1)):
        part = dropout(x[first : first + count], 0.5, row_keys(key, count, first))
        np.testing.assert_array_equal(part, whole[first : first + count])
    assert len({row.tobytes() for row in np.asarray(whole)}) > 1
    own = jax.random.split(key, 3)
    alone = zip(*(split_key(own[i], 2) for i in range(3)), strict=True)
    for together, each in zip(split_key(own, 2), alone, strict=True):
        np.testing.assert_array_equal(data(together), [data(k) for k in each])


def test_without_key_or_rate_nothing_changes():
    x = jnp.arange(5.0)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
    assert split_key(None, 3) == [None] * 3


def test_gradient_passes_where_values_do():
    x, key = jnp.ones(50), jax.random.key(0)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(dropout(x, 0.5, key)))(x), dropout(x, 0.5, key))
