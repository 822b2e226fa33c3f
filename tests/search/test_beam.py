"""Beam search against fairseq's procedure in loops, and against itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.core.tokens import EOS, PAD, UNK
from convs2s_jax.search import beam
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import EXACT, Finished
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.rules import Fused
from convs2s_jax.search.top import top
from tests.helpers import drills_but
from tests.search.exhaustive import (
    beam_search,
    search,
    toy_search,
    trigram_cache,
    trigram_step,
    trigram_table,
)

V, LIMIT = 8, 8
LANGUAGES = 6
TABLES = np.stack([trigram_table(seed, V) for seed in range(LANGUAGES)])
MAX_LENGTHS = [7, 0, 3, 5, 7, 1]
OPTIONS = {
    "defaults": {},
    "greedy": {"beam_size": 1},
    "wide, longer": {"beam_size": 7, "length_penalty": 2.0},
    "flat, shorter, unknown dear": {"temperature": 2.5, "length_penalty": 0.3, "unk_penalty": 3.0},
    "negative alpha, at least 3": {"length_penalty": -0.7, "min_length": 3},
    "plain sum, from length 0": {"normalize": False, "length_penalty": 5.0, "min_length": 0},
    "at least 4, alpha 0": {"min_length": 4, "length_penalty": 0.0},
    "unknown wanted": {"unk_penalty": -3.0},
    "unknown wanted, plain sum, sharp": {"unk_penalty": -2.0, "normalize": False, "temperature": 0.5},
    "unknown wanted, longer": {"unk_penalty": -1.0, "length_penalty": 1.7, "min_length": 2},
}


def run(cfg, languages=range(LANGUAGES), max_lengths=MAX_LENGTHS, tables=TABLES, limit=LIMIT, chunk=4):
    return toy_search(tables, cfg, request(max_lengths), limit=limit, chunk=chunk, languages=list(languages))


def hypotheses(result, b):
    """The finished hypotheses of sentence b: (tokens, score, token scores)."""
    lengths = np.asarray(result.lengths[b])
    for w in range(len(lengths)):
        tokens = np.asarray(result.tokens[b, w])
        assert (tokens[lengths[w] :] == PAD).all()
        assert (np.asarray(result.token_scores[b, w, lengths[w] :]) == 0).all()
        assert (lengths[w] > 0) == np.isfinite(result.scores[b, w])
    return [
        (
            tuple(np.asarray(result.tokens[b, w, :n]).tolist()),
            float(result.scores[b, w]),
            np.asarray(result.token_scores[b, w, :n]),
        )
        for w, n in enumerate(lengths)
        if n > 0
    ]


def assert_same(found, expected):
    assert [tokens for tokens, _, _ in found] == [e.tokens for e in expected]
    for (_, score, token_scores), e in zip(found, expected, strict=True):
        np.testing.assert_allclose(score, e.score, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(token_scores, e.token_scores, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("stop", drills_but(["exact", "fairseq"], kept=["fairseq"]))
@pytest.mark.parametrize("name", OPTIONS)
def test_search_equals_fairseqs_procedure_in_loops(name, stop):
    cfg = SearchConfig(**OPTIONS[name], stop=stop)
    cfg_of = {m: dataclasses.replace(cfg, min_length=min(cfg.min_length, m)) for m in MAX_LENGTHS}
    result = run(cfg)
    for b, m in enumerate(MAX_LENGTHS):
        assert_same(hypotheses(result, b), beam_search(TABLES[b], cfg_of[m], m, patience=stop == "exact"))


@settings(max_examples=25, deadline=None, derandomize=True)  # a chance tie would be no mistake
@given(
    name=st.sampled_from(sorted(OPTIONS)),
    stop=st.sampled_from(["exact", "fairseq"]),
    seed=st.integers(0, 10**6),
    sharpness=st.floats(0.3, 4.0),
    max_lengths=st.lists(st.integers(4, LIMIT - 1), min_size=LANGUAGES, max_size=LANGUAGES),
)
def test_any_model_equals_the_loops(name, stop, seed, sharpness, max_lengths):
    cfg = SearchConfig(**OPTIONS[name], stop=stop)
    tables = np.stack([trigram_table(seed + i, V, sharpness) for i in range(LANGUAGES)])
    result = run(cfg, max_lengths=max_lengths, tables=tables)
    for b, m in enumerate(max_lengths):
        assert_same(hypotheses(result, b), beam_search(tables[b], cfg, m, patience=stop == "exact"))


@pytest.mark.parametrize("name", OPTIONS)
def test_no_live_hypothesis_that_could_still_enter_is_given_up(name):
    """The stopping rule against a list of all lengths a live hypothesis may end at."""
    cfg = SearchConfig(**OPTIONS[name])
    random = np.random.default_rng(0)
    count, step = 400, 1
    worst, best_total = (random.normal(-1.0, 2.0, count).astype(np.float32) for _ in range(2))
    max_lengths = random.integers(0, 9, count)
    places = jnp.repeat(jnp.asarray(worst)[:, None], cfg.beam_size, axis=1)
    finished = Finished(places, places, places, places)
    done = EXACT.is_done(
        search_options(cfg),
        finished,
        jnp.int32(step),
        jnp.asarray(best_total),
        jnp.asarray(max_lengths, jnp.int32),
    )
    done |= step >= max_lengths  # as the search does
    tokens, alpha = step + 1, cfg.length_penalty if cfg.normalize else 0.0
    reward = max(0.0, -cfg.unk_penalty)
    for b, m in enumerate(max_lengths):
        ends = range(max(tokens, min(cfg.min_length, m)), m + 1)
        reachable = [(best_total[b] + reward * (n - tokens)) / (n + 1) ** alpha for n in ends]
        could_enter = max(reachable, default=-np.inf) > worst[b]
        assert not (could_enter and done[b])
        if reward == 0:
            assert done[b] != could_enter, "the bound is tight where nothing is rewarded"


def test_a_late_hypothesis_that_scores_better_is_found():
    """log(0.5) / 1 is finished first; log(0.49) / 5 is better and comes four steps later."""
    table = np.full((1, V, V, V), -20.0, np.float32)
    chain = [EOS, 4, 5, 6, 7, EOS]
    table[0, :, chain[1:-1], chain[2:]] = 0.0
    table[0, EOS, EOS, [EOS, 4]] = np.log([0.5, 0.49])
    for stop, length in {"exact": 5, "fairseq": 1}.items():
        cfg = SearchConfig(beam_size=1, min_length=0, stop=stop)
        result = run(cfg, [0] * LANGUAGES, [7] * LANGUAGES, table)
        np.testing.assert_array_equal(result.lengths, length)


@pytest.mark.parametrize("stop", ["exact", "fairseq"])
def test_each_sentence_alone_equals_the_batch(stop):
    cfg = SearchConfig(stop=stop)
    together = run(cfg)
    for b in range(LANGUAGES):
        alone = run(cfg, [b], MAX_LENGTHS[b : b + 1])
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[b]), alone, together)  # noqa: B023


@pytest.mark.drill
def test_jit_changes_nothing():
    cfg = SearchConfig(unk_penalty=-1.0)
    given = {"memory": (), "cache": trigram_cache(range(LANGUAGES), 5), "request": request(MAX_LENGTHS)}
    eager = beam.beam_search(trigram_step(TABLES), cfg, limit=LIMIT, **given)
    for x, y in zip(jax.tree.leaves(eager), jax.tree.leaves(run(cfg)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3])
def test_steps_between_looks_change_nothing(chunk):
    jax.tree.map(np.testing.assert_array_equal, run(SearchConfig(), chunk=chunk), run(SearchConfig()))


def test_longer_buffer_changes_nothing():
    short, long = run(SearchConfig()), run(SearchConfig(), limit=3 * LIMIT)
    np.testing.assert_array_equal(short.tokens, long.tokens[..., :LIMIT])
    np.testing.assert_array_equal(short.scores, long.scores)


def test_search_stops_when_all_sentences_are_done():
    """A model that ends at once takes one step, however long the buffer is."""
    steps = []

    def step(memory, cache, last):
        jax.debug.callback(lambda: steps.append(1))
        return jnp.zeros((1, V)).at[:, EOS].set(50.0), cache

    cfg = SearchConfig(beam_size=1, min_length=0)
    jax.block_until_ready(search(step, cfg, (), jnp.zeros((1, 1)), request([100]), limit=101, chunk=1))
    jax.effects_barrier()
    assert len(steps) == 1


def test_numbers_that_are_none_are_never_chosen():
    """NaN from the network is -inf: hypotheses that meet one die, the others of their sentence live on."""

    def step(memory, cache, last):
        logits = jnp.zeros((len(last), V)).at[:, UNK].set(2.0).at[:, UNK + 1].set(1.0)
        return jnp.where((last == UNK)[:, None] | (cache == 0), jnp.nan, logits), cache

    cfg = SearchConfig(beam_size=2)
    result = search(step, cfg, (), jnp.array([[0], [0], [1], [1]]), request([2, 2]), limit=3)
    np.testing.assert_array_equal(result.lengths, [[0, 0], [3, 0]])
    np.testing.assert_array_equal(result.tokens[1, 0], [UNK + 1, UNK + 1, EOS])


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"cache\['older'\] has shape \(3,\): axis 0 must have B \* W = 10 rows"):
        search(trigram_step(TABLES), SearchConfig(), (), {"older": jnp.zeros(3)}, request([1, 1]), limit=2)
    with pytest.raises(ValueError, match=r"memory\['x'\] has shape \(2,\): axis 0 must have B = 1 rows"):
        search(trigram_step(TABLES), SearchConfig(), {"x": jnp.zeros(2)}, jnp.zeros(5), request([3]), limit=4)
    with pytest.raises(ValueError, match="limit is 0"):
        search(trigram_step(TABLES), SearchConfig(), (), trigram_cache([0], 5), request([1]), limit=0)
    with pytest.raises(ValueError, match="k is 9, but there are 2 \\* 4"):
        top(jnp.zeros((1, 2, 4)), 9)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ((10,), r"^logits of the step has shape \(10,\): .* N = 10 rows, one for each last token"),
        ((1, 1, 10, V), r"has shape \(1, 1, 10, 8\): expected an array \[N, V\], or \[M, N, V\]"),
        ((5, V), r"has shape \(5, 8\): .* 10 rows"),
        ((10, 3), r"has shape \(10, 3\): .* V >= 4 symbols"),
        (((10, V), (10, V + 1)), r"logits.lm of the step has shape \(10, 9\): .*the same V"),
        (((10, V), (2, 10, V)), r"logits.lm of the step has shape \(2, 10, 8\)"),
        (
            [(10, V)] * 2,
            r"^logits of the step has type list: expected an array \[N, V\], or \[M, N, V\] for an ensemble \(jnp.sta",
        ),
    ],
    ids=str,
)
def test_logits_of_a_wrong_shape_are_refused(logits, message):
    def step(memory, cache, last):
        if isinstance(logits, list):
            return [jnp.zeros(shape) for shape in logits], cache
        if isinstance(logits[0], tuple):
            return Fused(*map(jnp.zeros, logits)), cache
        return jnp.zeros(logits), cache

    with pytest.raises((TypeError, ValueError), match=message):
        search(step, SearchConfig(), (), jnp.zeros(10), request([1, 1]), limit=2)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("logits", r"^logits of the step has shape \(3, 8\): .* N = 1 rows, one for each last token"),
        ("cache", r"^cache is returned as float32\[3\]: expected float32\[1\], as it enters the step"),
    ],
)
def test_a_step_that_closes_over_arrays_of_rows_is_refused(part, message):
    """The first call has one row of each sentence, so that rows of another number are seen with one sentence too."""

    def step(memory, cache, last):
        logits = jnp.zeros((len(last), V))
        return (logits + jnp.zeros((3, V)), cache) if part == "logits" else (logits, cache + jnp.zeros(3))

    with pytest.raises(ValueError, match=message):
        search(step, SearchConfig(beam_size=3), (), jnp.zeros(3), request([1]), limit=2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prefixes": [[4], [V]]}, "^sentence 1: its prefix contains id 8: the vocabulary has ids from 0 to 7$"),
        (
            {"phrases": [[[4], [5, -1]], []]},
            "^sentence 0: a phrase contains id -1: the vocabulary has ids from 0 to 7$",
        ),
        (
            {"phrases": [[], [[5, EOS]]]},
            "^sentence 1: a phrase contains id 2, which is </s>: pass ids without the end symbol",
        ),
        (
            {"prefixes": [[4], [5, EOS]]},
            "^sentence 1: its prefix contains id 2, which is </s>: pass ids without the end symbol",
        ),
        (
            {"prefixes": [[4, 5], [5, PAD, 6]]},
            "^sentence 1: its prefix contains id 1, which is <pad>: pass ids without the",
        ),
        ({"max_lengths": []}, "^max_lengths is empty: a search needs at least one sentence$"),
        (
            {"max_lengths": jnp.array([3, -1])},
            r"^max_lengths is \[3, -1\]: use numbers of tokens from 0 to 2\^31 - 1$",
        ),
        (
            {"max_lengths": [9, 9], "prefixes": [[4, 5], [4, 6]], "phrases": [[[4, 5], [5, 6]], [[6], [7, 7]]]},
            "^sentence 1: its prefix and a phrase have 4 tokens, but its result has at most 3 before the end symbol$",
        ),
        (
            {"max_lengths": [9, 9], "prefixes": [[4, 5, 6, 7], []]},
            "^sentence 0: its prefix has 4 tokens, but its result has at most 3 before the end symbol$",
        ),
    ],
    ids=str,
)
def test_requests_that_no_hypothesis_can_meet_are_refused(asked, message):
    cfg, wanted = SearchConfig(), request(**{"max_lengths": [3, 3], **asked})
    cache = {"older": jnp.zeros(len(wanted.max_lengths) * cfg.beam_size, jnp.int32)}
    step = lambda _, cache, last: (jnp.zeros((len(last), V)), cache)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        beam.beam_search(step, cfg, memory=(), cache=cache, request=wanted, limit=4)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            {"a": jnp.zeros(5, jnp.int32)},
            r"cache\['a'\] is returned as int32\[5\]: expected float32\[5\], as it enters the step",
        ),
        (
            {"a": jnp.zeros((5, 1))},
            r"cache\['a'\] is returned as float32\[5, 1\]: expected float32\[5\]",
        ),
        ({"b": jnp.zeros(5)}, "the step returns a cache whose structure differs from that of its input cache"),
    ],
    ids=["type", "shape", "structure"],
)
def test_a_cache_that_changes_is_refused(after, message):
    def step(memory, cache, last):
        return jnp.zeros((5, V)), after

    with pytest.raises(ValueError, match=message):
        search(step, SearchConfig(), (), {"a": jnp.zeros(5)}, request([1]), limit=2)
