"""Exported programs translate as decoding does, and need none of this package."""

import ast
import itertools
import json
import random
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentencepiece import SentencePieceTrainer

from convs2s_jax.commands import export as command
from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import bpe_codes, pieces
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.symbols import Vocabulary, train_words, word_list
from convs2s_jax.interop.orders import ProgramExport
from convs2s_jax.interop.programs import runtime
from convs2s_jax.interop.programs.exporting import export_programs
from convs2s_jax.nn.trees import paths
from convs2s_jax.translation.translator import Translator, load
from tests.stores import bucket, requests  # noqa: F401  (fixtures)
from tests.workdirs import KINDS, LINES, unpacked


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
def test_an_export_to_a_store_has_the_files_of_a_local_one(convs2s, bucket, requests):  # noqa: F811
    workdir, folder = convs2s
    bucket.mkdir()
    exported(workdir, "gs://bucket/model/", max_tokens=24, platforms=("cpu", "cuda", "tpu"))
    assert sorted(path.name for path in folder.iterdir()) == stores.names("gs://bucket/model")
    for path in folder.iterdir():  # equal bytes: programs do not contain the places of the code that made them
        assert stores.read(f"gs://bucket/model/{path.name}") == path.read_bytes(), path.name
    assert requests[-1] == ("write", "gs://bucket/model/manifest.json")
    with pytest.raises(UserError, match=r"^--output=gs://bucket/model already exists: choose a new folder"):
        exported(workdir, "gs://bucket/model")


def test_a_platform_that_jax_cannot_start_is_one_sentence(convs2s, monkeypatch):
    def refuses():
        raise RuntimeError("Unable to start 'x': no. (set JAX_PLATFORMS='' to choose)")

    monkeypatch.setattr(runtime.jax, "devices", refuses)
    expected = "JAX finds no device: Unable to start 'x': no; unset JAX_PLATFORMS or set JAX_PLATFORMS=cpu"
    with pytest.raises(runtime.ExportError, match=f"^{re.escape(expected)}$"):
        runtime.Model(convs2s[1])


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


def test_the_runtime_needs_only_a_few_packages():
    tree = ast.parse(Path(runtime.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert others == {"jax", "numpy", "sentencepiece"}


def test_parameters_are_a_safetensors_file_with_the_names_of_the_tree(convs2s):
    workdir, folder = convs2s
    params = load(workdir, tell=pytest.fail).params
    stored = load_file(folder / "parameters.safetensors")
    assert sorted(stored) == sorted(paths(params))
    np.testing.assert_array_equal(stored["decoder/embedding/table"], params.decoder.embedding.table)
    read = runtime._safetensors(folder / "parameters.safetensors")
    assert all(np.array_equal(read[name], array) for name, array in stored.items())


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


TEXTS = ["", "a  b", "ab c", "the cat \u2581 sat", "\U0001f600 unknown", "x" * 30]


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
        made = Vocabulary(pieces.ListedPieces(made.segmenter.model), *word_list(cut).lists)
    if kind == "stock":
        made = stock(lines, tmp_path / "own.model")
    if kind.startswith("codes"):
        rng, parts = random.Random(4), ["a", "b", "aa", "ab", "ba", "aba", "a</w>", "b</w>", "ab</w>", "</w>"]
        merges = rng.sample(list(itertools.product(parts, parts)), 60)
        lines = [" ".join("".join(rng.choices("ab", k=rng.randrange(1, 20))) for _ in range(9)) for _ in range(30)]
        codes = bpe_codes.Codes((*merges, *merges[::-1]), kind.split()[1])  # those that are there again do not count
        cut = dict.fromkeys(piece for line in lines for word in line.split() for piece in codes.cut(word))
        made = Vocabulary(bpe_codes.CodedWords(codes), *word_list(tuple(cut)).lists)
    made.save(tmp_path / f"src{made.suffix}")
    read = runtime._VOCABULARIES[made.suffix](tmp_path / f"src{made.suffix}")
    for ids in made.encode([*TEXTS, *lines]):
        assert read.decode(ids) == made.decode(ids)
    assert read.encode([*TEXTS, *lines]) == made.encode([*TEXTS, *lines])


def test_a_line_that_no_program_holds_is_named(convs2s):
    with pytest.raises(runtime.ExportError, match=r"line 2 has .* tokens, but this export accepts up to 23; split it"):
        runtime.Model(convs2s[1]).translate(["5", "1 2 3 4 5 6 7 8 9 " * 3])


def manifest(change):
    def write(folder):
        path = folder / "manifest.json"
        path.write_text(change(path.read_text()))

    return write


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / "src.model").write_bytes(b"other"), "src.model is damaged; copy the folder again"),
        (lambda folder: (folder / "translate-8x16.bin").unlink(), "No such file or directory; copy the whole folder"),
        (manifest(lambda _: "{"), "manifest.json cannot be read"),
        (manifest(lambda _: '{"format": 1}'), "has format 1, but this program reads format 2"),
        (manifest(lambda _: "[]"), "manifest.json is damaged; copy the folder again"),
        (
            manifest(lambda text: text.replace('"max_length_b": ', '"max_length_b": 1')),
            "manifest.json is damaged or was edited; copy the folder again",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, convs2s, change, sentence):
    copy = tmp_path / "model"
    copy.mkdir()
    for path in convs2s[1].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    change(copy)
    with pytest.raises(runtime.ExportError, match=sentence):
        runtime.Model(copy)


