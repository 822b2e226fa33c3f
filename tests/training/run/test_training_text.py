"""Text whose tokens are in the cache is not read again, and any other text is."""

import dataclasses

import numpy as np
import pytest

from convs2s_jax.data import corpora, tables, text_files, vocabulary
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
    names, original = [], text_files.parsed
    for module in (corpora, tables):
        monkeypatch.setattr(
            module, "parsed", lambda path, *more, **options: names.append(str(path)) or original(path, *more, **options)
        )
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


@pytest.mark.parametrize("kind", ["files", "tsv"])
def test_a_second_start_reads_no_training_text_and_finds_the_same(folder, tmp_path, read, kind):
    """Nor does one whose corpus has moved."""
    values = {}
    if kind == "tsv":
        for split in ("train", "valid"):
            lines = (folder / f"{split}.in").read_text().splitlines()
            (folder / f"{split}.tsv").write_text("".join(f"{len(line) % 2}\t{line}\n" for line in lines))
        values = {"data__corpus": "tsv", "model": {"kind": "classifier"}}
    first, told = prepared(config(folder, **values), tmp_path / "run")
    once = len(read())
    assert once
    elsewhere = folder.rename(tmp_path / "elsewhere")
    second, again = prepared(config(elsewhere, **values), tmp_path / "run")
    assert len(read()) == once
    equal(first, second)
    assert [sentence for sentence in told if "vocabularies" not in sentence] == [
        sentence for sentence in again if "vocabularies" not in sentence
    ]
    noun = "texts" if kind == "tsv" else "pairs"
    assert any(f"{noun} are also in the training text" in sentence for sentence in again)
    assert any(sentence.startswith("unknown in train: ") for sentence in again)


@pytest.mark.parametrize("name", ["train.in", "valid.out"])
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


@pytest.mark.parametrize(("field", "value"), [("filters", {"min_length": 4}), ("normalize", ["nfkc"])])
def test_other_filters_are_other_text(folder, tmp_path, read, field, value):
    """What they left out is told by each start; vocabularies are learned from what is left."""
    for side in ("in", "out"):
        with (folder / f"train.{side}").open("a") as file:
            file.write("ｗ１ w2 w3 w4\nonly w1\n")
    plain = config(folder, data__cache_dir=str(tmp_path / "cache"))
    cfg = dataclasses.replace(plain, data=dataclasses.replace(plain.data, **{field: value}))
    whole, _ = prepared(plain, tmp_path / "run")
    for _ in range(2):
        first, told = prepared(cfg, tmp_path / "run")
        fresh, expected = prepared(cfg, tmp_path / "fresh")
        equal(first, fresh)
        assert {"only", "ｗ１"} - {*first.vocabularies.src.symbols} == ({"only"} if field == "filters" else {"ｗ１"})
        sentence = "left out of train: 22 lines (22 too short)"
        assert (sentence in told, sentence in expected) == ((True, True) if field == "filters" else (False, False))
        times = len(read())
    assert len(read()) == times == 6
    equal(whole, prepared(plain, tmp_path / "run")[0])


@pytest.mark.parametrize("suffix", [".json", ".tokens"])
@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_what_is_damaged_is_made_again(folder, tmp_path, read, suffix, damage):
    first, _ = prepared(config(folder), tmp_path / "run")
    once = len(read())
    for path in (tmp_path / "run" / "cache").glob(f"train*{suffix}"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        if damage != "gone":
            path.write_bytes(data)
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
