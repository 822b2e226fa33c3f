"""The highest scores of a row, found in parts, against a full sort."""

from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.search import rules
from convs2s_jax.search import top as module
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import search_options
from convs2s_jax.search.top import top, top_of_logits


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Of 16 symbols, or nearly, so that the smallest vocabularies here are not divided, and 67 and 199 unevenly."""
    monkeypatch.setattr(module, "BLOCK", 16)


@pytest.mark.parametrize("vocab", [5, 63, 64, 67, 199, 200])
def test_top_equals_a_full_sort(vocab):
    random = np.random.default_rng(vocab)
    scores = random.integers(0, 40, (50, 4, vocab)).astype(np.float32)  # many equal ones
    scores[random.random(scores.shape) < 0.3] = -np.inf
    values, beams, tokens = jax.jit(partial(top, k=8))(scores)
    expected = np.argsort(-scores.reshape(50, -1), axis=-1, kind="stable")[:, :8]
    np.testing.assert_array_equal(np.asarray(beams) * vocab + tokens, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores.reshape(50, -1), expected, -1))


@pytest.mark.parametrize("vocab", [64, 67, 199, 200])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_top_of_logits_equals_a_full_sort_of_scores(vocab, temperature):
    random = np.random.default_rng(vocab)
    count, width = 60, 4
    logits = random.normal(0, 2, (count, width, vocab)).astype(np.float32)
    logits[0, 0, 7] = np.nan
    logits[1:20, :, EOS] += 5
    logits[20:30, :, PAD] += 9
    totals = random.normal(0, 2, (count, width)).astype(np.float32)
    totals[random.random(totals.shape) < 0.3] = -np.inf
    cfg = SearchConfig(unk_penalty=1.5, min_length=3, temperature=temperature)
    longest = random.integers(1, 5, count).astype(np.int32)
    bias = jax.jit(rules.logit_bias)(search_options(cfg), np.int32(2), longest)
    values, beams, tokens = jax.jit(partial(top_of_logits, k=8))(logits, totals, bias, temperature=temperature)
    scaled = logits.astype(np.float64) / temperature
    scores = scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    scores[np.isnan(scores)] = -np.inf
    scores = (scores + np.asarray(bias.dense(vocab))[:, None] + totals[:, :, None]).reshape(count, -1)
    expected = np.argsort(-scores, axis=-1, kind="stable")[:, :8]
    best = np.take_along_axis(scores, expected, -1)
    np.testing.assert_allclose(values, best, rtol=1e-5, atol=1e-5)
    found = np.isfinite(best)
    np.testing.assert_array_equal((np.asarray(beams) * vocab + tokens)[found], expected[found])
