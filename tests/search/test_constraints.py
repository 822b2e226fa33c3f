"""Phrases that must occur: always there, whatever the model thinks of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.requests import Sizes, request
from tests.search.exhaustive import (
    CompileRequest,
    _found,
    ngrams,
    rank,
    symbol_scores,
    toy_search,
    trigram_table,
)

V, LONGEST = 8, 9
phrases_of = st.lists(st.lists(st.integers(3, V - 1), min_size=1, max_size=3).map(tuple), max_size=3)


def _search(table, cfg, asked):
    return toy_search(table[None], cfg, asked, limit=LONGEST + 3)


def search(table, cfg, prefixes, phrases, longest=LONGEST):
    asked = request([longest], prefixes, phrases, axes=Sizes(8, 3, 3))
    found = _search(table, cfg, asked)
    return [
        tuple(np.asarray(found.tokens[0, w, : max(n - 1, 0)]).tolist()) for w, n in enumerate(found.lengths[0])
    ], found


@pytest.mark.drill
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


def spelt(tokens, phrase):
    """Tokens of a phrase that `tokens` end in, or all of them where it has occurred."""
    if phrase in ngrams(tokens, len(phrase)):
        return len(phrase)
    return max(j for j in range(len(phrase) + 1) if tokens[len(tokens) - j :] == phrase[:j])


def loops(table, cfg, longest, wanted):
    """Dynamic beam allocation for one sentence in lists: the best W of those that ever finished."""
    W, live, done = cfg.beam_size, [((), [])], []
    need = sum(map(len, wanted.phrases))
    for t in range(longest + 1):
        moves = []
        for tokens, scores in live:
            begun = {p[j] for p in wanted.phrases for j in range(len(p)) if tokens[len(tokens) - j :] == p[:j]}
            allowed = []
            for v, score in enumerate(symbol_scores(table, cfg, tokens, longest, wanted)):
                left = sum(len(p) for p in wanted.phrases if p not in ngrams(tokens, len(p)))
                gain = (
                    0
                    if v not in begun
                    else max(
                        (
                            j + 1
                            for p in wanted.phrases
                            if p not in ngrams(tokens, len(p))
                            for j in range(len(p))
                            if p[j] == v and tokens[len(tokens) - j :] == p[:j]
                        ),
                        default=0,
                    )
                )
                if score > -np.inf and (left == 0 or left - gain <= longest - t - 1):
                    allowed.append(((*tokens, v), [*scores, float(score)]))
            goals = {p[spelt(tokens, p)] for p in wanted.phrases if spelt(tokens, p) < len(p)}
            best = max(allowed, key=lambda m: sum(m[1]), default=None)
            moves += [(m, m is best or m[0][-1] in goals) for m in allowed]
        moves.sort(key=lambda m: -sum(m[0][1]))
        moves = [m for i, (m, chosen) in enumerate(moves) if chosen or i < 2 * W]
        places: dict[int, int] = {}
        keys = []
        for m in moves:  # best first: the place within its bank
            bank = need if m[0][-1] == EOS else sum(spelt(m[0], p) for p in wanted.phrases)
            places[bank] = places.get(bank, -1) + 1
            keys.append((places[bank], -sum(m[1])))
        moves = [m for _, m in sorted(zip(keys, moves, strict=True), key=lambda x: x[0])][: 2 * W]
        done += [_found(cfg, *m) for m in moves[:W] if m[0][-1] == EOS]
        live = [m for m in moves if m[0][-1] != EOS][:W]
    return rank(done)[:W]


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_search_equals_dynamic_beam_allocation_in_loops(seed, width):
    random = np.random.default_rng(seed)
    wanted = CompileRequest(
        phrases=(tuple(random.integers(3, V, 2).tolist()), tuple(random.integers(3, V, 1 + seed % 3).tolist()))
    )
    table = trigram_table(seed, V)
    cfg = SearchConfig(beam_size=width, min_length=0)
    texts, found = search(table, cfg, None, [wanted.phrases])
    expected = loops(table, cfg, LONGEST, wanted)
    assert [(*t, EOS) for t, n in zip(texts, np.asarray(found.lengths[0]), strict=True) if n] == [
        e.tokens for e in expected
    ]
    np.testing.assert_allclose(found.scores[0, : len(expected)], [e.score for e in expected], rtol=1e-5)
