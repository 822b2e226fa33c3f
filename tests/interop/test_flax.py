"""The Flax module against the pure functions that they stand around."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.interop.flax import LinenModel
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
from convs2s_jax.nn import weight_norm
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
    """The Linen module as one of NNX, with these parameters."""
    model = nnx.bridge.ToNNX(LinenModel(cfg, V, V), rngs=nnx.Rngs(0)).lazy_init(SRC, TGT)
    model.model = nnx.Param(params)
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


@pytest.mark.drill
def test_nnx_has_the_values_and_gradients_of_the_pure_functions():
    value, gradient = nnx.jit(nnx.value_and_grad(lambda model: total(model(SRC, TGT))))(nnx_model(PARAMS))
    same(value, total(pure_decode(PARAMS)[0]))
    same(leaves(nnx.state(gradient)), leaves(jax.jit(pure_gradient)(PARAMS)))


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


@pytest.mark.drill
def test_nnx_decodes_step_by_step():
    model = nnx_model(PARAMS)
    memory = model(SRC, method="encode")
    steps = [INPUTS[:, t : t + 1] for t in range(INPUTS.shape[1])]
    logits = [model(memory, tokens, method="decode", mutable=["cache"])[0] for tokens in steps]
    same(jnp.concatenate(logits, axis=1), pure_decode(PARAMS)[0])


@pytest.mark.drill
def test_the_module_computes_in_the_dtype_of_the_configuration():
    half = dataclasses.replace(CFG, dtype="bfloat16")
    expected = decode(PARAMS, half)[0]  # not compiled, as the module below: bfloat16 rounds elsewhere in programs
    assert not np.allclose(expected, pure_decode(PARAMS)[0], rtol=1e-4)
    linen, variables = LinenModel(half, V, V), {"params": {"model": PARAMS}}
    same(linen.apply(variables, SRC, TGT), expected)
    memory = linen.apply(variables, SRC, method="encode")
    (logits, _), state = linen.apply(variables, memory, INPUTS, method="decode", mutable=["cache"])
    same(logits, expected)
    for held in (memory, state):
        assert {x.dtype for x in leaves(held) if jnp.issubdtype(x.dtype, jnp.floating)} == {jnp.dtype("bfloat16")}


@pytest.mark.drill
def test_a_dropout_rng_turns_dropout_on_and_is_all_there_is_to_chance():
    variables = {"params": {"model": PARAMS}}
    apply = jax.jit(lambda seed: LINEN.apply(variables, SRC, TGT, rngs={"dropout": jax.random.key(seed)}))
    first, again, other = apply(1), apply(1), apply(2)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, LINEN.apply(variables, SRC, TGT))
