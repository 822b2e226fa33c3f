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
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.convolutions import EveryLayerAlike, register_convolution
from convs2s_jax.training.run.config import Config
from tests.examples.test_examples import example
from tests.helpers import array, close, drills_but
from tests.meshes import mesh_of

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
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, jax.random.key(0)))
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(structure, [array(0.4 * rng.normal(size=x.shape), x.dtype) for x in leaves])


def as_dense(module, params):
    """The same model with kernels [K, C, 2D]."""

    def each(side):
        blocks = [dataclasses.replace(b, conv=module.dense(b.conv, None)) for b in side.blocks]
        return dataclasses.replace(side, blocks=tuple(blocks))

    return dataclasses.replace(params, encoder=each(params.encoder), decoder=each(params.decoder))


def test_the_kind_of_the_example_is_a_loop(module):
    """y_t = b + (sum_j x_{t+j} A_j + a) P, and the dense convolution that it gives too."""
    rng = np.random.default_rng(1)
    fresh = module.init(jax.random.key(0), module.LowRankConfig(rank=3), 2, 4, 6, 1.0)
    params = jax.tree.map(lambda leaf: array(rng.normal(size=leaf.shape), leaf.dtype), fresh)
    x = rng.normal(size=(5, 4)).astype("f")
    expected = np.zeros((4, 6))
    for t in range(4):
        inner = sum(x[t + j] @ np.asarray(params.down.w[j], np.float64) for j in range(2)) + params.down.b
        expected[t] = params.up.b + inner @ params.up.w
    y = module.convolve(params, None, None, "xla")(x[None])
    np.testing.assert_allclose(y[0], expected, atol=1e-5)
    dense = module.dense(params, None)
    np.testing.assert_allclose(module.convolution.dense(dense, x[None])[0], expected, atol=1e-5)


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


def test_both_kernels_are_trained_as_direction_and_length_and_lie_on_a_mesh_by_given_rules(module):
    cfg = model(module.LowRankConfig(rank=4))
    split = jax.eval_shape(partial(convs2s.split_kernels, cfg=cfg), parameters(cfg))
    rules = convs2s.MeshConfig(rules=module.RULES).rules
    conv = convs2s.shardings(split, mesh_of((2, 2, 2)), rules=rules).encoder.blocks[0].conv
    assert conv.down.w.v.spec == P(None, "fsdp", "tensor")
    assert conv.up.w.v.spec == P("fsdp", "tensor")  # by a rule of RULES
    for sizes in ((2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 1, 8)):
        with pytest.raises(
            ValueError,
            match=r"^encoder/blocks/0/conv/down/w/v .*: no rule of .*; add one to mesh\.rules, such as "
            r"\('down/w', \(None, None, None\)\), which keeps it whole$",
        ):
            convs2s.shardings(split, mesh_of(sizes))


def test_a_configuration_of_a_registered_kind_is_read_and_written(module):
    cfg = model(module.LowRankConfig(rank=3))
    values = convs2s.to_dict(cfg)
    assert values["encoder"]["convolution"] == {"kind": "low_rank", "rank": 3}
    assert convs2s.build(convs2s.ModelConfig, values) == cfg
    with pytest.raises(UserError, match=r"^convolution\.kind is 'low_rang'; did you mean 'low_rank'\?"):
        convs2s.ConvEncoderConfig(convolution={"kind": "low_rang"})
    with pytest.raises(UserError, match=r"^convolution\.rank is 0: use 1 or more$"):
        convs2s.ConvEncoderConfig(convolution={"kind": "low_rank", "rank": 0})
    with pytest.raises(UserError, match=r"one of dense, separable, lightweight, dynamic, low_rank$"):
        convs2s.ConvEncoderConfig(convolution="low_rank")


@record
class TakenConfig(EveryLayerAlike):
    kind: Literal["dense"] = "dense"


class NoRecord(EveryLayerAlike):
    kind = "mine"


@record
class BareConfig:
    kind: Literal["bare"] = "bare"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BareConfig, "^BareConfig has no dilation, at, check_inputs, heads_of: inherit from `EveryLayerAlike`$"),
        (
            TakenConfig,
            r"^kind 'dense' is already used by DenseConfig; choose .*: dense, separable, lightweight, dynamic\)$",
        ),
        (
            NoRecord,
            r"NoRecord'> is not a config of a kind: use `record` and .* kind: Literal\['x'\] = 'x'$",
        ),
    ],
)
def test_what_cannot_be_registered_is_refused_and_changes_nothing(own_kinds, config, message):
    before = config.__dict__.get("functions")
    with pytest.raises(ValueError, match=message):
        register_convolution(config, init=None, convolve=None)
    assert config.__dict__.get("functions") is before


def test_a_cell_that_runs_again_takes_the_place_of_its_kind_and_the_same_class_does_not(module):
    again = example("own_convolution")
    assert again.LowRankConfig is not module.LowRankConfig
    assert again.LowRankConfig.functions.convolve is again.convolve
    assert isinstance(convs2s.ConvEncoderConfig(convolution={"kind": "low_rank"}).convolution, again.LowRankConfig)
    # compiled programs know a kind by its class
    with pytest.raises(ValueError, match=r"^kind 'low_rank' is already used by LowRankConfig"):
        register_convolution(again.LowRankConfig, init=module.init, convolve=module.convolve)


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


def test_only_configs_of_encoders_and_decoders_are_registered_as_such(own_model):
    encoder, decoder = type(own_model.encoder), type(own_model.decoder)
    with pytest.raises(
        ValueError, match=r"^SumsConfig is not a EncoderConfig: inherit from `convs2s_jax.models.kinds."
    ):
        convs2s.register_encoder(decoder, init=None, encode=None)
    with pytest.raises(
        ValueError, match=r"^kind 'sums' is already used by SumsConfig; choose another name \(existing "
    ):
        convs2s.register_decoder(decoder, init=None, init_cache=None, advance=None)
    with pytest.raises(UserError, match=r"^config\.encoder\.kind is 'wrods'; did you mean 'words'\?$"):
        convs2s.build(convs2s.ModelConfig, {"encoder": {"kind": "wrods"}})
    assert encoder.functions.encode.__name__ == "encode"
