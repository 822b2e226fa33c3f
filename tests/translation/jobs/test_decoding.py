"""Files through the whole of decode.py, short of its flags: windows, interrupts, scores, odd text, mistakes."""

import json
import os
import random
import re
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import DataConfig
from convs2s_jax.training.run import outputs
from convs2s_jax.translation.jobs import decoding, job
from convs2s_jax.translation.jobs.options import Options
from tests.helpers import drills_but
from tests.odd_lines import NO_TEXT, as_read, odd_lines
from tests.translation.conftest import LINES

CASES = {
    "json": {"format": "json", "nbest": 2},
    "score": {"score": True, "format": "json"},
    "sampling": {"search": {"sampling": True}, "seed": 4},
    "prefix": {"prefix": True},
}
SEED = 20261122
WORDS = " ".join(LINES).split()

pytestmark = pytest.mark.usefixtures("quick")


def same(a, b, *, exact):
    """Equal, or equal but for rounding of numbers: another window has other batches."""
    if exact:
        assert a == b
        return
    a, b = ([word for line in x.decode().split("\n") for word in line.split(" ")] for x in (a, b))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if x != y:
            numbers = [[float(part) for part in z.strip("[],").split("\t")[-1:]] for z in (x, y)]
            np.testing.assert_allclose(*numbers, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", drills_but(CASES, kept=["json"]))
def test_windows_change_nothing_but_the_rounding_of_scores(desk, name):
    desk.decode(**CASES[name])
    whole = desk.read()
    assert whole.count(b"\n") >= len(desk.lines)
    desk.decode(output="windows", window=4, **CASES[name])
    same(desk.read("windows"), whole, exact=name in ("sampling", "prefix"))


def test_sizes_beyond_any_text_are_those_of_the_text(desk):
    desk.decode(output="whole")
    desk.decode(batch_size=10**18, batch_tokens=10**18, window=10**18, show=10**18)
    assert desk.read() == desk.read("whole")


def test_unknown_text_is_told_once_and_nothing_else_changes(desk):
    desk.write("in", [*LINES, "Norway \u0995", *["\u0995\u0996\u0997 \x1b"] * 5])
    desk.decode(window=3)
    whole = desk.read()
    said = "lines have text that is not in the source vocabulary (most often"
    first = f"6 of 14 {said} \u0995 \u0996 \u0997 \\x1b) and can only be guessed: line 9, 10, 11, 12, 13 ..."
    assert desk.told == [f"{desk.path('in')}: {first}"]
    desk.interrupted(4, window=3)
    desk.decode(window=3, resume=True)
    assert f"2 of 2 {said} " in desk.told[1]
    assert desk.told[1].endswith(": line 13, 14")
    assert desk.read() == whole


def test_a_window_is_translated_before_the_input_ends_and_resumed_while_more_of_it_comes(desk, monkeypatch):
    """The rest is written when the first window is translated, or after a minute, when the test has failed."""
    desk.decode(window=2, output="whole")
    read, write = os.pipe()
    data, real, early = desk.read("in"), job.translate, []
    rest = data.split(b"\n", 2)[2]

    def more():
        os.write(write, rest)
        os.close(write)

    late = threading.Timer(60, more)

    def translate(*given, **named):
        if not early:
            early.append(late.is_alive())
            late.cancel()
            more()
        return real(*given, **named)

    monkeypatch.setattr(job, "translate", translate)
    os.write(write, data.removesuffix(rest))
    late.start()
    desk.decode(window=2, input=f"/dev/fd/{read}")
    os.close(read)
    assert early == [True]
    assert desk.read() == desk.read("whole")
    with (desk.folder / "in").open("a") as file:
        file.write("Spain\n")
    desk.decode(window=2, resume=True)
    assert f"{desk.path('out')} already has 8 of 9 lines; continuing with the next line" in desk.told
    assert desk.read().startswith(desk.read("whole"))
    assert desk.read().count(b"\n") == 9
    before = desk.read()
    for lines in ([*desk.lines, "Spain", "x"], desk.lines[:7]):
        desk.write("in", lines)
        with pytest.raises(UserError, match=r"^.*out is the output of another command: the input has chang"):
            desk.decode(window=2, resume=True)
        assert desk.read() == before


def test_a_mistake_in_a_later_line_costs_only_its_window(desk):
    (desk.folder / "in").write_bytes(desk.read("in") + b"\xff\nNorway\n")
    with pytest.raises(UserError, match=r"/in, line 9: byte 0xff is not .* \(8 of 10 lines are written; --resume cont"):
        desk.decode(window=4)
    desk.write("in", [*desk.lines, "Spain", "Norway"])
    desk.decode(window=4, resume=True)
    desk.decode(window=4, output="whole")
    assert desk.read() == desk.read("whole")


@pytest.mark.parametrize("style", ["text", "json", "fairseq"])
def test_an_interrupt_leaves_whole_lines_and_resuming_gives_the_bytes_and_scores_of_the_whole(desk, style):
    more = {"reference": True, "format": style, "window": 3}
    desk.decode(**more, output="whole")
    *_, scores = desk.told
    assert "BLEU" in scores
    assert "% of 8 sentences" in scores
    desk.interrupted(1, **more)
    assert desk.told == ["interrupted: 3 of 8 lines are written; --resume continues after them"]
    assert desk.read("whole").startswith(desk.read())
    desk.decode(**more, resume=True)
    assert desk.told[0] == f"{desk.path('out')} already has 3 of 8 lines; continuing with the next line"
    assert (desk.told[-1], desk.read()) == (scores, desk.read("whole"))
    desk.decode(**more, resume=True)
    assert desk.told[0] == f"{desk.path('out')} already has 8 of 8 lines; nothing left to do"
    assert (desk.told[-1], desk.read()) == (scores, desk.read("whole"))
    assert style != "fairseq" or b"T-0\t5 Kilowatt\nH-0" in desk.read()


def test_what_is_written_to_standard_output_cannot_be_resumed(desk, monkeypatch, capfdbinary):
    monkeypatch.setattr(job, "translate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        decoding.decode(Options(workdir=(str(desk.workdir),), input=desk.path("in")), tell=desk.told.append)
    assert desk.told == ["interrupted: 0 of 8 lines are written; the rest was not translated"]
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bleu_tokenize": "moses", "reference": True}, "^bleu_tokenize is 'moses'"),
        ({"nbest": 3, "format": "json"}, "^--nbest=3 with a beam_size of 2"),
        ({"search": {"top_k": 3}}, r"^--top_k is 3 without sampling, .*, or leave top_k out$"),
        *(
            ({name: "/no/such"}, r"^/no/such cannot be read: No such file or directory; choose another file$")
            for name in ("input", "prefix", "constraints", "score", "shortlist")
        ),
        ({"reference": ("/no/such", "b.de")}, "^/no/such cannot be read: .*; a comma in --reference separates files$"),
    ],
    ids=str,
)
def test_a_mistake_is_reported_before_the_model_is_loaded_and_leaves_the_output(desk, monkeypatch, options, message):
    monkeypatch.setattr(job, "load", lambda *_, **__: pytest.fail("loaded")) if "nbest" not in options else None
    (desk.folder / "out").write_text("precious\n")
    with pytest.raises(UserError, match=message):
        desk.decode(**options)
    assert desk.read() == b"precious\n"


