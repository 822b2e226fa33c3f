"""The options as one tree: numbers are traced, mapped and differentiated, and what is off is no part of the program."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.options import checked_options, search_options
from convs2s_jax.search.requests import request
from tests.helpers import drills_but
from tests.search.exhaustive import beam_search, compiled, toy_search, trigram_table

V, LIMIT = 8, 7
TABLES = np.stack([trigram_table(seed, V) for seed in range(3)])
MAX_LENGTHS = [LIMIT - 1, 3, 5]
CFG = SearchConfig(beam_size=3, coverage_penalty=0.2, length_penalty=0.8, temperature=1.3, unk_penalty=0.5)
VALUES = {
    "length_penalty": [0.0, 2.5, -0.4],
    "coverage_penalty": [0.9],
    "temperature": [0.5, 3.0],
    "unk_penalty": [-1.0, 4.0],
    "min_length": [0, 50],
}


def search(options, **more):
    """All three sentences."""
    return compiled(TABLES, np.arange(3), request(MAX_LENGTHS), options, limit=LIMIT, **more)


def with_value(name, value):
    options = search_options(CFG)
    return options.replace(**{name: jnp.asarray(value, getattr(options, name).dtype)})


@pytest.mark.parametrize(
    "values",
    [*({name: value} for name, several in VALUES.items() for value in several), {"lm_weight": 0.0, "max_length_b": 3}],
    ids=str,
)
def test_another_value_compiles_nothing_and_counts(values):
    search(search_options(CFG))
    before = compiled._cache_size()
    cfg = dataclasses.replace(CFG, **values)
    found = toy_search(TABLES, cfg, request(MAX_LENGTHS), limit=LIMIT)
    assert compiled._cache_size() == before
    for b, longest in enumerate(MAX_LENGTHS):
        least = min(cfg.min_length, longest)
        expected = beam_search(TABLES[b], dataclasses.replace(cfg, min_length=least), longest, patience=True)
        np.testing.assert_allclose(found.scores[b], [e.score for e in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["length_penalty", "temperature"])
def test_a_map_over_values_gives_what_separate_searches_give(name):
    values = jnp.asarray(VALUES[name], jnp.float32)
    mapped = jax.vmap(lambda value: search(with_value(name, value)))(values)
    for i, value in enumerate(values):
        alone = search(with_value(name, value))
        np.testing.assert_array_equal(mapped.tokens[i], alone.tokens)
        np.testing.assert_allclose(mapped.scores[i], alone.scores, rtol=1e-6)
    assert len({np.asarray(tokens).tobytes() for tokens in mapped.tokens}) > 1, "the values are to make a difference"


NUMBERS = ["length_penalty", "temperature", "coverage_penalty", "unk_penalty"]


@pytest.mark.parametrize("name", drills_but(NUMBERS, kept=["temperature"]))
def test_gradients_of_the_best_scores_equal_finite_differences(name):
    value, step = getattr(CFG, name), 1e-2

    def best(value, *, fixed_length=True):
        return jnp.sum(search(with_value(name, value), fixed_length=fixed_length).scores[:, 0])

    ahead, behind = (search(with_value(name, value + sign * step)) for sign in (1, -1))
    np.testing.assert_array_equal(ahead.tokens[:, 0], behind.tokens[:, 0])  # else the difference is no derivative
    difference = np.sum(np.asarray(ahead.scores - behind.scores, np.float64)[:, 0]) / (2 * step)
    slope = jax.grad(best)(jnp.float32(value))
    np.testing.assert_allclose(slope, difference, rtol=5e-3, atol=1e-4)
    with pytest.raises(
        ValueError, match=r"^the loop of a search has no derivative in reverse .*: pass fixed_length=True"
    ):
        jax.grad(partial(best, fixed_length=False))(jnp.float32(value))
    forward = jax.jvp(lambda x: best(x, fixed_length=False), (jnp.float32(value),), (jnp.float32(1),))[1]
    np.testing.assert_allclose(forward, slope, rtol=1e-5)


def test_options_of_another_type_are_refused():
    with pytest.raises(TypeError, match=r"^search is a dict: expected SearchConfig"):
        checked_options({"temperature": 2.0})
