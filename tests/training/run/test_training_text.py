"""Text whose tokens are in the cache is not read again, and any other text is."""

import dataclasses
import shutil

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text, vocabulary
from convs2s_jax.training.run.prepare import prepare
from tests import tiny


@pytest.fixture
def folder(tmp_path):
    """Lines of 1 to 30 words; three of four validation pairs are also in the training text."""
    (tmp_path / "corpus").mkdir()
    lines = [" ".join(f"w{(i * j) % 17}" for j in range(1, 1 + i % 30 + 1)) for i in range(200)]
    for side in ("in", "out"):
        for split, some in (("train", lines), ("valid", [*lines[3:6], f"{side} w1"])):
            (tmp_path / "corpus" / f"{split}.{side}").write_text("".join(f"{line}\n" for line in some))
    return tmp_path / "corpus"


@pytest.fixture
def read(monkeypatch):
    """Files of the training split that are read."""
    names, original = [], corpora.read_lines
    monkeypatch.setattr(corpora, "read_lines", lambda path, **more: names.append(str(path)) or original(path, **more))
    return lambda: [name for name in names if "train" in name]


def config(folder, **more):
    return tiny.config(**{**tiny.files(folder), "data__vocabulary": {"kind": "words", "min_count": 1}, **more})


def prepared(cfg, workdir):
    """The data, and what was told of them."""
    told = []
    return prepare(cfg, workdir, told.append), told


def equal(first, second):
    for side in ("src", "tgt"):
        one, other = (getattr(run.train, side) for run in (first, second))
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.offsets, other.offsets)
    assert (first.fingerprint, first.held_out, first.shapes) == (second.fingerprint, second.held_out, second.shapes)
    assert np.array_equal(first.rows, second.rows)
    assert first.train.text == second.train.text
    assert first.train.text.files == second.train.text.files


@pytest.mark.parametrize("kind", ["files", "packed", "listed", "one side", "tsv"])
def test_a_second_start_reads_no_training_text_and_finds_the_same(folder, tmp_path, read, kind):
    values = {}
    if kind == "packed":
        for side in ("in", "out"):
            path = folder / f"train.{side}"
            with path.open("rb") as plain, corpora.text_files.gzip.open(f"{path}.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            path.unlink()
    if kind == "listed":
        pairs = [[str(folder / f"{split}.{side}") for side in ("in", "out")] for split in ("train", "valid")]
        values = {"data__files": {"train": [*pairs, pairs[0]]}}
    if kind == "one side":
        values = {"data__src": "", "model__encoder": {"kind": "none"}, "model__decoder__attention_layers": []}
    if kind == "tsv":
        for split in ("train", "valid"):
            lines = (folder / f"{split}.in").read_text().splitlines()
            (folder / f"{split}.tsv").write_text("".join(f"{len(line) % 2}\t{line}\n" for line in lines))
        values = {"data__corpus": "tsv", "model": {"kind": "classifier"}}
    cfg = config(folder, **values)
    first, told = prepared(cfg, tmp_path / "run")
    once = len(read())
    assert once
    second, again = prepared(cfg, tmp_path / "run")
    assert len(read()) == once
    equal(first, second)
    assert [sentence for sentence in told if "vocabularies" not in sentence] == [
        sentence for sentence in again if "vocabularies" not in sentence
    ]
    noun = {"one side": "lines", "tsv": "texts"}.get(kind, "pairs")
    assert any(f"{noun} are also in the training text" in sentence for sentence in again)
    assert any(sentence.startswith("unknown in train: ") for sentence in again)
    assert second.train.text.where(150).endswith("line 151")


@pytest.mark.parametrize("name", ["train.in", "train.out", "valid.in", "valid.out"])
def test_other_text_is_read(folder, tmp_path, read, name):
    """The vocabularies are given, and so the same."""
    first, _ = prepared(config(folder), tmp_path / "run")
    vocabulary.save(first.vocabularies, tmp_path / "vocab")
    cfg = config(folder, data__cache_dir=str(tmp_path / "cache"), data__vocabulary__dir=str(tmp_path / "vocab"))
    prepared(cfg, tmp_path / "run")
    once = len(read())
    path = folder / name
    path.write_text(path.read_text().replace("w3", "w4"))
    changed, told = prepared(cfg, tmp_path / "run")
    assert len(read()) > once
    fresh, expected = prepared(
        dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, cache_dir="")), tmp_path / "b"
    )
    equal(changed, fresh)
    assert told == expected


