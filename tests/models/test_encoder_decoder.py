"""What the laws of kinds do not say about whole models and their loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import convs2s, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.loss import Batch, cross_entropy, loss
from tests.helpers import array, padded, same
from tests.models.laws import filled

E, SOURCE, TARGET = 6, 12, 13
SIDE = {"layers": [(8, 3), (12, 3), (6, 1)], "max_positions": 16}
VALUES = {"embedding_dim": E, "encoder": SIDE, "decoder": {**SIDE, "out_dim": 5}, "dropout": 0.3}
PAIRS = [([5, 6, 7, 8, EOS], [5, 9, EOS]), ([9, 4, EOS], [10, 11, 12, 4, 6, EOS]), ([10, EOS], [7, EOS])]
BATCH = Batch(src=padded([src for src, _ in PAIRS], 7, left=True), tgt=padded([tgt for _, tgt in PAIRS], 8))


def setup():
    """A config and parameters in which nothing is zero: biases and the rows of padding would hide mistakes."""
    cfg = build(ModelConfig, VALUES)
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=SOURCE, target_vocabulary=TARGET)
    return cfg, filled(jax.eval_shape(init, jax.random.key(0)))


def test_decoder_inputs_are_the_target_shifted_right():
    tgt = array([[5, 6, EOS, PAD], [5, 6, 7, EOS], [PAD] * 4], jnp.int32)
    expected = [[EOS, 5, 6, PAD], [EOS, 5, 6, 7], [PAD] * 4]
    np.testing.assert_array_equal(encoder_decoder.decoder_inputs(tgt), expected)


def test_dropout_stands_where_section_4_2_and_fairseq_put_it(monkeypatch):
    """Embeddings, the input of every convolution, its padding zero, and the features: nowhere else, no key twice."""
    cfg, params = setup()
    shapes, rates = [], []

    @jax.jit
    def inputs_and_keys(params):
        seen = []

        def record(x, rate, key):
            shapes.append(x.shape)
            rates.append(rate)
            seen.append((x, jax.random.key_data(key)))
            return x

        monkeypatch.setattr(convs2s, "dropout", record)
        loss(params, cfg, BATCH, key=jax.random.key(0))
        return seen

    seen = inputs_and_keys(params)
    sides = [(3, 7, E), (3, 7, 8), (3, 7, 8), (3, 7, 12), (3, 8, E), (3, 8, 8), (3, 8, 8), (3, 8, 12), (3, 8, 5)]
    assert shapes == sides
    assert rates == [0.3] * len(sides)
    assert len({tuple(key.tolist()) for _, key in seen}) == len(sides)
    for x, _ in seen[1:4]:
        np.testing.assert_array_equal(x[BATCH.src == PAD], 0.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_a_loop(smoothing):
    logits = np.random.default_rng(3).normal(size=(2, 3, TARGET))
    targets = np.array([[5, EOS, PAD], [7, 0, EOS]])
    total = nll = 0.0
    for at in np.ndindex(2, 3):
        if targets[at] == PAD:
            continue
        log_p = logits[at] - np.log(np.sum(np.exp(logits[at])))
        each = smoothing / (TARGET - 1)
        total += -(1 - smoothing - each) * log_p[targets[at]] - each * sum(log_p)
        nll += -log_p[targets[at]]
    ours = cross_entropy(array(logits), array(targets, jnp.int32), smoothing)
    same(ours, (total, nll))