def test_a_line_break_at_the_end_of_a_line_is_no_part_of_it(convs2s):
    model, lines = runtime.Model(convs2s[1]), ["5 kilowatts", "Norway and Spain", "5"]
    expected = model.translate(lines)
    assert model.translate(line + end for line, end in zip(lines, ("\n", "\r\n", "\r"), strict=True)) == expected


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("April 4", "^lines is 'April 4' of type str; expected a list of strings$"),
        (["5", 6], "^line 2 is '6' of type int; expected a string$"),
        (
            ["5", "6 \ud800"],
            "^line 2 contains half of a surrogate pair, which is not a character; correct its encoding$",
        ),
        (["5", "6\n7\n"], "^line 2 contains a line break; pass each line as a separate string$"),
    ],
)
def test_what_is_no_list_of_lines_is_refused(lines, sentence, convs2s):
    with pytest.raises(runtime.ExportError, match=sentence):
        runtime.Model(convs2s[1]).translate(lines)


@pytest.mark.parametrize("nbest", [0, 3, "2"])
def test_no_other_number_of_hypotheses_than_the_search_has_can_be_asked_for(convs2s, nbest):
    with pytest.raises(runtime.ExportError, match=f"nbest is {nbest}; use 1 to 2"):
        runtime.Model(convs2s[1]).translate(["5"], nbest=nbest)


def test_an_output_that_is_there_is_not_overwritten(convs2s, tmp_path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UserError, match=r"--output=.*mine already exists"):
        exported(convs2s[0], tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "kept"


def test_an_ensemble_is_not_exported(tmp_path):
    with pytest.raises(UserError, match=r"^--workdir=a,b lists several folders, but an ensemble cannot be exported; "):
        exported(Path("a,b"), tmp_path / "model")
    (tmp_path / "a,b").mkdir()  # an old run whose name has a comma
    with pytest.raises(UserError, match=r"a,b contains no config\.json"):
        exported(tmp_path / "a,b", tmp_path / "model")


def test_a_search_with_what_is_not_exported_is_refused(convs2s, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"^--lm_weight is 0\.2, but an export has no language model; "):
        exported(convs2s[0], tmp_path / "model", search={"lm_weight": 0.2})
    with pytest.raises(UserError, match=r"^--length_penalty with --nonormalize has no effect: leave one out"):
        exported(convs2s[0], tmp_path / "model", search={"length_penalty": 0.5, "normalize": False})
    monkeypatch.setattr(Translator, "attends", False)
    with pytest.raises(UserError, match=r"^--coverage_penalty is 0\.2 and the model has no attention to cover"):
        exported(convs2s[0], tmp_path / "model", search={"coverage_penalty": 0.2})
    assert not (tmp_path / "model").exists()


def test_the_end_of_the_output_chooses_the_kind_of_export(capsys):
    for flags, sentence in (
        (["--output=a.pt"], "--workdir is missing: export needs --workdir and --output"),
        (["-output", "a.pt", "--checkpoint=8"], "--checkpoint is a flag of the other kind of export"),
        (["--output=a.pt", "--beam_size", "8"], "means fairseq): remove it"),
        (["--output=a", "--step=8"], "means fairseq): use --checkpoint"),
        (["--output=a", "--nomomentum"], "means fairseq): remove it"),
        (["--output=a", "--nonormalize"], "--workdir is missing"),
        (["--output=a", "--int8"], "--int8 is a flag of convs2s decode, not of an export: remove it"),
        (["--output=a.pt", "--nointeractive"], "--nointeractive is a flag of convs2s decode"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.console(["convs2s export", *flags])
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
