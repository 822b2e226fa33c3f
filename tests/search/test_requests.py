"""Whole sentences with all that may be asked of them: devices, ensembles, prefixes, phrases, samples, given targets."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import keys
from convs2s_jax.search.batching import Batching
from convs2s_jax.search.generate import force, generate
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.translate import score, translate
from convs2s_jax.training.loss import loss
from convs2s_jax.training.step import Batch
from tests.helpers import drills_but
from tests.search.test_translate import MODEL, SEARCH, VOCABULARY

RANDOM = np.random.default_rng(5)
SOURCES = [RANDOM.integers(4, VOCABULARY, n) for n in RANDOM.integers(1, 8, 20)]  # of one width
OPTIONS = {
    "beam": {},
    "penalties": {
        "length_penalty": 0.7,
        "length_penalty_kind": "gnmt",
        "coverage_penalty": 0.3,
        "unk_penalty": 0.4,
        "no_repeat_ngram": 2,
        "temperature": 1.2,
    },
    "samples": {"sampling": True, "top_k": 5},
}


def key_of(cfg, first=0, count=len(SOURCES)):  # noqa: B008
    return keys.for_search(cfg, 0, range(first, first + count))


def fresh(seed):
    params = encoder_decoder.init(
        jax.random.key(seed), MODEL, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY
    )
    return jax.tree.map(lambda x: 2 * x, params)


@pytest.fixture(scope="module")
def params():
    return fresh(0)


def same(ours, theirs, rtol=1e-5):
    for x, y in zip(ours, theirs, strict=True):
        assert [c.tokens.tolist() for c in x.candidates] == [c.tokens.tolist() for c in y.candidates]
        np.testing.assert_allclose([c.score for c in x.candidates], [c.score for c in y.candidates], rtol=rtol)


@pytest.mark.drill
@pytest.mark.parametrize("name", ["beam", "samples"])
def test_number_of_devices_changes_nothing(params, name):
    cfg = dataclasses.replace(SEARCH, **OPTIONS[name])
    more = {"key": key_of(cfg), "batching": Batching(size=4), "attention": True}
    one, three = (translate(params, MODEL, cfg, SOURCES, devices=jax.devices()[:n], **more) for n in (1, 3))
    for x, y in zip(one, three, strict=True):
        for c, d in zip(x.candidates, y.candidates, strict=True):
            jax.tree.map(np.testing.assert_array_equal, dataclasses.astuple(c), dataclasses.astuple(d))


@pytest.mark.parametrize("name", drills_but(OPTIONS, kept=["beam"]))
def test_order_and_size_of_batches_change_nothing(params, name):
    """16 in a batch shrink to 8 and go on; 3 do not; reversed, each has other neighbours."""
    cfg = dataclasses.replace(SEARCH, **OPTIONS[name])
    together = translate(params, MODEL, cfg, SOURCES, key=key_of(cfg), batching=Batching(size=16), attention=True)
    same(translate(params, MODEL, cfg, SOURCES, key=key_of(cfg), batching=Batching(size=3)), together)
    if not cfg.sampling:  # the noise of a sample is a function of the number of its sentence
        same(
            translate(params, MODEL, cfg, SOURCES[::-1], batching=Batching(size=16), attention=True)[::-1],
            together,
        )
    same(
        translate(params, MODEL, cfg, SOURCES[5:8], key=key_of(cfg, 5, 3), batching=Batching(size=3)),
        together[5:8],
    )


@pytest.mark.parametrize("name", drills_but(OPTIONS, kept=["beam"]))
def test_score_reports_what_the_search_reported(params, name):
    cfg = dataclasses.replace(SEARCH, **OPTIONS[name])
    found = translate(params, MODEL, cfg, SOURCES, key=key_of(cfg), batching=Batching(size=16), attention=True)
    pairs = [(source, c) for source, t in zip(SOURCES, found, strict=True) for c in t.candidates]
    scored = score(params, MODEL, cfg, [s for s, _ in pairs], [c.tokens for _, c in pairs], attention=True)
    for (source, c), again in zip(pairs, scored, strict=True):
        np.testing.assert_array_equal(again.best.tokens, c.tokens)
        np.testing.assert_allclose(again.best.score, c.score, rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(again.best.token_scores, c.token_scores, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(again.best.attention, c.attention, atol=1e-5)
        assert c.attention.shape == (len(c.tokens) + 1, len(source) + 1)
        np.testing.assert_allclose(c.attention.sum(axis=1), 1, rtol=1e-5)


def test_score_of_nothing_of_much_and_of_too_much(params):
    """The arrays are as wide as the longer side."""
    empty, long, usual, beyond = score(params, MODEL, SEARCH, [[], [5], [6, 7], [5]], [[], [8] * 20, [9], [4] * 40])
    assert len(empty.best.token_scores) == 1
    assert np.isfinite(empty.best.score)
    assert len(long.best.token_scores) == 21
    (alone,) = score(params, MODEL, SEARCH, [[6, 7]], [[9]])
    np.testing.assert_allclose(usual.best.score, alone.best.score, rtol=1e-5)
    assert beyond.best.score == -np.inf


def test_coverage_of_peaked_attention_is_that_of_a_loop(params):
    """Equation 14 of Wu et al., also of positions with next to no attention; one with none leaves the score finite."""
    params = jax.tree.map(lambda x: 2 * x, params)
    cfg = dataclasses.replace(SEARCH, coverage_penalty=0.5, normalize=False)
    found = translate(params, MODEL, cfg, SOURCES, attention=True)
    given = score(params, MODEL, cfg, SOURCES, [t.best.tokens for t in found])
    received, tiny = [], float(np.finfo(np.float32).tiny)
    for one, again in zip(found, given, strict=True):
        received += (each := one.best.attention.sum(axis=0).tolist())
        expected = one.best.token_scores.sum() + 0.5 * sum(math.log(min(max(a, tiny), 1)) for a in each)
        np.testing.assert_allclose([one.best.score, again.best.score], expected, rtol=1e-4)
    assert min(received) == 0
    assert min(a for a in received if a > 0) < 1e-9


def test_scores_of_float64_parameters_are_in_float64(params):
    """Those of the search and of `force` are minus the loss, which is compared with fairseq's in float64 elsewhere."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
        cfg = dataclasses.replace(SEARCH, normalize=False, temperature=1.0)
        src = np.array([[5, 6, 2], [7, 2, 1]], np.int32)
        found, _ = generate((params,), (MODEL,), search_options(cfg), src, request([4, 4]), limit=5)
        given, _ = force(params, MODEL, cfg, src, found.tokens[:, 0])
        for b, tokens in enumerate(found.tokens[:, 0]):
            expected = -loss(params, MODEL, Batch(src=src[b : b + 1], tgt=tokens[None])).loss
            scores = np.array([found.scores[b, 0], given.scores[b, 0]])
            assert scores.dtype == np.float64
            np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_force_has_the_scores_of_score_and_the_gradient_of_the_loss(params):
    """Without normalisation the score is minus the loss of the pair; temperature and parameters may be traced."""
    cfg = dataclasses.replace(SEARCH, normalize=False)
    src, tgt = jnp.array([[5, 6, 2], [7, 2, 1]]), jnp.array([[8, 2, 1], [9, 10, 2]])

    def scores(params, temperature):
        options = search_options(cfg).replace(temperature=temperature)
        return force(params, MODEL, options, src, tgt)[0].scores[:, 0]

    summed, gradient = jax.jit(jax.value_and_grad(lambda params: jnp.sum(scores(params, 1.0))))(params)
    expected = score(params, MODEL, cfg, [[5, 6], [7]], [[8], [9, 10]])
    np.testing.assert_allclose(summed, sum(t.best.score for t in expected), rtol=1e-5)
    expected = jax.jit(jax.grad(lambda params: -loss(params, MODEL, Batch(src=src, tgt=tgt)).loss))(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), gradient, expected)
    narrow = force(params, MODEL, cfg, src, tgt.astype(jnp.uint8))[0]
    assert narrow.tokens.dtype == jnp.int32
    mapped = jax.jit(jax.vmap(partial(scores, params)))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(jnp.sum(mapped[0]), summed, rtol=1e-5)
    warm = score(params, MODEL, dataclasses.replace(cfg, temperature=2.0), [[5, 6], [7]], [[8], [9, 10]])
    np.testing.assert_allclose(mapped[1], [t.best.score for t in warm], rtol=1e-5)


@pytest.mark.drill
def test_prefixes_and_phrases_are_kept(params):
    prefixes = [RANDOM.integers(4, VOCABULARY, i % 3) for i in range(len(SOURCES))]
    phrases = [[RANDOM.integers(4, VOCABULARY, 1)] if len(s) > 3 else [] for s in SOURCES]
    found = translate(params, MODEL, SEARCH, SOURCES, prefixes=prefixes, phrases=phrases, batching=Batching(size=8))
    for translation, prefix, wanted in zip(found, prefixes, phrases, strict=True):
        for candidate in translation.candidates:
            assert candidate.tokens[: len(prefix)].tolist() == prefix.tolist()
            assert all(phrase[0] in candidate.tokens for phrase in wanted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([6, 3, 5], [[4]]), "got 1 prefixes and 3 lists of phrases for 3 sentences"),
        (([6, 3], [[5], 7]), "sentence 1: its prefix is 7: expected a list of token ids, which are integers"),
        (([6, 3], None, [[], [7, 8]]), "sentence 1: a phrase is 7: expected a list of token ids"),
        (([6, 3], None, [[], 7]), "sentence 1: its phrases are 7: expected a list of phrases$"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        request(*given)
