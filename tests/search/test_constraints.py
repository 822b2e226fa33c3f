"""Phrases that must occur: always there, whatever the model thinks of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.core.tokens import PAD
from convs2s_jax.search import beam, constraints
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.request import Sizes, request
from tests.search.exhaustive import Wanted, exhaustive, ngrams, trigram_cache, trigram_step, trigram_table

V, LONGEST = 8, 9
phrases_of = st.lists(st.lists(st.integers(3, V - 1), min_size=1, max_size=3).map(tuple), max_size=3)


@partial(jax.jit, static_argnames="cfg")
def _search(table, cfg, asked):
    cache = trigram_cache([0], cfg.beam_size)
    return beam.search(trigram_step(table[None]), cfg, (), cache, asked, limit=LONGEST + 3)


def search(table, cfg, prefixes, phrases, longest=LONGEST):
    asked = request([longest], prefixes, phrases, axes=Sizes(8, 3, 3))
    found = _search(table, cfg, asked)
    return [
        tuple(np.asarray(found.tokens[0, w, : max(n - 1, 0)]).tolist()) for w, n in enumerate(found.lengths[0])
    ], found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    phrases=phrases_of,
    prefix=st.lists(st.integers(4, V - 1), max_size=2),
    ngram=st.sampled_from([0, 1]),
    width=st.sampled_from([1, 4]),
)
def test_every_hypothesis_holds_all_phrases_and_the_prefix(seed, phrases, prefix, ngram, width):
    room = len(prefix) + sum(map(len, phrases))
    cfg = SearchConfig(beam_size=width, no_repeat_ngram=ngram, min_length=0)
    texts, found = search(trigram_table(seed, V), cfg, [prefix], [phrases], max(room, 4))
    assert found.lengths[0, 0] > 0
    for tokens, n in zip(texts, np.asarray(found.lengths[0]), strict=True):
        if n > 0:
            assert tokens[: len(prefix)] == tuple(prefix)
            for phrase in phrases:
                assert phrase in ngrams(tokens, len(phrase))


def test_constraint_costs_what_the_model_says():
    """A small beam finds nearly what listing everything finds: the phrase is put where it fits."""
    gaps = []
    for seed in range(12):
        table = trigram_table(seed, 6)
        cfg = SearchConfig(beam_size=6, min_length=0)
        wanted = Wanted(phrases=((4, 5), (3,)))
        best = exhaustive(table, cfg, 5, wanted)[0]
        _, found = search(table, cfg, None, [wanted.phrases], 5)
        gaps.append(best.score - float(found.scores[0, 0]))
    assert min(gaps) > -1e-5
    assert np.mean(np.array(gaps) < 1e-5) > 0.6
    assert np.mean(gaps) < 0.1


def test_banks_take_turns():
    totals = jnp.array([[-1.0, -2.0, -3.0, -4.0, -jnp.inf, -5.0]])
    banks = jnp.array([[0, 0, 0, 1, 2, 2]])
    assert constraints.round_the_banks(totals, banks).tolist() == [[0, 3, 5, 1, 2, 4]]


@pytest.mark.parametrize("seed", range(5))
def test_matched_is_the_longest_beginning_that_was_spelt(seed):
    random = np.random.default_rng(seed)
    phrases = random.integers(4, 6, (1, 3, 4))
    phrases[0, 1, 2:] = PAD
    recent = random.integers(4, 6, (1, 7, 4))
    ours = constraints.matched(jnp.asarray(recent), jnp.asarray(phrases))
    for x in range(7):
        for c in range(3):
            phrase = [v for v in phrases[0, c] if v != PAD]
            text = recent[0, x].tolist()
            expected = max(j for j in range(len(phrase) + 1) if text[len(text) - j :] == phrase[:j])
            assert ours[0, x, c] == expected


def test_without_phrases_it_is_plain_search():
    table = trigram_table(3, V)
    cfg = SearchConfig(beam_size=3)
    _, constrained = search(table, cfg, None, None)
    plain, empty = (_search(table, cfg, request([LONGEST], None, phrases)) for phrases in (None, [[()]]))
    np.testing.assert_allclose(plain.scores[0, 0], constrained.scores[0, 0], rtol=1e-6)
    np.testing.assert_array_equal(plain.tokens, empty.tokens)
