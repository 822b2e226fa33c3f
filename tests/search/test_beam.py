"""Beam search against fairseq's procedure in loops, and against itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS, UNK
from convs2s_jax.search import beam
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import EXACT, Finished
from convs2s_jax.search.options import search_options
from convs2s_jax.search.requests import request
from convs2s_jax.search.strategies import PLAIN
from tests.helpers import drills_but
from tests.search.exhaustive import (
    assert_same,
    beam_search,
    hypotheses,
    search,
    toy_search,
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


def run(cfg, languages=range(LANGUAGES), max_lengths=MAX_LENGTHS, tables=TABLES, limit=LIMIT):
    return toy_search(tables, cfg, request(max_lengths), limit=limit, languages=list(languages))


@pytest.mark.parametrize("stop", drills_but(["exact", "fairseq"], kept=["fairseq"]))
@pytest.mark.parametrize("name", OPTIONS)
def test_search_equals_fairseqs_procedure_in_loops(name, stop):
    cfg = SearchConfig(**OPTIONS[name], stop=stop)
    cfg_of = {m: dataclasses.replace(cfg, min_length=min(cfg.min_length, m)) for m in MAX_LENGTHS}
    result = run(cfg)
    for b, m in enumerate(MAX_LENGTHS):
        assert_same(hypotheses(result, b), beam_search(TABLES[b], cfg_of[m], m, patience=stop == "exact"))


@pytest.mark.parametrize("name", OPTIONS)
def test_no_live_hypothesis_that_could_still_enter_is_given_up(name):
    """The stopping rule against a list of all lengths a live hypothesis may end at."""
    cfg = SearchConfig(**OPTIONS[name])
    random = np.random.default_rng(0)
    count, step = 400, 1
    worst, best_total = (random.normal(-1.0, 2.0, count).astype(np.float32) for _ in range(2))
    max_lengths = random.integers(0, 9, count).astype(np.int32)
    places = jnp.repeat(jnp.asarray(worst)[:, None], cfg.beam_size, axis=1)
    finished = Finished(places, places, places, places)
    done = EXACT.is_done(
        search_options(cfg), finished, jnp.int32(step), jnp.asarray(best_total), jnp.asarray(max_lengths)
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


def test_a_sentence_alone_and_a_longer_buffer_change_nothing():
    cfg = SearchConfig()
    together, long = run(cfg), run(cfg, limit=3 * LIMIT)
    for b in range(LANGUAGES):
        alone = run(cfg, [b], MAX_LENGTHS[b : b + 1])
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[b]), alone, together)  # noqa: B023
    np.testing.assert_array_equal(together.tokens, long.tokens[..., :LIMIT])
    np.testing.assert_array_equal(together.scores, long.scores)


def test_numbers_that_are_none_are_never_chosen():
    """NaN from the network is -inf: hypotheses that meet one die, the others of their sentence live on."""

    def step(memory, cache, last):
        logits = jnp.zeros((len(last), V)).at[:, UNK].set(2.0).at[:, UNK + 1].set(1.0)
        return jnp.where((last == UNK)[:, None] | (cache == 0), jnp.nan, logits), cache

    result = search(step, SearchConfig(beam_size=2), (), jnp.array([[0], [0], [1], [1]]), request([2, 2]), limit=3)
    np.testing.assert_array_equal(result.lengths, [[0, 0], [3, 0]])
    np.testing.assert_array_equal(result.tokens[1, 0], [UNK + 1, UNK + 1, EOS])


def returning(logits, cache=lambda cache: cache):
    return lambda _memory, before, last: (logits(len(last)), cache(before))


GOOD = returning(lambda n: jnp.zeros((n, V)))
WRONG = {
    "cache": (GOOD, {"cache": {"a": jnp.zeros(3)}}, r"^cache\['a'\] has shape \(3,\): axis 0 must have 6 rows"),
    "memory": (GOOD, {"memory": jnp.zeros(3)}, r"^memory has shape \(3,\): axis 0 must have 2 rows"),
    "one axis": (
        returning(jnp.zeros),
        {},
        r"^logits of the step have shape \(\d,\): expected \[N, V\], or \[M, N, V\]",
    ),
    "closed over": (returning(lambda _: jnp.zeros((3, V))), {}, r"shape \(3, 8\): .* N = 2 rows, one for each last"),
    "cache of others": (
        returning(lambda n: jnp.zeros((n, V)), lambda _: jnp.zeros(3)),
        {},
        "^the step returns a cache",
    ),
    "language model": (GOOD, {"cfg": {"lm_weight": 0.5}}, r"^logits of the step .* and with a language model"),
    "coverage": (GOOD, {"cfg": {"coverage_penalty": 1.0}}, "^coverage is None, but the search has a coverage penalty"),
    "key": (GOOD, {"cfg": {"sampling": True}}, "^sampling needs a random key for each sentence"),
    "draws": (
        GOOD,
        {"strategy": PLAIN._replace(draws=True)},
        "^a strategy with draws=True returns candidates with sampler_log_",
    ),
    "phrases": (GOOD, {"strategy": PLAIN, "phrases": [[[4]], []]}, "^phrases work with plain beam search only"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name):
    step, more, message = WRONG[name]
    more = {"cache": jnp.zeros(6), "memory": (), **more}
    cfg = SearchConfig(beam_size=3, **more.pop("cfg", {}))
    asked = request([1, 1], None, more.pop("phrases", None))
    with pytest.raises(ValueError, match=message):
        beam.beam_search(step, cfg, request=asked, limit=2, **more)
