"""Wrong calls of the public functions of a model are one sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import classifier, conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.classifier import ClassifierConfig, PooledConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
from convs2s_jax.models.encoder_decoder import layer_attention
from convs2s_jax.nn import convolution, multihead
from convs2s_jax.nn.sinusoidal import sinusoidal
from convs2s_jax.training.batch import check_batch, is_readable
from convs2s_jax.training.loss import Batch, loss
from convs2s_jax.training.step import TrainState, init_state, update
from tests.models.small_model import BATCH, CFG, KIM, SRC, L, V, decode, init, initialised

DEEPER = dataclasses.replace(
    CFG, encoder=ConvEncoderConfig(layers=[(8, 3)] * 2), decoder=ConvDecoderConfig(layers=[(8, 3)] * 2, out_dim=6)
)
WIDER = dataclasses.replace(CFG, embedding_dim=16)
TIED = dataclasses.replace(CFG, decoder=dataclasses.replace(CFG.decoder, out_dim=8, tied_output=True))
SHARED = dataclasses.replace(TIED, share_embeddings=True)
POOLED = ClassifierConfig(embedding_dim=4, features=PooledConfig(encoder=ConvEncoderConfig(layers=[(4, 3)])))
KEY = jax.random.key(0)


LONG = np.full((1, 1023), 5)


def checked(src=None, tgt=None, cfg=CFG):
    src, tgt = (BATCH.src if side is None else jnp.array(side) for side in (src, tgt))
    return lambda made: check_batch(Batch(src=src, tgt=tgt), cfg, made.params)


def updated(tgt):
    """An update that checks a batch before it calls the step, which is None here."""
    state = TrainState(initialised().params, (), 0)
    return lambda _: update(None, state, [BATCH, Batch(src=SRC, tgt=tgt)], None, None)


@pytest.fixture(scope="module")
def made():
    return initialised()


def shapes(cfg):
    """Shapes of parameters: enough for calls that are refused before anything is computed."""
    if isinstance(cfg, ClassifierConfig):
        return jax.eval_shape(lambda: classifier.init(KEY, cfg, vocabulary=V, labels=L))
    return jax.eval_shape(lambda: init(KEY, cfg))


WRONG = [
    (
        lambda made: model.encode(conversion.split(made.params, CFG), CFG, SRC),
        "^parameters are split into direction and length: call convs2s_jax.merge_kernels first$",
    ),
    (
        lambda made: conversion.split(conversion.precompute(made.params, CFG), CFG),
        "^params are precomputed for decoding: split those that `precompute` was called with$",
    ),
    (
        lambda _: model.encode(shapes(SHARED), TIED, SRC),
        "^share_embeddings of cfg is False, but params.encoder has no embedding table: use the cfg passed to `init`$",
    ),
    (
        lambda _: loss(shapes(TIED), SHARED, BATCH),
        "^share_embeddings of cfg is True, but params.encoder has its own embedding table: use the cfg passed to",
    ),
    (lambda made: model.encode(made.params, CFG, [[5, EOS]]), "^src is a list: expected an array of token ids"),
    (lambda made: model.encode(made.params, CFG, SRC[0]), r"^src has shape \(3,\) and dtype int32: expected token ids"),
    (lambda made: model.encode(made.params, CFG, SRC.astype("f")), r"^src has shape \(2, 3\) and dtype float32: exp"),
    (lambda _: classifier.logits(*[shapes(KIM)] * 2, SRC), "^cfg is a ClassifierParams: expected ClassifierConfig$"),
    (lambda made: decode(*made, rows=3), "^3 rows for a memory of 2 sentences: use a multiple, W rows per sentence$"),
    (lambda made: model.init_cache(made.params, CFG, made.memory, 0), "^0 rows for a memory of 2 sentences: use a "),
    (lambda made: loss(made.params, CFG, Batch(src=SRC, tgt=SRC[:1])), "^src has 2 rows and tgt has 1: each row is a"),
    (lambda made: layer_attention(made.params, CFG, SRC[:1], SRC), "^src has 1 rows and tgt has 2: each row is a sent"),
    (lambda made: model.encode(made.params, CFG, SRC, key=3), r"^key is 3: create one with jax.random.key\(seed\)$"),
    (
        lambda made: model.encode(made.params, CFG, SRC, key=jax.random.split(KEY, 3)),
        r"^keys have shape \(3,\) for 2 rows: pass one key, or one per row \(`row_keys`\)$",
    ),
    (lambda _: init(jax.random.split(KEY, 2)), r"^key has shape \(2,\): pass one key, or map `init` over several"),
    (
        lambda made: model.encode(made.params, DEEPER, SRC),
        r"^params.encoder has no array at blocks/1/conv/w and cfg needs shape \(3, 8, 16\): use the cfg passed to",
    ),
    (
        lambda made: model.logits(made.params, WIDER, jnp.zeros((2, 3, 6))),
        r"^params.decoder has shape \(11, 8\) at embedding/table and cfg needs shape \(11, 16\)",
    ),
    (
        lambda made: decode(conversion.precompute(made.params, CFG), made.memory, key=KEY),
        "precomputed parameters are for decoding without dropout: pass the key with ",
    ),
    (lambda made: loss(made.params, CFG, (SRC, SRC)), r"^batch is a tuple: create it with convs2s_jax.Batch\(src="),
    (
        lambda made: jax.jit(lambda s: loss(made.params, CFG, BATCH, smoothing=s, first_order=True))(0.1),
        "^smoothing is traced, but has to be static: pass static_argnames='smoothing' to jax.jit, or close over it",
    ),
    (
        lambda made: loss(made.params, CFG, BATCH, smoothing=jnp.array([0.1, 0.2])),
        r"^smoothing has shape \(2,\): pass one number, or map with jax.vmap$",
    ),
    (
        lambda made: jax.jit(loss)(made.params, CFG, BATCH),
        "^cfg is traced, but has to be static: pass static_argnames='cfg' to jax.jit, or close over it, as in "
        r"jax.jit\(lambda params: f\(params, cfg\)\)",
    ),
    (
        lambda made: convolution.dense(made.params.encoder.blocks[0].conv, jnp.zeros((1, 9, 8)), "fft"),
        "^form is 'fft': use one of auto, xla, products, winograd$",
    ),
    (
        lambda _: multihead.map_source(multihead.init(KEY, 6), 4, *[jnp.zeros((1, 2, 6))] * 2),
        "^4 heads cannot evenly split 6 channels: use a divisor$",
    ),
    (lambda _: sinusoidal(5, 2), "^dim is 2: half sines, half cosines; use an even"),
    (lambda made: loss(CFG, made.params, BATCH), "^params is a ModelConfig: expected Params, as `init` returns them$"),
    (
        lambda _: classifier.split(jax.eval_shape(lambda p: classifier.split(p, POOLED), shapes(POOLED)), POOLED),
        "^parameters are split into direction and length",
    ),
    (
        lambda made: init_state(made.params, optax.sgd(0.1)),
        r"^kernels of params are not split .*: pass convs2s_jax.split_kernels\(params, cfg\), or weight_n",
    ),
    (
        lambda made: init_state(
            optax.LookaheadParams.init_synced(made.params), optax.lookahead(optax.sgd(1.0), 2, 0.5)
        ),
        "^params are LookaheadParams, but an update has gradients of one set of parameters: pass these$",
    ),
    (
        lambda made: conversion.average(made.params),
        "^trees is a Params: pass a list of the parameters of several models$",
    ),
    (lambda made: check_batch(BATCH, made.params), "^cfg is a Params: expected ModelConfig$"),
    (lambda _: check_batch((SRC, SRC)), r"^batch is a tuple: create it with convs2s_jax.Batch\(src="),
    (
        lambda _: jax.jit(check_batch)(BATCH),
        "^the batch is traced, so it has no values to check: call check_batch outs",
    ),
    (checked(tgt=[[5, EOS], [PAD, EOS]]), r"^tgt\[1, 0\] of the batch is 1: PAD belongs after the sentence$"),
    (checked(tgt=[[5, EOS], [PAD, EOS]], cfg=None), r"^tgt\[1, 0\] of the batch is 1: PAD belongs after the sentence$"),
    (checked(tgt=[[5, PAD, EOS], [5, 6, EOS]]), r"^tgt\[0, 1\] of the batch is 1: PAD belongs"),
    (checked(src=[[5, PAD, EOS], [PAD, 6, EOS]]), r"^src\[0, 1\] of the batch is 1: PAD belongs"),
    (checked(tgt=[[5, EOS], [6, 7]]), r"^tgt\[1, 1\] of the batch is 7: a target ends with the end symbol 2$"),
    (checked(src=[[5, EOS], [-1, EOS]]), r"^src\[1, 0\] of the batch is -1: ids are not negative$"),
    (checked(src=[[V, EOS], [6, EOS]]), r"^src\[0, 0\] of the batch is 11: the vocabulary has the ids 0 to 10$"),
    (
        checked(src=LONG, tgt=[[EOS]]),
        r"^src\[0, 1022\] of the batch is 5: a sentence has at most 1022 tokens, with its",
    ),
    (checked(src=LONG, tgt=[[EOS]], cfg=None), r"^src\[0, 1022\] of the batch is 5: a sentence has at most 1022 tok"),
    (updated(np.array([[5, EOS], [6, 7]])), r"^tgt\[1, 1\] of the batch is 7: a target ends with the end symbol 2$"),
    (updated(jnp.array([[5, EOS], [V, EOS]])), r"^tgt\[1, 0\] of the batch is 11: the vocabulary"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=map(str, range(len(WRONG))))
def test_a_wrong_call_is_one_sentence(call, message, made):
    with pytest.raises((TypeError, ValueError), match=message):
        call(made)


def test_batches_that_mean_something_pass(made):
    """Sources padded on the left, rows without a token, no rows, the longest sentence, tokens after an end symbol."""
    longest = jnp.concatenate([jnp.full((1, 1021), 5), jnp.array([[EOS, PAD]])], axis=1)
    for src, tgt in (
        ([[PAD, 5, EOS], [PAD] * 3], [[5, EOS, 6, EOS], [PAD] * 4]),
        (jnp.zeros((0, 3), int), jnp.zeros((0, 0), int)),
        (longest, longest),
    ):
        check_batch(Batch(src=jnp.array(src), tgt=jnp.array(tgt)), CFG, made.params)
    assert is_readable(BATCH)
    assert not is_readable(Batch(src=SRC, tgt=SRC[:, 0])), "labels of another loss are not checked"


def test_plain_kernels_train_if_asked_for(made):
    state = init_state(made.params, optax.sgd(0.1), weight_normalisation=False)
    jax.tree.map(np.testing.assert_array_equal, state.params, made.params)
