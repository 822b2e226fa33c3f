"""Classifiers: Kim's features against loops and torch, and what holds for every kind of features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import classifier
from convs2s_jax.models.classifier import ClassifierConfig, KimConfig
from convs2s_jax.models.kinds import Options
from convs2s_jax.nn.masking import mean
from tests.helpers import array, drills_but, same
from tests.models import kinds

# compiled: operation by operation takes several times as long
logits = jax.jit(classifier.logits, static_argnums=1)
kims = jax.jit(lambda params, cfg, src: classifier.extract_kim(params, cfg, src, Options()), static_argnums=1)
V, L, E = 30, 5, 32
KEY = jax.random.key(3)
CASES = {
    "kim": {"kind": "kim", "widths": (2, 3, 5), "maps": 7},
    "mean": {"kind": "pooled", "pooling": "mean", "encoder": kinds.ENCODERS["conv"]},
    "max": {"kind": "pooled", "encoder": kinds.ENCODERS["gru"]},
}
"""Any encoder may be pooled; what holds for each of them stands in `test_encoder_laws.py`."""


def config(name, **values):
    return build(ClassifierConfig, {"embedding_dim": E, "dropout": 0.3, "features": CASES[name], **values})


@pytest.fixture(scope="module", params=drills_but(CASES, kept=["kim"]))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def made(name):
    cfg = config(name)
    return cfg, classifier.init(KEY, cfg, vocabulary=V, labels=L)


def text(length, seed=0):
    rng = np.random.default_rng(seed)
    return [*rng.integers(4, V, length - 1).tolist(), EOS]


def rows(texts, width, left=0):
    return array([[PAD] * left + t + [PAD] * (width - left - len(t)) for t in texts], jnp.int32)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_kims_features_equal_a_loop(length):
    cfg = KimConfig(widths=(2, 3, 5), maps=7)
    params = classifier.init_kim(KEY, cfg, V, E, 0.0)
    tokens = text(length)
    table, found = np.asarray(params.embedding.table, np.float64), []
    for bank, width in zip(params.banks, cfg.widths, strict=True):
        w, b = np.asarray(bank.conv.w, np.float64), np.asarray(bank.conv.b)
        x = np.stack([table[t] for t in tokens] + [np.zeros(E)] * max(0, width - length))  # too short: zeros behind
        windows = [x[t : t + width] for t in range(len(x) - width + 1)]
        found.append([max(max(0.0, (window * w[:, :, d]).sum() + b[d]) for window in windows) for d in range(cfg.maps)])
    same(kims(params, cfg, rows([tokens], 12, left=2))[0], np.concatenate(found))


@pytest.mark.parametrize(
    ("over_time", "pool"), [(classifier.maximum, np.max), (mean, np.mean)], ids=["maximum", "mean"]
)
def test_pooling_equals_numpy(over_time, pool):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 4)).astype(np.float32) - 3  # below zero: a zero of padding would win
    mask = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    found = over_time(jnp.asarray(x), jnp.asarray(mask))
    same(found, np.array([pool(x[i][mask[i]], axis=0) if mask[i].any() else np.zeros(4) for i in range(3)]))


def test_logits_are_the_softmax_layer_over_the_features(made):
    cfg, params = made
    src = rows([text(6), text(3, seed=2)], 7)
    z = cfg.features.functions.extract(params.features, cfg.features, src, Options())
    assert z.shape[1] == cfg.features.features_dim(E)
    expected = np.asarray(z, np.float64) @ np.asarray(params.output.w) + np.asarray(params.output.b)
    same(logits(params, cfg, src), expected)


def test_padding_and_neighbours_change_nothing(made):
    cfg, params = made
    texts = [text(n, seed=n) for n in (1, 2, 4, 9)]
    together = logits(params, cfg, rows(texts, 14, left=3))
    more = logits(params, cfg, rows([*texts[::-1], []], 9))
    for i, tokens in enumerate(texts):
        alone = logits(params, cfg, rows([tokens], len(tokens)))[0]
        same(together[i], alone)
        same(more[3 - i], alone)
    assert np.all(np.isfinite(more[-1]))


def test_dropout_needs_a_key_and_rows_have_their_own(made):
    cfg, params = made
    src = rows([text(6)] * 4, 6)
    keys = jax.random.split(jax.random.key(0), 4)
    one, again = (logits(params, cfg, src, key=keys) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert np.any(np.asarray(one[0]) != one[1])
    same(logits(params, cfg, src[2:], key=keys[2:]), one[2:])
    without = logits(params, cfg, src)
    same(without[0], without[1])
