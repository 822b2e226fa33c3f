"""What a start tells of its text, what it refuses, and what a later start uses again."""

import gc
import re
import weakref

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.data.loader import fill
from convs2s_jax.training.run import inputs
from convs2s_jax.training.run.prepare import prepare
from tests import tiny


def write_train(folder):
    """Write 200 lines of 1 to 30 words, without a split "valid"."""
    lines = [" ".join(f"w{(i * j) % 17}" for j in range(1, 1 + i % 30 + 1)) for i in range(200)]
    for side in ("in", "out"):
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    write_train(tmp_path)
    return tmp_path


def options(folder, **more):
    return {
        **tiny.files(folder),
        "data__vocabulary": {"kind": "words", "min_count": 1},
        "training__schedule": {"kind": "fixed"},
        "training__max_steps": 3,
        **more,
    }


def test_the_lines_of_the_training_text_do_not_stay_in_memory(folder, tmp_path, monkeypatch):
    """Those of the validation set do: they are translated and scored."""
    seen, real = [], parallel_text.read_train_and_valid

    def read(*given, **named):
        texts = real(*given, **named)
        seen.extend(weakref.ref(text) for text in texts)
        return texts

    monkeypatch.setattr(parallel_text, "read_train_and_valid", read)
    found = prepare(tiny.config(**options(folder, data__hold_out=0.1)), tmp_path / "run", print)
    gc.collect()
    assert [ref() for ref in seen] == [None, found.valid.text]
    assert (len(found.train.text), len(found.train.src), len(found.valid.text.tgt)) == (0, 180, 20)


CLASSIFIER = {"model": {"kind": "classifier", "embedding_dim": 8}}


@pytest.mark.parametrize(
    ("values", "noun", "empty", "tokens", "limit"),
    [
        (
            {},
            "pairs",
            "with an empty side",
            "0.00 % of source tokens, 0.00 % of target tokens",
            "62 source or 30 target tokens",
        ),
        (CLASSIFIER, "texts", "as empty", "0.00 % of tokens", "100 tokens"),
    ],
)
def test_messages_speak_of_what_the_model_is_trained_on(folder, tmp_path, values, noun, empty, tokens, limit):
    pairs = [(f"w{i % 9} w{i // 9}", f"w{i % 9}" if values == CLASSIFIER else f"w{i % 9} w{i // 9}") for i in range(80)]
    pairs[7] = ("", "w7" if values == CLASSIFIER else "")
    for split in ("train", "test"):
        for side, lines in zip(("in", "out"), zip(*pairs, strict=True), strict=True):
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    if values != CLASSIFIER:
        values = {"model__decoder__max_positions": 32, **values}
    batch = {"tokens": 256, "shapes": 1, "max_length": 100}
    told = []
    cfg = tiny.config(**options(folder, data__hold_out=0.2, data__batch=batch, **values))
    prepare(cfg, tmp_path / "run", told.append)
    for pattern in (
        rf"held out for validation: 16 {noun}",
        rf"test: \d+ of 80 {noun} are also in the training text, so .*",
        rf"unknown in train: {tokens}",
        rf"training {noun}: 63 used, 1 skipped {empty}, 0 skipped as longer than {limit}",
        rf"batches: 1 an epoch in 1 shape, [\d.]+ % padding; {noun} x \(source, target\) tokens: \d+ x \(\d, \d\)",
    ):
        assert [re.fullmatch(pattern, sentence) for sentence in told].count(None) == len(told) - 1, (pattern, told)


