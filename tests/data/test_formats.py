"""A corpus in each of its formats: the same pairs, and one sentence about what is damaged."""

import bz2
import dataclasses
import gzip
import html
import importlib.util
import json
import lzma
import re
import socket
import time

import pyarrow
import pytest
from pyarrow import parquet

from convs2s_jax.core import network, stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, hugging_face, parallel_text, tables, tokens_on_disk, vocabulary
from convs2s_jax.data.config import DataConfig, SplitFiles, VocabularyConfig
from convs2s_jax.data.tokens_on_disk import Side
from tests.stores import bucket  # noqa: F401  (a fixture)

PAIRS = [("größer\u202fals\u2028x", "greater than"), ("", "one"), ('ein "Zitat"', "a 'quote' \\"), ("eins", "")] * 2
SIDES = [[pair[side] for pair in PAIRS] for side in (0, 1)]
COLUMNS = pyarrow.table({"translation": [{"de": de, "en": en} for de, en in PAIRS], "n": [*range(len(PAIRS))]})
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def lines(texts):
    return "".join(f"{text}\n" for text in texts).encode()


def text(folder, end, pack):
    for name, side in zip(("de", "en"), SIDES, strict=True):
        (folder / f"train.{name}{end}").write_bytes(pack(lines(side)))


def zstandard(folder):
    text(folder, ".zst", pytest.importorskip("backports.zstd").compress)


def tsv(folder, *header):
    rows = [*header, *(f"{i}\t{de}\t{en}" for i, (de, en) in enumerate(PAIRS))]
    (folder / "train.tsv.xz").write_bytes(lzma.compress(lines(rows)))


def json_lines(folder):
    rows = [json.dumps({"n": 1, "translation": {"de": de, "en": en}}) for de, en in PAIRS]
    (folder / "train.jsonl").write_bytes(lines(rows))


def small_groups(folder):
    parquet.write_table(COLUMNS, folder / "train.parquet", row_group_size=3)


def saved(folder):
    datasets = pytest.importorskip("datasets")
    data = datasets.DatasetDict({"train": datasets.Dataset(COLUMNS)})
    data.save_to_disk(folder / "saved")


INNER = {"src": "translation.de", "tgt": "translation.en"}
FORMATS = {
    **{f"text{end}": (lambda folder, end=end, pack=pack: text(folder, end, pack), {}) for end, pack in PACK.items()},
    "text.zst": (zstandard, {}),
    "tsv by number": (tsv, {"src": "2", "tgt": "3"}),
    "tsv by name": (lambda folder: tsv(folder, "n\tde.txt\ten"), {"src": "de.txt"}),
    "jsonl": (json_lines, INNER),
    "parquet": (small_groups, INNER),
    "hf saved": (saved, INNER | {"corpus": "hf:{}/saved", "dir": ""}),
    "hf files": (small_groups, INNER | {"corpus": "hf:{}", "dir": ""}),
}
# a drill, since its library imports PyTorch
EACH = [pytest.param(name, marks=[pytest.mark.drill] * name.startswith("hf")) for name in FORMATS]


def config(folder, **values):
    values = {"src": "de", "tgt": "en", "dir": str(folder), **values}
    full = {
        name: value.replace("{}", str(folder)) if isinstance(value, str) else value for name, value in values.items()
    }
    return DataConfig(**full)


def token_files(text, folder):
    """Content of the files of tokens, by name."""
    made = vocabulary.build(VocabularyConfig(kind="words", min_count=1), text, 1)
    sides = Side("train.src", text.src, made.src), Side("train.tgt", text.tgt, made.tgt)
    tokens_on_disk.tokenize(sides, tokens_on_disk.Cache(folder))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("place", ["{}", "gs://bucket/text"])
