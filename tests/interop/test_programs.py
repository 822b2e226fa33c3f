"""Exported programs translate as decoding does, and need none of this package."""

import ast
import configparser
import dataclasses
import io
import itertools
import json
import random
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sentencepiece import SentencePieceTrainer

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import visible
from convs2s_jax.data import bpe_codes, pieces
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.symbols import train_words, word_list
from convs2s_jax.data.text_files import LONGEST
from convs2s_jax.interop.orders import ProgramExport
from convs2s_jax.interop.programs import runtime
from convs2s_jax.interop.programs.exporting import export_programs
from tests.workdirs import KINDS, LINES, normalizing, unpacked


def exported(workdir, output, search=None, **more):
    order = {"max_tokens": 16, "platforms": ("cpu",)} | more
    given = ProgramExport(workdir=str(workdir), output=str(output), **order)
    export_programs(given, search or {}, lambda _sentence: None)
    return output


@pytest.fixture(scope="module")
def convs2s(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    workdir = unpacked("convs2s", folder)
    return workdir, exported(workdir, folder / "model", max_tokens=24, platforms=("cpu", "cuda", "tpu"))


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_model_translates_as_decoding_does(kind, tmp_path):
    workdir = unpacked(kind, tmp_path)
    model = runtime.Model(exported(workdir, tmp_path / "model", max_tokens=32))
    expected = [json.loads(line) for line in (workdir / "translations.jsonl").read_text().splitlines()]
    assert model.translate(LINES) == [one["hypotheses"][0]["text"] for one in expected]


def test_scores_and_hypotheses_are_those_of_decoding(convs2s):
    workdir, folder = convs2s
    records = [json.loads(line)["hypotheses"] for line in (workdir / "translations.jsonl").read_text().splitlines()]
    expected = {line: record for line, record in zip(LINES, records, strict=True) if line != LINES[3]}  # is too long
    for record, found in zip(expected.values(), runtime.Model(folder).translate([*expected], nbest=2), strict=True):
        assert found[0][1] == record[0]["text"]
        np.testing.assert_allclose(found[0][0], record[0]["score"], rtol=1e-5)
        assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)


def test_an_export_normalises_as_far_as_it_can(convs2s, tmp_path):
    folder = shutil.copytree(convs2s[1], tmp_path / "model")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["nfkc"] is False
    (folder / "manifest.json").write_text(json.dumps({**manifest, "nfkc": True}))
    normal, plain = runtime.Model(folder), runtime.Model(convs2s[1])
    wide = [line.translate({i: i + 0xFEE0 for i in range(0x21, 0x7F)}) for line in LINES]
    assert normal.translate(wide) == plain.translate(LINES) != plain.translate(wide)
    normalizing(workdir := unpacked("convs2s", tmp_path), "nfkc", "moses")
    with pytest.raises(UserError, match=r"data\.normalize is nfkc, moses, of which an export can only do nfkc; "):
        exported(workdir, tmp_path / "refused")


