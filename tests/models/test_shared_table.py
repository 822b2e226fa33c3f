"""One table of words for encoder, decoder and softmax."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.loss import loss
from convs2s_jax.training.run.config import Config
from tests.meshes import batch

V = 20
BATCH = batch(0, 8, 5, 6)
BATCH = BATCH.replace(src=np.minimum(BATCH.src, V - 1))
KINDS = {
    "light": {
        "embedding_dim": 8,
        "encoder": {"kind": "light", "layers": [3], "conv_dim": 8, "ffn_dim": 8, "heads": 2},
        "decoder": {"kind": "light", "layers": [3], "conv_dim": 8, "ffn_dim": 8, "heads": 2, "tied_output": True},
    },
    "conv": {
        "embedding_dim": 8,
        "encoder": {"kind": "conv", "layers": [[8, 3]], "max_positions": 32},
        "decoder": {"kind": "conv", "layers": [[8, 3]], "out_dim": 8, "max_positions": 32, "tied_output": True},
    },
}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def config(kind, **changes):
    return build(ModelConfig, {**KINDS[kind], "dropout": 0.0, "share_embeddings": True, **changes})


def fresh(cfg):
    return encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=V, target_vocabulary=V)


def summed(params, cfg):
    return loss(params, cfg, BATCH).loss


def test_its_gradient_is_the_sum_of_those_of_three_equal_tables():
    """In the light family, whose softmax has nothing but a kernel."""
    cfg = config("light")
    params = fresh(cfg)
    table = params.decoder.embedding.table
    apart = dataclasses.replace(
        cfg, share_embeddings=False, decoder=dataclasses.replace(cfg.decoder, tied_output=False)
    )
    three = encoder_decoder.with_encoder_table(params, table)
    three = three.replace(decoder=three.decoder.replace(output_kernel=table.T))
    differentiated = jax.jit(jax.value_and_grad(summed), static_argnums=1)
    value, found = differentiated(params, cfg)
    expected_value, expected = differentiated(three, apart)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    parts = expected.encoder.embedding.table, expected.decoder.embedding.table, expected.decoder.output_kernel.T
    assert all(np.linalg.norm(part) > 1e-2 for part in parts)
    np.testing.assert_allclose(found.decoder.embedding.table, sum(parts), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        found.encoder.blocks[0].feed_forward.map_in.w,
        expected.encoder.blocks[0].feed_forward.map_in.w,
        rtol=1e-4,
        atol=1e-5,
    )


def test_decoding_with_what_was_computed_beforehand_gives_the_same_logits():
    cfg = config("conv")
    params = fresh(cfg)

    @jax.jit
    def logits(params):
        memory = encoder_decoder.encode(params, cfg, BATCH.src)
        cache = encoder_decoder.init_cache(params, cfg, memory, len(BATCH.src))
        return encoder_decoder.decode(
            params, cfg, memory, cache, encoder_decoder.decoder_inputs(jnp.asarray(BATCH.tgt))
        )[0]

    precomputed = jax.jit(conversion.precompute, static_argnums=1)(params, cfg)
    np.testing.assert_allclose(logits(precomputed), logits(params), rtol=1e-4, atol=1e-5)


def test_vocabularies_of_two_sizes_are_refused():
    message = "vocabularies of 20 and 21 entries cannot share one table: both sides need the same vocabulary"
    with pytest.raises(ValueError, match=f"^{message}$"):
        encoder_decoder.init(jax.random.key(0), config("conv"), source_vocabulary=V, target_vocabulary=V + 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model": {**KINDS["conv"], "decoder": {**KINDS["conv"]["decoder"], "tied_output": False}}},
            "model.share_embeddings is True, but the softmax has its own kernel: set decoder.tied_output to True",
        ),
        (
            {"model": KINDS["conv"]},
            "model.share_embeddings is True, but each side has its own vocabulary: set data.vocabulary.joint to True",
        ),
    ],
)
def test_what_cannot_share_is_refused_with_the_way_out(values, message):
    data = {"src": "en", "tgt": "de"}
    values["model"] = {**values["model"], "share_embeddings": True}
    with pytest.raises(UserError, match=re.escape(message)):
        build(Config, {"data": data, **values})
    assert build(Config, {"data": {**data, "vocabulary": {"joint": True}}, "model": {**KINDS["conv"]}})
