"""Parallel text from files: line by line what stands in them, or a sentence that says what is wrong."""

import bz2
import gzip
import io
import lzma
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text, plan
from convs2s_jax.data.cldr import CldrConfig
from convs2s_jax.data.config import DataConfig, SplitFiles
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.text_files import read_lines


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


# --- lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\n\r\n b \n", ["a", "", " b "]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        ("größer\u202f\u00a0\n".encode(), ["größer\u202f\u00a0"]),
    ],
)
@pytest.mark.parametrize("name", ["x.de", "x.de.gz", "-"])
def test_only_newlines_end_a_line(tmp_path, monkeypatch, data, lines, name):
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "latin-1"))
        assert read_lines("-") == lines
    else:
        assert read_lines(write(tmp_path / name, data)) == lines


def test_gzip_is_known_by_its_content(tmp_path, monkeypatch):
    zipped = gzip.compress(b"a\n") + gzip.compress(b"b\n")
    assert read_lines(write(tmp_path / "x.de", zipped)) == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zipped)))
    assert read_lines("-") == ["a", "b"]


@pytest.mark.parametrize("name", ["x.de", "x.de.gz"])
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path, name):
    path = write(tmp_path / name, "ä\nb\n".encode() + b"gr\xfcn\n")
    with pytest.raises(UserError, match=rf"{name}, line 3: byte 0xfc is not UTF-8; convert the file"):
        read_lines(path)


def test_standard_input_is_named_in_messages(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfea\0")))
    with pytest.raises(UserError, match="standard input, line 1: byte 0xff is not UTF-8"):
        read_lines("-")


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:-9],
        lambda d: d[:-1],
        lambda d: d[:10] + b"\xff" + d[11:],
        lambda d: d[:-8] + b"\0" * 8,
        lambda d: b"plain" + d[:0],
    ],
)
def test_damaged_gzip_is_refused(tmp_path, damage):
    path = tmp_path / "x.de.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(97, 123)) * 3)))
    with pytest.raises(UserError, match=r"x\.de\.gz is not a complete gzip file \(.*\): copy it again"):
        read_lines(path)


# what the programs bzip2, xz and zstd make of "eins\nzwei\n", and bzip2 of nothing
COMPRESSED = {
    "bzip2": bz2.compress(b"eins\nzwei\n"),
    "xz": lzma.compress(b"eins\nzwei\n"),
    "zstandard": bytes.fromhex("28b52ffd045851000065696e730a7a7765690ae1de44fc"),
    "bzip2 ": bz2.compress(b""),
}


@pytest.mark.parametrize("how", COMPRESSED)
@pytest.mark.parametrize("name", ["x.de", "x.gz", "-"])
def test_other_compressions_are_named(tmp_path, monkeypatch, how, name):
    path = tmp_path / name
    path.write_bytes(COMPRESSED[how])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(COMPRESSED[how])))
    shown = "standard input" if name == "-" else str(path)
    message = f"^{shown} is compressed with {how.strip()}: decompress it, or use gzip$"
    with pytest.raises(UserError, match=message):
        read_lines(name if name == "-" else path)


def test_a_text_may_begin_like_a_compressed_one(tmp_path):
    for text in ("BZh", "BZh91 is a header", "(µ/ý"):
        assert read_lines(write(tmp_path / "x.de", text.encode())) == [text]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} is a folder: choose a text file"):
        read_lines(tmp_path)
    with pytest.raises(UserError, match="nowhere cannot be read: No such file or directory; choose a text file"):
        read_lines(tmp_path / "nowhere")


# --- splits


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_split_is_read_from_the_folder(tmp_path, suffix):
    write(tmp_path / f"valid.de{suffix}", b"eins\n\nzwei\n")
    write(tmp_path / f"valid.en{suffix}", b"one\r\n\r\ntwo\r\n")
    text = parallel_text.read(files(tmp_path), "valid")
    assert text == parallel_text.ParallelText(["eins", "", "zwei"], ["one", "", "two"], "valid")
    assert len(text) == 3


def test_listed_files_are_joined_in_order_and_win_over_the_folder(folder):
    more = tuple(
        (write(folder / f"{i}.a", f"a{i}\n".encode()), write(folder / f"{i}.b.gz", f"b{i}\n".encode())) for i in "21"
    )
    cfg = files(folder, files=SplitFiles(train=more))
    assert parallel_text.read(cfg, "train") == parallel_text.ParallelText(["a2", "a1"], ["b2", "b1"], "train")


