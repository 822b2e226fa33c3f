"""Penalties and temperature are traced: another value compiles nothing, and scores can be mapped and differentiated."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from convs2s_jax.search import rules
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.configured import beam_search as configured_search
from convs2s_jax.search.forced import force
from convs2s_jax.search.numbers import checked_numbers, numbers_of
from convs2s_jax.search.request import request
from convs2s_jax.search.strategies.plain import PLAIN
from convs2s_jax.search.structure import structure_of
from convs2s_jax.search.top import top_of_logits
from tests.helpers import drills_but
from tests.models.laws import config, parameters
from tests.search.exhaustive import beam_search, compiled, toy_search, trigram_table

V, LIMIT = 8, 7
TABLES = np.stack([trigram_table(seed, V) for seed in range(3)])
MAX_LENGTHS = [LIMIT - 1, 3, 5]
CFG = SearchConfig(beam_size=3, coverage_penalty=0.2, length_penalty=0.8, temperature=1.3, unk_penalty=0.5)
VALUES = {
    "length_penalty": [0.0, 0.6, 2.5, -0.4],
    "coverage_penalty": [0.1, 0.9],
    "temperature": [0.5, 1.0, 3.0],
    "unk_penalty": [-1.0, 0.0, 4.0],
    "min_length": [0, 2, 50],
}


def search(numbers, chunk=1):
    """All three sentences; with `chunk=LIMIT` by a loop of fixed length."""
    more = {"strategy": PLAIN, "structure": structure_of(CFG), "limit": LIMIT, "chunk": chunk}
    return compiled(TABLES, np.arange(3), request(MAX_LENGTHS), numbers, **more)


def with_value(name, value):
    numbers = numbers_of(CFG)
    return numbers.replace(**{name: jnp.asarray(value, getattr(numbers, name).dtype)})


@pytest.mark.parametrize(
    "values",
    [
        *({name: value} for name, several in VALUES.items() for value in several),
        {"lm_weight": 0.0, "max_length_b": 3, "max_length_a": 0.5},
    ],
    ids=str,
)
def test_another_value_compiles_nothing_and_counts(values):
    search(numbers_of(CFG))
    before = compiled._cache_size()
    cfg = dataclasses.replace(CFG, **values)
    found = toy_search(TABLES, cfg, request(MAX_LENGTHS), limit=LIMIT)
    assert compiled._cache_size() == before
    for b, longest in enumerate(MAX_LENGTHS):
        least = min(cfg.min_length, longest)
        expected = beam_search(TABLES[b], dataclasses.replace(cfg, min_length=least), longest, patience=True)
        np.testing.assert_allclose(found.scores[b], [e.score for e in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("values", [{"diverse_strength": 0.1}, {"top_p": 0.3}, {"lm_weight": 0.7}], ids=str)
def test_numbers_of_the_other_strategies_are_not_static_either(values):
    own = {"diverse_strength": {"diverse_groups": 3}, "top_p": {"sampling": True, "top_p": 0.8}}
    cfg = dataclasses.replace(CFG, **own.get(next(iter(values)), {"lm_weight": 0.2}))
    other = dataclasses.replace(cfg, **values)
    assert numbers_of(cfg) != numbers_of(other)
    assert structure_of(cfg) == structure_of(other)
    assert hash(structure_of(cfg)) == hash(structure_of(other))


@pytest.mark.parametrize("name", ["length_penalty", "temperature"])
def test_a_map_over_values_gives_what_separate_searches_give(name):
    values = jnp.asarray(VALUES[name], jnp.float32)
    mapped = jax.vmap(lambda value: search(with_value(name, value)))(values)
    for i, value in enumerate(values):
        alone = search(with_value(name, value))
        np.testing.assert_array_equal(mapped.tokens[i], alone.tokens)
        np.testing.assert_array_equal(mapped.lengths[i], alone.lengths)
        np.testing.assert_allclose(mapped.scores[i], alone.scores, rtol=1e-6)
    assert len({np.asarray(tokens).tobytes() for tokens in mapped.tokens}) > 1, "the values are to make a difference"


NUMBERS = ["length_penalty", "temperature", "coverage_penalty", "unk_penalty"]


@pytest.mark.parametrize("name", drills_but(NUMBERS, kept=["temperature"]))
def test_gradients_of_the_best_scores_equal_finite_differences(name):
    value, step = getattr(CFG, name), 1e-2

    def best(value):
        return jnp.sum(search(with_value(name, value), chunk=LIMIT).scores[:, 0])

    ahead, behind = (search(with_value(name, value + sign * step)) for sign in (1, -1))
    np.testing.assert_array_equal(ahead.tokens[:, 0], behind.tokens[:, 0])  # else the difference is no derivative
    difference = np.sum(np.asarray(ahead.scores - behind.scores, np.float64)[:, 0]) / (2 * step)
    slope = jax.grad(best)(jnp.float32(value))
    np.testing.assert_allclose(slope, difference, rtol=5e-3, atol=1e-4)
    np.testing.assert_allclose(jax.jvp(best, (jnp.float32(value),), (jnp.float32(1),))[1], slope, rtol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
def test_symbols_that_a_step_rules_out_leave_a_derivative_to_the_others(members):
    """A step may give log-probabilities, of which some are -inf: the slope was NaN."""
    logits = np.random.default_rng(3).normal(size=(members, 1, 520)).astype(np.float32)
    logits[:, 0, 5:] = np.where(np.arange(515) % 7, logits[:, 0, 5:], -np.inf)

    @jax.jit
    def best(temperature):
        numbers = with_value("temperature", temperature)
        log_probs = rules.log_probabilities(jnp.asarray(logits), numbers)
        if members > 1:
            return lax.top_k(log_probs, 3)[0].sum()
        free = rules.prices(numbers, jnp.int32(1), jnp.full(1, 9, jnp.int32))
        zero = jnp.zeros((1, 1), jnp.float32)
        found, _, _ = top_of_logits(jnp.asarray(logits), zero, free, 3, temperature=temperature)
        return found.sum() + lax.top_k(log_probs, 3)[0].sum()

    one, step = jnp.float32(1), 1e-2
    slope = jax.grad(best)(one)
    np.testing.assert_allclose(slope, (best(one + step) - best(one - step)) / (2 * step), rtol=1e-2)
    np.testing.assert_allclose(jax.jvp(best, (one,), (one,))[1], slope, rtol=1e-5)


def test_forward_derivatives_need_no_fixed_number_of_steps():
    def slopes(chunk):
        one = jnp.float32(1)
        return jax.jvp(lambda t: search(with_value("temperature", t), chunk).scores, (one,), (one,))[1]

    np.testing.assert_allclose(slopes(1), slopes(LIMIT), rtol=1e-6)


def test_a_request_may_be_traced():
    """Lengths, prefixes and phrases that a compiled program is given."""
    prefixes, phrases = jnp.asarray([[4], [1], [5]]), jnp.asarray([[[6, 1]], [[5, 4]], [[1, 1]]])

    @jax.jit
    def traced(lengths, prefixes, phrases):
        return request(lengths, prefixes, phrases)

    made = traced(jnp.asarray(MAX_LENGTHS), prefixes, phrases)
    listed = request(MAX_LENGTHS, [[4], [], [5]], [[[6]], [[5, 4]], [[]]])
    np.testing.assert_array_equal(made.max_lengths, listed.max_lengths)
    np.testing.assert_array_equal(made.prefixes, listed.prefixes[:, :1])
    np.testing.assert_array_equal(made.phrases, listed.phrases)
    with pytest.raises(ValueError, match=r"phrases has shape \(3, 2\): expected 3 axes with one row per sentence, 3$"):
        request(MAX_LENGTHS, None, jnp.zeros((3, 2), jnp.int32))
    with pytest.raises(ValueError, match="got 1 prefixes for 3 sentences"):
        request(MAX_LENGTHS, [[4]])
    with pytest.raises(ValueError, match=r"^max_lengths is 3: expected one length per sentence$"):
        request(3)
    with pytest.raises(TypeError, match=r"^max_lengths has dtype float32: expected integers"):
        request(jnp.ones(3))
    with pytest.raises(ValueError, match=r"^key has shape \(2,\): pass a single key, or one for each of 3 sentences$"):
        request(MAX_LENGTHS, keys=jax.random.split(jax.random.key(0), 2))


@pytest.mark.parametrize(
    ("cfg", "values", "message"),
    [
        (
            {},
            {"coverage_penalty": 2.0},
            "coverage_penalty is 2.0, but this search does not use it: set a coverage_penalty above 0 in `search`",
        ),
        ({"sampling": True}, {"top_p": 1e-6}, "top_p is 1e-06, .*: set sampling=True and a top_p below 1 in `search`"),
        ({}, {"lm_weight": jnp.float32(0.5)}, "lm_weight is 0.5, .*: set an lm_weight above 0 in `search`"),
        ({}, {"diverse_strength": 1.0}, "diverse_strength is 1.0, .*: set diverse_groups above 1 in `search`"),
        ({"normalize": False}, {"length_penalty": 2.0}, "length_penalty is 2.0, .*: set normalize=True in `search`"),
    ],
)
def test_a_number_that_the_search_leaves_unread_is_refused(cfg, values, message):
    cfg = SearchConfig(**cfg)
    numbers = numbers_of(cfg).replace(**values)
    more = {"memory": (), "cache": jnp.zeros(5), "request": request([3]), "limit": 4}
    with pytest.raises(ValueError, match=f"^numbers.{message}"):
        configured_search(lambda _, cache, last: (jnp.zeros((len(last), V)), cache), cfg, numbers=numbers, **more)
    jax.eval_shape(lambda numbers: checked_numbers(numbers, cfg), numbers)  # what is traced has no value
    checked_numbers(numbers_of(cfg), cfg)


def test_numbers_of_another_search_are_taken_also_inside_jit():
    """At the bounds too, which 32 bits round; arrays that a jitted function closes over are not traced."""
    numbers = numbers_of(SearchConfig(temperature=1e-6, unk_penalty=-0.1))
    for given in (numbers, jax.tree.map(jnp.asarray, numbers)):
        found = jax.jit(lambda: checked_numbers(given, SearchConfig()))()  # noqa: B023
        assert (found.temperature, found.unk_penalty) == (np.float32(1e-6), np.float32(-0.1))
    with pytest.raises(TypeError, match=r"temperature is .*: expected a number"):
        checked_numbers(numbers.replace(temperature=2 + 1j), SearchConfig())


@pytest.mark.parametrize(
    ("cfg", "values", "message"),
    [
        ({}, {"temperature": 0.0}, "temperature is 0.0: logits are divided by it; use a value above 0"),
        ({}, {"temperature": jnp.float32(-1)}, "temperature is -1.0: "),
        ({}, {"length_penalty": np.nan}, "length_penalty is nan: use a finite number"),
        ({}, {"min_length": -1}, "min_length is -1: "),
        ({}, {"min_length": np.int64(2**40)}, "min_length is 1099511627776: "),
        ({"lm_weight": 0.3}, {"lm_weight": -0.5}, "lm_weight is -0.5: expected a weight"),
        ({"coverage_penalty": 0.3}, {"coverage_penalty": -0.5}, "coverage_penalty is -0.5: use a value between 0 and"),
        ({"sampling": True, "top_p": 0.5}, {"top_p": 0.0}, "top_p is 0.0: expected a probability"),
    ],
)
def test_a_number_that_no_search_can_use_is_refused(cfg, values, message):
    """They gave results with scores of -inf, or ended a search by the exact rule too early."""
    cfg = SearchConfig(**cfg)
    numbers = numbers_of(cfg).replace(**values)
    with pytest.raises(ValueError, match=f"^numbers.{message}"):
        checked_numbers(numbers, cfg)
    jax.eval_shape(lambda numbers: checked_numbers(numbers, cfg), numbers)  # what is traced has no value


def test_a_strategy_of_ones_own_may_read_the_numbers_of_others():
    numbers = numbers_of(CFG).replace(diverse_strength=1.0, top_p=0.5)
    checked_numbers(numbers, CFG, own_strategy=True)
    with pytest.raises(ValueError, match=r"^numbers\.diverse_strength is"):
        checked_numbers(numbers, CFG)


@pytest.mark.parametrize("values", [np.zeros(3), jnp.zeros((1, 1))], ids=["numpy", "jax"])
def test_a_number_with_axes_is_refused(values):
    """It was broadcast over hypotheses, sentences or words."""
    shape = re.escape(str(values.shape))
    with pytest.raises(ValueError, match=rf"^numbers\.temperature has shape {shape}: pass one number, or map with jax"):
        checked_numbers(numbers_of(CFG).replace(temperature=values), CFG)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_length": 2.7}, "^numbers.min_length is 2.7 of float64: expected an integer$"),
        ({"min_length": jnp.float32(2)}, "^numbers.min_length is 2.0 of float32: expected an integer$"),
        ({"temperature": None}, "^numbers.temperature is None of object: expected a number$"),
    ],
    ids=str,
)
def test_what_is_no_number_of_its_kind_is_refused(values, message):
    with pytest.raises(TypeError, match=message):
        checked_numbers(numbers_of(CFG).replace(**values), CFG)


def test_numbers_in_64_bits_are_searched_in_32():
    with jax.enable_x64(True):
        wide = numbers_of(CFG).replace(temperature=jnp.asarray(2.0), unk_penalty=np.float64(0.5), min_length=1)
        found = checked_numbers(wide, CFG)
        dtypes = jax.tree.map(lambda x: x.dtype, found)
        assert dtypes == jax.tree.map(lambda x: x.dtype, numbers_of(CFG))
        assert (found.temperature, found.unk_penalty, found.min_length) == (2.0, 0.5, 1)


def test_numbers_of_another_type_are_refused():
    with pytest.raises(TypeError, match=r"^numbers is a dict: expected what `numbers_of` returns$"):
        checked_numbers({"temperature": 2.0}, CFG)


def test_scores_of_given_targets_refuse_an_unread_number_too():
    cfg, ids = config(), np.array([[5, 2]], np.int32)
    numbers = numbers_of(SearchConfig()).replace(coverage_penalty=2.0)
    with pytest.raises(ValueError, match=r"^numbers.coverage_penalty is 2.0, but this search does not use it: set"):
        force(parameters(cfg), cfg, SearchConfig(), ids, ids, numbers=numbers)


@pytest.mark.parametrize(
    ("step", "limit", "message"),
    [
        (
            lambda _, cache, last: (last, cache),
            6.0,
            "^limit is 6.0: expected a Python integer, which is static",
        ),
        (
            lambda _, cache, last: (last, cache, 1),
            6,
            r"^the step returns 3 values: expected two values, \(logits \[N, V\]",
        ),
    ],
)
def test_what_no_search_can_run_with_is_one_sentence(step, limit, message):
    more = {"memory": (), "cache": jnp.zeros(3), "request": request([3])}
    with pytest.raises((TypeError, ValueError), match=message):
        configured_search(step, SearchConfig(beam_size=3), limit=limit, **more)


def test_a_cache_of_numpy_in_64_bits_is_taken():
    step = lambda _, cache, last: (jnp.zeros((len(last), V)), cache)  # noqa: E731
    more = {"memory": (), "request": request([3]), "limit": 4}
    found = jax.eval_shape(lambda: configured_search(step, SearchConfig(beam_size=3), cache=np.zeros(3), **more))
    assert found.tokens.shape == (1, 3, 4)
