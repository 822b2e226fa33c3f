"""A language model from training to texts, scores and fusion."""

import math
import os

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation.jobs import decoding
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.translator import load
from tests import tiny

MODEL = {
    "embedding_dim": 8,
    "encoder": {"kind": "none"},
    "decoder": {"layers": [[8, 3]], "out_dim": 8, "max_positions": 64, "attention_layers": []},
}


def config(**more):
    return tiny.config(data__src="", model=MODEL, search={"max_length_a": 0.0, "max_length_b": 12}, **more)


@pytest.fixture(scope="session")
def lm(trained, tmp_path_factory):
    """Of the vocabularies of the translation model."""
    workdir = tmp_path_factory.mktemp("lm") / "run"
    train(config(training__max_steps=4, data__vocabulary__dir=str(trained / "vocab")), workdir)
    return workdir


def decode(tmp_path, workdir, **options):
    """The lines written, and what was told."""
    told = []
    output = tmp_path / "out"
    decoding.decode(Options(workdir=(str(workdir),), output=str(output), **options), tell=told.append)
    return output.read_text().splitlines(), told


def written(tmp_path, name, *lines):
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.mark.drill
def test_perplexity_of_the_validation_is_that_of_the_scores_of_its_lines(lm, tmp_path):
    """The evaluation of training and decode.py --score are two ways through the model."""
    last = [m for m in tiny.metrics(lm) if m["split"] == "valid"][-1]
    lines = parallel_text.read(load(lm, tell=print).cfg.data, "valid")
    assert set(lines.src) == {""}
    scored, _ = decode(tmp_path, lm, score=written(tmp_path, "valid", *lines.tgt))
    scores = [float(x) for line in scored for x in line.split("\t")[1].split()]
    assert last["perplexity"] == pytest.approx(math.exp(-np.mean(scores)), rel=1e-4)


@pytest.mark.drill
def test_fused_scores_are_sums_and_weight_0_changes_nothing(trained, lm, tmp_path):
    source = written(tmp_path, "source", "5 kilowatts", "Norway and Spain")
    alone, _ = decode(tmp_path, trained, input=source)
    assert decode(tmp_path, trained, input=source, lm=str(lm), search={"lm_weight": 0.0})[0] == alone
    given = written(tmp_path, "given", "5 Kilowatt", "Norwegen und Spanien")

    def scores(workdir, **options):
        lines, _ = decode(tmp_path, workdir, score=given, **options)
        return [np.array([float(x) for x in line.split("\t")[1].split()]) for line in lines]

    model, fused = scores(trained, input=source), scores(trained, input=source, lm=str(lm), search={"lm_weight": 0.7})
    for a, b, c in zip(model, scores(lm), fused, strict=True):
        np.testing.assert_allclose(c, a + 0.7 * b, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "source"}, r"source, line 2 is not empty: a language model reads no source"),
        ({"split": "test"}, r"^--split=test with a language model: .*; score texts with --score=FILE$"),
        ({"interactive": True}, r"^--interactive with a language model: --workdir=.* reads no source; use --sampling"),
    ],
    ids=str,
)
def test_a_source_is_refused(lm, tmp_path, options, message):
    source = written(tmp_path, "source", "", "5 kilowatts")
    options = options | ({"input": source} if "input" in options else {})
    output = {} if "interactive" in options else {"output": f"{tmp_path}/out"}
    with pytest.raises(UserError, match=message):
        decoding.decode(Options(workdir=(str(lm),), **output, **options), tell=print)


def test_models_that_do_not_go_together_are_refused(trained, lm, other, tmp_path):
    def refused(message, workdir, **options):
        with pytest.raises(UserError, match=message):
            decode(tmp_path, workdir, input=written(tmp_path, "source", ""), **options)

    weight = {"lm_weight": 0.5}
    refused("^--lm=/no/such: there is no such folder", trained, lm="/no/such", search={"lm_weight": 0.0})
    refused(
        "^--lm: .*run reads a source; use the workdir of a single language model", trained, lm=str(other), search=weight
    )
    refused("^--lm: .*run is itself a language model", lm, lm=str(lm), search=weight)
    own = tmp_path / "own"
    train(config(training__max_steps=1, data__vocabulary__tgt_size=140), own)
    refused(
        "different target vocabularies; train the language model with data.vocabulary.dir=",
        trained,
        lm=str(own),
        search=weight,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data__src": ""}, r"^config\.data\.src is not set: .* or set model\.encoder\.kind to 'none'"),
        (
            {"model": MODEL},
            r"^config\.data\.src is 'en', but model\.encoder\.kind 'none' reads no source: leave it out",
        ),
        (
            {"model": MODEL, "data__src": "", "training__validate_bleu": True},
            r"^config\.training\.validate_bleu is True, but a language model does not translate: set it to False",
        ),
        (
            {"model": MODEL, "data__corpus": "cldr_kinds"},
            r"^config\.data\.corpus is 'cldr_kinds', a labelled corpus for model\.kind 'classifier'",
        ),
        ({"search__lm_weight": 0.1}, r"^config\.search\.lm_weight is 0\.1: it only works with convs2s decode --lm"),
        (
            {"model__decoder__attention_layers": []},
            r"^config\.model\.decoder does not read the source, but there is an ",
        ),
        (
            {"model__encoder": {"kind": "none"}},
            r"^config\.model\.encoder\.kind is 'none', but the decoder reads a sour",
        ),
    ],
)
def test_half_a_language_model_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        tiny.config(**values)


def test_a_corpus_of_one_side_is_read_from_files_without_the_other(tmp_path):
    for split, lines in {"train": ["ein Hund", "zwei"], "valid": ["drei"]}.items():
        written(tmp_path, f"{split}.de", *lines)
    data = config(data__corpus="files", data__tgt="de", data__dir=str(tmp_path)).data
    assert parallel_text.read(data, "train").tgt == ["ein Hund", "zwei"]
    assert list(parallel_text.read(data, "train").src) == ["", ""]
    listed = config(data__corpus="files", data__files={"train": [["", str(tmp_path / "valid.de")]]}).data
    assert parallel_text.read(listed, "train").tgt == ["drei"]
    with pytest.raises(UserError, match=r"^there is no .*test\.de, plain or compressed"):
        parallel_text.read(data, "test")


def test_texts_to_score_may_come_through_a_pipe(lm, tmp_path):
    """They were read twice, and the second time there was nothing."""
    read, write = os.pipe()
    os.write(write, b"5 Kilowatt\nNorwegen\n")
    os.close(write)
    try:
        found, _ = decode(tmp_path, lm, score=f"/dev/fd/{read}")
    finally:
        os.close(read)
    assert len(found) == 2
