"""Whole sentences through a small model: order, odd sources and shapes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.search.batching import Batching, batches, width_of
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force
from convs2s_jax.search.translate import score, translate

VOCABULARY = 23
MODEL = ModelConfig(
    embedding_dim=8,
    encoder=ConvEncoderConfig(layers=(ConvLayer(8, 3),), max_positions=34),
    decoder=ConvDecoderConfig(layers=(ConvLayer(8, 3),), out_dim=8, max_positions=26),
)
SEARCH = SearchConfig(beam_size=3, max_length_a=1.0, max_length_b=2)


@pytest.fixture(scope="module")
def params():
    fresh = encoder_decoder.init(jax.random.key(0), MODEL, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    return jax.tree.map(lambda x: 2 * x, fresh)  # far from uniform, so that searches differ


@pytest.fixture(scope="module")
def sources():
    random = np.random.default_rng(0)
    return [random.integers(4, VOCABULARY, n) for n in (5, 1, 9, 0, 3, 30, 7, 40, 5, 0, 2, 12)]


@pytest.fixture(scope="module")
def translations(params, sources):
    return translate(params, MODEL, SEARCH, sources, batching=Batching(size=4))


@pytest.mark.parametrize("attention", [False, True])
def test_every_candidate_has_attention_if_it_was_requested(params, attention):
    """Also that of an empty source, and of a target without positions. Views would keep the arrays of whole batches."""
    found = translate(params, MODEL, SEARCH, [[], [5, 6]], attention=attention, nbest=2)
    found += score(params, MODEL, SEARCH, [[5], [5]], [[6], [6] * 99], attention=attention)
    assert found[3].best.score == -np.inf
    assert [each.best.attention is not None for each in found] == [attention] * 4
    assert len(found[1].candidates) == 2
    for one in found[1].candidates:
        assert all(x.base is None for x in (one.tokens, one.token_scores))
        assert one.sampler_log_probs is None
        assert not attention or (one.attention.shape, one.attention.base) == ((len(one.tokens) + 1, 3), None)


def test_samples_have_the_log_probabilities_of_the_sampler(params):
    """`min_length` forces the end symbol; PAD and the begin symbol are not drawn, so that the others are likelier."""
    cfg = dataclasses.replace(SEARCH, sampling=True, min_length=4)
    empty, found = translate(params, MODEL, cfg, [[], [5]], key=jax.random.key(0))
    assert empty.best.sampler_log_probs.size == 0
    for one in found.candidates:
        assert len(one.tokens) == 4
        np.testing.assert_array_equal(one.sampler_log_probs == 0, [False] * 4 + [True])
        assert (one.sampler_log_probs > one.token_scores).all()


def test_empty_source_has_an_empty_translation(sources, translations):
    for source, translation in zip(sources, translations, strict=True):
        if len(source) == 0:
            assert [c.tokens.tolist() for c in translation.candidates] == [[]]
        else:
            assert len(translation.best.tokens) >= SEARCH.min_length


def test_a_source_without_positions_is_cut_and_counted(params, sources, translations):
    room = MODEL.max_source - 1
    assert [t.cut for t in translations] == [max(0, len(s) - room) for s in sources]
    assert max(t.cut for t in translations) == 40 - room
    (beginning,) = translate(params, MODEL, SEARCH, [sources[7][:room]])
    np.testing.assert_array_equal(translations[7].best.tokens, beginning.best.tokens)


def test_longest_translation_fills_the_positions(params, sources):
    """The last position of the decoder is used, and no other."""
    cfg = SearchConfig(beam_size=2, min_length=100, max_length_a=50.0)
    (translation,) = translate(params, MODEL, cfg, sources[:1])
    assert {len(c.tokens) for c in translation.candidates} == {MODEL.max_target - 1}
    assert np.isfinite(translation.best.score)


BLIND = build(
    ModelConfig,
    {
        "embedding_dim": 8,
        "encoder": {"kind": "recurrent", "units": 8},
        "decoder": {"kind": "recurrent", "units": 8, "out_dim": 8, "attention": "none"},
    },
)


def test_a_coverage_penalty_is_refused_unless_all_models_attend(params):
    covered = dataclasses.replace(SEARCH, coverage_penalty=0.5)
    blind = encoder_decoder.init(jax.random.key(0), BLIND, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    models = (params, blind), (MODEL, BLIND), covered
    rows = np.array([[5, EOS]])
    for call, rest in ((translate, ([[5]],)), (score, ([[5]], [[5]])), (force, (rows, rows))):
        with pytest.raises(ValueError, match=r"^coverage_penalty is above 0, but a model has no attention to cover"):
            call(*models, *rest)


def test_what_is_traced_is_refused(params):
    message = "^translate and score need concrete values, .*: use beam_search there, and loss or force for scores"
    sources = jnp.asarray([[5, 6]])

    def scored(params, sources, targets):
        return score(params, MODEL, SEARCH, sources, targets)[0].best.score

    for traced in (
        lambda: jax.grad(scored)(params, [[5]], [[6]]),
        lambda: jax.vmap(lambda row: scored(params, [[5]], [row]))(sources),
        lambda: jax.jit(lambda x: translate(params, MODEL, SEARCH, x)[0].best.score)(sources),
        lambda: jax.jit(lambda x: translate(params, MODEL, SEARCH, [[5]], phrases=[[x]])[0].best.score)(sources[0]),
    ):
        with pytest.raises(TypeError, match=message):
            traced()


def test_progress_counts_every_sentence(params, sources):
    done = []
    translate(params, MODEL, SEARCH, sources, batching=Batching(size=4), progress=done.append)
    assert sum(done) == len(sources)
    done.clear()
    score(params, MODEL, SEARCH, sources[:2], [[5], [5] * 2000], progress=done.append)
    assert sum(done) == 2


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 9), st.integers(1, 1000))
def test_every_sentence_is_in_one_batch_that_it_fits(lengths, rows, tokens):
    plan = batches(lengths, Batching(size=rows, tokens=tokens))
    assert sorted(i for bucket in plan for i in bucket.indices) == list(range(len(lengths)))
    for bucket in plan:
        assert len(bucket.indices) <= bucket.rows <= rows
        assert max(lengths[i] for i in bucket.indices) <= bucket.width
        assert bucket.rows * bucket.width <= tokens or bucket.rows == 1
    assert all(len(bucket.indices) == bucket.rows for bucket in plan[:-1])
    assert len({bucket.shape for bucket in plan}) == len({bucket.width for bucket in plan})


def test_shapes_are_few():
    widths = {width_of(length) for length in range(1, 1023)}
    assert len(widths) <= 24
    assert all(length <= width_of(length) < length + max(8, length / 2) for length in range(1, 1023))
    assert all(width_of(length) < length + max(16, length / 4) for length in range(33, 1023))
    assert [bucket.rows for bucket in batches([5] * 70)] == [64, 64]
    assert [bucket.rows for bucket in batches([5] * 5)] == [8]
    with pytest.raises(UserError, match=r"^tokens is 0: use 1 or more$"):
        Batching(tokens=0)
