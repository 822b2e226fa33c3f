"""Classification in the one training loop: its loss, its updates on any mesh, whole runs."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.metrics import labels
from convs2s_jax.models.classifier import ClassifierConfig, logits
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.tasks import classification_task
from convs2s_jax.training.step import Batch
from tests import tiny

VOCABULARIES = {"source": 24, "target": 4 + 6}
KEY = jax.random.key(7)
MODELS = {
    "kim": {"kind": "kim", "widths": (2, 3), "maps": 8},
    "pooled": {"kind": "pooled", "encoder": {"kind": "conv", "layers": [(16, 3), (8, 3)], "max_positions": 32}},
}


def model(name, **values):
    return build(ClassifierConfig, {"embedding_dim": 8, "dropout": 0.3, "features": MODELS[name], **values})


def batch(rows=8, width=7, real=6, seed=0):
    rng = np.random.default_rng(seed)
    src, tgt = np.full((rows, width), PAD, np.int32), np.full((rows, 2), PAD, np.int32)
    for i in range(real):
        n = rng.integers(0, width)
        src[i, : n + 1] = [*rng.integers(4, 24, n), EOS]
        tgt[i] = [rng.integers(4, 10), EOS]
    return Batch(src=jnp.asarray(src), tgt=jnp.asarray(tgt))


def test_the_loss_equals_a_loop():
    smoothing = 0.2
    cfg, data = model("kim"), batch()
    params = classification_task.init(KEY, cfg, **VOCABULARIES)
    found = classification_task.batch_loss(params, cfg, data, smoothing=smoothing)
    scores = np.asarray(logits(params, cfg, data.src), np.float64)
    total = nll = 0.0
    for row in range(6):
        p = np.exp(scores[row]) / np.exp(scores[row]).sum()
        right = int(data.tgt[row, 0]) - 4
        share = smoothing / 5
        target = [1 - smoothing if label == right else share for label in range(6)]
        nll -= np.log(p[right])
        total -= sum(t * np.log(q) for t, q in zip(target, p, strict=True))
    np.testing.assert_allclose([found.loss, found.nll], [total, nll], rtol=1e-5)
    assert int(found.tokens) == 6


RUN = {
    "data__corpus": "cldr_kinds",
    "data__tgt": "",
    "data__cldr__train": 600,
    "data__batch__tokens": 400,
    "model": {"kind": "classifier", "embedding_dim": 8, "dropout": 0.1, "features": MODELS["kim"]},
    "training__max_steps": 12,
    "training__validate_every": 6,
    "training__save_every": 1,
    "training__validate_bleu": True,
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    train(tiny.config(**RUN), folder)
    return folder


def test_a_run_reports_accuracy_and_f1(workdir):
    lines = tiny.metrics(workdir)
    valid = [line for line in lines if line["split"] == "valid"]
    assert [line["step"] for line in valid] == [6, 12]
    assert all({"loss", "accuracy", "macro_f1"} <= set(line) for line in valid)
    assert not any(name.startswith("f1/") for line in valid for name in line)
    [test] = [line for line in lines if line["split"] == "test"]
    assert {"accuracy", "macro_f1"} <= set(test)
    assert any(name.startswith("f1/") for name in test)
    samples = [json.loads(line) for line in (workdir / "samples" / "12.jsonl").read_text().splitlines()]
    assert len(samples) == 12
    assert all(set(sample) == {"source", "hypothesis", "reference"} for sample in samples)
    accuracy = 100 * sum(sample["hypothesis"] == sample["reference"] for sample in samples) / 12
    assert valid[-1]["accuracy"] == pytest.approx(accuracy)


def files(folder, **splits):
    for name, text in splits.items():
        (folder / f"{name}.tsv").write_text(text)
    return {
        **RUN,
        "data__corpus": "tsv",
        "data__src": "",
        "data__dir": str(folder),
        "data__vocabulary__kind": "words",
        "data__vocabulary__min_count": 1,
        "training__max_steps": 2,
    }


GOOD = "good\ta nice day\nbad\tno way\n" * 10


@pytest.mark.parametrize(
    ("train_text", "valid_text", "message"),
    [
        (GOOD + "good nice\n", GOOD, r"train.tsv, line 21: no TAB in 'good nice'; expected a label, a TAB and a text$"),
        (GOOD, "bad\tno\n \tyes\n", r"valid.tsv, line 2: the label before the TAB is empty; add one, or delete the li"),
        (GOOD, "bad\tno\nodd\ta day\n", r"valid.tsv, line 2: the label 'odd' is not in the list of labels"),
        (
            "good\ta\n",
            GOOD,
            r"^the training text has fewer than two labels \(only 'good'\): a classifier needs at least two",
        ),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, train_text, valid_text, message):
    options = files(tmp_path, train=train_text, valid=valid_text)
    with pytest.raises(UserError, match=message):
        train(tiny.config(**options), tmp_path / "run")


def test_parallel_files_may_hold_labels(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.text").write_text("a nice day\nno way\n" * 5)
        (tmp_path / f"{split}.label").write_text("very good\nbad\n" * 5)
    options = {**files(tmp_path), "data__corpus": "files", "data__src": "text", "data__tgt": "label"}
    train(tiny.config(**options), tmp_path / "run")
    (tmp_path / "valid.label").write_text("very good\nbad\n" * 4 + "very good\n\n")
    with pytest.raises(UserError, match=r"valid.label, line 10: the label is missing; add one, or delete the line$"):
        train(tiny.config(**options), tmp_path / "other")
    for path in tmp_path.glob("valid.*"):
        path.unlink()
    (tmp_path / "train.label").write_text("".join(f"label {i}\n" for i in range(10)))
    with pytest.raises(
        UserError,
        match=r"train.label, line \d, held out for validation: the label 'label \d' is not .*add other text",
    ):
        train(tiny.config(**options, data__hold_out=0.1), tmp_path / "other")


def test_white_space_around_a_right_label_does_not_count():
    split = SimpleNamespace(text=SimpleNamespace(tgt=["pos ", "\tneg", "pos", "neg"]))
    assert classification_task.scores(None, split, ["pos", "neg", "pos", "pos"])["accuracy"] == 75.0
    assert tuple(classification_task.scores(None, split, ["pos"] * 4)) == labels.KEYS
    detailed = classification_task.scores(None, split, ["pos", "neg", "pos", "pos"], details=True)
    assert list(detailed) == [*labels.KEYS, "f1/neg", "f1/pos"]


def test_labels_share_no_vocabulary_with_texts(tmp_path):
    options = files(tmp_path, train=GOOD, valid=GOOD) | {"data__vocabulary__joint": True}
    with pytest.raises(
        UserError, match=r"^data.vocabulary.joint is True: labels always have a separate list; remove it"
    ):
        train(tiny.config(**options), tmp_path / "run")


def test_the_vocabularies_of_the_other_task_are_refused(workdir, tmp_path):
    given = {"data__vocabulary__dir": str(workdir / "vocab")}
    with pytest.raises(UserError, match=r"^the target vocabulary is a classifier's list of labels: leave data\.voc"):
        train(tiny.config(**given), tmp_path / "run")