def test_the_program_needs_only_a_few_packages(convs2s):
    tree = ast.parse((convs2s[1] / "translate.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert others == {"jax", "numpy", "safetensors", "sentencepiece"}
    needs = [line.partition("  #")[0] for line in (convs2s[1] / "requirements.txt").read_text().splitlines()]
    assert needs.pop(0) == f"jax >= {runtime.jax.__version__}"
    floors = configparser.ConfigParser()
    floors.read(Path(__file__).parents[2] / "setup.cfg")
    known = f"{floors['options']['install_requires']}{floors['options.extras_require']['export']}".splitlines()
    assert {need.split()[0] for need in needs} == {*others - {"jax"}, "flatbuffers"}
    assert {*needs} <= {*known}


def stock(lines, path):
    """A SentencePiece model with its own ids and with bytes for unknown characters."""
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(path.with_suffix("")),
        vocab_size=290,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=3,
    )
    return pieces.load_model(path)


TEXTS = ["", "a  b", "ab c", "the cat \u2581 sat", "\U0001f600 unknown", "x" * 30, "ab" * 16_000]
TEXTS += ["a\xa0b\u200bc \xadd\tx", "\u3000\u200d", "@@ a@@ \u2028b@@@"]


@pytest.mark.parametrize("kind", ["bpe", "words", "marked", "listed", "stock", "codes 0.1", "codes 0.2"])
def test_the_runtime_cuts_text_as_the_vocabularies_do(kind, tmp_path):
    lines = ["the cat sat on the mat", "a b c \u2581 ab", "cats and mats " * 3] * 20
    if kind == "marked":  # the first word is a byte order mark
        lines += ["\ufeff " * 200]
    by_words = kind in ("words", "marked")
    cfg = VocabularyConfig(kind="words" if by_words else "bpe", min_count=1)
    train = train_words if by_words else pieces.train
    made = train(cfg, lines, size=41, field="size")
    if kind == "listed":
        cut = [made.token(i) for i in range(made.size - 1, 5, -1)]
        made = dataclasses.replace(word_list(cut), segmenter=pieces.ListedPieces(made.segmenter.model))
    if kind == "stock":
        made = stock(lines, tmp_path / "own.model")
    if kind.startswith("codes"):
        rng, parts = random.Random(4), ["a", "b", "@", "ab", "ba", "aba", "a</w>", "@</w>", "@@</w>", "</w>"]
        merges = rng.sample(list(itertools.product(parts, parts)), 60)
        lines = [" ".join("".join(rng.choices("ab@", k=rng.randrange(1, 20))) for _ in range(9)) for _ in range(30)]
        codes = bpe_codes.CodedWords(
            (*merges, *merges[::-1]), kind.split()[1]
        )  # those that are there again do not count
        cut = dict.fromkeys(piece for line in lines for word in line.split() for piece in codes.cut(word))
        made = dataclasses.replace(word_list(tuple(cut)), segmenter=codes)
    made.save(tmp_path / f"src{made.suffix}")
    read = runtime._VOCABULARIES[made.suffix](tmp_path / f"src{made.suffix}")
    for ids in made.encode([*TEXTS, *lines]):
        assert read.decode(ids) == made.decode(ids)
    assert read.encode([*TEXTS, *lines]) == made.encode([*TEXTS, *lines])


def test_the_exported_file_has_what_it_needs_of_this_package(convs2s):
    found = runpy.run_path(str(convs2s[1] / "translate.py"))
    others = {
        name for name, value in vars(runtime).items() if getattr(value, "__module__", "").startswith("convs2s_jax.")
    }
    assert {"merged", "LONGEST", "SPECIAL", *others} <= found.keys()
    every = "".join(chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000)
    assert found["visible"](every, "\xa0") == visible(every, "\xa0")
    assert found["merged"]("abab", lambda *pair: {("a", "b"): 0}.get(pair)) == ["ab", "ab"]
    assert found["Model"](convs2s[1]).translate(LINES[:3]) == runtime.Model(convs2s[1]).translate(LINES[:3])


def test_a_line_that_no_program_holds_is_named(convs2s):
    with pytest.raises(runtime.ExportError, match=r"line 2 has .* tokens, but this export accepts up to 23; split it"):
        runtime.Model(convs2s[1]).translate(["5", "1 2 3 4 5 6 7 8 9 " * 3])


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("src.model", lambda _: b"other", "src.model is damaged; copy the folder again"),
        ("manifest.json", lambda _: b"{", "manifest.json cannot be read"),
        ("translate-1x16.bin", lambda _: b"other", "translate-1x16.bin is damaged; copy the folder again"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, convs2s, name, change, sentence):
    copy = shutil.copytree(convs2s[1], tmp_path / "model")
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    with pytest.raises(runtime.ExportError, match=sentence):
        runtime.Model(copy)


def test_a_model_for_other_devices_or_of_another_jax_is_refused(convs2s, monkeypatch):
    model = runtime.Model(convs2s[1])
    monkeypatch.setattr(runtime.jax, "default_backend", lambda: "rocm")
    with pytest.raises(runtime.ExportError, match="exported for cpu, cuda, tpu, but JAX is using rocm; export it for"):
        model.translate(["5"])
    monkeypatch.setattr(runtime.export, "deserialize", lambda _: 1 / 0)
    with pytest.raises(runtime.ExportError, match=r"translate-1x16.bin was exported with jax .* and cannot be read by"):
        model.translate(["5"])


def test_a_line_break_at_the_end_of_a_line_is_no_part_of_it(convs2s):
    model, lines = runtime.Model(convs2s[1]), ["5 kilowatts", "Norway and Spain", "5"]
    expected = model.translate(lines)
    assert model.translate(line + end for line, end in zip(lines, ("\n", "\r\n", "\r"), strict=True)) == expected
    with pytest.raises(runtime.ExportError, match=r"^lines is a single string; expected a list of strings$"):
        model.translate("April 4")
    for nbest in (0, 3):
        with pytest.raises(runtime.ExportError, match=f"nbest is {nbest}; use 1 to 2"):
            model.translate(["5"], nbest=nbest)


def run(monkeypatch, capfdbinary, data, *flags):
    """Status, standard output and standard error of translate.py with a stand-in for its model."""
    model = SimpleNamespace(
        translate=lambda lines, nbest: [[(0.5, x[::-1])] * nbest if nbest > 1 else x for x in lines]
    )
    monkeypatch.setattr(runtime, "Model", lambda: model)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    monkeypatch.setattr("sys.argv", ["translate.py", *flags])
    try:
        runtime.main()
    except SystemExit as ended:
        return ended.code, *capfdbinary.readouterr()
    sys.stdout.flush()
    return 0, *capfdbinary.readouterr()


def test_the_program_translates_lines_and_refuses_what_is_no_text(monkeypatch, capfdbinary):
    text = "\ufeffa\u2028b\n\n\x85c\nd"
    for content in (text, f"{text}\n"):
        found = run(monkeypatch, capfdbinary, content.encode())
        assert found == (0, "a\u2028b\n\n\x85c\nd\n".encode(), b"")
    assert run(monkeypatch, capfdbinary, b"ab\n", "--nbest=2") == (0, b"0\t0.5\tba\n" * 2, b"")
    assert run(monkeypatch, capfdbinary, b"") == (0, b"", b"")
    for content, sentence in (
        (b"a\nb\xff", b"line 2: byte 0xff is not UTF-8; convert the text"),
        (b"a\n" + bytes(LONGEST + 1), b"line 2 has more than 16,777,216 bytes; write one sentence on a line"),
    ):
        assert run(monkeypatch, capfdbinary, content) == (2, b"", b"translate.py: " + sentence + b"\n")


def test_an_output_that_is_there_is_not_overwritten(convs2s, tmp_path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UserError, match=r"--output=.*mine already exists"):
        exported(convs2s[0], tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_search_with_what_is_not_exported_is_refused(convs2s, tmp_path):
    """tests/serving/test_engine.py has the other refusals of `plain_search`."""
    with pytest.raises(UserError, match=r"^--lm_weight is 0\.2, but an export has no language model; use 0"):
        exported(convs2s[0], tmp_path / "model", search={"lm_weight": 0.2})
    assert not (tmp_path / "model").exists()


def test_the_end_of_the_output_chooses_the_kind_of_export(capsys):
    for flags, sentence in (
        (["--output=a.pt"], "--workdir is missing: export needs --workdir and --output"),
        (["-output", "a.pt", "--checkpoint=8"], "--checkpoint is a flag of the other kind of export"),
        (["--output=a.pt", "--beam_size", "8"], "means a fairseq checkpoint): remove it"),
        (["--output=a", "--nomomentum"], "--momentum is a flag of the other kind of export"),
        (["--output=a", "--nonormalize"], "--workdir is missing"),
    ):
        with pytest.raises(SystemExit) as ended:
            COMMANDS["export"].run(["convs2s export", *flags])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.drill
def test_the_folder_translates_where_this_package_is_not_installed(convs2s, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", convs2s[1] / "requirements.txt"], check=True)
    missing = subprocess.run([python, "-c", "import convs2s_jax"], capture_output=True, cwd=tmp_path, check=False)
    assert missing.returncode == 1
    lines = LINES[:3]
    done = subprocess.run(
        [python, convs2s[1] / "translate.py"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.splitlines() == runtime.Model(convs2s[1]).translate(lines)
