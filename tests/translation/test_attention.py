"""The attention of each layer for lines of text, and the example that draws it."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build, override, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.models import encoder_decoder
from convs2s_jax.training.run.config import Config
from convs2s_jax.translation import trained
from convs2s_jax.translation.attention import layer_attention
from convs2s_jax.translation.lines import TextRequest, translate
from convs2s_jax.translation.translator import from_trained
from tests.examples.test_examples import example

TEXTS = ["5 kilowatts", "Norway and Spain at 12:30", ""]


@pytest.fixture(scope="module")
def deep(trained):
    """The run of the other tests with three fresh layers, of which two attend."""
    found = trained_run(trained)
    decoder = {"layers": [[8, 3]] * 3, "attention_layers": [1, 3], "out_dim": 8, "max_positions": 64}
    cfg = build(Config, override(to_dict(found.cfg), "model.decoder", repr(decoder)))
    sizes = {"source_vocabulary": found.vocabularies.src.size, "target_vocabulary": found.vocabularies.tgt.size}
    params = jax.jit(partial(encoder_decoder.init, cfg=cfg.translator, **sizes))(jax.random.key(1))
    return dataclasses.replace(found, cfg=cfg, params=jax.tree.map(lambda x: 2 * x, params))


def trained_run(workdir):
    return trained.restore(workdir, (), None, print)


@pytest.mark.drill
def test_layers_are_those_of_the_translation_that_the_search_finds(deep):
    """Their mean is what the search itself returns; both sides have their end symbols."""
    made = layer_attention(deep, TEXTS)
    for line, one, result in zip(
        TEXTS, made, translate(from_trained(deep), TextRequest(deep.cfg.search, TEXTS)), strict=True
    ):
        assert one.names == ("layer 1", "layer 3")
        assert one.source_tokens == (*result.source_tokens, "</s>")
        assert one.layers.shape == (2, len(one.target_tokens), len(one.source_tokens))
        if line:
            assert one.target_tokens == result.best.tokens
            np.testing.assert_allclose(one.layers.mean(axis=0), result.best.attention, rtol=0, atol=1e-4)
            np.testing.assert_array_equal(one.mean, one.layers.mean(axis=0))
    [given] = layer_attention(deep, TEXTS[1:2], ["Norwegen 5"])
    assert "".join(given.target_tokens[:-1]).replace("\u2581", " ").strip() == "Norwegen 5"
    assert layer_attention(deep, ["1 2 " * 60], [""])[0].cut > 0
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        layer_attention(deep, TEXTS[:2], ["a"])
    with pytest.raises(ValueError, match=r"a target has .* but the model has positions for only 62"):
        layer_attention(deep, TEXTS[:1], ["1 2 " * 60])


def test_the_example_draws_a_picture_for_each_line_and_a_panel_for_each_layer(deep, trained, tmp_path):
    plots = example("attention_plots")
    plots.main(trained, tmp_path / "out", ["Norway\n", "5 km\n"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0001.png", "0002.png"]
    [one] = layer_attention(deep, TEXTS[:1], ["5"])
    *drawn, _ = plots.picture(one).axes
    assert [axes.get_xlabel() for axes in drawn] == ["layer 1", "layer 3", "mean"]
    for axes, weights in zip(drawn, [*one.layers, one.mean], strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), weights)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.encoder": "{'kind': 'none'}", "model.decoder.attention_layers": "[]", "data.src": ""}, "a language"),
        ({"model": "{'kind': 'classifier'}", "data.corpus": "cldr_kinds"}, "model.kind is 'classifier'"),
        ({"model.decoder": "{'kind': 'recurrent', 'attention': 'none'}"}, "model.decoder.attention is 'none': this"),
    ],
    ids=str,
)
def test_a_model_without_attention_is_refused(trained, changes, sentence):
    found = trained_run(trained)
    values = to_dict(found.cfg)
    for path, value in changes.items():
        values = override(values, path, value)
    with pytest.raises(UserError, match=sentence):
        layer_attention(dataclasses.replace(found, cfg=build(Config, values)), TEXTS)