@pytest.mark.parametrize("name", EACH)
def test_every_format_gives_the_same_text_and_tokens(bucket, tmp_path, monkeypatch, name, place):  # noqa: F811
    write, values = FORMATS[name]
    if "hf" in name and (place != "{}" or not importlib.util.find_spec("datasets")):
        pytest.skip("the library datasets is not installed, or does not read from this store")
    monkeypatch.setattr(tables, "BLOCK", 3)
    monkeypatch.setattr(stores, "RANGE", 7)
    folder = tmp_path / "corpus" if place == "{}" else bucket / "text"
    folder.mkdir(parents=True)
    write(folder)
    cfg = config(folder, **{"dir": place, **values})
    found, text = parallel_text.read(cfg, "train"), corpora.ParallelText(*SIDES, "train")
    assert found == text
    assert token_files(found, tmp_path / "found") == token_files(text, tmp_path / "text")
    assert parallel_text.read(dataclasses.replace(cfg, src=""), "train").tgt == SIDES[1]
    sums = corpora.checksums(cfg, "train")
    if place == "{}":
        assert sums == corpora.checksums(cfg, "train")
        assert sums != corpora.checksums(dataclasses.replace(cfg, src=cfg.tgt, tgt=cfg.src), "train")
        assert sums != corpora.checksums(dataclasses.replace(cfg, skip_damaged=True), "train")
    assert (sums is None) == (place != "{}")


def test_the_lines_of_an_sgml_file_are_its_segments(tmp_path):
    for name, side in zip(("de", "en"), SIDES, strict=True):
        rows = (f'<seg id="{i}"> {html.escape(line, quote=False)} </seg>' for i, line in enumerate(side))
        content = lines(['<doc docid="1">', "<p>", *rows, "</p>", "</doc>"])
        (tmp_path / f"news.{name}.sgm").write_bytes(content)
        (tmp_path / f"packed.{name}.sgm.gz").write_bytes(gzip.compress(content))
    for end in (".sgm", ".sgm.gz"):
        both = f"{tmp_path}/*.de{end}", f"{tmp_path}/*.en{end}"
        cfg = DataConfig(src="de", tgt="en", files=SplitFiles(test=(both,)), skip_damaged=True)
        assert parallel_text.read(cfg, "test") == corpora.ParallelText(*SIDES, "test")
    for name, damaged in (("de", b"eins"), ("en", b"one")):  # a segment of each side, which are not of one pair
        path = tmp_path / f"news.{name}.sgm"
        path.write_bytes(path.read_bytes().replace(damaged, b"\xff"))
    cfg = dataclasses.replace(
        cfg, files=SplitFiles(test=(tuple(f"{tmp_path}/news.{one}.sgm" for one in ("de", "en")),))
    )
    with pytest.raises(UserError, match=r"news\.en\.sgm, line \d: byte 0xff is not UTF-8"):
        parallel_text.read(cfg, "test")


def test_messages_count_the_header_of_a_table(tmp_path):
    tsv(tmp_path, "n\tde\ten")
    for columns, line in ((("de", "en"), 3), (("2", "3"), 2)):
        text = parallel_text.read(config(tmp_path, src=columns[0], tgt=columns[1]), "train")
        assert text.where(1) == f"{tmp_path}/train.tsv.xz, line {line}"


@pytest.mark.parametrize("place", ["{}", "gs://bucket/text"])
def test_patterns_list_files_in_order(bucket, tmp_path, place):  # noqa: F811
    folder = tmp_path if place == "{}" else bucket / "text"
    (folder / "inner").mkdir(parents=True)
    for name in ("b", "a", "inner/c", "x[0]"):
        (folder / f"{name}.de").write_text(f"{name}\n")
        (folder / f"{name}.en").write_text(f"{name.upper()}\n")
    (folder / "t2.jsonl").write_text('{"de": "2", "en": "zwei"}\n')
    (folder / "t10.tsv").write_text("en\tde\nzehn\t10\n")

    def read(*entries):
        files = SplitFiles(train=eval(repr(entries).replace("{}", str(folder) if place == "{}" else place)))
        cfg = DataConfig(src="de", tgt="en", files=files)
        assert {*corpora.files_of(cfg)} >= {
            source.name for source in corpora.SOURCES["files"](cfg, "train")
        } or "gs" in place
        text = parallel_text.read(cfg, "train")
        return [*zip(text.src, text.tgt, strict=True)]

    assert read(("{}/[ab].de", "{}/[ab].en"), "{}/t*") == [("a", "A"), ("b", "B"), ("10", "zehn"), ("2", "zwei")]
    assert read(("{}/x[0].de", "{}/x[0].en")) == [("x[0]", "X[0]")]
    for entry, message in (
        (("{}/?.de", "{}/a.en"), r"/\?\.de matches 2 files but .*/a.en 1 file: list pairs of files$"),
        ("{}/y*", r"^no file matches .*/y\*: check folder and pattern$"),
        ("{}/a.de", r"^.*/a.de is no table \(tsv, jsonl, ndjson, parquet\): list text files as pairs of two$"),
    ):
        with pytest.raises(UserError, match=message):
            read(entry)


