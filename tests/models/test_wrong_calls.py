"""Wrong calls of the public functions of a model are one sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.tokens import EOS
from convs2s_jax.models import classifier, conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.classifier import ClassifierConfig, PooledConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
from convs2s_jax.models.encoder_decoder import layer_attention
from convs2s_jax.models.kinds import NoEncoderConfig
from convs2s_jax.models.recurrent import RecurrentDecoderConfig, RecurrentEncoderConfig
from convs2s_jax.nn import convolution, multihead
from convs2s_jax.nn.depthwise import depthwise
from convs2s_jax.nn.embedding import sinusoidal
from convs2s_jax.training.loss import Batch, loss
from tests.models.small_model import BATCH, CFG, KIM, SRC, L, V, decode, init, initialised

DEEPER = dataclasses.replace(
    CFG, encoder=ConvEncoderConfig(layers=[(8, 3)] * 2), decoder=ConvDecoderConfig(layers=[(8, 3)] * 2, out_dim=6)
)
WIDER = dataclasses.replace(CFG, embedding_dim=16)
TIED = dataclasses.replace(CFG, decoder=dataclasses.replace(CFG.decoder, out_dim=8, tied_output=True))
SHARED = dataclasses.replace(TIED, share_embeddings=True)
LANGUAGE = ModelConfig(
    embedding_dim=8, encoder=NoEncoderConfig(), decoder=ConvDecoderConfig(layers=[(8, 3)], attention_layers=[])
)
OTHER = dataclasses.replace(CFG, encoder=RecurrentEncoderConfig(units=4), decoder=RecurrentDecoderConfig(units=4))
POOLED = ClassifierConfig(embedding_dim=4, features=PooledConfig(encoder=ConvEncoderConfig(layers=[(4, 3)])))


@pytest.fixture(scope="module")
def made():
    return initialised()


def shapes(cfg):
    """Shapes of parameters: enough for calls that are refused before anything is computed."""
    return jax.eval_shape(lambda: init(jax.random.key(0), cfg))


def classifier_shapes(cfg):
    return jax.eval_shape(lambda: classifier.init(jax.random.key(0), cfg, vocabulary=V, labels=L))


def stacked_shapes():
    return jax.eval_shape(lambda: jax.vmap(init)(jax.random.split(jax.random.key(0), 3)))


WRONG = {
    "split parameters to encode": (
        lambda made: model.encode(conversion.split(made.params, CFG), CFG, SRC),
        "^parameters are split into direction and length: call convs2s_jax.merge_kernels first$",
    ),
    "precomputed parameters to split": (
        lambda made: conversion.split(conversion.precompute(made.params, CFG), CFG),
        "^params are precomputed for decoding: split those that `precompute` was called with$",
    ),
    "parameters without the table that cfg does not share": (
        lambda _: model.encode(shapes(SHARED), TIED, SRC),
        "^share_embeddings of cfg is False, but params.encoder has no embedding table: use the cfg passed to `init`$",
    ),
    "parameters with a table that cfg shares": (
        lambda _: loss(shapes(TIED), SHARED, BATCH),
        "^share_embeddings of cfg is True, but params.encoder has its own embedding table: use the cfg passed to",
    ),
    "parameters of another record": (
        lambda made: model.encode({"encoder": made.params.encoder}, CFG, SRC),
        "^params is a dict: expected Params, as `init` returns them$",
    ),
    "a list of tokens": (
        lambda made: model.encode(made.params, CFG, [[5, EOS]]),
        r"^src is a list: expected an array of token ids, \[rows, length\]$",
    ),
    "a single sentence": (
        lambda made: model.encode(made.params, CFG, SRC[0]),
        r"^src has shape \(3,\): expected token ids \[rows, length\], a row per sequence$",
    ),
    "no tokens": (
        lambda made: model.encode(made.params, CFG, SRC[:, :0]),
        r"^src has shape \(2, 0\): there are no tokens; use at least one row of one token$",
    ),
    "a classifier's parameters in place of its config": (
        lambda _: classifier.logits(*[classifier_shapes(KIM)] * 2, SRC),
        "^cfg is a ClassifierParams: expected ClassifierConfig$",
    ),
    "floating tokens": (
        lambda made: model.encode(made.params, CFG, SRC.astype(jnp.float32)),
        "^src has dtype float32: token ids are integers, such as int32$",
    ),
    "rows that no sentence shares": (
        lambda made: decode(*made, rows=3),
        "^3 rows for a memory of 2 sentences: use a multiple, W rows per sentence$",
    ),
    "sides of a batch that do not agree": (
        lambda made: loss(made.params, CFG, Batch(src=SRC, tgt=SRC[:1])),
        "^src has 2 rows and tgt has 1: each row is a sentence pair$",
    ),
    "tokens in place of a memory": (
        lambda made: model.init_cache(made.params, CFG, np.asarray(SRC), 2),
        "^memory is a ndarray: expected what `encode` or `prepare` returns$",
    ),
    "a seed in place of a key": (
        lambda made: model.encode(made.params, CFG, SRC, key=3),
        r"^key is 3: create one with jax.random.key\(seed\)$",
    ),
    "no rows": (
        lambda made: model.init_cache(made.params, CFG, made.memory, 0),
        "^0 rows for a memory of 2 sentences: use a multiple",
    ),
    "a cache of another beam": (
        lambda made: decode(*made, rows=4),
        "^tokens have 2 rows and the cache has 4: call `init_cache` with the rows of the tokens$",
    ),
    "features of another layer": (
        lambda made: model.logits(made.params, CFG, jnp.zeros((2, 3, 8))),
        r"^features have shape \(2, 3, 8\) and the softmax layer reads 6 channels: pass what `advance` returns$",
    ),
    "a key for each row of a larger batch": (
        lambda made: model.encode(made.params, CFG, SRC, key=jax.random.split(jax.random.key(0), 3)),
        r"^keys have shape \(3,\) for 2 rows: pass one key, or one per row \(`row_keys`\)$",
    ),
    "parameters of a model with fewer layers": (
        lambda made: model.encode(made.params, DEEPER, SRC),
        r"^params.encoder has no array at blocks/1/conv/w and cfg needs shape \(3, 8, 16\): use the cfg passed to",
    ),
    "parameters of a model with more layers": (
        lambda _: model.encode(shapes(DEEPER), CFG, SRC),
        r"^params.encoder has shape \(3, 8, 16\) at blocks/1/conv/w and cfg needs no array: use the cfg passed to",
    ),
    "a decoder with smaller embeddings": (
        lambda made: model.logits(made.params, WIDER, jnp.zeros((2, 3, 6))),
        r"^params.decoder has shape \(11, 8\) at embedding/table and cfg needs shape \(11, 16\)",
    ),
    "a classifier with smaller embeddings": (
        lambda _: classifier.logits(
            classifier_shapes(KIM),
            dataclasses.replace(KIM, embedding_dim=8),
            SRC,
        ),
        r"^params.features has shape \(11, 4\) at embedding/table and cfg needs shape \(11, 8\): use the "
        "cfg passed to `init`$",
    ),
    "a pair in place of a batch": (
        lambda made: loss(made.params, CFG, (SRC, SRC)),
        r"^batch is a tuple: create it with convs2s_jax.Batch\(src=..., tgt=...\)$",
    ),
    "a traced smoothing of the loss for training": (
        lambda made: jax.jit(lambda s: loss(made.params, CFG, BATCH, smoothing=s, first_order=True))(0.1),
        "^smoothing is traced, but has to be static: pass static_argnames='smoothing' to jax.jit, or close over it",
    ),
    "several smoothings": (
        lambda made: loss(made.params, CFG, BATCH, smoothing=jnp.array([0.1, 0.2])),
        r"^smoothing has shape \(2,\): pass one number, or map with jax.vmap$",
    ),
    "a traced config": (
        lambda made: jax.jit(loss)(made.params, CFG, BATCH),
        "^cfg is traced, but has to be static: pass static_argnames='cfg' to jax.jit, or close over it, as in "
        r"jax.jit\(lambda params: f\(params, cfg\)\)",
    ),
    "a traced number of rows": (
        lambda made: jax.jit(lambda rows: model.init_cache(made.params, CFG, made.memory, rows))(2),
        "^rows is traced, but has to be static: pass static_argnames='rows' to jax.jit",
    ),
    "a traced vocabulary size": (
        lambda _: jax.jit(model.init, static_argnames="cfg")(
            jax.random.key(0), CFG, source_vocabulary=V, target_vocabulary=V
        ),
        "^source_vocabulary is traced, but has to be static: pass static_argnames='source_vocabulary' to jax.jit",
    ),
    "stacked parameters outside vmap": (
        lambda _: model.encode(stacked_shapes(), CFG, SRC),
        r"^params are those of several models, with an embedding table of shape \(3, 11, 8\) in place of \[V, E\]: map "
        "the function over them with jax.vmap, or pass the parameters of one model$",
    ),
    "several keys to init": (
        lambda _: init(jax.random.split(jax.random.key(0), 2)),
        r"^key has shape \(2,\): pass one key, or map `init` over several with jax.vmap$",
    ),
    "no source vocabulary": (
        lambda _: model.init(jax.random.key(0), CFG, source_vocabulary=3, target_vocabulary=V),
        "^source_vocabulary is 3: expected an integer of at least 4, the number of special ids$",
    ),
    "a form that no convolution has": (
        lambda made: convolution.dense(made.params.encoder.blocks[0].conv, jnp.zeros((1, 9, 8)), "fft"),
        "^form is 'fft': use one of xla, products, winograd$",
    ),
    "a form that no depthwise convolution has": (
        lambda _: depthwise(jnp.zeros((3, 4)), jnp.zeros((1, 5, 8)), form="shift"),
        "^form is 'shift': use one of auto, shifts, products$",
    ),
    "heads that do not divide the channels": (
        lambda _: multihead.map_source(multihead.init(jax.random.key(0), 6), 4, *[jnp.zeros((1, 2, 6))] * 2),
        "^4 heads cannot evenly split 6 channels: use a divisor$",
    ),
    "two channels of positions": (lambda _: sinusoidal(5, 2), "^dim is 2: half sines, half cosines; use an even"),
    "key and cfg exchanged": (
        lambda _: model.init(CFG, jax.random.key(0), source_vocabulary=V, target_vocabulary=V),
        r"^cfg is a \w+: expected ModelConfig$",
    ),
    "params and cfg exchanged": (
        lambda made: loss(CFG, made.params, BATCH),
        "^params is a ModelConfig: expected Params, as `init` returns them$",
    ),
    "the encoder's config of another kind": (
        lambda made: model.encode(made.params, OTHER, SRC),
        r"^params.encoder has no array at layers/0/forward/input/w and cfg needs shape \(8, 12\): use the cfg ",
    ),
    "the decoder's config of another kind": (
        lambda made: model.init_cache(made.params, OTHER, made.memory, 2),
        r"^params.decoder has no array at first/0/w and cfg needs shape \(8, 4\): use the cfg passed to `init`$",
    ),
    "no cache": (
        lambda made: model.decode(made.params, CFG, made.memory, None, SRC),
        "^cache does not belong to this model: pass what `init_cache` returns for these params and cfg$",
    ),
    "the cache of precomputed parameters": (
        lambda made: model.decode(
            made.params,
            CFG,
            made.memory,
            model.init_cache(conversion.precompute(made.params, CFG), CFG, made.memory, 2),
            SRC,
        ),
        "^cache does not belong to this model: pass what `init_cache` returns for these params and cfg$",
    ),
    "sides of layer_attention that do not agree": (
        lambda made: layer_attention(made.params, CFG, SRC[:1], SRC),
        "^src has 1 rows and tgt has 2: each row is a sentence pair$",
    ),
    "no labels": (
        lambda _: classifier.init(jax.random.key(0), KIM, vocabulary=V, labels=0),
        "^labels is 0: expected the number of labels, an integer above 0$",
    ),
    "parameters of a classifier split twice": (
        lambda _: classifier.split(
            jax.eval_shape(lambda params: classifier.split(params, POOLED), classifier_shapes(POOLED)), POOLED
        ),
        "^parameters are split into direction and length",
    ),
    "parameters of a translator to a classifier": (
        lambda made: classifier.logits(made.params, KIM, SRC),
        "^params is a Params: expected ClassifierParams, as `init` returns them$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_one_sentence(name, made):
    call, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call(made)


def test_a_mesh_of_ones_own_has_axes_of_type_auto(made):
    def placed(kind):
        mesh = jax.make_mesh((2,), ("mine",), axis_types=(kind,))
        place = NamedSharding(mesh, P("mine"))
        w = jax.device_put(made.params.encoder.map_in.w, place)
        encoder = made.params.encoder.replace(map_in=made.params.encoder.map_in.replace(w=w))
        return made.params.replace(encoder=encoder), jax.device_put(SRC, place)

    params, src = placed(AxisType.Auto)
    found = jax.jit(lambda params, src: model.encode(params, CFG, src))(params, src)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, made.memory)
    params, src = placed(AxisType.Explicit)
    refused = {
        "src": lambda: model.encode(made.params, CFG, src),
        "tgt": lambda: jax.jit(model.decoder_inputs)(src),
        "params": lambda: jax.jit(lambda params: loss(params, CFG, BATCH))(params),
    }
    for name, call in refused.items():
        with pytest.raises(
            ValueError, match=f"^{name} is sharded over 'mine', a mesh axis of type Explicit: create the mesh with"
        ):
            call()
