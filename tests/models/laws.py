"""Helpers shared by the laws of encoders, decoders and whole models: small models and comparisons."""

from functools import lru_cache, partial

import jax
import numpy as np

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig
from tests.helpers import array
from tests.models.kinds import DECODERS, ENCODERS, LANGUAGE_MODELS, pair

E, SOURCE, TARGET, S = 32, 14, 13, 5
FIRST_ENCODER, FIRST_DECODER = next(iter(ENCODERS)), next(iter(DECODERS))
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 4, EOS], [11, EOS]]


def config(encoder=None, decoder=FIRST_DECODER, **fields):
    encoder = encoder or ("none" if decoder in LANGUAGE_MODELS else FIRST_ENCODER)
    return build(ModelConfig, {"embedding_dim": E, **pair(encoder, decoder), **fields})


def parameters(cfg):
    """Parameters without zeros: zero biases or padding rows could hide mistakes."""
    return _parameters(cfg, jax.config.jax_enable_x64)


@lru_cache
def _parameters(cfg, _x64):
    init = partial(model.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    return filled(jax.eval_shape(init, jax.random.key(0)))


def filled(shapes, scale=0.3):
    """Arrays of these shapes, drawn from a normal distribution with this standard deviation."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: array(scale * rng.normal(size=leaf.shape), leaf.dtype), shapes)


@lru_cache
def fresh(cfg):
    """Initialise without jit: compiling init takes longer than the rest of most laws."""
    return model.init(jax.random.key(0), cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)


def near_to(half, exact):
    """bfloat16 has 8 significant bits, a rounding error of 0.4 % per operation; allow 5 % in total."""
    return 0 < np.linalg.norm(np.float32(half) - exact) < 0.05 * np.linalg.norm(exact)
