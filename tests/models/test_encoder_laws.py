"""Laws that every kind of encoder obeys; `kinds.py` lists what they run over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.nn.keys import row_keys
from tests.helpers import array, drills_but, padded, same
from tests.models.kinds import ENCODERS
from tests.models.laws import SENTENCES, config, parameters

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
def test_dropout_of_a_source_depends_on_no_other_row(encoder):
    cfg = config(encoder, dropout=0.3)
    params, keys = parameters(cfg), row_keys(jax.random.key(3), 3)
    src = padded(SENTENCES, 6)
    together = encode(params, cfg, src, key=keys)
    same(encode(params, cfg, src[1:], key=keys[1:]), jax.tree.map(lambda x: x[1:], together))
    assert float(jnp.max(jnp.abs(together.keys - encode(params, cfg, src).keys))) > 0.01
