"""Strategies and stopping rules of one's own, against listing everything."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import StoppingRule
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.strategies import PLAIN, Candidates, Strategy
from convs2s_jax.search.top import top
from tests.search.exhaustive import assert_same, compiled, exhaustive, hypotheses, trigram_table

V, LONGEST = 6, 3
WIDEST = 80  # all candidates of a step
TABLES = np.stack([trigram_table(seed, V) for seed in range(2)])
ONCE = 5
"""A symbol that hypotheses of the strategy below hold once at most."""


def choose(view):
    """The best continuations that do not repeat the symbol."""
    again = (view.state[..., None] > 0) & (jnp.arange(V) == ONCE)[None, None]
    scores = jnp.where(again, -jnp.inf, view.scores())
    return Candidates(*top(scores + view.totals[:, :, None], 2 * view.options.beam_size))


def follow(count, _request, parents, tokens):
    return jnp.take_along_axis(count, parents, axis=-1) + (tokens == ONCE).astype(jnp.int32)


OWN = Strategy(choose, lambda request, W: jnp.zeros((len(request.max_lengths), W), jnp.int32), follow)


def found(strategy, cfg):
    asked, options = request([LONGEST] * 2), search_options(cfg)
    return jax.device_get(compiled(TABLES, np.arange(2), asked, options, strategy=strategy, limit=LONGEST + 1))


def test_a_strategy_of_ones_own_equals_listing_everything():
    """Its state follows the hypotheses through every reordering."""
    cfg = SearchConfig(beam_size=WIDEST, min_length=0)
    ours = found(OWN, cfg)
    for b in range(2):
        expected = [e for e in exhaustive(TABLES[b], cfg, LONGEST) if e.tokens.count(ONCE) <= 1]
        assert all(tokens.count(ONCE) <= 1 for tokens, *_ in hypotheses(ours, b))
        assert_same(hypotheses(ours, b)[:20], expected[:20])


def searched(cfg, rule=None):
    """Texts and scores of each sentence, best first."""
    result = found(PLAIN._replace(stop=rule), cfg)
    return [{tokens: score for tokens, score, _ in hypotheses(result, b)} for b in range(2)]


def test_a_stopping_rule_of_ones_own_equals_listing_everything_up_to_its_stop():
    """After the step in which hypotheses of `LONGEST - 1` tokens end, none that is longer is found."""
    cfg = SearchConfig(beam_size=WIDEST, min_length=0, length_penalty=2.0)
    rule = StoppingRule(lambda _options, _finished, step, _total, max_lengths: step >= max_lengths - 1)
    for table, ours in zip(TABLES, searched(cfg, rule), strict=True):
        everything = exhaustive(table, cfg, LONGEST)
        expected = [e for e in everything if len(e.tokens) <= LONGEST]
        assert len(expected) < len(everything)
        assert list(ours)[:20] == [e.tokens for e in expected[:20]]
        np.testing.assert_allclose(sorted(ours.values()), sorted(e.score for e in expected), rtol=1e-5)


@pytest.mark.parametrize("first_come", [True, False])
def test_places_go_to_the_first_or_to_the_best(first_come):
    """All places are taken at the second step at the latest, by the hypotheses of one token that finished before."""
    cfg = SearchConfig(beam_size=2, min_length=0, length_penalty=2.0)
    rule = StoppingRule(lambda _options, finished, *_: finished.scores[:, -1] > -jnp.inf, first_come)
    other = searched(dataclasses.replace(cfg, stop="fairseq"))
    assert (searched(cfg, rule) == other) == first_come
