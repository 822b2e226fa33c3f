"""What a start tells of its text, what it refuses, and what a later start uses again."""

import gc
import os
import re
import shutil
import signal
import weakref

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text, tokens_on_disk, vocabulary
from convs2s_jax.data.loader import fill
from convs2s_jax.training.run import inputs, opening, run_folder
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.prepare import prepare
from convs2s_jax.translation.translator import load
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


@pytest.mark.parametrize("scored", [True, False])
def test_tokenised_references_of_a_test_set_are_told_if_there_is_no_validation_set(folder, tmp_path, scored):
    for side in ("in", "out"):
        (folder / f"test.{side}").write_text("a b .\nc d .\n")
    values = options(folder, training__validate_bleu=scored)
    told = []
    prepare(tiny.config(**values, data__hold_out=0), tmp_path / "run", told.append)
    assert any(sentence.startswith("the references look tokenised") for sentence in told) == scored
    for side in ("in", "out"):
        (folder / f"valid.{side}").write_text("e f\ng h\n")
    told.clear()
    prepare(tiny.config(**values), tmp_path / "another", told.append)
    assert not any("look tokenised" in sentence for sentence in told)


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


def test_unknown_tokens_are_told_of_each_split_and_side(folder, tmp_path):
    (folder / "valid.in").write_text("w1 w2 w3 w4\nw1 w3 w4 w5\n")
    (folder / "valid.out").write_text("w1 zebra\nw2 zebra\n")
    told = []
    prepare(tiny.config(**options(folder)), tmp_path / "run", told.append)
    assert [sentence for sentence in told if sentence.startswith("unknown in")] == [
        "unknown in train: 0.00 % of source tokens, 0.00 % of target tokens",
        "unknown in valid: 0.00 % of source tokens, 50.00 % of target tokens (most often zebra)",
    ]


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


@pytest.mark.parametrize(
    ("values", "noun"), [(LANGUAGE_MODEL, "line"), (CLASSIFIER, "text")], ids=["language model", "classifier"]
)
def test_where_nothing_is_left_the_message_names_what_the_model_is_trained_on(folder, tmp_path, values, noun):
    """For a classifier it once named the length of a label."""
    (folder / "train.in").write_text("w1 w2 w3\n" * 20)
    (folder / "train.out").write_text("w1 w2 w3\nw4 w5 w6\n" * 10)
    bound = {"data__hold_out": 0, "data__batch__max_length": 3}
    rule = (
        f"no training {noun} is left: each is empty or is longer than the 3 tokens of data.batch.max_length; raise it"
    )
    with pytest.raises(UserError, match=rule):
        prepare(tiny.config(**options(folder, **bound, **values)), tmp_path / "run", print)


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


@pytest.mark.drill
def test_a_run_that_is_interrupted_before_its_first_update_saves_nothing_and_may_still_change(
    folder, tmp_path, monkeypatch, capsys
):
    """A signal while vocabularies are learned, and one while the training text is tokenised."""
    workdir = tmp_path / "run"

    def interrupted(work):
        def call(*arguments, **named):
            os.kill(os.getpid(), signal.SIGTERM)
            return work(*arguments, **named)

        return call

    for module, name in ((vocabulary, "build"), (tokens_on_disk, "tokenize")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted(getattr(module, name)))
            train(tiny.config(**options(folder, data__hold_out=0.1)), workdir)
        assert "SIGTERM: stopped before the first update; there was nothing to save" in capsys.readouterr().err
        assert not run_folder.has_checkpoint(workdir)
    train(tiny.config(**options(folder, data__hold_out=0.1, training__clip=0.2)), workdir)
    assert load(workdir, tell=print).steps == ((3,),)


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


def test_learned_vocabularies_are_kept_until_a_run_continues_from_a_checkpoint(folder, tmp_path):
    """A run that is killed before its first checkpoint does not learn them again."""
    workdir = tmp_path / "run"

    def run(steps):
        train(tiny.config(**options(folder, data__hold_out=0.1, training__max_steps=steps)), workdir)
        return (workdir / "train.log").read_text().count("learning the vocabularies")

    assert run(1) == 1
    shutil.rmtree(workdir / "checkpoints")  # as if it had been killed
    assert run(1) == 1
    assert run(2) == 1
    assert not (workdir / "cache" / "vocab").exists()


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


@pytest.mark.parametrize("name", ["row_multiple", "length_multiple"])
def test_a_multiple_that_is_none_is_refused(name):
    with pytest.raises(
        UserError, match=rf"{name} is 0: use a number between 1 \(no rounding\) and 1024, such as 8 or 128$"
    ):
        tiny.config(**{f"data__batch__{name}": 0})


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