@pytest.mark.parametrize(
    ("name", "what"),
    [("reference", "reference"), ("prefix", "prefix"), ("score", "translation"), ("constraints", "const")],
)
def test_files_of_other_lengths_are_refused(desk, name, what):
    desk.write("short", ["a", "b"])
    path = desk.path("short")
    with pytest.raises(UserError, match=f"^.*/in has 8 lines, but .*/short has 2: each line needs its {what}"):
        desk.decode(**{name: (path,) if name == "reference" else path})


def test_no_lines_are_no_lines_and_have_no_scores(desk):
    desk.write("in", [])
    desk.write("reference", [])
    with pytest.raises(UserError, match=r"/in is empty: there is nothing to score; use lines of text$"):
        desk.decode(reference=True)
    assert not (desk.folder / "out").exists()
    desk.decode()
    assert desk.read() == b""


def test_lines_that_were_cut_are_named(desk):
    desk.write("in", ["a", "1 " * 80])
    desk.decode(window=1)
    start = f"{desk.path('in')}, line 2: too long for the model's positions; left out at its end: "
    assert [re.sub(r"[1-9]\d* tokens$", "N", told) for told in desk.told] == [f"{start}N"]


def test_a_split_brings_source_and_reference(desk):
    options = Options(workdir=(str(desk.workdir),), split="test", output=desk.path("out"), show=2, format="json")
    decoding.decode(options, tell=desk.told.append)
    assert len(desk.read().splitlines()) == 8
    assert sum("  source  " in line for line in desk.told) == 2
    assert sum("  reference  " in line for line in desk.told) == 2
    assert "% of 8 sentences" in desk.told[-1]


