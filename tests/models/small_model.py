"""A small translator and two classifiers, with parameters and a batch for calls of public functions."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.classifier import ClassifierConfig, KimConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.models.kinds import Memory
from convs2s_jax.training.loss import Batch
from tests.helpers import array

V, L = 11, 3
CFG = ModelConfig(
    embedding_dim=8,
    dropout=0.5,
    encoder=ConvEncoderConfig(layers=(ConvLayer(8, 3),)),
    decoder=ConvDecoderConfig(layers=(ConvLayer(8, 3),), out_dim=6),
)
KIM = ClassifierConfig(embedding_dim=4, features=KimConfig(widths=(2,), maps=3))
SRC = array([[5, 6, EOS], [7, EOS, PAD]], jnp.int32)
BATCH = Batch(src=SRC, tgt=SRC)


def init(key, cfg=CFG):
    return model.init(key, cfg, source_vocabulary=V, target_vocabulary=V)


class Made(NamedTuple):
    params: model.Params
    memory: Memory


@functools.cache
def initialised():
    """Initialised parameters of `CFG`, and the memory of `SRC`."""
    params = jax.jit(init)(jax.random.key(0))
    return Made(params, jax.jit(model.encode, static_argnums=1)(params, CFG, SRC))


def decode(params, memory, tokens=SRC, rows=2, key=None):
    return model.decode(params, CFG, memory, model.init_cache(params, CFG, memory, rows), tokens, key=key)
