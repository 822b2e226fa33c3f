"""What the laws of encoders and decoders do not say about ConvS2S: layers and initialisation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import conversion, convs2s, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn.affine import Affine
from tests.helpers import array, drills_but, same
from tests.models.laws import filled

V, E, B, S = 13, 6, 2, 4
SIDES = {
    "plain": {"layers": [(8, 3)] * 2},
    "projections": {"layers": [(8, 3), (12, 2), (6, 1)]},
    "skips": {"layers": [(8, 3), (8, 3, 0), (8, 3, 2)]},
    "partial_attention": {"layers": [(8, 3)] * 3, "attention_layers": [1, 3]},
    "no_positions": {"layers": [(8, 3)], "positions": False, "tied_output": True, "out_dim": E},
}
TOKENS = array([[EOS, 5, 6, 7, 8, 9, 10], [EOS, 11, 12, 5, PAD, PAD, PAD]], jnp.int32)


def setup(name):
    """A model and parameters in which nothing is zero: biases and the rows of padding would hide mistakes."""
    side = {"max_positions": 16, **SIDES[name]}
    encoder = {field: side[field] for field in side if field not in ("attention_layers", "tied_output", "out_dim")}
    cfg = build(ModelConfig, {"embedding_dim": E, "encoder": encoder, "decoder": {"out_dim": 5, **side}})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)))


def memory():
    rng = np.random.default_rng(1)
    keys, values = (array(rng.normal(size=(B, S, E))) for _ in range(2))
    mask = jnp.arange(S)[None] < jnp.asarray([S, 2])[:, None]
    return Memory(keys=keys, values=values, mask=mask, summary=jnp.mean(keys, axis=1))


encode, decode = (jax.jit(f, static_argnums=1) for f in (encoder_decoder.encode, encoder_decoder.decode))


def decoded(params, cfg, source, cuts):
    """Logits, attention and cache of `TOKENS`, read in parts of these lengths."""
    cache, at, parts = encoder_decoder.init_cache(params, cfg, source, B), 0, []
    for cut in cuts:
        *part, cache = decode(params, cfg, source, cache, TOKENS[:, at : at + cut])
        parts.append(part)
        at += cut
    logits, attention = (jnp.concatenate(p, axis=1) for p in zip(*parts, strict=True))
    return logits, attention, cache


@pytest.mark.parametrize("name", drills_but(SIDES, kept=["projections", "partial_attention"]))
def test_any_cut_of_the_target_and_precomputed_parameters_give_the_same(name):
    """Logits, attention and every leaf of the cache, with a target that ends early; with a source that is mapped once,
    and with one that is not."""
    cfg, params = setup(name)
    whole = decoded(params, cfg, memory(), [7])
    np.testing.assert_array_equal(whole[2].length, [7, 4])
    for cuts in ([3, 1, 3], [1] * 7):
        same(decoded(params, cfg, memory(), cuts), whole)
    fast = conversion.precompute(params, cfg)
    assert fast.decoder.tables is not None
    for adapted, mapped in ((fast, True), (conversion.for_one_hypothesis(fast, cfg), False)):
        source = encoder_decoder.prepare(adapted, cfg, memory())
        assert source.prepared == mapped
        same(decoded(adapted, cfg, source, [3, 1, 3])[:2], whole[:2])


def test_fresh_parameters_follow_section_3_5_as_fairseq_reads_it():
    """The first map, convolutions and the output make up for dropout; projections, attention and the map to O do not.

    From 20,000 draws on 3 % is far outside chance.
    """
    encoder = build(ConvEncoderConfig, {"layers": [(150, 3), (200, 1)], "max_positions": 300})
    decoder = build(ConvDecoderConfig, {"layers": [(150, 3), (150, 1)], "out_dim": 220, "attention_layers": [2]})
    enc = convs2s.init_encoder(jax.random.key(0), encoder, 400, 200, 0.4)
    dec = convs2s.init_decoder(jax.random.key(0), decoder, 400, 200, 0.4)
    expected = [
        (enc.embedding.table, 0.1),
        (enc.embedding.positions, 0.1),
        (enc.map_in.w, (0.6 / 200) ** 0.5),
        (enc.blocks[0].conv.w, (4 * 0.6 / (3 * 150)) ** 0.5),
        (enc.blocks[1].conv.w, (4 * 0.6 / 150) ** 0.5),
        (enc.blocks[1].projection.w, 150**-0.5),
        (enc.map_out.w, 200**-0.5),
        (dec.embedding.table, 0.1),
        (dec.map_in.w, (0.6 / 200) ** 0.5),
        (dec.blocks[0].conv.w, (4 * 0.6 / (3 * 150)) ** 0.5),
        (dec.blocks[1].attention.query.w, 150**-0.5),
        (dec.blocks[1].attention.context.w, 200**-0.5),
        (dec.map_out.w, 150**-0.5),
        (dec.output.w, (0.6 / 220) ** 0.5),
    ]
    for weights, deviation in expected:
        assert np.std(weights) == pytest.approx(deviation, rel=0.03)
    assert enc.blocks[0].projection is None
    np.testing.assert_array_equal(dec.output.b, 0.0)
    tied = build(ConvDecoderConfig, {"layers": [(4, 1)], "out_dim": 9, "tied_output": True})
    bias = convs2s.init_decoder(jax.random.key(0), tied, 20_000, 9, 0.4).output
    assert np.std(bias) == pytest.approx(27**-0.5, rel=0.02)  # U(-1/sqrt(O), 1/sqrt(O))


def test_a_residual_reads_the_output_that_many_layers_back_and_halves_the_variance_of_the_sum():
    outputs = [jnp.full((1, 2, 3), float(i)) for i in range(4)]
    x = jnp.ones((1, 2, 3))
    assert convs2s.add_residual(x, outputs, ConvLayer(3, 1, 0), None) is x
    for skip in (1, 2, 4):
        found = convs2s.add_residual(x, outputs, ConvLayer(3, 1, skip), None)
        np.testing.assert_allclose(found, (1.0 + 4.0 - skip) / np.sqrt(2), rtol=1e-6)
    projection = Affine(w=2.0 * jnp.eye(3), b=jnp.ones(3))
    found = convs2s.add_residual(x, outputs, ConvLayer(3, 1, 2), projection)
    np.testing.assert_allclose(found, (1.0 + 5.0) / np.sqrt(2), rtol=1e-6)
