"""Every option, alone and with every other, against listing everything."""

import itertools
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import UNK
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.requests import request
from tests.helpers import drills_but
from tests.search.exhaustive import (
    CompileRequest,
    assert_same,
    exhaustive,
    hypotheses,
    search,
    toy_search,
    trigram_cache,
    trigram_step,
    trigram_table,
)

V, LONGEST, WORDS = 6, 3, 4  # six symbols, four without PAD and EOS
WIDEST = WORDS ** (LONGEST - 1) * (WORDS + 1)  # all candidates of a step
TABLES = np.stack([trigram_table(seed, V) for seed in range(2)])
A, B = 4, 5
OPTIONS = {
    "power": {"length_penalty": 2.0},
    "gnmt": {"length_penalty": 0.8, "length_penalty_kind": "gnmt"},
    "coverage": {"coverage_penalty": 0.7},
    "unknown dear": {"unk_penalty": 2.0},
    "unknown wanted": {"unk_penalty": -2.0},
    "at least 2": {"min_length": 2},
    "no word twice": {"no_repeat_ngram": 1},
    "no bigram twice": {"no_repeat_ngram": 2},
    "flat": {"temperature": 2.5},
    "plain sum": {"normalize": False},
    "prefix": {"prefixes": [(A,), (UNK, B)]},
    "phrases": {"phrases": [[(B, A)], [(A,), (0,)]]},
}
# A phrase may break the rule against repetition where nothing else is left: what listing everything does not know.
EXCEPT = [("no word twice", "phrases")]
PAIRS = [
    pair
    for pair in itertools.combinations(OPTIONS, 2)
    if not set(OPTIONS[pair[0]]) & set(OPTIONS[pair[1]]) and pair not in EXCEPT
]
PRECISE = [(("gnmt", "coverage", "unknown dear", "flat"), np.float64), (("unknown wanted", "phrases"), np.float64)]
SETS = [*PRECISE, *((names, np.float32) for names in [*((name,) for name in OPTIONS), *PAIRS])]


def found(cfg, dtype, prefixes=None, phrases=None):
    """The hypotheses of both sentences."""
    with jax.enable_x64(dtype == np.float64):
        result = toy_search(TABLES.astype(dtype), cfg, request([LONGEST] * 2, prefixes, phrases), limit=LONGEST + 1)
    assert result.scores.dtype == result.token_scores.dtype == dtype
    return [hypotheses(result, b) for b in range(2)]


@lru_cache
def everything(language, cfg, wanted):
    return exhaustive(TABLES[language], cfg, LONGEST, wanted)


@pytest.mark.parametrize(
    ("names", "dtype"),
    drills_but(SETS, kept=SETS[: len(PRECISE) + len(OPTIONS)]),
    ids=lambda x: " + ".join(x) if isinstance(x, tuple) else x.__name__,
)
def test_widest_beam_equals_exhaustive_search(names, dtype):
    """Scores have the precision of the logits."""
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    values = {"beam_size": WIDEST, "min_length": 0}
    for name in names:
        values |= OPTIONS[name]
    prefixes, phrases = values.pop("prefixes", None), values.pop("phrases", None)
    cfg = SearchConfig(**values)
    for b, ours in enumerate(found(cfg, dtype, prefixes, phrases)):
        wanted = CompileRequest(tuple(prefixes[b] if prefixes else ()), tuple(phrases[b] if phrases else ()))
        if len(wanted.prefix) + sum(len(phrase) for phrase in wanted.phrases) > LONGEST:
            continue  # no hypothesis has room for both, one after the other
        expected = everything(b, cfg, wanted)[:WIDEST]
        np.testing.assert_allclose([f[1] for f in ours], [e.score for e in expected], rtol=rtol, atol=rtol)
        assert {f[0] for f in ours[:50]} == {e.tokens for e in expected[:50]}
        assert_same(ours[:5], expected[:5], rtol)


def test_ensemble_is_the_mean_of_probabilities():
    """Two members that each prefer another word, against listing everything with the averaged model."""

    def step(memory, cache, last):
        members = [trigram_step(TABLES)(memory, {**cache, "language": jnp.full_like(last, m)}, last) for m in range(2)]
        return jnp.stack([logits for logits, _ in members]), members[0][1]

    cfg = SearchConfig(beam_size=WIDEST, temperature=1.3, unk_penalty=0.5)
    result = search(step, cfg, (), trigram_cache([0], WIDEST), request([LONGEST]), limit=LONGEST + 1)
    ours, expected = hypotheses(result, 0), exhaustive(TABLES, cfg, LONGEST)[:WIDEST]
    np.testing.assert_allclose([f[1] for f in ours], [e.score for e in expected], rtol=1e-5, atol=1e-5)
    assert [f[0] for f in ours[:5]] == [e.tokens for e in expected[:5]]


COUNT = 40
MANY = np.stack([trigram_table(seed, 8) for seed in range(COUNT)])
LEAVING = [
    {},
    {"stop": "fairseq", "no_repeat_ngram": 2},
    {"coverage_penalty": 0.5},
    {"sampling": True},
    {"phrases": True},
]


@pytest.mark.parametrize("values", drills_but(LEAVING, kept=[LEAVING[1]]), ids=str)
def test_sentences_that_leave_the_batch_change_nothing(values):
    """40 sentences of lengths 0 to 39 shrink to 20 and go on; each alone never shrinks."""
    values = dict(values)
    phrases = [[(4 + i % 3, 5)] if i > 1 else [] for i in range(COUNT)] if values.pop("phrases", False) else None
    cfg = SearchConfig(min_length=COUNT, max_length_b=COUNT, **values)
    keys = jax.random.split(jax.random.key(0), COUNT) if cfg.sampling else None
    asked = request(range(COUNT), None, phrases, keys)
    together = toy_search(MANY, cfg, asked, limit=COUNT)
    for b in (0, 1, 7, 19, 20, 38, 39):
        one = jax.tree.map(lambda x: x[b : b + 1], asked)  # noqa: B023
        alone = toy_search(MANY, cfg, one, limit=COUNT, languages=[b])
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[b])
        np.testing.assert_allclose(alone.scores[0], together.scores[b], rtol=1e-6)
        np.testing.assert_allclose(alone.token_scores[0], together.token_scores[b], rtol=1e-5, atol=1e-5)
