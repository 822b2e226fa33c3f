"""Whole commands on odd files and names: status 2, one sentence, and nothing is waited for."""

import json
import os

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.config import to_dict
from tests import tiny
from tests.processes import called


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
