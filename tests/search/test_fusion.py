"""Shallow fusion: a language model's scores beside the model's, in the search and in scoring."""

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
    exhaustive,
    hypotheses,
    search,
    trigram_cache,
    trigram_step,
    trigram_table,
)
from tests.search.test_translate import VOCABULARY

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


def test_a_symbol_that_one_of_both_rules_out_is_ruled_out():
    lm, model = jnp.asarray([[0.0, 2.0, -jnp.inf, 0.5]]), jnp.asarray([[0.0, -1.0, 1.0, -jnp.inf]])
    found = rules.log_probabilities(jnp.stack([model, lm]), search_options(SearchConfig(lm_weight=0.4)))
    np.testing.assert_allclose(found, jax.nn.log_softmax(model) + 0.4 * jax.nn.log_softmax(lm), rtol=1e-6)


LM = ModelConfig(
    embedding_dim=6,
    encoder=NoEncoderConfig(),
    decoder=ConvDecoderConfig(layers=(ConvLayer(6, 2),) * 2, out_dim=6, max_positions=26, attention_layers=()),
)


@pytest.fixture(scope="module")
def lm():
    made = encoder_decoder.init(jax.random.key(9), LM, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    return jax.tree.map(lambda x: 3 * x, made)


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
