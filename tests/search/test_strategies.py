"""The search is given its strategy: which one a user's options mean, one of one's own, and what each refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.search.beam import strategy_of
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import EXACT, StoppingRule
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.strategies import PLAIN, Candidates, Strategy
from convs2s_jax.search.top import top
from convs2s_jax.search.variations import CONSTRAINED, DIVERSE, SAMPLED
from tests.helpers import drills_but, same
from tests.search.exhaustive import compiled, exhaustive, search, toy_search, trigram_cache, trigram_step, trigram_table

V, LONGEST = 6, 3
WIDEST = 80  # all candidates of a step
TABLES = np.stack([trigram_table(seed, V) for seed in range(2)])
ONCE = 5
"""A symbol that hypotheses of the strategy below hold once at most."""


def choose(view):
    """The best continuations that do not repeat the symbol."""
    again = (view.state[..., None] > 0) & (jnp.arange(V) == ONCE)[None, None]
    scores = jnp.where(again, -jnp.inf, view.scores())
    return Candidates(*top(scores + view.totals[:, :, None], 2 * view.options.group_size))


def follow(count, _request, parents, tokens):
    return jnp.take_along_axis(count, parents, axis=-1) + (tokens == ONCE).astype(jnp.int32)


def start(request, W):
    return jnp.zeros((len(request.max_lengths), W), jnp.int32)


OWN = Strategy(choose, start, follow)


def found(strategy, cfg, limit=LONGEST + 1):
    return compiled(TABLES, np.arange(2), request([LONGEST] * 2), search_options(cfg), strategy=strategy, limit=limit)


def test_a_strategy_of_ones_own_equals_listing_everything():
    """Its state follows the hypotheses through every reordering."""
    cfg = SearchConfig(beam_size=WIDEST, min_length=0)
    ours = found(OWN, cfg)
    for b in range(2):
        expected = [e for e in exhaustive(TABLES[b], cfg, LONGEST) if e.tokens.count(ONCE) <= 1]
        n = np.asarray(ours.lengths[b])
        texts = [tuple(np.asarray(ours.tokens[b, w, : n[w]]).tolist()) for w in range(WIDEST) if n[w]]
        assert all(text.count(ONCE) <= 1 for text in texts)
        assert texts[:20] == [e.tokens for e in expected[:20]]
        np.testing.assert_allclose(ours.scores[b, :20], [e.score for e in expected[:20]], rtol=1e-5)


@pytest.mark.parametrize("strategy", drills_but([(PLAIN,), (OWN,)], kept=[(OWN,)]), ids=["plain", "own"])
def test_a_first_step_on_one_row_changes_nothing(strategy):
    """All candidates of hypotheses that start as one come from one of them."""
    cfg = SearchConfig(beam_size=3)
    one, all_rows = (found(strategy._replace(first_step_on_one_row=value), cfg) for value in (True, False))
    jax.tree.map(np.testing.assert_array_equal, one, all_rows)


def changed(field, change):
    """Plain search with a mistake in one field of its candidates."""

    def choose(view):
        good = PLAIN.choose(view)
        return good._replace(**{field: change(getattr(good, field))})

    return Strategy(choose)


WRONG = {
    "function": (PLAIN.choose, r"^strategy is a function: expected a Strategy, such as Strategy\(choose\)"),
    "name of a rule": (
        PLAIN._replace(stop="fairseq"),
        r"^stop is a str: expected a StoppingRule, such as Stopping",
    ),
    "rule of two answers": (
        PLAIN._replace(stop=StoppingRule(lambda *_: jnp.zeros((2, 2), bool))),
        r"^is_done of the stopping rule returns bool\[2, 2\]: expected bool\[2\], \[R\]",
    ),
    "rule of numbers": (
        PLAIN._replace(stop=StoppingRule(lambda *_: jnp.zeros(2))),
        r"^is_done of .* returns float32\[2\]: expected bool\[2\]",
    ),
    "few": (
        changed("tokens", lambda x: x[:, :3]),
        r"^tokens of the strategy's candidates are int32\[2, 3\]: expected int32\[2, 6\], \[R, 2H\]",
    ),
    "float parents": (
        changed("parents", lambda x: x.astype(jnp.float32)),
        r"^parents of the strategy's candidates are float32\[2, 6\]",
    ),
    "totals": (changed("totals", lambda x: x.astype(jnp.float16)), r"^totals .* are float16\[2, 6\]: expected float32"),
    "pair": (Strategy(lambda view: PLAIN.choose(view)[:2]), r"^`choose` of the strategy has to return Candidates\("),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_strategy_that_does_not_fit_is_refused_in_one_sentence(name):
    strategy, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        search(
            trigram_step(TABLES),
            SearchConfig(beam_size=3),
            (),
            trigram_cache(np.arange(2), 3),
            request([LONGEST] * 2),
            limit=LONGEST + 1,
            strategy=strategy,
        )


def searched(cfg, **more):
    """Texts and scores that `beam_search` finds for each sentence of at most `LONGEST` tokens, best first."""
    step, cache = trigram_step(TABLES), trigram_cache(np.arange(2), cfg.beam_size)
    found = search(step, cfg, (), cache, request([LONGEST] * 2), limit=LONGEST + 1, **more)
    return [
        {tuple(found.tokens[b, w, :n].tolist()): found.scores[b, w] for w, n in enumerate(found.lengths[b]) if n}
        for b in range(2)
    ]


def test_a_stopping_rule_of_ones_own_equals_listing_everything_up_to_its_stop():
    """After the step in which hypotheses of `LONGEST - 1` tokens end, none that is longer is found."""
    cfg = SearchConfig(beam_size=WIDEST, min_length=0, length_penalty=2.0)
    rule = StoppingRule(lambda _options, _finished, step, _total, max_lengths: step >= max_lengths - 1)
    for table, ours in zip(TABLES, searched(cfg, stop=rule), strict=True):
        everything = exhaustive(table, cfg, LONGEST)
        expected = [e for e in everything if len(e.tokens) <= LONGEST]
        assert len(expected) < len(everything)
        assert list(ours)[:20] == [e.tokens for e in expected[:20]]
        np.testing.assert_allclose(sorted(ours.values()), sorted(e.score for e in expected), rtol=1e-5)


def test_a_rule_that_waits_for_the_best_only_finds_it_before_all_others():
    """The recipe of docs/library.md. The exact rule goes on until the last hypothesis is certain."""

    def is_done(options, finished, *more):
        best = finished.replace(scores=finished.scores[:, :1])
        return EXACT.is_done(options, best, *more)

    for penalty in (0.0, 1.0, 2.0):
        cfg = SearchConfig(beam_size=WIDEST, min_length=0, length_penalty=penalty)
        for table, ours, exact in zip(TABLES, searched(cfg, stop=StoppingRule(is_done)), searched(cfg), strict=True):
            best = exhaustive(table, cfg, LONGEST)[0]
            assert next(iter(ours)) == best.tokens
            np.testing.assert_allclose(ours[best.tokens], best.score, rtol=1e-5)
            assert penalty > 0 or len(ours) < len(exact)


@pytest.mark.parametrize("first_come", [True, False])
def test_places_go_to_the_first_or_to_the_best(first_come):
    """All places are taken at the second step at the latest, by the hypotheses of one token that finished before."""
    cfg = SearchConfig(beam_size=2, min_length=0, length_penalty=2.0)
    rule = StoppingRule(lambda _options, finished, *_: finished.scores[:, -1] > -jnp.inf, first_come)
    other = searched(dataclasses.replace(cfg, stop="fairseq"))
    assert (searched(cfg, stop=rule) == other) == first_come


def test_without_phrases_the_strategy_for_them_equals_plain_search():
    cfg = SearchConfig(beam_size=3)
    same(found(CONSTRAINED, cfg), found(PLAIN, cfg))


def test_options_name_their_strategy():
    assert strategy_of(search_options(SearchConfig())) is PLAIN
    assert strategy_of(search_options(SearchConfig()), phrases=True) is CONSTRAINED
    assert strategy_of(search_options(SearchConfig(diverse_groups=5)), phrases=True) is DIVERSE
    assert strategy_of(search_options(SearchConfig(sampling=True)), phrases=True) is SAMPLED


@pytest.mark.parametrize(
    ("values", "asked", "message"),
    [
        ({"sampling": True}, {}, "sampling needs a random key for each sentence"),
        ({"beam_size": 4, "diverse_groups": 2}, {"phrases": [[(4,)]]}, "phrases work with plain beam search only"),
        (
            {"sampling": True},
            {"phrases": [[(4,)]], "keys": jax.random.key(0)},
            "phrases work with plain beam search only",
        ),
    ],
    ids=str,
)
def test_what_a_strategy_cannot_serve_is_refused(values, asked, message):
    with pytest.raises(ValueError, match=message):
        toy_search(TABLES, SearchConfig(**values), request([3], **asked), limit=4, languages=[0])