def test_constraints_and_a_dictionary_come_from_files(desk):
    desk.write("wishes", ["Norwegen\t5", "", *[""] * 6])
    desk.decode(constraints=desk.path("wishes"))
    first = desk.read().decode().split("\n")[0]
    assert "Norwegen" in first
    assert "5" in first
    desk.write("dictionary", ["Norway\tNORGE"])
    unknown = {"unk_penalty": -50.0, "max_length_a": 0.0, "max_length_b": 2}
    desk.decode(replace_unk=True, unk_dictionary=desk.path("dictionary"), search=unknown)
    assert set(desk.read().decode().split("\n")[5].split()) == {"NORGE"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("test.b", {"corpus": "files", "src": "a", "tgt": "b", "dir": "FOLDER"}),
        ("own", {"corpus": "files", "src": "a", "tgt": "b", "files": {"train": [["FOLDER/x", "FOLDER/own"]]}}),
        ("valid.tsv", {"corpus": "tsv", "dir": "FOLDER"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_file_of_the_corpus_is_written_over(desk, monkeypatch, name, data):
    """decode.py --split=test --output=test.de, in the folder of the corpus"""
    values = json.loads(json.dumps(data).replace("FOLDER", str(desk.folder)))
    cfg = types.SimpleNamespace(data=build(DataConfig, values, "data"), model=None)
    monkeypatch.setattr(decoding.run_folder, "load_config", lambda *_, **__: cfg)
    desk.write(name, ["old"])
    with pytest.raises(UserError, match=rf"/{name} is a file of the corpus of --workdir=.*, which would be overwr"):
        desk.decode(output=name)
    assert desk.read(name) == b"old\n"


@pytest.mark.parametrize("name", ["config.json", "vocab/src.model", "vocab/new", "checkpoints/3", "mlflow.db"])
def test_no_file_of_a_run_is_written_over(desk, name):
    place = f"{desk.workdir}/{name}"
    if not Path(place).is_dir():
        with pytest.raises(UserError, match=rf"/{name} belongs to the run in .*: choose another path$"):
            desk.decode(output=place)
    with pytest.raises(UserError, match=rf"^--json=.*/{name} belongs to the run in .*: choose another path$"):
        outputs.check_outside_runs(place, "--json")


def test_other_files_beside_those_of_a_run_may_be_outputs(desk, tmp_path):
    own = (f"{desk.workdir}/{name}" for name in ("out", "outputs/config.json", "config.json.txt", "../vocab"))
    for free in ("", "-", "gs://bucket/plan.json", f"{tmp_path}/config.json", *own):
        outputs.check_outside_runs(free, "--json")


def losses(desk, given, **options):
    """How many lines of a file have no line of their own, in text and JSON, in two passes."""
    (desk.folder / "in").write_bytes("".join(f"{line}\n" for line in given).encode())
    given = as_read(given)
    more = {"search": {"beam_size": 1, "max_length_a": 0.0, "max_length_b": 4}, "batch_size": 256, **options}
    desk.decode(**more, output="text")
    desk.decode(**more, format="json", output="first")
    desk.decode(**more, format="json", output="second")
    texts, records = (desk.read(name).decode().split("\n")[:-1] for name in ("text", "first"))
    if len(texts) != len(given) or len(records) != len(given) or desk.read("first") != desk.read("second"):
        return len(given)
    lost = 0
    for i, (line, text, record) in enumerate(zip(given, texts, map(json.loads, records), strict=True)):
        best = record["hypotheses"][0]["text"].replace("\n", " ")
        lost += (record["line"], record["source"], best) != (i, line, text)
        lost += not line and text != ""
    return lost


def test_lines_of_white_space_stay_empty_and_white_space_and_invisible_characters_spoil_no_line(desk):
    blank = ["\t", "\xa0 ", "\u3000", "\u2028", "\u200b", "\ufeff\u200d", "\xad"]
    words = ["Nor\xadway\xa0and\u3000Spain", "\u200fNorway\x0band\u2028Spain\ufeff", "Norway\u200band\x85Spain"]
    desk.write("in", ["", *blank, "Norway and Spain", *words])
    desk.decode(prefix="")
    *empty, plain, a, b, c = desk.read().decode().split("\n")[:-1]
    assert empty == [""] * 8
    assert plain == a == b == c != ""
    assert desk.told == []


@pytest.mark.parametrize("options", [{}, {"replace_unk": True}], ids=str)
def test_each_odd_line_gives_one_line(desk, options):
    assert losses(desk, odd_lines(random.Random(SEED), 200, WORDS), **options) == 0


@pytest.mark.parametrize("bad", NO_TEXT, ids=repr)
def test_bytes_that_are_no_text_are_named_with_their_line(desk, bad):
    (desk.folder / "in").write_bytes(b"Norway\n5 " + bad + b"\nx\n")
    with pytest.raises(UserError, match=r"^.*/in, line 2: byte 0x.. is not UTF-8; convert the file, for example with"):
        desk.decode()
    assert not (desk.folder / "out").exists()
