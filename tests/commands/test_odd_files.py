"""Whole commands on odd files and names: status 2, one sentence, and nothing is waited for."""

import json
import os
import random
import runpy

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.text import visible
from convs2s_jax.data import cldr
from convs2s_jax.data.config import CldrConfig
from convs2s_jax.interop.orders import ProgramExport
from convs2s_jax.interop.programs.exporting import export_programs
from convs2s_jax.serving.engine import Engine, load
from convs2s_jax.serving.options import ServeOptions
from tests import tiny
from tests.odd_lines import GONE, JOINERS, WHITE
from tests.processes import called
from tests.serving.reversing import talk


def sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)


ODD = {
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "pipe": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "full": lambda path: path.symlink_to("/dev/full"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "4 terabytes": sparse,
    "latin-1": lambda path: path.write_bytes(b"gr\xfcn"),
    "empty": lambda path: path.write_bytes(b""),
    "lists": lambda path: path.write_text("[" * 100_000),
    "numbers": lambda path: path.write_text("[1, 2]"),
    "digits": lambda path: path.write_text("1" * 5000),
}


train, decode, config = (COMMANDS[name].run for name in ("train", "decode", "config"))
SPACES = [c for c in WHITE if c not in "\r\n"]
STEPS = ("devices: ", "XLA flags: ", "learning the ")
"""Beginnings of what a run tells before it refuses."""


def refused(program, *arguments, text=""):
    """The one sentence of a refusal; standard error has nothing else."""
    ended = called(program, "program.py", *arguments, text=text)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    told = [line for line in ended.stderr.splitlines() if not line.startswith(STEPS)]
    assert len(told) == 1, ended.stderr
    assert told[0].startswith("program.py: ")
    assert len(told[0]) < 3000
    return told[0]


@pytest.fixture
def workdir(tmp_path):
    """A workdir as far as it is read before the checkpoints."""
    (tmp_path / "run" / "vocab").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(tiny.config())))
    for side in ("src", "tgt"):
        (tmp_path / "run" / "vocab" / f"{side}.txt").write_text("haus 1\n")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("file", ["src.model", "src.txt", "src.pieces.json", "src.labels", "checksums.json"])
def test_in_place_of_a_vocabulary(workdir, file, name):
    (workdir / "vocab" / "src.txt").unlink()
    ODD[name](workdir / "vocab" / file)
    sentence = refused(decode, f"--workdir={workdir}", text="a\n")
    assert "vocab" in sentence or file == "src.labels"  # every text is a list of labels


@pytest.mark.parametrize("name", ODD)
def test_in_place_of_a_configuration_file(tmp_path, name):
    ODD[name](tmp_path / "odd.py")
    for program in (train, config):
        flags = [f"--workdir={tmp_path}/x"] if program == train else []
        assert "odd.py" in refused(program, f"--config={tmp_path}/odd.py", *flags)
    assert not (tmp_path / "x").exists()


NAMES = {"5,000": "n" * 5000, "256": "n" * 256, "NUL": "a\0b", "no UTF-8": "a\udcffb", "lines": "a\nb\x1b[31m"}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_disk_allows(tmp_path, workdir, name):
    odd, given = NAMES[name], f"--config={tiny.config_file(tmp_path)}"
    refused(train, f"--config={odd}", f"--workdir={tmp_path}/x")
    refused(decode, f"--workdir={odd}", text="a\n")
    for flag in ("data.dir", "data.vocabulary.dir", "data.src", "data.tgt"):
        flags = [f"--config.data.dir={tmp_path}"] if flag in ("data.src", "data.tgt") else []
        flags += ["--config.data.corpus=files"] if flag != "data.vocabulary.dir" else []
        refused(train, given, f"--workdir={tmp_path}/x", *flags, f"--config.{flag}={odd}")
    for flag in ("output", "lm"):
        more = ["--lm_weight=0.1"] if flag == "lm" else []
        refused(decode, f"--workdir={workdir}", *more, f"--{flag}={tmp_path}/none/{odd}", text="a\n")
    if name != "lines":
        assert "--workdir" in refused(train, given, f"--workdir={tmp_path}/{odd}")


