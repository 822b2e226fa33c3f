"""Laws that every kind of encoder obeys; `kinds.py` lists what they run over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.nn.dropout import row_keys
from tests.helpers import array, drills_but, padded, same
from tests.models.kinds import ENCODERS
from tests.models.laws import SENTENCES, E, config, fresh, near_to, parameters, with_table

every_encoder = pytest.mark.parametrize("encoder", ENCODERS)
one_kind = pytest.mark.parametrize("encoder", drills_but(ENCODERS, kept=["conv"]))
two_kinds = pytest.mark.parametrize("encoder", drills_but(ENCODERS, kept=["conv", "gru"]))
"""One or two lines, the others as drills: the laws of whole models run over a pair of each kind in `make test` too."""

encode = jax.jit(model.encode, static_argnums=1)


@two_kinds
def test_padding_on_either_side_and_batch_neighbours_leave_the_memory_as_it_is(encoder):
    cfg = config(encoder)
    params = parameters(cfg)
    alone = [encode(params, cfg, array([s], jnp.int32)) for s in SENTENCES]
    for width, left in ((6, False), (6, True), (9, False), (9, True)):
        src = padded(SENTENCES, width, left)
        memory = encode(params, cfg, src)
        np.testing.assert_array_equal(memory.mask, src != PAD)
        for b, (sentence, one) in enumerate(zip(SENTENCES, alone, strict=True)):
            own = slice(-len(sentence), None) if left else slice(len(sentence))
            same((memory.keys[b, own], memory.values[b, own]), (one.keys[0], one.values[0]))
            same(memory.summary[b], one.summary[0])


@one_kind
def test_every_source_position_is_in_keys_values_and_summary_and_padding_in_none(encoder):
    cfg = config(encoder)
    params = parameters(cfg)
    src = padded(SENTENCES[:1], 8)
    weights = np.random.default_rng(1).normal(size=(3, 1, 1, E)).astype(np.float32)

    @jax.jit
    def read(params):
        def sums(table):
            memory = model.encode(with_table(params, "encoder", table), cfg, src)
            keys, values = (jnp.where(memory.mask[..., None], x, 0.0) for x in (memory.keys, memory.values))
            return jnp.stack(
                [jnp.sum(x * w) for x, w in zip((keys, values, memory.summary[:, None]), weights, strict=True)]
            )

        return jax.jacrev(sums)(params.encoder.embedding.table)

    reads = np.abs(read(params)).max(-1)
    assert (reads[:, SENTENCES[0]] > 1e-6).all()
    assert (reads[:, [PAD, 4, 10, 11, 12]] == 0.0).all()


@one_kind
def test_dropout_of_a_source_depends_on_no_other_row(encoder):
    cfg = config(encoder, dropout=0.3)
    params, keys = parameters(cfg), row_keys(jax.random.key(3), 3)
    src = padded(SENTENCES, 6)
    together = encode(params, cfg, src, key=keys)
    same(encode(params, cfg, src[1:], key=keys[1:]), jax.tree.map(lambda x: x[1:], together))
    assert float(jnp.max(jnp.abs(together.keys - encode(params, cfg, src).keys))) > 0.01


@pytest.mark.drill
@every_encoder
def test_a_memory_of_bfloat16_is_bfloat16_and_near(encoder):
    cfg, half = config(encoder), config(encoder, dtype="bfloat16")
    params, src = fresh(cfg), padded(SENTENCES, 6)
    exact, near = encode(params, cfg, src), encode(conversion.cast(params, half), half, src)
    assert {near.keys.dtype, near.values.dtype, near.summary.dtype} == {jnp.dtype("bfloat16")}
    assert near_to(near.keys, exact.keys)
