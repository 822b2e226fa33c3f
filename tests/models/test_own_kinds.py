"""Registered kinds of convolutions, encoders and decoders: in models, configurations, on a mesh; what is refused."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import convs2s_jax as convs2s
from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build, record
from convs2s_jax.models.convolutions import ConvolutionKind
from convs2s_jax.models.factored_convolutions import register_convolution
from convs2s_jax.training.run.config import Config
from tests.examples.test_examples import example
from tests.helpers import array, close, drills_but
from tests.models.laws import filled

P = jax.sharding.PartitionSpec
B, V = 2, 12
SIDE = {"layers": [(8, 3), (8, 2), (6, 3)], "max_positions": 16}


@pytest.fixture
def module(own_kinds):
    """The example, which registers the kind "low_rank"."""
    return example("own_convolution")


def model(convolution):
    return convs2s.ModelConfig(
        embedding_dim=6,
        dropout=0.2,
        encoder=convs2s.ConvEncoderConfig(**SIDE, convolution=convolution),
        decoder=convs2s.ConvDecoderConfig(**SIDE, out_dim=6, convolution=convolution),
    )


def parameters(cfg):
    """Of which none is zero."""
    init = partial(convs2s.init, cfg=cfg, source_vocabulary=V, target_vocabulary=V)
    return filled(jax.eval_shape(init, jax.random.key(0)), 0.4)


def as_dense(module, params):
    """The same model with kernels [K, C, 2D]."""

    def each(side):
        blocks = [dataclasses.replace(b, conv=module.dense(b.conv, None)) for b in side.blocks]
        return dataclasses.replace(side, blocks=tuple(blocks))

    return dataclasses.replace(params, encoder=each(params.encoder), decoder=each(params.decoder))


@pytest.mark.parametrize("tables", drills_but([True, False], kept=[True]))
def test_a_model_of_a_registered_kind_is_that_of_the_equal_dense_kind(module, tables):
    """Loss, and a search, which decodes token by token: with tables of the first layer or without `dense`."""
    if not tables:
        module.LowRankConfig.functions = module.LowRankConfig.functions._replace(dense=lambda *_: None)
    own, plain = model(module.LowRankConfig(rank=3)), model({"kind": "dense"})
    params = parameters(own)
    dense = as_dense(module, params)
    batch = convs2s.Batch(src=jnp.array([[5, 6, 7, 2], [9, 2, 1, 1]]), tgt=jnp.array([[8, 9, 2], [4, 2, 1]]))
    loss = jax.jit(convs2s.loss, static_argnums=1)
    close(loss(params, own, batch).loss, loss(dense, plain, batch).loss)
    search = convs2s.SearchConfig(beam_size=3)
    found, expected = (convs2s.translate(p, c, search, [[5, 6, 7], [9]]) for p, c in ((params, own), (dense, plain)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.best.tokens, other.best.tokens)
        np.testing.assert_allclose(one.best.score, other.best.score, rtol=1e-5)
    assert (convs2s.precompute(params, own).decoder.tables is not None) == tables


@record
class TakenConfig(ConvolutionKind):
    kind: Literal["dense"] = "dense"


class NoRecord(ConvolutionKind):
    kind = "mine"


def test_what_cannot_be_registered_is_refused_and_a_cell_that_runs_again_takes_the_place_of_its_kind(module):
    for config, message in (
        (int, "^int is not a ConvolutionKind: inherit from `convs2s_jax.models.convolutions.ConvolutionKind`$"),
        (TakenConfig, r"^kind 'dense' is already used by DenseConfig; choose .*: dense, .*, low_rank\)$"),
        (NoRecord, r"NoRecord'> is not a config of a kind: use `record` and .* kind: Literal\['x'\] = 'x'$"),
        (module.LowRankConfig, "^kind 'low_rank' is already used by LowRankConfig"),  # programs know it by its class
    ):
        with pytest.raises(ValueError, match=message):
            register_convolution(config, init=module.init, convolve=module.convolve)
    again = example("own_convolution")
    assert again.LowRankConfig.functions.convolve is again.convolve
    assert isinstance(convs2s.ConvEncoderConfig(convolution={"kind": "low_rank"}).convolution, again.LowRankConfig)


@pytest.fixture
def own_model(own_kinds):
    """The model of `own_kinds.py`, a file given as --config that registers an encoder and a decoder."""
    return build(Config, read_config(str(Path(__file__).with_name("own_kinds.py")), [("model.dropout", "0.0")])).model


def test_an_encoder_and_a_decoder_of_a_configuration_file_are_trained_and_translate(own_model):
    assert (own_model.encoder.kind, own_model.decoder.kind, own_model.max_target) == ("words", "sums", 20)
    assert convs2s.build(convs2s.ModelConfig, convs2s.to_dict(own_model)) == own_model
    params = convs2s.init(jax.random.key(0), own_model, source_vocabulary=V, target_vocabulary=V)
    src, tgt = array([[5, 6, 7, 2], [9, 2, 1, 1]], np.int32), array([[8, 9, 2], [4, 2, 1]], np.int32)
    batch = convs2s.Batch(src=src, tgt=tgt)
    gradients = jax.grad(lambda p: convs2s.loss(p, own_model, batch).loss)(params)
    assert jax.tree.all(jax.tree.map(lambda g: bool(jnp.any(g != 0)), gradients))
    memory, inputs = convs2s.encode(params, own_model, src), convs2s.decoder_inputs(tgt)
    start = convs2s.init_cache(params, own_model, memory, B)
    whole, _, after = convs2s.decode(params, own_model, memory, start, inputs)
    first, _, cache = convs2s.decode(params, own_model, memory, start, inputs[:, :1])
    last, _, cache = convs2s.decode(params, own_model, memory, cache, inputs[:, 1:])
    close((jnp.concatenate([first, last], axis=1), cache), (whole, after))
    for found, source in zip(convs2s.translate(params, own_model, convs2s.SearchConfig(), [[5, 6, 7], [9]]), src):  # noqa: B905
        words = array([[*found.best.tokens, 2]], np.int32)
        pair = convs2s.Batch(src=source[None], tgt=words)
        assert found.best.score == pytest.approx(
            -float(convs2s.loss(params, own_model, pair).nll) / words.size, rel=1e-5
        )
