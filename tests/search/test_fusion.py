"""Shallow fusion: a language model's scores beside the model's, in the search and in scoring."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvLayer
from convs2s_jax.models.kinds import NoEncoderConfig
from convs2s_jax.search import rules
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.translate import score, translate
from tests.search.exhaustive import (
    assert_same,
    beam_search,
    exhaustive,
    hypotheses,
    search,
    trigram_cache,
    trigram_step,
    trigram_table,
)
from tests.search.test_requests import SOURCES, fresh
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

V, LIMIT, LONGEST = 6, 5, 4
MODELS, LMS = (np.stack([trigram_table(seed + i, V) for i in range(3)]) for seed in (0, 50))


def fused_step(memory, cache, last):
    """Two toy models side by side; both caches remember the older token."""
    model, one = trigram_step(MODELS)(memory, cache["model"], last)
    lm, other = trigram_step(LMS)(memory, cache["lm"], last)
    return jnp.stack([model, lm]), {"model": one, "lm": other}


def run(asked, *, cfg):
    cache = trigram_cache(range(3), cfg.beam_size)
    return search(fused_step, cfg, (), {"model": cache, "lm": cache}, asked, limit=LIMIT)


def test_the_widest_search_is_the_best_of_all_by_fused_scores():
    cfg = SearchConfig(beam_size=300, lm_weight=1.5, temperature=1.4, unk_penalty=0.5, no_repeat_ngram=2)
    found = run(request([LONGEST] * 3), cfg=cfg)
    for b in range(3):
        assert_same(hypotheses(found, b)[:20], exhaustive((MODELS[b], LMS[b]), cfg, LONGEST)[:20])


def test_a_narrow_search_is_the_procedure_in_loops():
    """Reordering both caches too."""
    cfg = SearchConfig(beam_size=3, lm_weight=0.3)
    found = run(request([LONGEST] * 3), cfg=cfg)
    for b in range(3):
        assert_same(hypotheses(found, b), beam_search((MODELS[b], LMS[b]), cfg, LONGEST, patience=True))


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_the_derivative_by_the_weight_is_the_language_models_score(weight):
    """It was NaN where a symbol that the language model rules out stands beside."""
    lm = jnp.asarray([[0.0, 2.0, -jnp.inf, 0.5]])
    model = jnp.asarray([[0.0, -1.0, 1.0, -jnp.inf]])

    def scores(weight):
        options = search_options(SearchConfig(lm_weight=0.1)).replace(lm_weight=weight)
        return rules.log_probabilities(jnp.stack([model, lm]), options)

    log_probs, log_lm = (np.asarray(jax.nn.log_softmax(x)) for x in (model, lm))
    said = np.where(weight == 0, 0, weight * log_lm) if weight else 0.0
    np.testing.assert_allclose(scores(weight), log_probs + said, rtol=1e-6)
    expected = np.sum(np.asarray(jax.nn.log_softmax(lm))[0, :2])
    slope = jax.grad(lambda weight: jnp.sum(scores(weight)[0, :2]))(jnp.float32(weight))
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


LM = ModelConfig(
    embedding_dim=6,
    encoder=NoEncoderConfig(),
    decoder=ConvDecoderConfig(layers=(ConvLayer(6, 2),) * 2, out_dim=6, max_positions=26, attention_layers=()),
)


@pytest.fixture(scope="module")
def lm():
    made = encoder_decoder.init(jax.random.key(9), LM, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    return jax.tree.map(lambda x: 3 * x, made)


@pytest.mark.drill
def test_token_scores_are_those_of_all_models_together_and_score_reports_them(lm):
    params, models = (fresh(0), fresh(1)), (MODEL, MODEL)
    cfg = dataclasses.replace(SEARCH, lm_weight=0.4, temperature=1.3, coverage_penalty=0.2, unk_penalty=0.1)
    found = translate((*params, lm), (*models, LM), cfg, SOURCES, attention=True)
    targets = [t.best.tokens for t in found]
    again = score((*params, lm), (*models, LM), cfg, SOURCES, targets, attention=True)
    alone = score(params, models, dataclasses.replace(cfg, lm_weight=0.0), SOURCES, targets, attention=True)
    # the unknown symbol costs once, not once for each model
    plain = dataclasses.replace(cfg, lm_weight=0.0, coverage_penalty=0.0, unk_penalty=0.0)
    said = score(lm, LM, plain, [()] * len(targets), targets)
    for a, b, one, other in zip(found, again, alone, said, strict=True):
        np.testing.assert_allclose(
            a.best.token_scores, one.best.token_scores + 0.4 * other.best.token_scores, rtol=1e-4, atol=2e-5
        )
        np.testing.assert_allclose(b.best.token_scores, a.best.token_scores, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(b.best.score, a.best.score, rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(a.best.attention, one.best.attention, atol=1e-5)


def test_a_language_model_writes_for_empty_sources_and_goes_on_from_prefixes(lm):
    """Each sample has its own noise; a source would change nothing."""
    cfg = SearchConfig(beam_size=1, sampling=True, temperature=5.0, max_length_a=0.0, max_length_b=20)
    found = translate(lm, LM, cfg, [()] * 6, prefixes=[[], [5, 6], [], [], [7], []], key=jax.random.key(1))
    texts = [t.best.tokens.tolist() for t in found]
    assert texts[1][:2] == [5, 6]
    assert texts[4][:1] == [7]
    assert len({tuple(text) for text in texts}) > 4
    again = score(lm, LM, cfg, [()] * 6, texts)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_allclose(a.best.token_scores, b.best.token_scores, rtol=1e-4, atol=2e-5)