def test_what_of_a_corpus_is_not_there_is_found_before_it_is_read(folder):
    """Held-out lines are in the files of train; without a source side its files are not read."""
    here, gone = str(folder / "train.de"), str(folder / "gone.en")
    assert corpora.missing(files(folder), "test") == ""
    assert corpora.missing(files(folder / "no"), "test") == str(folder / "no")
    listed = SplitFiles(train=((here, gone),))
    assert corpora.missing(files("", files=listed), "valid") == gone
    assert corpora.missing(files("", files=listed), "test") == ""
    assert corpora.missing(files(folder, files=listed), "valid") == ""
    assert corpora.missing(files(folder, files=listed, hold_out=0.1), "valid") == gone
    assert corpora.missing(DataConfig(tgt="en", files=SplitFiles(train=((gone, here),))), "train") == ""
    assert corpora.missing(files("gs://bucket/none"), "train") == ""


def test_a_plain_and_a_gzipped_file_of_one_name_are_refused(folder):
    """The plain one was read, whatever the other had; a list says which is meant."""
    zipped = write(folder / "train.de.gz", b"drei\nvier\n")
    plain = folder / "train.de"
    with pytest.raises(
        UserError,
        match=f"^{plain} and {plain}.gz both exist, but only one can be read: remove or rename the other, or list "
        "the right one in data.files.train$",
    ):
        parallel_text.read(files(folder), "train")
    listed = SplitFiles(train=((zipped, str(folder / "train.en")),))
    assert parallel_text.read(files(folder, files=listed), "train").src == ["drei", "vier"]
    for ending in ("", ".gz"):
        write(folder / f"train.tsv{ending}", b"a\tb\n")
    with pytest.raises(UserError, match=r"train.tsv and .*train.tsv.gz both exist, .* remove or rename the other$"):
        parallel_text.read(DataConfig(corpus="tsv", dir=str(folder)), "train")


def test_a_file_that_is_listed_more_than_once_is_read_once(folder, monkeypatch):
    pairs = ((str(folder / "train.de"), str(folder / "train.en")),) * 3
    opened = []
    monkeypatch.setattr(corpora, "read_lines", lambda path, **more: opened.append(path) or read_lines(path, **more))
    text = parallel_text.read(files("", files=SplitFiles(train=pairs)), "train")
    assert text == parallel_text.ParallelText(["eins", "zwei"] * 3, ["one", "two"] * 3, "train")
    assert (sorted(opened), len(text.files)) == ([*pairs[0]], 3)


def test_pairs_of_files_that_are_listed_twice_count_twice_and_share_their_text(folder):
    write(folder / "more.de", b"drei\n")
    write(folder / "more.en", b"three\n")
    twice, once = ((str(folder / f"{name}.de"), str(folder / f"{name}.en")) for name in ("train", "more"))
    text = parallel_text.read(files("", files=SplitFiles(train=(twice, once, twice))), "train")
    lengths = np.full(len(text), 2)
    rows, _ = plan.usable(lengths, lengths, max_source=9, max_target=9)
    epoch = plan.plan_epoch(lengths, lengths, rows, (Shape(rows=2, src=2, tgt=2),), seed=1, epoch=1)
    seen = [(text.src[i], text.tgt[i]) for batch in epoch.batches for i in batch.rows]
    assert Counter(seen) == {("eins", "one"): 2, ("zwei", "two"): 2, ("drei", "three"): 1}
    for side in (text.src, text.tgt):
        assert side[0] is side[3]
        assert side[1] is side[4]
    assert [text.where(i) for i in (0, 2, 4)] == [f"{twice[1]}, line 1", f"{once[1]}, line 1", f"{twice[1]}, line 2"]


def test_missing_split_names_the_paths_tried(folder):
    with pytest.raises(UserError, match=rf"there is no {folder}/valid.de\[.gz\], {folder}/valid.en\[.gz\]"):
        parallel_text.read(files(folder), "valid")


def test_a_compressed_file_is_named_and_never_suggested(folder):
    """'train.en.bz2' was the suggestion for 'train.en', and is not read either."""
    for name in ("valid.de.bz2", "test.de.xz", "train.tsv.zst"):
        write(folder / name, b"")
    (folder / "test.en").write_text("one\n")
    what = "is compressed with {}: decompress it, or use gzip"
    with pytest.raises(UserError, match=rf"en\[.gz\]; {folder}/valid.de.bz2 {what.format('bzip2')}; set data.hold"):
        parallel_text.read(files(folder), "valid")
    with pytest.raises(UserError, match=rf"nor .*test.de.gz exists; {folder}/test.de.xz {what.format('xz')}$"):
        parallel_text.read(files(folder), "test")
    (folder / "train.de").rename(folder / "train.deu.zst")
    with pytest.raises(UserError, match=rf"no counterpart: neither {folder}/train.de nor {folder}/train.de.gz exists$"):
        parallel_text.read(files(folder), "train")
    (folder / "train.en").unlink()
    with pytest.raises(UserError, match=rf"^there is no {folder}/train.de\[.gz\], {folder}/train.en\[.gz\]$"):
        parallel_text.read(files(folder), "train")
    with pytest.raises(UserError, match=rf"no {folder}/train.tsv.gz; .*train.tsv.zst {what.format('zstandard')}$"):
        parallel_text.read(DataConfig(corpus="tsv", dir=str(folder)), "train")


