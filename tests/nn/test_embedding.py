"""Token and position embeddings against a loop that counts real tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn import embedding
from tests.helpers import array, operations


def embedded(params, tokens, start):
    """Row of the token plus row PAD + n of the positions, n the count of real tokens so far; zero at PAD."""
    table, positions = np.asarray(params.table), params.positions
    e = np.zeros((*tokens.shape, table.shape[1]))
    for row, line in enumerate(tokens):
        seen = start[row]
        for u, token in enumerate(line):
            if token == PAD:
                continue
            seen += 1
            e[row, u] = table[token] + (0 if positions is None else np.asarray(positions)[PAD + seen])
    return e


@pytest.mark.parametrize("positions", [16, None])
@pytest.mark.parametrize("start", [None, [0, 0, 0], [3, 0, 5]])
def test_embed_counts_real_tokens_on_either_side_of_the_padding(start, positions):
    params = embedding.init(jax.random.key(0), 9, 4, positions)
    tokens = np.array([[1, 1, 5, 6, 2], [7, 8, 2, 1, 1], [3, 4, 5, 6, 2]], np.int32)
    e = embedding.embed(params, jnp.asarray(tokens), None if start is None else array(start, jnp.int32))
    np.testing.assert_allclose(e, embedded(params, tokens, start or [0, 0, 0]), rtol=1e-6, atol=1e-7)


def test_padding_trains_no_row():
    params = embedding.init(jax.random.key(0), 9, 4, 16)
    tokens = array([[1, 5, 2], [7, 1, 1]], jnp.int32)
    gradient = jax.grad(lambda params: jnp.sum(embedding.embed(params, tokens)))(params)
    for table, trained in ((gradient.table, [2, 5, 7]), (gradient.positions, [2, 3])):
        np.testing.assert_array_equal(np.flatnonzero(table.any(axis=1)), trained)


def test_the_gradient_of_positions_is_that_of_the_rows_that_can_be_read():
    """So that a mesh need not communicate that of the others. Row 0 is never read, row PAD at padding."""
    params = embedding.init(jax.random.key(0), 9, 4, 16)
    tokens = array([[1, 5, 2], [7, 1, 1]], jnp.int32)
    gradient = jax.grad(lambda positions: jnp.sum(embedding.position_embeddings(positions, tokens)))
    program = operations(jax.make_jaxpr(gradient)(params.positions).jaxpr)
    assert [op.invars[0].aval.shape for op in program if op.primitive.name == "scatter-add"] == [(3 + PAD + 1, 4)]


def test_the_last_row_of_the_positions_is_usable():
    """P rows hold P - 2 positions: the limit the user is told."""
    params = embedding.init(jax.random.key(0), 9, 4, 8)
    tokens = np.full((1, 6), 5, np.int32)
    e = embedding.embed(params, jnp.asarray(tokens))
    np.testing.assert_allclose(e[0], params.table[5][None] + params.positions[2:], rtol=1e-6)


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
        others = np.delete(np.asarray(table), PAD, axis=0)
        assert others.std() == pytest.approx(0.1, rel=0.02)
        assert (np.abs(others).max(1) > 0).all()
    assert not np.array_equal(params.table[:500], params.positions)
