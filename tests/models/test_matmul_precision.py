"""`model.matmul_precision` reaches every product: matrix products and convolutions, forward and backward."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.lax import Precision

from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.training.loss import loss
from convs2s_jax.training.step import Batch
from tests.helpers import drills_but, operations
from tests.models.kinds import together
from tests.models.laws import SOURCE, TARGET, config

SRC = TGT = jax.ShapeDtypeStruct((4, 6), jnp.int32)
KEY = jax.eval_shape(jax.random.key, 0)


def precisions(program):
    """Of all products in a jaxpr and the jaxprs inside it."""
    found = set()
    for equation in operations(program):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            precision = equation.params["precision"]
            found |= set(precision if isinstance(precision, tuple) else [precision])
    return found


def traced(function, *arguments):
    return precisions(jax.make_jaxpr(function)(*arguments).jaxpr)


def shapes(cfg):
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    return jax.eval_shape(init, KEY)


def summed(params, cfg, src, tgt, *, first_order=False):
    """Jitted: JAX traces its derivative outside of the functions that set the precision."""
    smoothed = partial(loss, cfg=cfg, smoothing=0.1, first_order=first_order)
    return jax.jit(lambda params, batch: smoothed(params, batch=batch).loss)(params, Batch(src=src, tgt=tgt))


def decoded(params, cfg, src, tgt, *, precomputed=False):
    """The way of a search: encode, prepare, init_cache, then symbol by symbol."""
    params = conversion.precompute(params, cfg) if precomputed else params
    memory = encoder_decoder.prepare(params, cfg, encoder_decoder.encode(params, cfg, src))
    cache = encoder_decoder.init_cache(params, cfg, memory, len(tgt))
    return encoder_decoder.decode(params, cfg, memory, cache, tgt[:, :1])[0]


KEPT = [
    ("conv", "conv"),
    ("lightconv", "lightconv"),
    ("slicenet", "slicenet"),
    ("gru", "bahdanau"),
    ("none", "language"),
]


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(together(), kept=KEPT))
def test_every_product_of_every_kind(encoder, decoder):
    cfg = config(None if encoder == "none" else encoder, decoder, matmul_precision="highest")
    params, parts = shapes(cfg), [partial(jax.grad(summed), cfg=cfg), partial(decoded, cfg=cfg)]
    parts.append(partial(jax.grad(summed), cfg=cfg, first_order=True))  # the loss in training
    if cfg.decoder.functions.precompute is not None:
        parts.append(partial(decoded, cfg=cfg, precomputed=True))
    for part in parts:
        assert traced(lambda p, s, t, part=part: part(p, src=s, tgt=t), params, SRC, TGT) == {Precision.HIGHEST}