def row(**values):
    return json.dumps(values).encode() + b"\n"


GOOD = row(de="a", en="b")
DAMAGED = {
    "not UTF-8.tsv": (b"de\ten\na\tb\n\xff\tb\n", "line 3: byte 0xff is not UTF-8"),
    "NUL.tsv": (b"de\ten\na\tb\na\tb\0\n", "line 3: it contains NUL"),
    "short.tsv": (b"de\tx\ten\na\tx\tb\na\tb\n", "line 3: it has 2 columns; expected 3 or more"),
    "cut.jsonl": (GOOD + GOOD[:-3], r"line 2: it is not JSON \(.*\)"),
    "deep.jsonl": (GOOD + b"[" * 100_000, r"line 2: it is not JSON \(.*\)"),
    "list.jsonl": (GOOD + b"[1]\n", "line 2: there is no 'de'"),
    "field.jsonl": (GOOD + row(de="a", eng="b"), "line 2: there is no 'en'; did you mean 'eng'"),
    "number.jsonl": (GOOD + row(de=5, en="b"), "line 2: 'de' is 5, not text"),
    "null.jsonl": (GOOD + row(de=None, en="b"), "line 2: 'de' is None, not text"),
    "NUL.jsonl": (GOOD + row(de="a\0", en="b"), "line 2: 'de' contains NUL or half a character"),
    "surrogate.jsonl": (GOOD + row(de="a\ud800", en="b"), "line 2: 'de' contains NUL or half a character"),
    "not UTF-8.jsonl": (GOOD + b'{"de": "\xff"}\n', "line 2: byte 0xff is not UTF-8"),
    "null.parquet": ({"de": ["a", None], "en": ["b", "b"]}, "row 2: 'de' is None, not text"),
    "not UTF-8.parquet": ({"de": [b"a", b"\xff"], "en": ["b", "b"]}, "row 2: byte 0xff is not UTF-8"),
    "NUL.parquet": ({"de": ["a", "\0"], "en": ["b", "b"]}, "row 2: 'de' contains NUL"),
}


def written(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        parquet.write_table(pyarrow.table(content), path)
    return SplitFiles(train=(str(path),))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_row_is_refused_or_left_out(tmp_path, name):
    content, message = DAMAGED[name]
    cfg = DataConfig(src="de", tgt="en", files=written(tmp_path / name, content))
    with pytest.raises(UserError, match=f"^{tmp_path / name}, {message}"):
        parallel_text.read(cfg, "train")
    text = parallel_text.read(dataclasses.replace(cfg, skip_damaged=True), "train")
    assert (text.src, text.tgt, text.dropped["damaged"][0]) == (["a"], ["b"], 1)


def test_a_damaged_line_is_left_out_with_its_counterpart(tmp_path):
    (tmp_path / "train.de").write_bytes(b"a\n\xff\nc\nd\0\ne\n")
    (tmp_path / "train.en").write_bytes(b"A\nB\n\xff\nD\nE\n")
    text = parallel_text.read(config(tmp_path, skip_damaged=True), "train")
    assert (text.src, text.tgt, text.dropped["damaged"][0]) == (["a", "e"], ["A", "E"], 3)
    assert [text.where(i) for i in (0, 1)] == [f"{tmp_path}/train.en, line {number}" for number in (1, 5)]
    (tmp_path / "train.en").write_bytes(b"A\n\xff\n")
    with pytest.raises(UserError, match=r"train\.de has 5 lines but .*train\.en has 2: parallel files must have"):
        parallel_text.read(config(tmp_path, skip_damaged=True), "train")


def parquet_bytes(**columns):
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns or {"de": ["a"] * 99, "en": ["b"] * 99}), sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


