"""The Flax modules against the pure functions that they stand around."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.interop.flax import LinenModel, NNXModel
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import split_key
from convs2s_jax.training.loss import Batch, cross_entropy, loss
from tests.helpers import array
from tests.models.laws import filled

CFG = ModelConfig(
    embedding_dim=6,
    dropout=0.25,
    encoder=ConvEncoderConfig(layers=[(8, 3)], max_positions=16),
    decoder=ConvDecoderConfig(layers=[(8, 3), (8, 2)], out_dim=5, max_positions=16),
)
V = 12
SRC = array([[5, 6, 7, EOS], [8, EOS, PAD, PAD]], jnp.int32)
TGT = array([[9, 4, 10, EOS], [7, EOS, PAD, PAD]], jnp.int32)
INIT = partial(encoder_decoder.init, cfg=CFG, source_vocabulary=V, target_vocabulary=V)
PARAMS = filled(jax.eval_shape(lambda key: conversion.split(INIT(key), CFG), jax.random.key(3)))
INPUTS = encoder_decoder.decoder_inputs(TGT)
LINEN = LinenModel(CFG, V, V)


def same(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)


def decode(params, cfg=CFG):
    merged = conversion.cast(weight_norm.merge(params), cfg)
    memory = encoder_decoder.encode(merged, cfg, SRC)
    cache = encoder_decoder.init_cache(merged, cfg, memory, 2)
    return encoder_decoder.decode(merged, cfg, memory, cache, INPUTS)


pure_decode = jax.jit(decode)


def nnx_model(params, cfg=CFG):
    model = NNXModel(cfg, V, V, rngs=nnx.Rngs(0))
    nnx.update(model.params, nnx.state(jax.tree.map(nnx.Param, params)))
    return model


leaves = jax.tree.leaves


def total(logits):
    return cross_entropy(logits, TGT, 0.0)[0]


def pure_gradient(params):
    return jax.grad(lambda params: loss(weight_norm.merge(params), CFG, Batch(src=SRC, tgt=TGT)).loss)(params)


def test_linen_has_the_values_and_gradients_of_the_pure_functions():
    fresh = jax.jit(LINEN.init)(jax.random.key(0), SRC, TGT)
    same(jax.tree.map(np.zeros_like, fresh), {"params": {"model": jax.tree.map(np.zeros_like, PARAMS)}})
    apply = jax.jit(jax.value_and_grad(lambda params: total(LINEN.apply({"params": {"model": params}}, SRC, TGT))))
    value, gradient = apply(PARAMS)
    same(value, total(pure_decode(PARAMS)[0]))
    same(gradient, jax.jit(pure_gradient)(PARAMS))


def test_linen_decodes_step_by_step_with_the_cache_collection():
    variables = {"params": {"model": PARAMS}}
    memory = LINEN.apply(variables, SRC, method="encode")
    step = jax.jit(partial(LINEN.apply, method="decode", mutable=["cache"]))
    logits = []
    for t in range(INPUTS.shape[1]):
        (now, _), state = step(variables, memory, INPUTS[:, t : t + 1])
        variables = {**variables, **state}
        logits.append(now)
    same(jnp.concatenate(logits, axis=1), pure_decode(PARAMS)[0])


def test_nnx_decodes_step_by_step_with_its_cache():
    model = nnx_model(PARAMS)
    memory = model.encode(SRC)
    with pytest.raises(ValueError, match=r"^the module has no cache; call init_cache\(memory, rows\) before decode$"):
        model.decode(memory, INPUTS)
    model.init_cache(memory, 2)
    step = nnx.jit(lambda model, memory, tokens: model.decode(memory, tokens)[0])
    logits = [step(model, memory, INPUTS[:, t : t + 1]) for t in range(INPUTS.shape[1])]
    same(jnp.concatenate(logits, axis=1), pure_decode(PARAMS)[0])


@pytest.mark.drill
def test_a_dropout_rng_turns_dropout_on_and_is_all_there_is_to_chance():
    variables = {"params": {"model": PARAMS}}
    apply = jax.jit(lambda seed: LINEN.apply(variables, SRC, TGT, rngs={"dropout": jax.random.key(seed)}))
    first, again, other = apply(1), apply(1), apply(2)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    model = nnx_model(PARAMS)
    merged, (encoder_key, decoder_key) = weight_norm.merge(PARAMS), split_key(nnx.Rngs(dropout=7).dropout(), 2)
    memory = encoder_decoder.encode(merged, CFG, SRC, key=encoder_key)
    cache = encoder_decoder.init_cache(merged, CFG, memory, 2)
    expected = encoder_decoder.decode(merged, CFG, memory, cache, INPUTS, key=decoder_key)[0]
    same(model(SRC, TGT, rngs=nnx.Rngs(dropout=7)), expected)
