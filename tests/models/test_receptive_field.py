"""Receptive fields against the tokens that real encoders and decoders have a gradient to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig, receptive_fields
from convs2s_jax.models.kinds import Memory
from tests.helpers import array, drills_but
from tests.models.kinds import DECODERS, ENCODERS
from tests.models.laws import E, filled, with_table

U = 121
"""Tokens of the sentence, all different; the fields of all small models fit in."""
AT = 60
DILATED = {"kind": "separable", "dilations": [1, 2, 4]}
MORE = {
    "even": {"kind": "conv", "layers": [(32, 4), (32, 1), (32, 2, 2)]},
    "dilated": {"kind": "conv", "layers": [(32, 3)] * 4, "convolution": DILATED},
    "modules": {"kind": "slicenet", "modules": 2, "kernels": [3, 3, 2, 1], "dilations": [1, 2, 1, 1]},
}
KEPT = ["dilated"]


def limited(table):
    """The lines of a table of kinds that see a part of a sentence, and those above; the others as drills."""
    return drills_but([*(name for name in table if table[name]["kind"] != "recurrent"), *MORE], KEPT)


def support(cfg, side, output):
    """Positions of the sentence on which the random number output(parameters, tokens [1, U]) depends."""
    count = U + 4
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), cfg, source_vocabulary=count, target_vocabulary=count)
    )
    params, tokens = filled(shapes), jnp.arange(4, count, dtype=jnp.int32)[None]
    table = getattr(params, side).embedding.table
    gradient = jax.jit(jax.grad(lambda table: output(with_table(params, side, table), tokens)))(table)
    return np.flatnonzero(np.abs(gradient[tokens[0]]).max(-1))


def mixed(row):
    """One number that depends on all of a row."""
    return jnp.sum(row * np.random.default_rng(1).normal(size=row.shape).astype(np.float32))


@pytest.mark.parametrize("name", limited(ENCODERS))
def test_an_encoder_sees_as_many_source_tokens(name):
    cfg = build(ModelConfig, {"embedding_dim": E, "encoder": {**ENCODERS, **MORE}[name]})
    seen = support(cfg, "encoder", lambda params, tokens: mixed(model.encode(params, cfg, tokens).keys[0, AT]))
    assert (seen == np.arange(seen[0], seen[0] + receptive_fields(cfg).encoder[-1])).all()
    assert AT in seen


@pytest.mark.parametrize("name", limited(DECODERS))
def test_a_decoder_sees_as_many_target_tokens(name):
    cfg = build(ModelConfig, {"embedding_dim": E, "decoder": {**DECODERS, **MORE}[name]})
    source = array(np.random.default_rng(2).normal(size=(1, 3, E)))
    memory = Memory(keys=source, values=source, mask=jnp.ones((1, 3), bool), summary=source[:, 0])

    def features(params, tokens):
        made, _, _ = model.advance(params, cfg, memory, model.init_cache(params, cfg, memory, 1), tokens)
        return mixed(made[0, -1])

    field = receptive_fields(cfg).decoder[-1]
    assert (support(cfg, "decoder", features) == np.arange(U - field, U)).all()


def test_six_blocks_of_width_five_see_25_elements():
    """As section 3.2 of the paper says."""
    cfg = build(ModelConfig, {"encoder": {"kind": "conv", "layers": [(16, 5)] * 6}})
    assert receptive_fields(cfg).encoder == (5, 9, 13, 17, 21, 25)
    language_model = {"encoder": {"kind": "none"}, "decoder": {"kind": "conv", "attention_layers": []}}
    assert receptive_fields(build(ModelConfig, language_model)) == ((), (3, 5, 7))