def test_tokens_of_other_vocabularies_are_not_taken(folder, tmp_path):
    shared = {"data__cache_dir": str(tmp_path / "cache")}
    words = {"kind": "words", "min_count": 1}
    first, second = (
        prepared(config(folder, **shared, data__vocabulary={**words, "src_size": size}), tmp_path / str(size))[0]
        for size in (1000, 10)
    )
    assert first.train.src.tokens.max() > second.train.src.tokens.max() == 9


def test_targets_that_were_checked_for_another_task_are_checked_again(folder, tmp_path):
    """Words of a translation are no labels."""
    for side in ("in", "out"):
        (folder / f"valid.{side}").unlink()
    shared = {"data__cache_dir": str(tmp_path / "cache"), "data__hold_out": 0, "training__schedule": {"kind": "fixed"}}
    made, _ = prepared(config(folder, **shared), tmp_path / "translation")
    vocabulary.save(made.vocabularies, tmp_path / "vocab")
    cfg = config(folder, **shared, data__vocabulary__dir=str(tmp_path / "vocab"), model={"kind": "classifier"})
    with pytest.raises(UserError, match="not a list of labels"):
        prepare(cfg, tmp_path / "classifier", lambda _: None)


def test_files_that_change_while_they_are_read_are_refused(folder, tmp_path, monkeypatch):
    original = parallel_text.read

    def read(cfg, split, **more):
        path = folder / "train.in"
        path.write_text(path.read_text().replace("w3", "w5"))
        return original(cfg, split, **more)

    monkeypatch.setattr(parallel_text, "read", read)
    with pytest.raises(UserError, match=r"^the files of the training split changed while they were read: start again"):
        prepare(config(folder), tmp_path / "run", lambda _: None)
    assert not list((tmp_path / "run").rglob("train*"))


def test_a_corpus_that_has_moved_is_known_and_messages_name_its_new_place(folder, tmp_path, read):
    prepared(config(folder), tmp_path / "run")
    once, elsewhere = len(read()), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    moved, _ = prepared(config(elsewhere), tmp_path / "run")
    assert len(read()) == once
    assert moved.train.text.where(3) == f"{elsewhere / 'train.out'}, line 4"


@pytest.mark.parametrize("suffix", [".json", ".tokens"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_what_is_damaged_is_made_again(folder, tmp_path, read, suffix, damage):
    first, _ = prepared(config(folder), tmp_path / "run")
    once = len(read())
    for path in (tmp_path / "run" / "cache").glob(f"train*{suffix}"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        if damage != "gone":
            path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    second, _ = prepared(config(folder), tmp_path / "run")
    assert len(read()) > once
    equal(first, second)
    twice = len(read())
    prepared(config(folder), tmp_path / "run")
    assert len(read()) == twice


def test_a_validation_set_that_is_held_out_is_read_with_the_training_text(folder, tmp_path, read):
    for side in ("in", "out"):
        (folder / f"valid.{side}").unlink()
    cfg = config(folder, data__hold_out=0.1)
    first, _ = prepared(cfg, tmp_path / "run")
    once = len(read())
    second, _ = prepared(cfg, tmp_path / "run")
    assert len(read()) == 2 * once
    equal(first, second)
    assert not list((tmp_path / "run" / "cache").glob("train*.json"))


def test_settings_that_no_text_can_mend_are_refused_before_it_is_read(folder, tmp_path, read):
    for side in ("in", "out"):
        (folder / f"valid.{side}").unlink()
    plateau = {"data__hold_out": 0, "training__schedule": {"kind": "plateau"}}
    with pytest.raises(UserError, match=r"^training\.schedule\.kind is 'plateau', but there is no validation set"):
        prepare(config(folder, **plateau), tmp_path / "run", print)
    assert read() == []
