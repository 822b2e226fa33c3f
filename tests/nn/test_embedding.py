"""Token and position embeddings against a loop that counts real tokens, and sinusoids against fairseq's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn import embedding
from convs2s_jax.nn.sinusoidal import sinusoidal
from tests.helpers import array
from tests.interop.test_light_golden import positions_table


@pytest.mark.parametrize("positions", [10, None])
@pytest.mark.parametrize("start", [None, [0, 0, 0], [3, 0, 5]])
def test_embed_counts_real_tokens_on_either_side_of_the_padding(start, positions):
    """Row of the token plus row PAD + n of the positions, n the count of real tokens so far; zero at PAD.

    The last row of the positions is usable: P rows hold P - 2 positions, the limit the user is told.
    """
    params = embedding.init(jax.random.key(0), 9, 4, positions)
    tokens = np.array([[1, 1, 5, 6, 2], [7, 8, 2, 1, 1], [6, 5, 2, 1, 1]], np.int32)
    e = embedding.embed(params, jnp.asarray(tokens), None if start is None else array(start, jnp.int32))
    table, rows = np.asarray(params.table), None if positions is None else np.asarray(params.positions)
    expected = np.zeros((3, 5, 4))
    for row, line in enumerate(tokens):
        seen = start[row] if start else 0
        for u, token in enumerate(line):
            if token != PAD:
                seen += 1
                expected[row, u] = table[token] + (0 if rows is None else rows[PAD + seen])
    np.testing.assert_allclose(e, expected, rtol=1e-6, atol=1e-7)


def test_padding_trains_no_row():
    params = embedding.init(jax.random.key(0), 9, 4, 16)
    tokens = array([[1, 5, 2], [7, 1, 1]], jnp.int32)
    gradient = jax.grad(lambda params: jnp.sum(embedding.embed(params, tokens)))(params)
    for table, trained in ((gradient.table, [2, 5, 7]), (gradient.positions, [2, 3])):
        np.testing.assert_array_equal(np.flatnonzero(table.any(axis=1)), trained)


def test_positions_do_not_depend_on_the_dtype_of_tokens():
    """300 tokens are more than 8 bits can count."""
    params = embedding.init(jax.random.key(0), 9, 4, 302)
    tokens, zero = jnp.full((1, 300), 5, jnp.int32), jnp.zeros(1, jnp.int32)
    bytes_of_text = embedding.embed(params, tokens.astype(jnp.uint8), zero.astype(jnp.uint8))
    np.testing.assert_array_equal(bytes_of_text, embedding.embed(params, tokens, zero))


def test_fresh_tables_have_deviation_a_tenth_and_a_zero_row_for_padding():
    """At least 32,000 draws a table: 2 % is far outside chance."""
    params = embedding.init(jax.random.key(0), 1000, 64, 500)
    for table in (params.table, params.positions):
        np.testing.assert_array_equal(table[PAD], 0.0)
        assert np.delete(np.asarray(table), PAD, axis=0).std() == pytest.approx(0.1, rel=0.02)
    assert not np.array_equal(params.table[:500], params.positions)


def test_first_half_are_sines_and_second_half_cosines_of_falling_frequency():
    table = sinusoidal(40, 12)
    assert (table.shape, table.dtype) == ((40, 12), np.float32)
    for n, i in np.ndindex(40, 6):
        angle = n * 10000 ** (-i / 5)
        expected = (0.0, 0.0) if n == PAD else (math.sin(angle), math.cos(angle))
        np.testing.assert_allclose(table[n, [i, 6 + i]], expected, atol=1e-5)


def test_sinusoids_are_those_of_fairseq_up_to_the_rounding_of_angles():
    """At place n the angle is n times a frequency, whose last bit may fall otherwise: n times 2**-24, twice allowed."""
    difference = np.abs(sinusoidal(1024, 256) - positions_table(1024, 256))
    assert (difference <= 2**-23 * np.maximum(np.arange(1024), 1)[:, None]).all()
    assert np.median(difference) == 0.0
