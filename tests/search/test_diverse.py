"""Groups that avoid one another's choices, against the procedure in loops."""

import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.requests import request
from tests.search.exhaustive import _found, rank, symbol_scores, toy_search, trigram_table

V, LONGEST = 8, 6


def loops(table, cfg, longest):
    """Each group a beam of its own whose candidates cost more the more often others chose their token at this step."""
    G, W = cfg.diverse_groups, cfg.beam_size // cfg.diverse_groups
    live = [[((), [])] for _ in range(G)]
    found = [[] for _ in range(G)]
    for _ in range(longest + 1):
        times = np.zeros(V)
        for g in range(G):
            candidates = []
            for tokens, token_scores in live[g]:
                for v, score in enumerate(symbol_scores(table, cfg, tokens, longest)):
                    if score > -np.inf:
                        both = [*token_scores, float(score)]
                        candidates.append((sum(both) - cfg.diverse_strength * times[v], (*tokens, v), both))
            candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * W]
            found[g] += [_found(cfg, tokens, s) for _, tokens, s in candidates[:W] if tokens[-1] == EOS]
            live[g] = [(tokens, s) for _, tokens, s in candidates if tokens[-1] != EOS][:W]
            for tokens, _ in live[g]:
                times[tokens[-1]] += 1
    return rank([f for group in found for f in rank(group)[:W]])


def search(table, cfg):
    found = toy_search(table[None], cfg, request([LONGEST]), limit=LONGEST + 1)
    return [
        (tuple(np.asarray(found.tokens[0, w, :n]).tolist()), float(found.scores[0, w]))
        for w, n in enumerate(np.asarray(found.lengths[0]))
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("groups", "size", "strength"), [(2, 3, 0.8), (3, 1, 0.8), (2, 1, 0.8), (3, 2, 0.0)])
def test_groups_equal_the_loops(groups, size, strength, seed):
    """Plain sums, so that no group is done before the longest length and all go on steering the others."""
    cfg = SearchConfig(
        beam_size=groups * size,
        diverse_groups=groups,
        diverse_strength=strength,
        length_penalty=3.0,
        min_length=LONGEST,
    )
    table = trigram_table(seed, V)
    expected = loops(table, cfg, LONGEST)
    ours = search(table, cfg)
    assert [t for t, _ in ours] == [e.tokens for e in expected]
    np.testing.assert_allclose([s for _, s in ours], [e.score for e in expected], rtol=1e-5)
