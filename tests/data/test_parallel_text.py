"""Corpora from files: aligned lines, or a sentence that says what is wrong."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text
from convs2s_jax.data.config import DataConfig, SplitFiles
from convs2s_jax.data.corpora import ParallelText
from tests.stores import bucket  # noqa: F401  (a fixture)


def write(path: Path, data: bytes) -> str:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.de", b"eins\nzwei\n")
    write(tmp_path / "train.en", b"one\ntwo\n")
    return tmp_path


def files(folder, **values):
    return DataConfig(src="de", tgt="en", dir=str(folder), **values)


def listed(*pairs):
    return files("", files=SplitFiles(train=pairs))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_split_is_read_from_the_folder(tmp_path, suffix):
    write(tmp_path / f"valid.de{suffix}", b"eins\n\nzwei\n")
    write(tmp_path / f"valid.en{suffix}", b"one\r\n\r\ntwo\r\n")
    text = parallel_text.read(files(tmp_path), "valid")
    assert text == ParallelText(["eins", "", "zwei"], ["one", "", "two"], "valid")
    for where in (tmp_path, ""):
        assert len(parallel_text.read(files(where), "test", optional=True)) == 0


def test_text_in_a_store_is_that_of_a_folder(bucket, folder):  # noqa: F811
    stores.write("gs://bucket/text/train.de", (folder / "train.de").read_bytes())
    stores.write("gs://bucket/text/train.en.gz", gzip.compress((folder / "train.en").read_bytes()))
    there = files("gs://bucket/text/")
    for cfg in (there, listed(("gs://bucket/text/train.de", "gs://bucket/text/train.en.gz"))):
        assert parallel_text.read(cfg, "train") == parallel_text.read(files(folder), "train")
    assert len(parallel_text.read(there, "valid", optional=True)) == 0
    for cfg, split, message in (
        (files("gs://bucket/none"), "train", "data.dir is 'gs://bucket/none': this folder does not exist"),
        (there, "valid", "there is no gs://bucket/text/valid.de and gs://bucket/text/valid.en, plain"),
        (listed(("gs://bucket/a",) * 2), "train", "gs://bucket/a cannot be read: No such file or directory"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            parallel_text.read(cfg, split)


def test_listed_files_are_joined_in_order_and_win_over_the_folder(folder):
    """A pair of files that is listed twice counts twice."""
    write(folder / "more.de", b"drei\n")
    write(folder / "more.en.gz", b"three\n")
    twice, once = (str(folder / "train.de"), str(folder / "train.en")), (f"{folder}/more.de", f"{folder}/more.en.gz")
    cfg = files(folder, files=SplitFiles(train=(twice, once, twice)))
    text = parallel_text.read(cfg, "train")
    assert text.src == ["eins", "zwei", "drei", "eins", "zwei"]
    assert text.tgt == ["one", "two", "three", "one", "two"]
    assert [text.where(i) for i in (0, 2, 4)] == [f"{twice[1]}, line 1", f"{once[1]}, line 1", f"{twice[1]}, line 2"]


def test_what_of_a_corpus_is_not_there_is_found_before_it_is_read(folder):
    """Held-out lines are in the files of train; without a source side its files are not read."""
    here, gone = str(folder / "train.de"), str(folder / "gone.en")
    assert corpora.missing(files(folder), "test") == ""
    assert corpora.missing(files(folder / "no"), "test") == str(folder / "no")
    assert corpora.missing(listed((here, gone)), "test") == ""
    both = SplitFiles(train=((here, gone),))
    assert corpora.missing(files(folder, files=both), "valid") == ""
    assert corpora.missing(files(folder, files=both, hold_out=0.1), "valid") == gone
    assert corpora.missing(DataConfig(tgt="en", files=SplitFiles(train=((gone, here),))), "train") == ""
    assert corpora.missing(files("gs://bucket/none"), "train") == ""


REFUSED = {
    "missing": (
        {},
        {},
        "valid",
        (
            "there is no {}/valid.de and {}/valid.en, plain or compressed (.gz, .bz2, .xz, .zst), and no table "
            "valid.tsv/jsonl/ndjson/parquet; set data.hold_out=0.05"
        ),
    ),
    "both forms": (
        {"train.de.gz": b"drei\nvier\n"},
        {},
        "train",
        "{}/train.de and {}/train.de.gz both exist, but only one can be read: remove or rename the other",
    ),
    "one side": (
        {"test.de": b"a\n"},
        {},
        "test",
        "{}/test.de has no counterpart: there is no {}/test.en, plain or compressed (.gz, .bz2, .xz, .zst)",
    ),
    "unequal": (
        {"train.en": b"one\n"},
        {},
        "train",
        "{}/train.de has 2 lines but {}/train.en has 1: parallel files must have the same",
    ),
    "empty": ({"train.de": b"", "train.en": b""}, {}, "train", "the train split of the corpus is empty: it needs"),
    "no folder": ({}, {"dir": "nowhere"}, "train", "data.dir is 'nowhere': this folder does not exist"),
    "not set": (
        {},
        {"dir": ""},
        "train",
        "data.dir is not set: set it to the folder of train.de and train.en, or set data.files.train",
    ),
    "side": (
        {},
        {"src": "", "tgt": "eng"},
        "train",
        (
            "there is no {}/train.eng, plain or compressed (.gz, .bz2, .xz, .zst), and no table train.tsv/jsonl/ndjson/"
            "parquet; did you mean 'train.en'?"
        ),
    ),
    "no tab": (
        {"train.tsv": b"a\tb\nc\n"},
        {"corpus": "tsv"},
        "train",
        "{}/train.tsv, line 2: no TAB in 'c'; expected",
    ),
    "no label": (
        {"train.tsv": b" \tb\n"},
        {"corpus": "tsv"},
        "train",
        "{}/train.tsv, line 1: the label before the TAB",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_corpus_is_one_sentence(folder, name):
    contents, values, split, message = REFUSED[name]
    for file, content in contents.items():
        write(folder / file, content)
    with pytest.raises(UserError, match=f"^{re.escape(message.replace('{}', str(folder)))}"):
        parallel_text.read(DataConfig(**{"src": "de", "tgt": "en", "dir": str(folder), **values}), split)


# --- labels


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_tsv_has_label_tab_text(tmp_path, ending):
    write(tmp_path / f"train.tsv{ending}", b"good\ta nice\tday\n bad \t\n")
    found = parallel_text.read(DataConfig(corpus="tsv", dir=str(tmp_path)), "train")
    assert (list(found.src), list(found.tgt)) == (["a nice\tday", ""], ["good", "bad"])
    assert found.where(1) == f"{tmp_path}/train.tsv{ending}, line 2"
    assert ParallelText("ab", "cd", "valid").where(1) == "valid split, line 2"


def tsv(folder, lines):
    (folder / "train.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in lines))
    return DataConfig(corpus="tsv", dir=str(folder), hold_out=0.2)


def test_a_label_is_not_held_out_with_all_its_lines(tmp_path):
    """Otherwise the same lines as of parallel text leave; a label that does not occur in training is refused."""
    lost = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lines = [(f"text {rng.integers(25)}", f"label {int(rng.exponential(4))}") for _ in range(rng.integers(12, 40))]
        train, valid = parallel_text.read_train_and_valid(tsv(tmp_path, lines))
        held = list(zip(valid.src, valid.tgt, strict=True))
        rest = [line for line in lines if line not in held]
        assert list(zip(train.src, train.tgt, strict=True)) == rest
        assert held == [line for i, line in enumerate(lines) if line in held and line not in lines[:i]]
        assert 1 <= len(lines) - len(rest) <= round(0.2 * len(lines))
        assert {label for _, label in held} <= {label for _, label in rest}
        text = ParallelText([text for text, _ in lines], [label for _, label in lines], "train")
        plain = parallel_text._cut(DataConfig(src="a", tgt="b", hold_out=0.2), text)
        if {*plain[1].tgt} <= {*plain[0].tgt}:
            assert list(zip(plain[1].src, plain[1].tgt, strict=True)) == held
        else:
            lost += 1
    assert lost > 10