PLATEAU = "^training.schedule.kind is 'plateau', but there is no validation set"
REFUSED = {
    "too long": (
        {"data__batch__max_length": 2},
        "no training pair is left: each has an empty side or is longer than 2 source or 2 target tokens; raise data.ba",
    ),
    "a corpus without a folder": ({"data__corpus": "cldr"}, "data.dir is set, but data.corpus 'cldr' does not read it"),
    "a corpus without files": (
        {"data__corpus": "tsv", "data__files": {"train": [("a", "b")]}, "data__dir": "", **CLASSIFIER},
        "set data.corpus to files",
    ),
    "a plateau": ({"training__schedule": {"kind": "plateau"}}, PLATEAU),
    "patience": ({"training__patience": 2}, "training.patience is 2, but there is no validation set: leave it out"),
    "a metric": (
        {"training__best_metric": "bleu", "training__validate_bleu": True},
        "training.best_metric is bleu, but there is no validation set: leave it out",
    ),
    "whole words": (
        {"data__subword_sampling": 0.2},
        r"data\.subword_sampling is 0.2, but the vocabularies consist of whole words: set it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_text_or_a_setting_does_not_allow_is_refused(folder, tmp_path, name):
    values, sentence = REFUSED[name]
    for side in ("in", "out"):
        (folder / f"train.{side}").write_text("w1 w2 w3\n" * 20)
    with pytest.raises(UserError, match=sentence):
        prepare(tiny.config(**options(folder, **{"data__hold_out": 0, **values})), tmp_path / "run", print)


@pytest.mark.parametrize("cut", [False, True])
def test_long_sources_are_cut_where_it_is_asked_for_and_counted(folder, tmp_path, cut):
    told = []
    values = {"data__hold_out": 0.1, "data__batch__max_length": 12, "data__batch__cut_source": cut}
    (folder / "train.out").write_text("w1\n" * 200)
    run = prepare(tiny.config(**options(folder, **values)), tmp_path / "run", told.append)
    lengths = run.train.src.lengths + 1
    long = int(np.sum(lengths > 12))
    assert 50 < long < 180
    assert len(run.rows) == (180 if cut else 180 - long)
    assert (f"sources truncated to 12 tokens: {long}" in told) == cut
    assert max(shape.src for shape in run.shapes) == 12
    i = int(np.argmax(lengths))
    [row] = fill(run.train.src, np.array([i]), (1, 12))
    assert row.tolist() == [*run.train.src[i][:11].tolist(), 2]


def test_vocabularies_that_an_earlier_start_has_learned_are_used_again(folder, tmp_path):
    """Where text, settings and seed are the same and they are intact; else they are learned."""
    workdir, told = tmp_path / "run", []
    learning, again = "learning the vocabularies from the training text", "reusing the vocabularies"

    def said(**others):
        del told[:]
        cfg = tiny.config(**options(folder, **{"data__hold_out": 0.1, **others}))
        found = prepare(cfg, workdir, told.append).vocabularies
        kinds = [any(word in sentence for sentence in told) for word in (learning, again, "is damaged")]
        return found.src.fingerprint, kinds

    first = said()
    assert first[1] == [True, False, False]
    [made] = (workdir / "cache" / "vocab").iterdir()
    assert any(sentence.endswith(f": {made}") for sentence in told)  # other runs may use it
    assert said() == said(model__dropout=0.3) == (first[0], [False, True, False])
    assert said(seed=2)[1] == [True, False, False]
    assert said(data__hold_out=0.3)[1] == [True, False, False]  # another training text
    assert said(data__vocabulary={"kind": "words", "min_count": 2})[1] == [True, False, False]
    for path in (workdir / "cache" / "vocab").glob("*/src.txt"):
        path.write_text(path.read_text().replace("w", "z", 1))
    assert said() == (first[0], [True, False, True])
    assert said() == (first[0], [False, True, False])


def test_the_validation_and_the_test_set_share_their_shapes(folder):
    """Those of one hold the lines of the other, so that a program is compiled for each shape and not for each set."""
    for split, lines in (("valid", range(1, 12)), ("test", range(20, 31))):
        for side in ("in", "out"):
            (folder / f"{split}.{side}").write_text("".join("w1 " * n + "\n" for n in lines))
    run = prepare(tiny.config(**options(folder)), folder / "run", lambda _: None)
    assert len(run.held_out_shapes) == inputs.HELD_OUT_SHAPES
    for split in (run.valid, run.test):
        plan = inputs.planned(run.cfg.model, split, run.held_out_shapes)
        assert plan.shapes == run.held_out_shapes
        assert sorted(row for batch in plan.batches for row in batch.rows) == list(range(11))
