"""One table of words for encoder, decoder and softmax."""

import dataclasses

import jax
import numpy as np
import pytest

from convs2s_jax.models import encoder_decoder
from convs2s_jax.training.loss import loss
from tests.meshes import batch
from tests.models.laws import config

V = 20
BATCH = batch(0, 8, 5, 6)
BATCH = BATCH.replace(src=np.minimum(BATCH.src, V - 1))


def test_its_gradient_is_the_sum_of_those_of_three_equal_tables():
    """In the light family, whose softmax has nothing but a kernel."""
    cfg = config("lightconv", "lightconv", dropout=0.0)
    shared = dataclasses.replace(cfg, share_embeddings=True, decoder=dataclasses.replace(cfg.decoder, tied_output=True))
    params = encoder_decoder.init(jax.random.key(0), shared, source_vocabulary=V, target_vocabulary=V)
    table = params.decoder.embedding.table
    three = encoder_decoder.with_encoder_table(params, table)
    three = three.replace(decoder=three.decoder.replace(output_kernel=table.T))
    differentiated = jax.jit(jax.value_and_grad(lambda p, cfg: loss(p, cfg, BATCH).loss), static_argnums=1)
    value, found = differentiated(params, shared)
    expected_value, expected = differentiated(three, cfg)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    parts = expected.encoder.embedding.table, expected.decoder.embedding.table, expected.decoder.output_kernel.T
    assert all(np.linalg.norm(part) > 1e-2 for part in parts)
    np.testing.assert_allclose(found.decoder.embedding.table, sum(parts), rtol=1e-4, atol=1e-5)


def test_vocabularies_of_two_sizes_are_refused():
    cfg = config("conv", "cho", share_embeddings=True)
    message = "vocabularies of 20 and 21 entries cannot share one table: both sides need the same vocabulary"
    with pytest.raises(ValueError, match=f"^{message}$"):
        encoder_decoder.init(jax.random.key(0), cfg, source_vocabulary=V, target_vocabulary=V + 1)