@pytest.mark.parametrize("path", ["{file}", "{file}/x", "/dev/null", "/dev/full/x", "/proc/x", "{loop}/x", "{loop}"])
def test_a_workdir_where_none_can_be(tmp_path, path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    file = tiny.config_file(tmp_path)
    where = path.format(file=file, loop=tmp_path / "loop")
    assert f"--workdir={where}" in refused(train, f"--config={file}", f"--workdir={where}")


def with_odd(text, rng):
    """The same text with other white space, and invisible characters within words."""
    spaces = rng.choice(SPACES).join(text.split(" "))
    return "".join(f"{c}{rng.choice(GONE)}" if rng.random() < 0.3 else c for c in spaces) or rng.choice(SPACES + GONE)


@pytest.mark.drill
def test_odd_white_space_and_invisible_characters_change_nothing_in_any_command(tmp_path, monkeypatch, tally):
    """Preparation, training, decoding of files and standard input, scores, the server, an exported program."""
    rng = random.Random(20261130)
    pairs = cldr.generate("en", "de", CldrConfig(train=300, valid=12, test=8))
    for name, change in (("plain", str), ("odd", lambda text: with_odd(text, rng))):
        (tmp_path / name).mkdir()
        for split, sides in pairs.items():
            for side, texts in zip(("en", "de"), sides, strict=True):
                lines = "".join(f"{change(visible(text))}\n" for text in (*texts, ""))
                (tmp_path / name / f"{split}.{side}").write_text(lines, newline="")
        config = tiny.config_file(tmp_path / name, **tiny.files(tmp_path / name, "en", "de"), training__max_steps=3)
        ended = called(train, "train.py", f"--config={config}", f"--workdir={tmp_path}/{name}.run")
        assert ended.returncode == 0, ended.stderr
    made = ([path.name for path in sorted((tmp_path / f"{name}.run").rglob("*.tokens"))] for name in ("plain", "odd"))
    assert next(made) == next(made)
    for side in ("src", "tgt"):
        files = [(tmp_path / f"{name}.run" / "vocab" / f"{side}.model").read_bytes() for name in ("plain", "odd")]
        assert files[0] == files[1]
    base, cases = "Norway and Spain", [("", c * n) for c in (*SPACES, *GONE, *JOINERS) for n in (1, 3)]
    cases += [(base, base.replace(" ", c)) for c in SPACES] + [(base, base.replace("a", f"a{c}")) for c in GONE]
    cases += [(base, with_odd(base, rng)) for _ in range(200)]
    plain, odd = ("".join(f"{line}\n" for line in lines) for lines in zip(*cases, strict=True))
    (tmp_path / "in").write_text(odd, newline="")
    run = f"--workdir={tmp_path}/odd.run"
    right = called(decode, "decode.py", run, text=plain).stdout
    (tmp_path / "right").write_text("".join(f"{with_odd(line, rng)}\n" for line in right.split("\n")[:-1]), newline="")
    scored = called(decode, "decode.py", run, f"--input={tmp_path}/in", f"--reference={tmp_path}/right")
    assert "exact match 100.00" in scored.stderr
    (tmp_path / "plain").joinpath("in").write_text(plain)
    pairs_of = ((f"{tmp_path}/in", f"{tmp_path}/right"), (f"{tmp_path}/plain/in", f"{tmp_path}/plain/right"))
    (tmp_path / "plain" / "right").write_text(right)
    forced = [called(decode, "decode.py", run, f"--input={a}", f"--score={b}").stdout for a, b in pairs_of]
    assert forced[0] == forced[1] != ""
    monkeypatch.setattr(Engine, "shapes", lambda _: iter(()))
    engine = load(ServeOptions(workdir=(f"{tmp_path}/odd.run",), max_tokens=32), tell=pytest.fail)
    lines = [line for _, line in cases]

    async def served(client):
        answers = [await client.post("/translate", json={"lines": lines[i : i + 32]}) for i in range(0, len(lines), 32)]
        return [one["hypotheses"][0]["text"] for answer in answers for one in answer.json()["translations"]]

    order = ProgramExport(
        workdir=f"{tmp_path}/odd.run", output=f"{tmp_path}/program", max_tokens=32, platforms=("cpu",)
    )
    export_programs(order, {}, lambda _: None)
    program = runpy.run_path(f"{tmp_path}/program/translate.py")["Model"](f"{tmp_path}/program")
    found = {
        "file": scored.stdout.split("\n")[:-1],
        "standard input": called(decode, "decode.py", run, text=odd).stdout.split("\n")[:-1],
        "server": talk(served, engine=engine),
        "program": program.translate(lines),
    }
    wanted = right.split("\n")[:-1]
    lost = sum(a != b for texts in found.values() for a, b in zip(texts, wanted, strict=True))
    tally(tries=len(found) * len(cases), losses=lost)
