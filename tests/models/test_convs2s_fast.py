"""Tables of the first layer against the layer itself, and a mapped source against the equations of the target."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import convs2s_fast
from convs2s_jax.models.convs2s_fast import Words
from convs2s_jax.nn import convolution
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import MultiStepAttention
from convs2s_jax.nn.embedding import Embedding, embed, position_rows
from tests.helpers import array, drills_but
from tests.nn.test_attention import MASK, inputs, loops

V, P, E, C, D = 9, 16, 3, 4, 6
TOKENS = array([[2, 5, 6, 7, 8], [2, 4, PAD, PAD, PAD]], jnp.int32)


def layer(width, positions, dtype=jnp.float32):
    """Nothing is zero, not even the rows of padding."""
    rng = np.random.default_rng(width)
    draw = lambda *shape: array(rng.normal(size=shape), dtype)  # noqa: E731
    embedding = Embedding(table=draw(V, E), positions=draw(P, E) if positions else None)
    return embedding, Affine(w=draw(E, C), b=draw(C)), Affine(w=draw(width, C, D), b=draw(D))


@pytest.mark.parametrize("cuts", drills_but([[5], [1] * 5, [2, 3]], kept=[[2, 3]]), ids=str)
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_what_is_looked_up_is_what_the_layer_computes(width, positions, cuts):
    embedding, map_in, conv = layer(width, positions)
    found = convs2s_fast.init_tables(embedding, map_in, conv)
    past, history = jnp.zeros((2, width - 1, C)), convs2s_fast.no_words(found, 2)

    @jax.jit
    def advance(past, history, tokens, before):
        words = Words(tokens=tokens, places=position_rows(tokens, before))
        x = linear(map_in, embed(embedding, tokens, before))
        y, past = convolution.causal(partial(convolution.dense, conv), past, x)
        ours, history = convs2s_fast.convolve(found, history, words)
        return (convs2s_fast.read(found, words), ours), (x, y), past, history

    at = 0
    for cut in cuts:
        before = np.sum(np.asarray(TOKENS[:, :at]) != PAD, axis=1, dtype=np.int32)
        ours, expected, past, history = advance(past, history, TOKENS[:, at : at + cut], before)
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        at += cut


@pytest.mark.parametrize("positions", [True, False])
def test_tables_have_the_size_that_is_compared_with_the_limit(positions, monkeypatch):
    made = convs2s_fast.init_tables(*layer(3, positions, "bfloat16"))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((made.words, made.positions)))
    monkeypatch.setattr(convs2s_fast, "MOST_BYTES", size)
    assert convs2s_fast.init_tables(*layer(3, positions, "bfloat16")) is not None
    monkeypatch.setattr(convs2s_fast, "MOST_BYTES", size - 1)
    assert convs2s_fast.init_tables(*layer(3, positions, "bfloat16")) is None


@pytest.mark.parametrize("beam", [1, 3])
def test_attending_to_a_mapped_source_equals_the_loops_of_the_equations(beam):
    @jax.jit
    def run(maps, h, g, keys, values):
        wq, bq, wc, bc, h, g, keys, values = (jnp.asarray(x, jnp.float32) for x in (*maps, h, g, keys, values))
        params = MultiStepAttention(query=Affine(w=wq, b=bq), context=Affine(w=wc, b=bc))
        z = convs2s_fast.scaled_keys(params, keys)
        source = convs2s_fast.project_source(params, z, values)
        return convs2s_fast.attend(params, h, g, z, source, jnp.asarray(MASK))

    for ours, theirs in zip(run(*inputs(beam)), loops(*inputs(beam), MASK), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
