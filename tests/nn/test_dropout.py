"""Dropout: its statistics, and that randomness is the key alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn.dropout import dropout, split


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_dropout_zeroes_a_share_and_keeps_the_mean(rate):
    """100,000 draws: the share is known to 0.16 %, so 0.01 is six deviations and more."""
    y = np.asarray(dropout(jnp.full((100, 1000), 3.0), rate, jax.random.key(0)))
    assert np.mean(y == 0) == pytest.approx(rate, abs=0.01)
    np.testing.assert_allclose(y[y != 0], 3.0 / (1 - rate), rtol=1e-6)


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
    assert split(None, 3) == [None] * 3
    keys = [tuple(jax.random.key_data(k).tolist()) for k in split(jax.random.key(0), 3)]
    assert len(set(keys)) == 3


def test_bfloat16_stays_bfloat16():
    assert dropout(jnp.ones(4, jnp.bfloat16), 0.5, jax.random.key(0)).dtype == jnp.bfloat16
