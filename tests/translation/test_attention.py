"""The attention of each layer for lines of text, its pictures, and the command that draws them."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.config import build, override, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.models import encoder_decoder
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.translation import attention, trained
from convs2s_jax.translation.attention import LayerAttention, layer_attention
from convs2s_jax.translation.lines import TextRequest, translate
from convs2s_jax.translation.translator import from_trained
from tests.processes import called

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


def drawing(*arguments, text=""):
    return called(lambda given: COMMANDS["attention"].run(["attention", *given]), *arguments, text=text)


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


def made_up(source, target, count=2):
    source = tuple(source)
    weights = np.random.default_rng(0).dirichlet(np.ones(len(source)), (count, len(target)))
    names = tuple(f"layer {i + 1}" for i in range(count))
    return LayerAttention(tuple(source), tuple(target), weights, weights.mean(axis=0), names)


def test_a_picture_has_a_panel_for_each_layer_and_the_mean_with_all_tokens():
    one = made_up(["\u2581a", "b", "</s>"], ["x", "</s>"])
    *drawn, _ = attention.figure_of(attention.panels(one), one).axes
    assert [axes.get_xlabel() for axes in drawn] == ["layer 1", "layer 2", "mean"]
    for axes, weights in zip(drawn, [*one.layers, one.mean], strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), weights)
        assert axes.images[0].norm.vmax == one.layers.max()
        assert [text.get_text() for text in axes.get_xticklabels()] == ["\u00b7a", "b", "</s>"]
    assert [text.get_text() for text in drawn[0].get_yticklabels()] == ["x", "</s>"]
    assert list(attention.panels(one, ["2", "mean", "layer 1"])) == ["layer 2", "mean", "layer 1"]
    with pytest.raises(UserError, match=r"^--layers=3: no such attention layer; use all, mean, 1, 2"):
        attention.panels(one, ["3"])


def test_the_command_draws_a_picture_for_each_line(trained, tmp_path):
    done = drawing(f"--workdir={trained}", f"--output={tmp_path}/new/out", "--formats=svg", text="Norway\n\n5 km\n")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["0001.svg", "0003.svg"]
    assert "standard input, line 2 is empty: no picture is drawn" in done.stderr
    assert done.stdout == f"written: 2 pictures as svg in {tmp_path}/new/out\n"


@pytest.mark.parametrize(
    ("arguments", "text", "sentence"),
    [
        (["--workdir={run}"], "a\n", "--output is missing"),
        (["--workdir={tmp}/no", "--output={tmp}/out"], "a\n", "there is no such folder"),
        (["--workdir={run}", "--output={tmp}/out"], "\n \n", "standard input has no line with text"),
        (["--workdir={run}", "--output={tmp}/file"], "a\n", "{tmp}/file cannot be used: File exists"),
        (["--workdir={run}", "--output={tmp}/out", "--formats=png,jpg"], "a\n", "--formats=jpg: choose from png, svg"),
        (
            ["--workdir={run}", "--output={tmp}/out", "--config.modle.x=1"],
            "a\n",
            "--config.modle.x: a picture uses the configuration in --workdir; remove this flag",
        ),
        (["--workdir={run}", "--output={tmp}/out", "--layers=2"], "a\n", "--layers=2: no such attention layer; use"),
        (["--workdir={run}", "--output={tmp}/out", "--targets={tmp}/file"], "a\nb\n", "{tmp}/file has 1: each line"),
        (["--workdir={lm}", "--output={tmp}/out"], "a\n", "a language model reads no source"),
        (["--workdir={labels}", "--output={tmp}/out"], "a\n", "model.kind is 'classifier'"),
        (["--workdir={cho}", "--output={tmp}/out"], "a\n", "reads a summary of the source and has no attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_one_sentence_and_leave_nothing(trained, tmp_path, arguments, text, sentence):
    (tmp_path / "file").write_text("x\n")
    places = {"run": trained, "tmp": tmp_path, **others(trained, tmp_path)}
    done = drawing(*(argument.format(**places) for argument in arguments), text=text)
    assert done.returncode == 2, done.stderr
    assert sentence.format(**places) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def others(workdir, folder):
    """Workdirs with the configuration of models that have no attention to show."""
    values = to_dict(run_folder.load_config(workdir))
    lm = override(override(values, "model.encoder", "{'kind': 'none'}"), "model.decoder.attention_layers", "[]")
    recurrent = "{'kind': 'recurrent', 'attention': 'none'}"
    changed = {
        "lm": override(lm, "data.src", ""),
        "labels": override(override(values, "model", "{'kind': 'classifier'}"), "data.corpus", "cldr_kinds"),
        "cho": override(values, "model.decoder", recurrent),
    }
    for name, content in changed.items():
        (folder / name).mkdir()
        run_folder.write_config(folder / name, build(Config, content))
    return {name: folder / name for name in changed}
