"""Receptive fields against the tokens that real encoders and decoders have a gradient to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig, receptive_fields
from tests.helpers import drills_but
from tests.models.laws import E, filled

U, AT = 121, 60
"""Tokens of the sentence, all different, and the position that is looked at."""
SIDES = {
    "even": {"kind": "conv", "layers": [(32, 4), (32, 1), (32, 2, 2)]},
    "dilated": {"kind": "conv", "layers": [(32, 3)] * 4, "convolution": {"kind": "separable", "dilations": [1, 2, 4]}},
    "light": {"kind": "light", "layers": [3, 9], "conv_dim": 32, "ffn_dim": 32},
    "slicenet": {"kind": "slicenet", "modules": 2, "kernels": [3, 3, 2, 1], "dilations": [1, 2, 1, 1]},
}


@pytest.mark.parametrize("name", drills_but(SIDES, kept=["dilated"]))
def test_both_sides_see_as_many_tokens(name):
    cfg = build(ModelConfig, {"embedding_dim": E, "encoder": SIDES[name], "decoder": SIDES[name]})
    count = U + 4
    sizes = {"source_vocabulary": count, "target_vocabulary": count}
    params = filled(jax.eval_shape(lambda: model.init(jax.random.key(0), cfg, **sizes)))
    tokens = jnp.arange(4, count, dtype=jnp.int32)[None]
    weights = np.random.default_rng(1).normal(size=512).astype(np.float32)

    def key(params):
        return model.encode(params, cfg, tokens).keys[0, AT]

    def feature(params):
        memory = jax.lax.stop_gradient(model.encode(params, cfg, tokens[:, :3]))
        cache = model.init_cache(params, cfg, memory, 1)
        return model.advance(params, cfg, memory, cache, tokens)[0][0, -1]

    def seen(side, output):
        part = getattr(params, side)

        def number(table):
            row = output(params.replace(**{side: part.replace(embedding=part.embedding.replace(table=table))}))
            return jnp.sum(row * weights[: len(row)])

        gradient = jax.jit(jax.grad(number))(part.embedding.table)
        return np.flatnonzero(np.abs(gradient[tokens[0]]).max(-1))

    fields, found = receptive_fields(cfg), seen("encoder", key)
    assert (found == np.arange(found[0], found[0] + fields.encoder[-1])).all()
    assert AT in found
    assert (seen("decoder", feature) == np.arange(U - fields.decoder[-1], U)).all()


def test_six_blocks_of_width_five_see_25_elements():
    """As section 3.2 of the paper says."""
    cfg = build(ModelConfig, {"encoder": {"layers": [(16, 5)] * 6}, "decoder": {"kind": "recurrent"}})
    assert receptive_fields(cfg) == ((5, 9, 13, 17, 21, 25), None)
