"""Samples follow the model, depend on their own sentence only, and carry the scores of the model and the sampler."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import BOS, EOS, PAD
from convs2s_jax.search.beam import beam_search
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.strategies import keep
from tests.helpers import drills_but
from tests.search.exhaustive import CompileRequest, exhaustive, symbol_scores, toy_search, trigram_table

V, LONGEST = 6, 3
TABLE = trigram_table(1, V)


def draw(cfg, count, seed=0, table=TABLE, prefix=()):
    keys = jax.random.split(jax.random.key(seed), count)
    asked = request([LONGEST] * count, [prefix] * count, None, keys)
    return toy_search(table[None], cfg, asked, limit=LONGEST + 1, languages=[0] * count)


def chances(scores, k, p):
    """The probabilities of the symbols with these scores after top-k and top-p, by a loop over sorted ones."""
    order = np.argsort(-scores)[: k or None]
    best = np.exp(scores[order]) / np.exp(scores[order]).sum()
    count = int(np.searchsorted(np.cumsum(best), p) + 1) if p < 1 else len(order)
    kept = np.zeros(len(scores))
    kept[order[:count]] = best[:count] / best[:count].sum()
    return kept


DISTRIBUTIONS = {
    "temperature": {"temperature": 1.4},
    "top-k": {"top_k": 3, "unk_penalty": 0.5, "min_length": 0},
    "top-p": {"top_p": 0.7, "min_length": 2},
    "no word twice": {"no_repeat_ngram": 1},
    "prefix": {"prefix": (4,)},
}


@pytest.mark.parametrize("name", drills_but(DISTRIBUTIONS, kept=["top-k", "top-p", "prefix"]))
def test_samples_have_the_frequencies_of_the_log_probabilities_they_report(name):
    """20,000 samples and a loop over all hypotheses: chi-square, and the log-probability of each symbol."""
    values = dict(DISTRIBUTIONS[name])
    prefix = values.pop("prefix", ())
    cfg, wanted = SearchConfig(beam_size=100, sampling=True, **values), CompileRequest(prefix)
    found = draw(cfg, 200, prefix=prefix)
    assert (found.lengths > 0).all()
    assert (found.sampler_log_probs[np.arange(LONGEST + 1) >= found.lengths[..., None]] == 0).all()
    seen: dict[tuple[int, ...], list[np.ndarray]] = {}
    for b, w in np.ndindex(200, 100):
        n = found.lengths[b, w]
        seen.setdefault(tuple(found.tokens[b, w, :n].tolist()), []).append(found.sampler_log_probs[b, w, :n])
    square, big, total = 0.0, 0, 0.0
    for e in exhaustive(TABLE, cfg, LONGEST, wanted):
        chance = []
        for i, v in enumerate(e.tokens):
            scores = symbol_scores(TABLE, cfg, e.tokens[:i], LONGEST, wanted)
            scores[BOS] = -np.inf
            chance.append(chances(scores, cfg.top_k, cfg.top_p)[v])
        total += np.prod(chance)
        reported, number = seen.pop(e.tokens, []), 20_000 * np.prod(chance)
        for log_probs in reported:
            np.testing.assert_allclose(log_probs, np.log(chance), rtol=1e-4, atol=1e-5)
        if number >= 5:
            square, big = square + (len(reported) - number) ** 2 / number, big + 1
    assert not seen
    assert total == pytest.approx(1)
    assert square < big + 4 * np.sqrt(2 * big)


def test_the_gradient_of_an_expected_reward_is_unbiased():
    """REINFORCE in 100 blocks of 200 samples against the derivative of the expectation, a sum over all outputs."""
    p = np.array([1e-9, 0.3, 0.1, 0.3, 0.3])
    cfg = SearchConfig(beam_size=200, sampling=True, normalize=False, min_length=0)

    def sampled(logits, key, field):
        def step(_memory, cache, last):
            return jnp.broadcast_to(logits, (len(last), 5)), cache

        asked = request([2], keys=key[None])
        found = beam_search(step, cfg, memory=(), cache=jnp.zeros(200), request=asked, limit=3, fixed_length=True)
        reward = found.lengths + 2 * jnp.sum(found.tokens == 4, axis=-1)
        return jnp.mean(reward.astype(jnp.float32) * jnp.sum(getattr(found, field), axis=-1)), found

    def expected(logits):
        q = np.exp(logits) * [0, 0, 1, 1, 1] / np.exp(logits)[2:].sum()
        texts = [text for n in range(3) for text in itertools.product((3, 4), repeat=n)]
        chance = {text: np.prod(q[list(text)]) * (q[EOS] if len(text) < 2 else 1) for text in texts}
        assert sum(chance.values()) == pytest.approx(1)
        return chance, sum(c * (len(text) + 1 + 2 * text.count(4)) for text, c in chance.items())

    slopes = [(expected(np.log(p) + h)[1] - expected(np.log(p) - h)[1]) / 2e-5 for h in 1e-5 * np.eye(5)]
    keys = jax.random.split(jax.random.key(0), 100)
    far = {}
    for field in ("sampler_log_probs", "token_scores"):
        gradient = jax.grad(partial(sampled, field=field), has_aux=True)
        blocks, found = jax.jit(jax.vmap(gradient, (None, 0)))(jnp.log(jnp.float32(p)), keys)
        error = np.std(blocks, axis=0) / 10
        far[field] = np.max(np.abs(np.mean(blocks, axis=0) - np.array(slopes)) / np.maximum(error, 1e-5))
    assert far["sampler_log_probs"] < 4
    assert far["token_scores"] > 20
    whole = np.exp(np.sum(found.sampler_log_probs, axis=-1)).ravel()
    for text, chance in expected(np.log(p))[0].items():
        row = [*text, EOS, *[PAD] * (2 - len(text))]
        drawn = np.all(np.asarray(found.tokens) == row, axis=-1).ravel()
        np.testing.assert_allclose(whole[drawn], chance, rtol=1e-5)
        assert abs(np.mean(drawn) - chance) < 4 * np.sqrt(chance / len(drawn))


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


def test_samples_that_no_symbol_continues_have_no_gradient():
    """After both words nothing may follow: the end symbol comes too early, and a word would be there twice."""
    cfg = SearchConfig(beam_size=2, sampling=True, no_repeat_ngram=1, min_length=3)
    more = {"memory": (), "cache": jnp.zeros(2), "request": request([3], keys=jax.random.key(0)), "limit": 4}

    def drawn(logits):
        def step(_memory, cache, last):
            return jnp.broadcast_to(logits, (len(last), 5)), cache

        found = beam_search(step, cfg, fixed_length=True, **more)
        return jnp.sum(found.sampler_log_probs), found.lengths

    slope, lengths = jax.jit(jax.grad(drawn, has_aux=True))(jnp.arange(5.0))
    assert not lengths.any()
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize(("k", "p"), [(3, 1.0), (0, 0.6), (0, 0.95), (4, 0.5), (0, 1e-6), (100, 0.999)])
def test_candidates_equal_a_loop_over_sorted_probabilities(k, p):
    scores = np.random.default_rng(k).normal(0, 2, (50, 11)).astype(np.float32)
    scores[:, 1] = -np.inf
    cfg = SearchConfig(sampling=True, top_k=k, top_p=p)
    ours = np.asarray(keep(search_options(cfg), jnp.asarray(scores)))
    for row, kept in zip(scores, ours, strict=True):
        expected = np.where(chances(row.astype(np.float64), k, p) > 0, row, -np.inf)
        np.testing.assert_array_equal(kept, expected)
