"""What a start tells of its text, what it refuses, and what a later start uses again."""

import gc
import re
import weakref

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.data.loader import fill
from convs2s_jax.training.run import inputs, opening
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
    assert (found.train.text.name, found.train.text.files) == ("train", ((str(folder / "train.out"), 200),))
    assert (len(found.train.text), len(found.train.src), len(found.valid.text.tgt)) == (0, 180, 20)


LANGUAGE_MODEL = {"data__src": "", "model__encoder": {"kind": "none"}, "model__decoder__attention_layers": []}
CLASSIFIER = {"model": {"kind": "classifier", "embedding_dim": 8}}


@pytest.mark.parametrize(
    ("values", "noun", "empty", "tokens", "limit", "shape"),
    [
        (
            {},
            "pairs",
            "with an empty side",
            "0.00 % of source tokens, 0.00 % of target tokens",
            "62 source or 30 target tokens",
            r"pairs x \(source, target\) tokens: \d+ x \(3, 3\)",
        ),
        (LANGUAGE_MODEL, "lines", "as empty", "0.00 % of tokens", "30 tokens", r"lines x tokens: \d+ x 3"),
        (CLASSIFIER, "texts", "as empty", "0.00 % of tokens", "100 tokens", r"texts x tokens: \d+ x 3"),
    ],
    ids=["translation", "language model", "classifier"],
)
def test_messages_speak_of_what_the_model_is_trained_on(folder, tmp_path, values, noun, empty, tokens, limit, shape):
    """Those of a language model and a classifier once spoke of pairs with an empty side, and of the other side."""
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
        rf"batches: 1 an epoch in 1 shape, [\d.]+ % padding; {shape}",
    ):
        assert [re.fullmatch(pattern, sentence) for sentence in told].count(None) == len(told) - 1, (pattern, told)


def test_validation_pairs_that_are_cut_are_counted(folder, tmp_path):
    """Their loss counts an end symbol where the model's positions end; nothing said so."""
    for side in ("in", "out"):
        (folder / f"valid.{side}").write_text("w1\nw1 w2\n" if side == "in" else f"w1\n{'w1 ' * 64}\n")
    told = []
    prepare(tiny.config(**options(folder)), tmp_path / "run", told.append)
    assert (
        "valid: 1 of 2 pairs exceed the model's positions, 62 source or 62 target tokens; their loss covers only the "
        "beginning"
    ) in told


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"data__batch__max_length": 2}, "the 2 tokens of data.batch.max_length; raise it"),
        ({"model__decoder__max_positions": 4}, "the 2 tokens of the model's positions; raise them"),
    ],
)
def test_where_no_pair_is_left_the_bound_that_left_them_out_is_named(folder, tmp_path, values, rule):
    for side in ("in", "out"):
        (folder / f"train.{side}").write_text("w1 w2 w3\n" * 20)
    with pytest.raises(UserError, match=f"no training pair is left: each has an empty side or is longer than {rule}"):
        prepare(tiny.config(**options(folder, data__hold_out=0, **values)), tmp_path / "run", print)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"corpus": "cldr", "dir": "texts"},
            "data.dir is set, but data.corpus 'cldr' does not read it: remove it, ",
        ),
        ({"corpus": "tsv", "files": {"train": [("a", "b")]}}, "set data.corpus to files"),
        ({"corpus": "tfds:mnist", "dir": "texts"}, "or set data.corpus to files or tsv"),
    ],
)
def test_texts_that_a_corpus_does_not_read_are_refused(tmp_path, values, sentence):
    model = {"model": {"kind": "classifier"}} if values["corpus"] == "tsv" else {}
    cfg = tiny.config(**{f"data__{name}": value for name, value in values.items()}, **model)
    with pytest.raises(UserError, match=re.escape(sentence)):
        prepare(cfg, tmp_path, print)


def test_a_new_run_does_not_begin_below_the_rate_at_which_a_plateau_ends(folder, tmp_path):
    rate = {"training__schedule": {"kind": "plateau", "rate": 5e-5}, "data__hold_out": 0.1}
    with pytest.raises(
        UserError,
        match=r"^training.schedule.minimum is 0.0001, the rate below which training ends: use .* rate, 5e-05",
    ):
        prepare(tiny.config(**options(folder, **rate)), tmp_path / "run", print)


@pytest.mark.parametrize("cut", [False, True])
def test_long_sources_are_cut_where_it_is_asked_for_and_counted(folder, tmp_path, cut):
    told = []
    values = {"data__hold_out": 0.1, "data__batch__max_length": 12, "data__batch__cut_source": cut}
    targets = "".join("w1\n" for _ in range(200))
    (folder / "train.out").write_text(targets)
    cfg = tiny.config(**options(folder, **values))
    run = prepare(cfg, tmp_path / "run", told.append)
    lengths = run.train.src.lengths + 1
    long = int(np.sum(lengths > 12))
    assert 50 < long < 180
    assert len(run.rows) == (180 if cut else 180 - long)
    assert (f"sources truncated to 12 tokens: {long}" in told) == cut
    assert max(shape.src for shape in run.shapes) == 12
    i = int(np.argmax(lengths))
    [row] = fill(run.train.src, np.array([i]), (1, 12))
    assert row.tolist() == [*run.train.src[i][:11].tolist(), 2]


def test_vocabularies_that_an_earlier_start_has_learned_are_used_again(folder, tmp_path, capsys):
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
    assert said() == (first[0], [False, True, False])
    assert said(model__dropout=0.3) == (first[0], [False, True, False])
    assert said(seed=2)[1] == [True, False, False]
    assert said(data__hold_out=0.3)[1] == [True, False, False]  # another training text
    assert said(data__vocabulary={"kind": "words", "min_count": 2})[1] == [True, False, False]
    for path in (workdir / "cache" / "vocab").glob("*/src.txt"):
        path.write_text(path.read_text().replace("w", "z", 1))
    assert said() == (first[0], [True, False, True])
    assert said() == (first[0], [False, True, False])


def test_prepared_vocabularies_are_named_and_serve_other_runs(folder, tmp_path):
    told = []
    opening.prepare_only(tiny.config(**options(folder, data__hold_out=0.1)), tmp_path / "run", told.append)
    [named] = (tmp_path / "run" / "cache" / "vocab").iterdir()
    assert told[-1] == (
        f"vocabularies: {named} (until this run trains, others can use them with --config.data.vocabulary.dir)"
    )
    other = tiny.config(**options(folder, data__hold_out=0.1, data__vocabulary={"dir": str(named)}))
    opening.prepare_only(other, tmp_path / "other", told.append)
    assert (tmp_path / "other" / "cache" / "vocab" / "given").is_dir()


@pytest.mark.parametrize("multiples", [{}, {"data__batch__row_multiple": 3, "data__batch__length_multiple": 8}])
def test_what_rounding_costs_is_told(folder, tmp_path, multiples):
    """And nothing is where nothing is rounded."""
    told = []
    run = prepare(
        tiny.config(**options(folder, data__hold_out=0.1, data__batch__shapes=3, **multiples)),
        tmp_path / "run",
        told.append,
    )
    [line] = [sentence for sentence in told if sentence.startswith("batches: ")]
    assert all((shape.rows % 3, shape.src % 8, shape.tgt % 8) == (0, 0, 0) for shape in run.shapes) == bool(multiples)
    without = r"(?: \(([\d.]+) % without row_multiple and length_multiple\))?"
    found = re.search(rf"shapes, ([\d.]+) % padding{without}; ", line)
    assert (found[2] is not None) == bool(multiples)
    assert found[2] is None or float(found[1]) > float(found[2])


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
