"""Recipes of docs/library.md that are no scripts, as they stand on the page."""

import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sacrebleu

import convs2s_jax as convs2s
from tests.helpers import close
from tests.workdirs import unpacked

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
CFG = convs2s.ModelConfig(
    embedding_dim=8,
    encoder=convs2s.ConvEncoderConfig(layers=[(8, 3)], max_positions=16),
    decoder=convs2s.ConvDecoderConfig(layers=[(8, 3)], out_dim=8, max_positions=16),
)
BATCH = convs2s.Batch(src=jnp.array([[5, 6, 7, 2]]), tgt=jnp.array([[8, 9, 2]]))


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """Optimisers of optax rely on the standard promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def run(title, **names):
    """The names that a recipe defines, given those that it uses."""
    code = re.search(rf"^\*\*{title}\.\*\*.*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    names |= {"jax": jax, "jnp": jnp, "optax": optax, "convs2s": convs2s}
    exec(compile(code, title, "exec"), names)
    return names


@jax.jit
def init(key):
    return convs2s.init(key, CFG, source_vocabulary=1000, target_vocabulary=1000)


@jax.jit
def init_split(key):
    return convs2s.split_kernels(init(key), CFG)


def test_frozen_parameters_stay_and_all_others_change():
    optimizer = run("Frozen parameters")["optimizer"]
    trained = init_split(jax.random.key(0))
    step = convs2s.compile_steps(lambda params, batch, key: convs2s.loss(params, CFG, batch, key=key), optimizer)
    state, _ = convs2s.update(step, convs2s.init_state(trained, optimizer), [BATCH], rate=None, key=None)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), trained, state.params)
    assert not any(jax.tree.leaves(changed.encoder))
    assert all(jax.tree.leaves(changed.decoder))


def test_an_average_follows_the_kernels_that_layers_use():
    optimizer = optax.adam(0.1)
    step = convs2s.compile_steps(lambda params, batch, key: convs2s.loss(params, CFG, batch, key=key), optimizer)
    state = convs2s.init_state(init_split(jax.random.key(0)), optimizer)
    names = run("A moving average of the parameters", state=state)
    average, doubles = names["average"], [jax.tree.map(np.float64, convs2s.merge_kernels(state.params))]
    for decay in (0.5, 0.75):
        state, _ = convs2s.update(step, state, [BATCH], rate=None, key=None)
        doubles.append(jax.tree.map(np.float64, convs2s.merge_kernels(state.params)))
        average = names["follow"](average, state.params, decay)
    close(average, jax.tree.map(lambda a, b, c: 0.75 * (a + b) / 2 + 0.25 * c, *doubles))
    found = names["follow"](names["average"], state.params)
    close(found, jax.tree.map(lambda a, c: 0.999 * a + 0.001 * c, doubles[0], doubles[2]))


def test_least_risk_is_the_sample_nearest_to_all(tmp_path):
    translator, lines = convs2s.load(unpacked("convs2s", tmp_path)), ["5 kilowatts", "Norway and Spain"]
    names = run("Minimum Bayes risk decoding", translator=translator, lines=lines)
    drawn = [[hypothesis.text for hypothesis in result.hypotheses] for result in names["found"]]
    for hypothesis in (hypothesis for result in names["found"] for hypothesis in result.hypotheses):
        assert len(hypothesis.sampler_log_probs) == len(hypothesis.tokens)
        assert sum(hypothesis.sampler_log_probs) > sum(hypothesis.token_scores)  # some symbols are never drawn
    for texts, chosen in zip(drawn, names["translations"], strict=True):
        assert len(set(texts)) > 8
        chrf = sacrebleu.CHRF()
        gains = [[chrf.sentence_score(text, [other]).score for other in texts] for text in texts]
        assert chosen == texts[np.argmax(np.mean(gains, axis=1))]
    texts = ("a dog", "the cat sat", "some bird", "the cat sat")
    result = SimpleNamespace(hypotheses=[SimpleNamespace(text=text) for text in texts])
    assert names["least_risk"](result) == "the cat sat"


def test_the_strategy_is_plain_beam_search():
    names = run("A custom search strategy")
    strategy, table = names["Strategy"](names["choose"]), jax.random.normal(jax.random.key(1), (9, 9))

    def search(**more):
        return jax.jit(
            lambda: convs2s.beam_search(
                lambda _, cache, last: (2 * table[last], cache),
                convs2s.SearchConfig(beam_size=3),
                memory=(),
                cache=(),
                request=convs2s.request(max_lengths=[6, 4]),
                limit=7,
                **more,
            )
        )()

    jax.tree.map(np.testing.assert_array_equal, search(strategy=strategy), search())
