"""Labels of lines through the whole of decode.py, short of its flags."""

import json

import numpy as np
import pytest

import convs2s_jax
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.classifier import logits
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation import trained
from convs2s_jax.translation.classifier import Classifier, from_trained
from convs2s_jax.translation.jobs import decoding
from convs2s_jax.translation.jobs.options import Options
from tests import tiny

LINES = ["5 kilowatts", "", "Norway and Spain", "1 2 3 4 5 6 " * 30, "at 12:30", "Norway", "Norway"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled") / "run"
    options = {
        "data__corpus": "cldr_kinds",
        "data__tgt": "",
        "model": {"kind": "classifier", "embedding_dim": 8, "features": {"maps": 4, "max_length": 40}},
        "training__max_steps": 2,
        "training__validate_bleu": True,
        "training__save_every": 1,
    }
    train(tiny.config(**options), folder)
    return folder


class Desk:
    def __init__(self, folder, workdir):
        self.folder, self.workdir, self.told = folder, workdir, []
        (folder / "in").write_text("".join(f"{line}\n" for line in LINES))

    def decode(self, output="out", **options):
        self.told = []
        given = {"workdir": (str(self.workdir),), "output": str(self.folder / output), **options}
        if "split" not in given:
            given = {"input": str(self.folder / "in"), **given}
        decoding.decode(Options(**given), tell=self.told.append)
        return (self.folder / output).read_text()


@pytest.fixture
def desk(tmp_path, workdir):
    return Desk(tmp_path, workdir)


def test_a_classifier_in_python_has_the_labels_of_decoding(desk, workdir, trained):
    texts = desk.decode().splitlines()
    classifier = convs2s_jax.load_classifier(workdir, tell=print)
    found = classifier.label(f"{line}\n" for line in LINES)
    assert [f"{one.best.text}\t{one.best.probability:.4f}" for one in found] == texts
    assert [one.source for one in found] == LINES
    assert [sorted(choice.text for choice in one.labels) for one in found] == [sorted(classifier.labels)] * len(LINES)
    assert classifier.label([]) == []
    with pytest.raises(TypeError, match="expected a list of strings, got '5 km': pass a list"):
        classifier.label("5 km")
    with pytest.raises(
        UserError, match=r"^workdir=.*: model.kind is 'encoder_decoder', which does not predict labels;"
    ):
        convs2s_jax.load_classifier(trained)
    with pytest.raises(UserError, match=r"^workdirs=.*: model.kind is 'classifier', which does not translate; use a "):
        convs2s_jax.load(workdir)


@pytest.mark.drill
def test_json_has_all_labels_and_they_are_the_softmax_of_the_model(desk, workdir):
    records = [json.loads(line) for line in desk.decode(format="json", batch_size=2).splitlines()]
    found = trained.restore(workdir, (), None, print)
    names = from_trained(found).labels
    assert len(names) == 18
    for i, record in enumerate(records):
        assert (record["line"], record["source"]) == (i, LINES[i])
        values = [item["probability"] for item in record["labels"]]
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(1, abs=1e-4)
        [ids] = found.vocabularies.src.encode([LINES[i]])
        src = np.array([[*ids[:39], 2]], np.int32)
        scores = np.asarray(logits(found.params, found.cfg.model, src), np.float64)[0]
        expected = dict(zip(names, np.exp(scores) / np.exp(scores).sum(), strict=True))
        assert {item["label"]: item["probability"] for item in record["labels"]} == pytest.approx(expected, rel=1e-4)


def test_windows_and_resuming_change_nothing(desk, monkeypatch):
    whole = desk.decode(format="json", batch_size=1)
    assert desk.decode(output="windows", format="json", batch_size=1, window=2) == whole
    more = {"output": "part", "format": "json", "batch_size": 1, "window": 3}
    calls, real = [], Classifier.label

    def interrupted(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(Classifier, "label", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.decode(**more)
    with (desk.folder / "part").open("a") as file:
        file.write(whole[-5:-2])  # a line that was torn
    assert desk.decode(**more, resume=True) == whole
    with pytest.raises(UserError, match=r"^.*part is the output of another command: --format was "):
        desk.decode(**{**more, "format": "text"}, resume=True)
    (desk.folder / "in").write_text("".join(f"{line}\n" for line in [*LINES[:-1], "other"]))
    with pytest.raises(UserError, match=r"^.*part is the output of another command: the input has changed; "):
        desk.decode(**more, resume=True)


def best_of(workdir):
    [line] = [line for line in tiny.metrics(workdir) if line["split"] == "test"]
    return line["step"]


def test_a_split_is_scored_like_the_final_test(desk, workdir):
    out = desk.decode(split="test", show=1, checkpoint=(best_of(workdir),))
    [right] = [line for line in tiny.metrics(workdir) if line["split"] == "test"]
    told = "\n".join(desk.told)
    assert len(out.splitlines()) == 8
    assert "  source      " in told
    assert "  reference   " in told
    assert f"accuracy    {right['accuracy']:6.2f}  % of 8 texts" in told
    assert f"macro F1    {right['macro_f1']:6.2f}" in told
    assert all(f"F1          {right[name]:6.2f}  {name[3:]}" in told for name in right if name.startswith("f1/"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"search": {"beam_size": 3}},
            r"^--beam_size: for translations only, but --workdir=.*run is a classifier; leave",
        ),
        ({"prefix": "x"}, "^--prefix: for translations only"),
        ({"score": "x"}, "^--score: for translations only"),
        ({"replace_unk": True}, "^--replace_unk: for translations only"),
        ({"format": "fairseq"}, "^--format=fairseq is for translations only; for labels, use text or json$"),
        ({"metrics": ("exact",), "reference": ("a",)}, "^--metrics: for translations only"),
        ({"reference": ("a", "b")}, "^--reference lists 2, but a classifier uses only one; leave out the others$"),
        ({"workdir": 2}, "^--workdir lists 2, but a classifier uses only one; leave out the others$"),
        ({"format": "json", "nbest": 2}, "^--nbest: for translations only"),
    ],
    ids=str,
)
def test_what_is_for_translations_is_refused(desk, workdir, options, message):
    if "workdir" in options:
        options = {"workdir": (str(workdir),) * options["workdir"]}
    with pytest.raises(UserError, match=message):
        desk.decode(**options)
