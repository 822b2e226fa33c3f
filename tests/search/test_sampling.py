"""Samples follow the model, depend on their own sentence only, and carry the model's scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import BOS, EOS
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.strategies import keep
from tests.search.exhaustive import exhaustive, symbol_scores, toy_search, trigram_table

V, LONGEST = 6, 3
TABLE = trigram_table(1, V)


def draw(cfg, count, seed=0, offset=0, longest=LONGEST, table=TABLE):
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(offset, offset + count))
    asked = request([longest] * count, None, None, keys)
    return toy_search(table[None], cfg, asked, limit=longest + 1, languages=[0] * count)


def test_samples_are_distributed_as_the_model():
    """20,000 samples against the probability of each of the hypotheses there are (chi-square)."""
    cfg = SearchConfig(beam_size=100, sampling=True, min_length=1, temperature=1.4)
    found = draw(cfg, 200)
    texts = np.asarray(found.tokens).reshape(-1, LONGEST + 1)
    assert (np.asarray(found.lengths) > 0).all()
    counts: dict[tuple[int, ...], int] = {}
    for row in texts:
        tokens = tuple(int(v) for v in row[: list(row).index(EOS) + 1])
        counts[tokens] = counts.get(tokens, 0) + 1
    # The begin symbol is never drawn.
    # min_length 1 takes the end symbol away from the first step without renormalising its log-probability
    expected = {}
    for e in exhaustive(TABLE, cfg, LONGEST):
        chance = 1.0
        for i, v in enumerate(e.tokens):
            p = np.exp(symbol_scores(TABLE, cfg, e.tokens[:i], LONGEST))
            p[BOS] = 0
            chance *= p[v] / p.sum()
        expected[e.tokens] = chance * len(texts)
    assert sum(expected.values()) == pytest.approx(len(texts))
    big = [tokens for tokens, n in expected.items() if n >= 5]
    square = sum((counts.get(t, 0) - expected[t]) ** 2 / expected[t] for t in big)
    assert square < len(big) + 4 * np.sqrt(2 * len(big))


def test_the_begin_symbol_is_never_drawn():
    """Not even where the model is all but certain of it: fairseq leaves out the first two symbols before it draws."""
    table = TABLE.copy()
    table[..., BOS] += 20
    found = draw(SearchConfig(beam_size=50, sampling=True, top_k=2), 8, seed=3, table=table)
    real = np.arange(LONGEST + 1) < np.asarray(found.lengths)[..., None]
    drawn = np.asarray(found.tokens)[real]
    assert (np.asarray(found.lengths) > 0).all()
    assert BOS not in drawn
    assert len(set(drawn.tolist())) > 2


def test_scores_are_those_of_the_model():
    cfg = SearchConfig(beam_size=4, sampling=True, top_k=3, unk_penalty=0.5, temperature=1.3)
    found = draw(cfg, 5)
    for b in range(5):
        for w in range(4):
            n = int(found.lengths[b, w])
            tokens = tuple(np.asarray(found.tokens[b, w, :n]).tolist())
            expected = [symbol_scores(TABLE, cfg, tokens[:i], LONGEST)[v] for i, v in enumerate(tokens)]
            np.testing.assert_allclose(found.token_scores[b, w, :n], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(found.scores[b, w], sum(expected) / n, rtol=1e-5)


@pytest.mark.parametrize(("k", "p"), [(3, 1.0), (0, 0.6), (0, 0.95), (4, 0.5), (0, 1e-6), (100, 0.999)])
def test_candidates_equal_a_loop_over_sorted_probabilities(k, p):
    scores = np.random.default_rng(k).normal(0, 2, (50, 11)).astype(np.float32)
    scores[:, 1] = -np.inf
    cfg = SearchConfig(sampling=True, top_k=k, top_p=p)
    ours = np.asarray(keep(search_options(cfg), jnp.asarray(scores)))
    for row, kept in zip(scores.astype(np.float64), ours, strict=True):
        order = np.argsort(-row)[: k or None]
        chances = np.exp(row[order]) / np.exp(row[order]).sum()
        count = int(np.searchsorted(np.cumsum(chances), p) + 1) if p < 1 else len(order)
        expected = {int(v) for v in order[:count] if np.isfinite(row[v])}
        assert set(np.flatnonzero(np.isfinite(kept)).tolist()) == expected
        np.testing.assert_array_equal(kept[list(expected)], row[list(expected)].astype(np.float32))