def test_missing_split_is_empty_where_it_is_optional(folder):
    assert len(parallel_text.read(files(folder), "test", optional=True)) == 0
    assert len(parallel_text.read(files(""), "test", optional=True)) == 0
    assert len(parallel_text.read(files(folder), "train", optional=True)) == 2


@pytest.mark.parametrize(("here", "missing"), [("de", "en"), ("en", "de")])
def test_one_side_alone_is_refused_even_where_the_split_is_optional(folder, here, missing):
    write(folder / f"test.{here}", b"eins\n")
    message = rf"test.{here} has no counterpart: neither {folder}/test.{missing} nor {folder}/test.{missing}.gz exists"
    with pytest.raises(UserError, match=message):
        parallel_text.read(files(folder), "test", optional=True)


def test_unequal_numbers_of_lines_are_refused(folder):
    write(folder / "train.en", b"one\ntwo\nthree\n")
    with pytest.raises(
        UserError, match=r"train\.de has 2 lines but .*train\.en has 3: parallel files must have the same"
    ):
        parallel_text.read(files(folder), "train")


def test_unequal_files_are_refused_even_if_their_sums_agree(folder):
    a, b = write(folder / "a", b"1\n"), write(folder / "b", b"1\n2\n")
    with pytest.raises(UserError, match=r"a has 1 line but .*b has 2"):
        parallel_text.read(files("", files=SplitFiles(train=((a, b), (b, a)))), "train")


def test_empty_corpus_is_refused(folder):
    for side in ("de", "en"):
        write(folder / f"train.{side}", b"")
    with pytest.raises(UserError, match=r"no text in .*train\.de and .*train\.en: a corpus needs at least one line"):
        parallel_text.read(files(folder), "train")


def test_folder_in_place_of_a_file_is_refused(folder):
    (folder / "train.de").unlink()
    (folder / "train.de").mkdir()
    with pytest.raises(UserError, match=r"train\.de is a folder"):
        parallel_text.read(files(folder), "train")


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.dir is '.*nowhere': this folder does not exist"):
        parallel_text.read(files(tmp_path / "nowhere"), "train")
    wanted = r"^data\.dir is not set: set it to the folder of train\.de and train\.en, or set data\.files\.train$"
    with pytest.raises(UserError, match=wanted):
        parallel_text.read(files(""), "train")


def test_a_file_in_place_of_the_folder_is_refused(folder):
    with pytest.raises(
        UserError, match=rf"^data.dir is '{folder}/train.de': this is a file; set its folder, {folder}$"
    ):
        parallel_text.read(files(folder / "train.de"), "train")


@pytest.mark.parametrize(
    ("sides", "way_out"),
    [
        (("German", "English"), r"train\.de, train\.en: set data\.src and data\.tgt to two of these suffixes"),
        (("", "English"), r"train\.de, train\.en: set data\.tgt to one of these suffixes"),
    ],
)
def test_for_unknown_sides_the_files_of_the_split_are_named(folder, sides, way_out):
    (folder / "train.en").rename(folder / "train.en.gz")
    (folder / "valid.fr").touch()
    with pytest.raises(UserError, match=rf"^there is no .*; the folder contains {way_out}$"):
        parallel_text.read(DataConfig(src=sides[0], tgt=sides[1], dir=str(folder)), "train")


def test_many_files_of_a_split_are_not_listed(folder):
    for i in range(9):
        (folder / f"train.{i}").touch()
    with pytest.raises(UserError, match=r"^there is no .*\[\.gz\](; did you mean '[^']*'\?)?$"):
        parallel_text.read(DataConfig(src="German", tgt="English", dir=str(folder)), "train")


def test_unknown_split_is_a_mistake_of_the_caller(folder):
    with pytest.raises(ValueError, match="split is 'dev': expected one of"):
        parallel_text.read(files(folder), "dev")


def test_built_in_corpus_has_the_sizes_asked_for():
    cfg = DataConfig(corpus="cldr", src="en", tgt="de", cldr=CldrConfig(train=50, valid=5, test=7))
    texts = [parallel_text.read(cfg, split) for split in corpora.SPLITS]
    assert [(len(text.src), len(text.tgt)) for text in texts] == [(50, 50), (5, 5), (7, 7)]
    assert not set(texts[0].src) & set(texts[2].src)