REFUSED = {
    "cut.parquet": (parquet_bytes()[:-9], r" cannot be read \(.*\): copy it again, or choose a Parquet file"),
    "flipped.parquet": (
        parquet_bytes().replace(b"a", b"b", 1),
        r" cannot be read \(.*\): copy it again, or choose a Parquet file",
    ),
    "text.parquet": (b"a\tb\n", r" cannot be read \(.*\): copy it again, or choose a Parquet file"),
    "other.parquet": (parquet_bytes(de=["a"], eng=["b"]), " has no column 'en' of text; did you mean 'eng'"),
    "number.parquet": (parquet_bytes(de=["a"], en=[1]), " has no column 'en' of text"),
    "other.tsv": (b"de\teng\n", " has no column 'en'; did you mean 'eng'"),
    "cut.jsonl.gz": (gzip.compress(GOOD)[:-9], " is not a complete gzip file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_file_is_always_refused(tmp_path, name):
    content, message = REFUSED[name]
    cfg = DataConfig(src="de", tgt="en", files=written(tmp_path / name, content), skip_damaged=True)
    with pytest.raises(UserError, match=f"^{tmp_path / name}{message}"):
        parallel_text.read(cfg, "train")
    assert corpora.missing(DataConfig(src="de", tgt="en", files=SplitFiles(train=("no*.tsv",))), "train") == "no*.tsv"


def test_a_split_in_two_forms_is_refused(tmp_path):
    text(tmp_path, "", bytes)
    tsv(tmp_path)
    with pytest.raises(UserError, match=r"train\.de and .*train\.tsv\.xz both exist, but only one can be read"):
        parallel_text.read(config(tmp_path), "train")


def failing(*_args, **_options):
    raise socket.gaierror(-2, "Name or service not known")


def waiting(*_args, **_options):
    time.sleep(6)
    failing()


@pytest.mark.parametrize(
    ("lookup", "why"),
    [(failing, "Name or service not known"), (waiting, "no answer within 0.2 s"), (None, "timed out|no answer")],
)
def test_sites_that_do_not_answer_are_told_of_in_time(monkeypatch, lookup, why):
    monkeypatch.setattr(network, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        if lookup:
            monkeypatch.setattr(socket, "getaddrinfo", lookup)
        begun = time.monotonic()
        assert re.search(why, network.unreachable([url, f"{url}/other"]))
    assert time.monotonic() - begun < 4
    assert network.unreachable([]) == ""


def test_another_configuration_of_a_data_set_is_another_text(tmp_path, monkeypatch):
    """Of the same files, and also another split."""
    (tmp_path / "x").write_text("a\n")
    monkeypatch.setattr(hugging_face, "read", lambda *_, **__: (iter(()), (str(tmp_path / "x"),)))
    corpora_of = [(name, split) for name in ("hf:x", "hf:x:de", "hf:x:en") for split in ("train", "valid")]
    sums = [str(corpora.checksums(config("", corpus=name), split)) for name, split in corpora_of]
    assert len({*sums}) == len(sums)


@pytest.mark.drill
def test_a_data_set_of_hugging_face_is_read_or_it_is_said_why_not(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    small_groups(tmp_path)
    monkeypatch.setattr(hugging_face, "unreachable", lambda _: "no network")
    for values, message in (
        (
            {"corpus": "hf:some/name"},
            r"'hf:some/name' cannot be read \(https://huggingface.co does not answer: no network\)",
        ),
        ({"corpus": f"hf:{tmp_path}"}, r", row 1: there is no 'de'; available: n, translation"),
        ({"corpus": f"hf:{tmp_path}", **INNER, "tgt": "n"}, r", row 1: 'n' is 0, not text"),
    ):
        with pytest.raises(UserError, match=message):
            parallel_text.read(config("", **values), "train")
    assert len(parallel_text.read(config("", corpus=f"hf:{tmp_path}"), "valid", optional=True)) == 0
